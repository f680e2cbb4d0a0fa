"""An offload that is killed with its Spark, at each of its steps; ``tests/spark`` has the same without Spark's death."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register
from bookspark.spark.process_client import client, kept_client
from tests.spark.test_offload import Log, killed_at_each_step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_killed_with_its_spark_between_any_two_steps_it_is_followed_by_one_that_goes_on(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        killed_at_each_step(Log(spark, cluster, bookkeeper, tmp_path), {})
    client(cluster.zookeeper).close()
    kept_client.cache_clear()
