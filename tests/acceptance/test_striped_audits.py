"""Audits of striped ledgers and others: what they say of random ledgers is what a look at each entry says."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bookspark.spark.audit.runner import _views, question, run_over
from bookspark.spark.snapshots.snapshot import LISTED
from tests.spark.made_up_cluster import A, B, C, Cluster, D, select

pytestmark = pytest.mark.spark

BOOKIES = (A, B, C, D)
LEDGERS = 150
SEEDS = range(int(os.environ.get("BOOKSPARK_AUDIT_SEEDS", "1")))
"""By hand, 10."""


@dataclass
class MadeUp:
    """A random ledger, entry by entry."""

    ledger_id: int
    write_quorum: int
    ack_quorum: int
    assigned: list[list[str]] = field(default_factory=list)
    """For each confirmed entry the bookies of its write set."""
    held: dict[str, set[int]] = field(default_factory=dict)
    accepted: dict[int, set[str]] = field(default_factory=dict)

    def holders(self, entry: int) -> list[str]:
        return [bookie for bookie in self.assigned[entry] if entry in self.held.get(bookie, ())]

    def missing(self, entry: int) -> list[str]:
        there = {*self.holders(entry), *self.accepted.get(entry, ())}
        return [bookie for bookie in self.assigned[entry] if bookie not in there]


def runs(entries: set[int], cut: Random) -> list[tuple[int, int]]:
    """As ranges, some of which touch."""
    found: list[tuple[int, int]] = []
    for entry in sorted(entries):
        if found and found[-1][1] == entry - 1 and cut.random() < 0.8:
            found[-1] = found[-1][0], entry
        else:
            found.append((entry, entry))
    return found


def made_up(cluster: Cluster, ledger_id: int, random: Random) -> MadeUp:
    size = random.randint(1, 4)
    write = random.randint(1, size)
    ledger = MadeUp(ledger_id, write, random.randint(1, write))
    last = random.randint(-1, 25)
    starts = sorted({0, *(random.randint(0, max(last, 0)) for _ in range(random.randint(0, 2)))})
    ensembles = {start: random.sample(BOOKIES, size) for start in starts}
    state = random.choice(["CLOSED", "OPEN"])
    cluster.ledger(
        ledger_id, last, ensembles, write_quorum=write, ack_quorum=ledger.ack_quorum, ensemble_size=size, state=state
    )
    confirmed = last if state == "CLOSED" else max(last, starts[-1] - 1)
    for entry in range(confirmed + 1):
        ensemble = ensembles[max(start for start in starts if start <= entry)]
        ledger.assigned.append([ensemble[(entry + place) % size] for place in range(write)])
    loses = random.choice([0.0, 0.05, 0.5])
    for bookie in BOOKIES:
        there = {entry for entry in range(last + 3) if random.random() >= loses}
        if size > write and random.random() < 0.5:
            # As it is on real bookies: of a striped ledger each holds its own entries alone.
            there = {entry for entry in there if entry > confirmed or bookie in ledger.assigned[entry]}
        ledger.held[bookie] = there
        cluster.holds(bookie, ledger_id, *runs(there, random))
    for _ in range(random.choice([0, 0, 1, 2])):
        if confirmed >= 0:
            first = random.randint(0, confirmed)
            until, bookies = random.randint(first, confirmed + 2), random.sample(BOOKIES, random.randint(1, 3))
            cluster.rows["accepted_losses"].append(
                {
                    "ledger_id": ledger_id,
                    "metadata_version": 1,
                    "kind": "entries",
                    "first_entry_id": first,
                    "last_entry_id": until,
                    "bookies": bookies,
                }
            )
            for entry in range(first, until + 1):
                ledger.accepted.setdefault(entry, set()).update(bookies)
    return ledger


@pytest.mark.parametrize("seed", SEEDS)
def test_audits_of_random_ledgers_say_what_a_look_at_each_entry_says(spark: SparkSession, seed: int) -> None:
    random, cluster = Random(seed), Cluster()
    ledgers = {number: made_up(cluster, number, random) for number in range(LEDGERS)}
    tables = cluster.tables(spark)
    with _views(spark, {**tables, "listed": spark.createDataFrame([(-1,)], LISTED)}, ["entry_ranges"]):
        rows = spark.table("entry_ranges").collect()
    seen: Counter[tuple[int, int]] = Counter()
    for row in rows:
        ledger, entries = ledgers[row.ledger_id], range(row.first_entry_id, row.last_entry_id + 1, row.step)
        assert len(entries) == row.entries
        for entry in entries:
            seen[row.ledger_id, entry] += 1
            told = sorted(row.held_by), sorted(row.missing_on), row.replication_factor
            holders = ledger.holders(entry)
            assert told == (sorted(holders), sorted(ledger.missing(entry)), len(holders)), (row, entry)
    everything = {(number, entry) for number, ledger in ledgers.items() for entry in range(len(ledger.assigned))}
    assert seen == dict.fromkeys(everything, 1)

    found = cluster.audit(spark, "replication_factor_histogram", "missing_entries", "under_replicated_ranges")
    columns = "replication_factor", "entries_by_prefix_factor", "entries", "entries_by_suffix_factor", "ledgers"
    assert select(found["replication_factor_histogram"], *columns) == histogram(list(ledgers.values()))
    for name, chosen in (
        ("missing_entries", lambda ledger, entry: not ledger.holders(entry) and ledger.missing(entry)),
        ("under_replicated_ranges", lambda ledger, entry: ledger.missing(entry)),
    ):
        told = {
            (number, entry)
            for number, first, last, step in select(found[name], "ledger_id", "first_entry_id", "last_entry_id", "step")
            for entry in range(first, last + 1, step)
        }
        assert told == {(number, entry) for number, entry in everything if chosen(ledgers[number], entry)}, name


@pytest.mark.parametrize("seed", SEEDS)
def test_what_stops_of_random_ledgers_is_judged_as_a_look_at_each_entry_judges_it(
    spark: SparkSession, seed: int
) -> None:
    random, cluster = Random(seed), Cluster()
    ledgers = [made_up(cluster, number, random) for number in range(LEDGERS)]
    cluster.rows["bookies"][BOOKIES.index(D)]["state"] = "down"
    lone: Counter[str] = Counter()
    unsafe: set[tuple[int, int]] = set()
    lacks: dict[int, list[str]] = {}
    ended = {row["ledger_id"]: -1 for row in cluster.rows["fragments"]}
    for row in cluster.rows["fragments"]:
        if row["last_entry_id"] is not None:
            ended[row["ledger_id"]] = max(row["last_entry_id"], ended[row["ledger_id"]])
    for ledger in ledgers:
        for entry in range(len(ledger.assigned)):
            up = {*ledger.holders(entry)} - {D}
            if ledger.write_quorum > 1 and len(up) == 1:
                lone[up.pop()] += 1
            holders = {*ledger.holders(entry)}
            if holders & {A, B} and len(holders - {A, B, D}) < ledger.ack_quorum:
                unsafe.add((ledger.ledger_id, entry))
            if entry <= ended[ledger.ledger_id]:
                lacks.setdefault(ledger.ledger_id, []).extend(one for one in ledger.missing(entry) if one != D)

    found = cluster.audit(spark, "one_loss_from_unreadable")
    assert dict(select(found["one_loss_from_unreadable"], "bookie_id", "entries")) == lone
    tables = cluster.tables(spark)
    with question(spark, tables, "lacking") as answer:
        told = {row.ledger_id: (row.bookies, row.copies) for row in answer.collect()}
    assert told == {one: (sorted({*bookies}), len(bookies)) for one, bookies in lacks.items() if bookies}
    tables["stopped"] = spark.createDataFrame([(A,), (B,)], "bookie_id STRING")
    with question(spark, tables, "safe_to_stop") as answer:
        rows = [row for row in answer.collect() if row.copies_left is not None]
    assert unsafe == {
        (row.ledger_id, entry) for row in rows for entry in range(row.first_entry_id, row.last_entry_id + 1, row.step)
    }


def histogram(ledgers: list[MadeUp]) -> list[tuple[Any, ...]]:
    prefix, entries, suffix = Counter[int](), Counter[int](), Counter[int]()
    of_factor: dict[int, set[int]] = {}
    for ledger in ledgers:
        factors = [len(ledger.holders(entry)) for entry in range(len(ledger.assigned))]
        for entry, factor in enumerate(factors):
            entries[factor] += 1
            of_factor.setdefault(factor, set()).add(ledger.ledger_id)
            prefix[min(factors[: entry + 1])] += 1
            suffix[max(factors[entry:])] += 1
    return [(one, prefix[one], entries[one], suffix[one], len(of_factor[one])) for one in sorted(entries)]


def test_a_striped_ledger_of_any_size_is_a_few_rows(spark: SparkSession) -> None:
    """Each of its entries was a row: 10⁸ of them did not fit into memory."""
    cluster, last = Cluster(), 10**8 - 1
    cluster.ledger(1, last, {0: [A, B, C, D]}, write_quorum=3)
    for bookie in (A, B, C):
        cluster.holds(bookie, 1, (0, last))
    cluster.holds(D, 1, (0, 9), (20, last))
    tables = cluster.tables(spark)
    with _views(spark, tables, ["entry_ranges"]):
        assert spark.table("entry_ranges").count() <= 4 * 3
    found = cluster.audit(spark, "replication_factor_histogram", "under_replicated_ranges")
    # Of entries 10 to 19 those that are not for d are whole.
    assert select(found["replication_factor_histogram"], "replication_factor", "entries") == [(2, 8), (3, 10**8 - 8)]
    shown = select(found["under_replicated_ranges"], "first_entry_id", "last_entry_id", "step", "entries", "missing_on")
    assert [row[:4] for row in shown] == [(10, 18, 4, 3), (11, 19, 4, 3), (13, 17, 4, 2)]


def test_what_one_bookie_alone_has_of_many_ledgers_and_of_a_long_one_is_counted(spark: SparkSession) -> None:
    """The ids of all ledgers that a bookie alone has were one list, in one task."""
    cluster, last = Cluster(), 10**8 - 1
    cluster.ledger(7, last, {0: [A, B, C]}, write_quorum=2)
    cluster.holds(A, 7, (0, last))
    tables = cluster.tables(spark)
    many = spark.range(100, 5100).withColumnRenamed("id", "ledger_id")
    made_up = {
        "ledgers": {"metadata_version": 1, "state": "'CLOSED'", "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2},
        "fragments": {
            "metadata_version": 1,
            "fragment": 0,
            "first_entry_id": 0,
            "last_entry_id": 9,
            "ensemble": "ARRAY('a', 'b', 'c')",
        },
        "index_ranges": {"bookie_id": "'a'", "first_entry_id": 0, "last_entry_id": 9},
    }
    for name, columns in made_up.items():
        rows = many.selectExpr("ledger_id", *(f"{value} AS {column}" for column, value in columns.items()))
        tables[name] = tables[name].unionByName(rows, allowMissingColumns=True)
    (found,) = run_over(spark, tables, ["one_loss_from_unreadable"])
    # Of each three entries of the striped ledger two are on a.
    entries = 2 * 10**8 // 3 + 1 + 50_000
    ids = [7, *range(100, 119)]
    assert select(found, "bookie_id", "ledgers", "entries", "first_ledgers") == [(A, 5001, entries, ids)]
