"""The Delta table of a log's offloaded rows: made, checked, and read without Spark.

Law: delta-rs, which reads the table in tasks, also makes it. So the table has no feature unknown to its reader, whatever Delta's
defaults of the site are (``spark.databricks.delta.properties.defaults.*``), and a column that can't be read back is an error
before a row is written. Table properties limit later changes (PINNED): append-only, so that Delta itself refuses DELETE, UPDATE
and overwriting by any program; and no deletion vectors, no column mapping, no v2 checkpoints.

If another program changes the table all the same, each opening checks its features, and a ReadError names those that delta-rs
can't read rightly. A read returns exactly the requested rows, or raises ReadError: positions are compared, not only counted, and
the checksums of Parquet's pages are verified.

Column mapping needs our own check: delta-rs 1.6 reads such a table by the columns' names, and gets null for a renamed column.
Timestamps before 1678 and after 2262 need ``coerce_int96_timestamp_unit``. Sources: Delta's protocol, "Table features"; delta-rs,
``DeltaTable.to_pyarrow_dataset``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError, ReadError
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.spark.rows.row_format import arrow_schema

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyarrow.dataset import Dataset
    from pyspark.sql.types import StructType

OWNER = "bookspark.log"
"""The table property with the owning offload."""
_MAPPING = "delta.columnMapping.mode"
PINNED = {
    "delta.appendOnly": "true",
    "delta.enableDeletionVectors": "false",
    _MAPPING: "none",
    "delta.checkpointPolicy": "classic",
}


class NoTableError(ReadError):
    """No Delta table at this place."""


def create(place: str, owner: str, columns: StructType) -> None:
    """Create an empty table at ``place`` (a path or URI), unless there is a table. If two logs do so at once, one gets the table,
    and ``check`` fails for the other.

    Raises OffloadError if a column can't be read back from a table, or if there are other files; BookKeeperError if the place is
    not writable; ReadError if there is an unreadable table.
    """
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError

    with suppress(NoTableError):
        _opened(place)
        return
    if _has_files(place):
        raise OffloadError(
            f"there are files at {place}, and they are no Delta table: give each log an empty folder of its own"
        )
    try:
        schema = Schema.from_json(columns.json())
    except (DeltaError, ValueError) as error:
        raise OffloadError(
            f"rows with the columns {columns.simpleString()} can't be offloaded: no task could read them back ({error})"
        ) from error
    try:
        # An unknown property is allowed only with raise_if_key_not_exists=False.
        DeltaTable.create(
            place,
            schema,
            mode="ignore",
            configuration={OWNER: owner, **PINNED},
            raise_if_key_not_exists=False,
        )
    except (DeltaError, OSError) as error:
        raise BookKeeperError(f"no table can be made at {place}: {error}") from error


def check(place: str, owner: str, version: int = -1) -> int:
    """Check that the table is ``owner``'s and readable by tasks. Returns its newest version.

    Raises NoTableError; OffloadError if the table is another's, or older than ``version``; ReadError if it is unreadable, for
    example because of a feature unknown to delta-rs.
    """
    table = _opened(place)
    whose = table.metadata().configuration.get(OWNER)
    if whose != owner:
        told = "was not made by an offload" if whose is None else f"is that of another: {whose}"
        raise OffloadError(
            f"the table at {place} {told}. A table has the rows of one log: give each log a path of its own. If it is the log's "
            f"all the same, say so: ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('{OWNER}' = '{owner}')"
        )
    if table.version() < version:
        raise OffloadError(
            f"the table at {place} has version {table.version()}, and had version {version} when rows were offloaded to it: was "
            "it put back from an old backup? Put the newest one back"
        )
    _dataset(table)
    return table.version()


def check_readable(place: str) -> None:
    """Raise ReadError with the reason if a task can't read the table."""
    _dataset(_opened(place))


def count(place: str, start: int, end: int) -> int:
    """Number of the table's rows with positions from ``start`` to before ``end``. Raises ReadError."""
    from pyarrow.dataset import field

    with _Failures(f"the table at {place}"):
        position = field("position")
        return int(_dataset(_opened(place)).count_rows(filter=(position >= start) & (position < end)))


def sync(place: str, start: int, end: int) -> None:
    """Sync the files with the rows from ``start`` to before ``end``, and the table's log, so that they survive a power cut; Spark
    does not sync them. Does nothing for an object store. Raises ReadError."""
    from pyarrow.dataset import field

    if "://" in place:
        return
    with _Failures(f"the table at {place}"):
        position = field("position")
        within = (position >= start) & (position < end)
        root = Path(place)
        files = {root / file.path for file in _dataset(_opened(place)).get_fragments(filter=within)}
        files.update((root / "_delta_log").glob("*.json"))
        folders = {folder for file in files for folder in file.parents if folder.is_relative_to(root)}
        for path in (*files, *folders, root.parent):
            _sync_file(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rows(place: str, log: str, pieces: Sequence[Piece], schema: StructType) -> pyarrow.Table:
    """The rows of ``pieces``, with the columns of ``schema``. The pieces are in the order of their positions; rows between two of
    them are of other ledgers.

    Raises ReadError if the table does not have exactly these rows, or is unreadable.
    """
    import numpy
    from pyarrow.dataset import ParquetFragmentScanOptions, field

    start, end = pieces[0].position, pieces[-1].position + pieces[-1].rows
    wanted = numpy.concatenate([numpy.arange(p.position, p.position + p.rows) for p in pieces])
    where = f"rows {start} to {end - 1} of log {log!r} in {place}"
    with _Failures(where):
        position = field("position")
        # A later log of the same name has other ledgers.
        own = field("ledger_id").isin(list({piece.ledger_id for piece in pieces}))
        found = _dataset(_opened(place)).to_table(
            columns=list(dict.fromkeys((*schema.names, "position"))),
            filter=own & (position >= start) & (position < end),
            fragment_scan_options=ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True),
        )
        found = found.sort_by("position")
        if not numpy.array_equal(found.column("position").to_numpy(), wanted):
            raise ReadError(
                f"{where}: there are {found.num_rows}, which should be {len(wanted)}, each once; nothing but jobs/offload.py may "
                "change the rows of that table: restore a version of it that has them"
            )
        return found.select(schema.names).cast(arrow_schema(schema))


class _Failures:
    """Turns the libraries' errors in the block into a ReadError. ``what``: the object being read."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        import pyarrow
        from deltalake.exceptions import DeltaError

        if isinstance(error, DeltaError | OSError | pyarrow.ArrowException):
            raise ReadError(f"{self._what} can't be read: {error}") from error


def _opened(place: str) -> DeltaTable:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with _Failures(f"the table at {place}"):
        try:
            return DeltaTable(place)
        except TableNotFoundError as error:
            raise NoTableError(
                f"there is no table at {place}: was it moved or deleted? Put it back; it may have the only copy of rows"
            ) from error


def _has_files(place: str) -> bool:
    from deltalake.exceptions import TableNotFoundError
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import FileSelector, PyFileSystem

    with _Failures(f"the folder {place}"), suppress(TableNotFoundError):
        files = PyFileSystem(DeltaStorageHandler(place))
        return bool(files.get_file_info(FileSelector("", allow_not_found=True)))
    return False


def _dataset(table: DeltaTable) -> Dataset:
    """The table's newest version as delta-rs reads it. Raises ReadError, which names features unknown to delta-rs."""
    from deltalake.exceptions import DeltaProtocolError
    from pyarrow.dataset import ParquetReadOptions

    mapping = table.metadata().configuration.get(_MAPPING, "none")
    try:
        if mapping != "none":
            raise DeltaProtocolError(f"its columns are mapped by {mapping}")
        return table.to_pyarrow_dataset(parquet_read_options=ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    except DeltaProtocolError as error:
        place = table.table_uri
        features = sorted(
            {*(table.protocol().reader_features or ())} | ({"columnMapping"} if mapping != "none" else set())
        )
        raise ReadError(
            f"the table at {place} was changed, and can't be read without Spark any more ({error}). Read the log's rows by "
            "bookspark.spark.log_frame, which takes Spark's own reader for them; or take the feature out of the table again: "
            f"ALTER TABLE delta.`{place}` DROP FEATURE {' or '.join(features)}"
        ) from error
