"""Keys and headers of producers' rows in Spark (``includeKey``, ``includeHeaders``), over real bookies."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.local import LocalCluster
from bookspark.logs import open_log
from bookspark.logs.chain.stamps import stamped
from bookspark.logs.rows.stamped_rows import split_stamps
from bookspark.spark.connector.data_source import register
from bookspark.spark.options.source_options import SourceOptions

BOTH = {"includeKey": "true", "includeHeaders": "true"}
TRACE = [("trace", b"\x00\xff"), ("trace", b"")]
WRITTEN = [
    ("plain", None, None),
    ("keyed", b"k1", None),
    ("empty key", b"", None),
    ("headed", None, TRACE),
    ("both", b"k2", TRACE[:1]),
]


def test_stamps_are_split_into_key_and_header_columns() -> None:
    entries = [
        stamped(n, n, value.encode(), key, tuple(headers or ())) for n, (value, key, headers) in enumerate(WRITTEN)
    ]
    columns, values = split_stamps(pyarrow.array(entries, pyarrow.binary())[1:], "here")
    assert values.to_pylist() == [value.encode() for value, _, _ in WRITTEN[1:]]
    assert columns["key"].to_pylist() == [key for _, key, _ in WRITTEN[1:]]
    found = columns["headers"].to_pylist()
    assert [h and [(one["key"], one["value"]) for one in h] for h in found] == [h for _, _, h in WRITTEN[1:]]


def test_key_and_header_options_are_booleans_and_only_for_logs() -> None:
    for option in BOTH:
        with pytest.raises(ConfigurationError, match=option):
            SourceOptions.parse({"zookeeper": "127.0.0.1:1", "ledger": "1", option: "true"})
        with pytest.raises(BookKeeperError, match=option):
            SourceOptions.parse({"zookeeper": "127.0.0.1:1", "log": "orders", option: "perhaps"})


@pytest.mark.spark
def test_spark_reads_keys_and_headers(
    spark: SparkSession, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    register(spark, cluster.zookeeper)
    log = "keys"
    rows = spark.sql("SELECT 'of spark' AS value").write.format("bookspark").options(log=log, compression="zstd")
    rows.mode("append").save()
    with cluster.bookkeeper() as bookkeeper, open_log(bookkeeper, log).producer("service") as producer:
        for value, key, headers in WRITTEN:
            producer.append(value.encode(), key=key, headers=tuple(headers or ()))
    expected = sorted([*WRITTEN, ("of spark", None, None)], key=lambda row: row[0])

    def of(frame: Any) -> list[Any]:
        found = frame.selectExpr("CAST(value AS STRING) AS value", "key", "headers").collect()
        plain = [
            (row.value, None if row.key is None else bytes(row.key), row.headers and [tuple(h) for h in row.headers])
            for row in found
        ]
        return sorted(plain, key=lambda row: row[0])

    reader = spark.read.format("bookspark").options(log=log, **BOTH)
    frame = reader.load()
    types = dict(frame.dtypes)
    assert (types["key"], types["headers"]) == ("binary", "array<struct<key:string,value:binary>>"), "as Kafka's"
    assert of(frame) == expected
    some = reader.option("includeTimestamp", "true").schema("key binary, timestamp timestamp").load().collect()
    assert sorted(bytes(row.key) for row in some if row.key is not None) == [b"", b"k1", b"k2"]
    assert all(row.timestamp is not None for row in some)
    plain = spark.read.format("bookspark").option("log", log).load().columns
    assert plain[0] == "value" and "key" not in plain

    query = (
        spark.readStream.format("bookspark")
        .options(log=log, **BOTH)
        .load()
        .writeStream.format("memory")
        .queryName(f"stream_{log}")
        .option("checkpointLocation", str(tmp_path_factory.mktemp("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    assert of(spark.table(f"stream_{log}")) == expected


@pytest.mark.spark
def test_log_with_its_own_key_column_refuses_include_key(spark: SparkSession, cluster: LocalCluster) -> None:
    register(spark, cluster.zookeeper)
    rows = spark.sql(
        "SELECT CAST('k' AS BINARY) AS Key, array(named_struct('key', 'a', 'value', CAST('b' AS BINARY))) headers"
    )
    rows.write.format("bookspark").options(log="own_columns", rowFormat="arrow").mode("append").save()
    reader = spark.read.format("bookspark").option("log", "own_columns")
    assert reader.load().select("Key", "headers").collect() == rows.collect()
    with pytest.raises(
        (PySparkException, ConfigurationError), match="a column 'key' of its own, and option includeKey"
    ):
        reader.option("includeKey", "true").load()
