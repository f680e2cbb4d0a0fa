"""Batch writes with an application and a version (``txnAppId``, ``txnVersion``): each version of an application comes once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from bookspark.errors import AddTimeoutError, BookKeeperError, ConfigurationError, InvalidArgumentError
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, commits
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.logs.replays import CheckpointRewoundError
from bookspark.spark.connector import sink
from bookspark.spark.connector.data_source import BookSparkDataSource, register
from bookspark.spark.options.sink_options import SinkOptions
from tests.clocks import DAY_MS, wrong_clock
from tests.spark.stand_in_spark import StandInSpark, _batches
from tests.stories import seeds


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    engine = StandInSpark(monkeypatch)
    LogRegistry(engine.bookkeeper.metadata).ensure("orders", {}, b"")
    return engine


def begun(engine: StandInSpark, app: str, version: int, lines: list[str], **others: str) -> Callable[[], None]:
    """A batch write whose tasks are done; the function commits it."""
    options = {"zookeeper": "memory", "log": "orders", "txnAppId": app, "txnVersion": str(version), **others}
    writer = sink.LogBatchWriter(SinkOptions.parse(options).for_batch(), planned(engine))
    messages = [writer.write(_batches(lines[task::2])) for task in range(2)]
    return lambda: writer.commit(messages)


def planned(engine: StandInSpark) -> LogRecord:
    return LogRegistry(engine.bookkeeper.metadata).get("orders")


def write(engine: StandInSpark, app: str, version: int, *lines: str) -> None:
    begun(engine, app, version, list(lines))()


def values(engine: StandInSpark) -> list[str]:
    entries = engine.bookkeeper.entries
    ranges = [one for placed in commits(engine.bookkeeper, "orders", b"") for one in placed.commit.ranges]
    return [
        entries[one.ledger_id][n].decode() for one in ranges for n in range(one.first_entry_id, one.last_entry_id + 1)
    ]


def test_version_with_the_same_rows_in_any_order_is_written_once(engine: StandInSpark) -> None:
    lines = [f"row {number}" for number in range(20)]
    write(engine, "etl", 3, *lines)
    before, ledgers = values(engine), len(engine.bookkeeper.list_ledgers())
    for again in (lines, lines[::-1]):
        write(engine, "etl", 3, *again)
    assert len(engine.bookkeeper.list_ledgers()) == ledgers, "nothing is written"
    write(engine, "other", 3, *lines)
    write(engine, "etl", 7, "b")
    assert values(engine) == [*before, *before, "b"]


ANOTHER = r"is not written: the log has version 3 of it.*Give these rows another txnAppId, one for each checkpoint"


@pytest.mark.parametrize(
    ("version", "lines"),
    [(3, ["b"]), (3, ["a", "a"]), (3, []), (2, ["a"]), (0, ["b"]), (0, [])],
    ids=["other rows", "more rows", "no rows", "earlier", "first again", "first again, empty"],
)
def test_version_with_other_rows_or_an_earlier_one_is_refused_with_the_remedy(
    engine: StandInSpark, version: int, lines: list[str]
) -> None:
    """A new Spark checkpoint counts from 0 again: its rows were dropped without a word."""
    write(engine, "etl", 3, "a")
    ledgers = len(engine.bookkeeper.list_ledgers())
    for _ in range(2):
        with pytest.raises(CheckpointRewoundError, match=f"version {version} of application 'etl' {ANOTHER}"):
            write(engine, "etl", version, *lines)
    assert values(engine) == ["a"] and len(engine.bookkeeper.list_ledgers()) == ledgers
    write(engine, "etl", 4, "b")
    assert values(engine) == ["a", "b"]


def test_version_with_random_rows_is_accepted_by_its_number(engine: StandInSpark) -> None:
    write(engine, "etl", 3, "drawn")
    with pytest.raises(CheckpointRewoundError, match="set the sink's option acceptReplay to 3"):
        write(engine, "etl", 3, "drawn anew")
    begun(engine, "etl", 3, ["drawn anew"], acceptReplay="3")()
    assert values(engine) == ["drawn"]
    with pytest.raises(CheckpointRewoundError):
        begun(engine, "etl", 2, ["drawn anew"], acceptReplay="2")


def test_version_whose_log_is_made_anew_meanwhile_is_not_taken_for_written(engine: StandInSpark) -> None:
    write(engine, "etl", 3, "a")
    again = begun(engine, "etl", 3, ["a"])
    engine.delete("orders")
    LogRegistry(engine.bookkeeper.metadata).ensure("orders", {}, b"")
    with pytest.raises(BookKeeperError):
        again()
    write(engine, "etl", 3, "a")
    assert values(engine) == ["a"]


@pytest.mark.parametrize("days", [400, -400])
def test_commit_has_the_clusters_time_whatever_the_clock_of_the_driver(engine: StandInSpark, days: int) -> None:
    with wrong_clock(days):
        write(engine, "etl", 1, "there")
    write(engine, "etl", 2, "here")
    times = [placed.commit.time_ms for placed in commits(engine.bookkeeper, "orders", b"")]
    assert len(times) == 2 and all(abs(one - time.time_ns() // 1_000_000) < DAY_MS for one in times)


def test_same_version_in_two_concurrent_writes_comes_once(engine: StandInSpark) -> None:
    first, second = begun(engine, "etl", 1, ["same"]), begun(engine, "etl", 1, ["same"])
    third = begun(engine, "etl", 1, ["of the third"])
    second()
    first()
    with pytest.raises(CheckpointRewoundError, match="version 1 of application 'etl' is not written"):
        third()
    assert values(engine) == ["same"]


def test_writes_without_a_version_are_always_written(engine: StandInSpark) -> None:
    write(engine, "etl", 1, "a")
    options = SinkOptions.parse({"zookeeper": "memory", "log": "orders"})
    for _ in range(2):
        writer = sink.LogBatchWriter(options, planned(engine))
        writer.commit([writer.write(_batches(["plain"]))])
    write(engine, "etl", 1, "a")
    assert values(engine) == ["a", "plain", "plain"]


@pytest.mark.parametrize("seed", seeds(8))
def test_each_version_comes_once_despite_lost_answers(engine: StandInSpark, seed: int) -> None:
    """An application goes on to the next version once a write returned, and repeats its version until then, as Spark repeats a
    batch."""
    random = Random(seed)
    memory = engine.bookkeeper

    def perhaps_lost(ledger_id: int) -> None:
        if random.random() < 0.15:
            memory.lose_answers = random.choice([1, 2, 12])
        memory.before_append.append(perhaps_lost)

    memory.before_append.append(perhaps_lost)
    versions = {"a": 0, "b": 0}
    while min(versions.values()) < 15:
        app = random.choice(sorted(versions))
        try:
            write(engine, app, versions[app], f"{app}{versions[app]}")
        except (AddTimeoutError, BookKeeperError):
            memory.lose_answers = 0
            continue
        if random.random() < 0.7:
            versions[app] += 1
    memory.before_append.clear()
    memory.lose_answers = 0
    found = values(engine)
    for app, version in versions.items():
        mine = [value for value in found if value.startswith(app)]
        assert mine in ([f"{app}{n}" for n in range(version)], [f"{app}{n}" for n in range(version + 1)])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"txnAppId": "etl"}, "go together"),
        ({"txnVersion": "1"}, "go together"),
        ({"txnAppId": "", "txnVersion": "1"}, "txnAppId"),
        ({"txnAppId": "x" * 301, "txnVersion": "1"}, "txnAppId"),
        ({"txnAppId": "etl", "txnVersion": "-1"}, "txnVersion"),
        ({"txnAppId": "etl", "txnVersion": "one"}, "txnVersion"),
    ],
)
def test_invalid_application_or_version_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises((ConfigurationError, InvalidArgumentError), match=message):
        SinkOptions.parse({"zookeeper": "memory", "log": "orders", **given})


def test_stream_refuses_application_and_version() -> None:
    given = {"zookeeper": "memory", "log": "orders", "txnAppId": "etl", "txnVersion": "1"}
    with pytest.raises(ConfigurationError, match="are for batch writes"):
        BookSparkDataSource(given).streamWriter(StructType([StructField("value", BinaryType())]), overwrite=False)


@pytest.mark.spark
def test_rows_of_a_foreach_batch_that_fails_after_its_write_come_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    register(spark, cluster.zookeeper)
    log, failures = f"log-{uuid.uuid4().hex[:8]}", []
    (tmp_path / "input").mkdir()

    def to_log(rows: DataFrame, batch: int) -> None:
        options = {"log": log, "txnAppId": "copy", "txnVersion": str(batch)}
        rows.write.format("bookspark").options(**options).mode("append").save()
        if len(failures) < 2 and batch == len(failures):
            failures.append(batch)
            raise RuntimeError("after the write")

    for number in range(3):
        (tmp_path / "input" / f"{number}.txt").write_text(f"row {number}\n")
    source = spark.readStream.option("maxFilesPerTrigger", "1").text(str(tmp_path / "input"))
    for _ in range(3):
        query = (
            source.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(to_log)
            .start()
        )
        try:
            query.awaitTermination(600)
        except PySparkException:
            continue
    assert failures == [0, 1]
    found = spark.read.format("bookspark").option("log", log).load().selectExpr("CAST(value AS STRING)").collect()
    assert sorted(row.value for row in found) == ["row 0", "row 1", "row 2"]
