"""Snapshots: the system tables as Delta tables, each snapshot one version of each of them.

Law: a snapshot replaces the content of each table, so that a version *is* a snapshot, and Delta's time travel the
history. All rows of a snapshot carry its ``snapshot_id`` and ``snapshot_time``, and so does each table's commit
(``userMetadata``): that is how the tables of one snapshot are found again. ``index_ranges`` is written last; a snapshot
that did not get so far does not count.

Consistency: the tables are read one after the other while writes go on, in the order of ``ORDER``. Ledgers, with what
was confirmed of them, come first and the indexes last. So what an index lacks of a confirmed entry it really lacks, but
for two things: the last copies of the newest entries of a ledger that is being written may be on their way; and a
ledger whose metadata changed between reading ``ledgers`` and ``fragments`` shows two values of ``metadata_version``,
and the audits leave it to the next snapshot.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from bookspark.client import BookKeeper
from bookspark.daemon.settings import of_environment
from bookspark.protocol.errors import BookKeeperError, ConfigurationError
from bookspark.spark.data_source import register
from bookspark.spark.system_tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER = ("ledgers", "fragments", "logs", "log_commits", "bookies", "index_ranges")
LAST = ORDER[-1]
assert set(ORDER) == set(TABLES)


@dataclass(frozen=True)
class Snapshot:
    """One snapshot. ``version`` is that of the table that is written last, and what ``AS OF`` goes by."""

    snapshot_id: str
    version: int
    time: datetime


def write(spark: SparkSession, zookeeper: str, path: str, password: str = "") -> Snapshot:
    """Read all system tables of the cluster and write them under ``path``, each as ``<path>/<table>``.

    ``password`` opens the logs and open ledgers that were made with it. Raises what reading them raises: a snapshot is
    whole, or it is none.
    """
    with BookKeeper(zookeeper, **of_environment("client")) as bookkeeper:
        bookkeeper.metadata.bookies()  # a cluster that can't be reached is said so here, in one line, and not by a task
    register(spark)
    snapshot_id, now = str(uuid.uuid4()), datetime.now(UTC)
    options = {"zookeeper": zookeeper, **({"password": password} if password else {})}
    for table in ORDER:
        rows = spark.read.format("bookspark").options(**options).option("table", table).load()
        stamped = rows.withColumn("snapshot_id", F.lit(snapshot_id)).withColumn("snapshot_time", F.lit(now))
        stamped = stamped.withMetadata("snapshot_id", {"comment": "The snapshot that the row is of"})
        stamped = stamped.withMetadata("snapshot_time", {"comment": "When the snapshot was begun"})
        writer = stamped.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.option("userMetadata", snapshot_id).save(_location(path, table))
    return next(snapshot for snapshot in history(spark, path) if snapshot.snapshot_id == snapshot_id)


def history(spark: SparkSession, path: str) -> list[Snapshot]:
    """All snapshots under ``path`` that are whole, the newest first."""
    return _history(_commits(spark, path))


def tables(spark: SparkSession, path: str, version: int | None = None) -> dict[str, DataFrame]:
    """The tables of the newest snapshot under ``path``, or of the one with ``version``. Raises ConfigurationError."""
    commits = _commits(spark, path)
    known = _history(commits)
    chosen = [snapshot for snapshot in known if version is None or snapshot.version == version]
    if not chosen:
        versions = ", ".join(str(snapshot.version) for snapshot in known) or "none"
        raise ConfigurationError(f"{path} has no snapshot of version {version}; there are: {versions}")
    found = {}
    for table in ORDER:
        versions_of = [c.version for c in commits if (c.table, c.snapshot_id) == (table, chosen[0].snapshot_id)]
        if not versions_of:
            raise BookKeeperError(
                f"{_location(path, table)} has nothing of snapshot {chosen[0].snapshot_id}; was it vacuumed, or copied in part?"
            )
        reader = spark.read.format("delta").option("versionAsOf", versions_of[0])
        found[table] = reader.load(_location(path, table))
    return found


class _Commit(NamedTuple):
    table: str
    version: int
    snapshot_id: str
    time: datetime


def _commits(spark: SparkSession, path: str) -> list[_Commit]:
    """What snapshots wrote to which version of which table.

    Delta's log is read as the JSON files that its protocol says it is: one small job for all tables, where DESCRIBE
    HISTORY costs seconds for each.
    """
    schema = "commitInfo struct<timestamp: bigint, userMetadata: string>"
    try:
        logged = spark.read.schema(schema).json([f"{_location(path, table)}/_delta_log/*.json" for table in ORDER])
        rows = (
            logged.where("commitInfo.userMetadata IS NOT NULL").select("commitInfo.*", "_metadata.file_path").collect()
        )
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise ConfigurationError(f"there is no snapshot under {path}; take one with jobs/snapshot.py") from None
        raise
    result = []
    for row in rows:
        *_, table, _, name = row.file_path.split("/")
        time = datetime.fromtimestamp(row.timestamp / 1000, UTC)
        result.append(_Commit(table, int(name.removesuffix(".json")), row.userMetadata, time))
    return result


def _history(commits: list[_Commit]) -> list[Snapshot]:
    whole = [Snapshot(c.snapshot_id, c.version, c.time) for c in commits if c.table == LAST]
    return sorted(whole, key=lambda snapshot: snapshot.version, reverse=True)


def _location(path: str, table: str) -> str:
    return f"{path.rstrip('/')}/{table}"
