"""The sink's query under one ``kill -9``, at the worst moment; ``tests/acceptance`` has more, and on executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from tests.spark.faulty_sink import AFTER_COMMIT
from tests.spark.query_kills import QueryKills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_each_row_is_there_once_when_the_driver_dies_between_the_commit_entry_and_its_return(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    counts = QueryKills(cluster, tmp_path, master="local[2]").run([AFTER_COMMIT])
    assert counts["driver starts"] == 1
    assert counts["rows checked"] > 0
