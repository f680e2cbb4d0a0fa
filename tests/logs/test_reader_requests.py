"""Requests of a reader for rows of small commits: one per ledger, not one per commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookspark.logs import Committer, LogAddress, LogRegistry, LogRun, RowReader
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.feeds.lane_feed import LaneFeed
from bookspark.logs.feeds.log_feed import Limit, LogFeed
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import writer_of
from bookspark.store.client import BookKeeper
from tests.logs.test_gaps import DamagedBookKeeper, DamagedReader

_COMMITS = 120


class _Reader(DamagedReader):
    def read(self, first: int, last: int) -> Iterator[Any]:
        cast(_Counted, self._bookkeeper).asked["read", self.ledger_id] += 1
        return super().read(first, last)


class _Counted(DamagedBookKeeper):
    def __init__(self) -> None:
        super().__init__()
        self.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
        self.asked: Counter[tuple[str, int]] = Counter()

    def _reader(self, ledger_id: int) -> _Reader:
        return _Reader(self, ledger_id)

    def get_ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        self.asked["metadata", ledger_id] += 1
        return super().get_ledger_metadata(ledger_id)


def _written(bookkeeper: _Counted, tasks: int, failed: int = 0) -> tuple[list[bytes], list[int]]:
    """Rows of commits of ten rows by ``tasks`` tasks, and the data ledgers. Each ``failed``-th attempt left an entry
    that no commit names."""
    registry, address = LogRegistry(bookkeeper.metadata), LogAddress("memory", "small")
    registry.ensure("small", {}, b"")
    run = LogRun.of(address, registry.claim("small", "run", "query"))
    client = cast(BookKeeper, bookkeeper)
    record = registry.get("small")
    ledgers = [run.create_ledger(client, record.options, "data") for _ in range(tasks)]
    committer, rows = Committer(client, run), list[bytes]()
    each = 10 // tasks
    for number in range(_COMMITS):
        ranges = []
        for ledger in ledgers:
            if failed and number % failed == failed - 1:
                ledger.append(b"of a task that failed")
            first = ledger.last_add_confirmed + 1
            for _ in range(each):
                rows.append(b"row %d" % len(rows))
                ledger.append(rows[-1])
            ranges.append(EntryRange(ledger.ledger_id, first, first + each - 1, each, 10 * each))
        committer.commit(Commit("query", number, "run", run.epoch, tuple(ranges), number + 1))
    return rows, [ledger.ledger_id for ledger in ledgers]


@pytest.mark.parametrize("tasks", [1, 2])
def test_rows_of_small_commits_are_read_with_a_request_per_ledger(tasks: int) -> None:
    """Each range of each commit cost a request to a bookie."""
    bookkeeper = _Counted()
    rows, ledgers = _written(bookkeeper, tasks)
    with RowReader(cast(BookKeeper, bookkeeper), LogAddress("memory", "small"), "earliest", "") as reader:
        bookkeeper.asked.clear()
        found = reader.read()
        assert [row.value for row in found] == rows
        assert [row.position for row in found] == list(range(len(rows)))
        # The times are those of the commits.
        assert [row.time_ms for row in found] == [n // 10 + 1 for n in range(len(rows))]
        assert [bookkeeper.asked["read", ledger] for ledger in ledgers] == [1] * tasks


def test_entries_between_commits_are_not_read_as_rows() -> None:
    for tasks in (1, 2):
        bookkeeper = _Counted()
        rows, _ = _written(bookkeeper, tasks, failed=7)
        with RowReader(cast(BookKeeper, bookkeeper), LogAddress("memory", "small"), "earliest", "") as reader:
            assert [row.value for row in reader.read()] == rows
            reader.seek({**reader.offset, "position": 0})
            assert [getattr(item, "value", item) for item in reader.read_with_gaps()] == rows


def test_read_after_a_limit_continues_within_the_commit() -> None:
    bookkeeper = _Counted()
    rows, _ = _written(bookkeeper, 2)
    with RowReader(cast(BookKeeper, bookkeeper), LogAddress("memory", "small"), "earliest", "") as reader:
        found = []
        while some := reader.read(rows_max=37):
            assert len(some) <= 37
            found += some
        assert [row.value for row in found] == rows


def test_read_with_gaps_looks_up_each_ledger_once() -> None:
    """Each commit cost a request to ZooKeeper."""
    bookkeeper = _Counted()
    rows, ledgers = _written(bookkeeper, 1)
    with RowReader(cast(BookKeeper, bookkeeper), LogAddress("memory", "small"), "earliest", "") as reader:
        bookkeeper.asked.clear()
        assert [getattr(item, "value", item) for item in reader.read_with_gaps()] == rows
        assert bookkeeper.asked["read", ledgers[0]] == 1
        # The stand-in's readers look the ledger up for each entry and when they are opened.
        assert bookkeeper.asked["metadata", ledgers[0]] - len(rows) < 5
    in_turns = _Counted()
    rows, ledgers = _written(in_turns, 2)
    with RowReader(cast(BookKeeper, in_turns), LogAddress("memory", "small"), "earliest", "") as reader:
        in_turns.asked.clear()
        assert [getattr(item, "value", item) for item in reader.read_with_gaps()] == rows
        assert in_turns.asked["metadata", ledgers[0]] - len(rows) // 2 < 5
    bookkeeper.denied.add((ledgers[0], 55))
    with RowReader(cast(BookKeeper, bookkeeper), LogAddress("memory", "small"), "earliest", "") as reader:
        told = reader.read_with_gaps()
        assert [getattr(item, "value", None) for item in told] == [*rows[:55], None, *rows[56:]]


def _two_lanes(commits: int) -> _Counted:
    """A log of two lanes with as many commits of one row each."""
    bookkeeper = _Counted()
    client, registry = cast(BookKeeper, bookkeeper), LogRegistry(bookkeeper.metadata)
    registry.ensure("small", {}, b"")
    registry.claim("small", "run", "query")
    LaneIndex(bookkeeper.metadata, LogRegistry(bookkeeper.metadata).lane("small")).begin(NewLane(writer_of("two")))
    for lane, query in (("small", "query"), ("small@1", "two")):
        run = LogRun.of(LogAddress("memory", lane), registry.claim(lane, "run", query))
        ledger = run.create_ledger(client, registry.get(lane).options, "data")
        committer = Committer(client, run)
        for number in range(commits):
            ledger.append(b"row")
            ranges = (EntryRange(ledger.ledger_id, number, number, 1, 3),)
            committer.commit(Commit(query, number, "run", run.epoch, ranges, number + 1))
    return bookkeeper


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the commits that feeds look at."""
    looked = Counter[str]()
    positioned = LaneFeed._positioned

    def counted(self: LaneFeed, *arguments: Any) -> Any:
        looked["commits"] += 1
        return positioned(self, *arguments)

    monkeypatch.setattr(LaneFeed, "_positioned", counted)
    return looked


def test_read_looks_at_as_many_commits_whatever_the_backlog_is(looked: Counter[str]) -> None:
    """Each read summed up the bytes of the whole backlog: 452 ms for 100 rows at 16,000 commits."""
    reads: dict[int, list[int]] = {}
    for commits in (100, 1000):
        bookkeeper = _two_lanes(commits)
        with RowReader(cast(BookKeeper, bookkeeper), LogAddress("memory", "small"), "earliest", "") as reader:
            reads[commits] = []
            for _ in range(4):
                looked.clear()
                assert len(reader.read(20)) == 20
                reads[commits].append(looked["commits"])
    assert reads[100] == reads[1000]
    assert max(reads[1000]) <= 5 * 20


def test_bytes_of_a_micro_batch_are_shared_without_a_look_at_the_backlog(looked: Counter[str]) -> None:
    feed = LogFeed(cast(BookKeeper, _two_lanes(1000)), "small", b"", fail_on_data_loss=True)
    end = feed.limited(feed.earliest(), feed.newest(), Limit(size=60))
    assert feed.rows(feed.earliest(), end) == 20 and (end["position"], end["1"]) == (10, 10)
    assert looked["commits"] <= 3 * 20
