"""Option ``where`` through Spark, over real bookies: batch reads and streams have the rows of Spark's own filter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register

pytestmark = pytest.mark.spark
ROWS = 6000


def rows_of(spark: SparkSession, where: str) -> DataFrame:
    return spark.read.format("bookspark").option("log", "needles").option("where", where).load()


def test_batch_read_and_stream_have_the_rows_of_sparks_own_filter(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    register(spark, cluster.zookeeper)
    rows = spark.range(0, ROWS, 1, 2).selectExpr("id", "IF(id % 5 = 0, NULL, id % 7) AS part", "id % 2 = 0 AS even")
    rows.write.format("bookspark").option("log", "needles").option("rowFormat", "arrow").mode("append").save()
    everything = spark.read.format("bookspark").option("log", "needles").load()
    where = "id BETWEEN 100 AND 4000 AND (part IN (2, 3) OR part IS NULL) AND NOT even"
    expected = everything.where(where).collect()
    assert len(expected) > 100
    assert rows_of(spark, where).collect() == expected
    assert rows_of(spark, "id < 0").count() == 0
    with pytest.raises(PySparkException, match="the function 'abs' at character 1 is not supported"):
        rows_of(spark, "abs(id) = 1")

    found: list[int] = []
    stream = spark.readStream.format("bookspark").option("log", "needles").option("where", "id IN (7, 5999)")
    query = (
        stream.option("maxOffsetsPerTrigger", ROWS // 3)
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .foreachBatch(lambda frame, _: found.extend(row.id for row in frame.collect()))
        .start()
    )
    assert query.awaitTermination(600)
    assert sorted(found) == [7, 5999]
    ends = [json.loads(progress.sources[0].endOffset)["position"] for progress in query.recentProgress]
    assert ends[:3] == [ROWS // 3, 2 * ROWS // 3, ROWS], "micro-batches of which nothing is read count rows as well"
