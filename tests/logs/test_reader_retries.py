"""A reader whose bookies did not answer for a moment: asked again, it returns each commit in order."""

from __future__ import annotations

from typing import Any

import pytest

from bookspark.errors import ReadError
from bookspark.logs import Committer, LogAddress, LogRegistry, LogRun
from bookspark.logs.chain import committer
from bookspark.logs.chain.reader import LogReader
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.protocol.logs.commits import Commit, EntryRange
from tests.spark.memory_bookkeeper import MemoryBookKeeper

LOG, COMMITS = "orders", 6


class Failing(MemoryBookKeeper):
    """Too few bookies answer when ledger number ``fails``, counted from now, is opened for reading; only that time."""

    fails = -1

    def open_ledger_no_recovery(self, *arguments: Any, **more: Any) -> Any:
        self.fails -= 1
        if self.fails == -1:
            raise ReadError("too few bookies answer")
        return super().open_ledger_no_recovery(*arguments, **more)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, LogRun]:
    """A log of one-row commits, each in a commit ledger of its own."""
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", 1)
    bookkeeper: Any = Failing()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure(LOG, {}, b"")
    run = LogRun.of(LogAddress("memory", LOG), registry.claim(LOG, "run", "query"))
    writer = Committer(bookkeeper, run)
    for number in range(COMMITS):
        ledger = run.create_ledger(bookkeeper, registry.get(LOG).options, "data")
        ledger.append(b"%d" % number)
        ledger.close()
        writer.commit(Commit("query", number, "run", run.epoch, (EntryRange(ledger.ledger_id, 0, 0, 1, 1),), 1))
    writer.close()
    return bookkeeper, run


def batches(reader: LogReader) -> list[int]:
    """Batches of all commits that follow; asked again after an error."""
    found: list[int] = []
    for _ in range(2):
        try:
            for placed in reader.commits():
                found.append(placed.commit.batch)
        except ReadError:
            continue
    return found


def test_commit_ledger_that_failed_to_open_is_retried(run: tuple[Any, LogRun]) -> None:
    """The reader went on with the next ledger of the chain and reported the rows between as truncated."""
    bookkeeper, _ = run
    for fails in range(COMMITS):
        reader = LogReader(bookkeeper, LOG, b"")
        bookkeeper.fails = fails
        assert batches(reader) == list(range(COMMITS)), fails


def test_reader_of_a_compacted_chain_locates_its_position_again(
    run: tuple[Any, LogRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    bookkeeper, writer = run
    reader = LogReader(bookkeeper, LOG, b"")
    assert next(reader.commits()).commit.batch == 0
    monkeypatch.setattr(committer, "CHAIN_MAX", 1)
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", 2)
    assert committer.compact_chain(bookkeeper, writer)
    for fails in range(4):
        another = LogReader(bookkeeper, LOG, b"")
        vars(another).update({name: value for name, value in vars(reader).items() if name != "recent"})
        bookkeeper.fails = fails
        assert batches(another) == list(range(1, COMMITS)), fails


def test_feed_passes_over_no_row_when_it_is_asked_again(run: tuple[Any, LogRun]) -> None:
    bookkeeper, _ = run
    end = LogFeed(bookkeeper, LOG, b"", fail_on_data_loss=True).newest()
    for fails in range(2 * COMMITS):
        feed = LogFeed(bookkeeper, LOG, b"", fail_on_data_loss=True)
        bookkeeper.fails = fails
        rows: list[int] = []
        while not rows:
            try:
                rows = [piece.position for piece, _ in feed.pieces({**end, "position": 0}, end)]
            except ReadError:
                continue
        assert rows == list(range(COMMITS)), fails
