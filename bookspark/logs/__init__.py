"""Logs: named, unbounded sequences of rows, each kept in a chain of ledgers (docs/decisions/logs.md).

=========  ================================================================================
``chain``  the chain of a lane's commits: who writes it, and how it is kept, found and cleaned
``rows``   what entries of data ledgers hold, and who writes them
``feeds``  reading a log as it grows: the union of its lanes, between offsets
=========  ================================================================================

Nothing here needs Spark.

The rows of each commit of log ``orders``::

    from bookspark import BookKeeper
    from bookspark.logs import commits

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        for placed in commits(bookkeeper, "orders", b""):
            print(placed.before.rows, placed.commit.rows)
"""

from __future__ import annotations

from bookspark.logs.chain.committer import Committer, current_committer
from bookspark.logs.chain.log_run import LogAddress, LogRun
from bookspark.logs.chain.maintenance import collect_orphans, delete_log, recover_ledgers, truncate_log
from bookspark.logs.chain.reader import LogReader, PlacedCommit, commits, header_of, made_anew, newest_header
from bookspark.logs.chain.registry import LogRegistry, check_password
from bookspark.logs.rows.data_ledgers import DataWriter, RollPolicy, current_data_ledger

__all__ = [
    "Committer",
    "DataWriter",
    "LogAddress",
    "LogReader",
    "LogRegistry",
    "LogRun",
    "PlacedCommit",
    "RollPolicy",
    "check_password",
    "collect_orphans",
    "commits",
    "current_committer",
    "current_data_ledger",
    "delete_log",
    "header_of",
    "made_anew",
    "newest_header",
    "recover_ledgers",
    "truncate_log",
]
