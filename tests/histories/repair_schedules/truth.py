"""The true state, checked from outside, entry by entry: slow and simple where the protocol has arithmetic.

Law: nothing here uses ``bookspark.protocol.repair``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.entry_copying import NotCopied
from tests.histories.repair_schedules.drawing import Bookie, accepted_losses

ROOM_BYTES = 40 << 20
"""More bytes than all outstanding reads may request. (Entries skipped by a sparse read count here, about half.)"""


class Broken(AssertionError):
    """A law is broken."""


def holds(law: bool, what: str) -> None:
    if not law:
        raise Broken(what)


def ended(record: LedgerMetadata) -> int:
    """The number of entries in fragments that get no more entries."""
    return record.last_entry_id + 1 if record.closed else record.last_fragment.first_entry_id


def wanted_of(record: LedgerMetadata, bookie: str, entries: int) -> set[int]:
    """The entries below ``entries`` that the bookie must hold."""
    lost = {entry_id for entry_id, name in accepted_losses(record) if name == bookie}
    return {i for i in range(entries) if bookie in record.write_set_of(i)} - lost


def check_told(
    found: Collection[NotCopied], record: LedgerMetadata, bookies: Mapping[str, Bookie], wanted: Mapping[str, set[int]]
) -> set[tuple[int, str]]:
    """Check that uncopied entries were due, and lost entries have no possible source. Returns each entry with its target."""
    told: set[tuple[int, str]] = set()
    for one in found:
        holds(bool(one.targets) and one.first <= one.last, "nothing is told as not copied, or to nobody")
        for entry_id in range(one.first, one.last + 1):
            for target in one.targets:
                holds(entry_id in wanted[target], "an entry is told as not copied that nobody wanted")
                told.add((entry_id, target))
            others = set(record.write_set_of(entry_id)) - set(one.targets)
            never = all(bookies[name].never_gives(entry_id) for name in others)
            holds(never or not one.lost, "an entry is told as lost that a bookie may have")
    return told


def check_named(
    before: LedgerMetadata, after: LedgerMetadata, replaced: Collection[str], bookies: Mapping[str, Bookie]
) -> None:
    """Check that a repair's record names existing copies in place of replaced bookies, and changes nothing else."""
    same = replace(after, fragments=before.fragments, accepted_loss=before.accepted_loss)
    holds(same == before, "a repair changed more than fragments")
    holds(ended(before) == ended(after), "a repair moved the end of what gets no more entries")
    starts = [fragment.first_entry_id for fragment in after.fragments]
    holds(starts == sorted(set(starts)), "fragments are out of order")
    holds(after != before, "a record is written that is there already")
    known = {fragment.first_entry_id for fragment in before.fragments}
    split = all(
        one.ensemble != two.ensemble for one, two in pairwise(after.fragments) if two.first_entry_id not in known
    )
    holds(split, "a fragment is split for nothing")
    holds(not after.closed or starts[-1] <= max(0, after.last_entry_id), "a fragment begins behind the end")
    holds(before.closed or before.last_fragment == after.last_fragment, "a repair changed the writer's fragment")
    was, now = set(accepted_losses(before)), set(accepted_losses(after))
    expected = set(was)
    for entry_id in range(ended(before)):
        old, new = before.fragment_of(entry_id).ensemble, after.fragment_of(entry_id).ensemble
        for one, other in zip(old, new, strict=True):
            if one != other:
                holds(one in replaced, "a bookie was replaced that is well")
                if (entry_id, one) in was:
                    expected = expected - {(entry_id, one)} | {(entry_id, other)}
                elif one in before.write_set_of(entry_id):
                    holds(entry_id in bookies[other].held, "a copy is named that is not there")
    holds(now == expected, "an accepted loss was changed")
    if before.accepted_loss != after.accepted_loss and after.accepted_loss is not None:
        neighbours = pairwise(after.accepted_loss.losses)
        apart = all(
            (one.kind, one.bookies, one.last + 1) != (two.kind, two.bookies, two.first) for one, two in neighbours
        )
        holds(apart, "two losses are one")
