"""What an auditor marks, ledger by ledger: the lost bookies of a ledger, and the entries that other bookies lack.

Law: the exact check compares all entries that are assigned to a bookie with all entries that it says it holds; nothing is
sampled. A bookie that was not asked, or did not answer completely, lacks nothing: Unknown is no finding. An entry that was
written a moment ago may still be on its way to the last of its bookies. So a finding is a suspicion until the same bookie lacks
the same entries at a second look, by metadata that was read before it. The fragment that is still written to belongs to its
writer.

Source: docs/decisions/delta-snapshots.md; ``AuditorBookieTask`` and ``AuditorCheckAllLedgersTask`` of BookKeeper, which reads
the first and the last entry of each fragment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.replication_plan import Ranges, lacks, repairs, waits_for_close
from bookspark.protocol.repair.underreplication_task import Mark, Reason

_RANGES_TOLD = 3


def mark_of_lost(metadata: LedgerMetadata, lost: Collection[str]) -> Mark | None:
    """The mark of a ledger that names lost bookies where copies are to be made; None if there is nothing to do."""
    if not waits_for_close(metadata, lost) and next(repairs(metadata, lost), None) is None:
        return None
    gone = sorted({bookie for fragment in metadata.fragments for bookie in fragment.ensemble} & set(lost))
    return Mark(metadata.ledger_id, dict.fromkeys(gone, Reason.LOST), f"{', '.join(gone)} lost")


def absent(metadata: LedgerMetadata, bookie: str, held: Ranges) -> list[tuple[int, int]]:
    """The entries that ``bookie`` should hold and does not, as ascending ranges. ``held``: what it said it holds, in any
    order."""
    return [(copy.first, copy.last) for copy in lacks(metadata, bookie, merged(held))]


def confirmed(first: Iterable[tuple[int, int]], second: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The entries that were absent both times, as ascending ranges."""
    again = list(second)
    return [
        (max(low, other[0]), min(high, other[1]))
        for low, high in first
        for other in again
        if other[0] <= high and low <= other[1]
    ]


def mark_of_lacking(ledger_id: int, bookie: str, ranges: list[tuple[int, int]]) -> Mark:
    """The mark of a ledger of which ``bookie`` lacks ``ranges``."""
    told = ", ".join(f"{low}" if low == high else f"{low}..{high}" for low, high in islice(ranges, _RANGES_TOLD))
    more = f" and {len(ranges) - _RANGES_TOLD} more ranges" if len(ranges) > _RANGES_TOLD else ""
    return Mark(ledger_id, {bookie: Reason.LACKS}, f"{bookie} lacks {told}{more}")


def mark_of_misplaced(ledger_id: int, bookies: Collection[str]) -> Mark:
    """The mark of a ledger that should have other bookies than these."""
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
