"""The system tables live, the files of snapshots, and wrong words. What audits find is told in ``tests/acceptance``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookspark.client import BookKeeper
from bookspark.client.inspection.copies import Unreadable, copies_on
from bookspark.errors import ConfigurationError
from bookspark.local import LocalCluster
from bookspark.spark import audit, snapshots
from bookspark.spark.audit.runner import run_over
from bookspark.spark.connector.data_source import register
from bookspark.spark.snapshots.retention import remove_files
from bookspark.spark.snapshots.snapshot import GLOB_LOGGER
from tests.spark.audited import bad, only, write_label
from tests.surgery import turn_a_bit

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


def test_removing_files_leaves_what_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(3):
        write_label(spark.range(n, n + 1).coalesce(1), str(tmp_path), f"s{n}", oldest=f"s{max(0, n - 1)}")
    remove_files(spark, str(tmp_path))
    kept = snapshots.history(spark, str(tmp_path))
    assert [(s.snapshot_id, s.version) for s in kept] == [("s2", 2), ("s1", 1)]
    reader = spark.read.format("delta")
    rows = [reader.option("versionAsOf", s.version).load(str(tmp_path / snapshots.LAST)).first().id for s in kept]
    assert rows == [2, 1]


def test_a_path_without_snapshots_is_said_to_be_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no snapshot under .*; take one with `bookspark snapshot`"):
        audit.run(spark, str(tmp_path))


def test_a_snapshot_prints_no_stack_trace_of_sparks(spark: SparkSession, tmp_path: Path) -> None:
    """It logged one for the path with an asterisk under which it looked for earlier snapshots."""
    with pytest.raises(ConfigurationError):
        snapshots.history(spark, str(tmp_path))
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    assert log4j.LogManager.getLogger(GLOB_LOGGER).getLevel().toString() == "ERROR"


def test_an_unknown_query_is_named(spark: SparkSession, tmp_path: Path) -> None:
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


def test_a_copy_that_rotted_is_damaged_and_missing_in_an_audit_once_it_was_read(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper
) -> None:
    """It counted as held for ever, as the index of its bookie listed it."""
    with bookkeeper.create_ledger(ack_quorum=3) as ledger:
        for _ in range(3):
            ledger.append_batch([b"entry"] * 10)
    bookie = next(one for one in cluster.bookies if one.bookie_id == ledger.metadata.last_fragment.ensemble[0])
    batches = bookkeeper.list_ranges(bookie.bookie_id, ledger.ledger_id).to_pylist()
    turn_a_bit(bookie, batches[1])
    ranges = [(row["first_entry_id"], row["last_entry_id"]) for row in batches]
    read = list(copies_on(bookkeeper.context, bookie.bookie_id, ledger.ledger_id, ranges))
    assert [one for one in read if isinstance(one, Unreadable)] == [Unreadable(10, 19)]

    names = ("disks", "ledgers", "fragments", "log_commits", "index_ranges", "bookies")
    live = {name: spark.read.format("bookspark").option("table", name).load() for name in names}
    found = bad(run_over(spark, live, ["damaged_copies", "under_replicated_ranges"]))
    assert only(found["damaged_copies"], "bookie_id", "ledgers") == [(bookie.bookie_id, 1)]
    lacking = only(
        found["under_replicated_ranges"], "ledger_id", "first_entry_id", "last_entry_id", "missing_on", "of_them_down"
    )
    assert (ledger.ledger_id, 10, 19, [bookie.bookie_id], []) in lacking
    assert [row for row in lacking if row[0] == ledger.ledger_id and row[1] != 10] == []
