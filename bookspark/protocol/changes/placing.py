"""Which copies are moved, and to which bookie.

Law: a copy is moved once. It goes to the bookie with the fewest bytes that is not in its ensemble, and that shares host and rack
with no more of the other copies than the one it leaves. So what is moved is what the leaving bookies hold, or what the fullest
ones hold above the average, and no more. Bytes are those that the records name, as if all bookies had the same room. A fragment
that may still get entries is not moved: its writer replaces the bookie.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator

from bookspark.protocol.changes.observed import Observed, Placed
from bookspark.protocol.changes.steps import Move

EVEN_PART = 0.05
"""A bookie with up to this part more or less than the average is left alone."""


def evacuation(
    observed: Observed,
    source: str,
    fragments: Iterable[Placed],
    candidates: Collection[str],
    count_max: int,
    preferred: Collection[str] = (),
) -> tuple[list[Move], Placed | None]:
    """Moves of ``fragments`` away from ``source`` to ``candidates``, at most ``count_max``; ``preferred`` ones come first.

    Returns the moves, and a fragment for which there is no bookie, if there is one."""
    heap = [(bookie not in preferred, observed.fragments.bytes_of.get(bookie, 0), bookie) for bookie in candidates]
    heapq.heapify(heap)
    moves: list[Move] = []
    stuck: Placed | None = None
    for one in fragments:
        if len(moves) == count_max:
            break
        if one.open:
            continue
        passed = []
        best: tuple[tuple[int, int], tuple[bool, int, str]] | None = None
        now = _shared(observed, source, one, source)
        while heap:
            candidate = heapq.heappop(heap)
            passed.append(candidate)
            if candidate[2] in one.ensemble:
                continue
            shared = _shared(observed, candidate[2], one, source)
            if best is None or shared < best[0]:
                best = shared, candidate
            if shared <= now:
                break
        chosen = None if best is None else best[1]
        for candidate in passed:
            grown = one.byte_count if candidate is chosen else 0
            heapq.heappush(heap, (candidate[0], candidate[1] + grown, candidate[2]))
        if chosen is None:
            stuck = one
            continue
        moves.append(Move(one.ledger_id, one.first_entry_id, source, chosen[2], one.byte_count))
    return moves, stuck


def levelling(observed: Observed, candidates: Collection[str], count_max: int) -> list[Move]:
    """Moves from the fullest of ``candidates`` to the emptiest, until all are about even; at most ``count_max``."""
    loads = {bookie: observed.fragments.bytes_of.get(bookie, 0) for bookie in candidates}
    if len(loads) < 2:
        return []
    mean = sum(loads.values()) / len(loads)
    low, high = mean * (1 - EVEN_PART), mean * (1 + EVEN_PART)
    empty = [(load, bookie) for bookie, load in loads.items()]
    full = [(-load, bookie) for bookie, load in loads.items()]
    heapq.heapify(empty)
    heapq.heapify(full)
    pieces: dict[str, Iterator[Placed]] = {}
    moved: set[tuple[int, int]] = set()
    moves: list[Move] = []
    while empty and full and len(moves) < count_max:
        load, receiver = empty[0]
        if load != loads[receiver]:
            heapq.heapreplace(empty, (loads[receiver], receiver))
            continue
        negative, donor = full[0]
        if -negative != loads[donor]:
            heapq.heapreplace(full, (-loads[donor], donor))
            continue
        if loads[receiver] >= low and loads[donor] <= high:
            break
        left = pieces.setdefault(donor, iter(list(observed.fragments.of(donor))))
        found = _fitting(observed, left, donor, receiver, loads[donor] - loads[receiver], moved)
        if found is None:
            # All that it has was looked at: it stays as it is for now. The next look begins anew.
            heapq.heappop(full)
            continue
        moved.add((found.ledger_id, found.first_entry_id))
        moves.append(Move(found.ledger_id, found.first_entry_id, donor, receiver, found.byte_count))
        loads[donor] -= found.byte_count
        loads[receiver] += found.byte_count
    return moves


def _fitting(
    observed: Observed,
    pieces: Iterator[Placed],
    donor: str,
    receiver: str,
    bytes_max: int,
    moved: Collection[tuple[int, int]],
) -> Placed | None:
    """The next of the donor's fragments that makes the two more even, and loses no spread. What is passed over is not looked at
    again by this call's levelling."""
    for one in pieces:
        if one.open or not 0 < one.byte_count < bytes_max or receiver in one.ensemble:
            continue
        if (one.ledger_id, one.first_entry_id) in moved:
            continue
        if _shared(observed, receiver, one, donor) <= _shared(observed, donor, one, donor):
            return one
    return None


def _shared(observed: Observed, bookie_id: str, fragment: Placed, leaving: str) -> tuple[int, int]:
    """With how many of the fragment's other copies a copy on this bookie would share its host, and its rack."""
    here = observed.bookies.get(bookie_id)
    if here is None:
        return 0, 0
    others = [observed.bookies[b] for b in fragment.ensemble if b not in (leaving, bookie_id) and b in observed.bookies]
    return (
        sum(bool(here.host) and here.host == other.host for other in others),
        sum(bool(here.rack) and here.rack == other.rack for other in others),
    )
