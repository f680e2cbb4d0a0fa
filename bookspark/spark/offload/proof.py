"""The proof that rows of a log are in its table: reads them back, and compares them with the rows in the ledgers.

Law: tasks read the table through the same code that will serve the rows after the ledgers (``table.rows``), and compare each row,
with all its columns, with the row in its ledger. Only then are rows called offloaded, and only then is a ledger deleted. A count
or digest would read the same rows, so it would save nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.rows.encodings import ID_COLUMNS, RowDecoder
from bookspark.logs.rows.splits import Piece, SizedPiece, split
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.spark.offload import table
from bookspark.spark.offload.offloaded import rows_in_ledger
from bookspark.spark.offload.opened_ledgers import OpenedLedgers
from bookspark.spark.process_client import client
from bookspark.spark.rows.row_format import arrow_schema
from bookspark.spark.rows.rows import row_decoder

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


class _Part(NamedTuple):
    """The part that a task compares."""

    log: LogAddress
    place: str
    schema: StructType
    pieces: Sequence[Piece]


def prove(spark: SparkSession, log: LogAddress, place: str, schema: StructType, pieces: Iterable[SizedPiece]) -> None:
    """Return if the table at ``place`` has the rows of ``pieces`` as in their ledgers. ``schema``: all columns of the log.

    Raises OffloadError with the difference or the reason why a row is unreadable, and Spark's errors.
    """
    parts = [_Part(log, place, schema, part) for part in split(pieces, 1)]
    if not parts:
        return
    found = spark.sparkContext.parallelize(parts, len(parts)).map(_compare).collect()
    wrong = [problem for problem in found if problem is not None]
    if wrong:
        raise OffloadError(
            f"{wrong[0]}. The ledgers stay, and nothing more is offloaded until the table has the rows of the log as they are"
        )


def _compare(part: _Part) -> str | None:
    """In a task: the fault of the rows of ``part`` in the table, in words, or None."""
    import pyarrow

    bookkeeper, log = client(part.log.zookeeper), part.log
    columns = StructType(part.schema.fields[: -len(ID_COLUMNS)])

    def decoder(metadata: LedgerMetadata) -> RowDecoder:
        return row_decoder(metadata, columns, lambda: LogRegistry(bookkeeper.metadata).get(log.name).dictionary)

    try:
        found = table.rows(part.place, log.name, part.pieces, part.schema)
        ledgers, left = OpenedLedgers(bookkeeper, log.password, decoder), deque(part.pieces)
        in_ledgers: list[pyarrow.RecordBatch] = []
        while left:
            in_ledgers += rows_in_ledger(ledgers, left.popleft(), part.schema, (), left)
    except BookKeeperError as error:
        return str(error)
    wanted = pyarrow.Table.from_batches(in_ledgers).cast(arrow_schema(part.schema))
    at = first_difference(wanted, found)
    if at is None:
        return None
    position = found.column("position")[at].as_py() if at < found.num_rows else part.pieces[-1].position
    return f"row {position} of log {log.name!r} is another one in {part.place} than in its ledger"


def first_difference(one: pyarrow.Table, other: pyarrow.Table) -> int | None:
    """Number of the first row that differs in the tables, or None. NaN equals NaN."""
    if one.equals(other):
        return None
    # Arrow calls NaN unequal to itself, so the rows decide.
    for number, (row, same) in enumerate(zip(one.to_pylist(), other.to_pylist(), strict=False)):
        if repr(row) != repr(same):
            return number
    return None if one.num_rows == other.num_rows else min(one.num_rows, other.num_rows)
