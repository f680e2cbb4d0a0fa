"""All steps of a change, if nothing else happens to the cluster meanwhile: the output of a dry run.

Law: the steps are those of ``planner.decide``, repeated on a copy of the observed cluster. The only assumptions: each step
succeeds, writers replace a read-only bookie, and a restarted bookie comes back whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bookspark.protocol.changes.observed import Observed, Placed
from bookspark.protocol.changes.planner import decide
from bookspark.protocol.changes.steps import (
    Decision,
    Forget,
    Move,
    ReplaceDisk,
    Restart,
    Resume,
    SetReadOnly,
    Step,
    Stop,
)
from bookspark.protocol.changes.wanted import Progress, Wanted

_DECISIONS_MAX = 1_000_000


def foreseen(
    wanted: Wanted, progress: Progress, observed: Observed, moves_max: int = 4096
) -> Iterator[Step | Decision]:
    """The steps in their order, then the decision that ends them: complete, waiting or refusing."""
    seen = Observed(
        dict(observed.bookies),
        observed.fragments.copy(),
        observed.lacking,
        observed.unreadable,
        observed.autorecovery_enabled,
    )
    for _ in range(_DECISIONS_MAX):
        decision = decide(wanted, progress, seen, moves_max)
        if not decision.steps:
            yield decision
            return
        for step in decision.steps:
            if isinstance(step, Move) or step is decision.steps[0]:
                progress = progress.begun(step)
                make(seen, step)
                progress = progress.ended(step)
                yield step
    raise AssertionError("a change has no end")


def make(seen: Observed, step: Step) -> None:
    """Change ``seen`` as a successful step would."""
    if isinstance(step, Move):
        now = (_swapped(one, step) for one in seen.fragments.of_ledger(step.ledger_id))
        seen.fragments.put(step.ledger_id, list(now))
        return
    name = step.bookie_id
    bookie = seen.bookies.get(name)
    if bookie is None:
        return
    match step:
        case SetReadOnly():
            seen.bookies[name] = replace(bookie, read_only=True)
            for one in list(seen.fragments.open_on(name)):
                _replace_in_open(seen, one, name)
        case Restart():
            version = step.version or bookie.version
            seen.bookies[name] = replace(
                bookie, registered=True, settled=True, incarnation=bookie.incarnation + 1, version=version
            )
        case ReplaceDisk():
            seen.bookies[name] = replace(
                bookie,
                registered=True,
                settled=True,
                incarnation=bookie.incarnation + 1,
                lossy_boot=bookie.lossy_boot + 1,
            )
        case Resume():
            seen.bookies[name] = replace(bookie, read_only=False)
        case Stop():
            seen.bookies[name] = replace(bookie, registered=False)
        case Forget():
            del seen.bookies[name]


def _swapped(fragment: Placed, move: Move) -> Placed:
    if fragment.first_entry_id != move.first_entry_id or fragment.open:
        return fragment
    return fragment._replace(ensemble=tuple(move.target if b == move.source else b for b in fragment.ensemble))


def _replace_in_open(seen: Observed, fragment: Placed, name: str) -> None:
    """The writer's next entries go to another bookie; earlier ones stay."""
    others = [b for b, one in seen.bookies.items() if one.writable and b not in fragment.ensemble]
    if not others:
        return
    chosen = min(others, key=lambda b: (seen.fragments.bytes_of.get(b, 0), b))
    every = [one for one in seen.fragments.of_ledger(fragment.ledger_id) if one != fragment]
    ensemble = tuple(chosen if b == name else b for b in fragment.ensemble)
    closed = fragment._replace(open=False)
    following = fragment._replace(first_entry_id=fragment.first_entry_id + 1, ensemble=ensemble)
    seen.fragments.put(fragment.ledger_id, [*every, closed, following])
