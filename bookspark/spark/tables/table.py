"""The class of system tables: columns with their meaning, a plan made on the driver's side, and rows made in tasks.

Law: a table is read whole, or the read fails. A registered bookie that does not answer is an error, not an empty index.
Exceptions are in the tables of ledgers and logs: values that need another password are null or left out, and a column shows that;
a ledger's last add confirmed is also null if its bookies do not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow

    from bookspark.store.client import BookKeeper

LONG, INT, TEXT, FLAG, TIME, TEXTS, LONGS = (
    LongType(),
    IntegerType(),
    StringType(),
    BooleanType(),
    TimestampType(),
    ArrayType(StringType()),
    ArrayType(LongType()),
)
Rows = Iterator[tuple[Any, ...]]
"""Each has a value for each column."""
ROWS_PER_BATCH = 256
"""Rows in memory at once. A row of ``entry_checksums`` is a thousand numbers."""


@dataclass(frozen=True)
class SystemTable:
    name: str
    comment: str
    """The subject of a row, in one sentence."""
    columns: tuple[tuple[str, DataType, str], ...]
    """Name, type and meaning of each column."""
    plan: Callable[[BookKeeper], Sequence[Any]]
    """Called on the driver's side. Returns an argument for each partition."""
    rows: Callable[[BookKeeper, Any, bytes], Rows | Iterable[pyarrow.RecordBatch]]
    """Called in a task with such an argument and the password. Returns the rows of that partition."""

    @property
    def schema(self) -> StructType:
        """The columns as Spark's schema. Each column's meaning is its comment, which Delta keeps."""
        return StructType([StructField(name, kind, True, {"comment": comment}) for name, kind, comment in self.columns])

    def read(self, bookkeeper: BookKeeper, argument: Any, password: bytes) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one partition, as record batches of exactly ``schema``. ``argument``: one of those returned by ``plan``.

        Raises MetadataStoreError, and ReadError or BookieError if a bookie does not answer.
        """
        import pyarrow

        schema = to_arrow_schema(self.schema, timezone="UTC")
        rows = iter(self.rows(bookkeeper, argument, password))
        while some := list(islice(rows, ROWS_PER_BATCH)):
            if isinstance(some[0], pyarrow.RecordBatch):
                yield from some
                continue
            arrays = [
                pyarrow.array(column, type=field.type)
                for column, field in zip(zip(*some, strict=True), schema, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def once(bookkeeper: BookKeeper) -> list[None]:
    """The plan of a table that one task reads: one partition."""
    return [None]


def each_bookie(bookkeeper: BookKeeper) -> list[str]:
    """The plan of a table from each registered bookie: a partition for each, with its id."""
    return sorted(bookkeeper.metadata.bookies())


def time(milliseconds: int) -> datetime:
    """``milliseconds`` after the beginning of 1970, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def text(value: bytes | None) -> str | None:
    """Bytes as text; other bytes than UTF-8 are escaped."""
    return value.decode(errors="backslashreplace") if value is not None else None
