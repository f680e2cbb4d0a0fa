"""A log is altered again and again beside a streaming query, producers and two readers, which are killed meanwhile: each row is
there once, and each reader reads all. ``scripts/soak alterations`` alters it a hundred times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from tests.many_writers.altering import Altering, Append, usual_and_pauses
from tests.spark.faulty_sink import AFTER_COMMIT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]


def test_each_row_is_there_once_however_often_the_log_is_altered(new_chroot: Callable[[], str], tmp_path: Path) -> None:
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as bookkeeper:
        # With this seed the first 12 alterations are followed by a kill of the producer and of each reader.
        altering = Altering(cluster, bookkeeper, tmp_path, seed=81, pace_seconds=0.1)
        counts = altering.run([AFTER_COMMIT], 12, 3.0)
    assert counts["driver starts"] == 1 and counts["alterations"] >= 12 and counts["pauses"] > 3


def test_a_pause_is_the_longest_append_from_the_alteration_to_the_next_ledger() -> None:
    ends = [(0, 10, True), (10, 15, False), (15, 35, False), (35, 45, True), (45, 48, False)]
    usual, pauses = usual_and_pauses(
        [Append(begun * 10**6, end * 10**6, opened) for begun, end, opened in ends], [2 * 10**7]
    )
    assert (usual, pauses) == ([5.0, 3.0], [20.0])
