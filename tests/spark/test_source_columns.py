"""Columns and filters of batch reads, over real bookies: a read has its own columns and rows, and none of another query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register
from tests.awaiting import SECONDS_MAX

pytestmark = pytest.mark.spark
FILTERS = "spark.sql.python.filterPushdown.enabled"
ROWS = 100


@pytest.fixture(scope="module", params=["value", "arrow"])
def log(spark: SparkSession, cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A log of ``ROWS`` rows."""
    register(spark, cluster.zookeeper)
    rows = spark.range(0, ROWS, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("bookspark").option("log", request.param).option("rowFormat", request.param).mode("append").save()
    return str(request.param)


@pytest.fixture
def filters_pushed(spark: SparkSession) -> Iterator[None]:
    """Spark hands filters to Python data sources that accept them."""
    spark.conf.set(FILTERS, "true")
    yield
    spark.conf.unset(FILTERS)


def rows_of(spark: SparkSession, log: str, schema: str = "") -> DataFrame:
    reader = spark.read.format("bookspark").option("log", log)
    return (reader.schema(schema) if schema else reader).load()


def test_schema_of_fewer_columns_reads_only_those_columns(spark: SparkSession, log: str) -> None:
    some = rows_of(spark, log, "entry_id bigint, position bigint")
    assert some.columns == ["entry_id", "position"]
    assert sorted(some.collect()) == sorted(rows_of(spark, log).select("entry_id", "position").collect())
    assert sorted(row.position for row in some.collect()) == list(range(ROWS))


@pytest.mark.parametrize(
    ("schema", "refusal"),
    [
        ("position int", "no column 'position' of type int"),
        ("value string, nosuch int", "no column 'nosuch' of type int|no column 'value' of type string"),
        ("position bigint NOT NULL", "column 'position' may have nulls: leave NOT NULL out of the schema"),
        ("position bigint, position bigint", "column 'position' is in the schema twice"),
    ],
)
def test_schema_of_other_columns_is_refused(spark: SparkSession, log: str, schema: str, refusal: str) -> None:
    with pytest.raises(PySparkException, match=refusal):
        rows_of(spark, log, schema).collect()


def test_dataframe_used_with_several_filters_has_the_rows_of_each(
    spark: SparkSession, log: str, filters_pushed: None
) -> None:
    """With filters pushed down, Spark 4.2 would give each use the rows of the filter that was planned last."""
    frame = rows_of(spark, log)
    few = frame.where("position < 5")
    assert few.count() == 5
    assert frame.count() == ROWS
    assert few.union(frame.where("position >= 93")).count() == 12


def test_names_of_kafkas_users_reach_the_log_by_every_door(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """``save("b")``, a column VALUE, ``subscribe``, ``start("c")``, ``load("c")``: each was refused with a hint to something
    else."""
    register(spark, cluster.zookeeper)
    spark.sql("SELECT 'row' AS VALUE").write.format("bookspark").mode("append").save("doors")
    stream = spark.readStream.format("bookspark").options(subscribe="doors", startingOffsets="-2").load()
    writer = stream.select("value").writeStream.format("bookspark").option("checkpointLocation", str(tmp_path))
    copying = writer.trigger(availableNow=True).start("doors-copy")
    assert copying.awaitTermination(SECONDS_MAX)
    copied = spark.read.format("bookspark").option("endingOffsets", "-1").load("doors-copy")
    assert [bytes(row.VALUE) for row in copied.select("VALUE").collect()] == [b"row"]


def test_mistake_is_one_sentence_behind_sparks_own(spark: SparkSession, cluster: LocalCluster) -> None:
    """Fifty lines of a worker's traceback stood around it."""
    register(spark, cluster.zookeeper)
    with pytest.raises(PySparkException) as raised:
        spark.read.format("bookspark").load("nosuch").count()
    assert "Traceback" not in str(raised.value) and "NoSuchLogError: there is no log 'nosuch'" in str(raised.value)
