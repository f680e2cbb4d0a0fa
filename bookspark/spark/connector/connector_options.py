"""Options of ``format("bookspark")``: what ``.option(...)`` may say, as frozen values.

Law: an option that is unknown, or has a value that can't be used, is a ConfigurationError on the driver, before
anything is read or written. Spark hands option names over in lower case; here they are known, and shown, as they are
written in programs.

Sink
    ``log`` (required), ``zookeeper``, ``password``; ``ensembleSize``, ``writeQuorum``, ``ackQuorum`` (3, 3, 2),
    ``digestType`` (CRC32C), ``ledgerType`` (PD_JOURNAL) and ``replication`` (best_effort) of a log that this write
    makes: with VD_JOURNAL each task syncs once, before it ends; also of a new log ``rowFormat`` (``value``, or ``arrow``: rows
    keep all their columns) and ``compression`` (``none``, ``zstd``, ``zstd_dictionary``); ``ledgerRollBytes``,
    ``ledgerRollSeconds``: when a data ledger is closed.
Source
    one of ``log``, ``ledger`` (an id), ``ledgers`` (``1,2,7-9``) and ``table`` (a system table); ``zookeeper``,
    ``password``; ``minPartitions``; ``failOnDataLoss`` (true); of a log also ``startingOffsets`` (``earliest`` or a
    position).
Batch source
    also, of a log, ``endingOffsets`` (``latest`` or the position after the last one, which the log must have reached).
Streaming source
    also ``maxOffsetsPerTrigger`` or ``maxBytesPerTrigger``; ``pollTimeoutMs`` (500): how long a trigger waits for entries
    when there are none; of a log also ``startingOffsets`` ``latest``, together with ``subscription``, a name under which the
    start is kept until the first micro-batch is done: Spark does not keep it, and would begin anew at a later one.

``zookeeper`` may be left out where the session knows it (``spark.bookspark.zookeeper``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.ledger_choices import choice_of
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.logs.log_record import Compression, LogOptions, RowFormat
from bookspark.spark.logs import RollPolicy
from bookspark.spark.logs.registry import check_name

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=Enum)

EARLIEST, LATEST = "earliest", "latest"

_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})
"""Spark's own, handed to sinks along with theirs."""
_OF_A_TABLE = "provider"
"""Among the properties that CREATE TABLE hands over as options. Were they taken, it would make a table that Spark 4.2 can't
read: a Python data source "is not a valid Spark SQL Data Source" there (seen, with Delta's catalog)."""


class _Options:
    """The options given, each taken by name once; ``finish`` complains about what was not asked for."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._known: list[str] = []

    def take(self, name: str, convert: Callable[[str], Value], what: str) -> Value | None:
        """The option's value, None if it was not given."""
        self._known.append(name)
        text = self._given.get(name.lower())
        if text is None:
            return None
        try:
            return convert(text)
        except ConfigurationError:
            raise
        except (ValueError, KeyError):
            raise ConfigurationError(f"option {name}: {text!r} is not {what}") from None

    def text(self, name: str) -> str | None:
        return self.take(name, str, "text")

    def choice(self, name: str, kind: type[Choice]) -> Choice | None:
        """One of the values of ``kind``, in any case."""
        return self.take(name, lambda text: choice_of(kind, text, f"option {name}:"), "")

    def finish(self) -> None:
        known = {name.lower(): name for name in self._known}
        if _OF_A_TABLE in self._given:
            raise ConfigurationError(
                "format bookspark has no tables in Spark's catalog: make a view, by CREATE TEMPORARY VIEW name USING bookspark "
                "OPTIONS (…); a stream is written by start(), a batch by save()"
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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _ids(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start = _not_negative(first)
        stop = _not_negative(last) if dash else start
        if stop < start:
            raise ValueError
        ids.extend(range(start, stop + 1))
    return tuple(ids)


def _digest(text: str) -> DigestType:
    return DigestType[text.upper()]


def _offset(*words: str) -> Callable[[str], int | str]:
    return lambda text: text.lower() if text.lower() in words else _not_negative(text)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _cluster(options: _Options, default: str | None) -> tuple[str, bytes]:
    zookeeper = options.text("zookeeper") or default
    password = options.text("password") or ""
    if not zookeeper:
        raise ConfigurationError(
            "which cluster? Give option zookeeper (host:port[,host:port…]), "
            "or start the session with bookspark.spark.session(…, zookeeper=…)"
        )
    return zookeeper, password.encode()


@dataclass(frozen=True)
class SinkOptions:
    """What a write asks for. ``chosen`` are fields of LogOptions that were given; the log may be made with others."""

    zookeeper: str
    log: str
    password: bytes
    chosen: Mapping[str, Any]
    roll: RollPolicy

    @classmethod
    def parse(cls, given: Mapping[str, str], zookeeper: str | None = None) -> SinkOptions:
        """``zookeeper`` is the session's."""
        options = _Options(given)
        log = options.text("log")
        chosen: dict[str, Any] = {
            "ensemble_size": options.take("ensembleSize", _positive, "a positive number"),
            "write_quorum": options.take("writeQuorum", _positive, "a positive number"),
            "ack_quorum": options.take("ackQuorum", _positive, "a positive number"),
            "digest_type": options.take("digestType", _digest, f"one of {', '.join(d.name for d in DigestType)}"),
            "ledger_type": options.choice("ledgerType", LedgerType),
            "replication": options.choice("replication", Replication),
            "row_format": options.choice("rowFormat", RowFormat),
            "compression": options.choice("compression", Compression),
        }
        chosen = {name: value for name, value in chosen.items() if value is not None}
        bytes_max = options.take("ledgerRollBytes", _positive, "a positive number of bytes")
        seconds_max = options.take("ledgerRollSeconds", _positive, "a positive number of seconds")
        default = RollPolicy()
        roll = RollPolicy(bytes_max or default.bytes_max, seconds_max or default.seconds_max)
        address, password = _cluster(options, zookeeper)
        options.finish()
        if log is None:
            raise ConfigurationError("which log? A write needs option log, the name of the log to append to")
        LogOptions(**chosen)
        return cls(address, check_name(log), password, chosen, roll)


@dataclass(frozen=True)
class SourceOptions:
    """What a read asks for: exactly one of ``log``, ``ledgers`` and ``table``."""

    zookeeper: str
    password: bytes
    log: str | None
    ledgers: tuple[int, ...] | None
    table: str | None
    min_partitions: int
    fail_on_data_loss: bool
    start: int | str
    """First position of the log, EARLIEST or LATEST."""
    end: int | str
    """The position after the last one, or LATEST: what is committed when the read is planned."""
    subscription: str | None
    rows_max: int | None
    """Of a micro-batch."""
    bytes_max: int | None
    """Of a micro-batch."""
    poll_timeout_seconds: float

    @classmethod
    def parse(cls, given: Mapping[str, str], zookeeper: str | None = None) -> SourceOptions:
        """``zookeeper`` is the session's."""
        options = _Options(given)
        log = options.text("log")
        ledger = options.take("ledger", _not_negative, "a ledger id")
        ledgers = options.take("ledgers", _ids, "a list of ledger ids like 1,2,7-9")
        table = options.text("table")
        start = options.take(
            "startingOffsets",
            _offset(EARLIEST, LATEST),
            "'earliest', a position (a number from 0) or, of a stream, 'latest'",
        )
        end = options.take("endingOffsets", _offset(LATEST), "'latest' or a position (a number from 0)")
        min_partitions = options.take("minPartitions", _positive, "a positive number") or 1
        fail_on_data_loss = options.take("failOnDataLoss", _boolean, "'true' or 'false'")
        subscription = options.text("subscription")
        rows_max = options.take("maxOffsetsPerTrigger", _positive, "a positive number of entries")
        bytes_max = options.take("maxBytesPerTrigger", _positive, "a positive number of bytes")
        poll_timeout_ms = options.take("pollTimeoutMs", _not_negative, "a number of milliseconds")
        address, password = _cluster(options, zookeeper)
        options.finish()
        choices = {"log": log, "ledger": ledger, "ledgers": ledgers, "table": table}
        chosen = [name for name, value in choices.items() if value is not None]
        if len(chosen) != 1:
            found = f"not {' and '.join(chosen)} at once" if chosen else "none was given"
            raise ConfigurationError(
                f"what to read? Give exactly one of the options log, ledger, ledgers and table; {found}"
            )
        if log is None and (start is not None or end is not None or subscription is not None):
            raise ConfigurationError(
                "options startingOffsets, endingOffsets and subscription are for reading a log, "
                f"not a {chosen[0].removesuffix('s')}"
            )
        if rows_max is not None and bytes_max is not None:
            raise ConfigurationError("give maxOffsetsPerTrigger or maxBytesPerTrigger: Spark knows one limit at a time")
        if ledger is not None:
            ledgers = (ledger,)
        return cls(
            address,
            password,
            log and check_name(log),
            ledgers,
            table,
            min_partitions,
            fail_on_data_loss is not False,
            EARLIEST if start is None else start,
            LATEST if end is None else end,
            subscription and check_name(subscription),
            rows_max,
            bytes_max,
            0.5 if poll_timeout_ms is None else poll_timeout_ms / 1000,
        )

    def for_batch(self) -> SourceOptions:
        """Raises ConfigurationError for options that only a stream has."""
        if self.start == LATEST:
            raise ConfigurationError("startingOffsets 'latest' is for streams: a batch read would have no rows")
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
        """Raises ConfigurationError for options that a stream can't have."""
        if self.table is not None:
            raise ConfigurationError(
                f"system table {self.table!r} can't be read as a stream: read it with spark.read, as often as you like"
            )
        if self.end != LATEST:
            raise ConfigurationError("option endingOffsets is for batch reads (spark.read); a stream has no end")
        if self.start == LATEST and self.subscription is None:
            raise ConfigurationError(
                "startingOffsets 'latest' needs option subscription, a name for this query of yours: its start is kept under "
                "it, so that nothing is lost if the query ends before its first micro-batch is done"
            )
        if self.start != LATEST and self.subscription is not None:
            raise ConfigurationError("option subscription is only used with startingOffsets 'latest'; leave it out")
        return self
