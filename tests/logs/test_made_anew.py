"""A log deleted and created again at each step of an operation on the old log: the new log stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from bookspark.errors import BookKeeperError, DataLossError
from bookspark.logs import (
    Committer,
    LogAddress,
    LogOptions,
    LogRun,
    Producer,
    RowReader,
    collect_orphans,
    create_log,
    delete_log,
    open_log,
    truncate_expired,
    truncate_log,
)
from bookspark.logs.chain.codec import decode_record, encode_record
from bookspark.logs.chain.commit_ledgers import newest_header
from bookspark.logs.chain.lane_choice import StreamingQuery, begun_batch_write, claimed, lane_for_query
from bookspark.logs.chain.maintenance import collect_recent_orphans
from bookspark.logs.chain.reader import LogReader
from bookspark.logs.chain.registry import (
    BLOCKS,
    ENDED,
    NAMES,
    POSITIONS,
    READERS,
    RECORDS,
    RETENTION,
    STARTS,
    LogRegistry,
)
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.lane_ending import end_idle_lanes, end_lane
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import lane_id, new_lane
from bookspark.protocol.logs.log_options import Compression
from bookspark.protocol.logs.log_record import LogRecord, LogRecreatedError, NoSuchLogError
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.logs.test_deletion import write_log
from tests.spark.memory_bookkeeper import MemoryBookKeeper

LOG = "orders"
ADDRESS = LogAddress("memory", LOG)
STEPS = "read_record", "read_records", "write_record", "delete_record", "list_records", "list_ledgers", "read_ledgers"
STEPS = *STEPS, "read_ledger"
Does = Callable[[Any], object]


def bookkeeper_of_a_log() -> Any:
    bookkeeper: Any = MemoryBookKeeper()
    bookkeeper.zookeeper = "memory"
    bookkeeper.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
    write_log(bookkeeper, LOG)
    return bookkeeper


def rows_of(bookkeeper: Any) -> list[bytes]:
    """All rows of the log."""
    feed = LogFeed(bookkeeper, LOG, b"", fail_on_data_loss=True)
    pieces = feed.pieces(feed.earliest(), feed.newest())
    return [
        entry.payload
        for piece, _ in pieces
        for entry in bookkeeper.open_ledger_no_recovery(piece.ledger_id).read(piece.first_entry_id, piece.last_entry_id)
    ]


def all_of(bookkeeper: Any) -> list[object]:
    """All that there is of the log that has the name: its records, and its ledgers with their states."""
    log = LogRegistry(bookkeeper.metadata).lane(LOG)
    assert log is not None
    found: list[object] = []
    for kind in (NAMES, RECORDS, ENDED, BLOCKS, RETENTION, POSITIONS, STARTS, READERS):
        for name in bookkeeper.metadata.list_records(kind):
            if kind == NAMES or log.key in name.split("@"):
                found.append((kind, name, bookkeeper.metadata.read_record(kind, name).value))
    for metadata, _ in bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {}):
        if metadata.custom_metadata["bookspark.log_id"] == log.key.encode():
            found.append(metadata)
    return found


class Meanwhile:
    """Deletes the log and creates another one of the name before the ``step``-th request of an operation."""

    def __init__(self, bookkeeper: Any, step: int) -> None:
        self._bookkeeper, self._left = bookkeeper, step
        self._resolved = False
        self.acted_on_old = False
        """Had the operation found its log before?"""
        self.made: list[object] = []

    def before(self, kind: object) -> None:
        self._left -= 1
        if self._left == -1:
            self.acted_on_old = self._resolved
            delete_log(self._bookkeeper, LOG, b"")
            write_log(self._bookkeeper, LOG)
            self.made = all_of(self._bookkeeper)
        self._resolved = self._resolved or kind == NAMES

    @property
    def came(self) -> bool:
        return self._left < 0


def each_step(does: Does, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run ``does`` with another log made before its first request, its second, and so on. Returns how often that was after it had
    found its log; then the other log is as it was made."""
    step = found = 0
    while True:
        bookkeeper = bookkeeper_of_a_log()
        before = LogRegistry(bookkeeper.metadata).get(LOG).log_id
        meanwhile = Meanwhile(bookkeeper, step)
        inside = [False]

        def watched(original: Any) -> Any:
            def call(store: Any, *arguments: Any) -> Any:
                if not inside[0]:  # noqa: B023
                    inside[0] = True  # noqa: B023
                    try:
                        meanwhile.before(arguments[0] if arguments else None)  # noqa: B023
                    finally:
                        inside[0] = False  # noqa: B023
                return original(store, *arguments)

            return call

        with monkeypatch.context() as patched:
            for name in STEPS:
                patched.setattr(MemoryStore, name, watched(getattr(MemoryStore, name)))
            failure = None
            try:
                does(bookkeeper)
            except BookKeeperError as error:
                failure = error
        if not meanwhile.came:
            assert failure is None
            return found
        if isinstance(failure, LogRecreatedError):
            assert str(before) in str(failure) and str(LogRegistry(bookkeeper.metadata).get(LOG).log_id) in str(failure)
        step += 1
        if meanwhile.acted_on_old:
            found += 1
            assert all_of(bookkeeper) == meanwhile.made
            assert rows_of(bookkeeper) == [b"x"] * 12


def produce(bookkeeper: Any) -> None:
    # No cleaning in a thread beside.
    with mock.patch.object(Producer, "_tend"):
        producer = Producer(bookkeeper, ADDRESS, "1")
        producer.append(b"a row")
        producer.close()


def enter(bookkeeper: Any) -> None:
    """Claim a lane like the sink of a query, and commit a row."""
    log, query = lane_id(LogRegistry(bookkeeper.metadata).get(LOG)), StreamingQuery("a")
    lane = lane_for_query(bookkeeper, log, b"", query)
    record, header = newest_header(bookkeeper, lane, b"")
    commit_a_row(bookkeeper, claimed(bookkeeper, record, "a run", query, header))


def commit_a_row(bookkeeper: Any, record: LogRecord) -> None:
    run = LogRun.of(ADDRESS, record)
    ledger = run.create_ledger(bookkeeper, record.options, "data")
    ledger.append(b"a row")
    ledger.close()
    rows = (EntryRange(ledger.ledger_id, 0, 0, 1, 1),)
    Committer(bookkeeper, run).commit(Commit(record.owner_query, 0, run.run, run.epoch, rows, 1))


def write_a_batch(bookkeeper: Any) -> None:
    record = begun_batch_write(bookkeeper, lane_id(LogRegistry(bookkeeper.metadata).get(LOG)), "write")
    run = LogRun.of_batch_write(ADDRESS, record, "write")
    ledger = run.create_ledger(bookkeeper, record.options, "data")
    ledger.append(b"a row")
    ledger.close()
    rows = (EntryRange(ledger.ledger_id, 0, 0, 1, 1),)
    Committer(bookkeeper, run).commit(Commit("write", 0, "write", run.epoch, rows, 1))


def read_and_commit(bookkeeper: Any) -> None:
    reader = RowReader(bookkeeper, ADDRESS, "earliest", "a group")
    assert reader.read()
    reader.commit()


@pytest.mark.parametrize(
    "does",
    [
        pytest.param(lambda bookkeeper: delete_log(bookkeeper, LOG, b""), id="delete"),
        pytest.param(lambda bookkeeper: truncate_log(bookkeeper, f"{LOG}@1", 3, b""), id="truncate"),
        pytest.param(lambda bookkeeper: collect_orphans(bookkeeper, LOG, b""), id="collect"),
        pytest.param(lambda bookkeeper: collect_recent_orphans(bookkeeper, LOG, b""), id="collect recent"),
        pytest.param(lambda bookkeeper: end_lane(bookkeeper, f"{LOG}@1"), id="end"),
        pytest.param(lambda bookkeeper: end_idle_lanes(bookkeeper, LOG, idle_days=0), id="end idle"),
        pytest.param(
            lambda bookkeeper: open_log(bookkeeper, LOG).alter(
                ack_quorum=3, compression=Compression.ZSTD, retention_ms=5, retention_bytes=7
            ),
            id="alter",
        ),
        pytest.param(
            lambda bookkeeper: (
                open_log(bookkeeper, LOG).alter(retention_bytes=1),
                truncate_expired(bookkeeper, LOG),
            ),
            id="retention",
        ),
        pytest.param(produce, id="producer"),
        pytest.param(enter, id="query"),
        pytest.param(write_a_batch, id="batch write"),
        pytest.param(read_and_commit, id="reader"),
    ],
)
def test_operation_that_paused_over_a_re_creation_leaves_the_new_log_alone(
    does: Does, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert each_step(does, monkeypatch) >= 2


def test_each_log_has_an_id_of_its_own_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two logs of one name in the same millisecond were one log to their readers."""
    bookkeeper = bookkeeper_of_a_log()
    registry = LogRegistry(bookkeeper.metadata)
    ids = [registry.get(LOG).log_id]
    monkeypatch.setattr("time.time_ns", lambda: 1)
    for _ in range(3):
        delete_log(bookkeeper, LOG, b"")
        ids.append(create_log(bookkeeper, LOG, options=LogOptions(1, 1, 1)).id)
    assert ids == sorted(set(ids)) and registry.get(LOG).log_id == ids[-1] < 1 << 53


def test_offset_of_another_cluster_is_refused() -> None:
    one, other = bookkeeper_of_a_log(), bookkeeper_of_a_log()
    offset = LogFeed(one, LOG, b"", True).newest()
    with pytest.raises(LogRecreatedError):
        LogFeed(other, LOG, b"", True).check(offset)


def test_reader_of_a_log_that_was_created_again_names_both_ids() -> None:
    bookkeeper = bookkeeper_of_a_log()
    reader, before = RowReader(bookkeeper, ADDRESS, "earliest", ""), open_log(bookkeeper, LOG)
    reader.read(rows_max=2)
    delete_log(bookkeeper, LOG, b"")
    write_log(bookkeeper, LOG)
    now = open_log(bookkeeper, LOG).id
    for call in (reader.read, lambda: before.producer("x"), lambda: before.alter(ack_quorum=3), before.reader):
        with pytest.raises(DataLossError, match=f"id {before.id} was deleted.* with id {now}"):
            call()


def test_record_of_a_log_that_another_creator_overtook_is_removed() -> None:
    bookkeeper = bookkeeper_of_a_log()
    registry, records = LogRegistry(bookkeeper.metadata), bookkeeper.metadata.list_records(RECORDS)
    with suppress(BookKeeperError):
        registry.create(LOG, LogOptions(), b"")
    assert bookkeeper.metadata.list_records(RECORDS) == records
    record = decode_record(bookkeeper.metadata.read_record(RECORDS, records[0]).value, LOG)
    assert replace(record, changed_ms=0) == record


def test_reader_whose_lane_a_slow_writer_created_again_after_the_deletion_says_that_the_log_was_deleted() -> None:
    bookkeeper = bookkeeper_of_a_log()
    registry = LogRegistry(bookkeeper.metadata)
    [lane, *_] = registry.lanes_of(LOG)[1:]
    record = registry.get(lane)
    reader = LogReader(bookkeeper, lane, b"")
    assert reader.newest() > 0
    delete_log(bookkeeper, LOG, b"")
    # As by ``LaneIndex.begin``, whose writer was paused before the deletion.
    bookkeeper.metadata.write_record(RECORDS, lane.key, encode_record(new_lane(record, lane.number)), None)
    for _ in range(2):
        with pytest.raises(NoSuchLogError, match="was deleted"):
            reader.newest()
