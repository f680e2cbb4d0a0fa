"""A log's reader, while others write."""

from __future__ import annotations

import pytest

from bookspark.logs import LogAddress, LogReader, LogRegistry, LogRun
from bookspark.logs.chain.committer import Committer
from bookspark.protocol.logs.commits import Commit, EntryRange
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryReader


def test_what_is_committed_between_a_readers_look_at_the_lac_and_the_next_runs_recovery_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger is closed once the reader is through with what it heard of, and has more than that."""
    bookkeeper = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")

    def run(name: str) -> Committer:
        return Committer(bookkeeper, LogRun.of(LogAddress("zookeeper", "orders"), registry.claim("orders", name)))

    def batch(number: int, run: str, epoch: int) -> Commit:
        return Commit("q", number, run, epoch, (EntryRange(1000, number * 10, number * 10 + 9, 10, 100),))

    first = run("a")
    first.commit(batch(0, "a", 1))
    look = MemoryReader.read_last_add_confirmed

    def look_and_be_slow(self: MemoryReader) -> int:
        monkeypatch.undo()
        heard = look(self)
        first.commit(batch(1, "a", 1))
        run("b").commit(batch(2, "b", 2))
        return heard

    reader = LogReader(bookkeeper, "orders", b"")
    monkeypatch.setattr(MemoryReader, "read_last_add_confirmed", look_and_be_slow)
    assert [placed.commit.batch for placed in reader.commits()] == [0, 1, 2]
    assert reader.position.rows == 30
