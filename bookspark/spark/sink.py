"""The sink of ``format("bookspark")``: rows of a DataFrame become entries of a log, each once.

Law: tasks write entries and return the ranges that are acknowledged; the commit names the ranges, and only that makes
them part of the log. A batch is known by (query id, batch id), which Spark gives again when it replays one; a batch
write by an id made when it is planned. A failed task leaves nothing to undo: ``abort`` does nothing, as no reader ever
sees what no commit names.

Where things run (seen on Spark 4.2): the writer is made anew for each micro-batch in a planning worker beside the
driver's JVM and pickled; ``write`` runs in the executors' Python workers, which are reused; ``commit`` in one more
pooled worker beside the driver's JVM, where there is no TaskContext. So ids come from the task's local properties and
travel to ``commit`` in the messages.

Input: one column ``value``, string or binary. Arrow arrays go to the ledger as they are. Empty values are kept; null is
an error.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from bookspark.protocol.errors import BookKeeperError, ConfigurationError, NotEnoughBookiesError
from bookspark.protocol.log_record import Commit, EntryRange, LogRecord, merged
from bookspark.spark.clients import client
from bookspark.spark.logs import (
    DataWriter,
    LogRegistry,
    current_committer,
    current_data_ledger,
    recover_ledgers,
    release_committer,
)
from bookspark.spark.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class RangesWritten(WriterCommitMessage):
    """What one task wrote, for whom."""

    query: str
    batch: int
    run: str
    epoch: int
    ranges: tuple[EntryRange, ...]


def check_input(schema: StructType) -> None:
    """Raise a ConfigurationError unless the rows are what a log holds: one column ``value``, string or binary."""
    if schema.names != ["value"]:
        others = ", ".join(repr(name) for name in schema.names if name != "value") or "none"
        raise ConfigurationError(
            f"a log takes one column, 'value' (string or binary); the DataFrame has {schema.names}. Besides 'value' that "
            f"is: {others}. "
            'Select it first, for example: df.selectExpr("to_json(struct(*)) AS value")'
        )
    kind = schema["value"].dataType
    if not isinstance(kind, StringType | BinaryType):
        raise ConfigurationError(
            f"column 'value' is {kind.simpleString()}; a log takes string or binary: cast it first"
        )


_checked: set[tuple[int, str, str]] = set()
"""(pid, zookeeper, log) of writes whose bookies were counted: once is enough, and a query plans each micro-batch anew."""


def prepare(options: SinkOptions) -> LogRecord:
    """The log, made if there is none; every reason why nothing could be written is an error here, on the driver."""
    bookkeeper = client(options.zookeeper)
    record = LogRegistry(bookkeeper.metadata).ensure(options.log, dict(options.chosen), options.password)
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


class LogWriter:
    """What streaming and batch writes have in common."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write_rows(self, batches: Iterator[pyarrow.RecordBatch], query: str, batch: int, run: str) -> RangesWritten:
        """In a task: append all rows, return once each is acknowledged. A task without rows does not claim the log."""
        epoch, row = 0, 0
        writer: DataWriter | None = None
        for rows in batches:
            if not rows.num_rows:
                continue
            if writer is None:
                epoch, writer = self._claim(run)
            writer.append(_values(rows, row))
            row += rows.num_rows
        return RangesWritten(query, batch, run, epoch, writer.finish() if writer else ())

    def _claim(self, run: str) -> tuple[int, DataWriter]:
        options = self.options
        bookkeeper = client(options.zookeeper)
        record = LogRegistry(bookkeeper.metadata).claim(options.log, run)
        ledger = current_data_ledger(
            bookkeeper,
            options.zookeeper,
            options.log,
            run,
            record.epoch,
            record.options,
            options.password,
            options.roll,
        )
        return record.epoch, DataWriter(ledger)

    def commit_ranges(self, messages: Sequence[WriterCommitMessage | None]) -> Commit | None:
        """On the driver's side: make what the tasks wrote part of the log. None if they wrote nothing."""
        written = [message for message in messages if isinstance(message, RangesWritten) and message.ranges]
        if not written:
            return None
        first = written[0]
        ranges = merged(item for message in written for item in message.ranges)
        commit = Commit(first.query, first.batch, first.run, first.epoch, ranges, time.time_ns() // 1_000_000)
        options = self.options
        bookkeeper = client(options.zookeeper)
        writer = current_committer(
            bookkeeper, options.zookeeper, options.log, commit.run, commit.epoch, options.password
        )
        writer.commit(commit)
        recover_ledgers(bookkeeper, writer.take_left_open(), options.password)
        return commit


def _values(rows: pyarrow.RecordBatch, first_row: int) -> pyarrow.Array:
    """Column ``value`` as an Arrow binary array, not copied."""
    import pyarrow

    values = rows.column("value")
    if values.null_count:
        row = first_row + values.is_null().index(True).as_py()
        raise BookKeeperError(
            f"column 'value' is null in row {row} of partition {_partition()}; an entry can be empty but not null: "
            "filter such rows out, or use coalesce(value, '')"
        )
    kind = values.type
    if pyarrow.types.is_large_string(kind) or pyarrow.types.is_large_binary(kind):
        return values.cast(pyarrow.large_binary()).cast(pyarrow.binary())
    return values.cast(pyarrow.binary())


def _partition() -> int | str:
    context = TaskContext.get()
    return context.partitionId() if context else "?"


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
