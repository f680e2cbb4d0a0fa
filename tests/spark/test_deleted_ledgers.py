"""Audits of ledgers that were deleted by hand, left by an interrupted deletion, or changed while a snapshot is taken."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, create_log, delete_log, truncate_log
from bookspark.logs.lane_ending import end_lane
from bookspark.spark.audit.runner import run_over
from bookspark.spark.connector.data_source import register
from bookspark.store.client import BookKeeper
from tests.spark.made_up_cluster import A, B, C, Cluster, select

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]
TABLES = ["ledger_ids", "ledgers", "logs", "log_commits", "fragments"]
QUERIES = ["deleted_ledgers", "orphans"]


def data_ledgers(bookkeeper: BookKeeper, lane: str) -> list[int]:
    found = [one for one, _ in bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {})]
    labels = {one.ledger_id: one.custom_metadata for one in found}
    return [
        ledger_id
        for ledger_id, label in labels.items()
        if (label.get("bookspark.log"), label.get("bookspark.role")) == (lane.encode(), b"data")
    ]


def test_audits_report_ledgers_deleted_by_hand_and_ledgers_of_a_deleted_log(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    register(spark, cluster.zookeeper)

    def audited() -> dict[str, list[tuple[Any, ...]]]:
        source = spark.read.format("bookspark").option("zookeeper", cluster.zookeeper)
        tables = {name: source.option("table", name).load() for name in TABLES}
        found = {one.name: one for one in run_over(spark, tables, QUERIES)}
        gone = select(found["deleted_ledgers"], "log", "ledger_id", "holds", "first_position", "rows")
        ours = [
            row for row in select(found["orphans"], "log", "ledger_id", "kind") if (row[0] or "").startswith("gone")
        ]
        return {"deleted": [row for row in gone if row[0].startswith("gone")], "orphans": ours}

    with cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, "gone")
        producers = [log.producer(str(number)) for number in range(1, 6)]
        for producer in producers:
            producer.append_batch([b"x"] * 10)
        for producer in producers[:4]:
            producer.close()
        truncate_log(bookkeeper, "gone@2", 10, b"")
        end_lane(bookkeeper, "gone@3")
        (settled,), (still_open,) = data_ledgers(bookkeeper, "gone@1"), data_ledgers(bookkeeper, "gone@5")
        # A lane that lost its commits has only that reported; other lanes are reported as before.
        registry = LogRegistry(bookkeeper.metadata)
        listed = registry.get("gone@4").commit_ledgers[-1].ledger_id
        for ledger_id in (settled, still_open, listed, *data_ledgers(bookkeeper, "gone@4")):
            bookkeeper.delete_ledger(ledger_id)
        # Intact lanes are not reported.
        assert audited() == {
            "deleted": [
                ("gone@1", settled, "rows", 0, 10),
                ("gone@4", listed, "commits", None, None),
                ("gone@5", still_open, "rows", 0, 0),
            ],
            "orphans": [],
        }
        # A deletion interrupted when all records were gone.
        for lane in [*registry.lanes_of("gone")[::-1]]:
            registry.delete(lane)
        left = audited()
        assert left["deleted"] == [] and {kind for _, _, kind in left["orphans"]} == {"ledger of a deleted log"}
        assert {ledger_id for _, ledger_id, _ in left["orphans"]} == set(delete_log(bookkeeper, "gone", b""))


def test_ledgers_changed_between_the_id_list_and_the_records_are_no_finding(spark: SparkSession) -> None:
    """A snapshot may take an hour between the two, and retention deletes ledgers all the time."""
    snapshot = Cluster()
    snapshot.last_ledger_id = 9
    for first, last in ((2, 2), (6, 7), (9, 9)):
        snapshot.rows["ledger_ids"].append({"first_ledger_id": first, "last_ledger_id": last})
    snapshot.rows["logs"].append(
        {
            "log": "orders",
            "epoch": 1,
            "committed_epoch": 1,
            "readable": True,
            "first_position": 0,
            "commit_ledgers": [2],
        }
    )
    for ledger_id in (4, 5, 6, 10):
        entries = {"first_entry_id": 0, "last_entry_id": 9, "position": 0, "rows": 10}
        snapshot.rows["log_commits"].append({"log": "orders", "ledger_id": ledger_id, **entries})
        snapshot.holds(A, ledger_id, (0, 9))
    snapshot.holds(A, 9, (0, 9))
    # 4: deleted by hand; 5: made after the list; 2, 6 and 9: deleted after it; 7: of a log whose deletion broke off; 8: of a
    # log that was made after the list; 10: made and deleted after it, as its id shows; 11: younger than 10
    snapshot.ledger(5, 9, {0: [A, B, C]})
    snapshot.ledger(7, -1, {0: [A, B, C]}, log="left@1", log_epoch=1, log_role="data")
    snapshot.ledger(8, -1, {0: [A, B, C]}, log="new@1", log_epoch=1, log_role="data")
    snapshot.ledger(11, -1, {0: [A, B, C]})
    found = snapshot.audit(spark, *QUERIES)
    assert select(found["deleted_ledgers"], "ledger_id", "rows") == [(4, 10)]
    assert select(found["orphans"], "ledger_id", "kind") == [
        (4, "entries of a deleted ledger"),
        (7, "ledger of a deleted log"),
    ]
