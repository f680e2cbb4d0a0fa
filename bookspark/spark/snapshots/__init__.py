"""Snapshots: the system tables as Delta tables. Each snapshot is a version of each table.

=============  ====================================================================
``snapshot``   writes a snapshot; reads snapshots and their tables
``retention``  removes the files of old snapshots; takes snapshots at an interval
=============  ====================================================================

::

    from bookspark.spark import session, snapshots

    spark = session("snapshots")
    taken = snapshots.write(spark, "127.0.0.1:2181", "/tmp/snapshots", keep=100)
    tables = snapshots.tables(spark, "/tmp/snapshots", taken.version)
    tables["bookies"].select("bookie_id", "state").show()
"""

from __future__ import annotations

from bookspark.spark.snapshots.snapshot import LISTED, ORDER, commits, history, tables, tables_of, write, written
from bookspark.support.snapshot_commits import LAST, UNKNOWN, Commit, Snapshot, kept, location

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
