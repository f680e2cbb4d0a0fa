"""What the commits of snapshots tell: which versions of the Delta tables make one snapshot, and which snapshots count.

Law: this is all that a reader without Spark needs beside the tables themselves, so nothing here imports Spark, Arrow or Delta.
What a snapshot is, and how it is written, is told by ``bookspark.spark.snapshots``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from bookspark.support.arguments import Name, checked

LAST = "index_ranges"
"""The table that is written last. A snapshot without it is not whole, and does not count."""
UNKNOWN = -1
"""The ``last_ledger_id`` of snapshots of earlier versions and of live tables, which have none."""


@dataclass(frozen=True)
class Snapshot:
    """One snapshot."""

    snapshot_id: str
    """A random id."""
    version: int
    """Its version of the table that is written last (LAST)."""
    time: datetime
    """When that table was written, in UTC."""
    cluster: str = ""
    """The cluster, as a ZooKeeper connection string; empty: an earlier version wrote the snapshot and did not note it."""


class Commit(NamedTuple):
    """What one snapshot wrote to one table."""

    table: str
    """The table's name."""
    version: int
    """The version of the table."""
    snapshot_id: str
    """The snapshot's id."""
    oldest: str
    """The id of the oldest snapshot that is kept since this commit."""
    time: datetime
    """When the version was written, in UTC."""
    last_ledger_id: int = UNKNOWN
    """The highest ledger id that was given out before the ledgers were listed."""
    cluster: str = ""
    """The cluster; empty if it was not noted."""


class Label(msgspec.Struct):
    """The ``userMetadata`` of a commit."""

    snapshot: str
    oldest: str
    last_ledger_id: int = UNKNOWN
    cluster: str = ""

    def encode(self) -> str:
        """As JSON."""
        return msgspec.json.encode(self).decode()


@checked
def commit_of(table: Name, version: int, time_ms: int, label: str) -> Commit:
    """The commit of ``version`` of ``table``, which was written at ``time_ms`` (since 1970) with the ``userMetadata`` ``label``.
    Raises msgspec's errors if the label is none of a snapshot."""
    told = msgspec.json.decode(label, type=Label)
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return Commit(table, version, told.snapshot, told.oldest, time, told.last_ledger_id, told.cluster)


@checked
def kept(found: list[Commit]) -> list[Snapshot]:
    """The snapshots among these commits that are whole and not given up, the newest first."""
    whole = sorted((c for c in found if c.table == LAST), key=lambda commit: commit.version, reverse=True)
    result = []
    for commit in whole:
        result.append(Snapshot(commit.snapshot_id, commit.version, commit.time, commit.cluster))
        if commit.snapshot_id == whole[0].oldest:
            break
    return result


@checked
def location(path: Name, table: Name) -> str:
    """The directory or URI of a table of the snapshots under ``path``."""
    return f"{path.rstrip('/')}/{table}"
