"""Removing the files of snapshots that were given up, and taking snapshots every so often.

Law: a snapshot is given up by the commit of a later one (``snapshots``), and only then are its files removed: a crash in
between leaves files that the next time removes, and no snapshot that is offered lacks one.

How Delta's VACUUM is used: it removes the files that were replaced before a moment. What a snapshot wrote is replaced
by the next one, so the moment is the commit of the oldest snapshot that is kept. VACUUM takes whole hours (it rounds
what is given, to the nearest one), so files go up to an hour later. It refuses moments of less than a week ago unless
its check is off: that guards writers that take so long; here there is one, and its files are younger than the moment.
"""

from __future__ import annotations

import logging
import math
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError
from bookspark.spark import snapshots
from bookspark.spark.session import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_VACUUM = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # VACUUM lists a table's files in so many tasks, by default in ten thousand.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}


def remove_files(spark: SparkSession, path: str) -> None:
    """Remove the files of the snapshots under ``path`` that were given up."""
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
    """What was replaced before this moment in the table that these are commits to is of no snapshot that is ``kept``; None if
    there is nothing."""
    own = sorted(commits, key=lambda commit: commit.version)
    first = next((n for n, commit in enumerate(own) if commit.snapshot_id in kept), len(own) - 1)
    return own[first].time if first else None


def write_every(
    seconds: float,
    take: Callable[[], None],
    ended: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """``take`` a snapshot every ``seconds`` (one that takes longer is followed by the next at once), until ``ended``, which
    waits so many seconds, says so.

    One that fails is logged, and is tried again when the next is due: a cluster that is away for an hour is no reason
    to have no snapshots from then on.
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
