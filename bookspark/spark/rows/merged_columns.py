"""The columns of several logs that are read together.

Law: a name is of one type in all logs; a column never means two things. All logs have the same columns, or ``merge`` is said:
then a log may lack some, in whatever order. All are nullable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StringType, StructField, StructType

from bookspark.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow

LOG = "log"
"""The column that names the log of a row."""
_LOG_FIELD = StructField(LOG, StringType(), True, {"comment": "The log that the row is of"})


def merged_columns(schemas: Mapping[str, StructType], at_the_end: int, merge: bool) -> StructType:
    """The columns of all logs, those of the first one first, and LOG. ``schemas``: of at least one log, by name; the last
    ``at_the_end`` columns of each are what every log has, and come behind the others.

    Raises ConfigurationError if they do not fit together."""
    origin: dict[str, str] = {}
    known: dict[str, StructField] = {}
    first = next(iter(schemas))
    for log, schema in schemas.items():
        _check_no_log_column(log, schema)
        for field in schema.fields[:-at_the_end]:
            if field.name in known:
                _check_type(field.name, origin[field.name], known[field.name], log, field)
            elif log != first and not merge:
                raise _lacks(first, log, field.name)
            else:
                origin[field.name] = log
                known[field.name] = StructField(field.name, field.dataType, True, field.metadata)
        for name in known:
            if name not in schema.names and not merge:
                raise _lacks(log, first, name)
    tail = schemas[first].fields[-at_the_end:]
    for field in tail:
        if field.name in known:
            raise ConfigurationError(
                f"log {origin[field.name]!r} has a column {field.name!r} of its own, which would mean two things here"
            )
    return StructType([*known.values(), *tail, _LOG_FIELD])


def check_fits(log: str, schema: StructType, known: StructType, merge: bool) -> None:
    """Raise ConfigurationError if a log that was found later does not fit to ``known``, the columns of a read."""
    _check_no_log_column(log, schema)
    for field in schema:
        if field.name not in known.names:
            raise ConfigurationError(
                f"log {log!r} was made since this query was started, and has a column {field.name!r} that the query has not: "
                "start the query again with option mergeSchema, or read the log alone"
            )
        _check_type(field.name, "", known[field.name], log, field)
    for name in known.names:
        if name != LOG and name not in schema.names and not merge:
            raise _lacks(log, "", name)


def with_all_columns(rows: pyarrow.RecordBatch, columns: pyarrow.Schema, log: str) -> pyarrow.RecordBatch:
    """``rows`` of ``log`` with these columns: those that it lacks are null, and LOG is its name."""
    import pyarrow

    found = []
    for field in columns:
        if field.name == LOG:
            found.append(pyarrow.repeat(pyarrow.scalar(log, field.type), rows.num_rows))
        elif field.name in rows.schema.names:
            found.append(rows.column(field.name))
        else:
            found.append(pyarrow.nulls(rows.num_rows, field.type))
    return pyarrow.RecordBatch.from_arrays(found, names=columns.names)


def _check_no_log_column(log: str, schema: StructType) -> None:
    if any(name.lower() == LOG for name in schema.names):
        raise ConfigurationError(
            f"log {log!r} has a column {LOG!r} of its own, and a read of several logs would add another one: read it alone"
        )


def _check_type(column: str, one: str, field: StructField, other: str, another: StructField) -> None:
    if field.dataType != another.dataType:
        types = field.dataType.simpleString(), another.dataType.simpleString()
        raise ConfigurationError(
            f"column {column!r} is of type {types[0]} in {_named(one)}, and of type {types[1]} in log {other!r}: they can't be "
            "read together"
        )


def _lacks(log: str, other: str, column: str) -> ConfigurationError:
    return ConfigurationError(
        f"log {log!r} has no column {column!r}, and {_named(other)} has: with option mergeSchema it is null in its rows"
    )


def _named(log: str) -> str:
    return f"log {log!r}" if log else "the logs that this query reads"
