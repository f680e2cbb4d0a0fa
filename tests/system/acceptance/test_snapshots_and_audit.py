"""Snapshots and audits of a real cluster that is damaged and repaired."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bookspark.errors import ConfigurationError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.logs import LogRegistry, collect_orphans
from bookspark.operations.console.past import ledgers, logs, overview
from bookspark.operations.console.past.deltas import Deltas
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_record import LOG_ID_LABEL
from bookspark.protocol.repair.audit_plan import absent
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.spark import audit, snapshots
from bookspark.spark.audit.integrity_check import Marked, mark_lacking
from bookspark.spark.connector.data_source import register
from bookspark.spark.snapshots import snapshot
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.worker import ReplicationWorker
from bookspark.store.client import BookKeeper
from bookspark.store.wire.entry_batch import Entry, encode_entries
from bookspark.store.wire.header import Flag, Header, Kind, Status
from tests.awaiting import await_that
from tests.spark.audited import bad, only, write_label
from tests.store.bookie.kit import Client
from tests.surgery import remove_entries

pytestmark = pytest.mark.spark

ROWS_PER_FILE = 10
"""For a snapshot that is split into files as a large one is."""
FOUND = ["autorecovery_disabled", "divergence", "orphans", "under_replicated_ranges"]
AUDITS = sorted([*FOUND, "bytes_per_bookie", "missing_entries", "readability"])
"""Spark takes seconds to plan one audit. ``test_audit_queries`` has all."""


@pytest.fixture(scope="module")
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


class Story:
    """Ledgers of a log and others, one of them open, which are damaged and then repaired."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, path: str) -> None:
        self.spark, self.cluster, self.bookkeeper, self.path = spark, cluster, bookkeeper, path
        self.told: list[tuple[str, int, int]] = []
        frame = spark.range(0, 2000, 1, 2).selectExpr("CAST(id AS STRING) AS value")
        # With an ack quorum of 3 each acknowledged entry has all copies: an audit would also report a third copy in flight.
        frame.write.format("bookspark").option("log", "orders").option("ackQuorum", 3).mode("append").save()
        self.open = bookkeeper.create_ledger(ack_quorum=3)
        self.open.append_batch([b"entry"] * 10)
        ledgers = []
        for _ in range(2):
            with bookkeeper.create_ledger(ack_quorum=3) as ledger:
                for n in range(10):
                    ledger.append_batch([b"entry %d" % i for i in range(10 * n, 10 * n + 10)])
            ledgers.append(ledger.metadata)
        self.missing, self.diverging = ledgers
        (self.victim, *_) = sorted(
            set(self.missing.last_fragment.ensemble) & set(self.diverging.last_fragment.ensemble)
        )

    def damage(self) -> snapshots.Snapshot:
        """A bookie lacks a range and holds another content of an entry, and a ledger remains from an earlier epoch."""
        bookie = self._bookie
        bookie.stop()
        assert remove_entries(bookie, self.missing.ledger_id, 30, 39) == 1
        assert remove_entries(bookie, self.diverging.ledger_id, 90, 99) == 1
        bookie.start()
        put_other_content(bookie, self.diverging, 90, 99, instead_of=b"entry 95")
        log_id = str(LogRegistry(self.bookkeeper.metadata).get("orders").log_id).encode()
        labels = {"bookspark.log": b"orders", "bookspark.epoch": b"0", "bookspark.role": b"data", LOG_ID_LABEL: log_id}
        with self.bookkeeper.create_ledger(custom_metadata=labels) as self.orphan:
            pass
        self.bookkeeper.metadata.underreplication.disable()
        write_label(self.spark.range(1), self.path, "before", oldest="before")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(snapshot, "ROWS_PER_FILE", ROWS_PER_FILE)
            return snapshots.write(
                self.spark,
                self.cluster.zookeeper,
                self.path,
                checksums=True,
                keep=1,
                begins=lambda *one: self.told.append(one),
            )

    def repair(self) -> None:
        """The integrity check has the missing range copied; the other content must first be removed."""
        self.bookkeeper.metadata.underreplication.enable()
        assert mark_lacking(self.spark, self.path, self.cluster.zookeeper) == Marked(ledgers=1, copies=10)
        tasks = self.spark.read.format("bookspark").option("table", "underreplication").load().collect()
        lacking = [(self.missing.ledger_id, self.victim, "lacks")]
        assert [(row.ledger_id, row.bookie_id, row.reason) for row in tasks] == lacking
        bookie = self._bookie
        bookie.stop()
        assert remove_entries(bookie, self.diverging.ledger_id, 90, 99) == 1
        bookie.start()
        mark = Mark(self.diverging.ledger_id, {self.victim: Reason.LACKS})
        self.bookkeeper.metadata.underreplication.mark([mark])
        repair_all(self.bookkeeper)
        assert collect_orphans(self.bookkeeper, "orders", b"") == [self.orphan.ledger_id]

    @property
    def _bookie(self) -> LocalBookie:
        return next(bookie for bookie in self.cluster.bookies if bookie.bookie_id == self.victim)


# States of the story, each built on the one before.


@pytest.fixture(scope="module")
def story(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    story = Story(spark, cluster, bookkeeper, str(tmp_path_factory.mktemp("audited") / "snapshots"))
    yield story
    story.open.close()


@pytest.fixture(scope="module")
def damaged(story: Story) -> snapshots.Snapshot:
    return story.damage()


@pytest.fixture(scope="module")
def findings(story: Story, damaged: snapshots.Snapshot) -> list[audit.Finding]:
    """Findings of audits in the newest snapshot, the damaged one."""
    return audit.run(story.spark, story.path, queries=AUDITS)


@pytest.fixture(scope="module")
def repaired(story: Story, findings: list[audit.Finding]) -> None:
    story.repair()


def test_audit_says_for_each_bookie_when_its_copies_were_last_read(
    cluster: LocalCluster, findings: list[audit.Finding]
) -> None:
    (readability,) = (finding for finding in findings if finding.name == "readability")
    ids = sorted(bookie.bookie_id for bookie in cluster.bookies)
    assert sorted(bookie for bookie, _, _ in readability.rows) == ids
    # A bookie's first scrub may end before or after the snapshot.
    assert all((read_at is None) == (problem is not None) for _, read_at, problem in readability.rows)


def test_each_damage_is_reported_by_its_own_query_only(
    spark: SparkSession, story: Story, damaged: snapshots.Snapshot, findings: list[audit.Finding]
) -> None:
    assert [snapshot.version for snapshot in snapshots.history(spark, story.path)] == [1], "one was to be kept"
    assert audit.left_out(findings) == sorted(set(audit.names()) - {*AUDITS})
    found = bad(findings)
    assert sorted(found) == FOUND
    ranges = ("ledger_id", "first_entry_id", "last_entry_id", "replication_factor", "missing_on")
    lacking = (story.missing.ledger_id, 30, 39, 2, [story.victim])
    assert only(found["under_replicated_ranges"], *ranges) == [lacking]
    others = sorted(set(story.diverging.last_fragment.ensemble) - {story.victim})
    contents = only(found["divergence"], "ledger_id", "entry_id", "contents")
    assert contents == [(story.diverging.ledger_id, 95, 2)]
    assert sorted(found["divergence"][0]["bookies_by_content"]) == sorted([others, [story.victim]])
    assert only(found["orphans"], "ledger_id", "log_epoch") == [(story.orphan.ledger_id, 0)]


def test_no_damage_is_left_after_its_repair(spark: SparkSession, story: Story, repaired: None) -> None:
    """Each copy of both ledgers is whole, and all are equal."""
    copies = spark.read.format("bookspark").option("table", "entry_checksums").load()
    for ledger in (story.missing, story.diverging):
        rows = copies.where(f"ledger_id = {ledger.ledger_id}").collect()
        assert sorted(row.bookie_id for row in rows) == sorted(ledger.last_fragment.ensemble)
        (checksums,) = {tuple(row.checksums) for row in rows}
        assert len(checksums) == 100 and None not in checksums


def test_audit_of_an_older_version_shows_earlier_damage_and_reports_progress(
    spark: SparkSession, story: Story, damaged: snapshots.Snapshot, findings: list[audit.Finding], repaired: None
) -> None:
    told: list[tuple[str, int, int]] = []
    some = ["bookies_down", "orphans"]
    before = audit.run(spark, story.path, damaged.version, some, begins=lambda *one: told.append(one))
    assert before[1] == next(finding for finding in findings if finding.name == "orphans")
    assert told == [("bookies_down", 0, 2), ("orphans", 1, 2)]
    with pytest.raises(ConfigurationError, match="no snapshot of version 0; there are: 1"):
        audit.run(spark, story.path, version=0)


def test_html_report_lists_the_findings(
    story: Story, damaged: snapshots.Snapshot, findings: list[audit.Finding], tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    audit.write_report(story.spark, story.path, damaged.version, findings, file)
    page = file.read_text()
    what = "autorecovery is disabled, divergence, orphans, under-replicated ranges"
    assert f"4 of {len(findings)} audits found something: {what}" in page
    assert f"Snapshot {damaged.version}, taken" in page and damaged.snapshot_id in page
    assert f"<title>Bookspark audit of {story.cluster.zookeeper}</title>" in page
    counted = re.search(
        r"<p>4 bookies, 0 of them down; (\d+) ledgers, (\d+) of them not closed; 1 log; ([\d,]+) conf", page
    )
    assert counted is not None, page[:2000]
    ledgers, not_closed, entries = (int(count.replace(",", "")) for count in counted.groups())
    assert 1 <= not_closed < ledgers and entries >= 2000 + 10 + 2 * 100
    assert page.count("<svg") == 1, "other plots need audits that were not run, or more snapshots"
    assert "<h2>Not audited</h2>" in page and '<p class="good">None.</p>' in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page), "nothing is loaded"


def test_snapshot_reports_its_progress_by_table(story: Story, damaged: snapshots.Snapshot) -> None:
    tables = snapshots.written(checksums=True)
    assert story.told == [(table, number, len(tables)) for number, table in enumerate(tables)]


def test_large_snapshot_table_is_split_into_files_with_ledger_id_statistics(
    story: Story, damaged: snapshots.Snapshot
) -> None:
    files = DeltaTable(snapshots.location(story.path, snapshots.LAST), version=damaged.version)
    found = pyarrow.table(files.get_add_actions(flatten=True))
    assert max(found["num_records"].to_pylist()) == ROWS_PER_FILE and len(found) > len(story.cluster.bookies)
    assert None not in found["min.ledger_id"].to_pylist() + found["max.ledger_id"].to_pylist()


def test_console_reads_a_snapshot_without_spark(story: Story, damaged: snapshots.Snapshot) -> None:
    deltas = Deltas(story.path)
    then = next(one for one in deltas.snapshots() if one.version == damaged.version)
    assert (then.snapshot_id, then.version, then.cluster) == (
        damaged.snapshot_id,
        damaged.version,
        story.cluster.zookeeper,
    )
    seen = ledgers.look_at(deltas, then, story.missing.ledger_id).seen
    assert seen.metadata == replace(story.missing, password=b"", master_key=b"", c_token=0)
    lacking = {name: absent(seen.metadata, name, held) for name, held in seen.held.items()}
    assert lacking == {name: [(30, 39)] if name == story.victim else [] for name in seen.metadata.bookies()}
    listed = ledgers.list_at(deltas, then, 0)
    assert [row["ledger_id"] for row in listed.rows] == list(deltas.ledgers(then))
    assert story.orphan.ledger_id in deltas.ledgers(then) and listed.rows[0]["created_at"].year >= 2026
    cluster = overview.look_at(deltas, then)
    assert cluster.enabled is False and {one["state"] for one in cluster.bookies} == {"writable"}
    assert logs.look_at(deltas, then, "").rows[0]["rows"] == 2000


def test_each_column_of_a_snapshot_has_a_comment(story: Story, damaged: snapshots.Snapshot) -> None:
    for table in snapshots.ORDER:
        fields = DeltaTable(f"{story.path}/{table}").schema().fields
        assert fields and all(field.metadata.get("comment") for field in fields), table


def put_other_content(bookie: LocalBookie, metadata: LedgerMetadata, first: int, last: int, instead_of: bytes) -> None:
    """Write entries to a bookie as a repair does, but one of them with another content."""
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
    """Let a replication worker do all tasks."""
    worker = ReplicationWorker(bookkeeper, AutorecoveryConfig(poll_seconds=0.2, retry_seconds=0.2))
    worker.start()
    await_that(lambda: not bookkeeper.metadata.underreplication.list_tasks())
    worker.stop()
