"""All possible next moves in a world.

Law: the moves, and their order, depend on the state only. All losses, delays and reorderings of production are possible here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from bookspark.lab.simulation.clients.client import BEGIN, Client
from bookspark.lab.simulation.clients.recoverer import BeginAccepting
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.slots import Slots
from bookspark.lab.simulation.state import (
    CLIENTS,
    CRASHES,
    DEPARTURES,
    DUPLICATES,
    LOSSES,
    METADATA,
    SECOND,
    Move,
    Record,
    State,
)
from bookspark.lab.simulation.values import Table
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY

Group = tuple[Move, ...]
_Groups = dict[int, Group]


class Terms(NamedTuple):
    """Facts that decide the moves of more than one place: remaining budgets, and deleted, finished and named things."""

    crashes: bool
    losses: bool
    duplicates: bool
    departures: bool
    deleted: bool
    done_with: int
    named: tuple[str, ...] | None


_DELETE = (Move("delete", METADATA),)
_move: Callable[[tuple[str, int, int]], Move] = partial(tuple.__new__, Move)
"""About 10,000 moves a second are made, and NamedTuple's own constructor takes twice as long."""


class PossibleMoves:
    """The moves of a world, which shares its tables with this object. A group is made once and lives as long as the world."""

    def __init__(
        self,
        options: SimulationOptions,
        bookies: tuple[str, ...],
        records: Table[Record],
        clients: Table[Client],
        events: Table[Any],
        slots: Slots,
        slots_from: int,
    ) -> None:
        self._options = options
        self._slots_from = slots_from
        self._bookies = bookies
        self._records = records
        self._clients = clients
        self._events = events
        self._slots = slots
        self._choices: dict[int, tuple[tuple[str, int], ...]] = {}
        self._client_groups: dict[tuple[object, ...], _Groups] = {}
        self._slot_groups: dict[tuple[object, ...], _Groups] = {}
        self._tables: dict[Terms, list[_Groups]] = {}

    def groups(self, state: State) -> list[Group]:
        """The possible moves of the metadata, of each client and of each slot."""
        return MovesAhead(self, state).groups

    def terms(self, state: State) -> Terms:
        o = self._options
        return Terms(
            state[CRASHES] > 0,
            state[LOSSES] > 0,
            state[DUPLICATES] > 0,
            state[DEPARTURES] > 0,
            o.deletes and self._records[state[METADATA]].deleted,
            self._clients[state[CLIENTS]].done_with if o.holds_back else NO_ENTRY,
            self._named(state) if o.accept_loss else None,
        )

    def same_terms(self, before: State, after: State) -> bool:
        """Whether the terms surely equal those of ``before``. Named bookies change only with a departure."""
        o = self._options
        return (
            before[CRASHES:SECOND] == after[CRASHES:SECOND]
            and (before[METADATA] == after[METADATA] or not o.deletes)
            and (before[CLIENTS] == after[CLIENTS] or not o.holds_back)
        )

    def tables(self, terms: Terms) -> list[_Groups]:
        """For each place, its groups by number (``numbers``)."""
        found = self._tables.get(terms)
        if found is None:
            clients, slots = (terms.losses, terms.named), terms[:-1]
            found = [
                self._client_groups.setdefault((index, *clients), {}) for index in range(CLIENTS, self._slots_from)
            ]
            for index in range(self._slots_from, self._slots_from + len(self._bookies)):
                found.append(self._slot_groups.setdefault((index, *slots), {}))
            self._tables[terms] = found
        return found

    def numbers(self, state: State) -> Sequence[int]:
        """The facts that decide the groups beside the terms. The complement of a slot's number allows the bookie to heal:
        its healing is not under way."""
        if not self._options.heals:
            return state[CLIENTS:]
        numbers, healing = list(state[CLIENTS:]), self._slots_from - len(self._bookies)
        for at in range(self._slots_from, len(state)):
            client = state[healing]
            healing += 1
            if self._clients.values[client].machine is None:
                numbers[at - CLIENTS] = ~state[at]
        return numbers

    def moves_of_clients(self, state: State, terms: Terms) -> list[Move]:
        moves = list(_DELETE) if self._options.deletes and not terms.deleted else []
        for index in range(CLIENTS, self._slots_from):
            moves += self.group_of(index, state[index], terms)
        return moves

    def group_of(self, index: int, number: int, terms: Terms) -> Group:
        table = self.tables(terms)[index - CLIENTS]
        found = table.get(number)
        if found is None:
            found = table[number] = self.group(index, number, terms)
        return found

    def group(self, index: int, number: int, terms: Terms) -> Group:
        """The moves at a place, to be made once."""
        if index < self._slots_from:
            return tuple(self._client_moves(index, number, terms))
        return self._slot_moves(index, number if number >= 0 else ~number, terms, heals=number < 0)

    @property
    def may_delete(self) -> bool:
        return self._options.deletes

    def _named(self, state: State) -> tuple[str, ...]:
        """The bookies that an operator declares lost."""
        slots = zip(self._bookies, state[self._slots_from :], strict=True)
        return tuple(name for name, slot in slots if not self._options.named_losses or self._slots.traits(slot).gone)

    def _client_moves(self, index: int, client: int, terms: Terms) -> Iterator[Move]:
        named = terms.named
        for kind, what in self.choices(client):
            if named is not None and self._clients[client].kind == "recoverer" and self._events[what] is BEGIN:
                yield Move(kind, index, self._events.number(BeginAccepting(named)))
            else:
                yield Move(kind, index, what)
        if terms.losses:
            # A client may give up a request to the metadata store, or, except for the writer, the whole operation.
            told = self._clients[client]
            if told.store is not None or told.choosing is not None:
                yield Move("store_lost", index)
            if told.machine is not None and index > CLIENTS:
                yield Move("deadline", index)

    def _slot_moves(self, index: int, slot: int, terms: Terms, heals: bool) -> Group:
        """Equal messages under way, which are neighbours, give one move."""
        crashes, losses, duplicates, departures, deleted, done_with, _ = terms
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
        if crashes and not bookie.gone:
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
        """(kind, argument) of each possible move of a client's user and of the metadata store for it."""
        found = self._choices.get(client)
        if found is None:
            told = self._clients[client]
            events = [*told.choices(), *told.placements(self._bookies)]
            choices = [("user", self._events.number(event)) for event in events]
            if told.store is not None:
                choices.append(("store", 0))
            found = self._choices[client] = tuple(choices)
        return found


class MovesAhead:
    """The moves of a state. After each further move, only changed places are looked up again."""

    def __init__(self, possible: PossibleMoves, state: State) -> None:
        self.groups: list[Group] = []
        self._possible = possible
        self._find(state)

    def _find(self, state: State) -> None:
        possible = self._possible
        self._state = state
        self._terms = possible.terms(state)
        self._tables = possible.tables(self._terms)
        self._numbers = possible.numbers(state)
        self._first = 1 if possible.may_delete and not self._terms.deleted else 0
        self.groups[:] = [_DELETE] * self._first
        for at in range(len(self._numbers)):
            self.groups.append(self._group(at))

    def _group(self, at: int) -> Group:
        number, table = self._numbers[at], self._tables[at]
        found = table.get(number)
        if found is None:
            found = table[number] = self._possible.group(CLIENTS + at, number, self._terms)
        return found

    def go_on(self, state: State) -> Sequence[int]:
        """Advance to ``state``, the successor of the current state. Returns the indices of the groups that were looked up."""
        if not self._possible.same_terms(self._state, state):
            self._find(state)
            return range(len(self.groups))
        before, numbers = self._numbers, self._possible.numbers(state)
        self._state, self._numbers = state, numbers
        changed: list[int] = []
        for at in range(len(numbers)):
            if numbers[at] != before[at]:
                self.groups[self._first + at] = self._group(at)
                changed.append(self._first + at)
        return changed
