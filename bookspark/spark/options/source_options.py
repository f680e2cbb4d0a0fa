"""Options of reads by ``format("bookspark")``, as frozen values.

Law: an unknown option, or a wrong value, is a ConfigurationError on the driver before any row is read.
``given_options`` has the common options of reads and writes.

Source
    One of ``log`` (a name; with ``logId`` only the log of this id, not a later one of the name), ``logs`` (``a,b,c``),
    ``logPattern`` (a Python regular expression for whole names), ``ledger`` (an id), ``ledgers`` (``1,2,7-9``) and ``table`` (a
    system table). ``minPartitions`` (1, for each log; large logs are divided by size anyway). ``failOnDataLoss`` (true). For a
    log: ``startingOffsets`` (``earliest``, a position from 0 that the log has reached, or a JSON object of positions by lane;
    Kafka's -2 is ``earliest``, -1 ``latest``), or ``startingTimestamp`` (ms since 1970, or ISO 8601 with an offset: from the
    first row committed then or later), or ``startingOffsetsByTimestamp`` (a JSON object of times by lane); lanes not named start
    at their beginning. ``includeTimestamp``, ``includeLane``, ``includeKey`` and ``includeHeaders`` (false) add the columns
    ``timestamp``, ``lane``, ``key`` and ``headers``. ``where``: a predicate in a subset of Spark SQL over the read's columns
    (``id = 7 AND name LIKE 'a%'``); only matching rows come, and rows whose commit rules them out are not read.
Several logs
    ``logs`` or ``logPattern`` adds a column ``log``. ``startingOffsets``, ``startingOffsetsByTimestamp`` and those of the end
    are a JSON object with a place for each log (``{"a": 12, "b": {"0": 3, "1": 7}}``); other logs are read whole. All logs need
    the same columns; with ``mergeSchema`` (false) missing columns are null. A stream has no ``startingOffsets`` ``latest``; it
    reads new logs from their beginning.
Batch source
    For a log: ``endingOffsets`` (``latest``, the position after the last row, which the log must have reached, or a JSON object
    by lane; other lanes to their end), or ``endingTimestamp`` or ``endingOffsetsByTimestamp`` (before the first row committed
    then or later).
Streaming source
    The started query refuses a system table or an end before its first micro-batch: Spark does not let ``load`` know that it
    is for a stream. ``maxOffsetsPerTrigger`` (rows or entries) or ``maxBytesPerTrigger``. ``minOffsetsPerTrigger`` (rows or
    entries): a micro-batch waits for so many, at most ``maxTriggerDelay`` (``15m``; a number without a unit is ms) after the
    previous one. ``pollTimeoutMs`` (500): longest wait of a trigger for entries, at most as long as the query has been idle. For
    a log: ``startingOffsets`` ``latest`` needs ``subscription``, a name under which Bookspark keeps the start until the first
    micro-batch is done; Spark does not keep it, and would start later after a failure.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from msgspec import Meta

from bookspark.errors import ConfigurationError
from bookspark.logs.chain.registry import LaneName, LogName
from bookspark.logs.feeds.times import Times
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bookspark.spark.options.given_options import GivenOptions, cluster
from bookspark.spark.options.places import (
    EARLIEST,
    LATEST,
    Place,
    PlaceOfLogs,
    number,
    place_in_log,
    place_in_logs,
)
from bookspark.spark.where.grammar import Node, parsed
from bookspark.store.metadata.records.names import LedgerId
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Rule, from_text

PollMilliseconds = Annotated[int, Meta(ge=0, le=1_000_000_000)]

TIMESTAMP, LANE, KEY, HEADERS = ADDED = ("timestamp", "lane", "key", "headers")
"""Columns of the options ``includeTimestamp``, ``includeLane``, ``includeKey`` and ``includeHeaders``."""
_UNITS = {"us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(rf"([0-9]{{1,12}}) *({'|'.join(_UNITS)})?")
_A_DURATION = "a time like 30s, 15m or 2h; a number without a unit is ms"
_TRIGGER_DELAY_SECONDS = 15 * 60.0
_LEDGERS_MAX = 1_000_000
"""Ledgers that a read may name."""


def _is_pattern(text: str) -> bool:
    if not 0 < len(text) <= 1000:
        return False
    try:
        with warnings.catch_warnings():
            # Python warns of patterns that later versions may take otherwise.
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, Warning, RecursionError, OverflowError):
        return False
    return True


_Pattern = Annotated[str, Rule("a regular expression for whole names of logs, up to 1000 characters", _is_pattern)]


def include(column: str) -> str:
    return f"include{column.capitalize()}"


def _ids(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start = number(first)
        stop = number(last) if dash else start
        if not start <= stop <= LEDGER_ID_MAX or stop - start + len(ids) >= _LEDGERS_MAX:
            raise ValueError
        ids.extend(range(start, stop + 1))
    return tuple(ids)


def _duration(text: str) -> float:
    """The seconds of a text such as ``15m``. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError
    return int(match[1]) * _UNITS[match[2] or "ms"]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) < len(names):
        raise ValueError
    return tuple(from_text("option", "logs", name, LogName) for name in names)


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read: exactly one of ``log``, ``logs``, ``log_pattern``, ``ledgers`` and ``table`` is given."""

    zookeeper: str
    password: bytes = field(repr=False)
    log: str | None
    """The name of the log to read, or of one of its lanes (``orders@3``)."""
    log_id: int | None
    """The id that the log must have; None: any."""
    logs: tuple[str, ...] | None
    log_pattern: str | None
    merge_schema: bool
    ledgers: tuple[int, ...] | None
    table: str | None
    min_partitions: int
    """Least number of tasks, or one for each row if there are fewer rows."""
    fail_on_data_loss: bool
    start: Place
    end: Place
    """The place before which the read ends; LATEST is the end of the committed rows when the read is planned."""
    starts: PlaceOfLogs
    ends: PlaceOfLogs
    where: Node | None
    added: tuple[str, ...]
    subscription: str | None
    """The name under which a stream that starts at LATEST keeps its start."""
    rows_max: int | None
    bytes_max: int | None
    rows_min: int | None
    trigger_delay_seconds: float
    poll_timeout_seconds: float

    @classmethod
    def parse(cls, given: Mapping[str, str], zookeeper: str | None = None) -> SourceOptions:
        """The options in ``given``, as Spark passes them. ``zookeeper``: the session's cluster. Raises ConfigurationError."""
        options = GivenOptions(given)
        address, password = cluster(options, zookeeper)
        log = options.judged("log", LaneName)
        logs = options.take("logs", _names, "names of logs like a,b,c")
        log_pattern = options.judged("logPattern", _Pattern)
        several = logs is not None or log_pattern is not None
        ledger = options.judged("ledger", LedgerId)
        ledgers = options.take("ledgers", _ids, "a list of ledger ids like 1,2,7-9")
        starts, ends = PlaceOfLogs({}, EARLIEST), PlaceOfLogs({}, LATEST)
        start = end = None
        if several:
            starts = place_in_logs(options, "starting", EARLIEST) or starts
            ends = place_in_logs(options, "ending", LATEST) or ends
        else:
            start, end = place_in_log(options, "starting"), place_in_log(options, "ending")
        where = options.text("where")
        trigger_delay = options.take("maxTriggerDelay", _duration, _A_DURATION)
        poll_timeout_ms = options.judged("pollTimeoutMs", PollMilliseconds)
        read = cls(
            zookeeper=address,
            password=password,
            log=log,
            log_id=options.judged("logId", BytesOrNone),
            logs=logs,
            log_pattern=log_pattern,
            merge_schema=bool(options.judged("mergeSchema", bool)),
            ledgers=ledgers if ledger is None else (ledger,),
            table=options.text("table"),
            min_partitions=options.judged("minPartitions", AtLeastOne) or 1,
            fail_on_data_loss=options.judged("failOnDataLoss", bool) is not False,
            start=EARLIEST if start is None else start,
            end=LATEST if end is None else end,
            starts=starts,
            ends=ends,
            where=None if where is None else parsed(where),
            added=tuple(name for name in ADDED if options.judged(include(name), bool)),
            subscription=options.judged("subscription", LogName),
            rows_max=options.judged("maxOffsetsPerTrigger", AtLeastOne),
            bytes_max=options.judged("maxBytesPerTrigger", AtLeastOne),
            rows_min=options.judged("minOffsetsPerTrigger", AtLeastOne),
            trigger_delay_seconds=_TRIGGER_DELAY_SECONDS if trigger_delay is None else trigger_delay,
            poll_timeout_seconds=0.5 if poll_timeout_ms is None else poll_timeout_ms / 1000,
        )
        options.finish()
        chosen = options.given("log", "logs", "logPattern", "ledger", "ledgers", "table")
        if len(chosen) != 1:
            found = f"not {' and '.join(chosen)} at once" if chosen else "none was given"
            raise ConfigurationError(
                f"what to read? Give exactly one of the options log, logs, logPattern, ledger, ledgers and table; {found}"
            )
        if options.given("logId") and log is None:
            raise ConfigurationError("option logId is for reading one log (option log); leave it out")
        if options.given("mergeSchema") and not several:
            raise ConfigurationError(
                "option mergeSchema is for reading several logs (logs or logPattern); leave it out"
            )
        if several and options.given("subscription"):
            raise ConfigurationError("option subscription is for reading one log (option log); leave it out")
        of_logs = start is not None or end is not None or options.given("subscription", *map(include, ADDED))
        if log is None and not several and of_logs:
            raise ConfigurationError(
                "options startingOffsets, endingOffsets, those with times, "
                f"{', '.join(map(include, ADDED))} and subscription are for reading a log, not a {chosen[0].removesuffix('s')}"
            )
        if where is not None and log is None and not several:
            raise ConfigurationError(
                f"option where is for reading logs, not a {chosen[0].removesuffix('s')}: leave it out, and filter the DataFrame"
            )
        if read.start == LATEST and read.subscription is None:
            raise ConfigurationError(
                "startingOffsets 'latest' is for streams, and needs option subscription, a name for your query: Bookspark keeps "
                "its start under this name, so that nothing is lost if the query ends before its first micro-batch is done"
            )
        if read.start != LATEST and read.subscription is not None:
            raise ConfigurationError(
                "option subscription is only used with startingOffsets 'latest' of a stream; leave it out"
            )
        if read.rows_max is not None and read.bytes_max is not None:
            raise ConfigurationError("give maxOffsetsPerTrigger or maxBytesPerTrigger: Spark knows one limit at a time")
        if trigger_delay is not None and read.rows_min is None:
            raise ConfigurationError(
                "option maxTriggerDelay is how long a micro-batch waits for minOffsetsPerTrigger: give both, or neither"
            )
        if read.rows_min is not None and read.rows_max is not None and read.rows_min > read.rows_max:
            raise ConfigurationError(
                f"minOffsetsPerTrigger {read.rows_min} is more than maxOffsetsPerTrigger {read.rows_max}: give a smaller one"
            )
        read._check_places()
        return read

    @property
    def several(self) -> bool:
        return self.logs is not None or self.log_pattern is not None

    def reads(self, log: str) -> bool:
        """Whether ``log`` is among several logs to read."""
        return log in self.logs if self.logs is not None else bool(re.fullmatch(self.log_pattern or "", log))

    def of(self, log: str) -> SourceOptions:
        """The options of a read of ``log`` alone, one of several, without ``where``: the reader of several logs applies that to
        all rows."""
        alone = replace(self, log=log, logs=None, log_pattern=None, merge_schema=False, where=None)
        alone = replace(alone, start=self.starts.of(log), end=self.ends.of(log))
        return replace(alone, starts=PlaceOfLogs({}, EARLIEST), ends=PlaceOfLogs({}, LATEST))

    def for_batch(self) -> SourceOptions:
        """Return these options. Raises ConfigurationError for options of streams only."""
        if self.start == LATEST:
            raise ConfigurationError("startingOffsets 'latest' is for streams: a batch read would have no rows")
        only = {
            "maxOffsetsPerTrigger": self.rows_max,
            "maxBytesPerTrigger": self.bytes_max,
            "minOffsetsPerTrigger": self.rows_min,
        }
        for name, value in only.items():
            if value is not None:
                raise ConfigurationError(f"option {name} is for streams (spark.readStream); leave it out")
        return self

    def for_stream(self) -> SourceOptions:
        """Return these options. Raises ConfigurationError for options that suit only batch reads."""
        if self.table is not None:
            raise ConfigurationError(
                f"system table {self.table!r} can't be read as a stream: read it with spark.read, as often as you like"
            )
        if self.end != LATEST or self.ends != PlaceOfLogs({}, LATEST):
            raise ConfigurationError(
                "options endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch reads (spark.read); a stream "
                "has no end"
            )
        return self

    def _check_places(self) -> None:
        """Raise ConfigurationError if the end is before the start, or if a log with a place is not read."""
        if isinstance(self.start, int) and isinstance(self.end, int) and self.start > self.end:
            raise ConfigurationError(
                f"startingOffsets {self.start} is behind endingOffsets {self.end}: give a later end"
            )
        times = [one.all_ms for one in (self.start, self.end) if isinstance(one, Times) and one.all_ms is not None]
        if times != sorted(times):
            raise ConfigurationError("startingTimestamp is later than endingTimestamp: give a later end")
        if self.several:
            self.of("")._check_places()
        for log in {**self.starts.places, **self.ends.places}:
            if not self.reads(log):
                raise ConfigurationError(
                    f"an option names an offset or a time in log {log!r}, which is not read: leave that log out"
                )
            self.of(log)._check_places()
