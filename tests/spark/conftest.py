"""A small Spark and a cluster for tests of the data source. A process has one Spark at a time, so both end with the module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bookspark.local import LocalCluster
from bookspark.spark.session import session
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """``local[2]`` with Delta."""
    spark = session(
        "tests",
        master="local[2]",
        **SMALL_TABLES,
        **{"spark.sql.warehouse.dir": "/nonexistent", "spark.driver.extraJavaOptions": QUICK_JVM},
    )
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Real bookies, one more than an ensemble needs."""
    with LocalCluster(bookies=4) as cluster:
        yield cluster
