"""The columns of a log of Arrow rows, as Spark's and as Arrow's schema. The log's record has Spark's, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bookspark.protocol.logs.log_options import LogOptions, RowFormat

if TYPE_CHECKING:
    import pyarrow


def columns_of(options: LogOptions) -> StructType | None:
    """The columns of a log of Arrow rows; None for a log of values."""
    return StructType.fromJson(json.loads(options.columns)) if options.row_format is RowFormat.ARROW else None


def arrow_schema(columns: StructType) -> pyarrow.Schema:
    """The columns in Arrow, as in Spark's Python side: times are in UTC."""
    return to_arrow_schema(columns, timezone="UTC")
