"""Options of other log stores' Spark connectors, and their counterparts here.

Law: a name that means exactly one option here is taken for it. Any other known name is refused with the option that does its
work here, because a near name such as ``subscription`` for ``subscribe`` would mislead.

Sources: Spark's Kafka connector (Structured Streaming + Kafka Integration Guide, 4.2), StreamNative's Pulsar connector, Delta's
source, Spark's file source, and the Kinesis connectors of AWS and Databricks.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""A sentence for each name in lower case."""
_CLIENTS = ("kafka.", "pulsar.", "kinesis.")
"""Beginnings of names of other clients' options."""


def instead(name: str) -> str:
    """The sentence for a name in lower case; empty for an unknown name."""
    return INSTEAD.get(name) or (_OTHERS_CLIENT if name.startswith(_CLIENTS) else "")


def own_name(name: str, value: str) -> str:
    """The option for which a name in lower case is taken: our own, or the name itself."""
    return "logs" if name == "subscribe" and "," in value else TAKEN_FOR.get(name, name)
