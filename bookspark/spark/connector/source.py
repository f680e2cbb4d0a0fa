"""The source of ``format("bookspark")``: entries of a log or of ledgers, once or as a stream, or rows of a system table.

Law: reading never fences and never disturbs a writer. A log is read up to its last commit when the read, or the micro-batch, was
planned; a ledger up to its last add confirmed (LAC) of that moment. All entries of a plan are read, or the task fails (see
``feeds`` for ``failOnDataLoss``).

Rows of a log
    ``value binary`` (of a log of row format ``arrow``: the columns that were written); ``position bigint``: the row's place in
    its lane of the log, from 0 and without gaps; ``ledger_id``, ``entry_id``. A log with a single writing query has one lane.
    Options add the row's commit time, its lane, and its producer's key and headers.
Rows of ledgers
    ``ledger_id``, ``entry_id``, ``last_add_confirmed`` (as the writer knew it), ``length`` (bytes of the ledger up to and with
    the entry): bigint; ``payload binary``.
Rows of a system table
    see ``bookspark.spark.tables.system_tables``.

A read may get a schema with fewer columns of a log or ledger (``spark.read.schema("position bigint")``), which saves making the
others: Spark 4.2 does not report a query's columns to a Python data source. No reader here has ``pushFilters``, with which Spark
4.2 answers wrongly (docs/decisions/no-filter-push-down.md). Spark filters the rows that it gets; option ``where`` is a filter
applied here.

The plan is made beside the driver's JVM (``partitions``). Each partition is read in a task, from one of the replicas.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bookspark.errors import (
    BookKeeperError,
    ConfigurationError,
    InvalidRowError,
    MetadataVersionError,
    NoSuchLedgerError,
    ReadError,
)
from bookspark.logs.chain.log_run import lane_of_ledger
from bookspark.logs.chain.registry import STARTS, LogRegistry, check_password, recreated
from bookspark.logs.feeds.gaps import NOT_READ, Gap, GapKind, deleted_gap, readable_and_gaps
from bookspark.logs.feeds.lane_feed import Choice
from bookspark.logs.feeds.log_feed import Limit, LogFeed, Offset
from bookspark.logs.feeds.lost_rows import data_loss
from bookspark.logs.feeds.times import RowTimes
from bookspark.logs.rows.encodings import APPENDED_AT, ID_COLUMNS, RowDecoder
from bookspark.logs.rows.splits import Piece, SizedPiece, split
from bookspark.logs.rows.stamped_rows import headers_type
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.lanes import LaneId, later
from bookspark.protocol.logs.log_record import LogRecreatedError, NoSuchLogError
from bookspark.spark.connector.feeds import Feed, chosen_place, feed
from bookspark.spark.connector.query_place import QueryPlace, Stranger, introduce_query
from bookspark.spark.connector.trigger_delay import Patience, TriggerDelay
from bookspark.spark.connector.worker_ends import SilentEnd, ends_in_order
from bookspark.spark.offload.offloaded import rows_of
from bookspark.spark.offload.opened_ledgers import OpenedLedgers, gathered, handles_of_process
from bookspark.spark.offload.small_pieces import SmallPieces
from bookspark.spark.options.places import LATEST
from bookspark.spark.options.source_options import HEADERS, KEY, LANE, TIMESTAMP, SourceOptions, include
from bookspark.spark.process_client import client
from bookspark.spark.rows.row_format import columns_of
from bookspark.spark.rows.rows import row_decoder
from bookspark.spark.tables.system_tables import system_table
from bookspark.spark.where.choosing import Chooser
from bookspark.spark.where.wanted import Wanted
from bookspark.store.metadata.records.documents import proven_struct, read_struct
from bookspark.store.metadata.store import change_record

if TYPE_CHECKING:
    import pyarrow

    from bookspark.store.client import BookKeeper


# -- Columns that a read adds on request: a row's commit time, its lane, and its producer's key and headers
#
# Law: without the option, a column of the same name is the log's own; with it, such a log is refused. So a column never means two
# things. (Only logs of row format ``arrow`` have own columns of such names: a DataFrame's ``key`` and ``headers``, written by
# Spark, are the log's own columns, and need no option.)
#
# ``key binary`` and ``headers array<struct<key string, value binary>>`` are as in Spark's Kafka source: null if the producer gave
# none, and for rows without a producer. An offload keeps neither (``offload.offloaded``).


_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_FIELDS = {
    TIMESTAMP: StructField(TIMESTAMP, TimestampType(), True, {"comment": "When the row was committed"}),
    LANE: StructField(LANE, IntegerType(), True, {"comment": "The lane of the log that the row is of"}),
    KEY: StructField(KEY, BinaryType(), True, {"comment": "The key that the row's producer gave"}),
    HEADERS: StructField(HEADERS, ArrayType(_HEADER), True, {"comment": "The headers that the row's producer gave"}),
}


def added_fields(options: SourceOptions, own: Collection[str]) -> list[StructField]:
    """The columns requested by ``options``. ``own``: the names of the log's own columns. Raises ConfigurationError if the log has
    an own column of the same name."""
    names = {name.lower() for name in own}
    for name in options.added:
        if name in names:
            raise ConfigurationError(
                f"log {options.log!r} has a column {name!r} of its own, and option {include(name)} would add another one: leave "
                "the option out"
            )
    return [_FIELDS[name] for name in options.added]


def in_entries(added: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in (APPENDED_AT, KEY, HEADERS) if name in added)


def with_added(
    rows: pyarrow.RecordBatch, names: Sequence[str], added: Collection[str], times: RowTimes | None, lane: int
) -> pyarrow.RecordBatch:
    """``rows`` with the columns ``added``, in the order of ``names``. ``times``: None without a column of times."""
    import pyarrow

    if not added:
        return rows
    own = {name: rows.column(name) for name in rows.schema.names}
    count = rows.num_rows
    if times is not None:
        column = times.take(count)
        own.setdefault(TIMESTAMP, column)
    if LANE in added:
        own[LANE] = pyarrow.repeat(pyarrow.scalar(lane, pyarrow.int32()), count)
    if KEY in added:
        own.setdefault(KEY, pyarrow.nulls(count, pyarrow.binary()))
    if HEADERS in added:
        own.setdefault(HEADERS, pyarrow.nulls(count, headers_type()))
    return pyarrow.RecordBatch.from_arrays([own[name] for name in names], names=list(names))


# -- Unreadable entries in a task: which rows they are, and whether the query may go on without them
#
# Law: with ``failOnDataLoss`` false a task goes on without lost and invalid rows (``logs.feeds.gaps``) only. Rows that are not
# yet known fail the task: they may be readable later.


def go_on(
    bookkeeper: BookKeeper,
    options: SourceOptions,
    pieces: deque[Piece],
    rest: Piece,
    times: RowTimes | None,
    error: BookKeeperError,
) -> None:
    """After ``error`` at the first row of ``rest``: put its readable rows back in front of ``pieces``.

    Raises DataLossError if rows are lost and the read is to fail, ReadError if they are not yet known, and ``error`` if that is
    more specific.
    """
    if options.log is None:
        raise error
    try:
        first = next(readable_and_gaps(bookkeeper, options.password, rest))
    except NoSuchLedgerError:
        raise error from None
    if not isinstance(first, Gap):
        if first.rows == rest.rows:
            # All entries are readable, so the cause is another.
            raise error
        pieces.extendleft((rest.part(first.rows, rest.rows), first))
        return
    if first.kind is not GapKind.LOST:
        raise ReadError(f"log {options.log!r}: {first}; nothing is left out: {error}") from error
    data_loss(f"log {options.log!r}: {first}: {error}", options.fail_on_data_loss, first.rows)
    if times is not None:
        times.take(first.rows)
    if first.rows < rest.rows:
        pieces.appendleft(rest.part(first.rows, rest.rows))


# -- Pinned starts: a stream's start at ``latest`` is kept until Spark itself remembers the query's place
#
# Law: from the query's first request for the end of the log until its first finished micro-batch, its start stays the same,
# however often the query dies and however far the log grows. Until then Spark asks for the initial offset again at each start.
# The end of the log would be later by then, and the rows in between would be lost.
#
# The record is ``/bookspark/starts/<subscription>@<id of the log>``. A pin has an owner, the run that asked for it last. It takes
# an earlier run's pin over, and that run no longer deletes it: a run that was suspended within its first micro-batch would
# otherwise take away the start of its successor. Offsets name the owner (``PIN``) until the pin is deleted, so that a run which
# goes on from Spark's checkpoint knows which pin is its query's: Spark does not ask it for an initial offset.


PIN = "pin"
"""The key of the owner of a pin in an offset."""
_OWNER_BITS = 53
"""JSON readers keep whole numbers of this size."""


class Pin(msgspec.Struct, frozen=True):
    owner: int
    """A random number of the reader that asked for it last."""
    offset: Offset


class PinnedStart:
    """The start of the query that reads ``options.log`` as ``options.subscription``."""

    def __init__(self, options: SourceOptions) -> None:
        self._zookeeper, self._subscription = options.zookeeper, options.subscription
        self._owner = random.SystemRandom().getrandbits(_OWNER_BITS)

    def pin(self, offset: Offset, key: str) -> Offset:
        """The earlier pinned start in the log of this key, with its new owner; without it, pin ``offset``. Raises
        MetadataStoreError."""
        store, name = client(self._zookeeper).metadata, self._name(key)

        def owned(document: bytes | None) -> bytes:
            nonlocal offset
            offset = offset if document is None else _pin(document, name).offset
            return proven_struct(Pin(self._owner, offset), f"start {name!r}")

        change_record(store, STARTS, name, f"start {name!r}", owned)
        return {**offset, PIN: self._owner}

    def unpin(self, owner: int, key: str) -> None:
        """Delete the pin of ``owner``, or of this run, which took that over to replay the first micro-batch; not that of another
        owner. After a micro-batch Spark's own checkpoint has the query's place. Raises MetadataStoreError."""
        store, name = client(self._zookeeper).metadata, self._name(key)
        record = store.read_record(STARTS, name)
        if record is not None and _pin(record.value, name).owner in (owner, self._owner):
            # At another version it has another owner.
            with suppress(MetadataVersionError):
                store.delete_record(STARTS, name, record.version)

    def _name(self, key: str) -> str:
        return f"{self._subscription}@{key}"


def _place(offset: Offset) -> Offset:
    """``offset`` without the owner of a pin."""
    return {key: rows for key, rows in offset.items() if key != PIN}


def _pin(document: bytes, name: str) -> Pin:
    return read_struct(document, Pin, f"start {name!r}")


# -- The readers


def _schema(**columns: tuple[Any, str]) -> StructType:
    return StructType(
        [StructField(name, kind, True, {"comment": comment}) for name, (kind, comment) in columns.items()]
    )


ROWS_PASSED_OVER = "rowsPassedOver"
"""The key in a query's progress with the number of rows left out."""
VALUE_SCHEMA = _schema(value=(BinaryType(), "The row as it was written"))
ID_SCHEMA = _schema(
    position=(LongType(), "The row's place in the log, from 0 and without gaps"),
    ledger_id=(LongType(), "The data ledger that holds the row"),
    entry_id=(LongType(), "The entry of the ledger that holds the row"),
)
LEDGER_SCHEMA = _schema(
    ledger_id=(LongType(), "The ledger"),
    entry_id=(LongType(), "The entry, from 0"),
    last_add_confirmed=(LongType(), "The last add confirmed (LAC) that the writer knew when it wrote the entry"),
    length=(LongType(), "Bytes of payload of the ledger up to and with this entry"),
    payload=(BinaryType(), "The bytes of the entry"),
)


class Ranges(InputPartition):
    """Pieces of ledgers that one task reads, in order."""

    def __init__(self, pieces: Sequence[Piece], log: LaneId | None = None) -> None:
        super().__init__(None)
        self.pieces, self.log = tuple(pieces), log
        self.stranger: Stranger | None = None


class TablePart(InputPartition):
    """The argument of a task, from ``SystemTable.plan``."""


def schema_of(options: SourceOptions) -> StructType:
    """The schema of the rows. Spark asks for it when the DataFrame is made, so many errors come up here.

    Raises ConfigurationError (no such system table, or a requested column is the log's own), NoSuchLogError,
    UnauthorizedAccessError (wrong password), MetadataStoreError.
    """
    if options.table is not None:
        return system_table(options.table).schema
    if options.log is not None:
        record = LogRegistry(client(options.zookeeper).metadata).get(options.log)
        if options.log_id not in (None, record.log_id):
            raise recreated(options.log, options.log_id, record.log_id)
        check_password(record, options.password)
        columns = [*(columns_of(record.options) or VALUE_SCHEMA), *ID_SCHEMA]
        columns += added_fields(options, [column.name for column in columns])
        return StructType(columns)
    return LEDGER_SCHEMA


class Partitions:
    """Reads partitions in tasks. ``schema``: all columns (``schema_of``); ``names``: the wanted columns."""

    def __init__(self, options: SourceOptions, schema: StructType, names: Sequence[str]) -> None:
        self.options, self.schema = options, schema
        self.wanted = Wanted(names, options.where, schema)
        self.names = self.wanted.names_read

    def __reduce__(self) -> tuple[type[Any], tuple[SourceOptions, StructType, Sequence[str]]]:
        """Tasks get only the part that reads."""
        return type(self), (self.options, self.schema, self.wanted.names)


class EntryPartitions(Partitions):
    """Plans and reads the entries between two offsets of a log or of ledgers."""

    @property
    def chooser(self) -> Chooser | None:
        """The chooser of rows; None: all rows."""
        return self.wanted.chooser(self.options.log or "", self.schema, self.options.added)

    def plan(self, pieces: Iterable[SizedPiece], log: LaneId | None) -> list[InputPartition]:
        """``log``: the log of the pieces; None for ledgers."""
        return [Ranges(part, log) for part in split(pieces, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """In a task: the rows of the partition. Raises DataLossError and ReadError."""
        assert isinstance(partition, Ranges)
        bookkeeper = client(self.options.zookeeper)
        if partition.stranger is not None:
            introduce_query(bookkeeper, partition.stranger)
        return gathered(self._found(bookkeeper, partition.log, deque(partition.pieces)))

    def _found(self, bookkeeper: BookKeeper, log: LaneId | None, pieces: deque[Piece]) -> Iterator[pyarrow.RecordBatch]:
        kept = handles_of_process(os.getpid(), bookkeeper, self.options.password)
        ledgers = OpenedLedgers(bookkeeper, self.options.password, self._decoder, kept)
        times = RowTimes(pieces) if TIMESTAMP in self._added else None
        small = SmallPieces(ledgers, self._of_entries, in_entries(self._added))
        while pieces:
            lane, together = pieces[0].lane, small.read(pieces)
            some = (
                self._rows(ledgers, log, pieces, times)
                if together is None
                else [with_added(together, self.names, self._added, times, lane)]
            )
            for rows in some:
                if (chosen := self.wanted.of(rows)).num_rows:
                    yield chosen

    @cached_property
    def _added(self) -> set[str]:
        """The wanted columns that do not come from entries. (Without the option, a column of the name is the log's.)"""
        return {name for name in self.options.added if name in self.names}

    @cached_property
    def _of_entries(self) -> StructType:
        """The columns that come from entries, at least one: it carries the number of rows."""
        return StructType([self.schema[name] for name in self.names if name not in self._added]) or ID_SCHEMA

    def _rows(
        self, ledgers: OpenedLedgers, log: LaneId | None, pieces: deque[Piece], times: RowTimes | None
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows of the first piece, and perhaps of later pieces; read pieces are taken from ``pieces``. ``times``: of the rows
        of all pieces, or None."""
        piece, delivered = pieces[0], 0
        options, bookkeeper = self.options, ledgers.bookkeeper
        try:
            for rows in rows_of(ledgers, log, pieces, self._of_entries, in_entries(self._added)):
                delivered += rows.num_rows
                yield with_added(rows, self.names, self._added, times, piece.lane)
        except (NoSuchLedgerError, NoSuchLogError):
            rest = piece.part(delivered, piece.rows)
            if times is not None:
                times.take(rest.rows)
            data_loss(
                f"entries {rest.first_entry_id} to {rest.last_entry_id} of ledger {rest.ledger_id} were to be read, "
                f"and the ledger was deleted{_which(bookkeeper, log, rest)}",
                options.fail_on_data_loss,
                rest.rows,
            )
        except InvalidRowError as error:
            rest = piece.part(delivered, piece.rows)
            left_out = min(rest.rows, rest.rows_each - rest.skip)
            data_loss(str(error), options.fail_on_data_loss, left_out)
            if times is not None:
                times.take(left_out)
            if left_out < rest.rows:
                pieces.appendleft(rest.part(left_out, rest.rows))
        except NOT_READ as error:
            go_on(bookkeeper, options, pieces, piece.part(delivered, piece.rows), times, error)

    def _decoder(self, metadata: LedgerMetadata) -> RowDecoder:
        if self.options.log is None:
            return _LedgerRows()
        registry = LogRegistry(client(self.options.zookeeper).metadata)
        others = len(ID_COLUMNS) + len(self.options.added)
        own = StructType(self.schema.fields[:-others])
        # Each lane has its own dictionary.
        return row_decoder(metadata, own, lambda: registry.get(lane_of_ledger(metadata)).dictionary)


def _which(bookkeeper: BookKeeper, log: LaneId | None, rest: Piece) -> str:
    """The rows of a deleted ledger in the log, and whether they are truncated or lost."""
    if log is None:
        return ""
    record = LogRegistry(bookkeeper.metadata).find(log.lane(rest.lane))
    if record is None:
        return f" with log {log.name!r}, id {log.log}"
    gap = deleted_gap(record, rest)
    return "" if gap is None else f": {gap}"


@ends_in_order
class EntryReader(EntryPartitions, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        """The plan. Raises DataLossError and ReadError."""
        return self.planned(self.chooser)

    def planned(self, choose: Choice | None) -> Sequence[InputPartition]:
        """The plan of the rows that ``choose`` chooses."""
        with closing(feed(self.options)) as source:
            start, end = source.earliest(), source.newest()
            source.choose = choose
            start = chosen_place(source, "startingOffsets", self.options.start, start, end)
            end = chosen_place(source, "endingOffsets", self.options.end, end, end)
            return self.plan(source.pieces(start, end), source.log) or [Ranges(())]


Computed = TypeVar("Computed")


class GrowingReader(SilentEnd, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of the streams of one feed and of several."""

    options: SourceOptions
    _newest: Mapping[str, object] | None = None

    def feeds(self) -> Iterable[Feed]:
        raise NotImplementedError

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable() if options.rows_min is None else ReadMinRows(options.rows_min)

    def reportLatestOffset(self) -> Mapping[str, object] | None:
        """For the query's progress: the feeds' end when the micro-batch was planned, and with ``failOnDataLoss`` false the number
        of rows left out since the query started."""
        passed_over = sum(source.passed_over.rows for source in self.feeds())
        return {**self._newest, ROWS_PASSED_OVER: passed_over} if self._newest and passed_over else self._newest

    def stop(self) -> None:
        """End the reader, in order also for its process (``SilentEnd``)."""
        super().stop()
        for source in self.feeds():
            source.close()


@ends_in_order
class EntryStreamReader(EntryPartitions, GrowingReader):
    """Reads a log or ledgers as they grow.

    A reader lives in a Python process beside the driver's JVM as long as the query runs. After a restart of the query, the first
    call may be ``partitions``, for a replayed micro-batch. Spark knows one limit at a time.
    """

    def __init__(self, options: SourceOptions, schema: StructType, names: Sequence[str]) -> None:
        super().__init__(options, schema, names)
        self._target: Offset | None = None
        self._told: set[str] = set()
        self._patience = Patience(options.poll_timeout_seconds)
        self._pinned = PinnedStart(options) if options.start == LATEST else None
        self._begins_at: Offset | None = None
        """The initial offset, if Spark asked for it; else its checkpoint has the query's place."""
        self._unpinned = False
        self._place = self._new_place()
        self._delay = TriggerDelay(options.rows_min, options.trigger_delay_seconds) if options.rows_min else None

    @cached_property
    def _feed(self) -> Feed:
        source = feed(self.options)
        source.choose = self.chooser
        return source

    def feeds(self) -> Iterable[Feed]:
        return [self._feed] if "_feed" in self.__dict__ else []

    def _new_place(self) -> QueryPlace:
        def key() -> str:
            assert isinstance(self._feed, LogFeed)
            return self._feed.key

        return QueryPlace(lambda: client(self.options.zookeeper), None if self.options.log is None else key)

    def _from(self, start: Offset) -> Offset:
        """``start``; without ``failOnDataLoss`` the beginning of the log that has the name now, if ``start`` is of an earlier
        one. Raises LogRecreatedError with both ids."""
        try:
            self._feed.check(start)
            return start
        except LogRecreatedError as error:
            self._lost(error)
            return self._feed.earliest()

    def _lost(self, error: LogRecreatedError) -> None:
        if self.options.fail_on_data_loss:
            raise error
        if str(error) not in self._told:
            self._told.add(str(error))
            data_loss(f"{error}; the query goes on with the new log from its beginning", fail=False)

    def _despite_recreation(self, compute: Callable[[], Computed]) -> Computed:
        """The result of ``compute``, repeated with the log that has the name now if the query may go on with it."""
        try:
            return compute()
        except LogRecreatedError as error:
            self._lost(error)
        for source in self.feeds():
            source.close()
        self.__dict__.pop("_feed", None)
        self._place, self._target = self._new_place(), None if self._target is None else self._feed.newest()
        return compute()

    def initialOffset(self) -> Offset:
        """The offset at which a query without a Spark checkpoint starts."""
        if self._pinned is not None:
            assert isinstance(self._feed, LogFeed)
            self._begins_at = self._pinned.pin(self._feed.newest(), self._feed.key)
            return self._begins_at
        source, wanted = self._feed, self.options.start
        if isinstance(wanted, str):
            return source.earliest()
        newest = source.newest()
        return chosen_place(source, "startingOffsets", wanted, source.earliest(), newest)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the feed's present end."""
        self._target = self._feed.newest()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next micro-batch. With no new rows, or too few, it waits as long as ``Patience`` allows."""
        place = _place(start)
        end = self._despite_recreation(lambda: self._latest(place, limit))
        if PIN not in start:
            return end
        if self._begins_at is None or (self._target is not None and place != _place(self._begins_at)):
            # Spark's checkpoint has ``start``; without a target it may be written later (asynchronous progress tracking).
            self._unpin(start)
        return end if self._unpinned and end != place else {**end, PIN: start[PIN]}

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        before, start = start, self._from(start)
        if start != before:
            # The next micro-batch begins in the new log, and so that offset differs from the last one.
            return start
        self._place.tell(start)
        # A trigger that ends the query gives no limit, or its target.
        delay = None if self._target is not None or isinstance(limit, ReadAllAvailable) else self._delay
        newest = self._target
        if newest is None:
            newest = later(start, self._feed.newest())
            if newest == start or (delay is not None and delay.holds(self._feed.rows(start, newest))):
                patience = self._patience.seconds()
                if self._feed.wait(patience if newest == start or delay is None else min(patience, delay.left)):
                    newest = self._feed.newest()
        newest = self._newest = later(start, newest)
        if self._target is not None and newest == start:
            self._place.done()
        if delay is not None:
            if delay.holds(self._feed.rows(start, newest)):
                return start
            delay.begun()
        match limit:
            case ReadMaxRows():
                return self._feed.limited(start, newest, Limit(rows=limit.max_rows))
            case ReadMaxBytes():
                return self._feed.limited(start, newest, Limit(size=limit.max_bytes))
        return newest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The plan of a micro-batch, also of a replay."""
        start, end = _place(start), _place(end)
        plan = self._despite_recreation(lambda: self._planned(start, end))
        for first in plan[:1]:
            assert isinstance(first, Ranges)
            first.stranger = self._place.stranger
        return plan

    def _planned(self, start: Offset, end: Offset) -> list[InputPartition]:
        start = self._from(start)
        if isinstance(self._feed, LogFeed) and end.get("log") != self._feed.log_id:
            # The micro-batch was planned before the log was deleted.
            self._feed.check(start)
            return []
        self._place.tell(start)
        return self.plan(self._feed.pieces(start, end), self._feed.log)

    def commit(self, end: Offset) -> None:
        """Note a finished micro-batch: Spark's checkpoint has its end. Spark calls this for each source of the query, even
        without rows."""
        self._patience.batch_done()
        self._place.tell(_place(end))
        if PIN in end:
            self._unpin(end)

    def _unpin(self, done: Offset) -> None:
        """Delete the pin: Spark's checkpoint has ``done``, an offset that names the pin's owner."""
        if self._pinned is not None and not self._unpinned:
            assert isinstance(self._feed, LogFeed)
            self._pinned.unpin(done[PIN], self._feed.key)
            self._unpinned = True


@ends_in_order
class TableReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        assert options.table is not None
        self.options = options
        self.table = options.table

    def partitions(self) -> Sequence[InputPartition]:
        parts = system_table(self.table).plan(client(self.options.zookeeper))
        return [TablePart(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        # Without any partition, Spark makes its own.
        if not isinstance(partition, TablePart):
            return iter(())
        return system_table(self.table).read(client(self.options.zookeeper), partition.value, self.options.password)


class _LedgerRows:
    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        yield self.whole(entries, ())

    def whole(self, entries: pyarrow.RecordBatch, counts: Sequence[int]) -> pyarrow.RecordBatch:
        import pyarrow

        # Spark compares the nullability of schemas too, and the client's columns are "not null". So the batch is made anew.
        columns = [entries.column(name) for name in LEDGER_SCHEMA.names]
        return pyarrow.RecordBatch.from_arrays(columns, names=LEDGER_SCHEMA.names)
