"""Times of a log's rows: they never go back along a lane, choose where a read begins and ends, and are a column."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, cast

import pyarrow
import pytest
from pyspark.sql.types import StructType

from bookspark.errors import ConfigurationError, DataLossError
from bookspark.logs import commits, truncate_log
from bookspark.logs.chain import committer
from bookspark.logs.chain.commit_ledgers import read_commits
from bookspark.logs.chain.commit_times import KnownLedgers, row_at
from bookspark.logs.chain.reader import AT_THE_END, LogReader
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.feeds.times import RowTimes, Times, time_ms, times_of_lanes
from bookspark.logs.rows.splits import Piece, TimedRows, positioned, split
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.spark.connector import source
from bookspark.spark.connector.source import EntryReader
from bookspark.spark.frames import _of_lane
from bookspark.spark.options.source_options import SourceOptions
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryReader
from tests.spark.memory_stream import memory_stream
from tests.spark.test_feeds import ROWS, Log, recreated
from tests.stories import seeds

SEEDS = seeds(10)


@pytest.fixture
def log() -> Log:
    return Log()


def placed_times(log: Log) -> list[int]:
    return [placed.commit.time_ms for placed in commits(cast(BookKeeper, log.bookkeeper), "orders", b"")]


def row_of_time(log: Log, time_ms: int) -> int:
    return row_at(cast(BookKeeper, log.bookkeeper), "orders", b"", time_ms)


# -- times go up


def test_commit_times_never_go_back_although_clocks_do(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", 3)
    for time in (100, 50, 120, 60, 60):
        log.commit(time_ms=time)
    log.begin("another run, on a host whose clock is behind")
    for time in (10, 130):
        log.commit(time_ms=time)
    assert placed_times(log) == [100, 100, 120, 120, 120, 120, 130]
    assert len(log.registry.get("orders").commit_ledgers) > 2


def test_each_commit_records_its_first_row(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", 3)
    log.commit(5)
    log.begin("b")
    log.commit(2)
    found = list(commits(cast(BookKeeper, log.bookkeeper), "orders", b""))
    assert [placed.commit.first_row for placed in found] == [placed.before.rows for placed in found]


# -- search by time


def history(log: Log, random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits in several ledgers by several runs, compacted or not."""
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", random.choice([2, 7, 100]))
    monkeypatch.setattr(committer, "CHAIN_MAX", random.choice([2, 64]))
    now = 1000
    for number in range(random.randrange(60)):
        now += random.choice([0, 0, 1, 1, 7, 1000])
        if random.random() < 0.1:
            log.begin(f"run {number}")
        log.commit(time_ms=now)
        if random.random() < 0.1:
            committer.compact_chain(cast(BookKeeper, log.bookkeeper), log.committer.run)


@pytest.mark.parametrize("seed", SEEDS)
def test_search_by_time_matches_a_scan_of_the_commits(log: Log, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    history(log, random, monkeypatch)
    times = placed_times(log)
    wanted = {0, 1 << 40, *times, *(time + 1 for time in times), *(time - 1 for time in times)}
    for time in random.sample(sorted(wanted), min(20, len(wanted))):
        assert row_of_time(log, time) == ROWS * bisect_left(times, time)
    record = log.registry.get("orders")
    for start in record.link_starts:
        handle = log.bookkeeper.open_ledger_no_recovery(start.ledger_id)
        first = next(iter(read_commits(cast(Any, handle))))
        assert (start.time_ms, start.row) == (first.commit.time_ms, first.before.rows)


def test_new_reader_locates_a_time_in_a_long_chain_with_few_requests(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opened one ledger after the other and read the first commit of each, and the newest commit as well."""
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", 10)
    times = list(range(0, 1_000_000, 1000))
    for time in times:
        log.commit(time_ms=time)
    log.committer.close()
    assert len(log.registry.get("orders").commit_ledgers) == 100
    asked: list[str] = []
    for owner, name in (
        (MemoryBookKeeper, "open_ledger_no_recovery"),
        (MemoryReader, "read"),
        (MemoryStore, "read_record"),
        (MemoryStore, "read_records"),
    ):
        counted(monkeypatch, owner, name, asked)
    random = Random(5)
    for time in [0, -5, times[-1], times[-1] + 1, *random.choices(times, k=30)]:
        feed = log.feed()
        asked.clear()
        assert feed.at_time(time)["position"] == ROWS * bisect_left(times, time)
        # The memory store reads each record of a bulk read singly.
        assert asked.count("read_records") == asked.count("read_record") == 1
        assert asked.count("open_ledger_no_recovery") <= 1 and asked.count("read") <= 2
        if not 0 < time <= times[-1]:
            assert "open_ledger_no_recovery" not in asked


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, into: list[str]) -> None:
    original = getattr(owner, name)

    def called(self: object, *arguments: Any, **named: Any) -> Any:
        into.append(name)
        return original(self, *arguments, **named)

    monkeypatch.setattr(owner, name, called)


def test_search_by_time_raises_if_the_log_was_created_again(log: Log) -> None:
    """The log was deleted and created again since its record was read, and no reader of the lane would notice."""
    log.commit(3, time_ms=10)
    record = log.registry.get("orders")
    recreated(log)
    log.commit(time_ms=10)
    with pytest.raises(DataLossError, match="another log by now"):
        row_at(cast(BookKeeper, log.bookkeeper), "orders", b"", 10, record=replace(record, link_starts=()))


def test_reader_discards_a_record_read_before_the_chain_changed(log: Log) -> None:
    log.commit(2, time_ms=10)
    head = LogReader(cast(BookKeeper, log.bookkeeper.other()), "orders", b"", AT_THE_END)
    log.begin("b")
    log.commit(2, time_ms=20)
    log.begin("c")
    log.commit(2, time_ms=30)
    read_before = log.registry.get("orders")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(committer, "CHAIN_MAX", 1)
        committer.compact_chain(cast(BookKeeper, log.bookkeeper), log.committer.run)
    assert head.newest(read_before) == 60
    assert head.record == log.registry.get("orders") != read_before


@pytest.mark.parametrize("seed", SEEDS)
def test_ledger_cache_of_searches_stays_correct_while_the_chain_changes(
    log: Log, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, known, now = Random(seed), KnownLedgers(), 1000
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", random.choice([2, 7]))
    monkeypatch.setattr(committer, "CHAIN_MAX", random.choice([2, 64]))
    bookkeeper = cast(BookKeeper, log.bookkeeper)
    head = LogReader(cast(BookKeeper, log.bookkeeper.other()), "orders", b"", AT_THE_END)
    for number in range(60):
        now += random.choice([0, 1, 7, 1000])
        log.commit(time_ms=now)
        if random.random() < 0.1:
            log.begin(f"run {number}")
        if random.random() < 0.1:
            committer.compact_chain(bookkeeper, log.committer.run)
        if random.random() < 0.05:
            truncate_log(bookkeeper, "orders", random.randrange(ROWS * (number + 1)), b"")
        if random.random() < 0.3:
            rows = head.newest()
            times, first = placed_times(log), log.registry.get("orders").first_position
            skipped = (rows - ROWS * len(times)) // ROWS
            for time in random.choices([*times, now + 1, 0], k=5):
                found = row_at(bookkeeper, "orders", b"", time, rows, head, known)
                assert found == max(first, ROWS * (skipped + bisect_left(times, time)))
            chain = log.registry.get("orders").commit_ledgers
            assert known.full.keys() | known.firsts.keys() <= set(chain)
            assert known._times.keys() <= {link.ledger_id for link in chain}


def test_searches_of_a_reader_open_no_full_ledger_twice(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", 10)
    for time in range(0, 100_000, 1000):
        log.commit(time_ms=time)
    feed, opened = log.feed(), list[int]()
    assert len(log.registry.get("orders").commit_ledgers) > 5
    original = MemoryBookKeeper.open_ledger_no_recovery

    def counted(self: MemoryBookKeeper, ledger_id: int, password: bytes = b"", **named: Any) -> MemoryReader:
        opened.append(ledger_id)
        return original(self, ledger_id, password, **named)

    monkeypatch.setattr(MemoryBookKeeper, "open_ledger_no_recovery", counted)
    random = Random(3)
    for _ in range(50):
        row = random.randrange(100)
        assert feed.at_times(Times(1000 * row), feed.newest())["position"] == ROWS * row
    assert len(opened) == len(set(opened)) and opened


def test_time_in_3000_commits_is_located_with_few_reads(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(1)
    time, times = 0, []
    for _ in range(3000):
        time += random.choice([1, 3, 3, 900])
        times.append(time)
        log.commit(time_ms=time)
    reads = []
    read = MemoryReader.read

    def counted(self: MemoryReader, first: int, last: int) -> Any:
        reads.append(last - first + 1)
        return read(self, first, last)

    monkeypatch.setattr(MemoryReader, "read", counted)
    for wanted in random.sample(times, 50):
        reads.clear()
        assert row_of_time(log, wanted) == ROWS * bisect_left(times, wanted)
        assert max(reads) <= 8 and len(reads) < 16


def test_time_before_truncated_rows_is_the_first_remaining_row(log: Log) -> None:
    log.commit(time_ms=10)
    log.begin("b")
    log.commit(2, time_ms=20)
    truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 15, b"")
    feed = log.feed()
    assert feed.at_times(Times(5), feed.newest())["position"] == 15
    assert feed.at_times(Times(20), feed.newest())["position"] == 15
    assert feed.at_times(Times(21), feed.newest())["position"] == 30


# -- reads between times


def reader(log: Log, monkeypatch: pytest.MonkeyPatch, **options: str) -> EntryReader:
    monkeypatch.setattr(source, "client", lambda zookeeper: log.bookkeeper)
    given = SourceOptions.parse({"log": "orders", "zookeeper": "nowhere", **options})
    monkeypatch.setattr(source, "feed", lambda options: feed_of(log, options))
    schema = source.schema_of(given)
    return EntryReader(given, schema, schema.names)


def feed_of(log: Log, options: SourceOptions) -> LogFeed:
    return LogFeed(cast(BookKeeper, log.bookkeeper.other()), "orders", b"", True, "timestamp" in options.added)


def positions(reader: EntryReader) -> list[int]:
    pieces: Iterator[Piece] = (piece for part in reader.partitions() for piece in part.pieces)  # type: ignore[attr-defined]
    return [row for piece in pieces for row in range(piece.position, piece.position + piece.rows)]


def test_read_between_two_times_has_the_rows_of_that_span(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for time in (1000, 2000, 3000, 4000):
        log.commit(time_ms=time)
    assert positions(
        reader(log, monkeypatch, startingTimestamp="1970-01-01T00:00:02Z", endingTimestamp="4000")
    ) == list(range(10, 30))
    assert positions(reader(log, monkeypatch, startingTimestamp="2001")) == list(range(20, 40))
    assert positions(reader(log, monkeypatch, startingTimestamp="4001")) == []
    assert positions(reader(log, monkeypatch, startingOffsetsByTimestamp='{"0": 3000}')) == list(range(20, 40))
    assert positions(reader(log, monkeypatch, endingOffsetsByTimestamp='{"0": "3000"}')) == list(range(20))
    with pytest.raises(ConfigurationError, match="has no lane 3: its lanes are 0"):
        reader(log, monkeypatch, startingOffsetsByTimestamp='{"3": 1}').partitions()


def test_stream_from_a_time_keeps_its_start_when_asked_again(log: Log) -> None:
    """A stream asks again as long as it has no micro-batch: rows that came since must not be passed over."""
    log.commit(time_ms=1000)
    options = {"log": "orders", "zookeeper": "nowhere", "startingTimestamp": "1500"}

    def start() -> int:
        return memory_stream(log.feed(), options).initialOffset()["position"]

    assert start() == 10
    log.commit(time_ms=1600)
    log.commit(time_ms=1700)
    assert start() == 10


def test_malformed_and_contradictory_times_are_refused() -> None:
    assert time_ms("1795356300000") == time_ms("2026-11-22T15:05:00+01:00") == time_ms("2026-11-22T14:05:00Z")
    assert times_of_lanes('{"0": 5, "7": "1970-01-01T00:00:01Z"}').lanes == {0: 5, 7: 1000}
    wrong = {
        "startingTimestamp": ["yesterday", "2026-11-22T14:05:00", "-1", "", "9" * 30],
        "startingOffsetsByTimestamp": ["5", "{}", '{"a": 1}', '{"0": null}', '{"0": true}', '{"0": "soon"}', "["],
        "includeTimestamp": ["maybe"],
    }
    for option, values in wrong.items():
        for value in values:
            with pytest.raises(ConfigurationError, match=option):
                SourceOptions.parse({"log": "orders", "zookeeper": "nowhere", option: value})
    for options, told in [
        ({"startingTimestamp": "5", "startingOffsets": "5"}, "startingOffsets and startingTimestamp say two things"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "give a later end"),
    ]:
        with pytest.raises(ConfigurationError, match=told):
            SourceOptions.parse({"log": "orders", "zookeeper": "nowhere", **options}).for_batch()
    with pytest.raises(ConfigurationError, match="a stream has no end"):
        SourceOptions.parse({"log": "orders", "zookeeper": "nowhere", "endingTimestamp": "4"}).for_stream()
    with pytest.raises(ConfigurationError, match="are for reading a log"):
        SourceOptions.parse({"ledger": "1", "zookeeper": "nowhere", "includeTimestamp": "true"})


# -- the column timestamp


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_keeps_its_time_in_every_division_of_a_plan(log: Log, seed: int) -> None:
    random = Random(seed)
    for _ in range(random.randrange(1, 20)):
        log.commit(time_ms=random.randrange(10, 10_000))
        if random.random() < 0.2:
            log.roll()
    placed = list(commits(cast(BookKeeper, log.bookkeeper), "orders", b""))
    expected = [one.commit.time_ms for one in placed for _ in range(one.commit.rows)]
    first, last = sorted(random.choices(range(len(expected) + 1), k=2))
    feed = LogFeed(cast(BookKeeper, log.bookkeeper.other()), "orders", b"", True, True)
    pieces = feed.pieces(feed.at(first), feed.at(last))
    parts = split(pieces, random.randrange(1, 30))
    found = [int(time) for part in parts for time in RowTimes(part).take(rows_in(part)).cast("int64").to_pylist()]
    assert found == [time * 1000 for time in expected[first:last]]


def rows_in(pieces: list[Piece]) -> int:
    return sum(piece.rows for piece in pieces)


def test_row_times_continue_over_the_ends_of_pieces() -> None:
    pieces = [Piece(1, 0, 0, 3, times=(TimedRows(2, 5), TimedRows(1, 6))), Piece(2, 0, 3, 2, times=(TimedRows(2, 7),))]
    times = RowTimes(pieces)
    assert [times.take(rows).cast("int64").to_pylist() for rows in (1, 3, 0, 1)] == [
        [5000],
        [5000, 6000, 7000],
        [],
        [7000],
    ]


def test_pieces_carry_no_times_unless_requested(log: Log) -> None:
    log.commit(5, time_ms=7)
    feed = log.feed()
    [[piece]] = split(feed.pieces(feed.earliest(), feed.newest()), 1)
    assert piece.times == () and piece.rows == 50
    assert [piece.times for piece, _ in positioned(())] == []


def test_own_timestamp_column_of_a_log_is_read_like_any_other(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for the column that includeTimestamp adds, though the option was not set: times were missing, and if the
    schema lacked it, the other columns had its values."""
    log.commit()
    own = StructType().add("timestamp", "timestamp").add("id", "long")
    decoded: list[list[str]] = []

    def rows_of(
        ledgers: Any, name: str, pieces: deque[Piece], schema: StructType, *_: object
    ) -> Iterator[pyarrow.RecordBatch]:
        pieces.popleft()
        ledgers._decoder_of(LedgerMetadata(1, 1, 1, 1, (Fragment(0, ("b",)),)))
        yield pyarrow.RecordBatch.from_pylist([dict.fromkeys(schema.names, 1)])

    monkeypatch.setattr(source, "rows_of", rows_of)
    monkeypatch.setattr(source, "client", lambda zookeeper: log.bookkeeper)
    monkeypatch.setattr(source, "row_decoder", lambda ledger, columns, dictionary: decoded.append(columns.names))
    options = SourceOptions.parse({"log": "orders", "zookeeper": "nowhere"})
    for names in (["timestamp", "id"], ["id"], ["timestamp"]):
        reader = EntryReader(options, StructType([*own, *source.ID_SCHEMA]), names)
        [rows] = reader.read(source.Ranges([Piece(1, 0, 0, 1)]))
        assert rows.schema.names == names
    assert decoded == [["timestamp", "id"]] * 3


# -- stale knowledge


def test_time_is_located_among_rows_that_answering_bookies_do_not_know(log: Log) -> None:
    for time in (10, 20, 30):
        log.commit(time_ms=time)
    feed = log.feed()
    assert feed.newest()["position"] == 30
    log.bookkeeper.untold.add(log.registry.get("orders").commit_ledgers[-1].ledger_id)
    assert [feed.at_times(Times(time), feed.newest())["position"] for time in (20, 21, 30, 31)] == [10, 20, 20, 30]


class _OldReader(MemoryReader):
    """A handle that has learnt of no entry since it was made. (A bookie that answers its reads may be behind, too.)"""

    @property
    def last_add_confirmed(self) -> int:
        return self._confirmed

    def confirm(self, entry_id: int) -> None:
        self._confirmed = max(self._confirmed, entry_id)


def test_reader_with_a_stale_view_locates_times_of_later_commits(log: Log) -> None:
    """It searches the commit ledger at hand, by which the lane ends before the time."""
    for time in (10, 20):
        log.commit(time_ms=time)
    head = LogReader(cast(BookKeeper, log.bookkeeper.other()), "orders", b"", AT_THE_END)
    assert head.newest() == 20
    assert head._handle is not None
    old = _OldReader(log.bookkeeper, head._handle.ledger_id)
    old.confirm(2)
    head._handle = cast(Any, old)
    for time in (30, 40):
        log.commit(time_ms=time)
    found = [
        row_at(cast(BookKeeper, log.bookkeeper), "orders", b"", time, known_rows, head)
        for time, known_rows in ((20, 0), (21, 0), (31, 20), (40, 20), (41, 20))
    ]
    assert found == [10, 20, 30, 30, 40]


class _UntoldReader(_OldReader):
    """A handle that was not notified of its ledger's close either."""

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    def read_last_add_confirmed(self) -> int:
        self._metadata = self._bookkeeper.get_ledger_metadata(self.ledger_id)
        self.confirm(len(self._bookkeeper.entries[self.ledger_id]) - 1)
        return self._confirmed


def test_ledger_closed_since_the_readers_last_look_is_searched_to_its_end(log: Log) -> None:
    for time in (10, 20):
        log.commit(time_ms=time)
    head = LogReader(cast(BookKeeper, log.bookkeeper.other()), "orders", b"", AT_THE_END)
    assert head.newest() == 20
    assert head._handle is not None
    old = _UntoldReader(log.bookkeeper, head._handle.ledger_id)
    old.confirm(2)
    head._handle = cast(Any, old)
    for time in (30, 40):
        log.commit(time_ms=time)
    log.begin("b")
    log.commit(time_ms=50)
    assert len(log.registry.get("orders").commit_ledgers) == 2 and not old.metadata.closed
    known = KnownLedgers()
    bookkeeper = cast(BookKeeper, log.bookkeeper)
    assert [row_at(bookkeeper, "orders", b"", time, 0, head, known) for time in (20, 31, 41, 51)] == [10, 30, 40, 50]


def test_seek_to_a_known_time_raises_after_the_log_is_created_again(log: Log) -> None:
    """A reader that knows a row of that time does not ask for the newest rows, which would reveal the new log."""
    log.commit(time_ms=10)
    feed = log.feed()
    assert feed.at_time(10)["position"] == 0
    recreated(log)
    log.commit(time_ms=10)
    with pytest.raises(DataLossError, match="another log by now"):
        feed.at_time(10)


def test_open_reader_respects_a_later_truncation(log: Log) -> None:
    log.commit(3, time_ms=10)
    feed = log.feed()
    feed.newest()
    truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 15, b"")
    assert feed.at_times(Times(5), feed.newest())["position"] == 15


def test_commit_has_the_time_of_its_successful_attempt(log: Log) -> None:
    log.commit(time_ms=5)
    log.bookkeeper.before_append = [lambda ledger_id: None] * ROWS + [log_fenced(log)]
    log.commit(time_ms=6)
    first, second = placed_times(log)
    assert first == 5 and second > 1_700_000_000_000


def log_fenced(log: Log) -> Callable[[int], None]:
    """Recover the commit ledger just before the append."""

    def fenced(ledger_id: int) -> None:
        log.bookkeeper.open_ledger(ledger_id)

    return fenced


def test_each_lane_of_an_offloaded_log_gets_its_own_starting_time() -> None:
    given = {"startingOffsetsByTimestamp": '{"0": 5, "2": 7}', "endingTimestamp": 9, "password": "secret"}
    known = SourceOptions.parse({"log": "orders", "zookeeper": "nowhere", **{k: str(v) for k, v in given.items()}})
    assert _of_lane(given, known, 2) == {"startingTimestamp": 7, "endingTimestamp": 9, "password": "secret"}
    assert _of_lane(given, known, 1) == {"endingTimestamp": 9, "password": "secret"}
