"""Snapshots: the system tables as Delta tables, each snapshot one version of each of them."""

from __future__ import annotations

from bookspark.spark.snapshots.snapshot import (
    LAST,
    LISTED,
    ORDER,
    UNKNOWN,
    Commit,
    Snapshot,
    commits,
    history,
    kept,
    location,
    tables,
    tables_of,
    write,
    written,
)

__all__ = [
    "LAST",
    "LISTED",
    "ORDER",
    "UNKNOWN",
    "Commit",
    "Snapshot",
    "commits",
    "history",
    "kept",
    "location",
    "tables",
    "tables_of",
    "write",
    "written",
]
