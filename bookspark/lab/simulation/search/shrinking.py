"""Making a schedule that ends in a violation short.

Law: what is left ends in a violation of the same invariant, and no single move can be taken out of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookspark.lab.simulation.search import calm
from bookspark.lab.simulation.state import Move, State
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World


def shrink(world: World, moves: Sequence[Move], violation: Violation) -> list[Move]:
    """Take out moves as long as the same invariant is violated: halves first, then ever smaller pieces, until none can go. What
    goes on for ever (``calm``) stays as it is."""
    kept = list(moves)
    if _replay(world, kept, violation.invariant) is None:
        return kept
    size = max(1, len(kept) // 2)
    while True:
        start, shorter = 0, False
        while start < len(kept):
            tried = _replay(world, kept[:start] + kept[start + size :], violation.invariant)
            if tried is not None and len(tried) < len(kept):
                kept, shorter = tried, True
            else:
                start += size
        if size > 1:
            size //= 2
        elif not shorter:
            return kept


def _replay(world: World, moves: Sequence[Move], invariant: str) -> list[Move] | None:
    """Those of ``moves`` that are possible, up to the violation; None if there is none."""
    state: State = world.initial
    done: list[Move] = []
    for move in moves:
        if move not in world.moves(state) and not calm.is_calms_own(world, state, move):
            continue
        state = world.apply(state, move)
        done.append(move)
        found = world.violation(state)
        if found is not None:
            return done if found.invariant == invariant else None
    return calm.until_stuck(world, done) if invariant == calm.INVARIANT else None
