"""Logs: named, unbounded sequences of rows in chains of ledgers (docs/decisions/logs.md). No module here needs Spark.

====================  ================================================================================
``log``               a log, for services and scripts
``producer``          writes rows of a service
``appended``          the result of an append
``producer_ledgers``  the ledgers of a producer, one after another
``lane_ending``       ends idle lanes
``row_reader``        reads rows, once or as the log grows
``chain``             a lane's record and commits: writers, readers, search by time, cleaning
``rows``              entries of data ledgers: encodings, sizes, statistics, writers
``feeds``             rows between two offsets of a log: the union of its lanes
``readers``           the readers of a log, and their lag
====================  ================================================================================

::

    from bookspark import BookKeeper
    from bookspark.logs import open_log

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        log = open_log(bookkeeper, "orders")
        with log.producer("billing-7") as producer:
            producer.append(b"an order")
        for row in log.reader():
            print(row.lane, row.position, row.value)

A name is imported at its first use, so a Spark task that reads rows does not load the producer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bookspark.logs.appended import RowPosition, UnexpectedPositionError
    from bookspark.logs.chain.commit_ledgers import PlacedCommit, header_of, newest_header
    from bookspark.logs.chain.committer import Committer, current_committer
    from bookspark.logs.chain.log_run import LogAddress, LogRun
    from bookspark.logs.chain.maintenance import collect_orphans, delete_log, recover_ledgers, truncate_log
    from bookspark.logs.chain.reader import LogReader, commits
    from bookspark.logs.chain.registry import LogRegistry, check_password
    from bookspark.logs.chain.retention import truncate_expired
    from bookspark.logs.feeds.gaps import Gap, GapKind
    from bookspark.logs.log import Log, create_log, open_log
    from bookspark.logs.producer import Producer
    from bookspark.logs.row_reader import LogRow, RowReader
    from bookspark.logs.rows.data_ledgers import DataWriter, RollPolicy, current_data_ledger
    from bookspark.protocol.logs.log_options import LogOptions

_NAMES = {
    "bookspark.logs.appended": ("RowPosition", "UnexpectedPositionError"),
    "bookspark.logs.chain.commit_ledgers": ("PlacedCommit", "header_of", "newest_header"),
    "bookspark.logs.chain.committer": ("Committer", "current_committer"),
    "bookspark.logs.chain.log_run": ("LogAddress", "LogRun"),
    "bookspark.logs.chain.maintenance": ("collect_orphans", "delete_log", "recover_ledgers", "truncate_log"),
    "bookspark.logs.chain.reader": ("LogReader", "commits"),
    "bookspark.logs.chain.registry": ("LogRegistry", "check_password"),
    "bookspark.logs.chain.retention": ("truncate_expired",),
    "bookspark.logs.feeds.gaps": ("Gap", "GapKind"),
    "bookspark.logs.log": ("Log", "create_log", "open_log"),
    "bookspark.logs.producer": ("Producer",),
    "bookspark.logs.row_reader": ("LogRow", "RowReader"),
    "bookspark.logs.rows.data_ledgers": ("DataWriter", "RollPolicy", "current_data_ledger"),
    "bookspark.protocol.logs.log_options": ("LogOptions",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Committer",
    "DataWriter",
    "Gap",
    "GapKind",
    "Log",
    "LogAddress",
    "LogOptions",
    "LogReader",
    "LogRegistry",
    "LogRow",
    "LogRun",
    "PlacedCommit",
    "Producer",
    "RollPolicy",
    "RowPosition",
    "RowReader",
    "UnexpectedPositionError",
    "check_password",
    "collect_orphans",
    "commits",
    "create_log",
    "current_committer",
    "current_data_ledger",
    "delete_log",
    "header_of",
    "newest_header",
    "open_log",
    "recover_ledgers",
    "truncate_expired",
    "truncate_log",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
