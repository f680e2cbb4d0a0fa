"""A real Spark session at rows whose copies are all gone from the disks: ``failOnDataLoss`` and the table ``gaps``."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.spark.connector.data_source import register
from tests.spark.test_deleted_ledgers import data_ledgers
from tests.surgery import remove_entries

pytestmark = pytest.mark.spark
LOG = "damaged"
READABLE = [*range(10), *range(20, 30)]
LOSS = f"log '{LOG}': rows 10 to 19 of lane 1 are lost.*failOnDataLoss"


@pytest.fixture(scope="module", autouse=True)
def _damaged(spark: SparkSession, cluster: LocalCluster) -> None:
    """A log of 30 rows in a ledger; all copies of rows 10 to 19 are removed."""
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        with create_log(bookkeeper, LOG).producer("service") as producer:
            for first in (0, 10, 20):
                producer.append_batch([str(first + row).encode() for row in range(10)])
        (ledger_id,) = data_ledgers(bookkeeper, f"{LOG}@1")
    removed = 0
    for bookie in cluster.bookies:
        bookie.stop()
        removed += remove_entries(bookie, ledger_id, 10, 19)
    assert removed == 3, "each copy once"
    for bookie in cluster.bookies:
        bookie.start()


def positions(frame: DataFrame) -> list[int]:
    return sorted(row.position for row in frame.select("position").collect())


@pytest.mark.acceptance
def test_stream_fails_at_lost_rows_and_continues_without_them_from_its_checkpoint(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = str(tmp_path_factory.mktemp("checkpoint"))
    found: list[int] = []

    def run(fail: str) -> None:
        rows = spark.readStream.format("bookspark").options(log=LOG, failOnDataLoss=fail, maxOffsetsPerTrigger="10")
        query = (
            rows.load()
            .writeStream.foreachBatch(lambda batch, _: found.extend(positions(batch)))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)

    with pytest.raises(PySparkException, match=LOSS):
        run("true")
    assert found == list(range(10)), "what is before them has come"
    run("false")
    assert found == READABLE


def test_gaps_table_names_the_lost_rows(spark: SparkSession) -> None:
    table = spark.read.format("bookspark").option("table", "gaps").load()
    assert [tuple(row) for row in table.collect()] == [(f"{LOG}@1", 1, 10, 19, 10, "lost")]
