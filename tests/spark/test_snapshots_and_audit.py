"""Snapshots and audits of a real cluster: nothing on a healthy one, the damage where it was made, and the time before it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from bookspark.autorecovery.config import AutorecoveryConfig
from bookspark.autorecovery.worker import ReplicationWorker
from bookspark.client import BookKeeper
from bookspark.local import LocalBookie, LocalCluster
from bookspark.protocol.errors import ConfigurationError
from bookspark.protocol.ledger_metadata import LedgerMetadata
from bookspark.protocol.underreplication import Mark, Reason
from bookspark.spark import audit, snapshots
from bookspark.spark.audit.runner import run_over
from bookspark.spark.data_source import register
from bookspark.spark.integrity_check import Marked, mark_lacking
from bookspark.spark.logs import collect_orphans
from bookspark.spark.snapshot_retention import remove_files
from bookspark.wire.entry_batch import Entry, encode_entries
from bookspark.wire.header import Flag, Header, Kind, Status
from tests.bookie.kit import Client
from tests.surgery import remove_entries

pytestmark = pytest.mark.spark


@pytest.fixture
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


CHECKED = ["divergence", "missing_entries", "orphans", "over_replicated_ranges", "under_replicated_ranges"]


def bad(findings: Sequence[audit.Finding]) -> dict[str, list[dict[str, Any]]]:
    """By audit, the rows of what should not be."""
    return {f.name: [dict(zip(f.columns, row, strict=True)) for row in f.rows] for f in findings if f.good is False}


def only(rows: Sequence[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.mark.timeout(900)
def test_each_damage_is_found_by_its_query_alone_and_gone_after_its_repair(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path: Path
) -> None:
    path = str(tmp_path / "snapshots")
    frame = spark.range(0, 2000, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("bookspark").option("log", "orders").mode("append").save()
    being_written = bookkeeper.create_ledger()
    being_written.append_batch([b"entry"] * 10)
    ledgers = []
    for _ in range(2):
        with bookkeeper.create_ledger() as ledger:
            for n in range(10):
                ledger.append_batch([b"entry %d" % i for i in range(10 * n, 10 * n + 10)])
        ledgers.append(ledger.metadata)
    live = {name: spark.read.format("bookspark").option("table", name).load() for name in snapshots.ORDER}
    findings = run_over(spark, live, audit.names())
    assert bad(findings) == {}
    (factors,) = next(f for f in findings if f.name == "replication_factor_histogram").rows
    # A header and a commit beside the rows; of the open ledger what is confirmed.
    assert factors[0] == 3 and factors[2] == 2000 + 2 + 10 + 2 * 100
    (garbage,) = {row[9] for f in findings if f.name == "garbage_per_entry_log" for row in f.rows}
    assert garbage == 0, "nothing was deleted"

    # A range is missing on one bookie, an entry has another content there, and a ledger was left behind by an earlier epoch.
    missing, diverging = ledgers
    (victim, *_) = sorted(set(missing.last_fragment.ensemble) & set(diverging.last_fragment.ensemble))
    bookie = next(b for b in cluster.bookies if b.bookie_id == victim)
    bookie.stop()
    assert remove_entries(bookie, missing.ledger_id, 30, 39) == 1
    assert remove_entries(bookie, diverging.ledger_id, 90, 99) == 1
    bookie.start()
    put_other_content(bookie, diverging, 90, 99, instead_of=b"entry 95")
    labels = {"bookspark.log": b"orders", "bookspark.epoch": b"0", "bookspark.role": b"data"}
    with bookkeeper.create_ledger(custom_metadata=labels) as orphan:
        pass
    write_label(spark.range(1), path, "before", oldest="before")
    damaged = snapshots.write(spark, cluster.zookeeper, path, checksums=True, keep=1)
    assert [snapshot.version for snapshot in snapshots.history(spark, path)] == [1]

    findings = audit.run(spark, path)
    assert audit.left_out(findings) == []
    found = bad(findings)
    assert sorted(found) == ["divergence", "orphans", "under_replicated_ranges"]
    ranges = ("ledger_id", "first_entry_id", "last_entry_id", "replication_factor", "missing_on")
    assert only(found["under_replicated_ranges"], *ranges) == [(missing.ledger_id, 30, 39, 2, [victim])]
    others = sorted(set(diverging.last_fragment.ensemble) - {victim})
    assert only(found["divergence"], "ledger_id", "entry_id", "contents") == [(diverging.ledger_id, 95, 2)]
    assert sorted(found["divergence"][0]["bookies_by_content"]) == sorted([others, [victim]])
    assert only(found["orphans"], "ledger_id", "log_epoch") == [(orphan.ledger_id, 0)]

    # The integrity check has the missing range copied; the other content has to be taken out first.
    assert mark_lacking(spark, path, cluster.zookeeper) == Marked(ledgers=1, copies=10)
    tasks = spark.read.format("bookspark").option("table", "underreplication").load().collect()
    assert [(row.ledger_id, row.bookie_id, row.reason) for row in tasks] == [(missing.ledger_id, victim, "lacks")]
    bookie.stop()
    assert remove_entries(bookie, diverging.ledger_id, 90, 99) == 1
    bookie.start()
    bookkeeper.metadata.underreplication.mark([Mark(diverging.ledger_id, {victim: Reason.LACKS})])
    repair_all(bookkeeper)
    assert collect_orphans(bookkeeper, "orders", b"") == [orphan.ledger_id]
    repaired = snapshots.write(spark, cluster.zookeeper, path, checksums=True, keep=2)

    assert bad(audit.run(spark, path, queries=CHECKED)) == {}
    assert sorted(bad(audit.run(spark, path, damaged.version, CHECKED))) == sorted(found), "AS OF"
    check_report(spark, path, damaged, findings, tmp_path / "report.html")
    assert [snapshot.version for snapshot in snapshots.history(spark, path)] == [repaired.version, damaged.version]
    with pytest.raises(ConfigurationError, match="no snapshot of version 0; there are: 2, 1"):
        audit.run(spark, path, version=0)
    for table in snapshots.ORDER:
        described = {row.col_name: row.comment for row in snapshots_table(spark, path, table)}
        assert described and all(described.values()), table
    being_written.close()


def put_other_content(bookie: LocalBookie, metadata: LedgerMetadata, first: int, last: int, instead_of: bytes) -> None:
    """Write entries to one bookie as a repair does, but for one that has another content than it should."""
    host, port = bookie.address.split(":")
    length, entries = 0, []
    for entry_id in range(last + 1):
        payload = b"entry %d" % entry_id
        length += len(payload)
        content = payload[::-1] if payload == instead_of else payload
        entries.append(Entry(metadata.ledger_id, entry_id, -1, length, content, b""))
    client = Client((host, int(port)))
    header = Header(
        Kind.ADD, 1, metadata.ledger_id, first, last, master_key=metadata.master_key, flags=int(Flag.RECOVERY)
    )
    client.send(encode_entries(header, entries[first:]))
    assert client.receive().header.status == Status.OK
    client.close()


def repair_all(bookkeeper: BookKeeper) -> None:
    """Have a replication worker do all tasks there are."""
    worker = ReplicationWorker(bookkeeper, AutorecoveryConfig(poll_seconds=0.2, retry_seconds=0.2))
    worker.start()
    deadline = time.monotonic() + 120
    while bookkeeper.metadata.underreplication.list_tasks():
        assert time.monotonic() < deadline, "the tasks were not done in time"
        time.sleep(0.05)
    worker.stop()


def check_report(
    spark: SparkSession, path: str, snapshot: snapshots.Snapshot, findings: list[audit.Finding], file: Path
) -> None:
    audit.write_report(spark, path, snapshot.version, findings, file)
    page = file.read_text()
    assert f"3 of {len(findings)} audits found something: divergence, orphans, under-replicated ranges" in page
    assert f"Snapshot {snapshot.version}, taken" in page and snapshot.snapshot_id in page
    assert page.count("<svg") == 6 and '<p class="good">None.</p>' in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page), "nothing is loaded"


def snapshots_table(spark: SparkSession, path: str, table: str) -> list:  # type: ignore[type-arg]
    return spark.sql(f"DESCRIBE TABLE delta.`{path}/{table}`").collect()


def write_label(rows: DataFrame, path: str, snapshot: str, oldest: str) -> None:
    """Write what makes a snapshot count, with ``rows`` for content."""
    label = f'{{"snapshot": "{snapshot}", "oldest": "{oldest}"}}'
    writer = rows.write.format("delta").mode("overwrite").option("userMetadata", label)
    writer.save(snapshots.location(path, snapshots.LAST))


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
