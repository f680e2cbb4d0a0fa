"""The sink's query under ``kill -9``: three of the blows that ``scripts/soak spark-kills`` deals by the dozen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from tests.spark.faulty_sink import AFTER_COMMIT, FAILING_TASK
from tests.spark.query_kills import QueryKills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_each_row_is_there_once_whoever_dies_when(new_chroot: Callable[[], str], tmp_path: Path) -> None:
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as cluster:
        counts = QueryKills(cluster, tmp_path).run([AFTER_COMMIT, FAILING_TASK, "executor"])
    assert counts["driver starts"] == 1, "killed between the commit entry of batch 0 and its return"
