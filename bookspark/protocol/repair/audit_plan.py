"""An auditor's plan: lost bookies, and marks of ledgers with lost bookies or lacking entries.

Law: the exact check compares all entries assigned to a bookie with all entries that it holds; nothing is sampled. A bookie
without a complete answer lacks nothing: Unknown proves nothing. A recent entry may still be on its way to a bookie. So a lack is
a suspicion until a second look, with metadata read before it, shows the same lack. A fragment that still gets entries belongs to
its writer.

Source: docs/decisions/delta-snapshots.md; ``AuditorBookieTask`` and ``AuditorCheckAllLedgersTask`` of BookKeeper, which reads
the first and the last entry of each fragment.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.replication_plan import Ranges, assigned, lacks, missing, repairs, waits_for_close
from bookspark.protocol.repair.underreplication_task import Mark, Reason

# -- Lost bookies: an auditor's conclusion from registrations that come and go.


class LostBookies:
    """``to_mark``: lost bookies whose ledgers need tasks, until they are ``marked``.

    Law: a registered bookie, writable or read-only, is not lost. An absent bookie is lost after a delay, so a rolling restart
    costs no copy. If a second one goes away while a first is missing, the delay ends for all, because the next one could hold the
    last copy. That second one must have been *seen* to go: bookies absent at a new auditor's first look may be starting at the
    same time, and have the whole delay. While no bookie at all is registered, nothing is decided: the view may be lost, and
    copies have no target. ::

        registered ──gone──► missing ──delay, or a second one seen to go──► lost
            ▲                   │                                            │
            └────── back ───────┴─────────────────── back ───────────────────┘

    Time is an argument, in seconds of any monotonic clock. Source: ``AuditorBookieCheckTask`` and ``Auditor`` of BookKeeper
    (``lostBookieRecoveryDelay``), which does not distinguish a first look."""

    def __init__(self, delay_seconds: float) -> None:
        self.delay_seconds = delay_seconds
        """Time that a missing bookie may stay away. May be set at any time, for the next look."""
        self.lost: frozenset[str] = frozenset()
        self.to_mark: frozenset[str] = frozenset()
        self._missing: dict[str, float] = {}
        self._registered: frozenset[str] = frozenset()
        self._looked_at = -math.inf

    def look(self, now: float, registered: Collection[str], expected: Collection[str]) -> None:
        """``registered``: read-only bookies too. ``expected``: the bookies that may hold entries.

        Raises ValueError, and changes nothing, if ``now`` is before the previous look.
        """
        if now < self._looked_at:
            raise ValueError(f"a look at {now:g} s after one at {self._looked_at:g} s: the clock has gone back")
        self._looked_at = now
        if not registered:
            return
        seen_to_go = self._registered - set(registered)
        self._registered = frozenset(registered)
        absent = (set(expected) | seen_to_go | self._missing.keys() | self.lost) - self._registered
        self._missing = {bookie: self._missing.get(bookie, now) for bookie in sorted(absent - self.lost)}
        at_once = len(self._missing) > 1 and not seen_to_go.isdisjoint(self._missing)
        newly = {bookie for bookie, since in self._missing.items() if at_once or now - since >= self.delay_seconds}
        for bookie in newly:
            del self._missing[bookie]
        self.to_mark = (self.to_mark & absent) | newly
        # A decommissioned bookie is not expected any more.
        kept = self.lost & absent & (self.to_mark | set(expected))
        self.lost = kept | newly

    def marked(self, bookies: Collection[str]) -> None:
        """The ledgers of these bookies have tasks. Raises ValueError, and changes nothing, for a bookie outside of
        ``to_mark``."""
        others = set(bookies) - self.to_mark
        if others:
            raise ValueError(f"{', '.join(sorted(others))} marked, but never reported as lost")
        self.to_mark -= set(bookies)

    def lost_at(self) -> dict[str, float]:
        """Missing bookies, each with the time of its loss unless it comes back."""
        return {bookie: since + self.delay_seconds for bookie, since in self._missing.items()}


# -- Marks of ledgers.


_RANGES_TOLD = 3


def mark_of_lost(metadata: LedgerMetadata, lost: Collection[str]) -> Mark | None:
    """None if there is nothing to copy."""
    if not waits_for_close(metadata, lost) and next(repairs(metadata, lost), None) is None:
        return None
    gone = sorted({bookie for fragment in metadata.fragments for bookie in fragment.ensemble} & set(lost))
    return Mark(metadata.ledger_id, dict.fromkeys(gone, Reason.LOST), f"{', '.join(gone)} lost")


def mark_of_few_copies(metadata: LedgerMetadata) -> Mark | None:
    """None if the ledger has all wanted copies, or is not closed yet."""
    if not metadata.lacks_copies:
        return None
    return Mark(
        metadata.ledger_id,
        {},
        f"it has {metadata.write_quorum} of {metadata.copies_wanted} copies: it was made while fewer bookies were there",
    )


def absent(metadata: LedgerMetadata, bookie: str, held: Ranges) -> list[tuple[int, int]]:
    """Missing entries of ``bookie``, as ascending ranges. ``held``: its own list, in any order."""
    return [(copy.first, copy.last) for copy in lacks(metadata, bookie, merged(held))]


def confirmed(first: Iterable[tuple[int, int]], second: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Entries absent both times, as ascending ranges."""
    again = list(second)
    return [
        (max(low, other[0]), min(high, other[1]))
        for low, high in first
        for other in again
        if other[0] <= high and low <= other[1]
    ]


def mark_of_lacking(ledger_id: int, bookie: str, ranges: list[tuple[int, int]]) -> Mark:
    told = ", ".join(f"{low}" if low == high else f"{low}..{high}" for low, high in islice(ranges, _RANGES_TOLD))
    more = f" and {len(ranges) - _RANGES_TOLD} more ranges" if len(ranges) > _RANGES_TOLD else ""
    return Mark(ledger_id, {bookie: Reason.LACKS}, f"{bookie} lacks {told}{more}")


def marks_at_close(closed: LedgerMetadata, failed: Mapping[str, Ranges]) -> list[Mark]:
    """Marks by who closed the ledger, for the entries that it could not add: ``failed``, by bookie. Only what the closed record
    assigns to the bookie counts. A mark too many costs the repair a look."""
    marks = []
    for bookie, ranges in failed.items():
        mine = list(assigned(closed, bookie))
        if lacking := list(missing(mine, missing(mine, ranges))):
            marks.append(mark_of_lacking(closed.ledger_id, bookie, lacking))
    return marks


def marks_after_recovery(closed: LedgerMetadata, failed: Collection[str]) -> list[Mark]:
    """Marks by who recovered the ledger. ``failed``: bookies that could not be fenced, or refused an entry. Recovery asks them
    nothing about earlier entries, so they may lack any of the last fragment."""
    mine = ((bookie, list(assigned(closed, bookie))) for bookie in closed.last_fragment.ensemble if bookie in failed)
    start = closed.last_fragment.first_entry_id
    ranges = ((bookie, [(max(low, start), high) for low, high in held if high >= start]) for bookie, held in mine)
    return [
        Mark(
            closed.ledger_id,
            {bookie: Reason.LACKS},
            f"{bookie} did not answer when the ledger was recovered, and may lack entries from {found[0][0]} on",
        )
        for bookie, found in ranges
        if found
    ]


def mark_of_misplaced(ledger_id: int, bookies: Collection[str]) -> Mark:
    """The mark of a ledger that should have other bookies."""
    return Mark(ledger_id, dict.fromkeys(bookies, Reason.MISPLACED), f"{', '.join(bookies)} misplaced")


def merged(ranges: Ranges) -> list[tuple[int, int]]:
    """The same ids, as ascending ranges that don't touch."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(result[-1][1], high)
        else:
            result.append((low, high))
    return result
