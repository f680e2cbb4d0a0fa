"""The sync cursor of a VD ledger on one bookie: its synced entries, as one number.

VD is volatile durability (BP-14): an add to a VD ledger is acknowledged before it is synced. LAC is the last add confirmed.

Law: LastAddSynced is the highest id such that the bookie has synced every id up to it that is *assigned to it*. It covers nothing
added after the sync began, and a LAC never moves it: guaranteed write quorum and ensemble changes rely on this bookie's copies
(docs/decisions/relaxed-durability.md).

A bookie's assignment (``Assignment``, part of each request) depends on its position in the ensemble, and contains no id below the
fragment in which the bookie joined. So a striped ledger's cursor steps over ids of other bookies. A bookie that left and came
back at another position gets a new assignment: its cursor starts again, from the ids synced here by then. A late request of the
earlier stay changes nothing.

Source: BP-14, "Changes to Bookies", with striping, which BP-14 leaves as future work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY


class Assignment(NamedTuple):
    """The ids of one bookie: from ``first_entry_id`` on, those whose write set has ``position``."""

    first_entry_id: int
    ensemble_size: int = 1
    write_quorum: int = 1
    position: int = 0

    def holds(self, entry_id: int) -> bool:
        """Is ``entry_id`` in the stripe, whatever ``first_entry_id`` is?"""
        return (self.position - entry_id) % self.ensemble_size < self.write_quorum

    def next_held(self, entry_id: int) -> int:
        while not self.holds(entry_id):
            entry_id += 1
        return entry_id


def assignment(first_entry_id: int, ensemble_size: int, write_quorum: int, position: int) -> Assignment:
    """The assignment of ``position``; all positions of an unstriped ensemble share the same."""
    if ensemble_size == write_quorum:
        return Assignment(first_entry_id)
    return Assignment(first_entry_id, ensemble_size, write_quorum, position)


class SyncCursor:
    """``ranges``: the synced ids after the cursor, as sorted ranges with gaps between them."""

    __slots__ = ("assignment", "last_add_synced", "ranges")

    def __init__(self, synced: Iterable[tuple[int, int]] = ()) -> None:
        """``synced``: the id ranges on disk at boot, all synced by the replay."""
        self.assignment: Assignment | None = None
        self.last_add_synced = NO_ENTRY
        self.ranges: tuple[tuple[int, int], ...] = ()
        for first, last in synced:
            self._insert(first, last)

    def assign(self, new: Assignment) -> bool:
        """Take the assignment ``new`` of a request; one older than the cursor's changes nothing. True if the cursor starts again:
        the caller then reports every synced range once more (``synced``)."""
        old = self.assignment
        again = False
        if old is not None:
            if new.first_entry_id < old.first_entry_id:
                return False
            if new[1:] != old[1:]:
                # Cursor and ranges step over ids of other bookies, which may be this bookie's now.
                self.last_add_synced, self.ranges, again = NO_ENTRY, (), True
        self.assignment = new
        self.last_add_synced = max(self.last_add_synced, new.first_entry_id - 1)
        self._advance(new)
        return again

    def synced(self, first: int, last: int) -> None:
        """``first..last`` were here when a sync began, and are synced. A duplicate counts too, once the kept copy is synced."""
        if last > self.last_add_synced:
            self._insert(first, last)
            if self.assignment is not None:
                self._advance(self.assignment)

    def last_add_synced_for(self, asked: Assignment) -> int:
        """LastAddSynced for a request with the assignment ``asked``; ``NO_ENTRY`` if the cursor has another by now."""
        return self.last_add_synced if asked == self.assignment else NO_ENTRY

    def copy(self) -> SyncCursor:
        new = SyncCursor()
        new.assignment, new.last_add_synced, new.ranges = self.key()
        return new

    def key(self) -> tuple[Assignment | None, int, tuple[tuple[int, int], ...]]:
        return self.assignment, self.last_add_synced, self.ranges

    def _advance(self, mine: Assignment) -> None:
        end = self.last_add_synced
        passed = 0
        for first, last in self.ranges:
            if first > mine.next_held(end + 1):
                break
            end = max(end, last)
            passed += 1
        self.last_add_synced = mine.next_held(end + 1) - 1
        self.ranges = self.ranges[passed:]

    def _insert(self, first: int, last: int) -> None:
        """Add a range, joined with ranges that it touches or that only ids of other bookies separate from it."""
        mine = self.assignment or Assignment(0)
        joined: list[tuple[int, int]] = []
        for low, high in sorted((*self.ranges, (first, last))):
            if joined and low <= mine.next_held(joined[-1][1] + 1):
                joined[-1] = (joined[-1][0], max(joined[-1][1], high))
            else:
                joined.append((low, high))
        self.ranges = tuple(joined)
