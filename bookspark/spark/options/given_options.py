"""The given values of ``.option(...)``, taken name by name.

Law: an unknown option is a ConfigurationError that names the nearest known option. Spark gives names in lower case;
errors show them as written in programs.

All
    ``zookeeper``: the cluster, ``host:port[,host:port…][/chroot]`` (default: the session's, or the environment variable
    ``BOOKSPARK_ZOOKEEPER``). ``password``: that of the log or the ledgers. For ``log`` also ``path`` (the argument of ``load``,
    ``save`` and ``start``), ``topic`` and Kafka's ``subscribe``, which with a comma is ``logs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from bookspark.errors import ConfigurationError
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.support.arguments import Misfit, PasswordText, from_text, refused

Value = TypeVar("Value")

# -- Options of other log stores' Spark connectors, and their counterparts here
#
# Law: a name that means exactly one option here is taken for it. Any other known name is refused with the option that does its
# work here, because a near name such as ``subscription`` for ``subscribe`` would mislead.
#
# Sources: Spark's Kafka connector (Structured Streaming + Kafka Integration Guide, 4.2), StreamNative's Pulsar connector, Delta's
# source, Spark's file source, and the Kinesis connectors of AWS and Databricks.


TAKEN_FOR: Mapping[str, str] = {"path": "log", "topic": "log", "subscribe": "log"}
"""Our option for each name. With a comma in its value, ``subscribe`` is ``logs``. ``path`` is the argument of ``load``, ``save``
and ``start``."""

_BOOKIES = "option zookeeper names the cluster (host:port[,host:port…]), and its bookies are found there"
_OTHERS_CLIENT = (
    "it is of another store's client; the options of Bookspark's are in the settings file that BOOKSPARK_CONFIG names"
)
_LANE = "option log set to NAME@LANE reads one lane, and includeLane adds a column; each writing query has a lane of its own"
_PATTERN = "use option logPattern, a Python regular expression for whole names"
_LIMIT = "use maxOffsetsPerTrigger (rows) or maxBytesPerTrigger"
_GROUPS = "Spark's checkpoint keeps a query's place; queryName names the query for bookspark log readers"
_START = "use startingOffsets (earliest, or a position) or startingTimestamp"
_CHANGES = "a log's rows never change; leave it out"
_NEEDLESS = "a read tries other replicas by itself; leave it out"

INSTEAD: Mapping[str, str] = {
    # Spark's Kafka source and sink
    "assign": _LANE,
    "partition": _LANE,
    "subscribepattern": _PATTERN,
    "groupidprefix": _GROUPS,
    "fetchoffset.numretries": _NEEDLESS,
    "fetchoffset.retryintervalms": _NEEDLESS,
    "kafkaconsumer.polltimeoutms": "use pollTimeoutMs",
    "startingoffsetsbytimestampstrategy": (
        "a time after the last row means the end of the log, as Kafka's strategy latest does; leave it out"
    ),
    "maxrecordsperpartition": "use minPartitions",
    # Pulsar
    "topics": "use option logs, like a,b,c",
    # Several arguments of load
    "paths": "use option logs, like a,b,c",
    "topicspattern": _PATTERN,
    "predefinedsubscription": _GROUPS,
    "subscriptionprefix": _GROUPS,
    "service.url": _BOOKIES,
    "admin.url": _BOOKIES,
    # Delta, files
    "startingversion": _START,
    "maxfilespertrigger": _LIMIT,
    "ignorechanges": _CHANGES,
    "ignoredeletes": _CHANGES,
    "skipchangecommits": _CHANGES,
    # Kinesis
    "streamname": "use option log",
    "kinesis.streamname": "use option log",
    "endpointurl": _BOOKIES,
    "kinesis.endpointurl": _BOOKIES,
    "region": _BOOKIES,
    "initialposition": _START,
    "startingposition": _START,
    "kinesis.startingposition": _START,
    # Any store
    "bootstrap.servers": _BOOKIES,
    "kafka.bootstrap.servers": _BOOKIES,
    "kafka.group.id": _GROUPS,
}
_CLIENTS = ("kafka.", "pulsar.", "kinesis.")
"""Beginnings of names of other clients' options."""


# -- The options


SPARK_OPTIONS = ("checkpointlocation", "queryname")
"""Spark's own options, which it also passes to sinks."""
_OF_A_TABLE = "provider"
"""CREATE TABLE passes an option of this name. It is refused: Spark 4.2 can't read a table of a Python data source ("is not a
valid Spark SQL Data Source", seen with Delta's catalog)."""


class GivenOptions:
    """The given options. Each is taken by its name once; ``finish`` refuses the rest."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given: dict[str, str] = {}
        self._known: list[str] = []
        names: dict[str, str] = {}
        for name, value in given.items():
            own = TAKEN_FOR.get(name.lower(), name.lower())
            own = "logs" if name.lower() == "subscribe" and "," in value else own
            if self._given.setdefault(own, value) != value:
                raise ConfigurationError(f"options {names[own]} and {name} say two things: give one of them")
            names[own] = name

    def given(self, *names: str) -> list[str]:
        """The given options among ``names``."""
        return [name for name in names if name.lower() in self._given]

    def take(self, name: str, convert: Callable[[str], Value], what: str) -> Value | None:
        """The option's value, or None. ``what``: the allowed values in words, for the error."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return convert(text)
        except ValueError:
            raise refused("option", name, Misfit(text, what)) from None

    def judged(self, name: str, annotation: Any) -> Any:
        """The option's value by the rule of ``annotation``, or None."""
        self._known.append(name)
        text = self._given.get(name.lower())
        return None if text is None else from_text("option", name, text, annotation)

    def text(self, name: str) -> str | None:
        text: str | None = self.judged(name, str)
        return text

    def finish(self) -> None:
        """Raise ConfigurationError if a given option was not taken."""
        known = {name.lower(): name for name in self._known}
        if _OF_A_TABLE in self._given:
            raise ConfigurationError(
                "format bookspark has no tables in Spark's catalog: make a view, by CREATE TEMPORARY VIEW name USING bookspark "
                "OPTIONS (…). To write, use start() for a stream and save() for a batch"
            )
        for name in self._given:
            if name not in known and name not in SPARK_OPTIONS:
                if there := INSTEAD.get(name) or (_OTHERS_CLIENT if name.startswith(_CLIENTS) else ""):
                    raise ConfigurationError(f"format bookspark has no option {name!r}: {there}")
                nearest = get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {known[nearest[0]]!r}?"
                    if nearest
                    else f"known are: {', '.join(sorted(self._known))}"
                )
                raise ConfigurationError(f"unknown option {name!r} of format bookspark; {hint}")


def cluster(options: GivenOptions, default: str | None) -> tuple[str, bytes]:
    """The cluster (``default`` without an option) and the password. Raises ConfigurationError."""
    zookeeper = options.judged("zookeeper", ConnectionString) or default
    password = options.judged("password", PasswordText) or ""
    if not zookeeper:
        raise ConfigurationError(
            "which cluster? Give option zookeeper (host:port[,host:port…]), start the session with "
            "bookspark.spark.session(…, zookeeper=…), or set the environment variable BOOKSPARK_ZOOKEEPER before Spark starts. "
            "(Spark's setting spark.bookspark.zookeeper counts once bookspark.spark.session was called: it shows the setting to "
            "the format)"
        )
    return zookeeper, password.encode()
