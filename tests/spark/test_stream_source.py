"""Reading logs and ledgers as streams, over real bookies: every row once, over restarts and limits."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register
from tests.awaiting import await_that

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: SparkSession, cluster: LocalCluster) -> None:
    register(spark, cluster.zookeeper)


@pytest.fixture
def log() -> str:
    return f"log-{uuid.uuid4().hex[:8]}"


def write(spark: SparkSession, log: str, first: int, last: int) -> None:
    """Write rows with the numbers ``first..last`` as text, in one commit."""
    rows = spark.range(first, last + 1, 1, 1).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("bookspark").option("log", log).mode("append").save()


class Follower:
    """A streaming query from a log, or ledgers, into Parquet files."""

    def __init__(self, spark: SparkSession, folder: Path, **options: object) -> None:
        self.spark, self.options = spark, options
        self.output, self.checkpoint = folder / "output", folder / "checkpoint"
        self.failing = False

    def start(self, **trigger: object) -> StreamingQuery:
        rows = self.spark.readStream.format("bookspark").options(**self.options).load()  # type: ignore[arg-type]
        if self.failing:
            rows = rows.where("raise_error('this task fails') IS NULL")
        writer = rows.writeStream.format("parquet").option("path", str(self.output))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()  # type: ignore[arg-type]

    def run(self) -> StreamingQuery:
        """Read all rows that are there now."""
        query = self.start()
        assert query.awaitTermination(600), "the query did not end"
        return query

    def await_numbers(self, query: StreamingQuery, numbers: list[int]) -> None:
        """Wait until a running query has read these numbers. A trigger without rows ends ``processAllAvailable``, and there may
        be none until ZooKeeper reports the next commit ledger to the reader."""

        def read() -> bool:
            query.processAllAvailable()
            return sum(progress.numInputRows for progress in query.recentProgress) >= len(numbers)

        await_that(read, what=f"{numbers}")
        assert self.numbers() == numbers

    def numbers(self, column: str = "value") -> list[int]:
        rows = self.spark.read.parquet(str(self.output)).selectExpr(f"CAST(CAST({column} AS STRING) AS BIGINT) AS n")
        return sorted(row.n for row in rows.collect())


def test_stream_reads_each_row_once_over_restarts_in_limited_micro_batches(
    spark: SparkSession, tmp_path: Path, log: str
) -> None:
    write(spark, log, 0, 29)
    write(spark, log, 30, 59)
    follower = Follower(spark, tmp_path, log=log, maxOffsetsPerTrigger=40)
    query = follower.run()
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [40, 20]
    source = query.lastProgress.sources[0]
    assert json.loads(source.endOffset)["position"] == json.loads(source.latestOffset)["position"] == 60
    write(spark, log, 60, 79)
    follower.run()
    assert follower.numbers() == list(range(80))


def test_running_stream_sees_rows_committed_while_it_runs(spark: SparkSession, tmp_path: Path, log: str) -> None:
    write(spark, log, 0, 9)
    follower = Follower(spark, tmp_path, log=log)
    query = follower.start(processingTime="1 second")
    try:
        follower.await_numbers(query, list(range(10)))
        for first in (10, 20):  # each in a new epoch with a commit ledger of its own
            write(spark, log, first, first + 9)
            follower.await_numbers(query, list(range(first + 10)))
    finally:
        query.stop()


@pytest.mark.acceptance
def test_stream_from_latest_loses_no_row_if_it_dies_in_its_first_micro_batch(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, log: str
) -> None:
    write(spark, log, 0, 9)
    follower = Follower(spark, tmp_path, log=log, startingOffsets="latest", subscription="mine")
    follower.run()
    write(spark, log, 10, 19)
    follower.failing = True
    with pytest.raises(PySparkException, match="this task fails"):
        follower.run()
    write(spark, log, 20, 29)
    follower.failing = False
    follower.run()
    assert follower.numbers() == list(range(10, 30)), "the start was pinned when the query first ran"
    with cluster.bookkeeper() as bookkeeper:
        write(spark, log, 30, 39)
        follower.run()
        assert bookkeeper.metadata.list_records("starts") == [], "from the first micro-batch on Spark knows"


@pytest.mark.acceptance
def test_ledgers_are_read_as_streams(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    with cluster.bookkeeper() as bookkeeper:
        ledgers = [bookkeeper.create_ledger(3, 3, 2) for _ in range(2)]
        ids = ",".join(str(ledger.ledger_id) for ledger in ledgers)
        follower = Follower(spark, tmp_path, ledgers=ids, maxBytesPerTrigger=12)
        for number in range(20):
            ledgers[number % 2].append(b"%d" % number)
        for ledger in ledgers:
            ledger.flush_last_add_confirmed()
        query = follower.run()
        assert len([p for p in query.recentProgress if p.numInputRows]) > 1
        ledgers[0].append(b"20")
        ledgers[0].close()
        ledgers[1].append(b"21")
        ledgers[1].close()
        follower.run()
        assert follower.numbers("payload") == list(range(22))


def test_wrong_options_fail_a_stream_at_its_start(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        Follower(spark, tmp_path, log="nothing", startingOffset="1").run()
