"""Snapshots and audits of a real cluster: nothing on a healthy one, the damage where it was made, and the time before it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookspark.client import BookKeeper
from bookspark.local import LocalCluster
from bookspark.protocol.errors import ConfigurationError
from bookspark.protocol.ledger_metadata import Fragment
from bookspark.spark import audit, snapshots
from bookspark.spark.data_source import register

pytestmark = pytest.mark.spark


@pytest.fixture
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


def test_damage_is_found_where_it_is_and_not_before_it_was(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path: Path
) -> None:
    path = str(tmp_path / "snapshots")
    frame = spark.range(0, 2000, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("bookspark").option("log", "orders").mode("append").save()
    being_written = bookkeeper.create_ledger()
    being_written.append_batch([b"entry"] * 10)
    with bookkeeper.create_ledger() as ledger:
        ledger.append_batch([b"entry"] * 100)
    healthy = snapshots.write(spark, cluster.zookeeper, path)

    # Metadata names a bookie that has nothing of the ledger.
    metadata, version = bookkeeper.metadata.read_ledger(ledger.ledger_id)
    ensemble = metadata.last_fragment.ensemble
    (stranger,) = {bookie.bookie_id for bookie in cluster.bookies} - set(ensemble)
    wrong = replace(metadata, fragments=(Fragment(0, (*ensemble[:2], stranger)),))
    bookkeeper.metadata.write_ledger(wrong, version)
    damaged = snapshots.write(spark, cluster.zookeeper, path)
    assert [snapshot.version for snapshot in snapshots.history(spark, path)] == [1, 0]

    before = {finding.name: finding for finding in audit.run(spark, path, version=healthy.version)}
    assert [finding.name for finding in before.values() if finding.good is False] == []
    (factors,) = before["replication_factor_histogram"].rows
    # A header and a commit beside the rows; of the open ledger what is confirmed.
    assert factors[0] == 3 and factors[2] == 2000 + 2 + 10 + 100

    queries = ["under_replicated_ranges", "over_replicated_ranges", "orphans"]
    after = {finding.name: finding for finding in audit.run(spark, path, queries=queries)}
    assert sorted(f.name for f in after.values() if f.good is False) == [
        "over_replicated_ranges",
        "under_replicated_ranges",
    ]
    (found,) = after["under_replicated_ranges"].rows
    row = dict(zip(after["under_replicated_ranges"].columns, found, strict=True))
    assert (row["ledger_id"], row["first_entry_id"], row["last_entry_id"]) == (ledger.ledger_id, 0, 99)
    assert (row["replication_factor"], row["missing_on"]) == (2, [stranger])
    assert damaged.version == 1

    file = tmp_path / "report.html"
    audit.write_report(spark, path, None, list(after.values()), file)
    page = file.read_text()
    assert "2 of 3 audits found something: under-replicated ranges, over-replicated ranges" in page
    assert f"Snapshot {damaged.version}, taken" in page and damaged.snapshot_id in page
    assert page.count("<svg") == 1, "the history; what was not audited is not plotted"
    assert f"<td>{stranger}</td>" in page and '<p class="good">None.</p>' in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page), "nothing is loaded"

    described = {row.col_name: row.comment for row in snapshots_table(spark, path, "ledgers")}
    assert described["ledger_id"] == "The ledger" and all(described.values())
    with pytest.raises(ConfigurationError, match=r"no snapshot of version 7; there are: 1, 0"):
        audit.run(spark, path, version=7)
    being_written.close()


def snapshots_table(spark: SparkSession, path: str, table: str) -> list:  # type: ignore[type-arg]
    return spark.sql(f"DESCRIBE TABLE delta.`{path}/{table}`").collect()


def test_a_path_without_snapshots_is_said_to_be_one(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no snapshot under .*; take one with jobs/snapshot.py"):
        audit.run(spark, str(tmp_path))


def test_an_unknown_query_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown audit query 'orphan'; did you mean 'orphans'"):
        audit.run(spark, str(tmp_path), queries=["orphan"])


def test_system_tables_are_live(spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger(custom_metadata={"kind": b"mine"}) as ledger:
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
