"""The sink's query on an executor of its own: a failing task, and ``kill -9`` of the executor.

``test_query_kill`` kills the driver, and ``scripts/soak spark-kills`` injects dozens of faults of all kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from tests.spark.faulty_sink import FAILING_TASK
from tests.spark.query_kills import QueryKills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_each_row_is_stored_once_when_a_task_fails_or_an_executor_is_killed(
    new_chroot: Callable[[], str], tmp_path: Path
) -> None:
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as cluster:
        counts = QueryKills(cluster, tmp_path).run([FAILING_TASK, "executor"])
    assert counts["executors killed"] == 1 and counts["driver starts"] == 0 and counts["rows checked"] > 0
