"""What a system table is: columns that are documented, a plan made on the driver, rows made in tasks.

Law: a table is whole or the read fails; a bookie that is registered and does not answer is an error, not an empty
index. The exceptions are said where they are: what only a password opens is null or left out, and a column tells so.
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

    from bookspark.client import BookKeeper

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
ROWS_PER_BATCH = 256
"""In memory at once: a row of ``entry_checksums`` is a thousand numbers."""


@dataclass(frozen=True)
class SystemTable:
    """``plan`` gives one argument per partition, on the driver; ``rows`` the rows of one, in a task."""

    name: str
    comment: str
    columns: tuple[tuple[str, DataType, str], ...]
    """Name, type, and what it means."""
    plan: Callable[[BookKeeper], Sequence[Any]]
    rows: Callable[[BookKeeper, Any, bytes], Rows | Iterable[pyarrow.RecordBatch]]

    @property
    def schema(self) -> StructType:
        """With each column's comment in its metadata, where Delta takes it from."""
        return StructType([StructField(name, kind, True, {"comment": comment}) for name, kind, comment in self.columns])

    def read(self, bookkeeper: BookKeeper, argument: Any, password: bytes) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one partition as record batches of exactly ``schema``."""
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
    """The plan of a table that one task reads."""
    return [None]


def each_bookie(bookkeeper: BookKeeper) -> list[str]:
    """The plan of a table that every registered bookie is asked for."""
    return sorted(bookkeeper.metadata.bookies())


def time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def text(value: bytes | None) -> str | None:
    return value.decode(errors="backslashreplace") if value is not None else None
