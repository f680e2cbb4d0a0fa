"""Short histories of clusters whose bookies and clients are of two versions
(``tests.system.compatibility.mixed_versions``).

A round is a history: one ledger, and a bookie that goes and returns in either version. A cluster has twenty of them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random

from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.soak._command import main
from tests.system.compatibility.mixed_versions import MixedCluster, trees

_HISTORIES = 20


def mixed_versions(rounds: int, first: int = 0) -> Mapping[str, int]:
    """Raises AssertionError with the story of a violation."""
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="bookspark-mixed-") as place,
        EmbeddedZooKeeper(Path(place, "zookeeper")) as zookeeper,
        trees(Path(place)) as code,
    ):
        for number in range(first, first + -(-rounds // _HISTORIES)):
            folder = Path(place, str(number))
            folder.mkdir()
            chroot = f"{zookeeper.connection_string}/{number}"
            with MixedCluster(code, folder, chroot, Random(number)) as cluster:
                for _ in range(_HISTORIES):
                    cluster.tell()
            counts.update(cluster.counts)
            print(f"cluster {number}: {dict(counts)}", flush=True)
    return counts


if __name__ == "__main__":
    main(__doc__, mixed_versions, 1000)
