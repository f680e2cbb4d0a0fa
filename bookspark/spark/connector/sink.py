"""The sink of ``format("bookspark")``: rows of a DataFrame become rows of a log, each once.

Law: tasks write entries and return the ranges that are acknowledged. The commit names the ranges, and only that makes them part
of the log. A batch is known by (query id, batch id), which Spark gives again when it replays a micro-batch; a batch write is
known by an id that is made when it is planned. A failed task leaves nothing to undo: no reader ever sees entries that no commit
names, so ``abort`` does nothing.

Where things run (seen on Spark 4.2): a planning worker beside the driver's JVM makes a new writer for each micro-batch and
pickles it. ``write`` runs in the executors' Python workers, which Spark reuses. ``commit`` runs in one more pooled worker beside
the driver's JVM, which has no TaskContext. So the ids come from the task's local properties and travel to ``commit`` in the
messages.

Input: one column ``value``, string or binary, each value an entry as it is (an empty value is kept, null is an error); or, in a
log of row format ``arrow``, any columns, the same in each write. ``logs.row_format`` tells how they become entries.
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
from bookspark.spark.logs.committer import current_committer, release_committer
from bookspark.spark.logs.data_ledgers import DataWriter, current_data_ledger
from bookspark.spark.logs.log_run import LogRun
from bookspark.spark.logs.maintenance import recover_ledgers
from bookspark.spark.logs.registry import LogRegistry
from bookspark.spark.logs.row_format import ID_COLUMNS, RowEncoder, arrow_schema, columns_of
from bookspark.spark.logs.rows import row_encoder
from bookspark.spark.logs.value_rows import train_dictionary
from bookspark.spark.process_client import client

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class RangesWritten(WriterCommitMessage):
    """What one task wrote."""

    query: str
    """The query's id; of a batch write its run's id."""
    batch: int
    """The micro-batch's number; 0 of a batch write."""
    run: str
    """The id of the query's run."""
    epoch: int
    """The epoch in which the run owns the log; 0 if the task had no rows."""
    log_ctime_ms: int
    """When the log was created, in ms since 1970: a log of the same name that is created later is another log."""
    ranges: tuple[EntryRange, ...]
    """The entries, in the order of the task's rows."""


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


BATCH_WRITES_BETWEEN_TENDING = 16
"""Each batch write is an epoch of its own. One of this number of batch writes collects orphans and compacts the log's chain, as
each run of a query does."""

_checked: set[tuple[int, str, str]] = set()
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
    if key in _checked:
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
    _checked.add(key)
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
        record = registry.ensure(name, chosen, password)
        check_input(schema, record.options.row_format)
    fixed = columns_of(record.options)
    if fixed is not None and _types(fixed) != _types(schema):
        raise ConfigurationError(
            f"log {name!r} has the columns {fixed.simpleString()} since it was created; the DataFrame has "
            f"{schema.simpleString()}: select the same columns in the same order, cast, or write to another log"
        )
    return record


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


class LogWriter:
    """The part that streaming and batch writes share."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write_rows(self, batches: Iterator[pyarrow.RecordBatch], query: str, batch: int, run: str) -> RangesWritten:
        """In a task: append all rows. Returns their ranges when each entry is acknowledged. A task without rows does not claim
        the log.

        Raises LogTakenOverError if another run owns the log by now, BookKeeperError for a null value, and the errors of
        appending.
        """
        epoch = ctime_ms = 0
        encoder: RowEncoder | None = None
        for rows in batches:
            if not rows.num_rows:
                continue
            if encoder is None:
                owner, encoder, writer = self._claim(run, rows)
                epoch, ctime_ms = owner.epoch, owner.ctime_ms
            for payloads in encoder.add(rows):
                writer.append(payloads)
        if encoder is None:
            return RangesWritten(query, batch, run, epoch, ctime_ms, ())
        for payloads in encoder.finish():
            writer.append(payloads)
        return RangesWritten(query, batch, run, epoch, ctime_ms, writer.finish())

    def _claim(self, run: str, first_rows: pyarrow.RecordBatch) -> tuple[LogRun, RowEncoder, DataWriter]:
        """Make ``run`` the log's owner. Returns what encodes and takes its rows, of which ``first_rows`` are the first."""
        log = self.options.log
        bookkeeper = client(log.zookeeper)
        registry = LogRegistry(bookkeeper.metadata)
        record = registry.claim(log.name, run)
        if record.options.compression is Compression.ZSTD_DICTIONARY and not record.dictionary:
            dictionary = train_dictionary(first_rows)
            record = registry.update(log.name, lambda newest: newest.with_dictionary(dictionary))
        owner, encoder = LogRun(log, record.ctime_ms, run, record.epoch), row_encoder(record)
        ledger = current_data_ledger(bookkeeper, owner, record.options, self.options.roll, encoder.encoding)
        return owner, encoder, DataWriter(ledger)

    def commit_ranges(self, messages: Sequence[WriterCommitMessage | None]) -> Commit | None:
        """On the driver's side: make the ranges that the tasks wrote part of the log. Returns None if they wrote nothing.

        Raises LogTakenOverError and CheckpointRewoundError: the batch is not in the log. Raises BookKeeperError if the log was
        deleted and created again while the tasks wrote. Any other error (LedgerRecoveryError, NotEnoughBookiesError,
        MetadataStoreError) leaves the outcome open, which a second call with the same messages settles.
        """
        written = [message for message in messages if isinstance(message, RangesWritten) and message.ranges]
        if not written:
            return None
        first = written[0]
        log = self.options.log
        if any(message.log_ctime_ms != first.log_ctime_ms for message in written):
            raise BookKeeperError(
                f"log {log.name!r} was deleted and created again while batch {first.batch} of query {first.query} was written: "
                "rows of the batch are gone, and nothing is committed. Run the write again"
            )
        ranges = merged(item for message in written for item in message.ranges)
        commit = Commit(first.query, first.batch, first.run, first.epoch, ranges, time.time_ns() // 1_000_000)
        owner = LogRun(log, first.log_ctime_ms, first.run, first.epoch)
        committer = current_committer(client(log.zookeeper), owner)
        committer.commit(commit)
        # In a thread, beside the micro-batches that follow: a log may have many commits to look through.
        thoroughly = first.query != first.run or first.epoch % BATCH_WRITES_BETWEEN_TENDING == 0
        threading.Thread(target=committer.tend, args=(thoroughly,), name=f"tend {log.name}", daemon=True).start()
        return commit


class LogStreamWriter(DataSourceStreamArrowWriter, LogWriter):
    """``df.writeStream.format("bookspark")``."""

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """In a task: append the rows of one partition of a micro-batch."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context else None
        run = context.getLocalProperty("spark.jobGroup.id") if context else None
        if not (query and batch and run):
            raise BookKeeperError(
                "Spark did not tell this task its query id, batch id and run id, without which a replay can't be recognised: "
                "use Spark 4.2, which bookspark is built for"
            )
        return self.write_rows(iterator, query, int(batch), run)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver's side: make the micro-batch part of the log, once, however often Spark replays it."""
        self.commit_ranges(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: entries that no commit names are not part of the log."""


class LogBatchWriter(DataSourceArrowWriter, LogWriter):
    """``df.write.format("bookspark").mode("append")``: one commit, all rows or none."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self.run = str(uuid.uuid4())
        """The id of this write."""

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        """In a task: append the rows of one partition."""
        return self.write_rows(iterator, self.run, 0, self.run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver's side: make all rows part of the log, and close the ledgers that they lie in."""
        commit = self.commit_ranges(messages)
        if commit is not None:
            # Nobody writes in this epoch again. So its ledgers are closed here, and no later recovery has to do it.
            log = self.options.log
            release_committer(log)
            ledgers = dict.fromkeys(item.ledger_id for item in commit.ranges)
            recover_ledgers(client(log.zookeeper), ledgers, log.password)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: entries that no commit names are not part of the log."""
