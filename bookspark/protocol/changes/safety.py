"""May a bookie go away now?

Law: no step of a change leaves an entry with fewer than its ack quorum of copies that count. No step takes a bookie from under a
ledger that is being written, unless the operator allowed an ack quorum there. A copy counts if its bookie is registered, answers,
has nothing in limbo, is not known to lack entries of the ledger, and is not being taken down itself. An entry with too few copies
for other reasons keeps its last ones: no bookie with such a copy goes away.

Source: bookkeeper-overview ("Ack Quorums"); ``questions/safe_to_stop.sql`` is the same question for a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection

from bookspark.protocol.changes.observed import Observed, Placed
from bookspark.protocol.ledger.quorum import write_sets


def left_over(fragment: Placed, gone: Collection[str]) -> int:
    """The fewest copies of any entry of the fragment outside of ``gone``."""
    there = [bookie not in gone for bookie in fragment.ensemble]
    if len(there) == fragment.write_quorum:
        return sum(there)
    return min(sum(there[at] for at in window) for window in write_sets(len(there), fragment.write_quorum))


def is_in_the_way(
    observed: Observed,
    bookie_id: str,
    away: Collection[str],
    below_write_quorum: bool = False,
) -> str:
    """The reason why the bookie must stay up for now, in words, or "".

    ``away``: bookies being taken down, or possibly down at the same time."""
    bookie = observed.bookies[bookie_id]
    if not bookie.registered:
        return ""
    for one in observed.fragments.of(bookie_id):
        if one.open and not below_write_quorum:
            return (
                f"ledger {one.ledger_id} is being written to {bookie_id}: its writer replaces a read-only bookie at its next "
                f"append; `bookspark ledger recover {one.ledger_id}` closes it if nobody writes it any more"
            )
        gone = {b for b in one.ensemble if b == bookie_id or b in away or not observed.counts(b, one.ledger_id)}
        left = left_over(one, gone)
        if left < one.ack_quorum:
            others = [f"{b} {_why_not(observed, b, one.ledger_id, away)}" for b in sorted(gone - {bookie_id})]
            return (
                f"without {bookie_id}, entries of ledger {one.ledger_id} would have {left} of the {one.ack_quorum} copies that "
                "are its ack quorum" + (f": {', '.join(others)}" if others else "")
            )
    return ""


def _why_not(observed: Observed, bookie_id: str, ledger_id: int, away: Collection[str]) -> str:
    bookie = observed.bookies.get(bookie_id)
    if bookie is None or not bookie.registered:
        return "is down"
    if not bookie.settled:
        return bookie.unsettled_why
    if bookie_id in observed.lacking.get(ledger_id, ()):
        return "lacks entries of it, which autorecovery copies, if it runs"
    assert bookie_id in away
    return "is being taken down"
