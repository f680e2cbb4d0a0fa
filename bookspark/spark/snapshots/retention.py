"""Removes the files of snapshots that were given up, and takes snapshots at an interval.

Law: a snapshot is given up by the commit of a later one (see ``snapshot``), and only then are its files removed. A crash in
between leaves files that the next call removes. No snapshot that is offered lacks a file.

How Delta's VACUUM is used: it removes files that were replaced before a given moment. The files of a snapshot are replaced by the
next one, so the moment is the commit of the oldest snapshot that is kept. VACUUM takes whole hours, so files may stay up to an
hour longer. By default it refuses a moment of less than a week ago, which protects writers that take that long. That check is
turned off: there is one writer here, and its files are younger than the moment.
"""

from __future__ import annotations

import logging
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bookspark.arguments import Name, checked
from bookspark.errors import BookKeeperError
from bookspark.spark import snapshots
from bookspark.spark.session import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # The number of tasks in which VACUUM lists a table's files. Spark's default is ten thousand.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


@checked
def remove_files(spark: SparkSession, path: Name) -> None:
    """Remove the files of the snapshots under ``path`` that were given up.

    ``spark``: a session with Delta. ``path``: as for ``snapshots.write``. Raises ConfigurationError if there is no snapshot under
    ``path``, and Spark's errors.
    """
    from delta.tables import DeltaTable

    found = snapshots.commits(spark, path)
    kept = {snapshot.snapshot_id for snapshot in snapshots.kept(found)}
    before = {name: spark.conf.get(name, None) for name in _VACUUM}
    for name, value in _VACUUM.items():
        spark.conf.set(name, value)
    try:
        for table in sorted({commit.table for commit in found}):
            moment = _replaced_before([commit for commit in found if commit.table == table], kept)
            if moment is not None:
                hours = math.ceil((datetime.now(UTC) - moment).total_seconds() / 3600)
                DeltaTable.forPath(spark, snapshots.location(path, table)).vacuum(hours)
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _replaced_before(commits: Sequence[snapshots.Commit], kept: Collection[str]) -> datetime | None:
    """The moment before which files of a table must have been replaced to be of no snapshot that is ``kept``.

    ``commits``: those to the table; ``kept``: ids of snapshots. None if there are no such files.
    """
    own = sorted(commits, key=lambda commit: commit.version)
    first = next((n for n, commit in enumerate(own) if commit.snapshot_id in kept), len(own) - 1)
    return own[first].time if first else None


@checked
def write_every(
    seconds: float,
    take: Callable[[], None],
    ended: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Take a snapshot every ``seconds``, until ``ended``. A snapshot that takes longer is followed by the next one at once.

    ``take`` takes one. ``ended(seconds)`` waits that long at most, and returns whether to stop. A snapshot that fails
    (BookKeeperError, Spark's errors) is logged, and the next one is taken when it is due: a cluster may be away for an hour.
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
