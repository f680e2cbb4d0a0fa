"""Everything that may happen next in a world.

Law: the moves, and their order, depend on nothing but what the state says. Whatever may be lost, late or out of order in
production may be so here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.simulation.clients.client import BEGIN, Client
from bookspark.simulation.clients.recoverer import BeginAccepting
from bookspark.simulation.simulation_options import SimulationOptions
from bookspark.simulation.slots import Slots
from bookspark.simulation.state import CLIENTS, CRASHES, DEPARTURES, DUPLICATES, LOSSES, METADATA, Move, Record, State
from bookspark.simulation.values import Table

_Budgets = tuple[bool, bool, bool, bool]
"""Whether crashes, losses, duplicates and departures are left."""
_Named = tuple[str, ...] | None
_Slots = dict[int, tuple[Move, ...]]

_DELETE = (Move("delete", METADATA),)
_move: Callable[[tuple[str, int, int]], Move] = partial(tuple.__new__, Move)
"""Schedules make some ten thousand moves a second, and a named tuple's own way takes twice as long."""


class PossibleMoves:
    """The moves of one world, which shares its tables with this. Each group is made once and lives as long as the world."""

    def __init__(
        self,
        options: SimulationOptions,
        bookies: tuple[str, ...],
        records: Table[Record],
        clients: Table[Client],
        events: Table[Any],
        slots: Slots,
    ) -> None:
        self._options = options
        self._bookies = bookies
        self._records = records
        self._clients = clients
        self._events = events
        self._slots = slots
        self._choices: dict[int, tuple[tuple[str, int], ...]] = {}
        self._client_groups: dict[tuple[object, ...], _Slots] = {}
        self._slot_groups: dict[tuple[object, ...], _Slots] = {}
        self._tables: dict[tuple[object, ...], list[_Slots]] = {}

    def groups(self, state: State) -> list[tuple[Move, ...]]:
        """What may happen to the metadata, to each client and in each slot."""
        o = self._options
        deleted = o.deletes and self._records[state[METADATA]].deleted
        done_with = self._clients[state[CLIENTS]].done_with if o.holds_back else NO_ENTRY
        named = self._named(state) if o.accept_loss else None
        key = (state[CRASHES:CLIENTS], deleted, done_with, named)
        tables = self._tables.get(key)
        if tables is None:
            tables = self._tables[key] = self._tables_of(state, deleted, done_with, named)
        numbers: Iterable[Any] = state[CLIENTS:] if not o.heals else self._numbers_with_heals(state)
        found: list[Any] = [table.get(number) for table, number in zip(tables, numbers, strict=True)]
        if None in found:
            self._fill(found, state, tables, deleted, done_with, named)
        return [_DELETE, *found] if o.deletes and not deleted else found

    def _tables_of(self, state: State, deleted: bool, done_with: int, named: _Named) -> list[_Slots]:
        """The groups of each place by the number that is there, as far as the rest of the state has a say in them."""
        slots_from, budgets = len(state) - len(self._bookies), _budgets(state)
        losses = state[LOSSES] > 0
        tables = [self._client_groups.setdefault((index, losses, named), {}) for index in range(CLIENTS, slots_from)]
        for index in range(slots_from, len(state)):
            tables.append(self._slot_groups.setdefault((index, budgets, deleted, done_with), {}))
        return tables

    def _numbers_with_heals(self, state: State) -> list[Any]:
        """A bookie may heal only if its healing is not under way."""
        slots_from = len(state) - len(self._bookies)
        slots = [(state[index], self._may_heal(state, index)) for index in range(slots_from, len(state))]
        return [*state[CLIENTS:slots_from], *slots]

    def _fill(
        self, found: list[Any], state: State, tables: list[_Slots], deleted: bool, done_with: int, named: _Named
    ) -> None:
        slots_from, budgets, heals = len(state) - len(self._bookies), _budgets(state), self._options.heals
        for at, group in enumerate(found):
            if group is None:
                index = CLIENTS + at
                number: Any = state[index]
                if index < slots_from:
                    group = tuple(self._client_moves(index, number, state[LOSSES] > 0, named))
                else:
                    may_heal = heals and self._may_heal(state, index)
                    group = self._slot_moves(index, number, budgets, may_heal, deleted, done_with)
                    number = (number, may_heal) if heals else number
                found[at] = tables[at][number] = group

    def _named(self, state: State) -> tuple[str, ...]:
        """The bookies that an operator declares lost."""
        slots = zip(self._bookies, state[len(state) - len(self._bookies) :], strict=True)
        return tuple(name for name, slot in slots if not self._options.named_losses or self._slots.traits(slot).gone)

    def _client_moves(self, index: int, client: int, losses: bool, named: tuple[str, ...] | None) -> Iterator[Move]:
        for kind, what in self.choices(client):
            if named is not None and self._clients[client].kind == "recoverer" and self._events[what] is BEGIN:
                yield Move(kind, index, self._events.number(BeginAccepting(named)))
            else:
                yield Move(kind, index, what)
        if losses:
            # What a client may give up: a request to the metadata store, or, except for the writer, the whole thing.
            told = self._clients[client]
            if told.store is not None or told.choosing is not None:
                yield Move("store_lost", index)
            if told.machine is not None and index > CLIENTS:
                yield Move("deadline", index)

    def _slot_moves(
        self, index: int, slot: int, budgets: _Budgets, heals: bool, deleted: bool, done_with: int
    ) -> tuple[Move, ...]:
        """Equal messages under way are named once. They are neighbours."""
        crashes, losses, duplicates, departures = budgets
        bookie, all_traits = self._slots.traits(slot), self._slots.message_traits
        moves: list[Move] = []
        answers: list[Move] = []
        troubles: list[Move] = []
        last = -1
        for message in self._slots.table.values[slot][1]:
            if message == last:
                continue
            last = message
            request, fallible, reachable = all_traits[message]
            if request and bookie.serves:
                moves.append(_move(("request", index, message)))
                if done_with > NO_ENTRY and self._slots.messages[message].is_add_of_writer_up_to(done_with):
                    moves.append(_move(("forget", index, message)))
            is_answer = not request and (bookie.serves or not reachable)
            if is_answer:
                answers.append(_move(("answer", index, message)))
            if fallible:
                if losses or (bookie.gone and not is_answer):
                    troubles.append(_move(("timeout", index, message)))
                if duplicates and request and bookie.serves:
                    troubles.append(_move(("duplicate", index, message)))
        moves += answers
        moves += [_move((kind, index, 0)) for kind in bookie.moves]
        if crashes and not bookie.gone and "boot" not in bookie.moves:
            moves.append(_move(("crash", index, 0)))
        if departures and not bookie.gone:
            moves.append(_move(("depart", index, 0)))
        moves += troubles
        if heals and bookie.limbo_boot:
            moves.append(_move(("heal", index, 0)))
        if deleted and bookie.collectable:
            moves.append(_move(("collect", index, 0)))
        return tuple(moves)

    def choices(self, client: int) -> tuple[tuple[str, int], ...]:
        """(kind, argument) of what a client's user and the metadata store may do."""
        found = self._choices.get(client)
        if found is None:
            told = self._clients[client]
            events = [*told.choices(), *told.placements(self._bookies)]
            choices = [("user", self._events.number(event)) for event in events]
            if told.store is not None:
                choices.append(("store", 0))
            found = self._choices[client] = tuple(choices)
        return found

    def _may_heal(self, state: State, index: int) -> bool:
        return self._clients[state[index - len(self._bookies)]].machine is None


def _budgets(state: State) -> _Budgets:
    return state[CRASHES] > 0, state[LOSSES] > 0, state[DUPLICATES] > 0, state[DEPARTURES] > 0
