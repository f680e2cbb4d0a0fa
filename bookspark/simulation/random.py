"""Random schedules: far longer than an exhaustive search can be, over options that are drawn as well.

Law: a schedule is a function of its seed and of the options that are given, byte for byte, in any process. Options that are not
given are *swarm-drawn*: each schedule has some kinds of trouble and not others, some bookies and clients are much slower than
others, and so rare combinations are common somewhere. A schedule that ends in a violation is shrunk: moves are taken out as long
as the violation stays, so the story that is left is nearly all to the point.

Schedule number i of ``--random N --seed S`` has the seed S + i, so one of them is replayed by ``--random 1 --seed S+i``. A block
of seeds has the same options, for speed: its schedules take the same steps again and again (``World`` makes each one once).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.simulation.view import Violation
from bookspark.simulation.world import CLIENTS, METADATA, Move, State, World

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
_Sizes = tuple[int, int, int]
_WAYS = (0.003, 0.1, 1.0, 1.0)
_PLACES = (0.02, 0.3, 1.0, 1.0)
_BLOCK = 20
"""So many neighbouring seeds have the same options."""
_NUMBERS_MAX = 300_000
"""So many numbers a world's tables may have before it is made anew."""


def draw_options(random: Random, given: Mapping[str, Any]) -> SimulationOptions:
    """Options for one schedule: those that are ``given``, and the others drawn. Half of the schedules are *small*: few entries
    and clients on few bookies, so that what is rare comes often; the others have some of everything."""
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
    """(E, WQ, AQ) that go with those that are given."""
    wanted = tuple(given.get(name) for name in ("ensemble", "write_quorum", "ack_quorum"))
    fitting = [drawn for drawn in sizes if all(w in (None, size) for w, size in zip(wanted, drawn, strict=True))]
    if fitting:
        return random.choice(fitting)
    ensemble = wanted[0] or wanted[1] or wanted[2] or 1
    write_quorum = wanted[1] or ensemble
    return ensemble, write_quorum, wanted[2] or write_quorum // 2 + 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that ended in a violation. ``moves`` are what is left of ``moves_before`` after shrinking."""

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
    """Of processor time."""


class RandomSchedules:
    """Runs schedules, with the options that are ``given`` and others drawn. A world is kept from one schedule to the next,
    which changes nothing but the speed."""

    def __init__(self, given: Mapping[str, Any], steps_max: int = 400) -> None:
        self._given = dict(given)
        self._steps_max = steps_max
        self._world: World | None = None

    def run(self, schedules: int, seed: int, seconds_max: float | None = None) -> Result:
        """``schedules`` of them, or fewer if one fails or the time is over."""
        started, used = time.monotonic(), time.process_time()
        steps = 0
        for number in range(schedules):
            if seconds_max is not None and time.monotonic() - started > seconds_max:
                return Result(number, steps, None, time.process_time() - used)
            world, moves, violation = self.schedule(seed + number)
            steps += len(moves)
            if violation is not None:
                shrunk = shrink(world, moves, violation)
                failure = Failure(seed + number, world.options, violation, tuple(shrunk), len(moves), world)
                return Result(number + 1, steps, failure, time.process_time() - used)
        return Result(schedules, steps, None, time.process_time() - used)

    def schedule(self, seed: int) -> tuple[World, list[Move], Violation | None]:
        """One schedule: its moves up to the first violation, or to its end."""
        world = self._world_of(draw_options(Random(seed // _BLOCK), self._given))
        likely = _Likelihoods(Random(seed), world)
        state = world.initial
        moves: list[Move] = []
        while len(moves) < self._steps_max and (move := likely.choose(world.groups(state))) is not None:
            state = world.apply(state, move)
            moves.append(move)
            violation = world.violation(state)
            if violation is not None:
                return world, moves, violation
        return world, moves, None

    def _world_of(self, options: SimulationOptions) -> World:
        if self._world is None or self._world.options != options or self._world.size > _NUMBERS_MAX:
            self._world = World(options)
        return self._world


class _Likelihoods:
    """How likely each move is in this schedule: by its kind, by how slow the client or the bookie is, and by how slow the way
    between the two is. All of that changes now and then: who was slow overtakes the others."""

    _KINDS = ("request", "answer", "user", "store", "boot", "sync", "told", "ask", "heal", "collect", "forget")
    _TROUBLES = ("crash", "timeout", "duplicate", "store_lost", "deadline", "delete")

    def __init__(self, random: Random, world: World) -> None:
        self._random = random
        self._world = world
        self._messages = world.slots.messages.values
        self._change = random.choice((0.0, 0.04, 0.15))
        self._draw()

    def _draw(self) -> None:
        random, world = self._random, self._world
        self._kinds = {kind: 4.0 ** random.uniform(-1, 1) for kind in self._KINDS}
        self._kinds |= {kind: 4.0 ** random.uniform(-3, 0.5) for kind in self._TROUBLES}
        places = (METADATA, *range(CLIENTS, len(world.initial)))
        self._places = {place: random.choice(_PLACES) for place in places}
        self._by_message = random.random() < 0.5
        self._ways: dict[tuple[int, int], float] = {}
        self._known: dict[int, tuple[float, ...]] = {}
        """By the identity of a group of moves, which lives as long as the world."""

    def choose(self, groups: Sequence[tuple[Move, ...]]) -> Move | None:
        """One of the moves, or None if there is none."""
        if self._random.random() < self._change:
            self._draw()
        known = self._known
        limits: list[tuple[float, ...]] = []
        total = 0.0
        for group in groups:
            sums = known.get(id(group))
            if sums is None:
                sums = known[id(group)] = self._sums(group)
            limits.append(sums)
            total += sums[-1]
        wanted = self._random.random() * total
        last: Move | None = None
        for group, sums in zip(groups, limits, strict=True):
            if group:
                if wanted < sums[-1]:
                    return group[bisect_right(sums, wanted) - 1]
                last = group[-1]
            wanted -= sums[-1]
        return last

    def _sums(self, group: Sequence[Move]) -> tuple[float, ...]:
        """How likely it is that one of the first 0, 1, 2, … moves of a group is made."""
        sums = [0.0]
        for kind, place, argument in group:
            likely = self._kinds[kind] * self._places[place]
            if kind in ("request", "answer"):
                likely *= self._way(place, argument)
            sums.append(sums[-1] + likely)
        return tuple(sums)

    def _way(self, place: int, message: int) -> float:
        """How fast the message is: like all of its client on this way, or by itself."""
        key = (message if self._by_message else -1 - self._messages[message].client, place)
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = self._random.choice(_WAYS)
        return found


def shrink(world: World, moves: Sequence[Move], violation: Violation) -> list[Move]:
    """Take out moves as long as the same invariant is violated: halves first, then ever smaller pieces, until none can go."""
    kept = list(moves)
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
        if move not in world.moves(state):
            continue
        state = world.apply(state, move)
        done.append(move)
        found = world.violation(state)
        if found is not None:
            return done if found.invariant == invariant else None
    return None
