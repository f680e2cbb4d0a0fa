"""A small ``local[2]`` Spark shared by all tests of a process, and a cluster for tests of the data source.

A process has one Spark at a time, and its start takes as long as a dozen small tests. A module leaves it as it was. A
module that needs another Spark (``one_spark.other``) stops this one; it is started again for the next module. So a
plugin provides a single ``one_spark`` for the tests of all folders. Spark is imported with the first session: most
tests need none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from bookspark.local import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OneSpark:
    """The Spark of this process."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None
        self._is_local = False

    def local(self) -> SparkSession:
        """``local[2]`` with Delta, started if it is not running."""
        if self._is_local and self._spark is not None and self._runs():
            return self._spark
        from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES

        conf = {
            **SMALL_TABLES,
            "spark.sql.warehouse.dir": "/nonexistent",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            # A Python worker that crashes says where.
            "spark.python.worker.faulthandler.enabled": "true",
            "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        }
        return self._start("tests", "local[2]", is_local=True, **conf)

    def other(self, app: str, master: str, **conf: str) -> SparkSession:
        """Another Spark, which the caller stops."""
        return self._start(app, master, is_local=False, **conf)

    def stop(self) -> None:
        if self._spark is not None and self._runs():
            self._spark.stop()
        self._spark = None

    @staticmethod
    def _runs() -> bool:
        from pyspark import SparkContext

        return SparkContext._active_spark_context is not None

    def _start(self, app: str, master: str, is_local: bool, **conf: str) -> SparkSession:
        from bookspark.spark.session import session

        self.stop()
        self._is_local = is_local
        self._spark = session(app, master=master, **conf)
        self._spark.sparkContext.setLogLevel("OFF")
        return self._spark


@pytest.fixture(scope="session")
def one_spark() -> Iterator[OneSpark]:
    one = OneSpark()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def spark(one_spark: OneSpark, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """``local[2]`` with Delta. No query may still run when the module ends."""
    marked = "pytest.mark.spark" in request.path.read_text("utf-8")  # as ``tests.scheduling`` recognises such a module
    assert marked, "mark what starts Spark, or its Spark is one more than the cores are for"
    spark = one_spark.local()
    yield spark
    left = [query.name or str(query.id) for query in spark.streams.active]
    for query in spark.streams.active:
        query.stop()
    spark.catalog.clearCache()
    assert left == [], "queries that nobody stopped"


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    """Real bookies, one more than an ensemble needs."""
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as cluster:
        yield cluster
