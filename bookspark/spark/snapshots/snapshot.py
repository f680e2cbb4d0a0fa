"""Snapshots: the system tables as Delta tables. Each snapshot is a version of each table.

Law: a snapshot replaces the whole content of each table. So a version *is* a snapshot, and Delta's time travel is the history.
All rows have ``snapshot_id`` and ``snapshot_time``. Each table's commit names its snapshot in ``userMetadata``::

    {"snapshot": "<snapshot id>", "oldest": "<snapshot id>", "last_ledger_id": 42, "cluster": "zk1:2181,zk2:2181/bookspark"}

``index_ranges`` is written last; a snapshot without it is incomplete and does not count. Its transaction has the number that
follows the newest snapshot at the beginning, and Delta commits a number once. So of two snapshots at once one counts, and the
other fails: each would give up what it did not see. ``oldest`` names the oldest kept
snapshot: this commit gives up all earlier snapshots, even before their files are removed (see ``retention``). ``last_ledger_id``
is the highest ledger id in use before the ledgers were listed: a ledger up to it that is not in ``ledgers`` was deleted; a higher
ledger may be younger than the list. ``entry_checksums`` reads every copy of every entry, so a snapshot has it only on request.

The tables are read one after the other while writes go on, in the order of ``ORDER``:

* ``ledger_ids`` comes first: a ledger that the commits name was deleted if it is neither in that list nor in the records.
* The records of ledgers are read once; ``ledgers``, ``fragments`` and ``accepted_losses`` are parts of that read, kept on the
  executors' disks. It comes after the commits, so that their entries are where the fragments say.
* Indexes come last. So a confirmed entry that an index lacks is really missing there, with two exceptions. The last copies of the
  newest entries of an open ledger may still be on their way. And if an executor is lost in between, its part of the records is
  read again: a ledger whose record changed then has two values of ``metadata_version``, and the audits leave it to the next
  snapshot.
* ``disks`` follows ``entry_checksums``, because that read detects damage.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark import RDD, StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.spark.connector.data_source import log_errors_only
from bookspark.spark.tables.ledgers import LEDGER_RECORDS, LEDGERS, parts_of
from bookspark.spark.tables.system_tables import TABLES
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.settings import of_environment
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Name, PasswordText, checked
from bookspark.support.hadoop_paths import check_table_place
from bookspark.support.snapshot_commits import LAST, Commit, Label, Snapshot, commit_of, kept, location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDER = (
    "ledger_ids",
    "logs",
    "log_commits",
    "ledgers",
    "fragments",
    "accepted_losses",
    "bookies",
    "cookies",
    "placement",
    "underreplication",
    "autorecovery",
    "limbo",
    "entry_logs",
    "entry_checksums",
    "disks",
    "index_ranges",
)
"""The tables of a snapshot, in the order of their writes."""
assert ORDER[-1] == LAST
ON_REQUEST = frozenset({"entry_checksums"})
"""Tables that a snapshot has only on request."""
LIVE_ONLY = frozenset({"gaps", LEDGER_RECORDS.name})
"""Tables outside of snapshots: gaps are a question to the present bookies, and the parts of records have their own tables."""
assert set(ORDER) == set(TABLES) - LIVE_ONLY
ROWS_PER_FILE, _FILES_PER_RUN = 50_000, 12
"""Short files: by Delta's log of ids in each file, a search for a ledger reads a small part of a table in ledger order."""
LISTED = "last_ledger_id BIGINT"
"""The schema of the table ``listed``, which ``tables`` adds."""

GLOB_LOGGER = "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink"
"""The logger that warns, with a stack trace, whenever Spark 4.2 reads a path with an asterisk."""

_TURNS = "snapshots"
"""Application of the transactions that make snapshots count, one after the other."""
_DEFAULTS = "spark.databricks.delta.properties.defaults."
"""Prefix of a session's settings with default properties of new Delta tables."""
_TABLE_PROPERTIES = {
    # By default Delta forgets versions after 30 days. Here ``oldest`` decides which versions are given up.
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.setTransactionRetentionDuration": "interval 1 days",
}


def rows_in_file(ledgers: int) -> int:
    """Rows of a file at most. With very many ledgers, files are longer instead of more: the slices of an index of 10⁷ ledgers in
    three copies, a run each, are a file each."""
    return max(ROWS_PER_FILE, math.ceil(ledgers / _FILES_PER_RUN))


@checked
def write(
    spark: SparkSession,
    zookeeper: ConnectionString,
    path: Name,
    password: PasswordText = "",
    *,
    checksums: bool = False,
    keep: AtLeastOne | None = None,
    begins: Callable[[str, int, int], None] = lambda table, number, count: None,
) -> Snapshot:
    """Take a snapshot: write all system tables of the cluster under ``path``, each as ``<path>/<table>``. Returns the snapshot.

    ``spark``: a session of ``bookspark.spark.session``, which has Delta. ``zookeeper``: the cluster. ``path``: a directory or
    URI. ``password`` opens the logs and open ledgers that have it; of others a snapshot has only the metadata. ``checksums``:
    also read every copy of every entry. ``keep``: number of newest snapshots to keep, including this; the others are given up.
    None: keep all. ``begins(table, number, count)`` is called before each table with the number of written tables and of all.

    A snapshot is complete, or it does not count. Raises ConfigurationError (``keep`` is less than 1), MetadataStoreError
    (ZooKeeper does not answer), BookKeeperError (another snapshot of this path is being written), and Spark's errors, with the
    reason why a table could not be read.
    """
    with BookKeeper(zookeeper, **of_environment("client")) as bookkeeper:
        # If ZooKeeper does not answer, this raises an error of one line here, instead of one in a task.
        last_ledger_id = bookkeeper.metadata.last_ledger_id()
        rows_per_file = rows_in_file(sum(span.ledgers for span in bookkeeper.metadata.ledger_spans()))
    snapshot_id, now = str(uuid.uuid4()), datetime.now(UTC)
    check_table_place(path)
    clone = _without_table_defaults(spark)
    before = _commits_before(clone, path)
    label = Label(snapshot_id, _oldest_kept(before, keep) or snapshot_id, last_ledger_id, zookeeper)
    turn = 1 + max((commit.version for commit in before if commit.table == LAST), default=-1)
    options = {"zookeeper": zookeeper, **({"password": password} if password else {})}

    def read(table: str) -> DataFrame:
        return clone.read.format("bookspark").options(**options).option("table", table).load()

    names = written(checksums)
    parts: dict[str, DataFrame] = {}
    with ExitStack() as used:
        # A write makes its session the active one of the thread.
        used.callback(type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession, spark._jsparkSession)
        for number, table in enumerate(names):
            begins(table, number, len(names))
            if table == LEDGERS.name:
                records = read(LEDGER_RECORDS.name).persist(StorageLevel.DISK_ONLY)
                used.callback(records.unpersist)
                parts = parts_of(records)
            rows = parts[table] if table in parts else read(table)
            stamped = rows.withColumn("snapshot_id", F.lit(snapshot_id)).withColumn("snapshot_time", F.lit(now))
            stamped = stamped.withMetadata("snapshot_id", {"comment": "The snapshot that the row belongs to"})
            stamped = stamped.withMetadata("snapshot_time", {"comment": "When the snapshot began"})
            writer = stamped.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            # Replacing an empty table with an empty table makes a version only in a transaction with an id.
            transaction = (_TURNS, turn) if table == LAST else (snapshot_id, 0)
            writer = writer.option("txnAppId", transaction[0]).option("txnVersion", transaction[1])
            writer = writer.option("userMetadata", label.encode()).option("maxRecordsPerFile", rows_per_file)
            try:
                writer.options(**_TABLE_PROPERTIES).save(location(path, table))
            except _conflicts() as error:
                raise _being_written(path) from error
    for commit in commits(clone, path):
        if commit.table == LAST and commit.snapshot_id == snapshot_id:
            return Snapshot(snapshot_id, commit.version, commit.time, commit.cluster)
    raise _being_written(path)


@checked
def written(checksums: bool = False) -> list[str]:
    """The tables of a snapshot with or without ``checksums``, in the order of their writes."""
    return [table for table in ORDER if checksums or table not in ON_REQUEST]


@checked
def history(spark: SparkSession, path: Name) -> list[Snapshot]:
    """The complete snapshots under ``path`` that are not given up, the newest first.

    Raises ConfigurationError if there was never a snapshot, and Spark's errors.
    """
    return kept(commits(spark, path))


@checked
def tables(spark: SparkSession, path: Name, version: BytesOrNone | None = None) -> dict[str, DataFrame]:
    """The tables of a snapshot under ``path``, by name. ``version``: that of the snapshot; None: the newest.

    Tables of ON_REQUEST may be absent. The table ``listed``, of one row, is added, with the snapshot's
    ``last_ledger_id``. Raises ConfigurationError if there is no such snapshot, BookKeeperError if a table of it is missing, and
    Spark's errors.
    """
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


@checked
def tables_of(
    spark: SparkSession, path: Name, found: list[Commit], snapshot: Snapshot, names: Iterable[str] = ORDER
) -> dict[str, DataFrame]:
    """The tables ``names`` of ``snapshot``. ``found``: the commits under ``path``. Raises BookKeeperError if a table is
    missing."""
    versions = {commit.table: commit.version for commit in found if commit.snapshot_id == snapshot.snapshot_id}
    result = {}
    for table in names:
        if table in versions:
            reader = spark.read.format("delta").option("versionAsOf", versions[table])
            result[table] = reader.load(location(path, table))
        elif table not in ON_REQUEST:
            raise BookKeeperError(
                f"{location(path, table)} has no version of snapshot {snapshot.snapshot_id}; was it vacuumed, or copied in part?"
            )
    return result


@checked
def commits(spark: SparkSession, path: Name) -> list[Commit]:
    """The commits of all snapshots under ``path``. Raises ConfigurationError if there was never a snapshot, and Spark's errors.

    Delta's log is read as the JSON files of its protocol, in one small job for all tables; DESCRIBE HISTORY takes seconds for
    each table.
    """
    schema = "commitInfo struct<timestamp: bigint, userMetadata: string>"
    log_errors_only(spark, GLOB_LOGGER)
    try:
        # The versions of abandoned snapshots may be removed meanwhile.
        reader = spark.read.schema(schema).option("ignoreMissingFiles", "true")
        logged = reader.json(f"{location(path, '*')}/_delta_log/*.json")
        told = logged.where("commitInfo.userMetadata IS NOT NULL AND commitInfo.timestamp IS NOT NULL")
        rows = told.select("commitInfo.*", "_metadata.file_path").collect()
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise ConfigurationError(f"there is no snapshot under {path}; take one with `bookspark snapshot`") from None
        raise
    result = []
    for row in rows:
        *_, table, _, name = row.file_path.split("/")
        commit = commit_of(table, int(name.removesuffix(".json")), row.timestamp, row.userMetadata)
        if commit is not None:
            result.append(commit)
    return result


def _without_table_defaults(spark: SparkSession) -> SparkSession:
    """A clone of ``spark`` without the site's defaults for Delta tables.

    They would forbid the next snapshot (``appendOnly``), end this one (``universalFormat.enabledFormats``), or give the tables
    features that delta-rs, and so the console, can't read. A table property undoes some of them, but no default of a feature
    (``feature.deletionVectors``).
    """
    # Each session that Python makes takes over RDD.toDF.
    to_data_frame = RDD.toDF
    clone = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    RDD.toDF = to_data_frame
    for name in clone.conf.getAll:
        if name.startswith(_DEFAULTS):
            clone.conf.unset(name)
    return clone


def _being_written(path: str) -> BookKeeperError:
    return BookKeeperError(
        f"another snapshot of this path is being written: {path}; this one does not count. Take it again after the other's end"
    )


def _conflicts() -> tuple[type[Exception], ...]:
    """Delta's errors of a commit beside another. They share no base class."""
    from delta import exceptions

    return (
        exceptions.DeltaConcurrentModificationException,
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentTransactionException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
    )


def _commits_before(spark: SparkSession, path: str) -> list[Commit]:
    """The commits under ``path``; none before the first snapshot."""
    try:
        return commits(spark, path)
    except ConfigurationError:
        return []


def _oldest_kept(before: list[Commit], keep: int | None) -> str | None:
    """Id of the oldest snapshot to keep beside the new snapshot; None if that is the only one."""
    snapshots = kept(before)
    wanted = snapshots if keep is None else snapshots[: keep - 1]
    return wanted[-1].snapshot_id if wanted else None
