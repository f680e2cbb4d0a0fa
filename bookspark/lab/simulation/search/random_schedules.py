"""Random schedules: far longer than an exhaustive search can be, over random options.

Law: a schedule depends only on its seed and on the given options, in any process. Other options are *swarm-drawn*: each
schedule has some kinds of trouble and not others, and bookies and clients of very different speeds, so rare combinations
are common somewhere. A schedule that ends in a violation is shrunk; then a shortest story of the same violation replaces
it, if the search succeeds (``shortest``).

Schedule number i of ``--random N --seed S`` has the seed S + i, so ``--random 1 --seed S+i`` replays it. A block of seeds
shares its options, for speed: many of its steps are equal, and ``World`` makes each step once.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from bookspark.lab.simulation.clients.client import Begin
from bookspark.lab.simulation.clients.reader import BeginWaiting
from bookspark.lab.simulation.clients.recoverer import BeginAccepting
from bookspark.lab.simulation.moves import Group
from bookspark.lab.simulation.search import calm
from bookspark.lab.simulation.search.calm import calm_down
from bookspark.lab.simulation.search.coverage import Pair, met_pairs
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.search.uncollected import uncollected
from bookspark.lab.simulation.second_ledger import world_of
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.state import (
    CLIENTS,
    CRASHES,
    DEPARTURES,
    DUPLICATES,
    LOSSES,
    METADATA,
    SECOND,
    Move,
    State,
)
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import Met, World
from bookspark.protocol.ledger.actions import BookiesChosen, DeadlinePassed
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer_events import Abandon, Append, BookiesLost, Close, HeldUp, Idle, TellLac

# -- The options of a random schedule: given options, and random values for the others.
#
# Law: the same numbers draw the same options. Half of the schedules are *small*: few entries and clients on few bookies, so
# that rare orders come often. The others have some of everything.


_SIZES = (
    (1, 1, 1),
    (2, 2, 1),
    (2, 2, 2),
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 3),
    (3, 2, 2),
    (3, 2, 1),
    (4, 3, 2),
    (5, 3, 2),
)
_SMALL_SIZES = ((2, 2, 1), (2, 2, 2), (3, 3, 2))
_SMALL_GUARANTEED = (*_SMALL_SIZES, (3, 2, 2), (3, 2, 1))
"""A striped guaranteed ledger limits the replaceable bookies differently, and ``_SIZES`` alone draws such ledgers too rarely."""
_Sizes = tuple[int, int, int]


def draw_options(random: Random, given: Mapping[str, Any]) -> SimulationOptions:
    """Options for a schedule: the ``given`` ones, and random values for the others."""
    small = random.random() < 0.5
    ensemble, write_quorum, ack_quorum = _draw_sizes(random, given, _SMALL_SIZES if small else _SIZES)
    volatile = random.random() < 0.3
    guaranteed = random.random() < 0.4
    drawn: dict[str, Any] = {
        "ensemble": ensemble,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "closes": random.random() < 0.7,
        "crash_loses": random.choice((CrashLoses.UNSYNCED, CrashLoses.EVERYTHING)),
        "heals": random.random() < 0.3,
        "journal_write_data": random.random() < 0.5,
        "ledger_type": LedgerType.VD_JOURNAL if volatile else LedgerType.PD_JOURNAL,
        "replication": Replication.GUARANTEED if guaranteed else Replication.BEST_EFFORT,
        "deletes": random.random() < 0.15,
    }
    drawn |= _little(random) if small else _of_everything(random)
    drawn |= {"abandons": random.random() < 0.1, "holds_back": random.random() < 0.3}
    accept_loss, departures = random.random() < 0.2, random.choice((0, 1, 2))
    drawn |= {"accept_loss": accept_loss, "departures": departures * given.get("accept_loss", accept_loss)}
    drawn["hold_ups"] = random.choice((0, 0, 0, 1, 2))
    drawn["second_ledger"] = random.random() < 0.1
    if small and given.get("replication", drawn["replication"]) is Replication.GUARANTEED:
        # Last, so that a seed draws the same options as before for other ledgers.
        sizes = _draw_sizes(random, given, _SMALL_GUARANTEED)
        drawn |= dict(zip(("ensemble", "write_quorum", "ack_quorum"), sizes, strict=True))
    # Of a generator of its own, so that a seed without such news has the same schedule as before.
    others = Random(random.getstate()[1][0])
    drawn["lost_bookies"] = others.choice((0, 0, 0, 1, 2))
    drawn["copies_wanted"] = drawn["write_quorum"] + others.choice((0, 0, 1, 2)) if drawn["spares"] else 0
    return SimulationOptions(**{**drawn, **given})


def _little(random: Random) -> dict[str, Any]:
    spares = random.choice((0, 0, 1))
    return {
        "spares": spares,
        "entries": random.choice((1, 1, 2, 3)),
        "recoverers": random.choice((1, 1, 2)),
        "crashes": random.choice((0, 1, 1, 2)),
        "losses": random.choice((0, 1)) if spares else 0,
        "replicators": random.choice((0, 1)) if spares else 0,
        "ensemble_changes": ChangeMode.AT_ONCE if spares else ChangeMode.OFF,
    }


def _of_everything(random: Random) -> dict[str, Any]:
    return {
        "spares": random.choice((0, 0, 1, 2)),
        "entries": random.choice((1, 2, 3, 4, 6)),
        "recoverers": random.choice((0, 1, 1, 2, 3)),
        "readers": random.choice((0, 1, 2)),
        "reads": random.choice((1, 3)),
        "long_polls": random.random() < 0.5,
        "explicit_lacs": random.choice((0, 0, 1, 3)),
        "replicators": random.choice((0, 0, 1, 2)),
        "crashes": random.choice((0, 0, 1, 1, 2, 3)),
        "losses": random.choice((0, 0, 1, 3, 8)),
        "duplicates": random.choice((0, 0, 1, 3)),
        "ensemble_changes": random.choice((ChangeMode.OFF, ChangeMode.AT_ONCE, ChangeMode.AT_ONCE, ChangeMode.DELAYED)),
    }


def _draw_sizes(random: Random, given: Mapping[str, Any], sizes: Sequence[_Sizes]) -> _Sizes:
    """A draw of (E, WQ, AQ) that matches the given sizes."""
    wanted = tuple(given.get(name) for name in ("ensemble", "write_quorum", "ack_quorum"))
    fitting = [drawn for drawn in sizes if all(w in (None, size) for w, size in zip(wanted, drawn, strict=True))]
    if fitting:
        return random.choice(fitting)
    ensemble = wanted[0] or wanted[1] or wanted[2] or 1
    write_quorum = wanted[1] or ensemble
    return ensemble, write_quorum, wanted[2] or write_quorum // 2 + 1


# -- Shortest story: a search for a shorter way to the violation of a random schedule.
#
# Law: the result ends in a violation of the same invariant, under the user's options, and is never longer than the given
# story. It depends on the story alone, in any process: a number of states limits the search, never time.
#
# Shrinking takes moves out of a schedule, but the rest may still take a detour. So all orders are searched, breadth first,
# in worlds with no more than the story used (its entries, crashes, clients, spares, …): the smallest world first, then
# worlds with one thing more. A story of such a world is its shortest; later worlds must give a shorter one.


STATES_MAX = 20_000
"""A larger world is skipped."""
_STATES_MAX_IN_ALL = 400_000
"""Half a minute of processor time without a shorter story."""
_STATES_AFTER = 10_000
"""The first shorter story is mostly the best: the search then continues for as many states again, plus these."""
_BUDGETS = {"crashes": CRASHES, "losses": LOSSES, "duplicates": DUPLICATES, "departures": DEPARTURES}
_QUORUMS = ("ensemble", "write_quorum", "ack_quorum")
_LEAST: dict[str, int] = {"entries": 1, "reads": 1}
_COUNTED = (
    "entries",
    "reads",
    "spares",
    "recoverers",
    "readers",
    "replicators",
    "hold_ups",
    "lost_bookies",
    "explicit_lacs",
    *_BUDGETS,
)
_CHOSEN: dict[str, Any] = {
    "copies_wanted": 0,
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
"""Values for a smaller world."""


def shortest(
    world: World, moves: Sequence[Move], invariant: str, given: Collection[str] = ()
) -> tuple[World, tuple[Move, ...]]:
    """The world and the moves of a shortest story, or the given ones. Options in ``given`` stay unchanged."""
    best, story = world, tuple(moves)
    if calm.is_impossible(world, moves[-1]) or (invariant == calm.INVARIANT and calm.until_stuck(world, moves) is None):
        # An exhaustive search has no endless loops and no impossible events.
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
    """Options with no more than ``used``, the smallest first."""
    own = (used.ensemble, used.write_quorum, used.ack_quorum)
    sizes = (own,) if {*_QUORUMS} & {*given} else (*(one for one in _SMALL_SIZES if one < own), own)
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
    """The options of ``world``, reduced to the needs of these moves."""
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
        "lost_bookies": told[BookiesLost],
        "explicit_lacs": told[TellLac] + told[Idle],
        "recoverers": clients["recoverer"],
        "readers": clients["reader"],
        "replicators": clients["replicator"],
        "copies_wanted": options.copies_wanted if clients["replicator"] else 0,
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


# -- Shrinking
#
# Law: the result ends in a violation of the same invariant, and no single move can be taken out of it.


def shrink(world: World, moves: Sequence[Move], violation: Violation) -> list[Move]:
    """Take out moves as long as the same invariant is violated: halves first, then ever smaller pieces, until none can go.
    An endless loop (``calm``) stays unchanged."""
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
    """The possible moves among ``moves``, up to the violation; None without one."""
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


# -- Schedules


_WAYS = (0.003, 0.1, 1.0, 1.0)
_PLACES = (0.02, 0.3, 1.0, 1.0)
BLOCK = 20
"""Neighbouring seeds with the same options."""
_CALM_EVERY = 4
"""One in this many schedules is broken off and must end (``calm``)."""
_CALM_SEEDS = 1 << 62
_NUMBERS_MAX = 300_000
"""A world with more numbers in its tables is rebuilt, to free memory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that ended in a violation, with ``options`` and ``moves_before`` moves; ``moves`` are its short story, in
    ``world``."""

    seed: int
    options: SimulationOptions
    violation: Violation
    moves: tuple[Move, ...]
    moves_before: int
    world: World


@dataclass(frozen=True, slots=True)
class Result:
    schedules: int
    steps: int
    failure: Failure | None
    seconds: float
    """Processor time."""


_STEPS_MAX = 400
"""Moves of a schedule."""


class RandomSchedules:
    """Runs schedules with the ``given`` options and random values for others. Schedules share a world, which changes only
    the speed."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        self._world: World | None = None
        self._drawn: dict[int, SimulationOptions] = {}
        """By number of the block, the options of the last block of seeds."""
        self._met: set[Met] = set()

    @property
    def met(self) -> frozenset[Pair]:
        return met_pairs(self._met | (self._world.met if self._world is not None else set()))

    def run(self, schedules: int, seed: int, seconds_max: float | None = None) -> Result:
        """Run ``schedules`` schedules, or fewer after a violation or the end of the time."""
        used = time.process_time()
        with uncollected():
            number, steps, found = self._search(schedules, seed, seconds_max)
        failure = None
        if found is not None:
            world, moves, violation = found
            shrunk = shrink(world, moves, violation)
            told_in, story = shortest(world, shrunk, violation.invariant, self._given)
            failure = Failure(seed + number - 1, world.options, violation, story, len(moves), told_in)
        return Result(number, steps, failure, time.process_time() - used)

    def _search(
        self, schedules: int, seed: int, seconds_max: float | None
    ) -> tuple[int, int, tuple[World, list[Move], Violation] | None]:
        """The number of schedules, their total number of steps, and the schedule with a violation."""
        started, steps = time.monotonic(), 0
        for number in range(schedules):
            if seconds_max is not None and time.monotonic() - started > seconds_max:
                return number, steps, None
            world, moves, violation = self.schedule(seed + number)
            steps += len(moves)
            if violation is not None:
                return number + 1, steps, (world, moves, violation)
        return schedules, steps, None

    def schedule(self, seed: int) -> tuple[World, list[Move], Violation | None]:
        """Run a schedule: its moves up to the first violation, or to its end."""
        world = self._world_of(self._options_of(seed // BLOCK))
        state = world.initial
        ahead, moves = world.ahead(state), list[Move]()
        changed: Sequence[int] = range(len(ahead.groups))
        likely = _Likelihoods(Random(seed), world)
        while len(moves) < _STEPS_MAX and (move := likely.choose(ahead.groups, changed)) is not None:
            before, state = state, world.apply(state, move)
            moves.append(move)
            violation = world.violation_after(before, state)
            if violation is not None:
                return world, moves, violation
            changed = ahead.go_on(state)
        if seed % _CALM_EVERY == 0:
            moves, violation = calm_down(world, moves, Random(_CALM_SEEDS + seed))
            return world, moves, violation
        return world, moves, None

    def _options_of(self, block: int) -> SimulationOptions:
        found = self._drawn.get(block)
        if found is None:
            found = draw_options(Random(block), self._given)
            self._drawn = {block: found}
        return found

    def _world_of(self, options: SimulationOptions) -> World:
        if self._world is None or self._world.options != options or self._world.size > _NUMBERS_MAX:
            self._met |= self._world.met if self._world is not None else set()
            self._world = world_of(options)
        return self._world


class _Likelihoods:
    """The likelihood of each move in this schedule: by its kind, by the slowness of the client or the bookie, and by the
    slowness of the way between them. All change now and then, so that a slow participant overtakes the others."""

    _KINDS = ("request", "answer", "user", "store", "boot", "sync", "told", "ask", "heal", "collect", "forget")
    _TROUBLES = ("crash", "timeout", "duplicate", "store_lost", "deadline", "delete")

    def __init__(self, random: Random, world: World) -> None:
        self._random = random
        self._world = world
        self._messages = world.slots.messages.values
        self._change = random.choice((0.0, 0.04, 0.15))
        self._limits: list[tuple[float, ...]] = []
        self._totals: list[float] = []
        """For each group: the running sums of its moves' likelihoods, and their total."""
        self._draw()

    def _draw(self) -> None:
        draw, world = self._random.random, self._world
        # Factors from 1/4 to 4, and for troubles from 1/64 to 2.
        self._kinds = {kind: 4.0 ** (-1 + 2 * draw()) for kind in self._KINDS}
        self._kinds |= {kind: 4.0 ** (-3 + 3.5 * draw()) for kind in self._TROUBLES}
        # Not drawn, so that other schedules stay unchanged.
        self._kinds["depart"] = self._kinds["crash"]
        self._kinds["second"] = self._kinds["user"]
        places = (METADATA, *range(CLIENTS, len(world.initial)))
        self._places = {place: self._one_of(_PLACES) for place in places}
        self._places[SECOND] = 1.0
        self._by_message = draw() < 0.5
        self._ways: dict[tuple[int, int], float] = {}

    def _one_of(self, four: tuple[float, ...]) -> float:
        """Equal to ``Random.choice``, in a third of its time."""
        at = self._random.getrandbits(3)
        while at >= 4:
            at = self._random.getrandbits(3)
        return four[at]

    def choose(self, groups: Sequence[Group], changed: Sequence[int]) -> Move | None:
        """A random move, or None without moves. ``changed``: the indices of changed groups."""
        if self._random.random() < self._change:
            self._draw()
            changed = range(len(groups))
        limits, totals = self._limits, self._totals
        if len(limits) != len(groups):
            limits[:], totals[:] = [()] * len(groups), [0.0] * len(groups)
        for at in changed:
            limits[at] = sums = self._sums(groups[at])
            totals[at] = sums[-1]
        # Not by sum(), whose rounding differs in later versions of Python.
        total = 0.0
        for likely in totals:
            total += likely
        wanted = self._random.random() * total
        for at, likely in enumerate(totals):
            if wanted < likely:
                return groups[at][bisect_right(limits[at], wanted) - 1]
            wanted -= likely
        return next((group[-1] for group in reversed(groups) if group), None)

    def _sums(self, group: Sequence[Move]) -> tuple[float, ...]:
        """Running sums of the likelihoods of a group's moves, from 0."""
        total, sums = 0.0, [0.0]
        kinds, places = self._kinds, self._places
        for kind, place, argument in group:
            likely = kinds[kind] * places[place]
            if kind == "request" or kind == "answer":
                likely *= self._way(place, argument)
            elif kind == "second":
                likely *= self._fast((argument, place))
            total += likely
            sums.append(total)
        return tuple(sums)

    def _way(self, place: int, message: int) -> float:
        """Speed of the message: that of its client on this way, or its own."""
        return self._fast((message if self._by_message else -1 - self._messages[message].client, place))

    def _fast(self, key: tuple[int, int]) -> float:
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = self._one_of(_WAYS)
        return found
