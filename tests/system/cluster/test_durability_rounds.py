"""Random rounds of each kind of durability and replication, some with power cuts; `scripts/soak durability` makes many more."""

from __future__ import annotations

import pytest

from bookspark.testing import FaultyCluster
from tests.soak.durability import MODES, durability


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_each_durability_mode_keeps_its_guarantee_under_faults_and_power_cuts(new_chroot):
    never = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 30}
    with FaultyCluster(bookies=5, **never, zookeeper=new_chroot()) as cluster:
        counts = durability(cluster, 2 * len(MODES))
    assert counts["rounds"] == 2 * len(MODES)
    assert counts["entries"] > 0
