"""Every order within the bounds of the options, breadth first, so the story of the first violation is a shortest one.

Law: a state is left out only if ``reductions`` replaces it by another, and a search reports whether it finished. A machine
makes each step once. So a state costs some lookups and a place in the set of visited states.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

from bookspark.errors import ConfigurationError
from bookspark.lab.simulation.search import calm
from bookspark.lab.simulation.search.reductions import Reductions
from bookspark.lab.simulation.search.successors import Packed, Successors
from bookspark.lab.simulation.search.uncollected import uncollected
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.state import Move, State
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World
from bookspark.protocol.ledger.ledger_metadata import LedgerType


@dataclass(frozen=True, slots=True)
class Result:
    """``finished``: every state within the bounds was seen, or a violation was found."""

    states: int
    finished: bool
    violation: Violation | None
    moves: tuple[Move, ...]
    """A shortest story of the violation."""
    seconds: float
    """Processor time."""


class Exhaustive:
    def __init__(
        self,
        options: SimulationOptions,
        *,
        exchange: bool = True,
        prune: bool = True,
        invariant: str | None = None,
        moves_max: int | None = None,
    ) -> None:
        """``invariant``: search for a violation of this invariant, and ignore others. ``moves_max``: maximum length of
        stories."""
        if options.second_ledger:
            raise ConfigurationError("--second-ledger is for random schedules; leave it out of an exhaustive search")
        self.world = World(options)
        self._invariant = invariant
        self._moves_max = moves_max
        reductions = Reductions(self.world, exchange=exchange, prune=prune)
        self._visited = reductions.visited
        self._successors = Successors(self.world, reductions, moves_first=not _entangled(options))

    def run(self, states_max: int | None = None, seconds_max: float | None = None) -> Result:
        """Search until all states are seen, a violation is found, or a bound is reached."""
        with uncollected():
            return self._run(states_max, seconds_max)

    def _run(self, states_max: int | None, seconds_max: float | None) -> Result:
        started, used = time.monotonic(), time.process_time()
        world = self.world
        pack, successors = self._successors.pack, self._successors.of
        first = pack(self._visited(world.initial))
        numbers: dict[Packed, int] = {first: 0}
        parents = array("L", [0])
        layer, base = [first], 0

        def result(finished: bool, violated: Packed | None) -> Result:
            seconds = time.process_time() - used
            if violated is None:
                return Result(len(numbers), finished, None, (), seconds)
            moves, violation = self._story(violated, numbers, parents), self._successors.violation(violated)
            if violation is not None and violation.invariant == calm.INVARIANT:
                # Messages without effect may still be under way.
                moves = tuple(calm.until_stuck(world, moves) or moves)
            return Result(len(numbers), True, violation, moves, seconds)

        depth = 0
        while layer and depth != self._moves_max:
            depth += 1
            found: list[Packed] = []
            for offset, state in enumerate(layer):
                for after in successors(state):
                    new = len(parents)
                    if numbers.setdefault(after, new) == new:
                        parents.append(base + offset)
                        found.append(after)
                        violation = self._successors.violation(after)
                        if violation is not None and self._invariant in (None, violation.invariant):
                            return result(True, after)
                if states_max is not None and len(numbers) >= states_max:
                    return result(False, None)
                if seconds_max is not None and not offset % 256 and time.monotonic() - started > seconds_max:
                    return result(False, None)
            base += len(layer)
            layer = found
        return result(not layer, None)

    def successors(self, state: State) -> list[State]:
        """The visited states after the visited ``state``, possibly with repetitions."""
        after = self._successors
        return [after.unpack(packed) for packed in after.of(after.pack(state))]

    # -- the story

    def _story(self, state: Packed, numbers: dict[Packed, int], parents: array[int]) -> tuple[Move, ...]:
        """Moves with real names from the beginning to ``state``, or to a state that exchanges into it."""
        path = [numbers[state]]
        while path[-1]:
            path.append(parents[path[-1]])
        wanted = dict.fromkeys(path)
        by_number = {number: self._successors.unpack(one) for one, number in numbers.items() if number in wanted}
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
    """Whether a move may depend on, or change, more than its slot, its client, the record and the remaining crashes. Then
    lookups can't replace it: it spends budgets, a new connection ends requests of the old one, a departed bookie answers no
    client, the writer's progress forgets requests, or an operator names bookies."""
    o = options
    connects_anew = bool(o.losses or (o.crashes and o.ledger_type is LedgerType.VD_JOURNAL))
    return bool(connects_anew or o.duplicates or o.departures or o.heals or o.deletes or o.holds_back or o.accept_loss)
