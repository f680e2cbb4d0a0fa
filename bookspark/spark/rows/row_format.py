"""The columns of a log of Arrow rows, as Spark's and as Arrow's schema. The log's record has Spark's, as JSON.

Law: a log's columns are names, types and comments. Spark and Delta keep settings of their own in a field's metadata (CHAR's
padding in comparisons, the delay of a watermark, defaults, column mapping), and obey them wherever the schema goes next: a read
of the log would then compare, drop or fill rows otherwise than its columns say. So a field's metadata keeps ``comment`` alone:
Spark may add keys at any time. CHAR(n) and VARCHAR(n) are STRING, with the values that Spark hands over: those of CHAR(n) are
padded.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, CharType, DataType, MapType, StringType, StructField, StructType, VarcharType

from bookspark.protocol.logs.log_options import LogOptions, RowFormat

if TYPE_CHECKING:
    import pyarrow


def as_columns(schema: StructType) -> StructType:
    """The columns of a log for rows of this schema; all are nullable."""
    columns = StructType()
    for field in schema:
        comment = {key: text for key, text in (field.metadata or {}).items() if key == "comment"}
        columns.add(StructField(field.name, _plain(field.dataType), True, comment))
    return columns


def _plain(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return as_columns(kind)
        case ArrayType():
            return ArrayType(_plain(kind.elementType), True)
        case MapType():
            return MapType(_plain(kind.keyType), _plain(kind.valueType), True)
        case CharType() | VarcharType():
            return StringType()
    return kind


def columns_of(options: LogOptions) -> StructType | None:
    """The columns of a log of Arrow rows; None for a log of values."""
    return StructType.fromJson(json.loads(options.columns)) if options.row_format is RowFormat.ARROW else None


def arrow_schema(columns: StructType) -> pyarrow.Schema:
    """The columns in Arrow, as in Spark's Python side: times are in UTC."""
    return to_arrow_schema(columns, timezone="UTC")
