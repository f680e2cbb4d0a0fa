"""The batch source of ``format("bookspark")``: entries of a log, of ledgers, or rows of a system table, as record batches.

Law: reading never fences and never disturbs a writer. A log is read up to what was committed when the read was planned,
whatever its data ledgers hold beyond; a ledger up to its LAC of that moment. What a plan names is read whole, or the
task fails.

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
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from bookspark.protocol.errors import NoSuchLedgerError
from bookspark.protocol.log_record import EntryRange, LogRecord
from bookspark.spark.clients import client
from bookspark.spark.logs import LogRegistry, check_password, commits
from bookspark.spark.options import SourceOptions
from bookspark.spark.splits import Piece, positioned, split
from bookspark.spark.system_tables import system_table

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client import BookKeeper


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
        _log(client(options.zookeeper), options)
        return LOG_SCHEMA
    return LEDGER_SCHEMA


class EntryReader(DataSourceReader):
    """Reads a log or ledgers."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        bookkeeper = client(options.zookeeper)
        if options.log is not None:
            found = commits(bookkeeper, _log(bookkeeper, options), options.password)
            ranges: Iterator[EntryRange] = chain.from_iterable(commit.ranges for commit in found)
        else:
            ranges = _ledger_ranges(bookkeeper, options.ledgers or (), options.password)
        pieces = positioned(ranges, options.start, options.end)
        return [Ranges(part) for part in split(pieces, options.min_partitions)] or [Ranges(())]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, Ranges)
        bookkeeper = client(self.options.zookeeper)
        convert = _log_rows if self.options.log is not None else _ledger_rows
        for piece in partition.pieces:
            with bookkeeper.open_ledger_no_recovery(piece.ledger_id, password=self.options.password) as reader:
                reader.confirm(piece.last_entry_id)
                for batch in reader.read_batches(piece.first_entry_id, piece.last_entry_id):
                    yield convert(batch, piece)


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


def _log(bookkeeper: BookKeeper, options: SourceOptions) -> LogRecord:
    assert options.log is not None
    record = LogRegistry(bookkeeper.metadata).get(options.log)
    check_password(record, options.password)
    return record


def _ledger_ranges(bookkeeper: BookKeeper, ledgers: Sequence[int], password: bytes) -> Iterator[EntryRange]:
    """Each ledger up to its LAC of now."""
    for ledger_id in ledgers:
        try:
            reader = bookkeeper.open_ledger_no_recovery(ledger_id, password=password)
        except NoSuchLedgerError:
            raise NoSuchLedgerError(
                f"there is no ledger {ledger_id}; it was deleted, or is another cluster's"
            ) from None
        last = reader.last_add_confirmed
        if last >= 0:
            # An open ledger's bytes stand in its last confirmed entry.
            size = reader.length if reader.metadata.closed else next(reader.read(last, last)).length
            yield EntryRange(ledger_id, 0, last, last + 1, size)


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
