"""The data source over real bookies: each row comes back once, whichever process dies and however many write."""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, open_log
from bookspark.protocol.ledger.ledger_metadata import LedgerState, LedgerType, Replication
from bookspark.protocol.logs.log_record import ENCODING_LABEL
from bookspark.spark import log_frame
from bookspark.spark.connector.data_source import BookSparkDataSource, register
from bookspark.spark.process_client import client, kept_client

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: SparkSession, cluster: LocalCluster) -> None:
    register(spark, cluster.zookeeper)


@pytest.fixture
def log() -> str:
    return f"log-{uuid.uuid4().hex[:8]}"


def rows_of(spark: SparkSession, log: str, **options: str) -> DataFrame:
    return spark.read.format("bookspark").option("log", log).options(**options).load()


def values_of(spark: SparkSession, log: str, **options: str) -> list[str]:
    rows = rows_of(spark, log, **options).selectExpr("CAST(value AS STRING) AS value", "position").collect()
    counts = Counter(row.position for row in rows)
    # Each lane has positions from 0 without gaps, so no position is in more lanes than the position before it.
    each = [counts[position] for position in range(len(counts))]
    assert (each == sorted(each, reverse=True) and all(each)) or "startingOffsets" in options
    return [row.value for row in sorted(rows, key=lambda row: row.position)]


class Ingest:
    """A streaming query from the files of a folder into a log, one file a micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, log: str, **options: str) -> None:
        self.spark, self.log, self.options = spark, log, options
        self.input, self.checkpoint = folder / "input", folder / f"checkpoint-{uuid.uuid4().hex[:4]}"
        self.input.mkdir(parents=True, exist_ok=True)

    def add(self, *lines: str) -> None:
        number = len(list(self.input.iterdir()))
        temporary = self.input.parent / "next"
        temporary.write_text("".join(f"{line}\n" for line in lines))
        os.utime(temporary, (number, number))  # Spark takes the oldest first
        temporary.rename(self.input / f"{number:03}.txt")

    def start(self, **trigger: object) -> StreamingQuery:
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.input))
        writer = lines.writeStream.format("bookspark").option("log", self.log).options(**self.options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()  # type: ignore[arg-type]

    def run(self) -> None:
        query = self.start()
        assert query.awaitTermination(600), "the query did not end"

    def forget_last_commit(self) -> None:
        """Delete Spark's last commit, as if Spark was killed after our commit and before its own."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def ingest(spark: SparkSession, tmp_path: Path, log: str) -> Ingest:
    return Ingest(spark, tmp_path, log)


def test_stream_rows_come_back_as_written(spark: SparkSession, cluster: LocalCluster, ingest: Ingest) -> None:
    batches = [["a", "", "ä" * 7, "x" * (1 << 20), ""], [str(n) * (n % 50) for n in range(500)], ["last"]]
    for lines in batches:
        ingest.add(*lines)
    ingest.run()
    back = values_of(spark, ingest.log)
    assert [sorted(back[:5]), sorted(back[5:-1]), back[-1:]] == [sorted(lines) for lines in batches]
    with cluster.bookkeeper() as bookkeeper:
        record = LogRegistry(bookkeeper.metadata).get(ingest.log)
        assert len(record.commit_ledgers) == 1, "one commit ledger serves all micro-batches"
    data = rows_of(spark, ingest.log).select("ledger_id").distinct().count()
    assert data <= 2, "a Python worker keeps its data ledger over micro-batches"


def test_replayed_batch_is_not_duplicated(spark: SparkSession, ingest: Ingest) -> None:
    ingest.add("0", "1", "2")
    ingest.add("3", "4")
    ingest.run()
    ingest.forget_last_commit()
    ingest.add("5")
    ingest.run()
    assert sorted(values_of(spark, ingest.log)) == ["0", "1", "2", "3", "4", "5"]


def test_second_query_and_appends_write_beside_the_first_and_a_follower_takes_over(
    spark: SparkSession, cluster: LocalCluster, ingest: Ingest, tmp_path: Path
) -> None:
    """Two of four parallel appends failed, and an ad-hoc append ended a stream."""

    def append(number: int) -> None:
        frame = spark.createDataFrame([(f"append {number}",)] * 5, "value string").repartition(2)
        frame.write.format("bookspark").option("log", ingest.log).mode("append").save()

    ingest.add("first")
    first = ingest.start(processingTime="1 second")
    second, third = [Ingest(spark, tmp_path / name, ingest.log) for name in ("second", "third")]
    try:
        first.processAllAvailable()
        with ThreadPoolExecutor(2) as appends:
            written = [appends.submit(append, number) for number in range(2)]
            ingest.add("more")
            first.processAllAvailable()
            for one in written:
                one.result(timeout=900)
        second.add("second")
        second.run()
        assert first.isActive and first.exception() is None
        with cluster.bookkeeper() as bookkeeper:
            record = LogRegistry(bookkeeper.metadata).get(ingest.log)
            assert record.batch_writes == () and record.owner_query == str(first.id)
        lanes = [["first", "more"], sorted(["append 0", "append 1"] * 5), ["second"]]
        assert [sorted(values_of(spark, f"{ingest.log}@{lane}")) for lane in range(3)] == lanes
        third.options["follows"] = str(first.id)
        third.add("third")
        third.run()
        ingest.add("too late")
        with pytest.raises(PySparkException, match="another run took over"):
            first.awaitTermination(600)
    finally:
        first.stop()
    assert sorted(values_of(spark, ingest.log)) == sorted([*(row for lane in lanes for row in lane), "third"])


def test_batch_write_appends_rows_and_closes_its_ledgers(spark: SparkSession, cluster: LocalCluster, log: str) -> None:
    frame = spark.range(2000).selectExpr("CAST(id AS STRING) AS value").repartition(3)
    for _ in range(2):
        frame.write.format("bookspark").option("log", log).mode("append").save()
    assert sorted(map(int, values_of(spark, log))) == sorted([*range(2000), *range(2000)])
    with cluster.bookkeeper() as bookkeeper:
        record = LogRegistry(bookkeeper.metadata).get(log)
        assert (record.epoch, record.batch_epoch, len(record.commit_ledgers)) == (0, 2, 2)
        assert record.batch_writes == ()
        ledgers = {row.ledger_id for row in rows_of(spark, log).select("ledger_id").distinct().collect()}
        ledgers |= {link.ledger_id for link in record.commit_ledgers}
        assert {bookkeeper.get_ledger_metadata(ledger).state for ledger in ledgers} == {LedgerState.CLOSED}


def test_other_python_threads_can_write_and_log_frame_reloads_the_log(spark: SparkSession, ingest: Ingest) -> None:
    """A Python thread has no active session, where Spark looks for the format: the format was unknown."""

    def append(count: int) -> None:
        rows = spark.range(count).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("bookspark").option("log", ingest.log).mode("append").save()

    ingest.add("a", "b")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(append, 3).result(600)
        thread.submit(ingest.run).result(600)
        append(5)
        frame = log_frame(spark, ingest.log)
        assert thread.submit(frame.count).result(600) == 10
    append(7)
    assert frame.count() == 10, "Spark keeps the plan of its first action"
    assert log_frame(spark, ingest.log).count() == 17
    assert log_frame(spark, f"{ingest.log}@0", startingOffsets=13).count() == 2, (
        "the appends were there before the query"
    )


def test_binary_values_round_trip_in_a_log_with_a_password(spark: SparkSession, log: str) -> None:
    payloads = [bytes([n, 0, 255]) * n for n in range(100)]
    secret = {"log": log, "password": "secret", "digestType": "HMAC"}
    frame = spark.createDataFrame([(payload,) for payload in payloads], "value binary")
    frame.write.format("bookspark").options(**secret).mode("append").save()
    back = rows_of(spark, log, password="secret").collect()
    assert sorted(bytes(row.value) for row in back) == sorted(payloads)
    with pytest.raises(PySparkException, match=f"log '{log}': wrong password"):
        rows_of(spark, log, password="guess")
    with pytest.raises(PySparkException, match=f"log '{log}': wrong password"):
        frame.write.format("bookspark").option("log", log).mode("append").save()


@pytest.mark.acceptance
def test_failed_write_leaves_no_row_in_the_log(spark: SparkSession, log: str) -> None:
    good = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    good.write.format("bookspark").option("log", log).mode("append").save()
    bad = spark.range(0, 100, 1, 2).select(
        F.when(F.col("id") == 99, F.raise_error(F.lit("made to fail")))
        .otherwise(F.col("id").cast("string"))
        .alias("value")
    )
    with pytest.raises(PySparkException, match="made to fail"):
        bad.write.format("bookspark").option("log", log).mode("append").save()
    assert len(values_of(spark, log)) == 100


def test_log_is_read_in_parts_and_a_ledger_by_its_id(spark: SparkSession, cluster: LocalCluster, log: str) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("bookspark").option("log", log).mode("append").save()
    parts = rows_of(spark, log, minPartitions="7")
    assert parts.rdd.getNumPartitions() == 7
    assert sorted(map(int, values_of(spark, log, minPartitions="7"))) == list(range(1000))
    everything = values_of(spark, log)
    assert values_of(spark, log, startingOffsets="10", endingOffsets="600") == everything[10:600]

    with cluster.bookkeeper() as bookkeeper, bookkeeper.create_ledger() as ledger:
        ledger.append_batch([b"one", b"", b"three"])
        ledger.flush_last_add_confirmed()
        rows = spark.read.format("bookspark").option("ledger", ledger.ledger_id).load().orderBy("entry_id").collect()
        assert [(row.ledger_id, row.entry_id, bytes(row.payload), row.length) for row in rows] == [
            (ledger.ledger_id, 0, b"one", 3),
            (ledger.ledger_id, 1, b"", 3),
            (ledger.ledger_id, 2, b"three", 8),
        ]
        assert ledger.append(b"still open") == 3, "reading does not fence"


@pytest.mark.acceptance
def test_rows_keep_their_columns_in_a_log_of_arrow_rows(
    spark: SparkSession, zookeeper_of_source: str, tmp_path: Path, log: str
) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "id",
        "IF(id % 7 = 0, NULL, CAST(id AS STRING)) AS name",
        "array(struct(id AS x, CAST(NULL AS DATE) AS y)) AS nested",
        "map('a', id) AS pairs",
        "timestamp_seconds(id) AS at",
        "CAST(id AS DECIMAL(12, 2)) AS price",
    )
    frame.write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "rows"))
    writer = stream.writeStream.format("bookspark").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.options(log=log, rowFormat="arrow", compression="zstd").trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    write(frame.limit(1), log=log)
    back = rows_of(spark, log)
    assert back.columns == [*frame.columns, "position", "ledger_id", "entry_id"]
    # The query's lane has 1,000 rows, the lane of batch writes one.
    rows = back.collect()
    assert sorted(row.position for row in rows) == [0, *range(1000)] == values_in_parts(spark, log)
    assert sorted(row[:-3] for row in rows) == sorted(
        tuple(row) for row in [*frame.collect(), *frame.limit(1).collect()]
    )

    wrong = (
        (
            frame.select("id").schema,
            {"log": log},
            r"has the columns struct<id:bigint.*the DataFrame has struct<id:bigint>",
        ),
        (frame.schema, {"log": log, "rowFormat": "value"}, "has row_format arrow"),
    )
    for schema, options, message in wrong:
        with pytest.raises(BookKeeperError, match=message):
            source_of(zookeeper_of_source, options).writer(schema, overwrite=False)


def values_in_parts(spark: SparkSession, log: str) -> list[int]:
    """Positions that a stream of small micro-batches reads, which cut entries of many rows."""
    stream = spark.readStream.format("bookspark").options(log=log, maxOffsetsPerTrigger="700").load()
    writer = stream.select("position").writeStream.format("memory").queryName("positions")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    return sorted(row.position for row in spark.table("positions").collect())


def test_small_values_are_compressed_with_a_dictionary_of_their_log(
    spark: SparkSession, cluster: LocalCluster, log: str
) -> None:
    frame = spark.range(0, 2000, 1, 2).selectExpr(
        "to_json(struct(id, 'somebody' AS customer, id % 7 AS kind)) AS value"
    )
    write(frame, log=log, compression="zstd_dictionary")
    write(frame.limit(3), log=log)
    wanted = sorted(row.value for row in [*frame.collect(), *frame.limit(3).collect()])
    assert sorted(values_of(spark, log)) == wanted
    with cluster.bookkeeper() as bookkeeper:
        record = LogRegistry(bookkeeper.metadata).get(log)
        ledgers = {row.ledger_id for row in rows_of(spark, log).select("ledger_id").distinct().collect()}
        encodings = {bookkeeper.get_ledger_metadata(ledger).custom_metadata[ENCODING_LABEL] for ledger in ledgers}
        size = sum(bookkeeper.get_ledger_metadata(ledger).length for ledger in ledgers)
    assert record.dictionary
    assert encodings == {b"zstd_dictionary"}
    assert size < 0.8 * sum(map(len, wanted))


def test_rows_have_their_commit_times_and_are_selected_by_time(spark: SparkSession, log: str, tmp_path: Path) -> None:
    for number in range(3):
        write(spark.sql(f"VALUES ('{number} a'), ('{number} b') AS rows(value)"), log=log)
    rows = rows_of(spark, log, includeTimestamp="true").selectExpr("position", "unix_millis(timestamp) AS ms").collect()
    times = [row.ms for row in sorted(rows, key=lambda row: row.position)]
    assert times == sorted(times) and len(set(times)) == 3 and times[::2] == times[1::2]
    # A schema may name only this column.
    only = spark.read.schema("timestamp timestamp").format("bookspark").options(log=log, includeTimestamp="true").load()
    assert only.columns == ["timestamp"] and only.count() == 6
    middle = log_frame(spark, log, startingTimestamp=times[2], endingTimestamp=times[4])
    assert [row.value.decode() for row in middle.collect()] == ["1 a", "1 b"]
    stream = spark.readStream.format("bookspark").options(
        log=log, includeTimestamp="true", startingTimestamp=str(times[2])
    )
    query = (
        stream.load()
        .selectExpr("CAST(value AS STRING) AS value", "unix_millis(timestamp) AS ms")
        .writeStream.format("memory")
        .queryName(f"times_{uuid.uuid4().hex[:8]}")
        .option("checkpointLocation", str(tmp_path / "reader"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)
    found = {(row.value, row.ms) for row in spark.table(query.name).collect()}
    assert found == {(f"{number} {letter}", times[2 * number]) for number in (1, 2) for letter in "ab"}


def test_rows_of_a_service_and_of_queries_are_read_by_both(
    spark: SparkSession, cluster: LocalCluster, ingest: Ingest, log: str
) -> None:
    ingest.add("of the query")
    ingest.run()
    with cluster.bookkeeper() as bookkeeper:
        opened = open_log(bookkeeper, log)
        with opened.producer("billing-7") as producer:
            producer.append(b"of the service")
        with opened.reader() as reader:
            assert [row.value for row in reader] == [b"of the query", b"of the service"]
    ingest.add("of the query again")
    ingest.run()
    batch = spark.sql("SELECT 'of a batch write' AS value")
    batch.write.format("bookspark").option("log", log).mode("append").save()
    values = [row.value for row in rows_of(spark, log).selectExpr("CAST(value AS STRING) AS value").collect()]
    assert sorted(values) == ["of a batch write", "of the query", "of the query again", "of the service"]


def test_write_of_no_rows_leaves_no_ledger_and_nothing_under_way(
    spark: SparkSession, cluster: LocalCluster, log: str
) -> None:
    write(spark.range(0).selectExpr("CAST(id AS STRING) AS value"), log=log)
    assert rows_of(spark, log).count() == 0
    with cluster.bookkeeper() as bookkeeper:
        record = LogRegistry(bookkeeper.metadata).get(log)
    assert (record.owner, record.commit_ledgers, record.batch_writes, record.lanes) == ("", (), (), ())


def test_killed_bookie_disturbs_neither_writes_nor_reads(
    spark: SparkSession, cluster: LocalCluster, ingest: Ingest
) -> None:
    ingest.add("before")
    query = ingest.start(processingTime="1 second")
    query.processAllAvailable()
    victim = cluster.bookies[0]
    victim.kill()
    try:
        ingest.add("during")
        query.processAllAvailable()
        assert sorted(values_of(spark, ingest.log)) == ["before", "during"]
    finally:
        query.stop()
        victim.start()


# -- refusals


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format("bookspark").options(**options).mode("append").save()


VALUE = StructType().add("value", "string")
READS = {
    "a ledger that is not there": ({"ledger": "1000000000"}, "there is no ledger 1000000000"),
    "a table that is not there": ({"table": "ledger"}, "unknown system table 'ledger'; did you mean 'ledgers'"),
}
WRITES = {
    "an unknown option": (
        VALUE,
        {"log": "x", "ensembleSiz": "3"},
        "unknown option 'ensemblesiz' of format bookspark; did you mean 'ensembleSize'",
    ),
    "no log": (VALUE, {}, "which log"),
    "other columns": (
        StructType([*VALUE.fields]).add("price", "integer"),
        {"log": "x"},
        "takes one column, 'value'.*'price'",
    ),
    "a column with a name of the source's": (
        StructType().add("position", "integer"),
        {"log": "x", "rowFormat": "arrow"},
        "column 'position' has the name of a column that reading adds",
    ),
    "another type": (StructType().add("value", "integer"), {"log": "x"}, "column 'value' is int"),
    "a replication that there is not": (
        VALUE,
        {"log": "x", "replication": "all"},
        "option replication 'all' can't be used; choose one of best_effort, guaranteed",
    ),
    "more bookies than there are": (
        VALUE,
        {"log": "y", "ensembleSize": "9", "writeQuorum": "9", "ackQuorum": "9"},
        "needs 9 writable bookies, and 4 are registered",
    ),
}


@pytest.fixture(scope="module")
def zookeeper_of_source(cluster: LocalCluster) -> Iterator[str]:
    """The cluster for a data source in this process, as Spark makes it in a worker beside its driver."""
    yield cluster.zookeeper
    client(cluster.zookeeper).close()
    kept_client.cache_clear()


def source_of(zookeeper: str, options: Mapping[str, str]) -> BookSparkDataSource:
    return BookSparkDataSource({name.lower(): value for name, value in {**options, "zookeeper": zookeeper}.items()})


def planned(source: BookSparkDataSource) -> object:
    reader: Any = source.reader(source.schema())
    return reader.partitions()


@pytest.mark.parametrize("case", READS)
def test_impossible_read_raises_a_clear_error(zookeeper_of_source: str, case: str) -> None:
    options, message = READS[case]
    with pytest.raises(BookKeeperError, match=message):
        planned(source_of(zookeeper_of_source, options))


@pytest.mark.parametrize("case", WRITES)
def test_impossible_write_raises_a_clear_error(zookeeper_of_source: str, case: str) -> None:
    schema, options, message = WRITES[case]
    with pytest.raises(BookKeeperError, match=message):
        source_of(zookeeper_of_source, options).writer(schema, overwrite=False)


def test_overwrite_is_refused(zookeeper_of_source: str) -> None:
    with pytest.raises(BookKeeperError, match="can only be appended to"):
        source_of(zookeeper_of_source, {"log": "x"}).writer(VALUE, overwrite=True)


REFUSED: dict[str, tuple[Callable[[SparkSession], object], str]] = {
    "reading a log that is not there": (lambda spark: rows_of(spark, "nowhere"), "there is no log 'nowhere'"),
    "a null": (
        lambda spark: write(spark.sql("SELECT CAST(NULL AS STRING) AS value"), log="x"),
        "column 'value' is null in row 0 of partition 0",
    ),
    "a cluster that is not there": (
        lambda spark: write(spark.sql("SELECT 'a' AS value"), log="x", zookeeper="127.0.0.1:1"),
        "127.0.0.1:1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistake_raises_a_clear_error_on_the_driver(spark: SparkSession, case: str) -> None:
    action, message = REFUSED[case]
    with pytest.raises(PySparkException) as raised:
        action(spark)
    assert re.search(message, str(raised.value)), str(raised.value)


def test_stream_with_wrong_columns_fails_at_its_start(spark: SparkSession, ingest: Ingest) -> None:
    ingest.add("a")
    lines = spark.readStream.text(str(ingest.input)).withColumn("price", F.lit(1))
    writer = lines.writeStream.format("bookspark").option("log", ingest.log)
    query = writer.option("checkpointLocation", str(ingest.checkpoint)).start()
    with pytest.raises(PySparkException, match="takes one column, 'value'"):
        query.awaitTermination(600)


def test_committed_rows_of_a_volatile_guaranteed_log_survive_power_loss_of_all_bookies(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, log: str
) -> None:
    ingest = Ingest(spark, tmp_path, log, ledgerType="vd_journal", replication="guaranteed")
    batches = [[f"{batch}-{row}" for row in range(50)] for batch in range(2)]
    for lines in batches:
        ingest.add(*lines)
    ingest.run()
    for bookie in cluster.bookies:
        bookie.kill()
        bookie.lose_unsynced()
    for bookie in cluster.bookies:
        bookie.start()
    assert sorted(values_of(spark, log)) == sorted(line for lines in batches for line in lines)
    data = {row.ledger_id for row in rows_of(spark, log).select("ledger_id").distinct().collect()}
    with cluster.bookkeeper() as bookkeeper:
        commits = {link.ledger_id for link in LogRegistry(bookkeeper.metadata).get(log).commit_ledgers}
        kinds = {
            (ledger_id in commits, metadata.ledger_type, metadata.replication)
            for ledger_id in data | commits
            for metadata in [bookkeeper.get_ledger_metadata(ledger_id)]
        }
    assert kinds == {
        (False, LedgerType.VD_JOURNAL, Replication.GUARANTEED),
        (True, LedgerType.PD_JOURNAL, Replication.GUARANTEED),
    }
