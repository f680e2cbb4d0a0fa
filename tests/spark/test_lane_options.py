"""Reads of a log of several lanes: the start and end of each lane (``startingOffsets`` and ``endingOffsets`` as JSON), and the
column ``lane``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bookspark.errors import BookKeeperError, ConfigurationError, ReadError
from bookspark.local import LocalCluster
from bookspark.logs import Log, create_log
from bookspark.spark import log_frame
from bookspark.spark.connector.data_source import BookSparkDataSource, register
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.process_client import client, kept_client

SOURCE = {"zookeeper": "127.0.0.1:1", "log": "orders"}


@pytest.fixture(scope="module")
def log(cluster: LocalCluster) -> Iterator[Log]:
    """Five rows in lane 1, three in lane 2."""
    with cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}")
        for name, rows in (("one", 5), ("two", 3)):
            with log.producer(name) as producer:
                producer.append_batch([f"{name} {number}".encode() for number in range(rows)])
        yield log


@pytest.fixture(autouse=True)
def _registered(request: pytest.FixtureRequest) -> None:
    if "spark" in request.fixturenames:
        register(request.getfixturevalue("spark"), request.getfixturevalue("cluster").zookeeper)


def rows(spark: SparkSession, log: Log, **options: str) -> list[tuple[int, int, str]]:
    frame = spark.read.format("bookspark").options(log=log.name, includeLane="true", **options).load()
    found = frame.selectExpr("lane", "position", "CAST(value AS STRING) AS value").collect()
    return sorted((row.lane, row.position, row.value) for row in found)


@pytest.mark.spark
def test_each_lane_begins_and_ends_at_the_given_offsets(spark: SparkSession, log: Log) -> None:
    start, end = json.dumps({"1": 3}), json.dumps({"2": 1, "1": 4})
    all_rows = [(1, n, f"one {n}") for n in range(5)] + [(2, n, f"two {n}") for n in range(3)]
    assert rows(spark, log) == all_rows
    assert rows(spark, log, startingOffsets=start) == all_rows[3:], "from its beginning, if it is not named"
    assert rows(spark, log, startingOffsets=start, endingOffsets=end) == [(1, 3, "one 3"), (2, 0, "two 0")]
    frame = log_frame(spark, log.name, startingOffsets=start, includeLane=True)
    assert sorted(frame.groupBy("lane").count().collect()) == [(1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("place", "message"), [({"7": 1}, "has no lane 7: its lanes are 0, 1, 2"), ({"2": 4}, "has 3 rows")]
)
def test_offset_outside_the_log_is_refused(
    cluster: LocalCluster, log: Log, place: dict[str, int], message: str
) -> None:
    for option in ("startingoffsets", "endingoffsets"):
        source = BookSparkDataSource({"zookeeper": cluster.zookeeper, "log": log.name, option: json.dumps(place)})
        with pytest.raises((ConfigurationError, ReadError), match=message):
            source.reader(source.schema()).partitions()
    client(cluster.zookeeper).close()
    kept_client.cache_clear()


@pytest.mark.spark
def test_stream_begins_at_the_given_offsets_and_includes_lanes(
    spark: SparkSession, log: Log, tmp_path_factory: pytest.TempPathFactory
) -> None:
    frame = spark.readStream.format("bookspark").options(
        log=log.name, startingOffsets=json.dumps({"1": 4, "2": 2}), includeLane="true", includeTimestamp="true"
    )
    name = f"found_{uuid.uuid4().hex[:8]}"
    query = (
        frame.load()
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(tmp_path_factory.mktemp("checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    found = spark.sql(f"SELECT lane, CAST(value AS STRING), timestamp IS NOT NULL FROM {name} ORDER BY lane").collect()
    assert [tuple(row) for row in found] == [(1, "one 4", True), (2, "two 2", True)]


@pytest.mark.parametrize(
    "place", ["{", "{}", '{"a": 1}', '{"0": "1"}', '{"0": -3}', '{"0": 1.5}', '{"0": true}', "[1]"]
)
def test_malformed_lane_offsets_are_refused(place: str) -> None:
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(BookKeeperError, match=option):
            SourceOptions.parse({**SOURCE, option: place})


def test_include_lane_is_refused_for_ledgers() -> None:
    with pytest.raises(ConfigurationError, match="includeLane"):
        SourceOptions.parse({"zookeeper": "127.0.0.1:1", "ledger": "1", "includeLane": "true"})
