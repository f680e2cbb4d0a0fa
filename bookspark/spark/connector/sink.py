"""The sink of ``format("bookspark")``: rows of a DataFrame become rows of a log, each once.

Law: tasks write entries and return the ranges that are acknowledged; the commit names the ranges, and only that makes
them part of the log. A batch is known by (query id, batch id), which Spark gives again when it replays one; a batch
write by an id made when it is planned. A failed task leaves nothing to undo: ``abort`` does nothing, as no reader ever
sees what no commit names.

Where things run (seen on Spark 4.2): the writer is made anew for each micro-batch in a planning worker beside the
driver's JVM and pickled; ``write`` runs in the executors' Python workers, which are reused; ``commit`` in one more
pooled worker beside the driver's JVM, where there is no TaskContext. So ids come from the task's local properties and
travel to ``commit`` in the messages.

Input: one column ``value``, string or binary, each value an entry as it is (empty ones are kept, null is an error); or, in a log
of row format ``arrow``, any columns, the same in each write. ``logs.rows`` has how they become entries.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from bookspark.errors import BookKeeperError, ConfigurationError, NotEnoughBookiesError
from bookspark.protocol.logs.commits import Commit, EntryRange, merged
from bookspark.protocol.logs.log_record import Compression, LogOptions, LogRecord, RowFormat
from bookspark.spark.connector.connector_options import SinkOptions
from bookspark.spark.logs import (
    DataWriter,
    LogRegistry,
    current_committer,
    current_data_ledger,
    recover_ledgers,
    release_committer,
)
from bookspark.spark.logs.rows import (
    ID_COLUMNS,
    RowEncoder,
    arrow_schema,
    columns_of,
    row_encoder,
    train_dictionary,
)
from bookspark.spark.process_client import client

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class RangesWritten(WriterCommitMessage):
    """What one task wrote, for whom."""

    query: str
    batch: int
    run: str
    epoch: int
    made: int
    """When the log was made, in ms: one of the same name that is made later is another log."""
    ranges: tuple[EntryRange, ...]


def check_input(schema: StructType, row_format: RowFormat) -> None:
    """Raise a ConfigurationError unless the rows are what a log of that format holds."""
    if row_format is RowFormat.ARROW:
        _check_columns(schema)
        return
    if schema.names != ["value"]:
        others = ", ".join(repr(name) for name in schema.names if name != "value") or "none"
        raise ConfigurationError(
            f"a log takes one column, 'value' (string or binary); the DataFrame has {schema.names}. Besides 'value' that "
            f"is: {others}. "
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
                f"column {name!r} has the name of one that reading adds to the rows: rename it first"
            )
        if names.count(name) > 1:
            raise ConfigurationError(f"column {name!r} is there {names.count(name)} times: rename all but one")
    try:
        arrow_schema(schema)
    except PySparkException as error:
        raise ConfigurationError(f"a column has a type that Arrow has not: {error}; cast it first") from error


BATCH_WRITES_BETWEEN_TENDING = 16
"""Each is an epoch of its own; every so many of them one collects orphans and compacts the log's chain, as each query does."""

_checked: set[tuple[int, str, str]] = set()
"""(pid, zookeeper, log) of writes whose bookies were counted: once is enough, and a query plans each micro-batch anew."""


def prepare(options: SinkOptions, schema: StructType) -> LogRecord:
    """The log, made if there is none; every reason why nothing could be written is an error here, on the driver."""
    bookkeeper = client(options.zookeeper)
    record = _log_for(LogRegistry(bookkeeper.metadata), options, schema)
    key = os.getpid(), options.zookeeper, options.log
    if key in _checked:
        return record
    bookies = {b.bookie_id for b in bookkeeper.metadata.bookies().values() if not b.read_only}
    # A log that is being written can go on with an ack quorum; a new one needs a whole ensemble for its first ledger.
    needed = record.options.ack_quorum if record.commit_ledgers else record.options.ensemble_size
    if len(bookies) < needed:
        raise NotEnoughBookiesError(
            f"log {options.log!r} needs {needed} writable bookies, and {len(bookies)} are registered at {options.zookeeper}"
            f"{': ' + ', '.join(sorted(bookies)) if bookies else ''}. Start more bookies, or choose smaller quorums "
            "for a new log (options ensembleSize, writeQuorum, ackQuorum)"
        )
    _checked.add(key)
    return record


def _log_for(registry: LogRegistry, options: SinkOptions, schema: StructType) -> LogRecord:
    """The log, which takes rows of this schema. One that is there says itself what it takes."""
    chosen = dict(options.chosen)
    record = registry.find(options.log)
    if record is None:
        row_format = LogOptions(**chosen).row_format
        check_input(schema, row_format)
        columns = schema.toNullable().json() if row_format is RowFormat.ARROW else ""
        record = registry.ensure(options.log, chosen, options.password, columns)
    else:
        record = registry.ensure(options.log, chosen, options.password)
        check_input(schema, record.options.row_format)
    fixed = columns_of(record.options)
    if fixed is not None and _types(fixed) != _types(schema):
        raise ConfigurationError(
            f"log {options.log!r} has the columns {fixed.simpleString()}, fixed when it was made; the DataFrame has "
            f"{schema.simpleString()}: select the same columns in the same order, cast, or write to another log"
        )
    return record


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


class LogWriter:
    """What streaming and batch writes have in common."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write_rows(self, batches: Iterator[pyarrow.RecordBatch], query: str, batch: int, run: str) -> RangesWritten:
        """In a task: append all rows, return once each is acknowledged. A task without rows does not claim the log."""
        epoch = made = 0
        encoder: RowEncoder | None = None
        for rows in batches:
            if not rows.num_rows:
                continue
            if encoder is None:
                record, encoder, writer = self._claim(run, rows)
                epoch, made = record.epoch, record.ctime_ms
            for payloads in encoder.add(rows):
                writer.append(payloads)
        if encoder is None:
            return RangesWritten(query, batch, run, epoch, made, ())
        for payloads in encoder.finish():
            writer.append(payloads)
        return RangesWritten(query, batch, run, epoch, made, writer.finish())

    def _claim(self, run: str, first_rows: pyarrow.RecordBatch) -> tuple[LogRecord, RowEncoder, DataWriter]:
        options = self.options
        bookkeeper = client(options.zookeeper)
        registry = LogRegistry(bookkeeper.metadata)
        record = registry.claim(options.log, run)
        if record.options.compression is Compression.ZSTD_DICTIONARY and not record.dictionary:
            dictionary = train_dictionary(first_rows)
            record = registry.update(options.log, lambda newest: newest.with_dictionary(dictionary))
        encoder = row_encoder(record)
        ledger = current_data_ledger(
            bookkeeper,
            options.zookeeper,
            options.log,
            record.ctime_ms,
            run,
            record.epoch,
            record.options,
            options.password,
            options.roll,
            encoder.encoding,
        )
        return record, encoder, DataWriter(ledger)

    def commit_ranges(self, messages: Sequence[WriterCommitMessage | None]) -> Commit | None:
        """On the driver's side: make what the tasks wrote part of the log. None if they wrote nothing."""
        written = [message for message in messages if isinstance(message, RangesWritten) and message.ranges]
        if not written:
            return None
        first = written[0]
        if any(message.made != first.made for message in written):
            raise BookKeeperError(
                f"log {self.options.log!r} was deleted and made anew while batch {first.batch} of query {first.query} was "
                "written: rows of it are gone, and nothing is committed. Run the write again"
            )
        ranges = merged(item for message in written for item in message.ranges)
        commit = Commit(first.query, first.batch, first.run, first.epoch, ranges, time.time_ns() // 1_000_000)
        options = self.options
        bookkeeper = client(options.zookeeper)
        writer = current_committer(
            bookkeeper, options.zookeeper, options.log, first.made, commit.run, commit.epoch, options.password
        )
        writer.commit(commit)
        # Beside the micro-batches that follow: a log may have many commits to be looked through.
        thoroughly = first.query != first.run or first.epoch % BATCH_WRITES_BETWEEN_TENDING == 0
        threading.Thread(target=writer.tend, args=(thoroughly,), name=f"tend {options.log}", daemon=True).start()
        return commit


class LogStreamWriter(DataSourceStreamArrowWriter, LogWriter):
    """``df.writeStream.format("bookspark")``."""

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        run = context.getLocalProperty("spark.jobGroup.id") if context else None
        if not (query and batch and run):
            raise BookKeeperError(
                "Spark did not tell this task its query id, batch id and run id, without which a replay can't be told: "
                "bookspark is built for Spark 4.2"
            )
        return self.write_rows(iterator, query, int(batch), run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.commit_ranges(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what no commit names is not part of the log."""


class LogBatchWriter(DataSourceArrowWriter, LogWriter):
    """``df.write.format("bookspark").mode("append")``: one commit, all rows or none."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self.run = str(uuid.uuid4())

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return self.write_rows(iterator, self.run, 0, self.run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit = self.commit_ranges(messages)
        if commit is not None:
            # Nobody writes in this epoch again, so its ledgers are closed here instead of being left to a later
            # recovery.
            release_committer(self.options.zookeeper, self.options.log)
            ledgers = dict.fromkeys(item.ledger_id for item in commit.ranges)
            recover_ledgers(client(self.options.zookeeper), ledgers, self.options.password)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: what no commit names is not part of the log."""
