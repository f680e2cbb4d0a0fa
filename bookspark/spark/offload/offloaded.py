"""Reads rows of a log from their ledger, or from the Delta table of its offload.

Law: a task planned over a ledger gets exactly the rows of the plan, or an error; never fewer. It reads the log's record before it
reads a table, so a plan from before the offload is still valid.

A task has no Spark session, so delta-rs reads the table (``table``), at its newest version, which has all rows of earlier
versions and survives a VACUUM. The files are ordered by position, so a task opens only the needed files. Opening the table takes
as long as many thousand rows, so a task reads all its rows of the table at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from bookspark.errors import NoSuchLedgerError, ReadError
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.rows.encodings import ROW_HEADERS, ROW_KEY
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.lanes import LaneId, is_service
from bookspark.spark.offload import table
from bookspark.spark.offload.opened_ledgers import OpenedLedgers

if TYPE_CHECKING:
    import pyarrow

    from bookspark.store.metadata.store import MetadataStore


def rows_of(
    ledgers: OpenedLedgers, log: LaneId | None, pieces: deque[Piece], schema: StructType, others: Sequence[str] = ()
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of the first of ``pieces``, in order, with the columns of ``schema``.

    The rows come from the piece's ledger or, if that was deleted, from the table of the offload of ``log``, together with the
    rows of the pieces that follow in the table. ``log``: None if the pieces are of ledgers. ``ledgers``: those of
    the task, the same at each call. ``others``: more columns, if the entries have them. Read pieces are taken from the left of
    ``pieces``.

    Raises NoSuchLedgerError if the rows are neither in their ledger nor in a table, NoSuchLogError if the log was deleted too,
    and ReadError if too few bookies answer or the table is unreadable.
    """
    piece = pieces.popleft()
    delivered = 0
    try:
        for rows in rows_in_ledger(ledgers, piece, schema, others, pieces):
            delivered += rows.num_rows
            yield rows
    except NoSuchLedgerError:
        rest = piece.part(delivered, piece.rows)
        store = ledgers.bookkeeper.metadata
        in_table = None if log is None else offloaded_rows(store, log, rest, pieces, schema, others)
        if in_table is None:
            raise
        yield from in_table


def rows_in_ledger(
    ledgers: OpenedLedgers,
    piece: Piece,
    schema: StructType,
    others: Sequence[str] = (),
    following: Iterable[Piece] = (),
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of ``piece`` from its ledger, with the columns of ``schema``, and those of ``others`` that its entries have.
    ``following``: the pieces to be read after it, in order.

    Raises NoSuchLedgerError, and ReadError if too few bookies answer.
    """
    for rows in ledgers.rows(piece, following):
        yield rows.select(columns_of(rows, schema, others))


def columns_of(rows: pyarrow.RecordBatch, schema: StructType, others: Sequence[str]) -> list[str]:
    """Names of the columns of ``schema``, and of those ``others`` that ``rows`` have."""
    return [*schema.names, *(name for name in others if name in rows.schema.names)]


def offloaded_rows(
    store: MetadataStore,
    log: LaneId,
    piece: Piece,
    following: deque[Piece],
    schema: StructType,
    others: Sequence[str] = (),
) -> Iterator[pyarrow.RecordBatch] | None:
    """The rows of ``piece`` from the table of the offload of ``log``, in order, with the columns of ``schema``.

    The rows of those pieces of ``following`` that continue the piece and are offloaded too come next; these pieces are taken from
    the left of ``following``. Returns None if the rows of ``piece`` are not offloaded, or were truncated: the table may lack rows
    that were truncated before their offload. Raises NoSuchLogError, and ReadError if
    the table is unreadable, or lacks rows that it should have by the log's record, or if ``others`` has a producer's keys or
    headers, which the table lacks.
    """
    lane = log.lane(piece.lane)
    record = LogRegistry(store).get(lane)
    offload = record.offload
    if offload is None or _end(piece) > offload.position or piece.position < record.first_position:
        return None
    if {ROW_KEY, ROW_HEADERS}.intersection(others) and is_service(record.owner_query):
        raise ReadError(
            f"rows before {offload.position} of log '{lane}' were offloaded to {offload.table}, which keeps no keys and "
            f"headers: leave options includeKey and includeHeaders out, or begin at row {offload.position}"
        )
    pieces = [piece]
    while following and _follows(following[0], pieces[-1]) and _end(following[0]) <= offload.position:
        pieces.append(following.popleft())
    batches: list[pyarrow.RecordBatch] = (
        table.rows(offload.table, str(lane), pieces, schema).combine_chunks().to_batches()
    )
    return iter(batches)


def _follows(piece: Piece, other: Piece) -> bool:
    return piece.lane == other.lane and piece.position == _end(other)


def _end(piece: Piece) -> int:
    return piece.position + piece.rows
