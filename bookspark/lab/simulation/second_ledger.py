"""A second ledger on the bookies of the first, for faults that need two ledgers.

Law: the ledgers share the single parts of a bookie: its process and its disk with their crashes and syncs, the marker of
unsynced acks, the lossy-boot mark, phase one, and garbage collection with its note. Everything else belongs to a ledger, in
a world of its own. Shared parts exist in both worlds, and the same events keep them equal.

The second ledger has a writer and a recoverer. It is created at any time, with the next id; before that, a lossy boot does
not know the id. All checkers judge both ledgers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from bookspark.lab.simulation.bookie import Found, SecondsBookie
from bookspark.lab.simulation.moves import Group, MovesAhead
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.state import SECOND, Move, State
from bookspark.lab.simulation.values import Table
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World
from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_LEDGER
from bookspark.protocol.bookie.garbage_collection import Complete, collectable, sort_suspects, suspects
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive

_SHARED = ("crash", "boot", "depart")
"""A bookie's moves for both ledgers, offered as moves of the first."""
_ENTRIES_MAX = 2


class Second(NamedTuple):
    """Whether the second ledger was created, and the state of its world."""

    made: bool
    state: State


class InSecond(NamedTuple):
    before: State
    move: Move
    after: State


def world_of(options: SimulationOptions) -> World:
    return TwoLedgers(options) if options.second_ledger else World(options)


class TwoLedgers(World):
    """The world of the first ledger; its state has the number of the second ledger's state."""

    def __init__(self, options: SimulationOptions) -> None:
        super().__init__(options)
        little = replace(
            options,
            entries=min(options.entries, _ENTRIES_MAX),
            recoverers=1,
            readers=0,
            replicators=0,
            explicit_lacs=0,
            losses=0,
            duplicates=0,
            hold_ups=0,
            lost_bookies=0,
            holds_back=False,
            accept_loss=False,
        )
        self.second = World(little, SecondsBookie)
        self.second.met = self.met
        self._seconds: Table[Second] = Table()
        self._moves: Table[Move] = Table(tuple)
        self._groups: dict[int, Group] = {}
        self._seconds.number(Second(False, self.second.initial))

    @property
    def size(self) -> int:
        return super().size + self.second.size + len(self._seconds)

    # -- Possible moves

    def groups(self, state: State) -> list[Group]:
        return self.ahead(state).groups

    def ahead(self, state: State) -> MovesAhead:
        return _Ahead(self, state)

    def group_of_second(self, number: int) -> Group:
        """The possible moves of the second ledger, by the number of its state."""
        found = self._groups.get(number)
        if found is None:
            made, state = self._seconds[number]
            moves = [move for move in self.second.moves(state) if move.kind not in _SHARED] if made else []
            group = [Move("second", SECOND, self._moves.number(move)) for move in moves]
            found = self._groups[number] = tuple(group) if made else (Move("second", SECOND, -1),)
        return found

    # -- Effects of moves

    def apply(self, state: State, move: Move) -> State:
        kind, place, argument = move
        made, second = self._seconds[state[SECOND]]
        if kind == "second" and argument < 0:
            return self._with(state, Second(True, second))
        if kind == "second":
            inner = self._moves[argument]
            at = inner.place - self.second.slots_from
            if inner.kind == "collect":
                return self._collected(state, at)
            first = self._synced(self, state, at) if inner.kind == "sync" else state
            return self._with(first, Second(made, self.second.apply(second, inner)))
        at = place - self.slots_from
        if kind == "collect":
            return self._collected(state, at)
        if kind == "crash":
            return self._crashed(state, at)
        first = super().apply(state, move)
        if kind == "sync":
            return self._with(first, Second(made, self._synced(self.second, second, at)))
        if kind in _SHARED:
            return self._with(
                first, Second(made, self.second.apply(second, Move(kind, at + self.second.slots_from, argument)))
            )
        return first

    def _with(self, state: State, second: Second) -> State:
        return (*state[:SECOND], self._seconds.number(second), *state[SECOND + 1 :])

    def _synced(self, world: World, state: State, at: int) -> State:
        """Sync a bookie's disk, if this world's ledger waits for that."""
        place = at + world.slots_from
        waits = "sync" in world.slots.traits(state[place]).moves
        return world.apply(state, Move("sync", place)) if waits else state

    def _crashed(self, state: State, at: int) -> State:
        made, second = self._seconds[state[SECOND]]
        there = self._there(state)
        given_out = self.second.ledger_id if made else self.ledger_id
        places = at + self.slots_from, at + self.second.slots_from
        bookies = self.slots.bookie(state[places[0]]), self.second.slots.bookie(second[places[1]])
        unclean = any(bookie.unclean for bookie in bookies)
        found = Found(there, given_out, unclean)
        after, after_second = list(state), list(second)
        self.crash(after, places[0], found)
        self.second.crash(after_second, places[1], found)
        return self._with(tuple(after), Second(made, tuple(after_second)))

    def _there(self, state: State) -> tuple[LedgerMetadata, ...]:
        made, second = self._seconds[state[SECOND]]
        found = (self.metadata(state), self.second.metadata(second) if made else None)
        return tuple([metadata for metadata in found if metadata is not None])

    def _collected(self, state: State, at: int) -> State:
        made, second = self._seconds[state[SECOND]]
        places = at + self.slots_from, at + self.second.slots_from
        slots = ((self, state[places[0]]), (self.second, second[places[1]]))
        held = [world.ledger_id for world, slot in slots if world.slots.traits(slot).collectable]
        there = {metadata.ledger_id for metadata in self._there(state)}
        given_out = self.second.ledger_id if made else self.ledger_id
        asked = sort_suspects(suspects(held, Complete(there)), given_out).asked
        gone = collectable(asked, {one: Positive() if one in there else NO_SUCH_LEDGER for one in asked})
        after, after_second = list(state), list(second)
        after[places[0]] = self.slots.collect(after[places[0]], gone)
        after_second[places[1]] = self.second.slots.collect(after_second[places[1]], gone)
        return self._with(tuple(after), Second(made, tuple(after_second)))

    def move_of_second(self, argument: int) -> Move | None:
        """The move in the second ledger's world. None: the ledger's creation."""
        return None if argument < 0 else self._moves[argument]

    def in_second(self, state: State, argument: int) -> InSecond | None:
        """A move of the second ledger, with its states before and after. None: the ledger's creation."""
        if argument < 0:
            return None
        after = self.apply(state, Move("second", SECOND, argument))
        return InSecond(self._seconds[state[SECOND]].state, self._moves[argument], self._seconds[after[SECOND]].state)

    # -- Checks

    def is_made(self, state: State) -> bool:
        return self._seconds[state[SECOND]].made

    def state_of_second(self, state: State) -> State:
        return self._seconds[state[SECOND]].state

    def violation(self, state: State) -> Violation | None:
        return super().violation(state) or self._of_second(self.second.violation(self.state_of_second(state)))

    def violation_after(self, before: State, state: State) -> Violation | None:
        found = super().violation_after(before, state)
        if found is not None or before[SECOND] == state[SECOND]:
            return found
        return self._of_second(self.second.violation_after(self.state_of_second(before), self.state_of_second(state)))

    def _of_second(self, found: Violation | None) -> Violation | None:
        if found is None:
            return None
        return Violation(found.invariant, f"of ledger {self.second.ledger_id}, {found.what}")


class _Ahead(MovesAhead):
    """``MovesAhead``, with the second ledger's moves as the last group."""

    def __init__(self, world: TwoLedgers, state: State) -> None:
        self._world = world
        super().__init__(world.possible, state)

    def _find(self, state: State) -> None:
        super()._find(state)
        self.groups.append(self._world.group_of_second(state[SECOND]))

    def go_on(self, state: State) -> Sequence[int]:
        before = self._state
        changed = super().go_on(state)
        if before[SECOND] == state[SECOND]:
            return changed
        self.groups[-1] = self._world.group_of_second(state[SECOND])
        return [*changed, len(self.groups) - 1]
