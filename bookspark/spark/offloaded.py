"""Reading rows of a log that were offloaded to a Delta table, in a task that finds their ledger deleted.

Law: a task that was planned over a ledger gets the very rows that it would have got from it, or an error; it never gets
fewer. It reads the log's record again first, so a plan that is older than the offload is as good as a new one.

There is no Spark in a task: the table is read by delta-rs, at its newest version, which has all that earlier ones had
and lies where a VACUUM leaves it. Rows lie in files by position, so a task opens those it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bookspark.protocol.errors import BookKeeperError, ReadError
from bookspark.spark.logs import LogRegistry
from bookspark.spark.splits import Piece

if TYPE_CHECKING:
    import pyarrow

    from bookspark.metadata.store import MetadataStore


def offloaded_rows(
    store: MetadataStore, log: str, piece: Piece, schema: StructType
) -> Iterator[pyarrow.RecordBatch] | None:
    """The rows of ``piece`` with the columns of ``schema``, in order; None if they were not offloaded.

    While iterating: ReadError if the table can't be read, or lacks rows that the record says it has.
    """
    offload = LogRegistry(store).get(log).offload
    if offload is None or piece.position + piece.rows > offload.position:
        return None
    return _read(offload.table, log, piece, schema)


def _read(table: str, log: str, piece: Piece, schema: StructType) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow.compute as pc
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    end = piece.position + piece.rows
    where = f"rows {piece.position} to {end - 1} of log {log!r} in {table}"
    try:
        files = DeltaTable(table).to_pyarrow_dataset()
        position = pc.field("position")
        found = files.to_table(
            columns=list(dict.fromkeys((*schema.names, "position"))),
            filter=(position >= piece.position) & (position < end),
        )
    except (DeltaError, OSError) as error:
        raise ReadError(f"{where} can't be read: {error}") from error
    if found.num_rows != piece.rows:
        raise ReadError(
            f"{where}: there are {found.num_rows}, which should be {piece.rows}; nothing but jobs/offload.py may change that "
            "table's rows: restore a version of it that has them"
        )
    rows = found.sort_by("position").select(schema.names).cast(to_arrow_schema(schema, timezone="UTC"))
    yield from rows.combine_chunks().to_batches()


def table_version(table: str, transactions: str, number: int) -> int | None:
    """The newest version of ``table``, if transaction ``number`` of ``transactions`` (or a later one) is part of it.

    Raises BookKeeperError if there is a table that can't be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        found = DeltaTable(table)
        last = found.transaction_version(transactions)
        return found.version() if last is not None and last >= number else None
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise BookKeeperError(f"the table at {table} can't be read: {error}") from error
