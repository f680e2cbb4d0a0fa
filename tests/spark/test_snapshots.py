"""Live system tables, the files of snapshots, and refused arguments (audits of snapshots: ``tests/system/acceptance``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD
from pyspark.sql import SparkSession

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.local import LocalCluster
from bookspark.operations.console.past.deltas import Deltas
from bookspark.spark import audit, snapshots
from bookspark.spark.connector.data_source import register
from bookspark.spark.snapshots import snapshot
from bookspark.spark.snapshots.retention import remove_files
from bookspark.spark.snapshots.snapshot import GLOB_LOGGER
from bookspark.spark.tables.system_tables import system_table
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.copies import Unreadable, copies_on
from tests.awaiting import SECONDS_MAX
from tests.spark.audited import write_label
from tests.surgery import turn_a_bit

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]


@pytest.fixture(scope="module")
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


DEFAULTS = "spark.databricks.delta.properties.defaults."
"""Prefix of a site's defaults for new Delta tables."""
SITE = {
    DEFAULTS + "appendOnly": "true",
    DEFAULTS + "checkpointInterval": "2",
    DEFAULTS + "checkpointPolicy": "v2",
    DEFAULTS + "columnMapping.mode": "name",
    DEFAULTS + "enableChangeDataFeed": "true",
    DEFAULTS + "enableDeletionVectors": "true",
    DEFAULTS + "enableIcebergCompatV2": "true",
    DEFAULTS + "enableInCommitTimestamps": "true",
    DEFAULTS + "enableRowTracking": "true",
    DEFAULTS + "enableTypeWidening": "true",
    DEFAULTS + "feature.clustering": "supported",
    DEFAULTS + "feature.deletionVectors": "supported",
    DEFAULTS + "minReaderVersion": "3",
    DEFAULTS + "minWriterVersion": "7",
    DEFAULTS + "universalFormat.enabledFormats": "iceberg",
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.autoCompact.minNumFiles": "2",
    "spark.databricks.delta.commitInfo.userMetadata": "nightly",
    "spark.databricks.delta.optimizeWrite.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.ansi.enforceReservedKeywords": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.crossJoin.enabled": "false",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.storeAssignmentPolicy": "STRICT",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}


@pytest.fixture
def site(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in SITE}
    for name, value in SITE.items():
        spark.conf.set(name, value)
    yield
    for name, was in before.items():
        if was is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, was)


@pytest.mark.usefixtures("site")
def test_snapshots_audits_and_the_consoles_past_work_under_a_sites_settings(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path: Path
) -> None:
    with bookkeeper.create_ledger(3, 3, 2) as ledger:
        ledger.append_batch([b"row"] * 50)
    path, to_data_frame = str(tmp_path), RDD.toDF
    snapshots.write(spark, cluster.zookeeper, path)
    active = SparkSession.getActiveSession()
    assert active is not None and active._jsparkSession.equals(spark._jsparkSession)  # type: ignore[operator]
    # A commit of another program, with the site's userMetadata.
    spark.sql(f"ALTER TABLE delta.`{path}/{snapshots.LAST}` SET TBLPROPERTIES ('team' = 'platform')")
    taken = snapshots.write(spark, cluster.zookeeper, path, keep=1)
    remove_files(spark, path)
    assert [one.snapshot_id for one in snapshots.history(spark, path)] == [taken.snapshot_id]
    found = {finding.name: finding for finding in audit.run(spark, path)}
    assert found["missing_entries"].good and len(found) > 15
    deltas = Deltas(path)
    newest = deltas.snapshots()[-1]
    assert newest.snapshot_id == taken.snapshot_id
    assert ledger.ledger_id in list(deltas.ledgers(newest))
    assert RDD.toDF is to_data_frame and all(spark.conf.get(name) == value for name, value in SITE.items())


def test_old_versions_are_cut_from_delta_logs_and_kept_versions_are_readable(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nothing ever cut the logs: a snapshot every hour left 9,000 files a year in each, and each snapshot read all of them."""
    interval = "spark.databricks.delta.properties.defaults.checkpointInterval"
    log = tmp_path / snapshots.LAST / "_delta_log"
    spark.conf.set(interval, "2")
    try:
        for n in range(4):
            write_label(spark.range(n, n + 1).coalesce(1), str(tmp_path), f"s{n}", oldest=f"s{max(0, n - 1)}")
        remove_files(spark, str(tmp_path))
        versions = {int(path.name.split(".")[0]) for path in log.glob("[0-9]*")}
        assert versions == set(range(min(versions), 4)) and min(versions) > 0
        kept = snapshots.history(spark, str(tmp_path))
        assert [(s.snapshot_id, s.version) for s in kept] == [("s3", 3), ("s2", 2)]
        reader = spark.read.format("delta")
        rows = [reader.option("versionAsOf", s.version).load(str(log.parent)).first().id for s in kept]
        assert rows == [3, 2]
    finally:
        spark.conf.unset(interval)
    assert [s.version for s in Deltas(str(tmp_path)).snapshots()] == [2, 3]


def test_tables_of_a_snapshot_come_from_a_single_read_of_the_records(
    spark: SparkSession, bookkeeper: BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table read the records again: all audits left a ledger that changed in between to the next snapshot.
    (``tests/system/acceptance`` covers the other tables of a snapshot.)"""
    monkeypatch.setattr(snapshot, "written", lambda checksums: ["ledgers", "fragments", snapshots.LAST])
    ledger = bookkeeper.create_ledger(ack_quorum=3)
    ledger.append_batch([b"entry"] * 10)

    def begins(table: str, number: int, count: int) -> None:
        if table == "fragments":
            ledger.close()

    taken = snapshots.write(spark, bookkeeper.zookeeper, str(tmp_path), begins=begins)
    found = snapshot.commits(spark, str(tmp_path))
    tables = snapshot.tables_of(spark, str(tmp_path), found, taken, ["ledgers", "fragments"])
    ours = f"ledger_id = {ledger.ledger_id}"
    (row,) = tables["ledgers"].where(ours).collect()
    (fragment,) = tables["fragments"].where(ours).collect()
    assert (row.state, row.metadata_version, row.last_entry_id) == ("OPEN", fragment.metadata_version, None)
    assert (fragment.first_entry_id, fragment.last_entry_id) == (0, None)


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot has its first and its last table only."""
    monkeypatch.setattr(snapshot, "ORDER", ("ledger_ids", snapshots.LAST))


@pytest.mark.usefixtures("few_tables", "bookkeeper")
@pytest.mark.parametrize("earlier", [0, 1])
def test_snapshot_taken_during_another_counts_and_the_other_one_fails(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, earlier: int
) -> None:
    """One of two first snapshots was given up by the other: it ended with a bare StopIteration."""
    path, taken = str(tmp_path), []

    def take(begins: Callable[[str, int, int], None] = lambda *_: None) -> None:
        taken.append(snapshots.write(spark, cluster.zookeeper, path, begins=begins).snapshot_id)

    def take_another(table: str, number: int, count: int) -> None:
        if table == snapshots.LAST:
            take()

    for _ in range(earlier):
        take()
    with pytest.raises(BookKeeperError, match="another snapshot of this path is being written"):
        take(take_another)
    take()
    assert [one.snapshot_id for one in snapshots.history(spark, path)] == taken[::-1]
    assert len(taken) == earlier + 2


@pytest.mark.usefixtures("few_tables", "bookkeeper")
def test_two_first_snapshots_written_at_once_leave_one_and_an_error(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    path, both = str(tmp_path), threading.Barrier(2)

    def begin_together(*_: object) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(SECONDS_MAX)

    def take(_: int) -> str:
        try:
            found = snapshots.write(spark, cluster.zookeeper, path, begins=begin_together)
        except BookKeeperError as error:
            both.abort()
            return str(error)
        return found.snapshot_id

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(take, range(2)))
    [kept] = snapshots.history(spark, path)
    [failed] = [one for one in told if one != kept.snapshot_id]
    assert "another snapshot of this path is being written" in failed


def test_path_without_snapshots_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no snapshot under .*; take one with `bookspark snapshot`"):
        audit.run(spark, str(tmp_path))


def test_snapshot_history_silences_the_logger_of_sparks_stack_trace(spark: SparkSession, tmp_path: Path) -> None:
    """Spark logged a stack trace for the path with an asterisk under which earlier snapshots were searched."""
    with pytest.raises(ConfigurationError):
        snapshots.history(spark, str(tmp_path))
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    assert log4j.LogManager.getLogger(GLOB_LOGGER).getLevel().toString() == "ERROR"


def test_unknown_audit_query_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown audit query 'orphan'; did you mean 'orphans'"):
        audit.run(spark, str(tmp_path), queries=["orphan"])


def test_system_tables_are_live(spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger(ack_quorum=3, custom_metadata={"kind": b"mine"}) as ledger:
        ledger.append_batch([b"entry"] * 10)

    def table(name: str) -> list:  # type: ignore[type-arg]
        return spark.read.format("bookspark").option("table", name).load().collect()

    (row,) = [row for row in table("ledgers") if row.ledger_id == ledger.ledger_id]
    assert (row.state, row.last_entry_id, row.length, row.custom_metadata) == ("CLOSED", 9, 50, '{"kind": "mine"}')
    (row,) = [row for row in table("fragments") if row.ledger_id == ledger.ledger_id]
    assert (row.first_entry_id, row.last_entry_id) == (0, 9)
    holders = sorted(
        r.bookie_id for r in table("index_ranges") if (r.ledger_id, r.last_entry_id) == (ledger.ledger_id, 9)
    )
    assert holders == sorted(row.ensemble)
    assert {r.bookie_id: r.state for r in table("bookies")} == {b.bookie_id: "writable" for b in cluster.bookies}


def test_rotten_copy_is_missing_from_system_tables_once_it_was_read(
    cluster: LocalCluster, bookkeeper: BookKeeper
) -> None:
    """It counted as held for ever, because its bookie's index listed it. (``tests/system/acceptance`` has audits of it.)"""
    with bookkeeper.create_ledger(ack_quorum=3) as ledger:
        for _ in range(3):
            ledger.append_batch([b"entry"] * 10)
    bookie = next(one for one in cluster.bookies if one.bookie_id == ledger.metadata.last_fragment.ensemble[0])
    batches = bookkeeper.list_ranges(bookie.bookie_id, ledger.ledger_id).to_pylist()
    turn_a_bit(bookie, batches[1])
    ranges = [(row["first_entry_id"], row["last_entry_id"]) for row in batches]
    read = list(copies_on(bookkeeper.context, bookie.bookie_id, ledger.ledger_id, ranges))
    assert [one for one in read if isinstance(one, Unreadable)] == [Unreadable(10, 19)]

    def rows(name: str) -> list[dict[str, Any]]:
        table = system_table(name)
        parts = [batch for part in table.plan(bookkeeper) for batch in table.read(bookkeeper, part, b"")]
        return [row for batch in parts for row in batch.to_pylist()]

    held = [row for row in rows("index_ranges") if row["ledger_id"] == ledger.ledger_id]
    entries = {one.bookie_id: set[int]() for one in cluster.bookies}
    for row in held:
        entries[row["bookie_id"]] |= set(range(row["first_entry_id"], row["last_entry_id"] + 1))
    whole, damaged = set(range(30)), {*range(10), *range(20, 30)}
    assert {name: found for name, found in entries.items() if found} == {
        name: damaged if name == bookie.bookie_id else whole for name in ledger.metadata.last_fragment.ensemble
    }
    assert {row["bookie_id"]: row["lacking_ledgers"] for row in rows("disks")} == {
        one.bookie_id: int(one is bookie) for one in cluster.bookies
    }
