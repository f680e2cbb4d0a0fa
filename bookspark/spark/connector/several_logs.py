"""Several logs in one read: options ``logs`` and ``logPattern``.

Law: each log is read as if alone, and its rows keep their order. The offset of a stream is ``{log: its offset}``, so the input of
a micro-batch follows from its two offsets alone. For a log that appears while the query runs, a micro-batch without its rows
first writes its beginning into the offset; the next micro-batch begins there, also after a restart. A log that the start offset
does not name is not read.

Rows are those of one log (``source``) with column ``log``, the name of the row's log. With ``mergeSchema`` a log may lack columns
of another; they are null in its rows.

A log that was deleted, or deleted and made again, fails the query. With ``failOnDataLoss`` false the query goes on without the
rows, whose number is unknown, and treats the new log as any later log. The old place stays in the offset: a lagging ZooKeeper
server may not know a log yet, or know only its predecessor. Without that place, the query would later take the log for new and
read its rows again.

Source: Spark's Kafka source (``subscribe``, ``subscribePattern``), whose new partitions begin at their beginning too.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType

from bookspark.errors import BookKeeperError, ConfigurationError, UnauthorizedAccessError
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.feeds.lane_feed import Choice
from bookspark.logs.feeds.log_feed import Limit, LogFeed, Offset
from bookspark.logs.feeds.lost_rows import data_loss
from bookspark.logs.rows.encodings import ID_COLUMNS
from bookspark.protocol.logs.lanes import is_offset, later, rows_in_bytes, shared_out
from bookspark.protocol.logs.log_record import NoSuchLogError
from bookspark.spark.connector.feeds import chosen_place, feed
from bookspark.spark.connector.query_place import QueryPlace, Stranger, introduce_query
from bookspark.spark.connector.source import (
    Computed,
    EntryPartitions,
    EntryReader,
    GrowingReader,
    Partitions,
    Ranges,
    schema_of,
)
from bookspark.spark.connector.trigger_delay import Patience, TriggerDelay
from bookspark.spark.connector.worker_ends import ends_in_order
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.process_client import client
from bookspark.spark.rows.row_format import arrow_schema
from bookspark.spark.where.choosing import Chooser
from bookspark.support.threads import BackOff

if TYPE_CHECKING:
    import pyarrow


# -- The columns of several logs


LOG = "log"
"""The column with the name of a row's log."""
_LOG_FIELD = StructField(LOG, StringType(), True, {"comment": "The log that the row is of"})


def merged_columns(schemas: Mapping[str, StructType], at_the_end: int, merge: bool) -> StructType:
    """The columns of all logs, those of the first log first, and LOG. ``schemas``: of at least one log, by name; the last
    ``at_the_end`` columns of each are common to all logs, and come behind the others.

    Law: a name has one type in all logs, so a column never means two things. All logs have the same columns unless ``merge``:
    then a log may lack some, in any order. All are nullable.

    Raises ConfigurationError if they do not fit together.
    """
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
    """Raise ConfigurationError if a later log does not fit to ``known``, the columns of a read."""
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
    """``rows`` of ``log`` with these columns: missing columns are null, and LOG is its name."""
    import pyarrow

    arrays = []
    for field in columns:
        if field.name == LOG:
            arrays.append(pyarrow.repeat(pyarrow.scalar(log, field.type), rows.num_rows))
        elif field.name in rows.schema.names:
            arrays.append(rows.column(field.name))
        else:
            arrays.append(pyarrow.nulls(rows.num_rows, field.type))
    return pyarrow.RecordBatch.from_arrays(arrays, names=columns.names)


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


# -- The reads


logger = logging.getLogger(__name__)

_strangers: set[str] = set()
"""Names of logs with another password, which were reported once."""
_LOOK_SECONDS = 1.0
"""Interval of searches for logs that were made or deleted."""
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.01, 0.25
"""Pauses between checks of logs other than the liveliest; each pause is longer."""

Offsets = dict[str, Offset]
"""A place in several logs, as Spark keeps it."""


class OfLog(InputPartition):
    """Pieces of one of the logs. ``schema``: all columns of that log."""

    def __init__(self, log: str, schema: StructType, ranges: Ranges) -> None:
        super().__init__(None)
        self.log, self.schema, self.ranges = log, schema, ranges
        self.strangers: tuple[Stranger, ...] = ()
        """Streams for the task to introduce: one for each log, also for logs without rows."""


def logs_of(options: SourceOptions) -> list[str]:
    """Sorted names of the logs to read. Raises MetadataStoreError."""
    return [name for name in LogRegistry(client(options.zookeeper).metadata).names() if options.reads(name)]


def schema_of_logs(options: SourceOptions) -> StructType:
    """The columns of the present logs.

    Raises ConfigurationError if their columns do not fit together, or no log matches; NoSuchLogError if a named log is missing;
    UnauthorizedAccessError (wrong password) and MetadataStoreError.
    """
    names = options.logs if options.logs is not None else logs_of(options)
    schemas = {name: schema for name in names if (schema := _schema_of_log(options, name)) is not None}
    if not schemas:
        raise ConfigurationError(
            f"no log with this password has a name that matches logPattern {options.log_pattern!r}, so there are no columns"
        )
    return merged_columns(schemas, len(ID_COLUMNS) + len(options.added), options.merge_schema)


def _schema_of_log(options: SourceOptions, name: str) -> StructType | None:
    """The columns of one of several logs; None for a log with another password whose name merely matches the pattern: it is not
    meant, and whoever creates one must not stop the readers of others. Raises the errors of ``schema_of``."""
    try:
        return schema_of(options.of(name))
    except UnauthorizedAccessError:
        if options.logs is not None:
            raise
        if name not in _strangers:
            _strangers.add(name)
            logger.warning(
                "log %r matches logPattern %r, has another password, and is not read", name, options.log_pattern
            )
        return None


class _LogPartitions(Partitions):
    """Reads partitions of several logs. ``schema``: all columns (``schema_of_logs``)."""

    def chooser(self, log: str, schema: StructType) -> Chooser | None:
        """The chooser of rows of a log whose columns are ``schema``; None: all rows."""
        return self.wanted.chooser(log, schema, (*self.options.added, LOG))

    def of(self, log: str, schema: StructType) -> EntryPartitions:
        """The reader of the wanted columns of a log whose columns are ``schema``."""
        return EntryPartitions(self.options.of(log), schema, [name for name in self.names if name in schema.names])

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """In a task: the rows of the partition. Raises DataLossError and ReadError."""
        assert isinstance(partition, OfLog)
        for stranger in partition.strangers:
            introduce_query(client(self.options.zookeeper), stranger)
        types = arrow_schema(StructType([self.schema[name] for name in self.names]))
        for rows in self.of(partition.log, partition.schema).read(partition.ranges):
            yield self.wanted.of(with_all_columns(rows, types, partition.log))


@ends_in_order
class LogsReader(_LogPartitions, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        parts: list[InputPartition] = []
        for name in self.options.logs or logs_of(self.options):
            options, schema = self.options.of(name), _schema_of_log(self.options, name)
            if schema is None:
                continue
            check_fits(name, schema, self.schema, self.options.merge_schema)
            for part in EntryReader(options, schema, ()).planned(self.chooser(name, schema)):
                assert isinstance(part, Ranges)
                parts.append(OfLog(name, schema, part))
        return parts


class _OneLog:
    def __init__(self, options: SourceOptions, schema: StructType, choose: Choice | None) -> None:
        assert options.log is not None
        self.schema = schema
        found = feed(options)
        assert isinstance(found, LogFeed)
        found.choose = choose
        self.feed: LogFeed = found
        self.place = QueryPlace(lambda: client(options.zookeeper), lambda: found.key)


@ends_in_order
class LogsStreamReader(_LogPartitions, GrowingReader):
    """Reads several logs as they grow, and later logs with matching names."""

    def __init__(self, options: SourceOptions, schema: StructType, names: Sequence[str]) -> None:
        super().__init__(options, schema, names)
        self._logs: dict[str, _OneLog] = {}
        self._looked = float("-inf")
        self._target: Offsets | None = None
        self._liveliest = ""
        """The log that had rows last."""
        self._told: set[tuple[str, int]] = set()
        self._patience = Patience(options.poll_timeout_seconds)
        self._delay = TriggerDelay(options.rows_min, options.trigger_delay_seconds) if options.rows_min else None

    def feeds(self) -> Iterable[LogFeed]:
        return [log.feed for log in self._logs.values()]

    def initialOffset(self) -> Offsets:
        """The offset at which a query without a Spark checkpoint starts."""

        def starts() -> Offsets:
            self._look()
            return {
                name: chosen_place(
                    log.feed, "startingOffsets", self.options.starts.of(name), log.feed.earliest(), log.feed.newest()
                )
                for name, log in self._logs.items()
            }

        return self._despite_deletions(starts)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query end at the present ends of the present logs."""

        def ends() -> Offsets:
            self._look()
            return self._ends(self._logs)

        self._target = self._despite_deletions(ends)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The end of the next micro-batch. With no new rows, or too few, it waits as long as ``Patience`` allows."""
        return self._despite_deletions(lambda: self._latest(start, limit))

    def _latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        delay = None if self._target is not None or isinstance(limit, ReadAllAvailable) else self._delay
        end = self._behind(start)
        if self._target is None and (end == start or (delay is not None and delay.holds(self._rows(start, end)))):
            patience = self._patience.seconds()
            end = self._wait(start, end, patience if end == start or delay is None else min(patience, delay.left))
        self._newest = end
        if end == start:
            if self._target is not None:
                for log in self._logs.values():
                    log.place.done()
            return start
        # The place of a new log is recorded at once.
        delay = delay if all(name in start and start[name]["log"] == end[name]["log"] for name in end) else None
        if delay is not None and delay.holds(self._rows(start, end)):
            return start
        limited = self._limited(start, end, limit)
        if delay is not None:
            delay.begun()
        return limited

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The plan of a micro-batch, also of a replay."""
        return self._despite_deletions(lambda: self._planned(start, end))

    def _planned(self, start: Offsets, end: Offsets) -> list[OfLog]:
        if not self._logs:
            self._look()
        plan: list[OfLog] = []
        for name, first in self._going_on(start).items():
            last = end.get(name)
            if last is None or last["log"] != first["log"]:
                continue
            log = self._logs[name]
            parts = self.of(name, log.schema).plan(log.feed.pieces(first, last), log.feed.log)
            plan += [OfLog(name, log.schema, part) for part in parts if isinstance(part, Ranges)]
        for one in plan[:1]:
            strangers = [log.place.stranger for log in self._logs.values()]
            one.strangers = tuple(stranger for stranger in strangers if stranger is not None)
        return plan

    def commit(self, end: Offsets) -> None:
        """Note a finished micro-batch: Spark's checkpoint has its end."""
        self._patience.batch_done()
        for name, offset in end.items():
            log = self._logs.get(name)
            if log is not None and offset["log"] == log.feed.log_id:
                log.place.tell(offset)

    # -- Helpers of the stream

    def _look(self) -> None:
        self._looked = time.monotonic()
        there = logs_of(self.options)
        for name in [name for name in self._logs if name not in there]:
            self._logs.pop(name).feed.close()
        for name in there:
            if name not in self._logs:
                options = self.options.of(name)
                try:
                    schema = _schema_of_log(self.options, name)
                    if schema is None:
                        continue
                    check_fits(name, schema, self.schema, self.options.merge_schema)
                    self._logs[name] = _OneLog(options, schema, self.chooser(name, schema))
                except NoSuchLogError:
                    # It was deleted just now.
                    continue
        self._logs = dict(sorted(self._logs.items()))

    def _ends(self, names: Iterable[str]) -> Offsets:
        return {name: self._logs[name].feed.newest() for name in names}

    def _despite_deletions(self, compute: Callable[[], Computed]) -> Computed:
        """The result of ``compute``. An error during the deletion of a log starts it again without the log, once per log."""
        known: set[tuple[str, int]] = set()
        while True:
            try:
                return compute()
            except BookKeeperError:
                deleted = self._forget_deleted()
                if deleted <= known:
                    raise
                known |= deleted

    def _forget_deleted(self) -> set[tuple[str, int]]:
        """Forget deleted logs, and look for their names again. Returns their names and ids. Raises MetadataStoreError."""
        registry, deleted = LogRegistry(client(self.options.zookeeper).metadata), set()
        for name, log in list(self._logs.items()):
            record = registry.find(name)
            if record is None or record.log_id != log.feed.log_id:
                self._logs.pop(name).feed.close()
                deleted.add((name, log.feed.log_id))
        if deleted:
            self._looked = float("-inf")
        return deleted

    def _going_on(self, start: Offsets) -> Offsets:
        """The places in ``start`` of logs that still exist. Raises DataLossError if a log is lost and the query is to fail, and
        ConfigurationError if ``start`` has another form."""
        if not all(isinstance(offset, dict) and is_offset(offset) for offset in start.values()):
            raise ConfigurationError(
                f"this query reads several logs, but its checkpoint is at {start}, an offset of another source: give each "
                "query a checkpointLocation of its own"
            )
        going: Offsets = {}
        for name, offset in start.items():
            log = self._logs.get(name)
            # A later log of the name has a higher id; a lower one is a look at an earlier state.
            if log is None or log.feed.log_id < offset["log"]:
                self._lost(name, offset)
            elif log.feed.log_id > offset["log"]:
                self._lost(name, offset, f"; {name!r} is another log by now, with id {log.feed.log_id}")
            else:
                log.place.tell(offset)
                going[name] = offset
        return going

    def _lost(self, name: str, offset: Offset, now: str = "") -> None:
        if (name, offset["log"]) not in self._told:
            data_loss(
                f"log {name!r} with id {offset['log']} was deleted since this query read it up to {offset}{now}",
                self.options.fail_on_data_loss,
            )
            self._told.add((name, offset["log"]))

    def _behind(self, start: Offsets) -> Offsets:
        """The offset behind all present rows; for a log without a place in ``start``, its beginning."""
        if not self._logs or time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._look()
        newest = self._ends(self._logs) if self._target is None else self._target_now(self._target)
        going = self._going_on(start)
        end = dict(start)
        for name, log in self._logs.items():
            if name in going:
                end[name] = later(going[name], newest.get(name, going[name]))
                if end[name] != going[name]:
                    self._liveliest = name
            elif name in newest and (name not in start or log.feed.log_id > start[name]["log"]):
                end[name] = log.feed.earliest()
        return dict(sorted(end.items()))

    def _target_now(self, target: Offsets) -> Offsets:
        """``target``, in which a log that was created again gets its own end, once."""
        again = [name for name, log in self._logs.items() if name in target and target[name]["log"] != log.feed.log_id]
        target.update(self._ends(again))
        return target

    def _wait(self, start: Offsets, end: Offsets, seconds: float) -> Offsets:
        """Wait until there may be rows after ``end``, or for ``seconds``. Returns the offset behind all rows."""
        deadline, pauses = time.monotonic() + seconds, BackOff(_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)
        while (left := deadline - time.monotonic()) > 0:
            log = self._logs.get(self._liveliest) or next(iter(self._logs.values()), None)
            if log is None:
                return end
            log.feed.wait(min(pauses.next(), left))
            behind = self._behind(start)
            if behind != end:
                return behind
        return end

    def _rows(self, start: Offsets, end: Offsets) -> int:
        return sum(self._logs[name].feed.rows(start[name], end[name]) for name in self._in_both(start, end))

    def _in_both(self, start: Offsets, end: Offsets) -> list[str]:
        """The existing logs that both offsets name."""
        ids = {name: log.feed.log_id for name, log in self._logs.items()}
        return [name for name in start if start[name]["log"] == end[name]["log"] == ids.get(name)]

    def _limited(self, start: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        """``end``, or an earlier offset: the limit is shared out in proportion to each log's backlog."""
        names = self._in_both(start, end)
        waiting = {at: self._logs[name].feed.rows(start[name], end[name]) for at, name in enumerate(names)}
        match limit:
            case ReadMaxRows():
                rows_max, size = limit.max_rows, None
            case ReadMaxBytes():
                size = limit.max_bytes
                sized = ((at, self._logs[name].feed.sized(start[name], end[name])) for at, name in enumerate(names))
                every = [(at, *lane) for at, lanes in sized for lane in lanes]
                # Looks at the rows that it takes, not at the whole backlog. Truncated rows are passed with others.
                left = {number: max(1, rows) for number, (_, rows, _) in enumerate(every)}
                waiting = Counter[int]()
                for number, (at, _, _) in enumerate(every):
                    waiting[at] += left[number]
                rows = rows_in_bytes(left, {number: rows for number, (_, _, rows) in enumerate(every)}, size)
                # A row of each log at least, or a log of few rows would wait for the others.
                rows_max = max(min(len(waiting), size), rows)
            case _:
                return end
        if sum(waiting.values()) <= rows_max:
            return end
        shares = shared_out(waiting, rows_max)
        limited = {
            name: self._logs[name].feed.limited(start[name], end[name], Limit(shares[at], size))
            if shares[at]
            else start[name]
            for at, name in enumerate(names)
            if waiting[at]
        }
        return {**end, **limited}
