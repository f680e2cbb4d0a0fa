"""Bookies without a journal that lose their data in turn; `scripts/soak self-healing` makes many more rounds."""

from __future__ import annotations

import pytest

from bookspark.local import LocalCluster
from tests.soak.self_healing import AUTORECOVERY, BOOKIES, self_healing


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_bookies_that_lose_data_heal_under_writers_and_recoverers(new_chroot):
    with LocalCluster(bookies=5, autorecovery=AUTORECOVERY, **BOOKIES, zookeeper=new_chroot()) as cluster:
        counts = self_healing(cluster, 2, seed=2)
    assert counts["rounds"] == 2
    assert counts["acked"] > 0
