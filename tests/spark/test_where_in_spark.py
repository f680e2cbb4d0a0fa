"""Option ``where`` through Spark, over real bookies: batch reads and streams have the rows of Spark's own filter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.types import DataType, StructType

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register

pytestmark = pytest.mark.spark
ROWS = 6000
ADDED = "position", "ledger_id", "entry_id"


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


def metadata_in(kind: DataType) -> list[object]:
    """The metadata of each field in a type."""
    if isinstance(kind, StructType):
        return [
            found
            for field in kind
            for found in ([field.metadata] if field.metadata else []) + metadata_in(field.dataType)
        ]
    parts = [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    return [found for part in parts for found in metadata_in(part)]


@pytest.fixture(scope="module")
def bank(spark: SparkSession, cluster: LocalCluster) -> Iterator[DataFrame]:
    """A log written from a table of CHAR, VARCHAR and default columns, as a log's reader sees it."""
    register(spark, cluster.zookeeper)
    nested = "STRUCT<a: CHAR(2), b: ARRAY<VARCHAR(3)>>"
    kinds = (
        f"code CHAR(5) COMMENT 'of the bank', city VARCHAR(8), part {nested}, by MAP<STRING, CHAR(2)>, n INT DEFAULT 7"
    )
    spark.sql(f"CREATE TABLE bank ({kinds}) USING parquet")
    try:
        for number, text in enumerate(("ab", "abcde", "zz", "a  ", "")):
            more = f"named_struct('a', 'a', 'b', array('{text[:3]}')), map('k', 'a'), {number}"
            spark.sql(f"INSERT INTO bank SELECT '{text}', '{text}', {more}")
        rows = spark.table("bank").withColumn("at", expr("TIMESTAMP_SECONDS(n)")).alias("told")
        rows.write.format("bookspark").option("log", "bank").option("rowFormat", "arrow").mode("append").save()
        yield spark.read.format("bookspark").option("log", "bank").load().drop(*ADDED)
    finally:
        spark.sql("DROP TABLE bank")


def test_columns_of_a_log_keep_comments_and_nothing_that_spark_notes_for_itself(
    spark: SparkSession, bank: DataFrame, tmp_path: Path
) -> None:
    assert metadata_in(bank.schema) == [{"comment": "of the bank"}]
    assert bank.schema["code"].dataType.simpleString() == "string"
    assert [row.code for row in bank.orderBy("n").collect()] == ["ab   ", "abcde", "zz   ", "a    ", "     "]

    # A watermark of the query that writes is none of those that read.
    stream = spark.readStream.format("bookspark").option("log", "bank").load().withWatermark("at", "1 hour")
    writes = stream.drop(*ADDED).writeStream.format("bookspark").option("log", "later")
    query = (
        writes.option("rowFormat", "arrow")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    later = spark.read.format("bookspark").option("log", "later").load().drop(*ADDED)
    assert later.count() == 5 and metadata_in(later.schema) == [{"comment": "of the bank"}]


def test_predicates_on_char_and_varchar_have_the_rows_of_sparks_own_filter(
    spark: SparkSession, bank: DataFrame
) -> None:
    compared = (
        "{0} = {1}",
        "{0} <> {1}",
        "{0} > {1}",
        "{0} <= {1}",
        "{0} <=> {1}",
        "NOT {0} = {1}",
        "{0} LIKE {1}",
        "{0} IN ({1}, 'zz')",
    )
    texts = [
        form.format(column, f"'{text}'")
        for form in compared
        for column in ("code", "city")
        for text in ("ab", "ab   ", "abcde", "a", "", "zz")
    ]
    [own] = bank.selectExpr(*(f"collect_list(IF({text}, n, NULL)) AS c{at}" for at, text in enumerate(texts))).collect()
    for text, numbers in list(zip(texts, own, strict=True))[::7]:
        found = spark.read.format("bookspark").option("log", "bank").option("where", text).load()
        assert sorted(row.n for row in found.collect()) == sorted(numbers), text
