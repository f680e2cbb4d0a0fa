"""The source of ``format("bookspark")``: entries of a log or of ledgers, once or as a stream, or rows of a system table.

Law: reading never fences and never disturbs a writer. A log is read up to what was committed when the read, or the
micro-batch, was planned, whatever its data ledgers hold beyond; a ledger up to its LAC of that moment. What a plan names is
read whole, or the task fails (see ``feeds`` for ``failOnDataLoss``).

Rows of a log
    ``value binary``; ``position bigint``: the row's place in the log, from 0 and without gaps; ``ledger_id``,
    ``entry_id``.
Rows of ledgers
    ``ledger_id``, ``entry_id``, ``last_add_confirmed`` (as its writer knew it), ``length`` (bytes of the ledger up to
    here): bigint; ``payload binary``.
Rows of a system table
    see ``bookspark.spark.system_tables``.

The plan is made beside the driver's JVM (``partitions``), each partition is read in a task, from the replicas in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from bookspark.protocol.errors import NoSuchLedgerError
from bookspark.spark.clients import client
from bookspark.spark.feeds import Feed, Limit, LogFeed, Offset, data_loss, feed
from bookspark.spark.logs import LogRegistry, check_password
from bookspark.spark.options import LATEST, SourceOptions
from bookspark.spark.pinned_start import PinnedStart
from bookspark.spark.splits import Piece, split
from bookspark.spark.system_tables import system_table

if TYPE_CHECKING:
    import pyarrow


def _schema(**columns: tuple[Any, str]) -> StructType:
    return StructType(
        [StructField(name, kind, True, {"comment": comment}) for name, (kind, comment) in columns.items()]
    )


LOG_SCHEMA = _schema(
    value=(BinaryType(), "The row as it was written"),
    position=(LongType(), "Its place in the log, from 0 and without gaps"),
    ledger_id=(LongType(), "Data ledger that it lies in"),
    entry_id=(LongType(), "Its entry in the ledger"),
)
LEDGER_SCHEMA = _schema(
    ledger_id=(LongType(), "The ledger"),
    entry_id=(LongType(), "The entry, from 0"),
    last_add_confirmed=(LongType(), "The LAC that the writer knew when it wrote the entry"),
    length=(LongType(), "Bytes of payload of the ledger up to and with this entry"),
    payload=(BinaryType(), "The entry"),
)


class Ranges(InputPartition):
    """Pieces of ledgers that one task reads, in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)


class TablePart(InputPartition):
    """What ``SystemTable.plan`` gave for one task."""


def schema_of(options: SourceOptions) -> StructType:
    """The rows' schema; what can't be read is an error here, when the DataFrame is made."""
    if options.table is not None:
        return system_table(options.table).schema
    if options.log is not None:
        check_password(LogRegistry(client(options.zookeeper).metadata).get(options.log), options.password)
        return LOG_SCHEMA
    return LEDGER_SCHEMA


class EntryPartitions:
    """Planning and reading what lies between two offsets of a log or of ledgers."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def plan(self, source: Feed, start: Offset, end: Offset) -> list[InputPartition]:
        return [Ranges(part) for part in split(source.pieces(start, end), self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, Ranges)
        options = self.options
        bookkeeper = client(options.zookeeper)
        convert = _log_rows if options.log is not None else _ledger_rows
        for piece in partition.pieces:
            try:
                reader = bookkeeper.open_ledger_no_recovery(piece.ledger_id, password=options.password)
            except NoSuchLedgerError:
                data_loss(
                    f"entries {piece.first_entry_id} to {piece.last_entry_id} of ledger {piece.ledger_id} were to be read, "
                    "and the ledger was deleted",
                    options.fail_on_data_loss,
                )
                continue
            with reader:
                reader.confirm(piece.last_entry_id)
                for batch in reader.read_batches(piece.first_entry_id, piece.last_entry_id):
                    yield convert(batch, piece)


class EntryReader(EntryPartitions, DataSourceReader):
    """Reads a log or ledgers once."""

    def partitions(self) -> Sequence[InputPartition]:
        source = feed(self.options)
        start, end = source.earliest(), source.newest()
        if isinstance(source, LogFeed):
            wanted, limit = self.options.start, self.options.end
            start = source.at(wanted) if isinstance(wanted, int) else start
            end = source.at(min(limit, end["position"])) if isinstance(limit, int) else end
        return self.plan(source, start, end) or [Ranges(())]


class EntryStreamReader(EntryPartitions, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log or ledgers as they grow.

    Lives in one Python process beside the driver's JVM as long as the query runs; when the query starts again, the first
    call may be ``partitions``, for a micro-batch that is replayed. Spark counts one limit at a time.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._target: Offset | None = None
        self._newest: Offset | None = None
        self._pinned = PinnedStart(options) if options.start == LATEST else None

    def __reduce__(self) -> tuple[type[EntryStreamReader], tuple[SourceOptions]]:
        """Tasks get the options; what plans stays where it is."""
        return EntryStreamReader, (self.options,)

    @cached_property
    def _feed(self) -> Feed:
        return feed(self.options)

    def initialOffset(self) -> Offset:
        if self._pinned is not None:
            return self._pinned.pin(self._feed.newest())
        if isinstance(self._feed, LogFeed) and isinstance(self.options.start, int):
            return self._feed.at(self.options.start)
        return self._feed.earliest()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.rows_max is not None:
            return ReadMaxRows(self.options.rows_max)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._feed.newest()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        self._feed.check(start)
        newest = self._target
        if newest is None:
            newest = _later(start, self._feed.newest())
            if newest == start:
                self._feed.wait(self.options.poll_timeout_seconds)
                newest = self._feed.newest()
        newest = self._newest = _later(start, newest)
        match limit:
            case ReadMaxRows():
                return self._feed.limited(start, newest, Limit(rows=limit.max_rows))
            case ReadMaxBytes():
                return self._feed.limited(start, newest, Limit(size=limit.max_bytes))
        return newest

    def reportLatestOffset(self) -> Offset | None:
        """For the query's progress: how far the log, or the ledgers, had come when the micro-batch was planned."""
        return self._newest

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._feed.check(start)
        return self.plan(self._feed, start, end)

    def commit(self, end: Offset) -> None:
        if self._pinned is not None:
            self._pinned.unpin()
            self._pinned = None


def _later(offset: Offset, other: Offset) -> Offset:
    """The farther of two offsets, entry by entry: a LAC that was heard once may not be heard again at once."""
    return {**offset, **{key: max(value, offset.get(key, value)) for key, value in other.items()}}


class TableReader(DataSourceReader):
    """Reads a system table."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.table is not None
        self.options = options
        self.table = options.table

    def partitions(self) -> Sequence[InputPartition]:
        parts = system_table(self.table).plan(client(self.options.zookeeper))
        return [TablePart(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, TablePart):
            return iter(())  # Spark's stand-in for no partition at all
        return system_table(self.table).read(client(self.options.zookeeper), partition.value, self.options.password)


def _log_rows(batch: pyarrow.RecordBatch, piece: Piece) -> pyarrow.RecordBatch:
    import pyarrow
    import pyarrow.compute

    ids = batch.column("entry_id")
    positions = pyarrow.compute.add(ids, piece.position - piece.first_entry_id)
    columns = [batch.column("payload"), positions, batch.column("ledger_id"), ids]
    return pyarrow.RecordBatch.from_arrays(columns, names=LOG_SCHEMA.names)


def _ledger_rows(batch: pyarrow.RecordBatch, piece: Piece) -> pyarrow.RecordBatch:
    import pyarrow

    # Spark compares schemas with their nullability: the client's columns are "not null".
    columns = [batch.column(name) for name in LEDGER_SCHEMA.names]
    return pyarrow.RecordBatch.from_arrays(columns, names=LEDGER_SCHEMA.names)
