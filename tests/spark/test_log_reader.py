"""The reader of a log's commits while others write."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from bookspark.logs import LogAddress, LogReader, LogRegistry, LogRun, commits
from bookspark.logs.chain import committer
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.reader import AT_THE_END
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.store.wire.entry_batch import Entry
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryReader


def test_commits_between_the_readers_lac_request_and_the_next_recovery_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger is closed when the reader has passed the LAC that it knew, and has entries beyond it."""
    bookkeeper = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")

    def run(name: str) -> Committer:
        return Committer(bookkeeper, LogRun.of(LogAddress("zookeeper", "orders"), registry.claim("orders", name)))

    def commit(writer: Committer, number: int) -> None:
        owner = writer.run
        rows = EntryRange(bookkeeper.data_ledger(owner), number * 10, number * 10 + 9, 10, 100)
        writer.commit(Commit("q", number, owner.run, owner.epoch, (rows,)))

    first = run("a")
    commit(first, 0)
    look = MemoryReader.read_last_add_confirmed

    def look_and_be_slow(self: MemoryReader) -> int:
        monkeypatch.undo()
        heard = look(self)
        commit(first, 1)
        commit(run("b"), 2)
        return heard

    reader = LogReader(bookkeeper, "orders", b"")
    monkeypatch.setattr(MemoryReader, "read_last_add_confirmed", look_and_be_slow)
    assert [placed.commit.batch for placed in reader.commits()] == [0, 1, 2]
    assert reader.position.rows == 30


def log_of(random: Random, monkeypatch: pytest.MonkeyPatch) -> MemoryBookKeeper:
    """Commits of 0 to 30 rows by several runs, in several ledgers, compacted or not."""
    bookkeeper = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", random.choice([5, 40, 1000]))
    monkeypatch.setattr(committer, "CHAIN_MAX", random.choice([2, 64]))
    for number in range(random.randrange(1, 120)):
        if number == 0 or random.random() < 0.03:
            run = LogRun.of(LogAddress("zookeeper", "orders"), registry.claim("orders", f"run {number}"))
            writer = Committer(bookkeeper, run)
        rows = random.choice([0, 1, 10, 30])
        ranges = (
            (EntryRange(bookkeeper.data_ledger(run), number, number, rows, rows * random.choice([0, 9])),)
            if rows
            else ()
        )
        writer.commit(Commit("q", number, run.run, run.epoch, ranges))
        if random.random() < 0.05:
            committer.compact_chain(bookkeeper, run)
    return bookkeeper


@pytest.mark.parametrize("seed", range(25))
def test_reader_from_any_row_returns_the_same_commits_as_a_full_reader(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    bookkeeper = log_of(random, monkeypatch)
    every = list(commits(bookkeeper, "orders", b""))
    end = every[-1].after
    for row in {0, end.rows, AT_THE_END, *(random.randrange(end.rows + 5) for _ in range(20))}:
        reader = LogReader(bookkeeper, "orders", b"", row)
        found = list(reader.commits())
        assert found == every[len(every) - len(found) :]
        assert reader.position == end
        wanted = [placed for placed in every if placed.after.rows > row]
        assert found[len(found) - len(wanted) :] == wanted
        reader = LogReader(bookkeeper, "orders", b"", row)
        assert (reader.newest(), reader.end()) == (end.rows, end)


def test_reader_from_the_end_returns_every_later_commit() -> None:
    bookkeeper = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")
    run = LogRun.of(LogAddress("zookeeper", "orders"), registry.claim("orders", "a"))
    writer, reader = Committer(bookkeeper, run), LogReader(bookkeeper, "orders", b"", AT_THE_END)
    data = bookkeeper.data_ledger(run)
    found, made = [], 0
    for count in (7, 5, 1, 4):
        for number in range(made, made := made + count):
            writer.commit(Commit("q", number, "a", run.epoch, (EntryRange(data, number, number, 1, 9),)))
        found += [placed.commit.batch for placed in reader.commits()]
    assert found == list(range(6, 17))


@pytest.mark.parametrize("begin", [AT_THE_END, 4321])
def test_reader_from_late_in_a_commit_ledger_skips_the_earlier_commits(
    begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read all of them, up to 10,000, only to count the rows before its own."""
    bookkeeper = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")
    run = LogRun.of(LogAddress("zookeeper", "orders"), registry.claim("orders", "a"))
    writer = Committer(bookkeeper, run)
    random = Random(begin)
    for number in range(500):
        rows = random.randint(1, 20)
        writer.commit(
            Commit(
                "q", number, "a", run.epoch, (EntryRange(bookkeeper.data_ledger(run), number, number, rows, 9 * rows),)
            )
        )
    reader, seen = LogReader(bookkeeper, "orders", b"", begin), list[int]()
    read = MemoryReader.read

    def counted(self: MemoryReader, first: int, last: int) -> list[Entry]:
        seen.extend(range(first, last + 1))
        return read(self, first, last)

    monkeypatch.setattr(MemoryReader, "read", counted)
    first = next(iter(reader.commits()))
    if begin == AT_THE_END:
        assert (seen, reader.newest()) == ([500], reader.position.rows)
    else:
        assert first.before.rows <= begin < first.after.rows
        assert len(seen) < 60


def test_commit_returned_by_a_wait_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each micro-batch of a query that follows a log asked a bookie for the commit that the bookies had just sent. Commits
    behind it are read, and a commit that came while the ledger was closed and another ledger begun is returned once."""
    bookkeeper = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")

    def run(name: str) -> Committer:
        return Committer(bookkeeper, LogRun.of(LogAddress("zookeeper", "orders"), registry.claim("orders", name)))

    def commit(writer: Committer, number: int) -> None:
        rows = EntryRange(bookkeeper.data_ledger(writer.run), number, number, 1, 9)
        writer.commit(Commit("q", number, writer.run.run, writer.run.epoch, (rows,)))

    def told() -> list[int]:
        return [placed.commit.batch for placed in reader.commits()]

    writer = run("a")
    commit(writer, 0)
    reader, seen = LogReader(bookkeeper, "orders", b""), list[int]()
    assert told() == [0]
    read = MemoryReader.read

    def counted(self: MemoryReader, first: int, last: int) -> Iterator[Entry]:
        seen.extend(range(first, last + 1))
        return read(self, first, last)

    monkeypatch.setattr(MemoryReader, "read", counted)
    commit(writer, 1)
    assert (reader.wait(1.0), told(), seen) == (True, [1], [])
    for number in range(2, 5):
        commit(writer, number)
    assert (reader.wait(1.0), told(), len(seen)) == (True, [2, 3, 4], 2)
    commit(writer, 5)
    assert reader.wait(1.0)
    commit(run("b"), 6)
    commit(writer := run("c"), 7)
    assert told() == [5, 6, 7]
    # A commit returned by a wait before the reader has located its row is not the commit at that row.
    for number in range(8, 30):
        commit(writer, number)
    reader = LogReader(bookkeeper, "orders", b"", 20)
    assert (reader.wait(1.0), told()) == (True, list(range(20, 30)))
