"""Snapshots: the system tables as Delta tables, each snapshot one version of each of them.

Law: a snapshot replaces the content of each table, so that a version *is* a snapshot, and Delta's time travel the
history. All rows of a snapshot carry its ``snapshot_id`` and ``snapshot_time``, and each table's commit says in its
``userMetadata`` which snapshot it is of::

    {"snapshot": "<snapshot id>", "oldest": "<snapshot id>", "last_ledger_id": 42}

That is how the tables of one snapshot are found again. ``index_ranges`` is written last; a snapshot that did not get so
far does not count. ``oldest`` names the oldest snapshot that is still kept: what came before it is given up from that
commit on, whether its files are removed by now or not (``snapshot_retention``). ``last_ledger_id`` was given out last before
the ledgers were listed: one up to it that is not among them was deleted, a higher one may be younger than the list.

``entry_checksums`` reads every copy of every entry, so it is part of a snapshot only if it is asked for.

Consistency: the tables are read one after the other while writes go on, in the order of ``ORDER``. Ledgers, with what
was confirmed of them, come first and the indexes last. So what an index lacks of a confirmed entry it really lacks, but
for two things: the last copies of the newest entries of a ledger that is being written may be on their way; and a
ledger whose metadata changed between reading ``ledgers`` and ``fragments`` shows two values of ``metadata_version``,
and the audits leave it to the next snapshot. The commits are read between these two, so that what they name lies where
the fragments say.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from bookspark.client import BookKeeper
from bookspark.daemon.settings import of_environment
from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.spark.tables.system_tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER = (
    "ledgers",
    "logs",
    "log_commits",
    "fragments",
    "bookies",
    "cookies",
    "underreplication",
    "limbo",
    "entry_logs",
    "entry_checksums",
    "index_ranges",
)
LAST = ORDER[-1]
ON_REQUEST = frozenset({"entry_checksums"})
"""Tables that a snapshot may be without."""
assert set(ORDER) == set(TABLES)
LISTED = "last_ledger_id BIGINT"
UNKNOWN = -1
"""What snapshots of earlier versions, and live tables, say of it."""

_TABLE_PROPERTIES = {
    # Delta forgets versions after 30 days by itself; here it is told by ``oldest`` which ones are given up.
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.setTransactionRetentionDuration": "interval 1 days",
}


@dataclass(frozen=True)
class Snapshot:
    """One snapshot. ``version`` is that of the table that is written last, and what ``AS OF`` goes by."""

    snapshot_id: str
    version: int
    time: datetime


def write(
    spark: SparkSession,
    zookeeper: str,
    path: str,
    password: str = "",
    *,
    checksums: bool = False,
    keep: int | None = None,
) -> Snapshot:
    """Read all system tables of the cluster and write them under ``path``, each as ``<path>/<table>``. ``spark`` is a session of
    ``bookspark.spark.session``.

    ``password`` opens the logs and open ledgers that were made with it. ``checksums``: read every copy of every entry
    as well. ``keep``: how many snapshots there are to be at most, with this one; None: all. Raises what reading them
    raises: a snapshot is whole, or it is none.
    """
    if keep is not None and keep < 1:
        raise ConfigurationError(f"keep {keep} snapshots? Keep 1 at least, the one that is written")
    with BookKeeper(zookeeper, **of_environment("client")) as bookkeeper:
        # A cluster that can't be reached is said so here, in one line, and not by a task.
        last_ledger_id = bookkeeper.metadata.last_ledger_id()
    snapshot_id, now = str(uuid.uuid4()), datetime.now(UTC)
    label = _Label(snapshot_id, _oldest_kept(spark, path, keep) or snapshot_id, last_ledger_id)
    options = {"zookeeper": zookeeper, **({"password": password} if password else {})}
    for table in written(checksums):
        rows = spark.read.format("bookspark").options(**options).option("table", table).load()
        stamped = rows.withColumn("snapshot_id", F.lit(snapshot_id)).withColumn("snapshot_time", F.lit(now))
        stamped = stamped.withMetadata("snapshot_id", {"comment": "The snapshot that the row is of"})
        stamped = stamped.withMetadata("snapshot_time", {"comment": "When the snapshot was begun"})
        writer = stamped.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        # Replacing nothing with nothing makes a version only if it is a transaction of its own.
        writer = writer.option("userMetadata", label.encode()).option("txnAppId", snapshot_id).option("txnVersion", 0)
        writer.options(**_TABLE_PROPERTIES).save(location(path, table))
    return next(snapshot for snapshot in history(spark, path) if snapshot.snapshot_id == snapshot_id)


def written(checksums: bool = False) -> list[str]:
    """The tables of a snapshot that is taken so, in the order in which they are written."""
    return [table for table in ORDER if checksums or table not in ON_REQUEST]


def history(spark: SparkSession, path: str) -> list[Snapshot]:
    """All snapshots under ``path`` that are whole and were not given up, the newest first. Raises ConfigurationError if
    there never was one."""
    return kept(commits(spark, path))


def tables(spark: SparkSession, path: str, version: int | None = None) -> dict[str, DataFrame]:
    """The tables of the newest snapshot under ``path``, or of the one with ``version``; those of ``ON_REQUEST`` only if
    they are part of it. Also ``listed``, of one row, with its ``last_ledger_id``. Raises ConfigurationError."""
    found_commits = commits(spark, path)
    known = kept(found_commits)
    chosen = [snapshot for snapshot in known if version is None or snapshot.version == version]
    if not known:
        raise ConfigurationError(f"no snapshot under {path} is whole; take one with `bookspark snapshot`")
    if not chosen:
        versions = ", ".join(str(snapshot.version) for snapshot in known)
        raise ConfigurationError(f"{path} has no snapshot of version {version}; there are: {versions}")
    snapshot = chosen[0]
    last = max(commit.last_ledger_id for commit in found_commits if commit.snapshot_id == snapshot.snapshot_id)
    listed = spark.createDataFrame([(last,)], LISTED)
    return {**tables_of(spark, path, found_commits, snapshot), "listed": listed}


def tables_of(
    spark: SparkSession, path: str, found: list[Commit], snapshot: Snapshot, names: Iterable[str] = ORDER
) -> dict[str, DataFrame]:
    """Tables of one of the snapshots under ``path``, whose commits are ``found``."""
    versions = {commit.table: commit.version for commit in found if commit.snapshot_id == snapshot.snapshot_id}
    result = {}
    for table in names:
        if table in versions:
            reader = spark.read.format("delta").option("versionAsOf", versions[table])
            result[table] = reader.load(location(path, table))
        elif table not in ON_REQUEST:
            raise BookKeeperError(
                f"{location(path, table)} has nothing of snapshot {snapshot.snapshot_id}; was it vacuumed, or copied in part?"
            )
    return result


class Commit(NamedTuple):
    """What one snapshot wrote to one table."""

    table: str
    version: int
    snapshot_id: str
    oldest: str
    time: datetime
    last_ledger_id: int = UNKNOWN


class _Label(msgspec.Struct):
    """The ``userMetadata`` of a commit."""

    snapshot: str
    oldest: str
    last_ledger_id: int = UNKNOWN

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def commits(spark: SparkSession, path: str) -> list[Commit]:
    """What snapshots wrote to which version of which table.

    Delta's log is read as the JSON files that its protocol says it is: one small job for all tables, where DESCRIBE
    HISTORY costs seconds for each.
    """
    schema = "commitInfo struct<timestamp: bigint, userMetadata: string>"
    try:
        logged = spark.read.schema(schema).json(f"{location(path, '*')}/_delta_log/*.json")
        rows = (
            logged.where("commitInfo.userMetadata IS NOT NULL").select("commitInfo.*", "_metadata.file_path").collect()
        )
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise ConfigurationError(f"there is no snapshot under {path}; take one with `bookspark snapshot`") from None
        raise
    result = []
    for row in rows:
        *_, table, _, name = row.file_path.split("/")
        label = msgspec.json.decode(row.userMetadata, type=_Label)
        time = datetime.fromtimestamp(row.timestamp / 1000, UTC)
        result.append(
            Commit(table, int(name.removesuffix(".json")), label.snapshot, label.oldest, time, label.last_ledger_id)
        )
    return result


def kept(found: list[Commit]) -> list[Snapshot]:
    """The snapshots that are whole and were not given up, the newest first."""
    whole = sorted((c for c in found if c.table == LAST), key=lambda commit: commit.version, reverse=True)
    result = []
    for commit in whole:
        result.append(Snapshot(commit.snapshot_id, commit.version, commit.time))
        if commit.snapshot_id == whole[0].oldest:
            break
    return result


def location(path: str, table: str) -> str:
    """Where a table of the snapshots under ``path`` lies."""
    return f"{path.rstrip('/')}/{table}"


def _oldest_kept(spark: SparkSession, path: str, keep: int | None) -> str | None:
    """The oldest snapshot that is still to be kept beside the one that is being written; None: that is the first."""
    try:
        before = history(spark, path)
    except ConfigurationError:
        return None
    wanted = before if keep is None else before[: keep - 1]
    return wanted[-1].snapshot_id if wanted else None
