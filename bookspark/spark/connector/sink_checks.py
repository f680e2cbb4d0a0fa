"""What is checked before a write's first task: that the log can hold the rows, and that there are bookies for it.

Law: what can be refused on the driver's side is refused there, before a row is written. A log that does not exist is created.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StringType, StructType

from bookspark.errors import ConfigurationError, NotEnoughBookiesError
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.rows.encodings import ID_COLUMNS
from bookspark.protocol.logs.log_options import LogOptions, RowFormat
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.process_client import client
from bookspark.spark.rows.row_format import arrow_schema, columns_of


def check_input(schema: StructType, row_format: RowFormat) -> None:
    """Raise ConfigurationError unless a log of that format can hold rows of this schema."""
    if row_format is RowFormat.ARROW:
        _check_columns(schema)
        return
    if schema.names != ["value"]:
        others = ", ".join(repr(name) for name in schema.names if name != "value") or "none"
        raise ConfigurationError(
            f"a log takes one column, 'value' (string or binary); the DataFrame has {schema.names}. Columns that are too many: "
            f"{others}. "
            'Select it first, for example: df.selectExpr("to_json(struct(*)) AS value"); or keep all columns, in a new log with '
            "option rowFormat 'arrow'"
        )
    kind = schema["value"].dataType
    if not isinstance(kind, StringType | BinaryType):
        raise ConfigurationError(
            f"column 'value' is {kind.simpleString()}; a log takes string or binary: cast it first"
        )


def _check_columns(schema: StructType) -> None:
    names = [name.lower() for name in schema.names]
    for name in names:
        if name in ID_COLUMNS:
            raise ConfigurationError(
                f"column {name!r} has the name of a column that reading adds to the rows: rename it first"
            )
        if names.count(name) > 1:
            raise ConfigurationError(f"there are {names.count(name)} columns {name!r}: rename all but one")
    try:
        arrow_schema(schema)
    except PySparkException as error:
        raise ConfigurationError(f"a column has a type that Arrow has not: {error}; cast it first") from error


_counted: set[tuple[int, str, str]] = set()
"""(pid, zookeeper, log) of logs for which the bookies were counted. Once is enough; a query plans each micro-batch anew."""


def prepare(options: SinkOptions, schema: StructType) -> LogRecord:
    """The log's record; the log is created if there is none. Runs on the driver's side, before the first task.

    Raises what keeps the rows from being written: ConfigurationError (the rows are not what the log holds, or an option differs
    from the log's), UnauthorizedAccessError (wrong password), NotEnoughBookiesError, MetadataStoreError.
    """
    log = options.log
    bookkeeper = client(log.zookeeper)
    record = _log_for(LogRegistry(bookkeeper.metadata), options, schema)
    key = os.getpid(), log.zookeeper, log.name
    if key in _counted:
        return record
    bookies = {b.bookie_id for b in bookkeeper.metadata.bookies().values() if not b.read_only}
    # A log that has ledgers can go on with an ack quorum of bookies. A new log needs a whole ensemble for its first ledger.
    needed = record.options.ack_quorum if record.commit_ledgers else record.options.ensemble_size
    if len(bookies) < needed:
        raise NotEnoughBookiesError(
            f"log {log.name!r} needs {needed} writable bookies, and {len(bookies)} are registered at {log.zookeeper}"
            f"{': ' + ', '.join(sorted(bookies)) if bookies else ''}. Start more bookies, or choose smaller quorums "
            "for a new log (options ensembleSize, writeQuorum, ackQuorum)"
        )
    _counted.add(key)
    return record


def _log_for(registry: LogRegistry, options: SinkOptions, schema: StructType) -> LogRecord:
    """The record of the log, which takes rows of this schema. The options of a log that exists are its own."""
    chosen, name, password = dict(options.chosen), options.log.name, options.log.password
    record = registry.find(name)
    if record is None:
        row_format = LogOptions(**chosen).row_format
        check_input(schema, row_format)
        columns = schema.toNullable().json() if row_format is RowFormat.ARROW else ""
        record = registry.ensure(name, chosen, password, columns)
    else:
        registry.check(record, chosen, password)
        check_input(schema, record.options.row_format)
    fixed = columns_of(record.options)
    if fixed is not None and _types(fixed) != _types(schema):
        raise ConfigurationError(
            f"log {name!r} has the columns {fixed.simpleString()} since it was created; the DataFrame has "
            f"{schema.simpleString()}: select the same columns in the same order, cast, or write to another log"
        )
    check_statistics(options.statistics or (), name, record.options)
    return record


def check_statistics(columns: Sequence[str], log: str, options: LogOptions) -> None:
    """Raise ConfigurationError if option ``statistics`` names a column that the log has not."""
    there = columns_of(options)
    for column in columns:
        if there is None or column not in there.names:
            what = f"the columns {', '.join(there.names)}" if there else "one column of values, which has no statistics"
            raise ConfigurationError(f"option statistics names column {column!r}, and log {log!r} has {what}")


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]
