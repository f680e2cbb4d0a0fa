"""Feeds that plan reads: offsets, limits, truncated and deleted rows, and logs whose chain grows meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError, ConfigurationError, DataLossError, NoSuchLedgerError, ReadError
from bookspark.logs import (
    LogAddress,
    LogRegistry,
    LogRun,
    RollPolicy,
    RowReader,
    current_committer,
    current_data_ledger,
    delete_log,
    truncate_log,
)
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.maintenance import collect_recent_orphans
from bookspark.logs.feeds.gaps import Gap
from bookspark.logs.feeds.log_feed import Limit, LogFeed
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import LogRecreatedError, NoSuchLogError
from bookspark.spark.connector import source
from bookspark.spark.connector.feeds import LedgersFeed
from bookspark.spark.connector.sink import LogWriter, RangesWritten
from bookspark.spark.connector.source import EntryReader, EntryStreamReader
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryLedger, MemoryReader
from tests.spark.memory_stream import memory_stream

ROWS = 10
ORDERS = LogAddress("zookeeper", "orders")


class Log:
    """A log in memory; each batch has ``ROWS`` rows of 10 bytes in a data ledger of its run."""

    def __init__(self) -> None:
        self.bookkeeper = MemoryBookKeeper()
        self.registry = LogRegistry(self.bookkeeper.metadata)
        self.registry.ensure("orders", {}, b"")
        self.batches = 0
        self.begin("a")

    def begin(self, run: str) -> None:
        """A new run takes over; it has a commit ledger and a data ledger of its own."""
        owner = LogRun.of(ORDERS, self.registry.claim("orders", run))
        self.owner, self.run, self.epoch = owner, owner.run, owner.epoch
        self.committer = Committer(cast(BookKeeper, self.bookkeeper), owner)
        self.roll()

    def roll(self) -> None:
        """Begin the next data ledger of the run."""
        found: object = self.owner.create_ledger(cast(BookKeeper, self.bookkeeper), LogOptions(), "data")
        self.data = cast(MemoryLedger, found)

    def commit(self, count: int = 1, time_ms: int = 0) -> None:
        for _ in range(count):
            first = self.data.last_add_confirmed + 1
            for _ in range(ROWS):
                last = self.data.append(b"0123456789")
            item = EntryRange(self.data.ledger_id, first, last, ROWS, 10 * ROWS)
            self.committer.commit(Commit("q", self.batches, self.run, self.epoch, (item,), time_ms))
            self.batches += 1

    def feed(self, fail_on_data_loss: bool = True) -> LogFeed:
        return LogFeed(cast(BookKeeper, self.bookkeeper.other()), "orders", b"", fail_on_data_loss)


@pytest.fixture
def log() -> Log:
    return Log()


def positions(feed: LogFeed, start: int, end: int) -> list[int]:
    pieces = [piece for piece, _ in feed.pieces(feed.at(start), feed.at(end))]
    return [p.position + n for p in pieces for n in range(p.last_entry_id - p.first_entry_id + 1)]


def test_unwritten_log_has_no_rows_and_its_feed_grows(log: Log) -> None:
    feed = log.feed()
    assert feed.earliest() == feed.newest() == feed.at(0)
    assert feed.pieces(feed.at(0), feed.at(0)) == []
    log.commit(2)
    assert feed.newest() == feed.at(20)
    assert positions(feed, 0, 20) == list(range(20))


def test_feed_follows_the_chain_over_runs(log: Log) -> None:
    feed = log.feed()
    read: list[int] = []
    at = 0
    for run in "bcd":
        log.commit(3)
        end = feed.newest()["position"]
        read += positions(feed, at, end)
        at = end
        log.begin(run)
        assert feed.newest() == feed.at(at)
    log.commit()
    assert read + positions(feed, at, feed.newest()["position"]) == list(range(100))


def test_plan_continues_from_the_last_plan_and_reads_no_commit_twice(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.commit(50)
    feed = log.feed()
    feed.newest()
    assert positions(feed, 0, 100) == list(range(100))
    read: list[int] = []
    reader = type(log.bookkeeper.open_ledger_no_recovery(log.data.ledger_id))
    original = reader.read

    def counted(self: object, first: int, last: int) -> object:
        read.extend(range(first, last + 1))
        return original(self, first, last)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "read", counted)
    assert positions(feed, 100, 105) == list(range(100, 105))
    assert positions(feed, 105, 300) == list(range(105, 300))
    assert read == []


def test_replayed_plan_is_the_same_plan(log: Log) -> None:
    log.commit(3)
    log.begin("b")
    log.commit(3)
    feed = log.feed()
    first = feed.pieces(feed.at(7), feed.at(44))
    feed.pieces(feed.at(44), feed.at(60))
    assert feed.pieces(feed.at(7), feed.at(44)) == first == log.feed().pieces(feed.at(7), feed.at(44))


def test_limits_cut_within_a_commit(log: Log) -> None:
    log.commit(3)
    feed = log.feed()
    start, end = feed.at(4), feed.newest()
    assert feed.limited(start, end, Limit(rows=1)) == feed.at(5)
    assert feed.limited(start, end, Limit(rows=13)) == feed.at(17)
    assert feed.limited(start, end, Limit(rows=26)) == feed.limited(start, end, Limit()) == end
    assert feed.limited(start, end, Limit(size=95)) == feed.at(13)
    assert feed.limited(start, end, Limit(size=1)) == feed.at(5)


def test_plans_and_limits_count_rows_in_entries_of_several_rows(log: Log) -> None:
    for _ in range(4):
        first = log.data.append(b"0123456789")
    item = EntryRange(log.data.ledger_id, first - 3, first, 20, 40)
    log.committer.commit(Commit("q", 0, log.run, log.epoch, (item,)))
    log.batches = 1
    log.commit()
    feed = log.feed()
    (several, _), (single, _) = feed.pieces(feed.at(7), feed.newest())
    assert (several.first_entry_id, several.last_entry_id, several.skip, several.rows) == (first - 2, first, 2, 13)
    assert (single.position, single.rows, single.rows_each) == (20, 10, 1)
    assert feed.limited(feed.at(7), feed.newest(), Limit(rows=9)) == feed.at(16)


def test_read_of_truncated_rows_fails(log: Log) -> None:
    log.commit(3)
    log.begin("b")
    log.commit(3)
    deleted = truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 35, b"")
    assert len(deleted) == 2, "the first run's commit ledger and data ledger"
    feed = log.feed()
    assert feed.earliest() == feed.at(35)
    assert positions(feed, 35, 60) == list(range(35, 60))
    with pytest.raises(DataLossError, match=r"rows 7 to 34 were truncated.*failOnDataLoss"):
        feed.pieces(feed.at(7), feed.at(60))


def test_truncated_rows_are_logged_and_passed_over_without_fail_on_data_loss(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.commit(3)
    truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 12, b"")
    feed = log.feed(fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING):
        assert positions(feed, 5, 30) == list(range(12, 30))
    assert "rows 5 to 11 were truncated" in caplog.text
    assert feed.limited(feed.at(5), feed.at(30), Limit(rows=4)) == feed.at(16)


def test_truncation_keeps_a_ledger_that_later_rows_need(log: Log) -> None:
    log.commit(3)
    log.begin("b")
    log.commit()
    assert truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 29, b"") == []
    assert positions(log.feed(), 29, 40) == list(range(29, 40))


def test_truncation_deletes_a_ledger_of_truncated_rows_whose_commits_stay_listed(log: Log) -> None:
    log.commit(3)
    first = log.data.ledger_id
    log.roll()
    log.commit(3)
    log.begin("b")
    log.commit()
    assert truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 30, b"") == [first]
    assert positions(log.feed(), 30, 70) == list(range(30, 70))


def test_truncation_keeps_the_ledgers_of_the_running_epoch(log: Log) -> None:
    log.commit(2)
    assert truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 20, b"") == []
    log.commit()
    assert positions(log.feed(), 20, 30) == list(range(20, 30))


def test_next_run_deletes_ledgers_truncated_while_their_query_ran(log: Log) -> None:
    log.commit(2)
    truncated = log.data.ledger_id
    log.roll()
    log.commit(2)
    kept = log.data.ledger_id
    bookkeeper = cast(BookKeeper, log.bookkeeper)
    assert truncate_log(bookkeeper, "orders", 25, b"") == []
    log.begin("b")
    log.commit()
    assert collect_recent_orphans(bookkeeper, "orders", b"") == [truncated]
    assert kept in log.bookkeeper.list_ledgers(), "half of its rows are part of the log"


def test_truncation_beyond_the_end_of_a_log_is_refused(log: Log) -> None:
    log.commit()
    with pytest.raises(ConfigurationError, match="has 10 rows"):
        truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 11, b"")


def test_offset_of_an_old_log_is_refused_in_the_log_created_again(log: Log) -> None:
    log.commit(2)
    offset = log.feed().newest()
    ledgers = log.bookkeeper.list_ledgers()
    assert delete_log(cast(BookKeeper, log.bookkeeper), "orders", b"") == ledgers
    with pytest.raises(NoSuchLogError):
        log.feed()
    log.registry.ensure("orders", {}, b"")
    feed = log.feed()
    both_ids = rf"id {offset['log']} was deleted.* another log by now, with id {feed.log_id}.*new checkpointLocation"
    with pytest.raises(DataLossError, match=both_ids):
        feed.check(offset)
    reader = memory_stream(feed)
    with pytest.raises(LogRecreatedError, match=both_ids):
        reader.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(LogRecreatedError, match=both_ids):
        reader.partitions(offset, offset)


def recreated(log: Log, run: str = "n") -> None:
    """Create the log again under its readers."""
    delete_log(cast(BookKeeper, log.bookkeeper), "orders", b"")
    log.registry.ensure("orders", {}, b"")
    log.batches = 0
    log.begin(run)


@pytest.mark.parametrize("batches", [0, 1, 5])
def test_running_stream_reads_nothing_of_a_log_created_again(log: Log, batches: int) -> None:
    log.commit(3)
    feed = log.feed()
    end = feed.newest()
    recreated(log)
    log.commit(batches)
    now = log.registry.get("orders").log_id
    for _ in range(2):
        with pytest.raises(LogRecreatedError, match=f"with id {end['log']} was deleted.* with id {now}"):
            feed.newest()
        with pytest.raises(LogRecreatedError, match=f"with id {end['log']} was deleted.* with id {now}"):
            feed.pieces(feed.at(0), end)


def test_stream_without_fail_on_data_loss_reads_the_log_created_again_from_its_beginning(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after a restart, with the offset of the old log in Spark's checkpoint."""
    options = {"log": "orders", "zookeeper": "nowhere", "pollTimeoutMs": "0", "failOnDataLoss": "false"}
    monkeypatch.setattr(source, "feed", lambda options: log.feed(fail_on_data_loss=False))
    log.commit(3)
    running = memory_stream(log.feed(fail_on_data_loss=False), options)
    old = running.latestOffset(running.initialOffset(), ReadAllAvailable())
    recreated(log)
    log.commit(2)
    for reader in (running, memory_stream(log.feed(fail_on_data_loss=False), options)):
        assert reader.partitions({**old, "position": 20}, old) == [], "rows of the old log are gone"
        begin = reader.latestOffset(old, ReadAllAvailable())
        assert begin == log.feed().at(0)
        assert reader.partitions(old, begin) == []
        end = reader.latestOffset(begin, ReadAllAvailable())
        assert end == log.feed().at(20)
        rows = [piece.rows for part in reader.partitions(begin, end) for piece in part.pieces]  # type: ignore[attr-defined]
        assert sum(rows) == 20
    assert f"with id {old['log']} was deleted" in caplog.text and f"with id {begin['log']}" in caplog.text


@pytest.mark.parametrize("run", ["a", "n"])
def test_process_reuses_nothing_of_the_old_log_for_the_log_created_again(log: Log, run: str) -> None:
    """Rows written to a ledger of the old log are deleted with it."""

    def kept(run: str) -> tuple[object, object]:
        bookkeeper = cast(BookKeeper, log.bookkeeper)
        owner = LogRun.of(ORDERS, log.registry.claim("orders", run))
        assert owner.epoch == 1
        ledger = current_data_ledger(bookkeeper, owner, LogOptions(), RollPolicy(), "plain")
        return current_committer(bookkeeper, owner), ledger

    before = kept("a")
    recreated(log, run)
    after = kept(run)
    assert before[0] is not after[0] and before[1] is not after[1]


def test_stream_from_the_end_ignores_the_old_pin_in_a_log_created_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookspark.spark.connector.source.client", lambda zookeeper: log.bookkeeper)
    options = {
        "log": "orders",
        "zookeeper": "z",
        "startingoffsets": "latest",
        "subscription": "s",
        "pollTimeoutMs": "0",
    }

    def query() -> EntryStreamReader:
        return memory_stream(log.feed(), options)

    log.commit(2)
    assert query().initialOffset()["position"] == 20
    log.commit()
    assert query().initialOffset()["position"] == 20, "pinned"
    recreated(log)
    log.commit()
    for _ in range(2):
        reader = query()
        start = reader.initialOffset()
        assert start["position"] == 10
        log.commit()
    assert reader.latestOffset(start, ReadAllAvailable())["position"] == 30


def test_batch_written_to_two_logs_of_the_same_name_is_not_committed() -> None:
    writer = LogWriter(SinkOptions.parse({"log": "orders", "zookeeper": "nowhere"}))
    messages = [
        RangesWritten("q", 0, "a", LaneId(log_id, 0, "orders"), 1, (EntryRange(log_id, 0, 9, 10, 100),))
        for log_id in (7, 8)
    ]
    with pytest.raises(BookKeeperError, match=r"batch 0 of query q is not committed.*log [78]\).*log [78]\)"):
        writer.commit_of(messages, 0)


def test_stream_never_goes_back_when_a_known_lac_is_not_reported_again(log: Log) -> None:
    log.commit(2)
    feed = log.feed()
    reader = memory_stream(feed)
    reader.prepareForTriggerAvailableNow()
    ahead = feed.at(25)
    assert reader.latestOffset(ahead, ReadAllAvailable()) == ahead


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_rows_counted_by_an_offset_are_planned_although_bookies_do_not_know_them(
    log: Log, fail_on_data_loss: bool
) -> None:
    log.commit(2)
    feed = log.feed(fail_on_data_loss)
    end = feed.newest()
    log.bookkeeper.untold.add(log.registry.get("orders").commit_ledgers[-1].ledger_id)
    for planning in (feed, log.feed(fail_on_data_loss)):
        assert planning.newest() in (feed.at(10), end)
        assert positions(planning, 10, 20) == list(range(10, 20)), "they were called truncated, and passed over"
        assert planning.passed_over.rows == 0
    log.begin("b")
    log.commit()
    assert positions(feed, 10, 30) == list(range(10, 30))


def test_rows_counted_by_an_offset_without_a_commit_raise_and_are_never_passed_over(log: Log) -> None:
    log.commit(2)
    log.committer.close()
    with pytest.raises(ReadError, match=r"its commits end at row 20.*there were rows up to 29"):
        positions(log.feed(fail_on_data_loss=False), 10, 30)


def test_stream_that_begins_beyond_the_end_of_the_log_waits_for_it(log: Log) -> None:
    log.commit()
    feed = log.feed()
    assert feed.newest() == feed.at(10)
    assert feed.limited(feed.at(15), feed.at(15), Limit(rows=1)) == feed.at(15)
    log.commit()
    assert positions(feed, 15, feed.newest()["position"]) == list(range(15, 20))


def test_batch_read_up_to_a_row_has_all_earlier_rows_or_fails(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.commit(2)
    monkeypatch.setattr(source, "feed", lambda options: log.feed())

    def planned(end: int) -> list[int]:
        options = SourceOptions.parse({"log": "orders", "zookeeper": "nowhere", "endingOffsets": str(end)})
        parts = EntryReader(options, StructType(), ()).partitions()
        return [piece.position + n for part in parts for piece in part.pieces for n in range(piece.rows)]  # type: ignore[attr-defined]

    assert planned(20) == list(range(20))
    log.bookkeeper.untold.add(log.registry.get("orders").commit_ledgers[-1].ledger_id)
    with pytest.raises(ReadError, match=r"has 10 rows .*endingOffsets 20"):
        planned(20)


def ledgers_feed(bookkeeper: MemoryBookKeeper, *ids: int, fail: bool = True) -> LedgersFeed:
    return LedgersFeed(cast(BookKeeper, bookkeeper), ids, b"", fail)


def test_ledgers_share_a_limit_in_proportion_to_their_unread_entries(log: Log) -> None:
    small, large = (
        log.data,
        log.bookkeeper.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"", custom_metadata={}),
    )
    log.commit()
    for _ in range(90):
        large.append(b"0123456789")
    feed = ledgers_feed(log.bookkeeper, small.ledger_id, large.ledger_id)
    names = [str(small.ledger_id), str(large.ledger_id)]
    start, end = feed.earliest(), feed.newest()
    assert [end[name] for name in names] == [10, 90]
    assert [feed.limited(start, end, Limit(rows=20))[name] for name in names] == [2, 18]
    assert [feed.limited(start, end, Limit(rows=1))[name] for name in names] == [0, 1]
    assert feed.limited(start, end, Limit(rows=100)) == end
    assert sum(p.last_entry_id - p.first_entry_id + 1 for p, _ in feed.pieces(start, end)) == 100


def test_missing_ledger_fails_the_feed_or_is_left_out(log: Log) -> None:
    log.commit()
    with pytest.raises(DataLossError, match="there is no ledger 77"):
        ledgers_feed(log.bookkeeper, log.data.ledger_id, 77)
    feed = ledgers_feed(log.bookkeeper, log.data.ledger_id, 77, fail=False)
    assert list(feed.newest().values()) == [10]
    with pytest.raises(NoSuchLedgerError):
        log.bookkeeper.get_ledger_metadata(77)


@pytest.mark.parametrize("fail", [True, False])
def test_open_ledger_deleted_while_it_is_read_is_data_loss_or_left_out(
    log: Log, fail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bookies report the deletion when asked for the LAC or for an entry."""
    log.commit()
    gone = log.data.ledger_id
    log.roll()
    log.commit()

    def told(self: MemoryReader, *arguments: object, **options: object) -> int:
        self._bookkeeper.get_ledger_metadata(self.ledger_id)
        return self.last_add_confirmed

    monkeypatch.setattr(MemoryReader, "read_last_add_confirmed", told)
    monkeypatch.setattr(MemoryReader, "read_last_add_confirmed_and_entry", told, raising=False)
    growing, planned = (ledgers_feed(log.bookkeeper, gone, log.data.ledger_id, fail=fail) for _ in range(2))
    end = planned.newest()
    log.bookkeeper.delete_ledger(gone)
    growing.wait(1.0)
    if fail:
        with pytest.raises(DataLossError, match=f"from 10 on of ledger {gone} were to be read"):
            growing.newest()
        with pytest.raises(DataLossError, match=f"entries 0 to 9 of ledger {gone} were to be read"):
            planned.pieces(planned.earliest(), end)
    else:
        assert growing.newest() == growing.newest() == end, "what was known of it is planned, and found to be gone"
        assert [piece.ledger_id for piece, _ in planned.pieces(planned.earliest(), end)] == [log.data.ledger_id]


@pytest.mark.parametrize("which", ["log", "ledger"])
def test_checkpoint_of_the_other_kind_of_source_is_refused(log: Log, which: str) -> None:
    log.commit(2)
    feeds: dict[str, LogFeed | LedgersFeed] = {
        "log": log.feed(),
        "ledger": ledgers_feed(log.bookkeeper, log.data.ledger_id),
    }
    options = {"zookeeper": "nowhere", which: "orders" if which == "log" else "1"}
    reader = memory_stream(feeds[which], options)
    other = feeds["ledger" if which == "log" else "log"].newest()
    for use in (lambda: reader.latestOffset(other, ReadAllAvailable()), lambda: reader.partitions(other, other)):
        with pytest.raises(ConfigurationError, match="a checkpointLocation of its own"):
            use()


def test_query_progress_reports_the_number_of_rows_passed_over(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.commit(3)
    truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 12, b"")
    options = {"log": "orders", "zookeeper": "nowhere", "pollTimeoutMs": "0", "failOnDataLoss": "false"}
    feed = log.feed(fail_on_data_loss=False)
    reader = memory_stream(feed, options)
    end = reader.latestOffset(feed.at(5), ReadAllAvailable())
    assert reader.reportLatestOffset() == end == feed.at(30)
    for _ in range(2):  # a micro-batch may be planned again
        reader.partitions(feed.at(5), end)
        assert reader.reportLatestOffset() == {**end, "rowsPassedOver": 7}
    assert caplog.text.count("goes on without these 7 rows") == 1
    truncate_log(cast(BookKeeper, log.bookkeeper), "orders", 20, b"")
    reader.__dict__["_feed"] = feed = log.feed(fail_on_data_loss=False)
    reader.partitions(feed.at(12), end)
    assert reader.reportLatestOffset() == {**end, "rowsPassedOver": 8}, "since it was started"


def test_entries_of_a_deleted_ledger_are_counted_once_as_passed_over(log: Log) -> None:
    log.commit()
    feed = ledgers_feed(log.bookkeeper, log.data.ledger_id, fail=False)
    start, end = feed.earliest(), feed.newest()
    log.bookkeeper.delete_ledger(log.data.ledger_id)
    assert feed.limited(start, end, Limit(size=50)) != start
    assert feed.pieces(start, end) == feed.pieces(start, end) == []
    assert feed.passed_over.rows == 10


def test_idle_log_does_not_delay_a_query_that_is_busy_with_another_log(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each micro-batch waited half a second for the idle log. Spark reports each micro-batch to both sources (``commit``)."""
    log.commit()
    now, waited = 100.0, []
    monkeypatch.setattr("bookspark.spark.connector.trigger_delay.time.monotonic", lambda: now)
    feed = log.feed()
    reader = memory_stream(feed, {"log": "orders", "zookeeper": "nowhere"})
    monkeypatch.setattr(feed, "wait", waited.append)
    end = feed.newest()
    for _ in range(3):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        now += 2.0  # a micro-batch of the other log, which Spark reports when it begins the next micro-batch
        reader.commit(end)
    assert waited == [0.0, 0.0, 0.0]
    for idle in (0.01, 0.1, 2.0):  # no micro-batches any more: the wait grows with the idle time
        reader.latestOffset(end, ReadAllAvailable())
        now += idle
    reader.latestOffset(end, ReadAllAvailable())
    assert waited[3:] == pytest.approx([0.0, 0.01, 0.11, 0.5])


def test_start_beyond_the_end_of_the_log_is_refused(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch read returned nothing, and a stream passed over all rows up to that start."""
    log.commit(2)
    monkeypatch.setattr("bookspark.spark.connector.source.feed", lambda options: log.feed())

    def options(start: int, **others: str) -> SourceOptions:
        return SourceOptions.parse(
            {"log": "orders", "zookeeper": "nowhere", "startingOffsets": str(start), **others}
        ).for_batch()

    for reader in (EntryReader, EntryStreamReader):
        first = "partitions" if reader is EntryReader else "initialOffset"
        with pytest.raises(ReadError, match=r"has 20 rows .*startingOffsets 21 asks for more"):
            getattr(reader(options(21), StructType(), ()), first)()
        getattr(reader(options(20), StructType(), ()), first)()
    with pytest.raises(ConfigurationError, match="startingOffsets 11 is behind endingOffsets 10"):
        options(11, endingOffsets="10")


@pytest.fixture
def new_run(log: Log, monkeypatch: pytest.MonkeyPatch) -> Callable[[], EntryStreamReader]:
    """Begins a run of a query that starts at ``latest`` with a subscription."""
    monkeypatch.setattr("bookspark.spark.connector.source.client", lambda zookeeper: log.bookkeeper)
    options = {"log": "orders", "zookeeper": "z", "startingoffsets": "latest", "subscription": "s"}
    return lambda: memory_stream(log.feed(), {**options, "pollTimeoutMs": "0"})


def place(offset: Mapping[str, int]) -> int:
    return offset["position"]


def test_suspended_run_that_wakes_up_leaves_the_start_of_a_later_run_alone(
    log: Log, new_run: Callable[[], EntryStreamReader]
) -> None:
    """The later run died within its first micro-batch and was started again: it began at the end once more, and the rows between
    were left out."""
    log.commit()
    suspended = new_run()
    start = suspended.initialOffset()
    log.commit()
    end = suspended.latestOffset(start, ReadAllAvailable())
    assert (place(start), place(end)) == (10, 20)
    assert place(new_run().initialOffset()) == 10
    log.commit()
    for late in (suspended, new_run()):
        # It goes on, and is also started again from its Spark checkpoint.
        late.commit(end)
        again = new_run()
        start = again.initialOffset()
        assert place(start) == 10
    # A run has finished its first micro-batch, and Spark's checkpoint has its place.
    again.commit(again.latestOffset(start, ReadAllAvailable()))
    assert place(new_run().initialOffset()) == 30


def test_start_that_changes_owners_during_its_deletion_stays(
    log: Log, new_run: Callable[[], EntryStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.commit()
    one, delete = new_run(), MemoryStore.delete_record
    start = one.initialOffset()

    def overtaken(store: MemoryStore, *arguments: Any) -> None:
        monkeypatch.setattr(MemoryStore, "delete_record", delete)
        new_run().initialOffset()
        delete(store, *arguments)

    monkeypatch.setattr(MemoryStore, "delete_record", overtaken)
    one.commit(start)
    log.commit()
    assert place(new_run().initialOffset()) == place(start) == 10


def test_run_that_goes_on_from_its_checkpoint_deletes_the_start_of_its_query(
    log: Log, new_run: Callable[[], EntryStreamReader]
) -> None:
    """Spark does not ask it for an initial offset. The query failed at each restart."""
    log.commit()
    start = new_run().initialOffset()
    restarted, ends = new_run(), [start]
    assert restarted.latestOffset(start, ReadAllAvailable()) == start, "no rows, no micro-batch"
    for _ in range(3):
        log.commit()
        ends.append(restarted.latestOffset(ends[-1], ReadAllAvailable()))
        assert len(restarted.partitions(*ends[-2:])) == 1
        restarted.commit(ends[-2])
    assert list(map(place, ends)) == [10, 20, 30, 40]
    # Only offsets of the first run name the pin.
    assert [source.PIN in end for end in ends] == [True, False, False, False]
    assert restarted.latestOffset(ends[1], ReadAllAvailable()) == ends[3]
    assert log.bookkeeper.metadata.list_records("starts") == []


def test_run_that_replays_the_first_micro_batch_of_another_run_deletes_the_start_of_its_query(
    log: Log, new_run: Callable[[], EntryStreamReader]
) -> None:
    """Spark asks it for an initial offset again, so it owns the start, and the offset of the micro-batch names the other run. The
    start stayed for ever, and the next query of the subscription began there."""
    log.commit()
    dead, again = new_run(), new_run()
    start = dead.initialOffset()
    log.commit()
    end = dead.latestOffset(start, ReadAllAvailable())
    assert place(again.initialOffset()) == 10
    assert len(again.partitions(start, end)) == 1
    again.commit(end)
    assert log.bookkeeper.metadata.list_records("starts") == []
    log.commit()
    assert place(new_run().initialOffset()) == 30


@pytest.mark.parametrize("then", ["goes on", "is deleted", "is created again"])
def test_reader_that_pauses_before_its_wait_goes_on_although_its_commit_ledger_is_deleted(
    log: Log, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The rows of that ledger are read and truncated. The reader ended with NoSuchLedgerError."""
    log.commit()
    log.bookkeeper.zookeeper = "memory"
    reader, wait = RowReader(log.bookkeeper, LogAddress("memory", "orders"), "earliest", "g"), LogFeed.wait
    assert len(reader.read()) == ROWS

    def paused(feed: LogFeed, seconds: float) -> bool:
        monkeypatch.setattr(LogFeed, "wait", wait)
        log.committer.close()
        log.data.close()
        if then == "goes on":
            log.begin("b")
            log.commit()
            log.roll()
            truncate_log(log.bookkeeper, "orders", ROWS, b"")
        else:
            delete_log(log.bookkeeper, "orders", b"")
        if then == "is created again":
            log.registry.ensure("orders", {}, b"")
        return wait(feed, seconds)

    monkeypatch.setattr(LogFeed, "wait", paused)
    if then == "goes on":
        assert [row.position for row in reader.read(timeout=60)] == [*range(ROWS, 2 * ROWS)]
    else:
        with pytest.raises(LogRecreatedError if then == "is created again" else NoSuchLogError):
            reader.read(timeout=60)


def test_single_micro_batch_of_an_available_now_query_deletes_the_start_of_its_query(
    log: Log, new_run: Callable[[], EntryStreamReader]
) -> None:
    """The start stayed until a second micro-batch, and the subscription's next query began there."""
    log.commit()
    run = new_run()
    start = run.initialOffset()
    log.commit()
    run.prepareForTriggerAvailableNow()
    end = run.latestOffset(start, ReadAllAvailable())
    assert place(new_run().initialOffset()) == 10, "the micro-batch is not done"
    run.initialOffset()
    # Spark asks again, and ends the query without a further micro-batch.
    assert run.latestOffset(end, ReadAllAvailable()) == end
    assert log.bookkeeper.metadata.list_records("starts") == []


def test_rows_truncated_between_the_plan_and_the_read_are_data_loss_in_the_same_read(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read said "try again" with a ReadError, and only the next one that the rows are gone."""
    log.commit()
    log.begin("b")
    log.commit()
    log.bookkeeper.zookeeper = "memory"
    planned = LogFeed.pieces

    def truncated_behind(feed: LogFeed, *between: Any) -> Any:
        found = planned(feed, *between)
        truncate_log(cast(BookKeeper, log.bookkeeper), "orders", ROWS, b"")
        return found

    with RowReader(cast(BookKeeper, log.bookkeeper), LogAddress("memory", "orders"), "earliest", "") as reader:
        monkeypatch.setattr(LogFeed, "pieces", truncated_behind)
        for _ in range(2):
            with pytest.raises(DataLossError, match=rf"rows 0 to {ROWS - 1} .*truncated"):
                reader.read()


def test_reader_that_began_within_a_commit_ledger_seeks_back_to_rows_before_its_first_plan(log: Log) -> None:
    """They were called truncated: an error, or a gap."""
    log.commit(20)
    log.bookkeeper.zookeeper = "memory"
    with RowReader(cast(BookKeeper, log.bookkeeper), LogAddress("memory", "orders"), "earliest", "") as reader:
        beginning = reader.offset
        for first in (150, 50, 170, 0, 10, 199):
            reader.seek({**beginning, "position": first})
            assert [row.position for row in reader.read(1)] == [first]
            reader.seek({**beginning, "position": first})
            (row,) = reader.read_with_gaps(1)
            assert not isinstance(row, Gap) and row.position == first
    feed = log.feed(fail_on_data_loss=False)
    for first in (150, 50):
        assert positions(feed, first, 160) == [*range(first, 160)]


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("fail", [False, True])
def test_task_whose_log_is_deleted_after_the_plan_leaves_its_rows_out_or_tells_which_log_it_was(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_created_again: bool, fail: bool
) -> None:
    """The query ended although failOnDataLoss was false, with the advice to set it to false."""
    monkeypatch.setattr("bookspark.spark.connector.source.client", lambda zookeeper: log.bookkeeper)
    log.commit(2)
    options = {"log": "orders", "zookeeper": "z", "pollTimeoutMs": "0", "failOnDataLoss": str(fail).lower()}
    stream, log_id = memory_stream(log.feed(fail), options), log.registry.get("orders").log_id
    start = stream.initialOffset()
    (part,) = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    delete_log(log.bookkeeper, "orders", b"")
    if is_created_again:
        log.registry.ensure("orders", {}, b"")
    if fail:
        with pytest.raises(DataLossError, match=f"was deleted with log 'orders', id {log_id}"):
            list(stream.read(part))
    else:
        assert list(stream.read(part)) == []
        assert f"was deleted with log 'orders', id {log_id}" in caplog.text
