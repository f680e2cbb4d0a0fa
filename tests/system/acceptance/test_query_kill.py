"""The sink's query under ``kill -9`` of its driver at the worst moment; ``test_query_kills`` kills executors."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register
from tests.spark.faulty_sink import AFTER_COMMIT
from tests.spark.killed_query import query_of
from tests.spark.query_kills import LOG, QueryKills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_each_row_is_stored_once_if_the_driver_dies_after_the_commit_entry(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """A separate driver dies, and the query continues in the Spark of this process."""
    register(spark, cluster.zookeeper)

    def finish() -> None:
        assert query_of(spark, tmp_path, LOG).trigger(availableNow=True).start().awaitTermination(600)

    counts = QueryKills(cluster, tmp_path, master="local[2]").run([AFTER_COMMIT], finish)
    assert counts["driver starts"] == 1
    assert counts["rows checked"] > 0
