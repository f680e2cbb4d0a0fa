"""The source of ``format("bookspark")``: entries of a log or of ledgers, once or as a stream, or rows of a system table.

Law: reading never fences and never disturbs a writer. A log is read up to what was committed when the read, or the
micro-batch, was planned, whatever its data ledgers hold beyond; a ledger up to its LAC of that moment. What a plan names is
read whole, or the task fails (see ``feeds`` for ``failOnDataLoss``).

Rows of a log
    ``value binary`` (of a log of row format ``arrow``: the columns that were written); ``position bigint``: the row's place in
    the log, from 0 and without gaps; ``ledger_id``, ``entry_id``.
Rows of ledgers
    ``ledger_id``, ``entry_id``, ``last_add_confirmed`` (as its writer knew it), ``length`` (bytes of the ledger up to
    here): bigint; ``payload binary``.
Rows of a system table
    see ``bookspark.spark.tables.system_tables``.

A schema with fewer of a log's or a ledger's columns may be given (``spark.read.schema("position bigint")``): the others are not
made. Spark itself has no way to tell a Python data source which columns a query needs (seen in 4.2). Which entries are planned is
said by the options ``ledgers``, ``startingOffsets`` and ``endingOffsets``, and not by Spark's own push-down of filters
(``DataSourceReader.pushFilters``), which is wrong in 4.2: a DataFrame keeps the plan of the filter that was pushed last. Seen,
with a source of 100 rows: after ``frame.where("a < 5").count()``, ``frame.count()`` is 5; a union of two filters on one frame has
the rows of one of them twice. So no reader here takes filters, and Spark applies them to the rows that it gets.

The plan is made beside the driver's JVM (``partitions``), each partition is read in a task, from the replicas in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
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

from bookspark.errors import NoSuchLedgerError, ReadError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.spark.connector.connector_options import LATEST, SourceOptions
from bookspark.spark.connector.feeds import Feed, Limit, LogFeed, Offset, data_loss, feed
from bookspark.spark.connector.pinned_start import PinnedStart
from bookspark.spark.logs import LogRegistry, check_password
from bookspark.spark.logs.offloaded import rows_of
from bookspark.spark.logs.rows import ID_COLUMNS, RowDecoder, columns_of, row_decoder
from bookspark.spark.logs.splits import Piece, SizedPiece, split
from bookspark.spark.process_client import client
from bookspark.spark.tables.system_tables import system_table

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client import BookKeeper


def _schema(**columns: tuple[Any, str]) -> StructType:
    return StructType(
        [StructField(name, kind, True, {"comment": comment}) for name, (kind, comment) in columns.items()]
    )


ROWS_PASSED_OVER = "rowsPassedOver"
VALUE_SCHEMA = _schema(value=(BinaryType(), "The row as it was written"))
ID_SCHEMA = _schema(
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
        record = LogRegistry(client(options.zookeeper).metadata).get(options.log)
        check_password(record, options.password)
        return StructType([*(columns_of(record.options) or VALUE_SCHEMA), *ID_SCHEMA])
    return LEDGER_SCHEMA


class EntryPartitions:
    """Planning and reading what lies between two offsets of a log or of ledgers.

    ``schema`` is all that there is (see ``schema_of``), ``names`` the columns that are asked for.
    """

    def __init__(self, options: SourceOptions, schema: StructType, names: Sequence[str]) -> None:
        self.options, self.schema, self.names = options, schema, list(names)

    def plan(self, pieces: Iterable[SizedPiece]) -> list[InputPartition]:
        return [Ranges(part) for part in split(pieces, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, Ranges)
        bookkeeper = client(self.options.zookeeper)
        pieces = deque(partition.pieces)
        while pieces:
            yield from self._rows(bookkeeper, pieces)

    def _rows(self, bookkeeper: BookKeeper, pieces: deque[Piece]) -> Iterator[pyarrow.RecordBatch]:
        """Of the first piece, at least; takes from ``pieces`` what was read."""
        piece, delivered = pieces[0], 0
        options, wanted = self.options, StructType([self.schema[name] for name in self.names])
        try:
            for rows in rows_of(bookkeeper, options.log, options.password, pieces, wanted, self._decoder):
                delivered += rows.num_rows
                yield rows
        except NoSuchLedgerError:
            rest = piece.part(delivered, piece.rows)
            data_loss(
                f"entries {rest.first_entry_id} to {rest.last_entry_id} of ledger {rest.ledger_id} were to be read, "
                "and the ledger was deleted",
                options.fail_on_data_loss,
                rest.rows,
            )

    def _decoder(self, metadata: LedgerMetadata) -> RowDecoder:
        name = self.options.log
        if name is None:
            return _LedgerRows()
        registry = LogRegistry(client(self.options.zookeeper).metadata)
        own = StructType(self.schema.fields[: -len(ID_COLUMNS)])
        return row_decoder(metadata, own, lambda: registry.get(name).dictionary)


class EntryReader(EntryPartitions, DataSourceReader):
    """Reads a log or ledgers once."""

    def partitions(self) -> Sequence[InputPartition]:
        source = feed(self.options)
        start, end = source.earliest(), source.newest()
        if isinstance(source, LogFeed):
            wanted, limit = self.options.start, self.options.end
            start = source.at(wanted) if isinstance(wanted, int) else start
            if isinstance(limit, int):
                _check_end(self.options.log, limit, end["position"])
                end = source.at(limit)
        return self.plan(source.pieces(start, end)) or [Ranges(())]


def _check_end(log: str | None, wanted: int, rows: int) -> None:
    """Raise ReadError unless the log has as many rows as are wanted: what is read up to a row has all before it."""
    if wanted > rows:
        raise ReadError(
            f"log {log!r} has {rows} rows that its bookies tell of now, and endingOffsets {wanted} asks for more: ask again once "
            "they are committed, or leave endingOffsets out to read what there is"
        )


class EntryStreamReader(EntryPartitions, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log or ledgers as they grow.

    Lives in one Python process beside the driver's JVM as long as the query runs; when the query starts again, the first
    call may be ``partitions``, for a micro-batch that is replayed. Spark counts one limit at a time.
    """

    def __init__(self, options: SourceOptions, schema: StructType, names: Sequence[str]) -> None:
        super().__init__(options, schema, names)
        self._target: Offset | None = None
        self._newest: Offset | None = None
        self._pinned = PinnedStart(options) if options.start == LATEST else None

    def __reduce__(self) -> tuple[type[EntryStreamReader], tuple[SourceOptions, StructType, Sequence[str]]]:
        """Tasks get what reads; what plans stays where it is."""
        return EntryStreamReader, (self.options, self.schema, self.names)

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
        """For the query's progress: how far the log, or the ledgers, had come when the micro-batch was planned; and how many
        rows it has gone on without since it was started, if ``failOnDataLoss`` is false and there were any."""
        passed_over = self._feed.passed_over.rows
        if self._newest is None or not passed_over:
            return self._newest
        return {**self._newest, ROWS_PASSED_OVER: passed_over}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._feed.check(start)
        return self.plan(self._feed.pieces(start, end))

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


class _LedgerRows:
    """Entries as they are."""

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        # Spark compares schemas with their nullability: the client's columns are "not null".
        columns = [entries.column(name) for name in LEDGER_SCHEMA.names]
        yield pyarrow.RecordBatch.from_arrays(columns, names=LEDGER_SCHEMA.names)
