"""Logs: named, unbounded sequences of rows, each kept in a chain of ledgers (docs/decisions/logs.md).

================  =========================================================================================
``registry``      the records of logs in the metadata store
``lane_choice``   which lane of a log a writer gets
``log_run``       where a log is, and which run writes it
``reader``        reads a log's commits, in order, as the log grows
``commit_times``  finds the first row of a time
``committer``     appends commits, each batch once
``data_ledgers``  takes the rows of the sink's tasks
``compaction``    keeps the chain of commit ledgers short
``maintenance``   deletes orphans, truncates and deletes logs
``codec``         the bytes of records and commits
``row_format``    how entries hold rows: the encodings
``rows``          chooses the encoder of a log and the decoder of a ledger
``value_rows``    entries that are one value each
``arrow_rows``    entries that are Arrow record batches
``splits``        divides what is read into partitions
================  =========================================================================================

The rows of each commit of log ``orders``::

    from bookspark import BookKeeper
    from bookspark.spark.logs import commits

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        for placed in commits(bookkeeper, "orders", b""):
            print(placed.before.rows, placed.commit.rows)
"""

from __future__ import annotations

from bookspark.spark.logs.committer import Committer, current_committer
from bookspark.spark.logs.data_ledgers import DataWriter, RollPolicy, current_data_ledger
from bookspark.spark.logs.log_run import LogAddress, LogRun
from bookspark.spark.logs.maintenance import collect_orphans, delete_log, recover_ledgers, truncate_log
from bookspark.spark.logs.reader import LogReader, PlacedCommit, commits, header_of, made_anew, newest_header
from bookspark.spark.logs.registry import LogRegistry, check_password

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
