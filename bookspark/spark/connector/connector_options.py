"""Options of ``format("bookspark")``: what ``.option(...)`` may say, as frozen values.

Law: an unknown option, or a value that can't be used, is a ConfigurationError on the driver before anything is read or written.
Spark hands option names over in lower case; errors show them as they are written in programs.

All
    ``zookeeper``: the cluster, ``host:port[,host:port…][/chroot]`` (where it may be left out: see ``data_source``);
    ``password``: that of the log or the ledgers.
Sink
    ``log`` (required): the name of the log to append to. If there is no such log, the write creates it, with these options, which
    never change afterwards: ``ensembleSize``, ``writeQuorum``, ``ackQuorum`` (3, 3, 2); ``digestType`` (CRC32C); ``ledgerType``
    (PD_JOURNAL; with VD_JOURNAL each task syncs once, before it ends); ``replication`` (best_effort); ``rowFormat`` (``value``,
    or ``arrow``: rows keep all their columns); ``compression`` (``none``, ``zstd``, ``zstd_dictionary``). ``ledgerRollBytes`` (1
    GiB), ``ledgerRollSeconds`` (3600): size and age at which a data ledger is closed.
Streaming sink
    ``follows``: the id of the streaming query whose log this one takes over; only needed by a query that is new to a log of
    another query. ``acceptReplay``: the number of a micro-batch that the log has with other rows, because the query's values are
    random; it is taken for the one in the log.
Source
    One of ``log`` (a name), ``ledger`` (an id), ``ledgers`` (``1,2,7-9``) and ``table`` (a system table). ``minPartitions`` (1).
    ``failOnDataLoss`` (true). Of a log: ``startingOffsets`` (``earliest``, or a position that the log has reached, from 0), or
    ``startingTimestamp`` (a time, see ``times``: from the first row that was committed then or later), or
    ``startingOffsetsByTimestamp`` (a JSON object with a time for each lane; a lane that it does not name is read from its
    beginning). ``includeTimestamp`` (false): whether to add the column ``timestamp``, when the row was committed.
Batch source
    Of a log: ``endingOffsets`` (``latest``, or the position after the last row to read, which the log must have reached), or
    ``endingTimestamp``, or ``endingOffsetsByTimestamp`` (before the first row that was committed then or later).
Streaming source
    ``maxOffsetsPerTrigger`` (rows or entries) or ``maxBytesPerTrigger``. ``pollTimeoutMs`` (500): how long a trigger waits for
    entries when there are none, but no longer than the query has been idle. Of a log: ``startingOffsets`` ``latest`` together
    with ``subscription``, a name under which Bookspark keeps the start until the first micro-batch is done. Spark does not keep
    it, and would start later after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from bookspark.arguments import AtLeastOne, EntryId, PasswordText, from_text
from bookspark.arguments.taken import Misfit, refused
from bookspark.errors import ConfigurationError
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import LaneName, LogName
from bookspark.logs.feeds.times import A_TIME, TIMES_OF_LANES, Times, one_time, times_of_lanes
from bookspark.logs.rows.data_ledgers import RollPolicy
from bookspark.metadata.records.names import LedgerId
from bookspark.metadata.zookeeper.layout import ConnectionString
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX, DigestType, LedgerType, Replication
from bookspark.protocol.logs.log_record import Compression, LogOptions, RowFormat

Value = TypeVar("Value")
PollMilliseconds = Annotated[int, Meta(ge=0, le=1_000_000_000)]

_LEDGERS_MAX = 1_000_000
"""How many ledgers one read names at most."""
EARLIEST, LATEST = "earliest", "latest"
_STARTS = "'earliest', a position (a number from 0) or, of a stream, 'latest'"
_ENDS = "'latest' or a position (a number from 0)"

_SPARK_OPTIONS = ("checkpointlocation", "queryname")
"""Spark's own options, which it hands to sinks too."""
_OF_A_TABLE = "provider"
"""CREATE TABLE hands over options of this name. It is refused: Spark 4.2 can't read a table of a Python data source ("is not a
valid Spark SQL Data Source", seen with Delta's catalog)."""


class _GivenOptions:
    """The given options. Each is taken by its name once; ``finish`` refuses those that nobody took."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known: list[str] = []

    def take(self, name: str, convert: Callable[[str], Value], what: str) -> Value | None:
        """The option's value; None if it was not given. ``what``: the allowed values in words, for the error."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return convert(text)
        except ValueError:
            raise refused("option", name, Misfit(text, what)) from None

    def judged(self, name: str, annotation: Any) -> Any:
        """The option's value as ``annotation`` takes it; None if it was not given."""
        self._known.append(name)
        text = self._given.get(name.lower())
        return None if text is None else from_text("option", name, text, annotation)

    def text(self, name: str) -> str | None:
        """The option's text; None if it was not given."""
        text: str | None = self.judged(name, str)
        return text

    def finish(self) -> None:
        """Raise ConfigurationError if an option was given that nobody took."""
        known = {name.lower(): name for name in self._known}
        if _OF_A_TABLE in self._given:
            raise ConfigurationError(
                "format bookspark has no tables in Spark's catalog: make a view, by CREATE TEMPORARY VIEW name USING bookspark "
                "OPTIONS (…). To write, use start() for a stream and save() for a batch"
            )
        for name in self._given:
            if name not in known and name not in _SPARK_OPTIONS:
                nearest = get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {known[nearest[0]]!r}?"
                    if nearest
                    else f"known are: {', '.join(sorted(self._known))}"
                )
                raise ConfigurationError(f"unknown option {name!r} of format bookspark; {hint}")


def _ids(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start = _number(first)
        stop = _number(last) if dash else start
        if not start <= stop <= LEDGER_ID_MAX or stop - start + len(ids) >= _LEDGERS_MAX:
            raise ValueError
        ids.extend(range(start, stop + 1))
    return tuple(ids)


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number < 1 << 63:
        raise ValueError
    return number


def _offset(*words: str) -> Callable[[str], int | str]:
    return lambda text: text.lower() if text.lower() in words else _number(text)


def _place(
    options: _GivenOptions, which: str, offset: Callable[[str], int | str], words: str
) -> int | str | Times | None:
    """Where a read begins, or ends, as one of three options says it; None if none does. ``which``: ``starting`` or ``ending``."""
    places = {
        f"{which}Offsets": options.take(f"{which}Offsets", offset, words),
        f"{which}Timestamp": options.take(f"{which}Timestamp", one_time, A_TIME),
        f"{which}OffsetsByTimestamp": options.take(f"{which}OffsetsByTimestamp", times_of_lanes, TIMES_OF_LANES),
    }
    given = {name: place for name, place in places.items() if place is not None}
    if len(given) > 1:
        raise ConfigurationError(f"options {' and '.join(given)} say two things: give one of them")
    return next(iter(given.values()), None)


def _cluster(options: _GivenOptions, default: str | None) -> tuple[str, bytes]:
    """The cluster and the password."""
    zookeeper = options.judged("zookeeper", ConnectionString) or default
    password = options.judged("password", PasswordText) or ""
    if not zookeeper:
        raise ConfigurationError(
            "which cluster? Give option zookeeper (host:port[,host:port…]), start the session with "
            "bookspark.spark.session(…, zookeeper=…), or set the environment variable BOOKSPARK_ZOOKEEPER before Spark starts"
        )
    return zookeeper, password.encode()


@dataclass(frozen=True)
class SinkOptions:
    """The options of a write."""

    log: LogAddress
    chosen: Mapping[str, Any]
    """The fields of LogOptions that were given. If the log exists, its other options are those that it was created with."""
    roll: RollPolicy
    follows: str = ""
    """The id of the streaming query whose log a query that is new to the log takes over. Empty: none."""
    accept_replay: int | None = None
    """The number of the micro-batch that is taken for the one in the log, whatever its rows are."""
    checkpoint: str = ""
    """Spark's option ``checkpointLocation``; empty if it was not given."""
    query_name: str = ""
    """Spark's name for the query; empty if it has none."""

    @classmethod
    def parse(cls, given: Mapping[str, str], zookeeper: str | None = None) -> SinkOptions:
        """The options in ``given``, as Spark hands them over. ``zookeeper``: the session's cluster. Raises ConfigurationError."""
        options = _GivenOptions(given)
        log = options.judged("log", LogName)
        chosen: dict[str, Any] = {
            "ensemble_size": options.judged("ensembleSize", AtLeastOne),
            "write_quorum": options.judged("writeQuorum", AtLeastOne),
            "ack_quorum": options.judged("ackQuorum", AtLeastOne),
            "digest_type": options.judged("digestType", DigestType),
            "ledger_type": options.judged("ledgerType", LedgerType),
            "replication": options.judged("replication", Replication),
            "row_format": options.judged("rowFormat", RowFormat),
            "compression": options.judged("compression", Compression),
        }
        chosen = {name: value for name, value in chosen.items() if value is not None}
        bytes_max = options.judged("ledgerRollBytes", AtLeastOne)
        seconds_max = options.judged("ledgerRollSeconds", AtLeastOne)
        follows = options.text("follows") or ""
        accept_replay = options.judged("acceptReplay", EntryId)
        checkpoint, query_name = (options.text(name) or "" for name in _SPARK_OPTIONS)
        default = RollPolicy()
        roll = RollPolicy(bytes_max or default.bytes_max, seconds_max or default.seconds_max)
        address, password = _cluster(options, zookeeper)
        options.finish()
        if log is None:
            raise ConfigurationError("which log? A write needs option log, the name of the log to append to")
        # Options that contradict each other are an error here, and not after the first rows.
        LogOptions(**chosen)
        return cls(LogAddress(address, log, password), chosen, roll, follows, accept_replay, checkpoint, query_name)

    def for_batch(self) -> SinkOptions:
        """Return these options. Raises ConfigurationError for options that only a stream can have."""
        only = {
            "follows": self.follows,
            "acceptReplay": self.accept_replay,
            "checkpointLocation": self.checkpoint,
            "queryName": self.query_name,
        }
        for name, value in only.items():
            if value not in (None, ""):
                raise ConfigurationError(
                    f"option {name} is for streams (df.writeStream): a batch write takes over no log, and each run of it appends "
                    "its rows again; leave the option out"
                )
        return self


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read: exactly one of ``log``, ``ledgers`` and ``table`` is given."""

    zookeeper: str
    """The cluster."""
    password: bytes = field(repr=False)
    """The password of the log or the ledgers."""
    log: str | None
    """The name of the log to read, or of one of its lanes (``orders@3``)."""
    ledgers: tuple[int, ...] | None
    """The ids of the ledgers to read."""
    table: str | None
    """The name of the system table to read."""
    min_partitions: int
    """The read has at least this number of tasks, or one for each row if there are fewer rows."""
    fail_on_data_loss: bool
    """True: the read fails if rows were deleted before it came to them. False: it logs the loss and goes on."""
    start: int | str | Times
    """The first position of the log, EARLIEST or LATEST, or the times from which on rows are read."""
    end: int | str | Times
    """The position after the last row to read, or LATEST: the end of the rows that are committed when the read is planned, or the
    times before which rows are read."""
    include_timestamp: bool
    """Is the column ``timestamp`` wanted?"""
    subscription: str | None
    """The name under which a stream that starts at LATEST keeps its start."""
    rows_max: int | None
    """The most rows, or entries, of a micro-batch."""
    bytes_max: int | None
    """The most bytes of payload of a micro-batch."""
    poll_timeout_seconds: float
    """How long a trigger waits for entries when there are none, in seconds."""

    @classmethod
    def parse(cls, given: Mapping[str, str], zookeeper: str | None = None) -> SourceOptions:
        """The options in ``given``, as Spark hands them over. ``zookeeper``: the session's cluster. Raises ConfigurationError."""
        options = _GivenOptions(given)
        log = options.judged("log", LaneName)
        ledger = options.judged("ledger", LedgerId)
        ledgers = options.take("ledgers", _ids, "a list of ledger ids like 1,2,7-9")
        table = options.text("table")
        start = _place(options, "starting", _offset(EARLIEST, LATEST), _STARTS)
        end = _place(options, "ending", _offset(LATEST), _ENDS)
        include_timestamp = options.judged("includeTimestamp", bool)
        min_partitions = options.judged("minPartitions", AtLeastOne) or 1
        fail_on_data_loss = options.judged("failOnDataLoss", bool)
        subscription = options.judged("subscription", LogName)
        rows_max = options.judged("maxOffsetsPerTrigger", AtLeastOne)
        bytes_max = options.judged("maxBytesPerTrigger", AtLeastOne)
        poll_timeout_ms = options.judged("pollTimeoutMs", PollMilliseconds)
        address, password = _cluster(options, zookeeper)
        options.finish()
        choices = {"log": log, "ledger": ledger, "ledgers": ledgers, "table": table}
        chosen = [name for name, value in choices.items() if value is not None]
        if len(chosen) != 1:
            found = f"not {' and '.join(chosen)} at once" if chosen else "none was given"
            raise ConfigurationError(
                f"what to read? Give exactly one of the options log, ledger, ledgers and table; {found}"
            )
        if log is None and any(one is not None for one in (start, end, subscription, include_timestamp)):
            raise ConfigurationError(
                "options startingOffsets, endingOffsets, those with times, includeTimestamp and subscription are for reading a "
                f"log, not a {chosen[0].removesuffix('s')}"
            )
        if rows_max is not None and bytes_max is not None:
            raise ConfigurationError("give maxOffsetsPerTrigger or maxBytesPerTrigger: Spark knows one limit at a time")
        if ledger is not None:
            ledgers = (ledger,)
        return cls(
            zookeeper=address,
            password=password,
            log=log,
            ledgers=ledgers,
            table=table,
            min_partitions=min_partitions,
            fail_on_data_loss=fail_on_data_loss is not False,
            start=EARLIEST if start is None else start,
            end=LATEST if end is None else end,
            include_timestamp=include_timestamp is True,
            subscription=subscription,
            rows_max=rows_max,
            bytes_max=bytes_max,
            poll_timeout_seconds=0.5 if poll_timeout_ms is None else poll_timeout_ms / 1000,
        )

    def for_batch(self) -> SourceOptions:
        """Return these options. Raises ConfigurationError for options that only a stream can have."""
        if self.start == LATEST:
            raise ConfigurationError("startingOffsets 'latest' is for streams: a batch read would have no rows")
        if isinstance(self.start, int) and isinstance(self.end, int) and self.start > self.end:
            raise ConfigurationError(
                f"startingOffsets {self.start} is behind endingOffsets {self.end}: give a later end"
            )
        times = [one.all_ms for one in (self.start, self.end) if isinstance(one, Times) and one.all_ms is not None]
        if times != sorted(times):
            raise ConfigurationError("startingTimestamp is later than endingTimestamp: give a later end")
        only = {
            "subscription": self.subscription,
            "maxOffsetsPerTrigger": self.rows_max,
            "maxBytesPerTrigger": self.bytes_max,
        }
        for name, value in only.items():
            if value is not None:
                raise ConfigurationError(f"option {name} is for streams (spark.readStream); leave it out")
        return self

    def for_stream(self) -> SourceOptions:
        """Return these options. Raises ConfigurationError for options that a stream can't have."""
        if self.table is not None:
            raise ConfigurationError(
                f"system table {self.table!r} can't be read as a stream: read it with spark.read, as often as you like"
            )
        if self.end != LATEST:
            raise ConfigurationError(
                "options endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch reads (spark.read); a stream "
                "has no end"
            )
        if self.start == LATEST and self.subscription is None:
            raise ConfigurationError(
                "startingOffsets 'latest' needs option subscription, a name for your query: Bookspark keeps the "
                "query's start under this name, so that nothing is lost if the query ends before its first "
                "micro-batch is done"
            )
        if self.start != LATEST and self.subscription is not None:
            raise ConfigurationError("option subscription is only used with startingOffsets 'latest'; leave it out")
        return self
