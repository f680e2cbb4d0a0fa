"""Commits of snapshots: the versions of the Delta tables that make one snapshot, and the snapshots that count.

Law: a reader without Spark needs only this beside the tables themselves, so nothing here imports Spark, Arrow or Delta.
``bookspark.spark.snapshots`` defines snapshots and how they are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from bookspark.support.arguments import Name, checked
from bookspark.support.hadoop_paths import check_table_place

LAST = "index_ranges"
"""The table written last. A snapshot without it is not whole, and does not count."""
UNKNOWN = -1
"""The ``last_ledger_id`` of snapshots of earlier versions and of live tables, which lack it."""


@dataclass(frozen=True)
class Snapshot:
    snapshot_id: str
    version: int
    """The snapshot's version of the last written table (LAST)."""
    time: datetime
    """Write time of that table, in UTC."""
    cluster: str = ""
    """The cluster, as a ZooKeeper connection string; empty: a snapshot of an earlier version."""


class Commit(NamedTuple):
    """The commit of one snapshot to one table."""

    table: str
    version: int
    snapshot_id: str
    oldest: str
    """The id of the oldest snapshot kept since this commit."""
    time: datetime
    """Write time of the version, in UTC."""
    last_ledger_id: int = UNKNOWN
    """The highest ledger id assigned before the ledgers were listed."""
    cluster: str = ""
    """The cluster; empty if unknown."""


class Label(msgspec.Struct):
    """The ``userMetadata`` of a commit."""

    snapshot: str
    oldest: str
    last_ledger_id: int = UNKNOWN
    cluster: str = ""

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


@checked
def commit_of(table: Name, version: int, time_ms: int, label: str | None) -> Commit | None:
    """The commit of ``version`` of ``table``, written at ``time_ms`` (since 1970) with the ``userMetadata`` ``label``. None if no
    snapshot wrote it: other programs may commit to the table too, and a site may set a ``userMetadata`` for all of them."""
    try:
        told = msgspec.json.decode(label or "", type=Label)
    except msgspec.MsgspecError:
        return None
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return Commit(table, version, told.snapshot, told.oldest, time, told.last_ledger_id, told.cluster)


@checked
def kept(found: list[Commit]) -> list[Snapshot]:
    """The snapshots among these commits that are whole and retained, the newest first."""
    whole = sorted((c for c in found if c.table == LAST), key=lambda commit: commit.version, reverse=True)
    result = []
    for commit in whole:
        result.append(Snapshot(commit.snapshot_id, commit.version, commit.time, commit.cluster))
        if commit.snapshot_id == whole[0].oldest:
            break
    return result


@checked
def location(path: Name, table: Name) -> str:
    """The directory or URI of a table of the snapshots under ``path``. Raises ConfigurationError."""
    check_table_place(path)
    return f"{path.rstrip('/')}/{table}"
