"""A log from before lanes: its query and its reader continue from their Spark checkpoints, and its old records stay unchanged.

Commit 63581cd, the last one before lanes, wrote the files: three bookies, stopped; a log ``before``, which a query wrote from
the source ``rate-micro-batch`` (its Spark checkpoint names no file of that machine); and a log ``copied``, into which a second
query read the first log. That query is a micro-batch behind.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, open_log
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.spark.connector.data_source import register
from bookspark.store.metadata.records.codec import decode_ledger
from tests.system.compatibility.restored import BEFORE_LANES, manifest, records, restore

ROWS = manifest(BEFORE_LANES)["rows"]
LEDGERS = {
    int(path.partition("/ledgers/")[2].replace("/", "").replace("L", "")): value
    for path, (value, _) in records(BEFORE_LANES).items()
    if path.startswith("/ledgers/0") and "/L" in path
}


@pytest.fixture
def cluster(new_chroot: Callable[[], str], tmp_path: Path) -> Iterator[LocalCluster]:
    (tmp_path / "bookies").mkdir()
    with restore(tmp_path / "bookies", new_chroot(), BEFORE_LANES) as cluster:
        yield cluster


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    with tarfile.open(BEFORE_LANES / "checkpoints.tar.xz") as archive:
        archive.extractall(tmp_path / "checkpoints", filter="data")
    return tmp_path / "checkpoints"


def values(cluster: LocalCluster, log: str) -> list[bytes]:
    with cluster.bookkeeper() as bookkeeper, open_log(bookkeeper, log).reader() as reader:
        return [row.value for row in reader]


def rows(count: int) -> list[bytes]:
    return [b"row %d" % number for number in range(count)]


def records_now(cluster: LocalCluster) -> tuple[dict[int, bytes], dict[str, bytes]]:
    """The bytes of the older ledgers and logs in the cluster now."""
    from bookspark.store.metadata.records.codec import encode_ledger

    with cluster.bookkeeper() as bookkeeper:
        store = bookkeeper.metadata
        ledgers = {number: encode_ledger(store.read_ledger(number).value) for number in LEDGERS}
        logs = {}
        for log in ROWS:
            found = store.read_record("logs", log)
            assert found is not None
            logs[log] = found.value
        return ledgers, logs


def test_reading_an_older_log_changes_no_record(cluster: LocalCluster) -> None:
    logs = {log: records(BEFORE_LANES)[f"/bookspark/logs/{log}"][0] for log in ROWS}
    assert records_now(cluster) == (LEDGERS, logs)
    for log, count in ROWS.items():
        assert values(cluster, log) == rows(count)
    assert records_now(cluster) == (LEDGERS, logs)


@pytest.mark.spark
@pytest.mark.acceptance
@pytest.mark.timeout(1800)
def test_older_query_and_reader_continue_from_their_spark_checkpoints(
    spark: SparkSession, cluster: LocalCluster, checkpoints: Path
) -> None:
    register(spark, cluster.zookeeper)

    def go_on(frame: DataFrame, log: str, name: str) -> str:
        writer = frame.writeStream.format("bookspark").option("log", log)
        query = writer.option("checkpointLocation", str(checkpoints / name)).trigger(availableNow=True).start()
        assert query.awaitTermination(900)
        return str(query.id)

    # The reader first: it still has older rows to read.
    source = spark.readStream.format("bookspark").option("log", "before").load().select("value")
    reader = go_on(source, "copied", "reader")
    assert values(cluster, "copied") == rows(ROWS["before"])
    rate = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=1).load()
    writer = go_on(rate.selectExpr("concat('row ', value) AS value"), "before", "writer")
    count = len(values(cluster, "before"))
    assert count > ROWS["before"] and values(cluster, "before") == rows(count)
    assert go_on(source, "copied", "reader") == reader
    assert values(cluster, "copied") == rows(count)
    for name, query in (("writer", writer), ("reader", reader)):
        assert json.loads((checkpoints / name / "metadata").read_text())["id"] == query

    ledgers, logs = records_now(cluster)
    for number, value in LEDGERS.items():
        if decode_ledger(number, value).closed:
            assert ledgers[number] == value
    for document in logs.values():
        record = json.loads(document)
        assert record["format"] == 1 and "lanes" not in record["log"], "one lane, as before"
    with cluster.bookkeeper() as bookkeeper:
        newest: LogRecord = LogRegistry(bookkeeper.metadata).get("before")
        assert newest.lanes == () and newest.owner_query == writer
