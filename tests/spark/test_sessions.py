"""Sessions of one application: reads, writes, SQL and ``log_frame`` use the cluster that was named last for their session."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry
from bookspark.spark import log_frame, session
from bookspark.spark.connector.data_source import register
from bookspark.spark.process_client import ZOOKEEPER_CONF

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def other(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as other:
        yield other


@pytest.fixture(autouse=True)
def registered(spark: SparkSession, cluster: LocalCluster) -> Iterator[None]:
    register(spark, cluster.zookeeper)
    yield
    register(spark, cluster.zookeeper)


def write(spark: SparkSession, log: str) -> None:
    spark.sql("SELECT 'row' AS value").write.format("bookspark").option("log", log).mode("append").save()


def ways(spark: SparkSession, log: str) -> list[int]:
    """The rows that each way of reading finds."""
    view = f"view_{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING bookspark OPTIONS (log '{log}')")
    streamed = spark.readStream.format("bookspark").option("log", log).load()
    assert "value" in streamed.columns
    return [
        spark.read.format("bookspark").option("log", log).load().count(),
        spark.sql(f"SELECT count(*) FROM {view}").collect()[0][0],
        log_frame(spark, log).count(),
    ]


def logs_of(cluster: LocalCluster) -> list[str]:
    with cluster.bookkeeper() as bookkeeper:
        return list(LogRegistry(bookkeeper.metadata).names())


def test_new_sessions_and_threads_use_the_cluster_of_their_session(spark: SparkSession) -> None:
    """A session of ``newSession`` was asked "which cluster?"."""
    log = f"log-{uuid.uuid4().hex[:8]}"
    write(spark, log)
    new = spark.newSession()
    write(new, log)
    thread = threading.Thread(target=lambda: write(spark.newSession(), log))
    thread.start()
    thread.join()
    assert ways(new, log) == [3, 3, 3] == ways(spark, log)


def test_cluster_named_last_counts_for_every_read_and_write(
    spark: SparkSession, cluster: LocalCluster, other: LocalCluster
) -> None:
    """After a change of the setting, ``log_frame`` looked at the new cluster, and reads and writes at the former one."""
    first, second = (f"log-{uuid.uuid4().hex[:8]}" for _ in range(2))
    write(spark, first)
    assert session("tests", zookeeper=other.zookeeper).conf.get(ZOOKEEPER_CONF) == other.zookeeper
    new = spark.newSession()
    for each in (spark, new):
        write(each, second)
    assert ways(new, second) == [2, 2, 2] == ways(spark, second)
    assert first not in logs_of(other) and second not in logs_of(cluster)
    spark.conf.set(ZOOKEEPER_CONF, cluster.zookeeper)
    assert ways(spark, first) == [1, 1, 1]
    write(spark, first)
    assert log_frame(spark, first).count() == 2
    assert ways(new, second) == [2, 2, 2], "another session keeps its own"
