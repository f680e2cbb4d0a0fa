"""Removes the files of snapshots that were given up, and takes snapshots at an interval.

Law: the commit of a later snapshot gives a snapshot up (see ``snapshot``), and only then are its files removed. A crash in
between leaves files that the next call removes. No offered snapshot lacks a file.

Delta's VACUUM removes files older than a given moment, here the commit before the oldest kept snapshot, whose files are all
younger: so the files of one more snapshot stay. (Replaced files stay as long as Delta's log has the time of that, a week by
default.) VACUUM takes whole hours, so files may stay an hour longer. Its refusal of moments less than a week ago, which protects
slow writers, is off: the only writer is here.

Delta's log has a file for each version, and for each tenth a file with the state up to it (a *Delta checkpoint*). Delta's own
cleanup goes by age instead of version, so it is off (``snapshot``). The log is cut here, before the last Delta checkpoint not
younger than the oldest kept version: about ten more versions than are kept.

Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Metadata Cleanup".
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections import defaultdict
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bookspark.errors import BookKeeperError
from bookspark.spark import snapshots
from bookspark.spark.session import SPARK_ERRORS, with_settings
from bookspark.support.arguments import Name, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_LOG_FILE = re.compile(r"(\d{20})\.(?:json|crc|\d{20}\.compacted\.json|(checkpoint\..*))")
_PART = re.compile(r"checkpoint\.\d{10}\.(\d{10})\.parquet")
_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Otherwise VACUUM adds a version at its begin and one at its end to every table, and a version is a snapshot.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # Tasks in which VACUUM lists a table's files. Spark's default is ten thousand.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


@checked
def remove_files(spark: SparkSession, path: Name) -> None:
    """Remove the files of the snapshots under ``path`` that were given up, and their parts of Delta's logs.

    ``spark``: a session with Delta. ``path``: as for ``snapshots.write``. Raises ConfigurationError if there is no snapshot under
    ``path``, and Spark's errors.
    """
    from delta.tables import DeltaTable

    commits = snapshots.commits(spark, path)
    kept = {snapshot.snapshot_id for snapshot in snapshots.kept(commits)}
    with with_settings(spark, _VACUUM):
        for table in sorted({commit.table for commit in commits}):
            own = [commit for commit in commits if commit.table == table]
            place = snapshots.location(path, table)
            now = datetime.now(UTC)
            moment = _older_than(own, kept, now)
            if moment is not None:
                hours = math.ceil((now - moment).total_seconds() / 3600)
                DeltaTable.forPath(spark, place).vacuum(hours)
            _cut_log(spark, place, _first_kept(own, kept).version)


def _first_kept(commits: Iterable[snapshots.Commit], kept: Collection[str]) -> snapshots.Commit:
    """The first of a table's commits that belongs to a ``kept`` snapshot (ids); the last commit if there is none."""
    own = sorted(commits, key=lambda commit: commit.version)
    return next((commit for commit in own if commit.snapshot_id in kept), own[-1])


def _older_than(commits: Sequence[snapshots.Commit], kept: Collection[str], now: datetime) -> datetime | None:
    """The moment between a table's files of snapshots that are not ``kept`` (ids) and the younger files of kept snapshots.

    ``commits``: those to the table. None if all files are of kept snapshots, or if the moment lies ahead: a clock was wrong, and
    files of kept snapshots may be older.
    """
    first = _first_kept(commits, kept).version
    moment = max((commit.time for commit in commits if commit.version < first), default=None)
    return None if moment is None or moment > now else moment


def _cut_log(spark: SparkSession, table: str, version: int) -> None:
    """Remove the parts of the log of the Delta table at ``table`` that no version from ``version`` on needs."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path
    log_folder = path(table, "_delta_log")
    file_system = log_folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    names = [status.getPath().getName() for status in file_system.listStatus(log_folder)]
    for name in _dispensable(names, version):
        file_system.delete(path(log_folder, name), False)


def _dispensable(names: Iterable[str], version: int) -> list[str]:
    """The files of a Delta log that no version from ``version`` on needs, the oldest first: a crash between two removals leaves a
    log without a hole."""
    files = sorted((int(match[1]), match[0], match[2]) for name in names if (match := _LOG_FILE.fullmatch(name)))
    checkpoints: dict[int, Fraction] = defaultdict(Fraction)
    for at, _, checkpoint in files:
        if checkpoint is not None:
            part = _PART.fullmatch(checkpoint)
            checkpoints[at] += Fraction(1, int(part[1])) if part else 1
    start = max((at for at, whole in checkpoints.items() if at <= version and whole >= 1), default=0)
    return [name for at, name, _ in files if at < start]


@checked
def write_every(
    seconds: float,
    take: Callable[[], None],
    ended: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Take a snapshot every ``seconds``, until ``ended``. A snapshot that takes longer is followed by the next at once.

    ``take`` takes a snapshot. ``ended(seconds)`` waits that long at most, and returns whether to stop. A failed snapshot
    (BookKeeperError, Spark's errors) is logged, and the next is taken when it is due: a cluster may be away for an hour.
    """
    due = clock()
    while True:
        try:
            take()
        except (BookKeeperError, *SPARK_ERRORS) as error:
            log.warning("no snapshot this time: %s", error)
        due = max(due + seconds, clock())
        if ended(due - clock()):
            return
