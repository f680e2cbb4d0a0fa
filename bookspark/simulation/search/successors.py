"""The states after a state, as lookups: what a search does for each of its states, and nothing that it can do once.

Law: the states after one are what ``World.moves``, ``World.apply`` and ``Reductions.visited`` say, in the order of the moves. A
move is made by them once for each *head* (the record, the budgets and the clients of a state) and slot where it is made. What
it does to another slot is a list of messages put there and of clients that wait no more (``Slots.symbolic``), whatever is in that
slot. So a state costs a lookup for each of its slots, and for each state after it one in the slots that change.

A state is packed here as the number of its head, followed by its slots. Only an operator who names the bookies that are gone for
good looks into several slots at once; then nothing is remembered.
"""

from __future__ import annotations

from operator import getitem
from sys import maxsize
from typing import Any, NamedTuple

from bookspark.simulation.search.reductions import Reductions
from bookspark.simulation.slots import SAME
from bookspark.simulation.state import Move, State
from bookspark.simulation.values import Table
from bookspark.simulation.verdicts import Alike
from bookspark.simulation.view import Violation
from bookspark.simulation.world import World

Packed = tuple[int, ...]

NOWHERE = -1
"""In place of the number of a slot."""


class _After(dict[int, int]):
    """What becomes of a slot at one place, by the slot that is there: ``symbolic`` says what is done to it, and it is reduced."""

    __slots__ = ("_head", "_parent", "_place", "_symbolic")

    def __init__(self, parent: Successors, head: int, place: int, symbolic: int) -> None:
        self._parent, self._head, self._place, self._symbolic = parent, head, place, symbolic

    def __missing__(self, slot: int) -> int:
        after = self._parent.resolved(self._head, self._place, self._symbolic, slot)
        self[slot] = after
        return after


class _Step(NamedTuple):
    """A move: the head after it, and what becomes of each slot. ``slots`` is None if it changes one slot only, to ``slot``."""

    head: int
    slots: tuple[dict[int, int], ...] | None
    slot: int


class Successors:
    """The states after those of one world, under its reductions. ``moves_first``: what a bookie does comes before its crash, and
    what clients hear of it after that."""

    def __init__(self, world: World, reductions: Reductions, *, moves_first: bool) -> None:
        self._world = world
        self._reductions = reductions
        self._moves_first = moves_first
        self._remembers = not world.options.accept_loss
        self._heads: Table[State] = Table(tuple)
        self._alike: list[Alike | None] = []
        self._of_clients: list[tuple[_Step, ...] | None] = []
        self._of_slots: list[dict[tuple[int, int], tuple[_Step, ...]]] = [{} for _ in world.bookies]
        self._after: dict[tuple[object, ...], _After] = {}
        self._exchanged: dict[tuple[int, tuple[int, ...]], int] = {}
        self._start = world.slots_from

    # -- packed states

    def pack(self, state: State) -> Packed:
        return (self._head(state[: self._start]), *state[self._start :])

    def unpack(self, packed: Packed) -> State:
        return (*self._heads[packed[0]], *packed[1:])

    def _head(self, head: State) -> int:
        number = self._heads.number(head)
        if number == len(self._of_clients):
            self._of_clients.append(None)
            self._alike.append(None)
        return number

    def violation(self, packed: Packed) -> Violation | None:
        """What the first checker that is not satisfied says of a state."""
        head, *slots = packed
        verdicts, alike = self._world.verdicts, self._alike[head]
        if alike is None:
            alike = self._alike[head] = verdicts.alike(self.unpack(packed))
        return verdicts.of_slots(alike, tuple(slots))

    # -- what follows

    def of(self, packed: Packed) -> list[Packed]:
        """The reduced states after each move in a reduced state, perhaps with repetitions."""
        if not self._remembers:
            return self._made(packed)
        head, slots = packed[0], packed[1:]
        of_clients = self._of_clients[head]
        steps: list[Any] = [table.get((head, slot)) for table, slot in zip(self._of_slots, slots, strict=True)]
        if of_clients is None or None in steps:
            of_clients, steps = self._make_steps(packed)
        exchanges, found = self._reductions.exchanges, []
        for after, changes, _ in of_clients:
            new = tuple(map(getitem, changes or (), slots))
            found.append(self._exchange(after, new) if exchanges else (after, *new))
        for at, mine in enumerate(steps):
            before, behind = slots[:at], slots[at + 1 :]
            least, most = (before[-1] if at else -1), (behind[0] if behind else maxsize)
            for after, changes, slot in mine:
                if changes is None:
                    # The bookies stay in order, and those that are still alike were alike before: nothing is exchanged.
                    if not exchanges or least < slot < most:
                        found.append((after, *before, slot, *behind))
                        continue
                    new = (*before, slot, *behind)
                else:
                    new = tuple(map(getitem, changes, slots))
                found.append(self._exchange(after, new) if exchanges else (after, *new))
        return found

    def _made(self, packed: Packed) -> list[Packed]:
        world, state = self._world, self.unpack(packed)
        return [self.pack(self._reductions.visited(world.apply(state, move))) for move in world.moves(state)]

    def _exchange(self, head: int, slots: tuple[int, ...]) -> Packed:
        ordered = sorted(slots)
        places = tuple(map(ordered.index, slots))
        found = self._exchanged.get((head, places))
        if found is None:
            state = self._reductions.exchange((*self._heads[head], *slots))
            found = self._exchanged[head, places] = self._head(state[: self._start])
        return (found, *ordered)

    # -- each move once

    def _make_steps(self, packed: Packed) -> tuple[tuple[_Step, ...], list[Any]]:
        state = self.unpack(packed)
        head, slots = packed[0], packed[1:]
        groups = self._world.groups(state)
        of_slots = groups[len(groups) - len(slots) :]
        of_clients = self._of_clients[head]
        if of_clients is None:
            moves = [move for group in groups[: -len(slots)] for move in group]
            of_clients = self._of_clients[head] = self._steps(state, moves)
        steps = []
        for at, slot in enumerate(slots):
            found = self._of_slots[at].get((head, slot))
            if found is None:
                moves = self._ordered(of_slots[at])
                found = self._of_slots[at][head, slot] = self._steps(state, moves)
            steps.append(found)
        return of_clients, steps

    def _ordered(self, group: tuple[Move, ...]) -> list[Move]:
        """A crash comes after the bookie's other moves, and what clients hear comes last."""
        if not self._moves_first:
            return list(group)
        return sorted(
            group, key=lambda move: ("crash", "answer").index(move.kind) + 1 if move.kind in ("crash", "answer") else 0
        )

    def _steps(self, state: State, moves: list[Move]) -> tuple[_Step, ...]:
        """What each move makes of ``state``, those that are equal once."""
        start, found = self._start, {}
        for move in moves:
            at = max(move.place - start, NOWHERE)
            others = [slot if i == at else SAME for i, slot in enumerate(state[start:])]
            after = self._world.apply((*state[:start], *others), move)
            head, slots = self._head(after[:start]), list(after[start:])
            if at != NOWHERE:
                slots[at] = self._reduced(head, at, slots[at])
            found[head, *slots] = self._step(state, at, head, slots)
        return tuple(found.values())

    def _step(self, state: State, at: int, head: int, slots: list[int]) -> _Step:
        """The move is made in the slot that is number ``at``. ``slots``: what becomes of that slot, and symbols of the others."""
        if at != NOWHERE and self._heads[head] == state[: self._start] and slots.count(SAME) == len(slots) - 1:
            return _Step(head, None, slots[at])
        before = state[self._start :]
        changes = [{before[i]: slot} if i == at else self._changes(head, i, slot) for i, slot in enumerate(slots)]
        return _Step(head, tuple(changes), NOWHERE)

    def _changes(self, head: int, at: int, symbolic: int) -> _After:
        key = (self._reductions.knows(self._heads[head]), at, symbolic)
        found = self._after.get(key)
        if found is None:
            found = self._after[key] = _After(self, head, at, symbolic)
        return found

    def resolved(self, head: int, at: int, symbolic: int, slot: int) -> int:
        """The reduced slot after what ``symbolic`` says is done to ``slot``."""
        return self._reduced(head, at, self._world.slots.resolved(symbolic, slot))

    def _reduced(self, head: int, at: int, slot: int) -> int:
        return self._reductions.pruned(slot, at, self._reductions.knows(self._heads[head]))
