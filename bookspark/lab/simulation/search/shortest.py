"""The shortest story of a violation that a random schedule found, where a search can still find it.

Law: what is returned ends in a violation of the same invariant, under the options that the user gave, and is never longer than
what is known. It depends on the story alone, in any process: the search ends by a number of states, never by time.

Shrinking takes moves out of one schedule, and what is left may still go the long way. So all orders are searched, breadth first,
in worlds that have no more than what the story used (its entries, crashes, clients, spares, …): the smallest world first, then
those that have one thing more. A story of such a world is a shortest one of it, and then only shorter ones count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from bookspark.lab.simulation.clients.client import Begin
from bookspark.lab.simulation.clients.reader import BeginWaiting
from bookspark.lab.simulation.clients.recoverer import BeginAccepting
from bookspark.lab.simulation.search import calm
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.state import CLIENTS, CRASHES, DEPARTURES, DUPLICATES, LOSSES, Move
from bookspark.lab.simulation.world import World
from bookspark.protocol.ledger.actions import BookiesChosen, DeadlinePassed
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer_events import Abandon, Append, Close, HeldUp, Idle, TellLac

STATES_MAX = 20_000
"""A world that needs more is passed over."""
_STATES_MAX_IN_ALL = 400_000
"""Half a minute of processor time, if no shorter story is found."""
_STATES_AFTER = 10_000
"""A shorter story is mostly the first one that is found: then so many states more are looked at than it took."""
_BUDGETS = {"crashes": CRASHES, "losses": LOSSES, "duplicates": DUPLICATES, "departures": DEPARTURES}
_QUORUMS = ("ensemble", "write_quorum", "ack_quorum")
_SIZES = ((2, 2, 1), (2, 2, 2), (3, 3, 2))
_LEAST: dict[str, int] = {"entries": 1, "reads": 1}
_COUNTED = (
    "entries",
    "reads",
    "spares",
    "recoverers",
    "readers",
    "replicators",
    "hold_ups",
    "explicit_lacs",
    *_BUDGETS,
)
_CHOSEN: dict[str, Any] = {
    "holds_back": False,
    "long_polls": False,
    "heals": False,
    "closes": False,
    "abandons": False,
    "deletes": False,
    "second_ledger": False,
    "accept_loss": False,
    "ensemble_changes": ChangeMode.OFF,
    "ledger_type": LedgerType.PD_JOURNAL,
    "replication": Replication.BEST_EFFORT,
    "journal_write_data": True,
}
"""What each of these is in a smaller world."""


def shortest(
    world: World, moves: Sequence[Move], invariant: str, given: Collection[str] = ()
) -> tuple[World, tuple[Move, ...]]:
    """The world and the moves of a shortest story, or those given. Options in ``given`` stay as they are."""
    best, story = world, tuple(moves)
    if calm.is_impossible(world, moves[-1]) or (invariant == calm.INVARIANT and calm.until_stuck(world, moves) is None):
        # A search finds no one who goes on for ever, and nobody who is told what can't be.
        return best, story
    states, end = 0, _STATES_MAX_IN_ALL
    for options in _worlds(used_options(world, moves), given):
        if states >= end:
            break
        if options.second_ledger:
            continue
        search = Exhaustive(options, invariant=invariant, moves_max=len(story) - 1)
        found = search.run(STATES_MAX)
        states += found.states
        if found.violation is not None and len(found.moves) < len(story):
            best, story = search.world, found.moves
            end = min(end, 2 * states + _STATES_AFTER)
    return best, story


def _worlds(used: SimulationOptions, given: Collection[str]) -> Iterator[SimulationOptions]:
    """Options with no more than ``used``, those with the least first."""
    own = (used.ensemble, used.write_quorum, used.ack_quorum)
    sizes = (own,) if {*_QUORUMS} & {*given} else (*(one for one in _SIZES if one < own), own)
    axes: list[list[dict[str, Any]]] = [[dict(zip(_QUORUMS, one, strict=True)) for one in sizes]]
    axes += [
        [{name: count} for count in range(min(_LEAST.get(name, 0), getattr(used, name)), getattr(used, name) + 1)]
        for name in _COUNTED
    ]
    axes += [
        [{name: one} for one in dict.fromkeys((plain, getattr(used, name)))]
        for name, plain in _CHOSEN.items()
        if name not in given
    ]
    first = (0,) * len(axes)
    waiting, seen = [(0, first)], {first}
    while waiting:
        size, at = heappop(waiting)
        yield replace(
            used, **{name: value for axis, i in zip(axes, at, strict=True) for name, value in axis[i].items()}
        )
        for place, axis in enumerate(axes):
            more = (*at[:place], at[place] + 1, *at[place + 1 :])
            if more[place] < len(axis) and more not in seen:
                seen.add(more)
                heappush(waiting, (size + 1, more))


def used_options(world: World, moves: Sequence[Move]) -> SimulationOptions:
    """The options of ``world``, with nothing in them that these moves did not use."""
    state = world.initial
    begun: Counter[str] = Counter()
    told: Counter[type] = Counter()
    kinds = Counter(move.kind for move in moves)
    places = {move.place for move in moves}
    for move in moves:
        event = world.events[move.argument] if move.kind == "user" else None
        told[type(event)] += 1
        if isinstance(event, BookiesChosen):
            places |= {world.slots_from + world.bookies.index(bookie) for bookie in event.bookies}
        if isinstance(event, Begin):
            begun[world.client_names[move.place - CLIENTS]] += 1
        state = world.apply(state, move)
    options = world.options
    clients = Counter(name.split()[0] for name in begun)
    used: dict[str, Any] = {
        **{name: world.initial[at] - state[at] for name, at in _BUDGETS.items()},
        "entries": max(1, told[Append]),
        "closes": bool(told[Close]),
        "abandons": bool(told[Abandon] + told[DeadlinePassed]),
        "hold_ups": told[HeldUp],
        "explicit_lacs": told[TellLac] + told[Idle],
        "recoverers": clients["recoverer"],
        "readers": clients["reader"],
        "replicators": clients["replicator"],
        "reads": max([1, *(count for name, count in begun.items() if name.startswith("reader"))]),
        "long_polls": bool(told[BeginWaiting]),
        "accept_loss": bool(told[BeginAccepting]),
        "deletes": bool(kinds["delete"]),
        "second_ledger": bool(kinds["second"]),
        "heals": bool(kinds["heal"]),
        "holds_back": bool(kinds["forget"]),
        "spares": max(0, *(place - world.slots_from + 1 - options.ensemble for place in places)),
    }
    return replace(options, **used)
