"""The audit queries over made-up system tables: each finds its own kind of damage, exactly, and nothing else."""

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
from tests.spark.made_up_cluster import A, B, C, Cluster, D, select

pytestmark = pytest.mark.spark

UNDER = ("first_entry_id", "last_entry_id", "replication_factor", "held_by", "missing_on")
OVER = ("bookie_id", "first_entry_id", "last_entry_id")
OF_HISTORY = ("ledgers", "fragments", "log_commits", "index_ranges")


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, Finding]:
    """What the audits find in one cluster with every kind of damage, each in a ledger of its own."""
    cluster = Cluster()
    cluster.rows["bookies"][3]["state"] = "down"

    # 1: healthy, with an ensemble change; 2: healthy and empty
    cluster.ledger(1, 99, {0: [A, B, C], 50: [A, D, C]})
    cluster.holds(A, 1, (0, 9), (10, 99))
    cluster.holds(B, 1, (0, 49))
    cluster.holds(C, 1, (0, 99))
    cluster.holds(D, 1, (50, 99))
    cluster.ledger(2, -1, {0: [A, B, C]})

    # 3: ranges are missing; 4: a bookie has nothing; 5: metadata changed while the snapshot was taken
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

    # 6, 7: striped; entry e lies on places e mod 3 and e + 1 mod 3
    cluster.ledger(6, 5, {0: [A, B, C]}, write_quorum=2)
    cluster.holds(A, 6, (0, 0), (2, 3), (5, 5))
    cluster.holds(B, 6, (0, 1), (3, 4))
    cluster.holds(C, 6, (1, 2), (4, 5))
    cluster.ledger(7, 5, {0: [A, B, C]}, write_quorum=2)
    cluster.holds(A, 7, (0, 0), (2, 3), (5, 5))
    cluster.holds(B, 7, (0, 1))
    cluster.holds(C, 7, (1, 5))

    # 8: open, LAC 10; 9: open, and a commit names entries that no LAC was heard of
    cluster.ledger(8, 10, {0: [A, B, C]}, state="OPEN")
    cluster.holds(A, 8, (0, 20))
    cluster.holds(B, 8, (0, 12))
    cluster.holds(C, 8, (0, 9))
    cluster.ledger(9, -1, {0: [A, B, C]}, state="OPEN", log="orders", log_epoch=2, log_role="data")
    cluster.rows["log_commits"].append({"log": "orders", "ledger_id": 9, "first_entry_id": 0, "last_entry_id": 4})
    cluster.holds(A, 9, (0, 9))
    cluster.holds(B, 9, (0, 9))

    # 10: copies that no metadata names
    cluster.ledger(10, 99, {0: [A, B, C], 50: [A, D, C]})
    cluster.holds(A, 10, (0, 120))
    cluster.holds(B, 10, (0, 60))
    cluster.holds(C, 10, (0, 99))
    cluster.holds(D, 10, (40, 99))

    # 11 to 16: a log in epoch 2; 13 is deleted, 14 and 15 are its commit ledgers, 16 was begun by the owner
    cluster.rows["logs"].append(
        {"log": "orders", "epoch": 2, "committed_epoch": 2, "readable": True, "commit_ledgers": [14, 15]}
    )
    # Deleted between reading "logs" and "log_commits".
    cluster.rows["logs"].append(
        {"log": "gone", "epoch": 2, "committed_epoch": 2, "readable": True, "commit_ledgers": [19], "rows": 10}
    )
    cluster.ledger(18, -1, {0: [A, B, C]}, log="gone", log_epoch=1, log_role="data")
    for ledger_id, epoch, state in (
        (11, 1, "OPEN"), (12, 1, "CLOSED"), (14, 1, "CLOSED"), (15, 2, "OPEN"), (16, 2, "OPEN"),
    ):  # fmt: skip
        cluster.ledger(ledger_id, -1, {0: [A, B, C]}, state=state, log="orders", log_epoch=epoch, log_role="data")
    cluster.rows["log_commits"].append({"log": "orders", "ledger_id": 11, "first_entry_id": 0, "last_entry_id": -1})
    cluster.holds(A, 13, (0, 3))
    cluster.ledger(17, -1, {0: [A, B, C]}, state="IN_RECOVERY")

    for bookie in (A, B, C, D):
        held = [row["bytes"] for row in cluster.rows["index_ranges"] if row["bookie_id"] == bookie]
        cluster.rows["entry_logs"].append({"bookie_id": bookie, "entry_log": 1, "bytes": sum(held)})
    return cluster.audit(spark)


def of(finding: Finding, ledger_id: int, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(row[1:] for row in select(finding, "ledger_id", *columns) if row[0] == ledger_id)


def test_a_healthy_ledger_is_in_no_finding(found: dict[str, Finding]) -> None:
    for name in ("under_replicated_ranges", "over_replicated_ranges", "orphans", "stuck_ledgers"):
        for ledger_id in (1, 2, 6, 16):
            assert of(found[name], ledger_id, "ledger_id") == [], name


def test_a_missing_range_is_found_to_the_entry(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 3, *UNDER) == [
        (20, 24, 2, [B, C], [A]),
        (25, 25, 1, [B], [A, C]),
        (26, 29, 2, [B, C], [A]),
    ]


def test_a_bookie_without_any_entry_of_a_fragment_is_found_and_named_if_down(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 4, *UNDER, "of_them_down") == [(0, 9, 2, [A, B], [D], [D])]


def test_striped_ledgers_are_judged_by_each_entrys_write_set(found: dict[str, Finding]) -> None:
    """Bookie c has entry 3 of ledger 7, but is not in its write set."""
    assert of(found["under_replicated_ranges"], 7, *UNDER) == [(3, 3, 1, [A], [B]), (4, 4, 1, [C], [B])]


def test_entries_above_the_lac_of_an_open_ledger_are_not_judged(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 8, *UNDER) == [(10, 10, 2, [A, B], [C])]


def test_a_commit_is_proof_that_its_entries_are_confirmed(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 9, *UNDER) == [(0, 4, 2, [A, B], [C])]


def test_a_ledger_that_changed_while_the_snapshot_was_taken_is_not_judged(found: dict[str, Finding]) -> None:
    assert of(found["under_replicated_ranges"], 5, *UNDER) == []


def test_copies_that_no_metadata_names_are_over_replicated(found: dict[str, Finding]) -> None:
    assert of(found["over_replicated_ranges"], 10, *OVER) == [(A, 100, 120), (B, 50, 60), (D, 40, 49)]
    assert {row[0] for row in select(found["over_replicated_ranges"], "ledger_id")} == {10}


def test_a_ledger_that_was_deleted_while_the_snapshot_was_taken_is_in_no_finding(found: dict[str, Finding]) -> None:
    for finding in found.values():
        if "ledger_id" in finding.columns:
            assert (20,) not in select(finding, "ledger_id"), finding.name


def test_orphans_go_by_epoch(found: dict[str, Finding]) -> None:
    assert select(found["orphans"], "ledger_id", "kind", "entries") == [
        (13, "entries of a deleted ledger", 4),
        (12, "unreferenced ledger of a log", None),
    ]


def test_ledgers_whose_writer_is_gone_are_stuck(found: dict[str, Finding]) -> None:
    assert select(found["stuck_ledgers"], "ledger_id", "why") == [
        (11, "its writer lost the log"),
        (17, "its recovery did not end"),
    ]


def test_entries_without_any_copy_are_missing(spark: SparkSession) -> None:
    cluster = Cluster()
    cluster.ledger(1, 9, {0: [A, B, C]})
    cluster.holds(A, 1, (0, 3))
    cluster.holds(B, 1, (0, 9))
    cluster.ledger(2, 9, {0: [A, B, C]})
    cluster.holds(C, 2, (0, 3), (6, 9))
    found = cluster.audit(spark, "missing_entries", "one_loss_from_unreadable")
    assert select(found["missing_entries"], "ledger_id", "first_entry_id", "last_entry_id") == [(2, 4, 5)]
    assert select(found["one_loss_from_unreadable"], "bookie_id", "ledgers", "entries", "first_ledgers") == [
        (C, 1, 8, [2]),
        (B, 1, 6, [1]),
    ]


def test_a_copy_on_a_bookie_that_is_down_does_not_count_as_one_to_rely_on(found: dict[str, Finding]) -> None:
    """Ledger 3's entry 25 is on b alone; ledger 7's entries 3 and 4 are on one bookie each."""
    assert select(found["one_loss_from_unreadable"], "bookie_id", "entries") == [(A, 1), (B, 1), (C, 1)]


def test_garbage_is_what_deleted_ledgers_left_in_a_log(found: dict[str, Finding]) -> None:
    garbage = select(found["garbage_per_entry_log"], "bookie_id", "garbage_bytes", "of_deleted_ledgers")
    assert garbage[0] == (A, 10, 10) and {row[1:] for row in garbage[1:]} == {(0, 0)}


def test_the_newest_ledgers_are_known_to_be_deleted_too_by_the_id_that_was_given_out_last(spark: SparkSession) -> None:
    """They were taken for ledgers that are younger than the list: after a log was deleted, all that it left was called live."""
    cluster = Cluster()
    cluster.last_ledger_id = 2
    cluster.holds(A, 2, (0, 3))  # deleted, and no ledger is left
    cluster.holds(A, 3, (0, 5))  # made after the list
    cluster.rows["entry_logs"].append({"bookie_id": A, "entry_log": 1, "bytes": 20})
    found = cluster.audit(spark, "garbage_per_entry_log", "orphans")
    assert select(found["garbage_per_entry_log"], "live_bytes", "garbage_bytes", "of_deleted_ledgers") == [(10, 10, 10)]
    assert select(found["orphans"], "ledger_id", "kind", "entries") == [(2, "entries of a deleted ledger", 4)]


def test_garbage_is_also_what_lies_elsewhere_by_now_and_a_shared_batch_counts_once(spark: SparkSession) -> None:
    cluster = Cluster()
    cluster.ledger(1, 19, {0: [A, B, C]})
    cluster.holds(A, 1, (0, 4), (7, 19))
    cluster.rows["index_ranges"][1]["position"] = cluster.rows["index_ranges"][0]["position"]
    cluster.rows["entry_logs"] += [{"bookie_id": A, "entry_log": n, "bytes": 30} for n in (1, 2)]
    (found,) = cluster.audit(spark, "garbage_per_entry_log").values()
    columns = ("entry_log", "live_bytes", "garbage_bytes", "of_deleted_ledgers")
    assert select(found, *columns) == [(2, 0, 30, 0), (1, 10, 20, 0)]


def test_divergence_is_found_to_the_entry_and_what_is_missing_or_unreadable_is_none(spark: SparkSession) -> None:
    cluster = Cluster()
    cluster.ledger(1, 1026, {0: [A, B, C]})
    cluster.checksums(A, 1, *range(1024))
    cluster.checksums(B, 1, *range(1024))
    cluster.checksums(C, 1, 0, 1, None, 3, unreadable=1)
    cluster.checksums(A, 1, 7, 8, 9, first=1024)
    cluster.checksums(B, 1, 7, 5, 9, first=1024)
    cluster.checksums(C, 1, None, 6, 9, first=1024)
    # Above the end, and above the LAC: a recovery decided, or will.
    cluster.ledger(2, 0, {0: [A, B, C]})
    cluster.ledger(3, 0, {0: [A, B, C]}, state="OPEN")
    for ledger_id in (2, 3):
        cluster.checksums(A, ledger_id, 1, 2)
        cluster.checksums(B, ledger_id, 1, 3)
    found = cluster.audit(spark, "divergence", "unreadable_copies")
    assert select(found["divergence"], "ledger_id", "entry_id", "contents", "bookies_by_content") == [
        (1, 1025, 3, [[A], [B], [C]])
    ]
    assert select(found["unreadable_copies"], "ledger_id", "bookie_id", "first_entry_looked_at", "entries") == [
        (1, C, 0, 1)
    ]


def test_equal_checksums_of_other_entries_are_divergence(spark: SparkSession) -> None:
    cluster = Cluster()
    cluster.ledger(1, 9, {0: [A, B, C]})
    cluster.checksums(A, 1, 5, 6, None)
    cluster.checksums(B, 1, None, 5, 6)
    (found,) = cluster.audit(spark, "divergence").values()
    assert select(found, "entry_id", "bookies_by_content") == [(1, [[A], [B]])]


def test_a_commit_is_proof_for_divergence_too(spark: SparkSession) -> None:
    cluster = Cluster()
    cluster.ledger(1, -1, {0: [A, B, C]}, state="OPEN")
    cluster.rows["log_commits"].append({"log": "orders", "ledger_id": 1, "first_entry_id": 0, "last_entry_id": 0})
    cluster.checksums(A, 1, 1, 2)
    cluster.checksums(B, 1, 3, 4)
    (found,) = cluster.audit(spark, "divergence").values()
    assert select(found, "entry_id", "bookies_by_content") == [(0, [[A], [B]])]


def test_placement_is_judged_by_the_policy_and_by_racks_if_any_is_named_and_else_not_at_all(
    spark: SparkSession,
) -> None:
    def found(write_quorum: int, *ensembles: list[str], placement: str = "random") -> list[tuple[Any, ...]]:
        for number, ensemble in enumerate(ensembles):
            cluster.ledger(number, 9, {0: ensemble}, write_quorum=write_quorum)
        (finding,) = cluster.audit(spark, "placement_violations", placement=placement).values()
        cluster.rows["ledgers"], cluster.rows["fragments"] = [], []
        return select(finding, "ledger_id", "shared", "write_set", "different", "possible")

    cluster = Cluster()
    bookies = cluster.rows["bookies"]
    bookies[1]["host"] = A
    assert found(3, [A, B, C], [B, C, D]) == [], "the default policy takes any bookies, on whatever hosts"
    apart = "one_per_host"
    assert found(3, [A, B, C], [B, C, D], placement=apart) == [(0, "host", [A, B, C], 2, 3)]
    bookies[3].update(state="down", host=None, rack=None)
    assert found(3, [A, B, C], [A, C, D], placement=apart) == [], "two hosts is all there is; d may be anywhere"
    bookies[3].update(state="writable", host=D, rack="")
    for bookie, zone in zip(bookies, ("north", "south", "south", None), strict=True):
        bookie["labels"] = "{}" if zone is None else f'{{"zone": "{zone}"}}'
    assert found(2, [A, B], [B, C], [C, D], placement="one_per_zone") == [(1, "zone", [B, C], 1, 2)]
    for bookie, rack in zip(bookies, "1122", strict=True):
        bookie["rack"] = rack
    assert found(2, [A, B], [A, C]) == [(0, "rack", [A, B], 1, 2)]
    assert found(2, [A, C, B, D], [A, B, C, D]) == [(1, "rack", [A, B], 1, 2), (1, "rack", [C, D], 1, 2)]


def test_the_history_counts_entries_missing_copies_and_bytes_of_each_snapshot(spark: SparkSession) -> None:
    snapshots_of: dict[str, list[DataFrame]] = {}
    for number, (on_c, state) in enumerate({(0, 9): "CLOSED", (0, 5): "OPEN"}.items()):
        cluster = Cluster()
        cluster.ledger(1, 9, {0: [A, B, C]}, state=state)
        cluster.holds(A, 1, (0, 3), (4, 12))
        cluster.holds(B, 1, (0, 9))
        cluster.holds(C, 1, on_c)
        cluster.holds(D, 1, (0, 9))  # not of its ensemble
        if number:  # no LAC was told: what is confirmed is its first fragment, though a commit names less
            cluster.ledger(2, 9, {0: [A, B, C], 5: [A, B, D]}, state="OPEN", last_add_confirmed=None)
            cluster.rows["log_commits"].append({"log": "orders", "ledger_id": 2, "last_entry_id": 1})
        for name, rows in cluster.tables(spark, *OF_HISTORY).items():
            snapshots_of.setdefault(name, []).append(rows.selectExpr("*", f"'s{number}' AS snapshot_id"))
    tables = {name: snapshots_of[name][0].unionByName(snapshots_of[name][1]) for name in OF_HISTORY}
    with question(spark, tables, "history") as answer:
        assert sorted(map(tuple, answer.collect())) == [("s0", 10, 0, 50), ("s1", 15, 19, 50)]


def test_a_bookie_is_safe_to_stop_while_each_of_its_entries_keeps_an_ack_quorum(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    cluster.ledger(1, 9, {0: [A, B, C]})
    for bookie in (A, B, C):
        cluster.holds(bookie, 1, (0, 9))
    cluster.ledger(2, 9, {0: [A, B, C]})
    for bookie, last in ((A, 9), (B, 9), (C, 4)):
        cluster.holds(bookie, 2, (0, last))
    tables = cluster.tables(spark)
    monkeypatch.setattr(snapshots, "tables", lambda spark, path: tables)
    ranges = ("ledger_id", "first_entry_id", "last_entry_id", "copies_left")
    assert safe_to_stop(spark, "/snapshots", [D]).good and safe_to_stop(spark, "/snapshots", [C]).good
    assert select(safe_to_stop(spark, "/snapshots", [A]), *ranges) == [(2, 5, 9, 1)]
    assert select(safe_to_stop(spark, "/snapshots", [A, B]), *ranges) == [(2, 5, 9, 0), (1, 0, 9, 1), (2, 0, 4, 1)]
    with pytest.raises(ConfigurationError, match="unknown bookie 'z'"):
        safe_to_stop(spark, "/snapshots", ["z"])


def test_a_bookie_is_not_safe_to_stop_if_an_open_ledger_could_not_be_recovered_without_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That was told of its copies alone: a ledger with an ack quorum of 1 could not be recovered without any one bookie, and one
    without entries not without two."""
    cluster = Cluster()
    cluster.rows["bookies"] += [{"bookie_id": "e", "state": "down"}, {"bookie_id": "f", "state": "writable"}]
    cluster.ledger(1, 9, {0: [A, B]}, state="OPEN", ack_quorum=1)
    cluster.ledger(2, 9, {0: [A, B]}, ack_quorum=1)  # closed
    for bookie in (A, B):
        cluster.holds(bookie, 1, (0, 9))
        cluster.holds(bookie, 2, (0, 9))
    cluster.ledger(3, -1, {0: [B, C, D]}, state="OPEN")
    cluster.ledger(4, -1, {0: [C, D, "f"]}, state="IN_RECOVERY")
    cluster.rows["limbo"].append({"bookie_id": "f", "ledger_id": 4})
    cluster.ledger(5, -1, {0: ["f", "e", B, A]}, state="OPEN", write_quorum=2)  # striped: a and f are a write set
    cluster.ledger(6, -1, {0: [C, "e", D]}, state="OPEN", ack_quorum=3)
    tables = cluster.tables(spark)
    monkeypatch.setattr(snapshots, "tables", lambda spark, path: tables)

    def found(*stopped: str) -> list[int]:
        finding = safe_to_stop(spark, "/snapshots", stopped)
        assert all("too few bookies would be left to recover it" in row[-1] for row in finding.rows)
        return [ledger_id for (ledger_id,) in select(finding, "ledger_id")]

    assert (found(A), found("f"), found(B, D)) == ([1], [5], [1, 3, 4, 5])


def test_what_can_not_be_judged_is_named_and_is_not_safe(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.ledger(1, 9, {0: [A, B, C], 5: [A, B, D]}, state="OPEN", last_add_confirmed=None)
    cluster.ledger(2, 9, {0: [B, C, D]})
    cluster.rows["ledgers"][-1]["metadata_version"] = 2
    cluster.ledger(3, 9, {0: [A, C, D]})
    for bookie in (A, B, C, D):
        for ledger_id in (1, 2, 3):
            cluster.holds(bookie, ledger_id, (0, 9))
    tables = cluster.tables(spark)
    cluster.rows["ledgers"].append({"ledger_id": 4, "state": "UNREADABLE"})
    cluster.holds(D, 4, (0, 9))
    with_unreadable = cluster.tables(spark)
    monkeypatch.setattr(snapshots, "tables", lambda spark, path: tables)
    columns = ("ledger_id", "copies_left", "why")
    no_lac, changed = (
        "no LAC was told: give its password, if it has one, or have its bookies up",
        "its metadata changed",
    )
    assert select(safe_to_stop(spark, "/snapshots", [A]), *columns) == [(1, None, no_lac)]
    [(ledger_id, _, why)] = select(safe_to_stop(spark, "/snapshots", [C]), *columns)
    assert ledger_id == 2 and why.startswith(changed), (
        "the end of ledger 1 has no copy there, and its beginning is confirmed"
    )
    [found] = cluster.audit(spark, "not_judged_ledgers").values()
    assert select(found, "ledger_id") == [(1,), (2,), (4,)] and not found.good
    # Nobody knows which bookies a ledger has whose record can't be decoded, so none is safe without naming it.
    monkeypatch.setattr(snapshots, "tables", lambda spark, path: with_unreadable)
    [_, (ledger_id, _, why)] = select(safe_to_stop(spark, "/snapshots", [A]), *columns)
    assert ledger_id == 4 and why.startswith("its record cannot be decoded")
    for name in ("orphans", "missing_entries", "over_replicated_ranges", "stuck_ledgers"):
        [about] = cluster.audit(spark, name).values()
        assert 4 not in {row[0] for row in about.rows}, name


def test_an_ensemble_change_between_any_two_tables_of_a_snapshot_is_no_finding(spark: SparkSession) -> None:
    """Ledger n: just before table n is read, c fails, and entries 100 to 149 go to a, b and d and are committed."""
    cluster = Cluster()
    for number in range(len(snapshots.ORDER) + 1):
        before, after = Cluster(), Cluster()
        before.ledger(number, 99, {0: [A, B, C]}, state="OPEN", log="orders", log_epoch=1)
        after.ledger(number, 149, {0: [A, B, C], 100: [A, B, D]}, state="OPEN", log="orders", log_epoch=1)
        for row in after.rows["ledgers"] + after.rows["fragments"]:
            row["metadata_version"] = 2
        for state, last in ((before, 99), (after, 149)):
            state.rows["log_commits"].append(
                {"log": "orders", "ledger_id": number, "first_entry_id": 0, "last_entry_id": last}
            )
            for bookie in (A, B):
                state.holds(bookie, number, (0, last))
            state.holds(C, number, (0, 99))
        after.holds(D, number, (100, 149))
        for place, table in enumerate(snapshots.ORDER):
            if table in ("ledgers", "log_commits", "fragments", "index_ranges"):
                cluster.rows[table] += (before if place < number else after).rows[table]
    found = cluster.audit(spark, "under_replicated_ranges", "over_replicated_ranges", "missing_entries")
    over = select(found.pop("over_replicated_ranges"), "ledger_id", "bookie_id", "first_entry_id", "last_entry_id")
    assert {name: finding.rows for name, finding in found.items() if not finding.good} == {}
    # Metadata that changed after the fragments were read can't be known: to what was read, d is none of theirs.
    later = range(snapshots.ORDER.index("fragments") + 1, len(snapshots.ORDER))
    assert over == [(number, D, 100, 149) for number in later]


def test_bytes_are_counted_per_bookie(found: dict[str, Finding]) -> None:
    assert select(found["bytes_per_bookie"], "bookie_id", "state", "entries") == [
        (A, "writable", 100 + 90 + 10 + 4 + 4 + 21 + 10 + 121 + 4),
        (B, "writable", 50 + 100 + 10 + 4 + 2 + 13 + 10 + 61),
        (C, "writable", 100 + 99 + 4 + 5 + 10 + 100 + 10),
        (D, "down", 50 + 60),
    ]


def test_runs_of_one_batch_have_its_bytes_together(spark: SparkSession) -> None:
    """A rewritten log of a striped ledger has 85 runs in a block: each bookie seemed to hold 36 times what its disk had."""
    cluster = Cluster()
    cluster.ledger(1, 5, {0: [A, B, C]}, write_quorum=2)
    cluster.holds(A, 1, (0, 0), (2, 3), (5, 5))
    cluster.holds(B, 1, (0, 1), (3, 4))
    for row in cluster.rows["index_ranges"]:
        row["position"] = 0
    (found,) = cluster.audit(spark, "bytes_per_bookie").values()
    columns = ("bookie_id", "ledgers", "entries", "bytes", "entry_logs")
    assert select(found, *columns)[:3] == [(A, 1, 4, 10, 1), (B, 1, 4, 10, 1), (C, 0, 0, 0, 0)]
    tables = {
        name: rows.selectExpr("*", "'s' AS snapshot_id") for name, rows in cluster.tables(spark, *OF_HISTORY).items()
    }
    with question(spark, tables, "history") as answer:
        assert [row.bytes for row in answer.collect()] == [20]


def test_the_histogram_has_three_kinds_of_factors(spark: SparkSession) -> None:
    cluster = Cluster()
    cluster.ledger(3, 99, {0: [A, B, C]})
    cluster.holds(A, 3, (0, 19), (30, 99))
    cluster.holds(B, 3, (0, 99))
    cluster.holds(C, 3, (0, 24), (26, 99))
    (histogram,) = cluster.audit(spark, "replication_factor_histogram").values()
    kinds = ("replication_factor", "entries_by_prefix_factor", "entries", "entries_by_suffix_factor")
    # Up to entry 19 all before is at 3; from 25 on something before is at 1. The last entry is at 3, so every suffix is.
    assert select(histogram, *kinds) == [(1, 75, 1, 0), (2, 5, 9, 0), (3, 20, 90, 100)]


# -- what is known of damage, and how old that knowledge is

LAST_WEEK = datetime(2026, 1, 2, 3, 4)


@pytest.fixture(scope="module")
def worn(spark: SparkSession) -> dict[str, DataFrame]:
    """Ledgers 1 and 2 on a, b and c. Of entry 5 of ledger 1, a and b can't read their copies; of entry 0 of ledger 2 only a."""
    cluster = Cluster()
    for ledger_id in (1, 2):
        cluster.ledger(ledger_id, 9, {0: [A, B, C]})
        for bookie in (A, B, C):
            cluster.holds(bookie, ledger_id, (0, 5), (6, 9))
    for bookie in (A, B):
        cluster.checksums(bookie, 1, 7, 7, 7, 7, 7, None, 7, 7, 7, None, unreadable=2)
    cluster.checksums(C, 1, *[7] * 10)
    cluster.checksums(A, 2, None, 7, unreadable=1)
    cluster.disk(A, checked_at=LAST_WEEK)
    cluster.disk(A, "full", reason="its disk is nearly full", directory="/a2", checked_at=LAST_WEEK)
    cluster.disk(B, lacking_ledgers=3, checked_at=datetime(2026, 1, 9))
    cluster.disk(B, "failed", directory="/b2", checked_at=datetime(2026, 1, 9))
    cluster.disk(C)
    cluster.rows["bookies"][3]["state"] = "down"
    cluster.rows["autorecovery"].append({"enabled": False, "tasks": 4})
    return cluster.tables(spark)


def test_copies_that_are_known_to_be_unreadable_do_not_count(
    spark: SparkSession, worn: dict[str, DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {one.name: one for one in run_over(spark, worn, ["one_loss_from_unreadable", "under_replicated_ranges"])}
    loss = found["one_loss_from_unreadable"]
    assert select(loss, "bookie_id", "entries", "readability") == [(C, 2, "not checked")]
    ranges = select(found["under_replicated_ranges"], "ledger_id", "first_entry_id", "last_entry_id", "held_by")
    assert sorted(ranges) == [(1, 5, 5, [C]), (1, 9, 9, [C]), (2, 0, 0, [B, C])]
    assert loss.note == "every copy was read when the snapshot was taken"
    monkeypatch.setattr(snapshots, "tables", lambda spark, path: worn)
    unsafe = safe_to_stop(spark, "/snapshots", [C])
    left = select(unsafe, "ledger_id", "first_entry_id", "last_entry_id", "copies_left")
    assert left == [(1, 5, 5, 0), (1, 9, 9, 0), (2, 0, 0, 1)]


def test_who_asks_is_told_how_old_the_knowledge_of_damage_is_and_where_there_is_none(
    spark: SparkSession, worn: dict[str, DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    without = {name: table for name, table in worn.items() if name != "entry_checksums"}
    monkeypatch.setattr(snapshots, "tables", lambda spark, path: without)
    note = safe_to_stop(spark, "/snapshots", [B]).note
    assert "were last read" in note and "hours ago" in note and f"{LAST_WEEK:%Y-%m-%d %H:%M}" in note
    assert "readability was not checked on c: copies there may be damaged" in note
    assert "not checked" not in safe_to_stop(spark, "/snapshots", [C]).note
    (readability,) = run_over(spark, without, ["readability"])
    assert {row[0]: row[1] is None for row in readability.rows} == {A: False, B: False, C: True}


def test_what_was_accepted_as_lost_is_missing_nowhere_and_everything_else_still_is(spark: SparkSession) -> None:
    cluster = Cluster()
    cluster.ledger(1, 9, {0: [A, B, C]})
    cluster.ledger(2, 3, {0: [A, B, C]}, write_quorum=2)
    for bookie in (A, B, C):
        cluster.holds(bookie, 1, (0, 2), (8, 9))
    cluster.holds(A, 2, (0, 0), (2, 3))
    cluster.holds(B, 2, (0, 0), (3, 3))
    cluster.holds(C, 2, (2, 2))
    for ledger_id, first, last, bookies in ((1, 3, 5, [A, B, C]), (1, 7, 7, [A]), (2, 1, 1, [B, C])):
        loss = {
            "ledger_id": ledger_id,
            "kind": "entries",
            "first_entry_id": first,
            "last_entry_id": last,
            "bookies": bookies,
        }
        cluster.rows["accepted_losses"].append(loss)
    cluster.rows["accepted_losses"].append({**loss, "kind": "end", "first_entry_id": 4, "last_entry_id": 4})
    found = cluster.audit(spark, "missing_entries", "under_replicated_ranges", "accepted_losses")
    ranges = ("ledger_id", "first_entry_id", "last_entry_id", "missing_on")
    lacking = [(1, 6, 6, [A, B, C]), (1, 7, 7, [B, C])]
    assert select(found["missing_entries"], *ranges) == lacking
    assert sorted(select(found["under_replicated_ranges"], *ranges)) == lacking
    assert select(found["accepted_losses"], "ledger_id", "first_entry_id") == [(1, 3), (1, 7), (2, 1), (2, 4)]
    with question(spark, cluster.tables(spark), "lacking") as answer:
        assert [(row.ledger_id, row.copies) for row in answer.collect()] == [(1, 5)]


def test_what_is_out_of_use_is_a_finding(spark: SparkSession, worn: dict[str, DataFrame]) -> None:
    asked = ["autorecovery_disabled", "bookies_down", "damaged_copies", "directories_out_of_use"]
    found = {one.name: one for one in run_over(spark, worn, asked)}
    assert [one.good for one in found.values()] == [False] * 4
    assert select(found["autorecovery_disabled"], "ledgers_that_wait") == [(4,)]
    assert select(found["bookies_down"], "bookie_id") == [(D,)]
    assert select(found["damaged_copies"], "bookie_id", "ledgers") == [(B, 3)]
    directories = select(found["directories_out_of_use"], "directory", "state", "reason")
    assert directories == [("/a2", "full", "its disk is nearly full"), ("/b2", "failed", None)]


def test_a_snapshot_of_an_earlier_version_has_not_been_checked(spark: SparkSession, worn: dict[str, DataFrame]) -> None:
    later = ("accepted_losses", "disks", "autorecovery", "entry_checksums")
    before = {name: table for name, table in worn.items() if name not in later}
    loss, damaged = run_over(spark, before, ["one_loss_from_unreadable", "damaged_copies"])
    assert (
        damaged.good
        and loss.good
        and loss.note == "readability was not checked on a, b, c: copies there may be damaged"
    )
    out = StringIO()
    show([loss], Console(file=out, width=200))
    assert "none (readability was not checked on a, b, c" in out.getvalue()


def test_findings_are_shown_as_tables(found: dict[str, Finding]) -> None:
    out = StringIO()
    show(found.values(), Console(file=out, width=200))
    show([replace(found["orphans"], rows=(), total=0)], Console(file=out, width=200))
    text = out.getvalue()
    assert "Under-replicated ranges" in text and "✓ Orphans: none" in text
