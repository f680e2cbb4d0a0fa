"""The audit queries over made-up system tables: each reports its own kind of damage exactly, and nothing else.

Spark takes seconds to plan a query, and almost none to read these tables. So there are two clusters, with every kind of damage
in ledgers of its own, and one run of all audits over the first. ``test_striped_audits`` compares with a check of each entry.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bookspark.errors import ConfigurationError
from bookspark.spark import snapshots
from bookspark.spark.audit import Finding, safe_to_stop, show
from bookspark.spark.audit.runner import question, run_over
from tests.spark.made_up_cluster import A, B, C, Cluster, D, log_id, select

pytestmark = pytest.mark.spark

UNDER = ("first_entry_id", "last_entry_id", "replication_factor", "held_by", "missing_on")
OVER = ("bookie_id", "first_entry_id", "last_entry_id")
OF_HISTORY = ("ledgers", "fragments", "log_commits", "index_ranges")
LAST_WEEK = datetime(2026, 1, 2, 3, 4)
CHANGING = range(40, 40 + len(snapshots.ORDER) + 1)
"""Ledgers whose ensemble changed while the snapshot was taken."""


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """A cluster with every kind of damage, each in a ledger of its own."""
    cluster = Cluster()
    cluster.rows["bookies"][3]["state"] = "down"
    cluster.last_ledger_id = 90

    # 1: healthy, with an ensemble change; 2: healthy and empty
    cluster.ledger(1, 99, {0: [A, B, C], 50: [A, D, C]})
    cluster.holds(A, 1, (0, 9), (10, 99))
    cluster.holds(B, 1, (0, 49))
    cluster.holds(C, 1, (0, 99))
    cluster.holds(D, 1, (50, 99))
    cluster.ledger(2, -1, {0: [A, B, C]})

    # 3: ranges are missing; 4: a bookie holds nothing; 5: metadata changed while the snapshot was taken
    cluster.ledger(3, 99, {0: [A, B, C]})
    cluster.holds(A, 3, (0, 19), (30, 99))
    cluster.holds(B, 3, (0, 99))
    cluster.holds(C, 3, (0, 24), (26, 99))
    cluster.ledger(4, 9, {0: [A, B, D]})
    cluster.holds(A, 4, (0, 9))
    cluster.holds(B, 4, (0, 9))
    cluster.ledger(5, 9, {0: [A, B, C]})
    cluster.rows["ledgers"][-1]["metadata_version"] = 2

    # 20: deleted between reading "ledgers" and "fragments"; its bookies have not collected it yet
    cluster.ledger(20, 9, {})
    cluster.holds(C, 20, (0, 9))

    # 6, 7: striped; entry e is on places e mod 3 and e + 1 mod 3
    cluster.ledger(6, 5, {0: [A, B, C]}, write_quorum=2)
    cluster.holds(A, 6, (0, 0), (2, 3), (5, 5))
    cluster.holds(B, 6, (0, 1), (3, 4))
    cluster.holds(C, 6, (1, 2), (4, 5))
    cluster.ledger(7, 5, {0: [A, B, C]}, write_quorum=2)
    cluster.holds(A, 7, (0, 0), (2, 3), (5, 5))
    cluster.holds(B, 7, (0, 1))
    cluster.holds(C, 7, (1, 5))

    # 8: open, LAC 10; 9: open, and a commit names entries above any known LAC
    cluster.ledger(8, 10, {0: [A, B, C]}, state="OPEN")
    cluster.holds(A, 8, (0, 20))
    cluster.holds(B, 8, (0, 12))
    cluster.holds(C, 8, (0, 9))
    cluster.ledger(9, -1, {0: [A, B, C]}, state="OPEN", log="orders", log_epoch=2, log_role="data")
    commits(cluster, 9, 4)
    cluster.holds(A, 9, (0, 9))
    cluster.holds(B, 9, (0, 9))

    # 10: copies that metadata does not name
    cluster.ledger(10, 99, {0: [A, B, C], 50: [A, D, C]})
    cluster.holds(A, 10, (0, 120))
    cluster.holds(B, 10, (0, 60))
    cluster.holds(C, 10, (0, 99))
    cluster.holds(D, 10, (40, 99))

    # 11 to 16: a log in epoch 2; 13 is deleted, 14 and 15 are its commit ledgers, the owner created 16
    cluster.rows["logs"].append(
        {
            "log": "orders",
            "log_id": log_id("orders"),
            "epoch": 2,
            "committed_epoch": 2,
            "readable": True,
            "commit_ledgers": [14, 15],
        }
    )
    # Deleted between reading "logs" and "log_commits".
    cluster.rows["logs"].append(
        {
            "log": "gone",
            "log_id": log_id("gone"),
            "epoch": 2,
            "committed_epoch": 2,
            "readable": True,
            "commit_ledgers": [19],
            "rows": 10,
        }
    )
    cluster.ledger(18, -1, {0: [A, B, C]}, log="gone", log_epoch=1, log_role="data")
    for ledger_id, epoch, state in (
        (11, 1, "OPEN"), (12, 1, "CLOSED"), (14, 1, "CLOSED"), (15, 2, "OPEN"), (16, 2, "OPEN"),
    ):  # fmt: skip
        cluster.ledger(ledger_id, -1, {0: [A, B, C]}, state=state, log="orders", log_epoch=epoch, log_role="data")
    commits(cluster, 11, -1)
    cluster.holds(A, 13, (0, 3))
    cluster.ledger(17, -1, {0: [A, B, C]}, state="IN_RECOVERY")
    # 90: deleted, and the last assigned id; 91: created after the list
    cluster.holds(A, 90, (0, 4))
    cluster.holds(A, 91, (0, 5))

    # 21: entries with one copy; 22: entries without a copy
    cluster.ledger(21, 9, {0: [A, B, C]})
    cluster.holds(A, 21, (0, 3))
    cluster.holds(B, 21, (0, 9))
    cluster.ledger(22, 9, {0: [A, B, C]})
    cluster.holds(C, 22, (0, 3), (6, 9))

    # 23: three contents of an entry, in the second row of checksums; a missing or unreadable copy is none
    cluster.ledger(23, 1026, {0: [A, B, C]})
    for bookie in (A, B, C):
        cluster.holds(bookie, 23, (0, 1026))
    cluster.checksums(A, 23, *range(1024))
    cluster.checksums(B, 23, *range(1024))
    cluster.checksums(C, 23, 0, 1, None, 3, unreadable=1)
    cluster.checksums(A, 23, 7, 8, 9, first=1024)
    cluster.checksums(B, 23, 7, 5, 9, first=1024)
    cluster.checksums(C, 23, None, 6, 9, first=1024)
    # 24, 25: other contents above the end, and above the LAC: recovery has decided or will decide; 27: a commit proves the
    # first entry
    cluster.ledger(24, 0, {0: [A, B]})
    cluster.ledger(25, 0, {0: [A, B]}, state="OPEN")
    cluster.ledger(27, -1, {0: [A, B]}, state="OPEN")
    commits(cluster, 27, 0)
    for ledger_id, first_of_b in ((24, 1), (25, 1), (27, 3)):
        for bookie in (A, B):
            cluster.holds(bookie, ledger_id, (0, 0))
        cluster.checksums(A, ledger_id, 1, 2)
        cluster.checksums(B, ledger_id, first_of_b, 4)
    # 26: equal checksums, of other entries
    cluster.ledger(26, 9, {0: [A, B, C]})
    cluster.checksums(A, 26, 5, 6, None)
    cluster.checksums(B, 26, None, 5, 6)
    # 28, 29: a and b can't read their copies of entries 5 and 9 of ledger 28; only a can't read entry 0 of ledger 29
    cluster.ledger(28, 9, {0: [A, B, C]})
    cluster.ledger(29, 9, {0: [A, B, C]})
    for bookie in (A, B, C):
        cluster.holds(bookie, 26, (0, 9))
        cluster.holds(bookie, 28, (0, 5), (6, 9))
        cluster.holds(bookie, 29, (0, 5), (6, 9))
    for bookie in (A, B):
        cluster.checksums(bookie, 28, 7, 7, 7, 7, 7, None, 7, 7, 7, None, unreadable=2)
    cluster.checksums(C, 28, *[7] * 10)
    cluster.checksums(A, 29, None, 7, unreadable=1)

    # 30, 31: accepted losses, in 31 of striped entries
    cluster.ledger(30, 9, {0: [A, B, C]})
    cluster.ledger(31, 3, {0: [A, B, C]}, write_quorum=2)
    for bookie in (A, B, C):
        cluster.holds(bookie, 30, (0, 2), (8, 9))
    cluster.holds(A, 31, (0, 0), (2, 3))
    cluster.holds(B, 31, (0, 0), (3, 3))
    cluster.holds(C, 31, (2, 2))
    for ledger_id, kind, first, last, bookies in (
        (30, "entries", 3, 5, [A, B, C]), (30, "entries", 7, 7, [A]), (31, "entries", 1, 1, [B, C]), (31, "end", 4, 4, [B, C]),
    ):  # fmt: skip
        cluster.rows["accepted_losses"].append(
            {"ledger_id": ledger_id, "kind": kind, "first_entry_id": first, "last_entry_id": last, "bookies": bookies}
        )

    # 60: open without a known LAC, so its first fragment is confirmed; 62: its record can't be decoded
    cluster.ledger(60, 9, {0: [A, B, C], 5: [A, B, D]}, state="OPEN", last_add_confirmed=None)
    for bookie, last in ((A, 9), (B, 9), (C, 4)):
        cluster.holds(bookie, 60, (0, last))
    cluster.rows["ledgers"].append({"ledger_id": 62, "state": "UNREADABLE"})
    cluster.holds(D, 62, (0, 9))
    change_ensembles(cluster)

    # a has two more entry logs: the data of its second has moved; its third is a batch with two runs of ledger 63.
    cluster.ledger(63, 3, {0: [A, B, C]}, write_quorum=2)
    cluster.holds(B, 63, (0, 1), (3, 3))
    cluster.holds(C, 63, (1, 2))
    cluster.holds(A, 63, (0, 0), (2, 3))
    for row in cluster.rows["index_ranges"][-2:]:
        row.update(entry_log=3, position=0)
    for bookie in (A, B, C, D):
        held = [
            row["bytes"] for row in cluster.rows["index_ranges"] if (row["bookie_id"], row["entry_log"]) == (bookie, 1)
        ]
        cluster.rows["entry_logs"].append({"bookie_id": bookie, "entry_log": 1, "bytes": sum(held)})
    cluster.rows["entry_logs"] += [{"bookie_id": A, "entry_log": n, "bytes": 30} for n in (2, 3)]

    cluster.disk(A, checked_at=LAST_WEEK)
    cluster.disk(A, "full", reason="its disk is nearly full", directory="/a2", checked_at=LAST_WEEK)
    cluster.disk(B, lacking_ledgers=3, checked_at=datetime(2026, 1, 9))
    cluster.disk(B, "failed", directory="/b2", checked_at=datetime(2026, 1, 9))
    cluster.disk(C)
    cluster.rows["autorecovery"].append({"enabled": False, "tasks": 4})
    return cluster


def commits(cluster: Cluster, ledger_id: int, last_entry_id: int) -> None:
    row = {"log": "orders", "ledger_id": ledger_id, "first_entry_id": 0, "last_entry_id": last_entry_id}
    cluster.rows["log_commits"].append(row)


def change_ensembles(cluster: Cluster) -> None:
    """Ledger n of these: just before table n is read, c fails, and entries 100 to 149 go to a, b and d and are committed."""
    for number, ledger_id in enumerate(CHANGING):
        before, after = Cluster(), Cluster()
        before.ledger(ledger_id, 99, {0: [A, B, C]}, state="OPEN", log="growing", log_epoch=1)
        after.ledger(ledger_id, 149, {0: [A, B, C], 100: [A, B, D]}, state="OPEN", log="growing", log_epoch=1)
        for row in after.rows["ledgers"] + after.rows["fragments"]:
            row["metadata_version"] = 2
        for state, last in ((before, 99), (after, 149)):
            commits(state, ledger_id, last)
            for bookie in (A, B):
                state.holds(bookie, ledger_id, (0, last))
            state.holds(C, ledger_id, (0, 99))
        after.holds(D, ledger_id, (100, 149))
        for place, table in enumerate(snapshots.ORDER):
            if table in OF_HISTORY:
                rows = (before if place < number else after).rows[table]
                for row in rows:
                    if "position" in row:
                        row["position"] = 10 * len(cluster.rows[table])
                    cluster.rows[table].append(row)


@pytest.fixture(scope="module")
def found(spark: SparkSession, cluster: Cluster) -> dict[str, Finding]:
    """Findings of all audits."""
    return cluster.audit(spark)


def of(finding: Finding, ledger_id: int, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(row[1:] for row in select(finding, "ledger_id", *columns) if row[0] == ledger_id)


def test_healthy_ledger_is_in_no_finding(found: dict[str, Finding]) -> None:
    for name in ("under_replicated_ranges", "over_replicated_ranges", "orphans", "stuck_ledgers"):
        for ledger_id in (1, 2, 6, 16):
            assert of(found[name], ledger_id, "ledger_id") == [], name


def test_missing_range_is_reported_to_the_entry(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 3, *UNDER) == [
        (20, 24, 2, [B, C], [A]),
        (25, 25, 1, [B], [A, C]),
        (26, 29, 2, [B, C], [A]),
    ]


def test_bookie_without_any_entry_of_a_fragment_is_named_and_shown_as_down(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 4, *UNDER, "of_them_down") == [(0, 9, 2, [A, B], [D], [D])]


def test_striped_ledgers_are_judged_by_each_entrys_write_set(found: dict[str, Finding]) -> None:
    """Bookie c holds entry 3 of ledger 7, but is not in its write set."""
    assert of(found["under_replicated_ranges"], 7, *UNDER) == [(3, 3, 1, [A], [B]), (4, 4, 1, [C], [B])]


def test_entries_above_the_lac_of_an_open_ledger_are_not_audited(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 8, *UNDER) == [(10, 10, 2, [A, B], [C])]


def test_entries_in_a_commit_of_a_log_count_as_confirmed(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 9, *UNDER) == [(0, 4, 2, [A, B], [C])]


def test_ledger_that_changed_during_the_snapshot_is_not_audited(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 5, *UNDER) == []


def test_copies_not_named_in_metadata_are_over_replicated(found: dict[str, Finding]) -> None:
    over = found["over_replicated_ranges"]
    assert of(over, 10, *OVER) == [(A, 100, 120), (B, 50, 60), (D, 40, 49)]
    assert {row[0] for row in select(over, "ledger_id")} - set(CHANGING) == {10}


def test_ledger_deleted_during_the_snapshot_is_in_no_finding(found: dict[str, Finding]) -> None:
    for finding in found.values():
        if "ledger_id" in finding.columns:
            assert (20,) not in select(finding, "ledger_id"), finding.name


def test_ensemble_change_between_any_two_tables_of_a_snapshot_is_no_damage(found: dict[str, Finding]) -> None:
    for name in ("under_replicated_ranges", "missing_entries"):
        assert {row[0] for row in select(found[name], "ledger_id")}.isdisjoint(CHANGING), name
    # Metadata that changed after the fragments were read is unknown: by the fragments in the snapshot, d is not in the
    # ensemble.
    later = CHANGING[snapshots.ORDER.index("fragments") + 1 : len(snapshots.ORDER)]
    over = select(found["over_replicated_ranges"], "ledger_id", *OVER)
    assert [row for row in over if row[0] in CHANGING] == [(number, D, 100, 149) for number in later]


def test_orphans_are_judged_by_epoch_and_deleted_ledgers_by_the_last_assigned_id(found: dict[str, Finding]) -> None:
    """The newest ledgers were taken for ledgers younger than the list: after a log was deleted, all its remains were called
    live."""
    assert select(found["orphans"], "ledger_id", "kind", "entries") == [
        (13, "entries of a deleted ledger", 4),
        (90, "entries of a deleted ledger", 5),
        (12, "unreferenced ledger of a log", None),
    ]


def test_ledgers_without_a_writer_are_stuck(found: dict[str, Finding]) -> None:
    assert select(found["stuck_ledgers"], "ledger_id", "why") == [
        (11, "its writer lost the log"),
        (17, "its recovery did not end"),
    ]


def test_entries_without_any_copy_are_missing_unless_their_loss_was_accepted(found: dict[str, Finding]) -> None:
    ranges = ("ledger_id", "first_entry_id", "last_entry_id", "missing_on")
    assert select(found["missing_entries"], *ranges) == [
        (22, 4, 5, [A, B, C]),
        (30, 6, 6, [A, B, C]),
        (30, 7, 7, [B, C]),
    ]
    assert of(found["under_replicated_ranges"], 30, *ranges[1:]) == [(6, 6, [A, B, C]), (7, 7, [B, C])]
    assert of(found["under_replicated_ranges"], 31, *ranges[1:]) == []
    accepted = [(30, 3), (30, 7), (31, 1), (31, 4)]
    assert select(found["accepted_losses"], "ledger_id", "first_entry_id") == accepted


def test_one_loss_counts_only_readable_copies_on_bookies_that_are_up(found: dict[str, Finding]) -> None:
    """A copy on a bookie that is down does not count, nor does a copy known to be unreadable. Entry 25 of ledger 3 is on b
    alone; entries 3 and 4 of ledger 7 are on one bookie each."""
    loss = found["one_loss_from_unreadable"]
    assert [row[:3] for row in select(loss, "bookie_id", "entries", "first_ledgers")] == [
        (C, 11, [7, 22, 28]),
        (B, 7, [3, 21]),
        (A, 1, [7]),
    ]
    told = [row[0].partition(" at ")[0] for row in select(loss, "readability")]
    assert told == ["not checked", "checked", "checked"]
    assert loss.note == "every copy was read when the snapshot was taken"
    under = found["under_replicated_ranges"]
    ranges = ("first_entry_id", "last_entry_id", "held_by")
    assert of(under, 28, *ranges) == [(5, 5, [C]), (9, 9, [C])] and of(under, 29, *ranges) == [(0, 0, [B, C])]


def test_garbage_counts_deleted_and_moved_batches_and_each_shared_batch_once(
    found: dict[str, Finding],
) -> None:
    columns = ("bookie_id", "entry_log", "live_bytes", "garbage_bytes", "of_deleted_ledgers")
    rows = select(found["garbage_per_entry_log"], *columns)
    assert rows[:3] == [(A, 2, 0, 30, 0), (A, 1, rows[1][2], 20, 20), (A, 3, 10, 20, 0)]
    assert {row[3:] for row in rows[3:]} == {(0, 0)}


def test_divergence_is_reported_to_the_entry_and_ignores_unreadable_copies(found: dict[str, Finding]) -> None:
    assert select(found["divergence"], "ledger_id", "entry_id", "contents", "bookies_by_content") == [
        (23, 1025, 3, [[A], [B], [C]]),
        (26, 1, 2, [[A], [B]]),
        (27, 0, 2, [[A], [B]]),
    ]
    assert select(found["unreadable_copies"], "ledger_id", "bookie_id", "first_entry_looked_at", "entries") == [
        (23, C, 0, 1),
        (28, A, 0, 2),
        (28, B, 0, 2),
        (29, A, 0, 1),
    ]


def test_ledger_that_cannot_be_judged_is_named_and_in_no_other_finding(found: dict[str, Finding]) -> None:
    named = {row[0] for row in select(found["not_judged_ledgers"], "ledger_id")}
    assert named - set(CHANGING) == {5, 60, 62} and not found["not_judged_ledgers"].good
    for name in ("orphans", "missing_entries", "over_replicated_ranges", "stuck_ledgers"):
        assert 62 not in {row[0] for row in found[name].rows}, name


def test_bytes_per_bookie_count_each_batch_once_over_all_its_runs(cluster: Cluster, found: dict[str, Finding]) -> None:
    """A rewritten log of a striped ledger has 85 runs in a block: each bookie seemed to hold 36 times the bytes on its disk."""
    expected = []
    for bookie, state in ((A, "writable"), (B, "writable"), (C, "writable"), (D, "down")):
        rows = [row for row in cluster.rows["index_ranges"] if row["bookie_id"] == bookie]
        batches = {(row["entry_log"], row["position"]) for row in rows}
        entries = sum(row["last_entry_id"] - row["first_entry_id"] + 1 for row in rows)
        ledgers = {row["ledger_id"] for row in rows}
        expected.append((bookie, state, len(ledgers), entries, 10 * len(batches), 2 if bookie == A else 1))
    columns = ("bookie_id", "state", "ledgers", "entries", "bytes", "entry_logs")
    assert select(found["bytes_per_bookie"], *columns) == expected


def test_disabled_autorecovery_down_bookies_and_bad_directories_are_findings(found: dict[str, Finding]) -> None:
    asked = ["autorecovery_disabled", "bookies_down", "damaged_copies", "directories_out_of_use"]
    assert [found[name].good for name in asked] == [False] * 4
    assert select(found["autorecovery_disabled"], "ledgers_that_wait") == [(4,)]
    assert select(found["bookies_down"], "bookie_id") == [(D,)]
    assert select(found["damaged_copies"], "bookie_id", "ledgers") == [(B, 3)]
    directories = select(found["directories_out_of_use"], "directory", "state", "reason")
    assert directories == [("/a2", "full", "its disk is nearly full"), ("/b2", "failed", None)]
    assert {row[0]: row[1] is None for row in found["readability"].rows} == {A: False, B: False, C: True}


def test_findings_are_shown_as_tables(found: dict[str, Finding]) -> None:
    out = StringIO()
    show(found.values(), Console(file=out, width=200))
    show([replace(found["orphans"], rows=(), total=0)], Console(file=out, width=200))
    show([replace(found["one_loss_from_unreadable"], rows=(), total=0)], Console(file=out, width=200))
    text = out.getvalue()
    assert "Under-replicated ranges" in text and "✓ Orphans: none" in text and "none (every copy was read when" in text
    assert found["placement_violations"].good, "the default policy takes any bookies, on whatever hosts"


# -- consequences of stopping bookies


def test_safe_to_stop_lists_ledgers_that_would_lose_copies_or_recovery(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry must keep an ack quorum, and each open ledger must stay recoverable. Once only the copies counted: a ledger
    with an ack quorum of 1 could not be recovered without any one of its bookies, and a ledger without entries not without
    two. Ledgers that can't be judged are named."""
    cluster = Cluster()
    cluster.rows["bookies"] += [{"bookie_id": "e", "state": "down"}, {"bookie_id": "f", "state": "writable"}]
    # 1: healthy; 2: half of it on a and b alone
    cluster.ledger(1, 9, {0: [A, B, C]})
    cluster.ledger(2, 9, {0: [A, B, C]})
    for bookie, last in ((A, 9), (B, 9), (C, 4)):
        cluster.holds(bookie, 1, (0, 9))
        cluster.holds(bookie, 2, (0, last))
    # 3: open, with an ack quorum of 1; 4: the same, closed
    cluster.ledger(3, 9, {0: [A, B]}, state="OPEN", ack_quorum=1)
    cluster.ledger(4, 9, {0: [A, B]}, ack_quorum=1)
    for bookie in (A, B):
        cluster.holds(bookie, 3, (0, 9))
        cluster.holds(bookie, 4, (0, 9))
    # 5 to 8: without entries; 7 is striped, and a and f are a write set
    cluster.ledger(5, -1, {0: [B, C, D]}, state="OPEN")
    cluster.ledger(6, -1, {0: [C, D, "f"]}, state="IN_RECOVERY")
    cluster.rows["limbo"].append({"bookie_id": "f", "ledger_id": 6})
    cluster.ledger(7, -1, {0: ["f", "e", B, A]}, state="OPEN", write_quorum=2)
    cluster.ledger(8, -1, {0: [C, "e", D]}, state="OPEN", ack_quorum=3)
    # 9: no LAC is known; 10: its metadata changed; 12: its record can't be decoded
    cluster.ledger(9, 9, {0: [A, B, C], 5: [A, B, D]}, state="OPEN", last_add_confirmed=None)
    cluster.ledger(10, 9, {0: [B, C, D]})
    cluster.rows["ledgers"][-1]["metadata_version"] = 2
    cluster.ledger(11, 9, {0: [A, C, D]})
    for bookie in (A, B, C, D):
        for ledger_id in (9, 10, 11):
            cluster.holds(bookie, ledger_id, (0, 9))
    cluster.rows["ledgers"].append({"ledger_id": 12, "state": "UNREADABLE"})
    cluster.holds(D, 12, (0, 9))
    cluster.disk(A, checked_at=datetime(2026, 1, 9))
    cluster.disk(B, checked_at=LAST_WEEK)
    cluster.disk(C)
    tables = cluster.tables(spark)
    monkeypatch.setattr(snapshots, "tables", lambda spark, path: tables)
    notes = {}

    def found(*stopped: str) -> dict[str, list[tuple[Any, ...]]]:
        finding = safe_to_stop(spark, "/snapshots", stopped)
        notes[stopped] = finding.note
        rows = select(finding, "why", "ledger_id", "first_entry_id", "last_entry_id", "copies_left")
        return {
            why: [row[1:] for row in rows if row[0].startswith(why)] for why in sorted({row[0][:20] for row in rows})
        }

    few, recovery, no_lac, changed, undecodable = (
        text[:20]
        for text in (
            "too few copies would be left",
            "it is not closed, and too few bookies would be left to recover it",
            "no LAC was told: give its password, if it has one, or have its bookies up",
            "its metadata changed",
            "its record cannot be decoded",
        )
    )

    def ledgers(*ids: int) -> list[tuple[Any, ...]]:
        return [(one, None, None, None) for one in ids]

    # The bookies of ledger 12 are unknown, so every answer names it.
    of_12 = {undecodable: ledgers(12)}
    assert found("f") == {recovery: ledgers(7), **of_12}, "1 to 5 and 8 to 11 have nothing there; 6 has c and d"
    assert found(A) == {few: [(2, 5, 9, 1)], recovery: ledgers(3), no_lac: ledgers(9), **of_12}
    assert found(A, B, D) == {
        few: [(2, 5, 9, 0), (3, 0, 9, 0), (4, 0, 9, 0), (1, 0, 9, 1), (2, 0, 4, 1), (9, 0, 4, 1), (11, 0, 9, 1)],
        recovery: ledgers(3, 5, 6, 7, 9),
        no_lac: ledgers(9),
        changed: ledgers(10),
        **of_12,
    }
    with pytest.raises(ConfigurationError, match="unknown bookie 'z'"):
        safe_to_stop(spark, "/snapshots", ["z"])

    # The note says how old the readability check of the other bookies is, and where there is none.
    assert "were last read" in notes[A,] and "hours ago" in notes[A,] and f"{LAST_WEEK:%Y-%m-%d %H:%M}" in notes[A,]
    assert "readability was not checked on c, d, f: copies there may be damaged" in notes[A,]
    assert "readability was not checked on c, f: copies there may be damaged" in notes[A, B, D]


def test_readability_of_a_snapshot_of_an_earlier_version_is_not_checked(spark: SparkSession, cluster: Cluster) -> None:
    later = ("accepted_losses", "disks", "autorecovery", "entry_checksums")
    before = {name: table for name, table in cluster.tables(spark).items() if name not in later}
    damaged, readability = run_over(spark, before, ["damaged_copies", "readability"])
    assert damaged.good
    assert {row[0]: row[1:] for row in readability.rows} == dict.fromkeys(
        (A, B, C), (None, "readability was not checked")
    )


# -- placement and history


def test_placement_is_judged_by_the_clusters_rule(spark: SparkSession) -> None:
    cluster = Cluster()
    bookies = cluster.rows["bookies"]
    bookies[1]["host"] = A
    for bookie, zone in zip(bookies, ("north", "south", "south", None), strict=True):
        bookie["labels"] = "{}" if zone is None else f'{{"zone": "{zone}"}}'
    bookies.append({"bookie_id": "e", "state": "down"})  # it may be anywhere
    bookies.append({"bookie_id": "f", "state": "down", "host": A, "rack": "1", "labels": '{"zone": "south"}'})
    ensembles = [A, B, C], [B, C, D], [A, B], [B, C], [C, D], [A, B, C, "e"], [B, "f"]
    for number, ensemble in enumerate(ensembles):
        cluster.ledger(number, 9, {0: ensemble})
    cluster.ledger(7, 9, {0: [A, C, B, D]}, write_quorum=2)
    cluster.ledger(8, 9, {0: [A, B, C, D]}, write_quorum=2)

    def found(rule: str, racks_min: int = 1) -> list[tuple[Any, ...]]:
        cluster.rows["placement"] = [{"rule": rule, "racks_min": racks_min}]
        (finding,) = cluster.audit(spark, "placement_violations").values()
        return select(finding, "ledger_id", "shared", "write_set", "different", "possible")

    assert found("one_per_host") == [
        (0, "host", [A, B, C], 2, 3),
        (2, "host", [A, B], 1, 2),
        (6, "host", [B, "f"], 1, 2),
        (8, "host", [A, B], 1, 2),
    ]
    assert found("one_per_zone") == [
        (0, "zone", [A, B, C], 2, 3),
        (1, "zone", [B, C, D], 2, 3),
        (3, "zone", [B, C], 1, 2),
        (6, "zone", [B, "f"], 1, 2),
        (7, "zone", [C, B], 1, 2),
        (8, "zone", [B, C], 1, 2),
    ]
    for bookie, rack in zip(bookies, "1122", strict=False):
        bookie["rack"] = rack
    assert found("rack_aware") == [
        (2, "rack", [A, B], 1, 2),
        (4, "rack", [C, D], 1, 2),
        (6, "rack", [B, "f"], 1, 2),
        (8, "rack", [A, B], 1, 2),
        (8, "rack", [C, D], 1, 2),
    ], "two racks is all there is"
    assert (0, "rack", [A, B, C], 2, 3) in found("rack_aware", racks_min=3)
    assert found("random") == []


def test_history_counts_entries_missing_copies_and_bytes_of_each_snapshot(spark: SparkSession) -> None:
    snapshots_of: dict[str, list[DataFrame]] = {}
    for number, (on_c, state) in enumerate({(0, 9): "CLOSED", (0, 5): "OPEN"}.items()):
        cluster = Cluster()
        cluster.ledger(1, 9, {0: [A, B, C]}, state=state)
        cluster.holds(A, 1, (0, 3), (4, 12))
        cluster.holds(B, 1, (0, 9))
        cluster.holds(C, 1, on_c)
        cluster.holds(D, 1, (0, 9))  # not of its ensemble
        if number:  # no LAC is known: its first fragment is confirmed, though a commit names less
            cluster.ledger(2, 9, {0: [A, B, C], 5: [A, B, D]}, state="OPEN", last_add_confirmed=None)
            cluster.rows["log_commits"].append({"log": "orders", "ledger_id": 2, "last_entry_id": 1})
            for row in cluster.rows["index_ranges"][:2]:  # two runs of one batch
                row["position"] = 0
        for name, rows in cluster.tables(spark, *OF_HISTORY).items():
            snapshots_of.setdefault(name, []).append(rows.selectExpr("*", f"'s{number}' AS snapshot_id"))
    tables = {name: snapshots_of[name][0].unionByName(snapshots_of[name][1]) for name in OF_HISTORY}
    with question(spark, tables, "history") as answer:
        assert sorted(map(tuple, answer.collect())) == [("s0", 10, 0, 50), ("s1", 15, 19, 40)]
