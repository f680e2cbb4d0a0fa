"""A cluster in the middle of an upgrade. ``scripts/soak mixed-versions`` runs a thousand such histories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.system.compatibility.mixed_versions import NOW, OLDER, MixedCluster, has_older, trees


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not has_older(), reason="this checkout's history lacks the older version")
def test_entries_acknowledged_by_one_version_are_read_and_recovered_by_the_other(
    tmp_path: Path, new_chroot: Callable[[], str]
) -> None:
    with trees(tmp_path) as code, MixedCluster(code, tmp_path, new_chroot(), Random(18)) as cluster:
        for _ in range(12):
            cluster.tell()
    both_ways = {f"written {OLDER}, ended {NOW}", f"written {NOW}, ended {OLDER}", f"restarts {OLDER} to {NOW}"}
    assert both_ways <= set(cluster.counts)
