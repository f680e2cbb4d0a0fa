"""Columns of a log that a read adds if it is asked to: when a row was committed, which lane it is of, and its producer's key and
headers.

Law: without the option, a column of the same name is the log's own; with it, such a log is refused. So a column never means two
things. (Only logs of row format ``arrow`` have columns of such names: a DataFrame's ``key`` and ``headers`` that Spark wrote
there are the log's own columns, and need no option.)

``key binary`` and ``headers array<struct<key string, value binary>>`` are as Spark's Kafka source has them: null if the producer
gave none, and of rows that no producer wrote. An offload keeps neither (``offload.offloaded``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bookspark.errors import ConfigurationError
from bookspark.logs.feeds.times import RowTimes
from bookspark.logs.rows.encodings import APPENDED_AT
from bookspark.logs.rows.stamped_rows import headers_type
from bookspark.spark.options.source_options import HEADERS, KEY, LANE, TIMESTAMP, SourceOptions, include

if TYPE_CHECKING:
    import pyarrow

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_FIELDS = {
    TIMESTAMP: StructField(TIMESTAMP, TimestampType(), True, {"comment": "When the row was committed"}),
    LANE: StructField(LANE, IntegerType(), True, {"comment": "The lane of the log that the row is of"}),
    KEY: StructField(KEY, BinaryType(), True, {"comment": "The key that the row's producer gave"}),
    HEADERS: StructField(HEADERS, ArrayType(_HEADER), True, {"comment": "The headers that the row's producer gave"}),
}


def added_fields(options: SourceOptions, own: Collection[str]) -> list[StructField]:
    """The columns that ``options`` ask for. ``own``: the names of the log's own columns. Raises ConfigurationError if the log has
    one of the same name."""
    names = {name.lower() for name in own}
    for name in options.added:
        if name in names:
            raise ConfigurationError(
                f"log {options.log!r} has a column {name!r} of its own, and option {include(name)} would add another one: leave "
                "the option out"
            )
    return [_FIELDS[name] for name in options.added]


def in_entries(added: Collection[str]) -> tuple[str, ...]:
    """Those of these columns that a producer's entries have."""
    return tuple(name for name in (APPENDED_AT, KEY, HEADERS) if name in added)


def with_added(
    rows: pyarrow.RecordBatch, names: Sequence[str], added: Collection[str], times: RowTimes | None, lane: int
) -> pyarrow.RecordBatch:
    """``rows`` with the columns ``added``, in the order of ``names``. ``times``: None if the time of rows is not wanted."""
    import pyarrow

    own = {name: rows.column(name) for name in rows.schema.names}
    count = rows.num_rows
    if times is not None:
        column = times.take(count)
        own.setdefault(TIMESTAMP, column)
    if LANE in added:
        own[LANE] = pyarrow.repeat(pyarrow.scalar(lane, pyarrow.int32()), count)
    if KEY in added:
        own.setdefault(KEY, pyarrow.nulls(count, pyarrow.binary()))
    if HEADERS in added:
        own.setdefault(HEADERS, pyarrow.nulls(count, headers_type()))
    return pyarrow.RecordBatch.from_arrays([own[name] for name in names], names=list(names))


def without(schema: StructType, added: Collection[str]) -> StructType:
    """The columns that come from entries."""
    return StructType([one for one in schema if one.name not in added])
