"""The column that tells when a row of a log was committed (option ``includeTimestamp``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType, TimestampType

from bookspark.logs.feeds.times import RowTimes

if TYPE_CHECKING:
    import pyarrow

TIMESTAMP = "timestamp"
"""The column."""
TIMESTAMP_FIELD = StructField(TIMESTAMP, TimestampType(), True, {"comment": "When the row was committed"})


def with_times(rows: pyarrow.RecordBatch, names: Sequence[str], times: RowTimes) -> pyarrow.RecordBatch:
    """``rows`` with the column of their times, in the order of ``names``."""
    import pyarrow

    column = times.take(rows.num_rows)
    columns = [column if name == TIMESTAMP else rows.column(name) for name in names]
    return pyarrow.RecordBatch.from_arrays(columns, names=list(names))


def without_times(schema: StructType) -> StructType:
    """The columns that come from entries."""
    return StructType([one for one in schema if one.name != TIMESTAMP])
