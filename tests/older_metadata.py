"""A cluster whose ZooKeeper data was replaced by an older copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bookspark.local import LocalCluster
from bookspark.store.client import BookKeeper

OLD = [b"old %d" % number for number in range(30)]


def written(bookkeeper: BookKeeper, entries: list[bytes], ledgers: int = 1) -> list[int]:
    """The ids of new closed ledgers with these entries, on two bookies."""
    made = []
    for _ in range(ledgers):
        with bookkeeper.create_ledger(2, 2, 2) as ledger:
            ledger.append_batch(entries)
            made.append(ledger.ledger_id)
    return made


@contextmanager
def set_back(
    place: Path, forgotten: int = 3, *, autorecovery: bool = False
) -> Iterator[tuple[LocalCluster, int, list[int]]]:
    """The cluster, a ledger that its ZooKeeper knows, and ``forgotten`` ledgers that the older copy lacks."""
    cluster = LocalCluster(2, place, autorecovery=autorecovery, gc_wait_time_seconds=3600)
    data, copy = place / "zookeeper" / "data", place / "copy"
    with cluster:
        (known,) = written(cluster.bookkeeper(), OLD)
    shutil.copytree(data, copy)
    with cluster:
        lost = written(cluster.bookkeeper(), OLD, forgotten)
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    with cluster:
        yield cluster, known, lost
