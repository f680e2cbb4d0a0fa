"""Every order within the bounds of the options, breadth first, so the story of the first violation is a shortest one.

Law: a state is left out only if ``reductions`` takes it for another, and a search says whether it finished. A machine is not
asked again for a step that it made before. So a state costs some lookups and its place in the set of visited states.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.simulation.search.reductions import Reductions
from bookspark.simulation.simulation_options import SimulationOptions
from bookspark.simulation.state import CLIENTS, CRASHES, METADATA, Move, State
from bookspark.simulation.view import Violation
from bookspark.simulation.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """``finished``: every state within the bounds was seen, or a violation was found."""

    states: int
    finished: bool
    violation: Violation | None
    moves: tuple[Move, ...]
    """A shortest story of the violation."""
    seconds: float
    """The processor time that it took."""


class Exhaustive:
    """A search of one world."""

    def __init__(
        self,
        options: SimulationOptions,
        *,
        exchange: bool = True,
        prune: bool = True,
        invariant: str | None = None,
        moves_max: int | None = None,
    ) -> None:
        """``invariant``: search for a violation of this one, and pass over those of others. ``moves_max``: of stories no longer
        than this."""
        self.world = World(options)
        self._invariant = invariant
        self._moves_max = moves_max
        self._visited = Reductions(self.world, exchange=exchange, prune=prune).visited
        self._plain = _entangled(options)
        self._local: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._told: dict[tuple[int, int], tuple[tuple[int, int, int], ...]] = {}

    def run(self, states_max: int | None = None, seconds_max: float | None = None) -> Result:
        """Search until all is seen, a violation is found, or a bound is reached."""
        started, used = time.monotonic(), time.process_time()
        world, visited = self.world, self._visited
        first = visited(world.initial)
        numbers: dict[State, int] = {first: 0}
        parents = array("L", [0])
        layer, base = [first], 0

        def result(finished: bool, violated: State | None) -> Result:
            seconds = time.process_time() - used
            if violated is None:
                return Result(len(numbers), finished, None, (), seconds)
            moves = self._story(violated, numbers, parents)
            return Result(len(numbers), True, world.violation(violated), moves, seconds)

        depth = 0
        while layer and depth != self._moves_max:
            depth += 1
            found: list[State] = []
            for offset, state in enumerate(layer):
                for after in self.successors(state):
                    after = visited(after)
                    if after not in numbers:
                        numbers[after] = len(parents)
                        parents.append(base + offset)
                        found.append(after)
                        violation = world.violation(after)
                        if violation is not None and self._invariant in (None, violation.invariant):
                            return result(True, after)
                if states_max is not None and len(numbers) >= states_max:
                    return result(False, None)
                if seconds_max is not None and not offset % 256 and time.monotonic() - started > seconds_max:
                    return result(False, None)
            base += len(layer)
            layer = found
        return result(not layer, None)

    # -- successors: what ``World.moves`` and ``World.apply`` say, with the lookups of a slot's moves put together

    def successors(self, state: State) -> list[State]:
        """The states after each of ``World.moves(state)``, perhaps with repetitions."""
        world = self.world
        if self._plain:
            return [world.apply(state, move) for move in world.moves(state)]
        found: list[State] = []
        crashes, record = state[CRASHES], state[METADATA]
        for place in range(CLIENTS, world.slots_from):
            for kind, argument in world.choices(state[place]):
                found.append(world.apply(state, Move(kind, place, argument)))
        for place in range(world.slots_from, len(state)):
            slot = state[place]
            before, behind = state[:place], state[place + 1 :]
            key = (slot, place, record, crashes)
            local = self._local.get(key)
            if local is None:
                local = self._local[key] = self._slot_successors(state, place)
            for after in local:
                found.append((*before, after, *behind))
            if crashes and "boot" not in world.slots.moves(slot).others:
                found.append(world.apply(state, Move("crash", place)))
            told = self._told.get((slot, place))
            if told is None:
                told = self._told[slot, place] = self._answers(slot, place)
            for after, client, event in told:
                changed = [*before, after, *behind]
                world.step(changed, client, event)
                found.append(tuple(changed))
        return found

    def _slot_successors(self, state: State, place: int) -> tuple[int, ...]:
        moves = self.world.slots.moves(state[place])
        local = [Move("request", place, message) for message in moves.requests]
        local += [Move(kind, place) for kind in moves.others]
        return tuple({self.world.apply(state, move)[place]: None for move in local})

    def _answers(self, slot: int, place: int) -> tuple[tuple[int, int, int], ...]:
        world = self.world
        return tuple(
            (world.slots.arrive(slot, message), *world.event(place, world.slots.messages[message], slot))
            for message in world.slots.moves(slot).answers
        )

    # -- the story

    def _story(self, state: State, numbers: dict[State, int], parents: array[int]) -> tuple[Move, ...]:
        """Moves of the real names that lead from the beginning to ``state``, or to one that exchanging makes of it."""
        path = [numbers[state]]
        while path[-1]:
            path.append(parents[path[-1]])
        wanted = dict.fromkeys(path)
        by_number = {number: visited for visited, number in numbers.items() if number in wanted}
        world, here = self.world, self.world.initial
        moves: list[Move] = []
        for number in reversed(path[:-1]):
            for move in world.moves(here):
                after = world.apply(here, move)
                if self._visited(after) == by_number[number]:
                    break
            else:
                raise AssertionError("a visited state has no move that leads to it")
            moves.append(move)
            here = after
        return tuple(moves)


def _entangled(options: SimulationOptions) -> bool:
    """May a move depend on, or change, more than its slot, its client, the record and the crashes that are left? Then no lookup
    stands for it: budgets are spent, a connection that is made anew ends what was under way on the old one, a bookie that is
    gone answers nobody, the writer's own progress forgets requests, and an operator names bookies."""
    o = options
    connects_anew = bool(o.losses or (o.crashes and o.ledger_type is LedgerType.VD_JOURNAL))
    return bool(connects_anew or o.duplicates or o.departures or o.heals or o.deletes or o.holds_back or o.accept_loss)
