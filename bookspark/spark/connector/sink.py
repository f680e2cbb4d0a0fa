"""The sink of ``format("bookspark")``: each row of a DataFrame becomes a row of a log once.

Law: tasks write entries and return the acknowledged ranges; only the commit that names the ranges makes them part of the log. A
batch is identified by (query id, batch id), which Spark repeats in a replay, and by its fingerprint (``Fingerprint``); a batch
write by an id made when it is planned. A failed task leaves nothing to undo: no reader ever sees entries that no commit names.

Each query writes its own lane, and batch writes share a lane (``logs.chain.lane_choice``). So no writer ends another or waits for
it; only batch writes wait for each other. The log is the one of the plan, by its id. The lane and the epoch of a batch write are
decided in its plan too; those of a query's run, whose id no plan knows, by its claim in the metadata store, which it makes once.
Both travel in the tasks' messages, and a commit whose messages or ledgers differ in them is refused before it is written.

A query without the right to write disturbs no other. A run looks at its lane's commits before it claims the lane. A batch whose
number is in the lane is only compared with it, and a query new to the log is refused if its checkpoint has another query's place;
neither becomes the owner. So a Spark checkpoint that was restored, deleted or mixed up ends its own query, not the running query.

Processes (seen on Spark 4.2): a planning worker beside the driver's JVM makes a new writer for each micro-batch and pickles it.
``write`` runs in the executors' reused Python workers. ``commit`` runs in another worker beside the driver's JVM, without a
TaskContext, so the ids travel from the tasks' local properties in the messages.

Input: one column ``value``, string or binary, each value an entry as it is (an empty value is kept, null is an error); or, in a
log of row format ``arrow``, any columns, the same in each write. ``logs.rows.encodings`` describes the entries.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from bookspark.errors import BookKeeperError, ConfigurationError, NotEnoughBookiesError
from bookspark.logs.chain.commit_ledgers import newest_header
from bookspark.logs.chain.committer import Committer, current_committer
from bookspark.logs.chain.lane_choice import (
    StreamingQuery,
    begun_batch_write,
    claimed,
    end_batch_write,
    has_version,
    known_lane,
    lane_for_query,
    note_writer,
)
from bookspark.logs.chain.log_run import LogRun
from bookspark.logs.chain.maintenance import recover_ledgers
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.rows.data_ledgers import DataWriter, current_data_ledger
from bookspark.logs.rows.encodings import ID_COLUMNS
from bookspark.logs.rows.statistics import joined
from bookspark.logs.rows.value_rows import train_dictionary
from bookspark.protocol.logs.commits import TXN, Commit, CommitHeader, EntryRange, Fingerprint, merged
from bookspark.protocol.logs.lanes import LaneId, lane_id
from bookspark.protocol.logs.log_options import Compression, LogOptions, RowFormat
from bookspark.protocol.logs.log_record import LogChangedError, LogRecord
from bookspark.protocol.logs.replays import Batch, is_committed
from bookspark.spark.connector.checkpoint import Plan, SparkCheckpoint, UnreadCheckpointError
from bookspark.spark.connector.worker_ends import ends_in_order
from bookspark.spark.idle_closing import idle_closer
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.process_client import client
from bookspark.spark.rows.row_format import arrow_schema, as_columns, columns_of
from bookspark.spark.rows.rows import row_encoder
from bookspark.store.decisions.seam import decided
from bookspark.support.hadoop_paths import plain_place

if TYPE_CHECKING:
    import numpy
    import pyarrow

    from bookspark.store.client import BookKeeper


log = logging.getLogger(__name__)


# -- Fingerprints: Spark's plan of a micro-batch, and a sum over its rows
#
# Law: a sum depends on the rows and their number alone, not on their order, partitions or Arrow batches. It is the sum modulo
# 2^64 of a hash of each row, and a row's hash is one of its values in the order of their columns. It need not resist forgery: a
# checkpoint that was set back brings unrelated rows.
#
# Spark writes the plan of a micro-batch to its checkpoint before it runs the batch, and a replay runs that plan. A sink gets no
# plan, so the file is read at the commit, beside the driver (``connector.checkpoint``). The offset of a source of files is a
# number without names, so the list of its files enters the digest of the offsets.


SUMS = 1 << 64
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
_WORD_BITS = 64


def sum_of(rows: pyarrow.RecordBatch) -> int:
    """The sum over the rows, below SUMS. Sums of several batches add up, modulo SUMS."""
    return int(_joined(rows.columns, rows.num_rows).sum())


def _joined(columns: Sequence[pyarrow.Array], rows: int) -> numpy.ndarray[Any, Any]:
    """A hash of each row. Each column has a factor, so that swapped columns change the hashes."""
    import numpy

    sums = numpy.zeros(rows, numpy.uint64)
    for place, column in enumerate(columns):
        sums += _hashes(column) * numpy.uint64((place * 2 + 1) * _GOLDEN % SUMS)
    return _mixed(sums)


def _hashes(column: pyarrow.Array) -> numpy.ndarray[Any, Any]:
    """A hash of each value."""
    import numpy
    import pyarrow.types as types

    kind, nulls = column.type, column.null_count
    if nulls == len(column):
        return numpy.zeros(len(column), numpy.uint64)
    if types.is_struct(kind):
        hashes = _joined(column.flatten(), len(column))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        hashes = _of_lists(column)
    elif types.is_boolean(kind):
        hashes = _mixed(column.cast("int8").fill_null(0).to_numpy(zero_copy_only=False))
    elif types.is_primitive(kind) and kind.bit_width <= _WORD_BITS:
        # The bits of numbers and times.
        hashes = _mixed(column.view(f"int{kind.bit_width}").fill_null(0).to_numpy(zero_copy_only=False))
    else:
        values = _bytes_of(column).to_pylist()
        there = (0 if value is None else crc32(value) for value in values) if nulls else map(crc32, values)
        hashes = _mixed(numpy.fromiter(there, numpy.uint64, len(values)))
    if nulls:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _of_lists(lists: pyarrow.Array) -> numpy.ndarray[Any, Any]:
    """A hash of each list, over its values and their places in it."""
    import numpy

    ends = lists.offsets.to_numpy().astype(numpy.int64)
    lengths, ends = numpy.diff(ends), ends - ends[0]
    values = _hashes(lists.values.slice(lists.offsets[0].as_py(), int(ends[-1])))
    places = numpy.arange(len(values)) - numpy.repeat(ends[:-1], lengths)
    sums = numpy.zeros(len(values) + 1, numpy.uint64)
    numpy.cumsum(_mixed(values + _mixed(places)), out=sums[1:])
    return _mixed(numpy.diff(sums[ends]) + _mixed(lengths))


def _bytes_of(column: pyarrow.Array) -> pyarrow.Array:
    import pyarrow
    import pyarrow.types as types

    if types.is_decimal(column.type):
        return column.view(pyarrow.binary(column.type.byte_width))
    if types.is_large_string(column.type):
        return column.cast(pyarrow.large_binary())
    return column.cast(pyarrow.binary()) if types.is_string(column.type) else column


def _mixed(values: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """The hash of each word, by its bits (splitmix64)."""
    import numpy

    words = numpy.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(numpy.uint64)
    words = words + numpy.uint64(_GOLDEN)
    words = (words ^ (words >> numpy.uint64(30))) * numpy.uint64(_FIRST)
    words = (words ^ (words >> numpy.uint64(27))) * numpy.uint64(_SECOND)
    return words ^ (words >> numpy.uint64(31))


class Summed:
    """Passes Arrow batches on, and counts and sums up their rows."""

    def __init__(self, batches: Iterator[pyarrow.RecordBatch]) -> None:
        self._batches = batches
        self.rows = self.values = 0

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        for some in self._batches:
            self.rows += some.num_rows
            self.values = (self.values + sum_of(some)) % SUMS
            yield some


# -- Checks before a write's first task: the log can hold the rows, and has enough bookies
#
# Law: all possible refusals happen on the driver's side, before a row is written. A missing log is created.


def check_input(schema: StructType, row_format: RowFormat) -> None:
    """Raise ConfigurationError unless a log of that format can hold rows of this schema."""
    if row_format is RowFormat.ARROW:
        _check_columns(schema)
        return
    if [name.lower() for name in schema.names] != ["value"]:
        others = ", ".join(repr(name) for name in schema.names if name.lower() != "value") or "none"
        raise ConfigurationError(
            f"a log takes one column, 'value' (string or binary); the DataFrame has {schema.names}. Columns that are too many: "
            f"{others}. "
            'Select it first, for example: df.selectExpr("to_json(struct(*)) AS value"); or keep all columns, in a new log with '
            "option rowFormat 'arrow'"
        )
    kind = schema[0].dataType
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


_counted: set[tuple[int, str, int]] = set()
"""(pid, zookeeper, log's id) of logs with counted bookies: once, although a query plans each micro-batch anew."""


def prepare(options: SinkOptions, schema: StructType) -> LogRecord:
    """The log's record; a missing log is created. Runs on the driver's side, before the first task.

    Raises the reasons against the write: ConfigurationError (the rows do not suit the log, or an option differs from the log's),
    UnauthorizedAccessError (wrong password), NotEnoughBookiesError, MetadataStoreError.
    """
    log = options.log
    bookkeeper = client(log.zookeeper)
    record = _log_for(LogRegistry(bookkeeper.metadata), options, schema)
    key = os.getpid(), log.zookeeper, record.log_id
    if key in _counted:
        return record
    bookies = {b.bookie_id for b in bookkeeper.metadata.bookies().values() if not b.read_only}
    # An open ledger can go on with an ack quorum of bookies.
    needed = record.options.ack_quorum if record.commit_ledgers else record.options.bookies_min
    if len(bookies) < needed:
        raise NotEnoughBookiesError(
            f"log {log.name!r} needs {needed} writable bookies, and {len(bookies)} are registered at {log.zookeeper}"
            f"{': ' + ', '.join(sorted(bookies)) if bookies else ''}. Start more bookies, or choose smaller quorums "
            "for a new log (options ensembleSize, writeQuorum, ackQuorum)"
        )
    _counted.add(key)
    return record


def _log_for(registry: LogRegistry, options: SinkOptions, schema: StructType) -> LogRecord:
    """The record of the log, which takes rows of this schema. An existing log keeps its own options."""
    chosen, name, password = dict(options.chosen), options.log.name, options.log.password
    record, schema = registry.find(name), as_columns(schema)
    if record is None:
        row_format = LogOptions(**chosen).row_format
        check_input(schema, row_format)
        columns = schema.json() if row_format is RowFormat.ARROW else ""
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
    """Raise ConfigurationError if option ``statistics`` names a column that the log lacks."""
    there = columns_of(options)
    for column in columns:
        if there is None or column not in there.names:
            what = f"the columns {', '.join(there.names)}" if there else "one column of values, which has no statistics"
            raise ConfigurationError(f"option statistics names column {column!r}, and log {log!r} has {what}")


def _types(schema: StructType) -> list[tuple[str, str]]:
    """Names and types of columns. Names are equal in any case, as in Spark's analysis."""
    return [(field.name.lower(), field.dataType.simpleString()) for field in schema]


# -- The writers


@dataclass(frozen=True)
class RangesWritten(WriterCommitMessage):
    query: str
    """Id of the query; for a batch write, TXN and its ``txnAppId``, else its run's id."""
    batch: int
    """Number of the micro-batch; for a batch write, its ``txnVersion``, else 0."""
    run: str
    lane: LaneId | None = None
    """The lane that the task wrote to; None if it wrote no rows."""
    epoch: int = 0
    """The epoch in which the run writes to the log; 0 if the task wrote no rows."""
    ranges: tuple[EntryRange, ...] = ()
    """In the order of the task's rows."""
    statistics: str = ""
    rows: int = 0
    values: int = 0
    """The sum over the rows (``sum_of``); 0 for a batch write without a version."""
    only_compared: bool = False
    """True: the lane had a batch or version of this number, so the task has written no rows."""
    checkpoint: str = ""
    """Location of the query's Spark checkpoint; empty if Spark does not give it."""


BATCH_WRITES_BETWEEN_TENDING = 16
"""Each batch write is its own epoch. One out of this many collects orphans and compacts the log's chain, as each run of a query
does."""


class LogWriter:
    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @property
    def bookkeeper(self) -> BookKeeper:
        return client(self.options.log.zookeeper)

    def write_rows(
        self, rows: Iterator[pyarrow.RecordBatch], run: LogRun, record: LogRecord, result: RangesWritten
    ) -> RangesWritten:
        """In a task: append all rows, of which there is one or more. Returns ``result`` with their ranges when each entry is
        acknowledged.

        Raises BookKeeperError for a null value; LedgerFencedError, LedgerClosedError or AddTimeoutError if entries could not be
        written to a new ledger either; NotEnoughBookiesError and MetadataStoreError if there was no new ledger.
        """
        first = next(rows)
        if record.options.compression is Compression.ZSTD_DICTIONARY and not record.dictionary:
            dictionary, registry = train_dictionary(first), LogRegistry(self.bookkeeper.metadata)
            lane = lane_id(record)
            record = registry.update(lane, lambda newest: decided(LogRecord.with_dictionary, newest, dictionary))
        encoder = row_encoder(record, self.options.statistics)
        ledger = current_data_ledger(self.bookkeeper, run, record.options, self.options.roll, encoder.encoding)
        with idle_closer().in_use(ledger):
            writer = DataWriter(ledger)
            for some in chain([first], rows):
                for payloads in encoder.add(some):
                    writer.append(payloads)
            for payloads in encoder.finish():
                writer.append(payloads)
            ranges = writer.finish()
        statistics = encoder.statistics(sum(item.size for item in ranges))
        return replace(result, lane=run.lane, epoch=run.epoch, ranges=ranges, statistics=statistics)

    def commit_of(
        self, written: Sequence[RangesWritten], now_ms: int, fingerprint: Fingerprint | None = None
    ) -> tuple[LogRun, Commit]:
        """The commit of the tasks' ranges, and its writer. Raises BookKeeperError if the tasks wrote to several lanes, or in
        several epochs."""
        first, log = written[0], self.options.log
        places = {(message.lane, message.epoch) for message in written}
        if len(places) > 1:
            told = ", ".join(
                f"{lane} (log {lane.log}) in epoch {epoch}" for lane, epoch in sorted(places) if lane is not None
            )
            raise BookKeeperError(
                f"batch {first.batch} of query {first.query} is not committed: its tasks wrote to different places, {told}. Run "
                "the write again"
            )
        assert first.lane is not None, "a task with ranges has a lane"
        ranges = merged(item for message in written for item in message.ranges)
        parts = [(message.statistics, sum(item.rows for item in message.ranges)) for message in written]
        told = joined(parts, sum(item.size for item in ranges))
        commit = Commit(
            first.query, first.batch, first.run, first.epoch, ranges, now_ms, fingerprint=fingerprint, statistics=told
        )
        return LogRun(log, first.lane, first.run, first.epoch), commit


def _with_rows(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch] | None:
    """The Arrow batches with rows; None if there are none."""
    there = (rows for rows in batches if rows.num_rows)
    first = next(there, None)
    return None if first is None else chain([first], there)


_checked_runs: set[tuple[int, str, int, str]] = set()
"""(pid, zookeeper, log's id, run) of runs that had a new batch: all later batches of the run are new too."""
_committed_runs: set[tuple[int, str, int, str]] = set()
"""The same for runs that have committed a batch: while such a run owns the log, no other process commits batches of its query
there."""


_read_checkpoints: set[tuple[int, str, str]] = set()
"""(pid, log's name, place) of Spark checkpoints that could be read when a micro-batch was planned."""


@ends_in_order
class LogStreamWriter(DataSourceStreamArrowWriter, LogWriter):
    """``df.writeStream.format("bookspark")``. ``planned``: the log's record at the planning of the micro-batch."""

    def __init__(self, options: SinkOptions, planned: LogRecord) -> None:
        """Raises UnreadCheckpointError."""
        super().__init__(options)
        self._planned, self._log = planned, lane_id(planned)
        # Without the option, Spark tells the place only to the tasks.
        self._place = plain_place(options.checkpoint)
        self._known_as = self._place
        if options.compare_checkpoint and self._place:
            key, checkpoint = (os.getpid(), options.log.name, self._place), self._spark_checkpoint(self._place)
            if key not in _read_checkpoints:
                checkpoint.check()
                _read_checkpoints.add(key)
            self._known_as = checkpoint.known_as([planned.checkpoint, *(lane.checkpoint for lane in planned.lanes)])

    def _spark_checkpoint(self, place: str) -> SparkCheckpoint:
        return SparkCheckpoint(place, self.options.log.name, self.options.checkpoint_url)

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
        told = RangesWritten(query, int(batch), run, checkpoint=self._checkpoint(context))
        batches = _with_rows(iterator)
        if batches is None:
            return told
        record, summed = self._enter(told), Summed(batches)
        if record is None:
            deque(summed, maxlen=0)
            return replace(told, rows=summed.rows, values=summed.values, only_compared=True)
        written = self.write_rows(iter(summed), LogRun.of(self.options.log, record), record, told)
        return replace(written, rows=summed.rows, values=summed.values)

    def _checkpoint(self, context: TaskContext) -> str:
        """Location of the query's Spark checkpoint: from the option, else from the session's setting and the query's name."""
        options = self.options
        if self._place:
            return self._place
        root = context.getLocalProperty("spark.sql.streaming.checkpointLocation")
        return plain_place(f"{root.rstrip('/')}/{options.query_name}") if root and options.query_name else ""

    def _enter(self, message: RangesWritten) -> LogRecord | None:
        """Make the run the owner of its query's lane, if its batch is new. None if the lane has a batch of this number.

        Raises CheckpointRewoundError if the lane has a later batch of the query, AnotherQueryError if another query followed this
        one, LogTakenOverError if another run owns the lane by now, UnauthorizedAccessError (wrong password), and the errors of an
        unreadable lane.
        """
        password, bookkeeper = self.options.log.password, self.bookkeeper
        query = StreamingQuery(message.query, self.options.follows, self._known_as or message.checkpoint)
        if self._planned.owner == message.run:
            # A takeover of the lane after the plan fences the commit, as it would after a read here.
            return self._planned
        while True:
            lane = lane_for_query(bookkeeper, self._log, password, query)
            record = LogRegistry(bookkeeper.metadata).get(lane)
            if record.owner == message.run:
                note_writer(bookkeeper, record, query)
                return record
            record, header = newest_header(bookkeeper, lane, password)
            # The Spark checkpoint may be out of an executor's reach; the commit compares it in any case.
            if decided(is_committed, header, self._batch(message, None, is_first=True, in_task=True)):
                return None
            # Another writer may have been the first in lane 0, which happens once. Then this query gets another lane.
            with suppress(LogChangedError):
                return claimed(bookkeeper, record, message.run, query, header)

    def _batch(
        self, message: RangesWritten, fingerprint: Fingerprint | None, is_first: bool = False, in_task: bool = False
    ) -> Batch:
        """The batch to be judged. ``is_first``: the run has committed none yet."""
        accepted = self.options.accept_replay

        def before(number: int) -> Fingerprint:
            if number == accepted or not self.options.compare_checkpoint:
                return Fingerprint(0)
            plan = Plan()
            try:
                plan = self._spark_checkpoint(message.checkpoint).plan(number)
            except UnreadCheckpointError:
                if not in_task:
                    raise
            return Fingerprint(0, "", *plan)

        known = None if accepted == message.batch else fingerprint
        return Batch(
            self.options.log.name, message.query, message.batch, known, message.checkpoint, before if is_first else None
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver's side: make the micro-batch part of the log once, however often Spark replays it.

        Raises LogTakenOverError and CheckpointRewoundError: the batch is not in the log. Raises SourceRenamedError if its files
        were already read under other paths, UnreadCheckpointError, and BookKeeperError if the log was deleted and created again
        during the write. Any other error (LedgerRecoveryError, NotEnoughBookiesError, MetadataStoreError) leaves the outcome
        open; Spark's replay of the batch settles it.
        """
        told = [message for message in messages if isinstance(message, RangesWritten)]
        if not told:
            return
        first, log = told[0], self.options.log
        rows, values = sum(one.rows for one in told), sum(one.values for one in told) % SUMS
        checkpoint = self._spark_checkpoint(first.checkpoint) if self.options.compare_checkpoint else None
        key = os.getpid(), log.zookeeper, self._log.log, first.run
        is_first = key not in _committed_runs
        if checkpoint is not None and is_first:
            checkpoint.check(first.query)
        plan = Plan() if checkpoint is None else checkpoint.plan_to_commit(first.batch)
        fingerprint = Fingerprint(rows, f"{values:016x}", *plan)
        written = [message for message in told if message.ranges]
        if not written or any(message.only_compared for message in told):
            self._compare(self._batch(first, fingerprint), first.run, rows)
            return
        if checkpoint is not None and is_first:
            checkpoint.check_sources(first.batch)
        owner, commit = self.commit_of(written, self.bookkeeper.metadata.clock.now_ms(), fingerprint)
        committer = current_committer(self.bookkeeper, owner)
        with idle_closer().in_use(committer):
            committer.commit(commit, self._batch(first, fingerprint, is_first))
        _checked_runs.add(key)
        _committed_runs.add(key)
        # In a thread, beside the next micro-batches: a log may have many commits to look through.
        threading.Thread(target=committer.tend, args=(True,), name=f"tend {log.name}", daemon=True).start()

    def _compare(self, batch: Batch, run: str, rows: int) -> None:
        """Check a batch that wrote no rows: it is in the log, or it is empty. An empty batch must not take the number of
        another."""
        log = self.options.log
        key = os.getpid(), log.zookeeper, self._log.log, run
        if not rows and key in _checked_runs:
            return
        query = StreamingQuery(batch.query, self.options.follows, self._known_as or batch.checkpoint)
        lane = known_lane(self.bookkeeper, self._log, log.password, query)
        header = CommitHeader() if lane is None else newest_header(self.bookkeeper, lane, log.password)[1]
        if decided(is_committed, header, batch):
            return
        if rows:
            raise BookKeeperError(
                f"log {log.name!r}: batch {batch.number} of query {batch.query} was in the log when its tasks looked, and is not "
                "any more. Nothing is written; start the query again"
            )
        _checked_runs.add(key)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: entries that no commit names are not part of the log."""


@ends_in_order
class LogBatchWriter(DataSourceArrowWriter, LogWriter):
    """``df.write.format("bookspark").mode("append")``: one commit, all rows or none."""

    def __init__(self, options: SinkOptions, planned: LogRecord) -> None:
        """Begins the write. ``planned``: the log's record. Raises TooManyLanesError, NoSuchLogError, and CheckpointRewoundError
        (the log has a later version of the application)."""
        super().__init__(options)
        run, self._log = str(uuid.uuid4()), lane_id(planned)
        self._told = RangesWritten(run, 0, run)
        self._run: LogRun | None = None
        """None: the log has this version of the application already."""
        if options.txn_app_id:
            self._told = replace(self._told, query=TXN + options.txn_app_id, batch=options.txn_version)
            if has_version(self.bookkeeper, planned, options.log.password, self._version(None)):
                return
        self._record = begun_batch_write(self.bookkeeper, lane_id(planned), run)
        self._run = LogRun.of_batch_write(options.log, self._record, run)
        self._told = replace(self._told, lane=self._run.lane, epoch=self._run.epoch)

    def _version(self, fingerprint: Fingerprint | None) -> Batch:
        """The version of the application, to be judged. ``fingerprint``: None before the rows are known."""
        told, options = self._told, self.options
        known = None if options.accept_replay == told.batch else fingerprint
        return Batch(options.log.name, told.query, told.batch, known)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        batches = _with_rows(iterator)
        if batches is None:
            return self._told
        if not self.options.txn_app_id:
            assert self._run is not None, "a write without a version has begun"
            return self.write_rows(batches, self._run, self._record, self._told)
        summed = Summed(batches)
        if self._run is None:
            deque(summed, maxlen=0)
            return replace(self._told, rows=summed.rows, values=summed.values, only_compared=True)
        written = self.write_rows(iter(summed), self._run, self._record, self._told)
        return replace(written, rows=summed.rows, values=summed.values)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver's side: make all rows part of the log, and close their ledgers.

        Raises LogTakenOverError if the write took so long that it was taken for dead, NoSuchLogError if the log was deleted, and
        CheckpointRewoundError if the log has other rows of this version: no row is written. Any other error leaves the outcome
        open.
        """
        told = [message for message in messages if isinstance(message, RangesWritten)]
        fingerprint = None
        if self.options.txn_app_id:
            rows, values = sum(one.rows for one in told), sum(one.values for one in told) % SUMS
            fingerprint = Fingerprint(rows, f"{values:016x}")
        written = [message for message in told if message.ranges]
        if not written:
            if fingerprint is not None:
                self._compare(fingerprint)
            self._end()
            return
        run, commit = self.commit_of(written, self.bookkeeper.metadata.clock.now_ms(), fingerprint)
        committer = Committer(self.bookkeeper, run)
        if not committer.commit(commit, self._version(fingerprint)):
            log.info("log %s has batch %d of %s already", run.lane, commit.batch, commit.query)
        # No later write uses this epoch. So its ledgers are closed here, without a later recovery.
        committer.close()
        recover_ledgers(self.bookkeeper, dict.fromkeys(item.ledger_id for item in commit.ranges), run.password)
        thoroughly = run.epoch % BATCH_WRITES_BETWEEN_TENDING == 0

        def finish() -> None:
            committer.tend(thoroughly)
            self._end()

        if thoroughly:
            # In a thread: a log may have many commits to look through.
            threading.Thread(target=finish, name=f"tend {run.lane}", daemon=True).start()
        else:
            finish()

    def _compare(self, fingerprint: Fingerprint) -> None:
        """Check a version that wrote no rows: it is in the log, or it is empty and leaves no trace."""
        log = self.options.log
        version, record = self._version(fingerprint), LogRegistry(self.bookkeeper.metadata).get(self._log)
        if not has_version(self.bookkeeper, record, log.password, version) and fingerprint.rows:
            raise BookKeeperError(
                f"log {log.name!r}: version {version.number} of {version.query} was in the log when the write was planned, and "
                "is not any more. Nothing is written; run the write again"
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Record the end of the write: entries that no commit names are not part of the log, and may be deleted.

        Spark calls it too when ``commit`` raised, although the commit may be in the log.
        """
        self._end()

    def _end(self) -> None:
        """Record that the write commits no more. If that fails, its epoch stays open for a day, without harm."""
        if self._run is None:
            return
        try:
            end_batch_write(self.bookkeeper, self._run)
        except BookKeeperError as error:
            log.info("log %s: batch write %s could not be ended: %s", self._run.lane, self._run.run, error)
