"""Logs: named, unbounded chains of ledgers (docs/decisions/logs.md)."""

from __future__ import annotations

from bookspark.spark.logs.committer import Committer, current_committer, release_committer
from bookspark.spark.logs.data_ledgers import DataWriter, RollPolicy, current_data_ledger
from bookspark.spark.logs.maintenance import collect_orphans, delete_log, recover_ledgers, truncate_log
from bookspark.spark.logs.reader import LogReader, PlacedCommit, commits, header_of, made_anew
from bookspark.spark.logs.registry import LogRegistry, check_password

__all__ = [
    "Committer",
    "DataWriter",
    "LogReader",
    "LogRegistry",
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
    "recover_ledgers",
    "release_committer",
    "truncate_log",
]
