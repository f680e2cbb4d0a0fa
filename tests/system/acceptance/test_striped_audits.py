"""Audits of striped and other ledgers: their findings for random ledgers match a check of each entry.

Further ledgers have 10⁸ entries, and many ledgers have copies on a single bookie only.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from bookspark.spark.audit import Finding
from bookspark.spark.audit.runner import question, run_over
from tests.spark.made_up_cluster import A, B, C, Cluster, D, select

pytestmark = [pytest.mark.release, pytest.mark.spark]

BOOKIES = (A, B, C, D)
LEDGERS = 60
SEEDS = range(int(os.environ.get("BOOKSPARK_AUDIT_SEEDS", "1")))
"""For runs by hand: 10."""
STRIPED, LONE, FIRST_OF_MANY, MANY = LEDGERS, LEDGERS + 1, LEDGERS + 10, 100


@dataclass
class MadeUp:
    """A random ledger, entry by entry."""

    ledger_id: int
    write_quorum: int
    ack_quorum: int
    assigned: list[list[str]] = field(default_factory=list)
    """For each confirmed entry, the bookies of its write set."""
    held: dict[str, set[int]] = field(default_factory=dict)
    accepted: dict[int, set[str]] = field(default_factory=dict)

    def holders(self, entry: int) -> list[str]:
        return [bookie for bookie in self.assigned[entry] if entry in self.held.get(bookie, ())]

    def missing(self, entry: int) -> list[str]:
        there = {*self.holders(entry), *self.accepted.get(entry, ())}
        return [bookie for bookie in self.assigned[entry] if bookie not in there]


def runs(entries: set[int], cut: Random) -> list[tuple[int, int]]:
    """Entries as ranges, some of which touch."""
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
            # As on real bookies: each holds only its own entries of a striped ledger.
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
def test_audits_of_random_ledgers_match_a_check_of_each_entry(spark: SparkSession, seed: int) -> None:
    random, cluster = Random(seed), Cluster()
    ledgers = {number: made_up(cluster, number, random) for number in range(LEDGERS)}
    cluster.rows["bookies"][BOOKIES.index(D)]["state"] = "down"
    add_long_ones(cluster)
    tables = add_many(spark, cluster.tables(spark))
    stopped = spark.createDataFrame([(A,), (B,)], "bookie_id STRING")
    with question(spark, {**tables, "stopped": stopped}, "safe_to_stop") as answer:
        unsafe = answer.where("copies_left IS NOT NULL").collect()
        rows = spark.table("entry_ranges").collect()
    with question(spark, tables, "lacking") as answer:
        lacking = {row.ledger_id: (row.bookies, row.copies) for row in answer.collect() if row.ledger_id < LEDGERS}
    asked = "replication_factor_histogram", "missing_entries", "under_replicated_ranges", "one_loss_from_unreadable"
    found = {finding.name: finding for finding in run_over(spark, tables, asked)}

    # Each entry is in exactly one range, whose facts match the entry.
    seen: Counter[tuple[int, int]] = Counter()
    for row in rows:
        if row.ledger_id >= LEDGERS:
            continue
        ledger, entries = ledgers[row.ledger_id], range(row.first_entry_id, row.last_entry_id + 1, row.step)
        assert len(entries) == row.entries
        for entry in entries:
            seen[row.ledger_id, entry] += 1
            told = sorted(row.held_by), sorted(row.missing_on), row.replication_factor
            holders = ledger.holders(entry)
            assert told == (sorted(holders), sorted(ledger.missing(entry)), len(holders)), (row, entry)
    everything = {(number, entry) for number, ledger in ledgers.items() for entry in range(len(ledger.assigned))}
    assert seen == dict.fromkeys(everything, 1)
    # Once each entry of a striped ledger was a row: 10⁸ rows did not fit into memory.
    assert Counter(row.ledger_id for row in rows)[STRIPED] <= 4 * 3

    columns = "replication_factor", "entries_by_prefix_factor", "entries", "entries_by_suffix_factor", "ledgers"
    assert select(found["replication_factor_histogram"], *columns) == histogram(list(ledgers.values()))
    for name, chosen in (
        ("missing_entries", lambda ledger, entry: not ledger.holders(entry) and ledger.missing(entry)),
        ("under_replicated_ranges", lambda ledger, entry: ledger.missing(entry)),
    ):
        ranges = select(found[name], "ledger_id", "first_entry_id", "last_entry_id", "step")
        assert len(ranges) == found[name].total
        told = {
            (number, entry)
            for number, first, last, step in ranges
            if number < LEDGERS
            for entry in range(first, last + 1, step)
        }
        assert told == {(number, entry) for number, entry in everything if chosen(ledgers[number], entry)}, name
    shown = select(found["under_replicated_ranges"], "ledger_id", "first_entry_id", "last_entry_id", "step", "entries")
    # Entries 10 to 19 whose write set excludes d are whole.
    of_striped = [row[1:] for row in shown if row[0] == STRIPED]
    assert of_striped == [(10, 18, 4, 3), (11, 19, 4, 3), (13, 17, 4, 2)]

    what_stops(cluster, ledgers, unsafe, lacking, found["one_loss_from_unreadable"])


def what_stops(
    cluster: Cluster,
    ledgers: dict[int, MadeUp],
    rows: list[Row],
    lacking: dict[int, tuple[list[str], int]],
    loss: Finding,
) -> None:
    """Check the answers about stopping bookies, here a and b, while d is down."""
    lone: Counter[str] = Counter()
    unsafe: set[tuple[int, int]] = set()
    lacks: dict[int, list[str]] = {}
    ended = {row["ledger_id"]: -1 for row in cluster.rows["fragments"]}
    for row in cluster.rows["fragments"]:
        if row["last_entry_id"] is not None:
            ended[row["ledger_id"]] = max(row["last_entry_id"], ended[row["ledger_id"]])
    for ledger in ledgers.values():
        for entry in range(len(ledger.assigned)):
            holders = {*ledger.holders(entry)}
            if ledger.write_quorum > 1 and len(holders - {D}) == 1:
                (one,) = holders - {D}
                lone[one] += 1
            if holders & {A, B} and len(holders - {A, B, D}) < ledger.ack_quorum:
                unsafe.add((ledger.ledger_id, entry))
            if entry <= ended[ledger.ledger_id]:
                lacks.setdefault(ledger.ledger_id, []).extend(one for one in ledger.missing(entry) if one != D)
    assert lacking == {one: (sorted({*bookies}), len(bookies)) for one, bookies in lacks.items() if bookies}
    told = {
        (row.ledger_id, entry)
        for row in rows
        if row.ledger_id < LEDGERS
        for entry in range(row.first_entry_id, row.last_entry_id + 1, row.step)
    }
    assert told == unsafe
    # Once the ids of all ledgers on a single bookie were one list, in one task. That bookie has two of each three entries of
    # the long ledger.
    lone["e"] = 2 * 10**8 // 3 + 1 + 10 * MANY
    assert dict(select(loss, "bookie_id", "entries")) == lone
    of_e = [row[1:] for row in select(loss, "bookie_id", "ledgers", "first_ledgers") if row[0] == "e"]
    assert of_e == [(MANY + 1, [LONE, *range(FIRST_OF_MANY, FIRST_OF_MANY + 19)])]


def histogram(ledgers: list[MadeUp]) -> list[tuple[Any, ...]]:
    """The histogram of these ledgers, of the long ledgers, and of the many."""
    prefix, entries, suffix = Counter[int](), Counter[int](), Counter[int]()
    of_factor = Counter[int]()
    for ledger in ledgers:
        factors = [len(ledger.holders(entry)) for entry in range(len(ledger.assigned))]
        of_factor.update({*factors})
        for entry, factor in enumerate(factors):
            entries[factor] += 1
            prefix[min(factors[: entry + 1])] += 1
            suffix[max(factors[entry:])] += 1
    entries += Counter({3: 10**8 - 8, 2: 8})
    prefix += Counter({3: 10, 2: 10**8 - 10})
    suffix += Counter({3: 10**8})
    # e alone has the second long ledger: entry 1 and each third entry after it are missing; the last entry, 99,999,999, is on
    # e.
    entries += Counter({1: 2 * 10**8 // 3 + 1, 0: 10**8 // 3})
    prefix += Counter({1: 1, 0: 10**8 - 1})
    suffix += Counter({1: 10**8})
    for counter in (entries, prefix, suffix):
        counter[1] += 10 * MANY
    of_factor.update([3, 2, 1, 0])
    of_factor[1] += MANY
    return [(one, prefix[one], entries[one], suffix[one], of_factor[one]) for one in sorted(entries)]


def add_long_ones(cluster: Cluster) -> None:
    """Striped ledgers of 10⁸ entries: d has most of the first, and e alone has the second."""
    cluster.rows["bookies"].append({"bookie_id": "e", "state": "writable"})
    last = 10**8 - 1
    cluster.ledger(STRIPED, last, {0: [A, B, C, D]}, write_quorum=3)
    for bookie in (A, B, C):
        cluster.holds(bookie, STRIPED, (0, last))
    cluster.holds(D, STRIPED, (0, 9), (20, last))
    cluster.ledger(LONE, last, {0: ["e", B, C]}, write_quorum=2)
    cluster.holds("e", LONE, (0, last))


def add_many(spark: SparkSession, tables: dict[str, DataFrame]) -> dict[str, DataFrame]:
    """Add many ledgers that only e holds."""
    many = spark.range(FIRST_OF_MANY, FIRST_OF_MANY + MANY).withColumnRenamed("id", "ledger_id")
    values = {
        "ledgers": {"metadata_version": 1, "state": "'CLOSED'", "ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2},
        "fragments": {
            "metadata_version": 1,
            "fragment": 0,
            "first_entry_id": 0,
            "last_entry_id": 9,
            "ensemble": "ARRAY('e', 'b', 'c')",
        },
        "index_ranges": {"bookie_id": "'e'", "first_entry_id": 0, "last_entry_id": 9},
    }
    added = {}
    for name, columns in values.items():
        rows = many.selectExpr("ledger_id", *(f"{value} AS {column}" for column, value in columns.items()))
        added[name] = tables[name].unionByName(rows, allowMissingColumns=True)
    return {**tables, **added}
