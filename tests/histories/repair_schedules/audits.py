"""Decisions of an auditor, against a twin that decides entry by entry.

Law: the exact check reports exactly the missing entries; a ledger is marked if it needs repair. An impossible record is refused
when it is read, and nothing is decided by it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

from bookspark.errors import ConfigurationError, InvalidArgumentError
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.audit_plan import absent, confirmed, mark_of_lost, merged
from bookspark.protocol.repair.replication_plan import lacks, repairs, unreadable
from tests.histories.repair_schedules.truth import ended, holds, wanted_of

Ranges = list[tuple[int, int]]


def audit(random: Random, record: LedgerMetadata) -> None:
    """Check every decision of an auditor, a bookie and a decommissioning about a ledger."""
    entries = ended(record) + (0 if record.closed else random.randrange(5))
    _exact_check(random, record, ended(record))
    _what_a_bookie_lacks(random, record, entries)
    _lost_bookies(random, record)
    _what_cant_be(random, record)


def _what_cant_be(random: Random, record: LedgerMetadata) -> None:
    ensemble, end = record.fragments[0].ensemble, record.last_entry_id
    behind = Loss(LossKind.ENTRIES, end + 2, end + 2, ensemble)
    open_one = replace(record, state=random.choice((LedgerState.OPEN, LedgerState.IN_RECOVERY)), accepted_loss=None)
    bad = random.choice((
        Loss(LossKind.ENTRIES, 1, 0, ensemble),
        Loss(LossKind.ENTRIES, -1, 0, ensemble),
        Loss(LossKind.END, -1, -1, ensemble),
        Loss(LossKind.FENCE, 0, 0, ensemble),
        Loss(LossKind.ENTRIES, 0, 0, ()),
        Loss(LossKind.ENTRIES, 0, 0, (*ensemble[1:], ensemble[1])),
    ))  # fmt: skip
    wrong: tuple[tuple[Any, dict[str, Any]], ...] = (
        (record, {"fragments": ()}),
        (record, {"fragments": (Fragment(1, ensemble),)}),
        (record, {"fragments": (Fragment(0, ensemble[1:]),)}),
        (record, {"fragments": (Fragment(0, (*ensemble[1:], ensemble[1])),)}),
        (record, {"write_quorum": record.ensemble_size + 1}),
        (record, {"ack_quorum": record.write_quorum + 1}),
        (replace(record, state=LedgerState.CLOSED), {"accepted_loss": AcceptedLoss("operator", 0, losses=(behind,))}),
        (AcceptedLoss("operator", 0), {"losses": (bad,)}),
        (open_one, {"accepted_loss": AcceptedLoss("operator", 0, losses=(Loss(LossKind.FENCE, -1, -1, ensemble),))}),
    )
    sound, fields = random.choice(wrong)
    try:
        replace(sound, **fields)
    except (ConfigurationError, InvalidArgumentError):
        return
    holds(False, f"a record that can't be is taken: {', '.join(fields)}")


def _exact_check(random: Random, record: LedgerMetadata, entries: int) -> None:
    bookie = random.choice(record.bookies())
    found: list[set[int]] = []
    told: list[Ranges] = []
    for _ in range(2):
        ranges = _some_ranges(random, entries)
        joined = merged(ranges)
        holds(_ids(joined) == _ids(ranges), "ranges were merged to others")
        holds(all(one[1] + 1 < other[0] for one, other in pairwise(joined)), "merged ranges touch")
        told.append(absent(record, bookie, ranges))
        found.append(wanted_of(record, bookie, entries) - _ids(ranges))
        holds(_ids(told[-1]) == found[-1], "the exact check finds other entries than those that are missing")
    both = confirmed(*told)
    holds(_ids(both) == found[0] & found[1], "what was missing at one look only counts, or what was at both does not")


def _what_a_bookie_lacks(random: Random, record: LedgerMetadata, entries: int) -> None:
    bookie = random.choice(record.bookies())
    held = merged(_some_ranges(random, entries))
    plan = list(lacks(record, bookie, held, entries - 1))
    missing = wanted_of(record, bookie, entries) - _ids(held)
    holds({i for first, last, _ in plan for i in range(first, last + 1)} == missing, "a bookie lacks other entries")


def _lost_bookies(random: Random, record: LedgerMetadata) -> None:
    names = record.bookies()
    lost = set(random.sample(names, random.randrange(min(4, len(names)))))
    named = [fragment for fragment in record.fragments if not lost.isdisjoint(fragment.ensemble)]
    mark = mark_of_lost(record, lost)
    holds((mark is not None) == bool(named), "a ledger is marked that has lost nothing, or one is not that has")
    if mark is not None:
        holds(set(mark.bookies) == lost & set(names), "other bookies are marked")
    told = [
        entry_id
        for repair in repairs(record, lost)
        for first, last, _ in unreadable(record, repair)
        for entry_id in range(first, last + 1)
    ]
    nobody = [entry_id for entry_id in range(ended(record)) if lost.issuperset(record.write_set_of(entry_id))]
    holds(sorted(told) == nobody, "other entries are told as unreadable than those whose whole write set is lost")


def _some_ranges(random: Random, entries: int) -> Ranges:
    """Ranges as in a bookie's logs: in any order, touching and overlapping."""
    found: Ranges = []
    for _ in range(random.randrange(6)):
        first = random.randrange(entries + 1)
        found.append((first, first + random.choice((0, 0, 1, 5, 50))))
    if found and random.random() < 0.5:
        found.append((found[0][1] + 1, found[0][1] + 2))
    random.shuffle(found)
    return found


def _ids(ranges: Ranges) -> set[int]:
    holds(all(first <= last for first, last in ranges), "a range is empty")
    return {i for first, last in ranges for i in range(first, last + 1)}
