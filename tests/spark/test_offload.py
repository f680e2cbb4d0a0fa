"""Offloading a log over real bookies: each row is in the table once, wherever an offload ends, and readers do not notice."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from bookspark.errors import DataLossError
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, commits, open_log
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.lanes import lane_id
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.spark.connector.data_source import BookSparkDataSource, register
from bookspark.spark.frames import log_frame
from bookspark.spark.offload import Offloaded, offload, table
from bookspark.spark.offload import offloading as module
from bookspark.spark.process_client import client, kept_client
from bookspark.spark.rows import rows as row_codecs
from bookspark.spark.tables.system_tables import system_table
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.store_clock import StoreClock
from tests.awaiting import await_that
from tests.operations.cli.conftest import Run, bookspark  # noqa: F401

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]
ROOT = Path(__file__).resolve().parents[2]
NUMBER = "CAST(CAST(value AS STRING) AS BIGINT) AS value"


class Died(Exception):
    """The process ended here."""


class Log:
    """A log of a test's own, and its offload table."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, folder: Path) -> None:
        self.spark, self.zookeeper, self.bookkeeper = spark, cluster.zookeeper, bookkeeper
        self.name, self.table = f"log-{uuid.uuid4().hex[:8]}", str(folder / "table")
        self.rows = 0

    def write(self, rows: int = 100, columns: Sequence[str] = ("CAST(id AS STRING) AS value",), **options: str) -> None:
        """A batch write: a commit over two ledgers, which are closed then."""
        frame = self.spark.range(self.rows, self.rows + rows, 1, 2).selectExpr(*columns)
        frame.write.format("bookspark").options(log=self.name, **options).mode("append").save()
        self.rows += rows

    def offload(self, **options: float) -> Offloaded:
        return offload(self.spark, self.zookeeper, self.name, self.table, **options)

    def alter(self, how: str) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.table}` {how}")

    def in_table(self) -> list[tuple[int, int]]:
        """(position, value) of each row of the table, sorted."""
        rows = self.spark.read.format("delta").load(self.table).selectExpr("position", NUMBER)
        return sorted(map(tuple, rows.collect()))

    def read(self) -> list[tuple[int, int]]:
        """(position, value) of each row of the log, sorted."""
        rows = self.spark.read.format("bookspark").option("log", self.name).load()
        return sorted(map(tuple, rows.selectExpr("position", NUMBER).collect()))

    def planned(self, **options: str) -> Iterator[pyarrow.RecordBatch]:
        """Batches of a read of the log's rows, planned and read in this process."""
        source = BookSparkDataSource({"log": self.name, "zookeeper": self.zookeeper, **options})
        reader = source.reader(source.schema())
        parts = reader.partitions()
        return (batch for part in parts for batch in reader.read(part))  # type: ignore[attr-defined]

    def ledgers(self) -> set[int]:
        """The data ledgers that the commits name."""
        return {r.ledger_id for placed in commits(self.bookkeeper, self.name, b"") for r in placed.commit.ranges}


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    """Bookies that collect garbage all the time. The client of this process, which reads like a worker, ends with them."""
    with LocalCluster(bookies=4, gc_wait_time_seconds=0.5, zookeeper=new_chroot()) as cluster:
        yield cluster
        client(cluster.zookeeper).close()
        kept_client.cache_clear()


@pytest.fixture(scope="module")
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


@pytest.fixture
def log(spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path: Path) -> Log:
    return Log(spark, cluster, bookkeeper, tmp_path)


def numbers(count: int) -> list[tuple[int, int]]:
    return [(n, n) for n in range(count)]


def test_each_lane_is_offloaded_to_its_own_table_and_read_from_there(log: Log) -> None:
    log.write()
    with open_log(log.bookkeeper, log.name).producer("service") as producer:
        producer.append_batch([b"%d" % number for number in range(100, 150)])

    assert (done := log.offload(delete_after_seconds=0.0)).rows == 150 and done.position == 100
    named = {
        r.ledger_id for n in range(2) for p in commits(log.bookkeeper, f"{log.name}@{n}", b"") for r in p.commit.ranges
    }
    assert set(done.deleted) == named and not named & set(log.bookkeeper.list_ledgers())
    assert sorted(value for _, value in log.read()) == list(range(150))
    assert log_frame(log.spark, log.name).count() == 150
    lane = log.spark.read.format("delta").load(f"{log.table}@1").selectExpr("position", NUMBER)
    assert sorted(map(tuple, lane.collect())) == [(n, 100 + n) for n in range(50)]


def test_readers_do_not_notice_the_offload_of_ledgers(log: Log, bookspark: Run) -> None:  # noqa: F811
    log.write()
    planned_before = log.planned()

    assert log.offload() == Offloaded(100, 100, [])
    assert log.in_table() == log.read() == numbers(100)
    log.write()
    with pytest.MonkeyPatch.context() as patched:
        # The clock of the offloading host may be an hour behind the writers' clocks.
        now_ms = StoreClock.now_ms
        patched.setattr(StoreClock, "now_ms", lambda clock: now_ms(clock) - 3_600_000)
        done = log.offload(delete_after_seconds=0.0)
    assert (done.rows, done.position) == (100, 200) and set(done.deleted) == log.ledgers()
    assert not log.ledgers() & set(log.bookkeeper.list_ledgers())

    found = [row for batch in planned_before for row in batch.to_pylist()]
    assert [(row["position"], int(row["value"])) for row in found] == numbers(100)
    assert log.read() == numbers(200)
    printed = bookspark("log", "read", "--zookeeper", log.zookeeper, log.name).out
    assert printed == b"".join(b"%d\n" % number for number in range(200))
    assert log.offload(delete_after_seconds=0.0) == Offloaded(0, 200, [])

    # The table has the rows in files of consecutive rows, each in order.
    files = log.spark.read.format("delta").load(log.table).selectExpr("_metadata.file_name AS f", "position").collect()
    by_file: dict[str, list[int]] = {}
    for row in files:
        by_file.setdefault(row.f, []).append(row.position)
    assert all(rows == list(range(rows[0], rows[0] + len(rows))) for rows in by_file.values())

    # A missing ledger that was not offloaded is data loss; the rows in the table are still there.
    log.write()
    for ledger_id in log.ledgers() & set(log.bookkeeper.list_ledgers()):
        log.bookkeeper.delete_ledger(ledger_id)
    assert sum(batch.num_rows for batch in log.planned(endingoffsets="200")) == 200
    with pytest.raises(DataLossError, match="were to be read, and the ledger was deleted"):
        list(log.planned(startingoffsets="200"))


def held(bookkeeper: BookKeeper) -> set[int]:
    """Ledgers with entries on any bookie."""
    table = system_table("index_ranges")
    batches = (batch for bookie in table.plan(bookkeeper) for batch in table.read(bookkeeper, bookie, b""))
    return {ledger_id for batch in batches for ledger_id in batch.column("ledger_id").to_pylist()}


TEXT = "concat(id, ' ', randstr(20000, 0))"


def test_where_selects_the_same_rows_from_a_table_as_from_ledgers(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits stay and describe their rows, so blocks that can't have a matching row are not read from the table either."""
    monkeypatch.setattr(row_codecs, "ENTRY_BYTES", 1 << 9)
    columns = ("id", "IF(id % 5 = 0, NULL, id % 7) AS part", "CAST(id AS STRING) AS name")
    for _ in range(3):
        log.write(400, columns, rowFormat="arrow")

    def found(where: str) -> list[tuple[int, str]]:
        batches = log.planned(where=where, includeTimestamp="true", includeLane="true")
        return [(row["id"], row["timestamp"]) for batch in batches for row in batch.to_pylist()]

    wheres = {
        "id = 777": {777},
        "id IN (3, 399, 400, 1199) OR id < 0": {3, 399, 400, 1199},
        "part IS NULL AND id BETWEEN 790 AND 810": {790, 795, 800, 805, 810},
        "name LIKE '110_' AND part = 3": {number for number in range(1100, 1110) if number % 5 and number % 7 == 3},
        "position >= 1195 AND lane = 0": set(range(1195, 1200)),
        "id = -1": set(),
        "timestamp < TIMESTAMP'2000-01-01 00:00:00Z'": set(),
        "NOT (id >= 2)": {0, 1},
    }
    before = {where: found(where) for where in wheres}
    assert {where: {number for number, _ in rows} for where, rows in before.items()} == wheres
    done = log.offload(delete_after_seconds=0.0)
    assert len(done.deleted) == len(log.ledgers()) == 6
    assert {where: found(where) for where in wheres} == before
    log.write(100, columns, rowFormat="arrow")
    rows = log.spark.read.format("bookspark").options(log=log.name, where="id IN (777, 1201)").load()
    assert sorted(row.id for row in rows.select("id").collect()) == [777, 1201]
    framed = log_frame(log.spark, log.name, where="id IN (777, 1201)", startingOffsets=700)
    assert sorted(row.id for row in framed.select("id").collect()) == [777, 1201]
    asked: list[Sequence[Piece]] = []
    original = table.rows

    def rows_of_table(place: str, name: str, pieces: Sequence[Piece], schema: StructType) -> pyarrow.Table:
        asked.append(pieces)
        return original(place, name, pieces, schema)

    monkeypatch.setattr(table, "rows", rows_of_table)
    assert [number for number, _ in found("id = 777")] == [777]
    assert sum(piece.rows for pieces in asked for piece in pieces) < 400


def test_reader_within_a_collected_ledger_continues_in_the_table(
    log: Log,
) -> None:
    log.write(600, [f"{TEXT} AS value"], compression="zstd_dictionary")
    written = pyarrow.Table.from_batches(log.planned())
    assert written.num_rows == 600
    reader = log.planned()
    begun = next(reader)
    assert begun.num_rows < 300, "a part of the first ledger"
    ledgers = log.ledgers()
    assert set(log.offload(delete_after_seconds=0.0).deleted) == ledgers
    await_that(lambda: not ledgers & held(log.bookkeeper))
    assert pyarrow.Table.from_batches([begun, *reader]).equals(written)


def test_offload_that_died_between_any_two_steps_is_continued_by_the_next(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offloads die at four moments, then a run finishes: each continues the work of those before it.
    ``tests/system/acceptance`` kills an offload."""

    def died(*_: object) -> None:
        raise Died

    log.write()
    seen = []
    for step, dies in (
        ("_write", died),
        ("_write", then(died, module._Run._write)),
        ("delete", died),
        ("_delete", then(died, module._Run._delete)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module._Run, step, dies)
            with pytest.raises(Died):
                log.offload(delete_after_seconds=0.0)
        offload_of = LogRegistry(log.bookkeeper.metadata).get(log.name).offload
        assert offload_of is not None
        left = len(log.ledgers() & set(log.bookkeeper.list_ledgers()))
        seen.append((offload_of.position, offload_of.pending, left))
        found = sorted(int(row["value"]) for batch in log.planned() for row in batch.to_pylist())
        assert found == list(range(log.rows))
        if log.rows == 100:
            log.write()  # not part of the transaction that was begun
    assert seen == [(0, 100, 2), (0, 100, 4), (200, 0, 4), (200, 0, 3)]
    done = log.offload(delete_after_seconds=0.0)
    assert (done.rows, done.position, len(done.deleted)) == (0, 200, 3)
    assert log.in_table() == log.read() == numbers(200)


def then(died: Callable[..., None], step: Callable[..., object]) -> Callable[..., None]:
    def and_dies(*arguments: object) -> None:
        step(*arguments)
        died()

    return and_dies


def test_table_of_another_log_and_a_second_table_are_refused(log: Log, cluster: LocalCluster, tmp_path: Path) -> None:
    other = Log(log.spark, cluster, log.bookkeeper, tmp_path)
    assert other.table == log.table
    for each in (log, other):
        each.write()
    registry = LogRegistry(log.bookkeeper.metadata)
    at_the_same_time = module._Run(log.spark, log.bookkeeper, lane_id(registry.get(other.name)), other.table, b"")
    log.offload()
    for offload_it in (at_the_same_time.transaction, other.offload):
        with pytest.raises(OffloadError, match="A table has the rows of one log"):
            offload_it()
    assert registry.get(other.name).offload is None, "it may choose another table"
    log.table = str(tmp_path / "other")
    with pytest.raises(OffloadError, match="a log has one table for all of its rows"):
        log.offload()


@pytest.mark.parametrize("column", ["INTERVAL '1' DAY", "struct()"])
def test_offload_that_no_table_can_take_leaves_the_log_free_for_a_retention(log: Log, column: str) -> None:
    log.write(3, ["id", f"{column} AS odd"], rowFormat="arrow")
    for _ in range(2):
        with pytest.raises((OffloadError, PySparkException), match=r"(?i)interval|empty|struct"):
            log.offload()
    registry = LogRegistry(log.bookkeeper.metadata)
    assert registry.get(log.name).offload is None
    registry.alter(log.name, retention_ms=3_600_000)
    assert log.spark.read.format("bookspark").option("log", log.name).load().count() == 3
