"""Offload to a table that delta-rs can't read, because of the site's defaults or a later change: no ledger is deleted for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookspark.errors import DataLossError, ReadError
from bookspark.local import LocalCluster
from bookspark.logs import truncate_log
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.spark import log_frame
from bookspark.spark.connector.data_source import register
from bookspark.spark.offload import table
from bookspark.spark.offload.offloading import _first_difference
from bookspark.spark.process_client import client, kept_client
from bookspark.store.client import BookKeeper
from tests.spark.test_offload import Log, numbers

pytestmark = pytest.mark.spark
DEFAULTS = "spark.databricks.delta.properties.defaults."
SITE = {
    "enableDeletionVectors": "true",
    "columnMapping.mode": "name",
    "checkpointPolicy": "v2",
    "checkpointInterval": "1",
    "enableRowTracking": "true",
    "enableInCommitTimestamps": "true",
    "enableTypeWidening": "true",
    "enableChangeDataFeed": "true",
    "randomizeFilePrefixes": "true",
    "setTransactionRetentionDuration": "interval 0 seconds",
}
"""Properties that a site can give all its tables, beside the features themselves."""
COLUMNS = (
    "id",
    "IF(id % 2 = 0, DOUBLE('NaN'), id / 3) AS x",
    "CAST('0001-01-01 00:00:00' AS TIMESTAMP) AS first",
    "CAST('9999-12-31 23:59:59.999999' AS TIMESTAMP) AS last",
    "DATE '0001-01-01' AS day",
    "TIMESTAMP_NTZ '2024-01-01 00:00:00' AS local",
    "CAST(id AS DECIMAL(38, 10)) AS exact",
    "map('a', array(named_struct('b', id))) AS nested",
    "CAST(NULL AS STRING) AS nothing",
)


@pytest.fixture(scope="module")
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper
    client(cluster.zookeeper).close()
    kept_client.cache_clear()


@pytest.fixture
def log(spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path: Path) -> Log:
    return Log(spark, cluster, bookkeeper, tmp_path)


def features(spark: SparkSession) -> list[str]:
    """Names of all features that this Delta knows."""
    delta = spark.sparkContext._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
    names = getattr(getattr(delta, "TableFeature$"), "MODULE$").allSupportedFeaturesMap().values().iterator()
    found = []
    while names.hasNext():
        found.append(names.next().name())
    assert {"deletionVectors", "columnMapping", "v2Checkpoint"} <= set(found)
    return found


def left(log: Log) -> set[int]:
    return log.ledgers() & set(log.bookkeeper.list_ledgers())


def test_offload_table_ignores_the_sites_default_table_features(log: Log) -> None:
    """With deletion vectors, column mapping or v2 checkpoints as the site's default, all ledgers were deleted, and no row
    could be read any more."""
    log.write(100, COLUMNS, rowFormat="arrow")
    written = pyarrow.Table.from_batches(log.planned())
    conf = {f"{DEFAULTS}{name}": value for name, value in SITE.items()}
    conf |= {f"{DEFAULTS}feature.{name}": "supported" for name in features(log.spark)}
    for name, value in conf.items():
        log.spark.conf.set(name, value)
    try:
        assert len(log.offload(delete_after_seconds=0.0).deleted) == 2
    finally:
        for name in conf:
            log.spark.conf.unset(name)
    assert not left(log)
    assert _first_difference(pyarrow.Table.from_batches(log.planned()), written) is None
    protocol = DeltaTable(log.table).protocol()
    # Columns of type timestamp_ntz need a feature, which delta-rs reads.
    assert set(protocol.reader_features or ()) <= {"timestampNtz"}


@pytest.mark.release
def test_each_later_table_feature_is_read_correctly_or_refused(log: Log) -> None:
    log.write()
    log.offload()
    newest = DeltaTable(log.table).version() + 1
    commit = Path(log.table, "_delta_log", f"{newest:020d}.json")
    refused = set()
    for name in features(log.spark):
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [name], "writerFeatures": [name]}
        commit.write_text(json.dumps({"protocol": protocol}) + "\n")
        try:
            assert table.count(log.table, 0, 100) == 100
        except ReadError:
            refused.add(name)
            if name in {"deletionVectors", "v2Checkpoint"}:
                with pytest.raises(ReadError):
                    log.offload(delete_after_seconds=0.0)
                assert len(left(log)) == 2
    commit.unlink()
    assert {"deletionVectors", "columnMapping", "v2Checkpoint", "typeWidening"} <= refused


@pytest.mark.release
def test_rows_of_an_altered_table_are_read_by_sparks_own_reader(log: Log) -> None:
    log.write()
    log.offload(delete_after_seconds=0.0)
    log.write()
    assert log_frame(log.spark, log.name).count() == 200
    log.alter("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true')")
    for attempt in (lambda: list(log.planned()), lambda: log.offload(delete_after_seconds=0.0)):
        with pytest.raises(ReadError, match=r"can't be read without Spark any more .*bookspark\.spark\.log_frame"):
            attempt()
    assert len(left(log)) == 2
    rows = log_frame(log.spark, log.name, startingOffsets=50, endingOffsets=150)
    assert rows.columns == ["value", "position", "ledger_id", "entry_id"]
    found = rows.selectExpr("position", "CAST(CAST(value AS STRING) AS BIGINT)").collect()
    assert sorted(map(tuple, found)) == numbers(150)[50:]
    few = log_frame(log.spark, log.name, Where="value IN (X'3631', X'313631') OR position BETWEEN 98 AND 101")
    assert sorted(row.position for row in few.select("position").collect()) == [61, 98, 99, 100, 101, 161]
    truncate_log(log.bookkeeper, log.name, 20, b"")
    with pytest.raises(DataLossError, match="rows 10 to 19 were truncated"):
        log_frame(log.spark, log.name, startingOffsets=10)
    assert log_frame(log.spark, log.name, startingOffsets=10, failOnDataLoss=False).count() == 180
    assert log_frame(log.spark, log.name).count() == 180
    log.alter("SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
    log.spark.sql(f"DELETE FROM delta.`{log.table}` WHERE position = 60")
    with pytest.raises(ReadError, match=r"rows 50 to 99 of log .* there are 49"):
        log_frame(log.spark, log.name, startingOffsets=50)
    assert log_frame(log.spark, log.name, startingOffsets=100).count() == 100


def test_offload_deletes_no_ledger_whose_rows_were_changed_in_the_table(log: Log) -> None:
    log.write()
    log.offload()
    filled = DeltaTable(log.table).version()
    for sql in ("DELETE FROM {}", "UPDATE {} SET position = 1", "TRUNCATE TABLE {}"):
        with pytest.raises(PySparkException, match="APPEND_ONLY"):
            log.spark.sql(sql.format(f"delta.`{log.table}`"))
    for sql, said in (
        ("RESTORE {} TO VERSION AS OF 0", "there are 0, which should be"),
        (f"RESTORE {{}} TO VERSION AS OF {filled}", ""),
        ("ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'false')", ""),
        ("UPDATE {} SET value = CAST('x' AS BINARY) WHERE position = 42", "row 42 of log .* is another one"),
        ("INSERT INTO {} SELECT * FROM {} WHERE position = 7", "there are .*, which should be"),
        ("DELETE FROM {} WHERE position = 42", "there are .*, which should be"),
    ):
        log.spark.sql(sql.format(*2 * [f"delta.`{log.table}`"]))
        if said:
            with pytest.raises(OffloadError, match=said):
                log.offload(delete_after_seconds=0.0)
    shutil.move(log.table, log.table + "-elsewhere")
    with pytest.raises(ReadError, match="there is no table at"):
        log.offload(delete_after_seconds=0.0)
    log.spark.range(1).write.format("delta").save(log.table)
    with pytest.raises(OffloadError, match="was not made by an offload"):
        log.offload(delete_after_seconds=0.0)
    assert len(left(log)) == 2 and log.read() == numbers(100)
