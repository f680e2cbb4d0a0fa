"""Reading rows of a log where they lie: in their ledger, or in the Delta table that they were offloaded to.

Law: a task that was planned over a ledger gets exactly the rows of the plan, or an error; never fewer. Before it reads a table,
it reads the log's record, so a plan that is older than the offload is as good as a new one.

A task has no Spark session, so delta-rs reads the table, at its newest version. That version has all rows of earlier ones, and
lies where a VACUUM leaves it. The rows lie in the table's files by position, so a task opens only the files that it needs.
Opening the table takes as long as reading many thousand rows, so a task reads all rows that it needs of the table at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError, NoSuchLedgerError, ReadError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.spark.logs.registry import LogRegistry
from bookspark.spark.logs.row_format import RowDecoder, arrow_schema
from bookspark.spark.logs.splits import Piece

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client import BookKeeper
    from bookspark.metadata.store import MetadataStore

OWNER = "bookspark.log"
"""The table property that names the offload whose table it is."""


def rows_of(
    bookkeeper: BookKeeper,
    log: str | None,
    password: bytes,
    pieces: deque[Piece],
    schema: StructType,
    decoder_of: Callable[[LedgerMetadata], RowDecoder],
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of the first of ``pieces``, in order, with the columns of ``schema``.

    The rows come from the piece's ledger. If the ledger was deleted, they come from the table that ``log`` was offloaded to,
    together with the rows of the pieces that follow in the table. ``log``: the log's name; None if the pieces are of ledgers.
    ``decoder_of`` gives the decoder of a ledger's entries. The pieces that are read are taken from the left of ``pieces``.

    Raises NoSuchLedgerError if the rows are neither in their ledger nor in a table, ReadError if too few bookies answer or the
    table can't be read.
    """
    piece = pieces.popleft()
    delivered = 0
    try:
        with bookkeeper.open_ledger_no_recovery(piece.ledger_id, password=password) as reader:
            reader.confirm(piece.last_entry_id)
            decoder = decoder_of(reader.metadata)
            for entries in reader.read_batches(piece.first_entry_id, piece.last_entry_id):
                for rows in decoder.rows(entries, piece):
                    delivered += rows.num_rows
                    yield rows.select(schema.names)
    except NoSuchLedgerError:
        rest = piece.part(delivered, piece.rows)
        found = None if log is None else offloaded_rows(bookkeeper.metadata, log, rest, pieces, schema)
        if found is None:
            raise
        yield from found


def offloaded_rows(
    store: MetadataStore, log: str, piece: Piece, following: deque[Piece], schema: StructType
) -> Iterator[pyarrow.RecordBatch] | None:
    """The rows of ``piece`` from the table that ``log`` was offloaded to, in order, with the columns of ``schema``.

    The rows of those pieces of ``following`` that continue the piece and were offloaded too come next; these pieces are taken
    from the left of ``following``. Returns None if the rows of ``piece`` were not offloaded. Raises NoSuchLogError. The iterator
    raises ReadError if the table can't be read, or lacks rows that the log's record says it has.
    """
    offload = LogRegistry(store).get(log).offload
    if offload is None or _end(piece) > offload.position:
        return None
    pieces = [piece]
    while following and following[0].position == _end(pieces[-1]) and _end(following[0]) <= offload.position:
        pieces.append(following.popleft())
    return _read(offload.table, log, pieces, schema)


def _end(piece: Piece) -> int:
    return piece.position + piece.rows


def _read(table: str, log: str, pieces: Sequence[Piece], schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow.compute as pc
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    start, end = pieces[0].position, _end(pieces[-1])
    where = f"rows {start} to {end - 1} of log {log!r} in {table}"
    try:
        files = DeltaTable(table).to_pyarrow_dataset()
        position = pc.field("position")
        # A log of the same name that was created later has other ledgers.
        own = pc.field("ledger_id").isin(list({piece.ledger_id for piece in pieces}))
        found = files.to_table(
            columns=list(dict.fromkeys((*schema.names, "position"))),
            filter=own & (position >= start) & (position < end),
        )
    except (DeltaError, OSError) as error:
        raise ReadError(f"{where} can't be read: {error}") from error
    if found.num_rows != end - start:
        raise ReadError(
            f"{where}: there are {found.num_rows}, which should be {end - start}; nothing but jobs/offload.py may "
            "change the rows of that table: restore a version of it that has them"
        )
    rows = found.sort_by("position").select(schema.names).cast(arrow_schema(schema))
    yield from rows.combine_chunks().to_batches()


def table_version(table: str, transactions: str, number: int) -> int | None:
    """The newest version of ``table``, if transaction ``number`` of ``transactions``, or a later one, is part of it. Else None.

    ``table``: a path or URI. ``transactions``: the offload's name, which is the table's property OWNER. Raises OffloadError if
    the table is not this offload's, BookKeeperError if it can't be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        found = DeltaTable(table)
        last = found.transaction_version(transactions)
        owner = found.metadata().configuration.get(OWNER)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise BookKeeperError(f"the table at {table} can't be read: {error}") from error
    if last is None and owner != transactions:
        whose = "was not made by an offload" if owner is None else f"is that of another: {owner}"
        raise OffloadError(
            f"the table at {table} {whose}. A table has the rows of one log: give each log a path of its own"
        )
    return found.version() if last is not None and last >= number else None
