"""Everything that may happen next in a world.

Law: the moves, and their order, depend on nothing but what the state says. Whatever may be lost, late or out of order in
production may be so here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.simulation.clients.client import BEGIN, Client
from bookspark.simulation.clients.recoverer import BeginAccepting
from bookspark.simulation.simulation_options import SimulationOptions
from bookspark.simulation.slots import Slots
from bookspark.simulation.state import CLIENTS, CRASHES, DEPARTURES, DUPLICATES, LOSSES, METADATA, Move, Record, State
from bookspark.simulation.values import Table

_Situation = tuple[int, int, bool, bool, bool, bool, bool, bool, int]
"""What the moves in a slot depend on: its place and number; whether crashes, losses, duplicates and departures are left; whether
the bookie may heal and the ledger was deleted; and up to which entry the writer sends nothing any more."""

_DELETE = (Move("delete", METADATA),)


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
        self._groups: dict[tuple[object, ...], tuple[Move, ...]] = {}

    def groups(self, state: State) -> list[tuple[Move, ...]]:
        """What may happen to the metadata, to each client and in each slot."""
        groups: list[tuple[Move, ...]] = []
        cached = self._groups
        slots_from = len(state) - len(self._bookies)
        crashes, losses, duplicates = state[CRASHES] > 0, state[LOSSES] > 0, state[DUPLICATES] > 0
        departures, named = state[DEPARTURES] > 0, self._named(state)
        deleted = self._records[state[METADATA]].deleted
        done_with = self._clients[state[CLIENTS]].done_with if self._options.holds_back else NO_ENTRY
        if self._options.deletes and not deleted:
            groups.append(_DELETE)
        for index in range(CLIENTS, slots_from):
            key: tuple[object, ...] = (index, state[index], losses, named)
            found = cached.get(key)
            if found is None:
                found = cached[key] = tuple(self._client_moves(index, state[index], losses, named))
            groups.append(found)
        for index in range(slots_from, len(state)):
            slot = state[index]
            heals = self._options.heals and self._may_heal(state, index)
            situation = (index, slot, crashes, losses, duplicates, departures, heals, deleted, done_with)
            found = cached.get(situation)
            if found is None:
                found = cached[situation] = tuple(self._slot_moves(situation))
            groups.append(found)
        return groups

    def _named(self, state: State) -> tuple[str, ...] | None:
        """The bookies that an operator declares lost; None if nobody accepts a loss."""
        if not self._options.accept_loss:
            return None
        slots = zip(self._bookies, state[len(state) - len(self._bookies) :], strict=True)
        return tuple(name for name, slot in slots if not self._options.named_losses or self._slots.moves(slot).gone)

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

    def _slot_moves(self, situation: _Situation) -> Iterator[Move]:
        index, slot, crashes, losses, duplicates, departures, heals, deleted, done_with = situation
        found = self._slots.moves(slot)
        for message in found.requests:
            yield Move("request", index, message)
            if self._slots.messages[message].is_add_of_writer_up_to(done_with):
                yield Move("forget", index, message)
        for message in found.answers:
            yield Move("answer", index, message)
        for kind in found.others:
            yield Move(kind, index)
        if crashes and "boot" not in found.others and not found.gone:
            yield Move("crash", index)
        if departures and not found.gone:
            yield Move("depart", index)
        for message in found.fallible:
            if losses or (found.gone and message not in found.answers):
                yield Move("timeout", index, message)
            if duplicates and message in found.requests:
                yield Move("duplicate", index, message)
        if heals and found.limbo_boot:
            yield Move("heal", index)
        if deleted and found.collectable:
            yield Move("collect", index)

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
