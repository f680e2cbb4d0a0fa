"""Changes of a cluster of any size by the planner, with every step counted independently.

Run as a program, it prints the figures of these changes: ``python -m tests.protocol.changes_at_scale 1000 1000000``.
"""

from __future__ import annotations

import random
import sys
import time
from typing import NamedTuple

from bookspark.protocol.changes.foresight import make
from bookspark.protocol.changes.observed import Fragments, Observed, ObservedBookie, Placed
from bookspark.protocol.changes.planner import decide, permitted
from bookspark.protocol.changes.steps import Move, Takes
from bookspark.protocol.changes.wanted import Wanted, begin

SIZES = ((3, 3, 2), (3, 2, 1), (5, 3, 2), (3, 3, 2))


class Figures(NamedTuple):
    """Figures of a change. Bytes are bytes of entries."""

    steps: int
    taken_down: int
    moves: int
    moved_bytes: int
    least_copies_over_ack_quorum: int
    """The fewest copies above the ack quorum of any entry of a bookie that was down."""
    most_bytes: float
    """The most bytes on a bookie, as a multiple of the mean."""
    fewest_bytes: float
    seconds: float


def cluster(bookies: int, ledgers: int, seed: int = 1, hosts: int = 0) -> Observed:
    """Ledgers of random sizes on random ensembles: one in a hundred is open, one in ten has two fragments."""
    drawn = random.Random(seed)
    names = [f"bookie-{k:04}" for k in range(bookies)]

    def fragments() -> list[Placed]:
        found = []
        for ledger_id in range(ledgers):
            size, write_quorum, ack_quorum = SIZES[ledger_id % len(SIZES)]
            ensemble = tuple(drawn.sample(names, size))
            is_open = ledger_id % 100 == 0
            shape = ledger_id, 0, ensemble, write_quorum, ack_quorum, is_open
            found.append(Placed(*shape, 0 if is_open else drawn.randrange(1_000, 20_000_000)))
            if ledger_id % 10 == 5:
                other = tuple(drawn.sample(names, size))
                found.append(
                    Placed(ledger_id, 1000, other, write_quorum, ack_quorum, False, drawn.randrange(1_000, 2_000_000))
                )
        return found

    states = {
        name: ObservedBookie(name, version="1", host=f"host-{k % hosts}" if hosts else "")
        for k, name in enumerate(names)
    }
    return Observed(states, Fragments(fragments()))


def change(wanted: Wanted, seen: Observed) -> Figures:
    """Carry out the change on ``seen``. Raises AssertionError for a step that removes too many copies, or if it does not end."""
    began = time.process_time()
    progress = begin(wanted, seen)
    steps = taken = moves = moved = 0
    margin = 99
    while True:
        decision = decide(wanted, progress, seen, 4096)
        if not decision.steps:
            assert decision.complete, decision
            break
        for step in decision.steps:
            if not isinstance(step, Move) and step is not decision.steps[0]:
                continue
            progress = progress.begun(step)
            if isinstance(step, Takes):
                assert not permitted(wanted, progress, seen, step)
                margin = min(margin, _margin(seen, step.bookie_id))
                taken += 1
            make(seen, step)
            progress = progress.ended(step)
            steps += 1
            if isinstance(step, Move):
                moves += 1
                moved += step.byte_count
    loads = [seen.fragments.bytes_of.get(name, 0) for name in seen.bookies]
    mean = sum(loads) / len(loads)
    seconds = time.process_time() - began
    return Figures(steps, taken, moves, moved, margin, max(loads) / mean, min(loads) / mean, seconds)


def _margin(seen: Observed, name: str) -> int:
    """Copies above the ack quorum, counted entry by entry without the planner's arithmetic."""
    margin = 99
    for one in seen.fragments.of(name):
        assert not one.open, f"{name} goes down under the open ledger {one.ledger_id}"
        size = len(one.ensemble)
        for entry_id in range(size):
            holders = {one.ensemble[(entry_id + k) % size] for k in range(one.write_quorum)}
            if name in holders:
                live = sum(seen.bookies[b].counts for b in holders - {name})
                assert live >= one.ack_quorum, f"ledger {one.ledger_id} would have {live} copies"
                margin = min(margin, live - one.ack_quorum)
    return margin


def upgrade(bookies: int, ledgers: int) -> Figures:
    seen = cluster(bookies, ledgers)
    return change(Wanted(restart=frozenset(seen.bookies), version="2"), seen)


def shrink(bookies: int, ledgers: int) -> tuple[Figures, float]:
    """Remove a tenth of the bookies. Also returns the moved bytes as a multiple of the necessary bytes."""
    seen = cluster(bookies, ledgers)
    leaving = frozenset(sorted(seen.bookies)[::10])
    least = sum(seen.fragments.bytes_of[name] for name in leaving)
    figures = change(Wanted(remove=leaving), seen)
    assert not leaving & seen.bookies.keys()
    return figures, figures.moved_bytes / least


def grow(bookies: int, ledgers: int) -> tuple[Figures, float]:
    """Add a tenth more bookies. The necessary bytes are those above the mean."""
    seen = cluster(bookies, ledgers)
    for k in range(bookies // 10):
        seen.bookies[f"new-{k:04}"] = ObservedBookie(f"new-{k:04}", version="1")
    mean = sum(seen.fragments.bytes_of.values()) / len(seen.bookies)
    least = sum(max(0.0, load - mean) for load in seen.fragments.bytes_of.values())
    figures = change(Wanted(balance=True), seen)
    return figures, figures.moved_bytes / least


def move(bookies: int, ledgers: int) -> tuple[Figures, float]:
    """Move one bookie's copies to a new bookie."""
    seen = cluster(bookies, ledgers)
    old = min(seen.bookies)
    seen.bookies["new"] = ObservedBookie("new", version="1")
    least = seen.fragments.bytes_of[old]
    figures = change(Wanted(move={old: ("new",)}), seen)
    return figures, figures.moved_bytes / least


if __name__ == "__main__":
    counts = int(sys.argv[1]), int(sys.argv[2])
    print("upgrade", upgrade(*counts), flush=True)
    for one in (shrink, grow, move):
        print(one.__name__, *one(*counts), flush=True)
