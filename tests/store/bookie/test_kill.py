"""kill -9 at random moments, on real files and under load; ``scripts/soak bookie-kill`` does it 200 times."""

from __future__ import annotations

import pytest

from tests.store.bookie.kills import Kills


@pytest.mark.acceptance
def test_repeatedly_killed_bookie_keeps_its_promises(tmp_path):
    counts = Kills(tmp_path).run(6)
    assert counts["rounds"] == 6 and counts["entries checked"] > 1000, counts
