"""The world around the real machines: messages, disks and metadata, and the effect of each move on them.

Law: a state is a value (``state``), and a move leads to exactly one state, so a list of moves is a replay. All losses,
delays and reorderings of production are possible (``moves``): a request may arrive at any later time, even after its
time-out, an answer may wait for any time, and a bookie may crash between any two moves.

Components have numbers from tables (``values``), and each step is made once. A read of metadata is a single move: a late
answer equals a read just before its client's next move. A write takes two moves: the compare-and-set, and its answer.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any, NamedTuple

from bookspark.errors import MetadataStoreError, NoSuchLedgerError
from bookspark.lab.simulation.bookie import Found, SimulatedBookie
from bookspark.lab.simulation.clients.client import Begin, Client, Crashed, Heal, WriteTaken
from bookspark.lab.simulation.clients.reader import ReaderClient
from bookspark.lab.simulation.clients.recoverer import RecovererClient
from bookspark.lab.simulation.clients.repair import HealingClient, ReplicatorClient
from bookspark.lab.simulation.clients.writer import WriterClient
from bookspark.lab.simulation.messages import Message, Reachable, event_of, unanswered
from bookspark.lab.simulation.moves import MovesAhead, PossibleMoves
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.slots import Slots
from bookspark.lab.simulation.state import (
    CLIENTS,
    CRASHES,
    DEPARTURES,
    DUPLICATES,
    LOSSES,
    METADATA,
    Move,
    Record,
    State,
)
from bookspark.lab.simulation.values import Table, clone, freeze_fields
from bookspark.lab.simulation.verdicts import Verdicts
from bookspark.lab.simulation.view import Violation, WorldView
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import WRITE_QUORUM_LABEL, Fragment, LedgerMetadata, LedgerType
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_events import PassedOver

# -- Clients of a world, their order and their names in stories.
#
# Law: a client's number is its index in this order. The writer is number 0.


def make_clients(
    metadata: LedgerMetadata, version: int, bookies: tuple[str, ...], options: SimulationOptions
) -> list[Client]:
    """The writer first, then recoverers, readers, replicators, and with ``heals`` a healing client for each bookie."""
    clients: list[Client] = [WriterClient(metadata, version, options)]
    clients += [RecovererClient() for _ in range(options.recoverers)]
    clients += [ReaderClient(options) for _ in range(options.readers)]
    clients += [ReplicatorClient(bookies, options.is_small) for _ in range(options.replicators)]
    if options.heals:
        clients += [HealingClient(bookie) for bookie in bookies]
    return clients


def names_of(clients: list[Client]) -> tuple[str, ...]:
    """The kind of each client, with a number among several of the same kind."""
    names: list[str] = []
    for client in clients:
        if isinstance(client, HealingClient):
            names.append(f"healing of {client.bookie}")
            continue
        same = sum(other.kind == client.kind for other in clients)
        count = 1 + sum(name.startswith(client.kind) for name in names)
        names.append(f"{client.kind} {count}" if same > 1 else client.kind)
    return tuple(names)


# -- The world


_TIMEOUT = Unknown(UnknownReason.TIMEOUT)
_STORE_LOST = act.MetadataFailed(MetadataStoreError("no answer in time"))
_DELETED = act.MetadataFailed(NoSuchLedgerError("the ledger was deleted"))


class Met(NamedTuple):
    """An event that came to a machine in a state; a writer has two states: its phase and its pending question."""

    machine: type
    states: tuple[Enum, ...]
    event: type


class ClientStep(NamedTuple):
    """A client's step: its state after it, (slot, message) for each request, and whether the client is done."""

    after: int
    sends: tuple[tuple[int, int], ...]
    idle: bool


class World:
    """All possible events of a ledger under ``options``."""

    def __init__(self, options: SimulationOptions, bookie: type[SimulatedBookie] = SimulatedBookie) -> None:
        self.options = options
        self.ledger_id = bookie.ledger_id
        self.bookies = tuple(f"b{i + 1}" for i in range(options.ensemble + options.spares))
        metadata = LedgerMetadata(
            self.ledger_id,
            options.ensemble,
            options.write_quorum,
            options.ack_quorum,
            (Fragment(0, self.bookies[: options.ensemble]),),
            master_key=bookie.master_key,
            ledger_type=options.ledger_type,
            replication=options.replication,
            custom_metadata={WRITE_QUORUM_LABEL: str(options.copies_wanted).encode()} if options.is_small else {},
        )
        clients = make_clients(metadata, 0, self.bookies, options)
        self.client_names = names_of(clients)
        self.slots_from = CLIENTS + len(clients)
        self.records: Table[Record] = Table()
        self.clients: Table[Client] = Table()
        self.events: Table[Any] = Table(_event_key)
        self.slots = Slots(options, bookie)
        self.origins: dict[int, tuple[int, int, int]] = {}
        """For each client state: place, state and event of the step that first led to it."""
        self.met: set[Met] = set()
        """Pairs of machine states and events met so far (``search.coverage``)."""
        self._steps: dict[tuple[int, int, int], ClientStep] = {}
        self.possible = PossibleMoves(
            options, self.bookies, self.records, self.clients, self.events, self.slots, self.slots_from
        )
        self._answered: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._unanswered: dict[tuple[int, int], tuple[int, int]] = {}
        self._served: dict[tuple[int, int], tuple[int, int]] = {}
        self.verdicts = Verdicts(options, self.bookies, self.slots_from, self.records, self.clients, self.slots)
        self._instant = options.crash_loses is CrashLoses.EVERYTHING
        self._is_volatile = options.ledger_type is LedgerType.VD_JOURNAL
        self.initial: State = (
            self.records.number(Record(metadata, 0)),
            options.crashes,
            options.losses,
            options.duplicates,
            options.departures,
            0,
            *(self.clients.number(client) for client in clients),
            *(self.slots.empty for _ in self.bookies),
        )

    @property
    def size(self) -> int:
        """Count of numbers in the tables."""
        return len(self.verdicts) + len(self.slots.table) + len(self.clients)

    # -- Possible moves

    def moves(self, state: State) -> list[Move]:
        """All possible next moves, in an order that depends on the state only."""
        return [move for group in self.groups(state) for move in group]

    def groups(self, state: State) -> list[tuple[Move, ...]]:
        """``moves``, grouped by place. A group is made once and lives as long as the world."""
        return self.possible.groups(state)

    def ahead(self, state: State) -> MovesAhead:
        """``groups``, to be updated move by move from ``state``."""
        return MovesAhead(self.possible, state)

    def choices(self, client: int) -> tuple[tuple[str, int], ...]:
        """(kind, argument) of each possible move of a client's user and of the metadata store for it."""
        return self.possible.choices(client)

    # -- Effects of moves

    def apply(self, state: State, move: Move) -> State:
        kind, index, argument = move
        after = list(state)
        slot = state[index]
        match kind:
            case "request":
                after[index] = self.slots.deliver(slot, argument, sync_at_once=self.sync_at_once(state))
            case "answer":
                if isinstance(self.slots.messages[argument].body, Reachable):
                    self._cut_off(after, index)
                after[index] = self.slots.arrive(after[index], argument)
                client, event = self.answered(index, argument, self.slots.bookie(slot).incarnation)
                self.step(after, client, event)
            case "forget":
                after[index] = self.slots.take(slot, argument)
                bookie = self.bookies[index - self.slots_from]
                self.step(after, CLIENTS, self.events.number(PassedOver(bookie)))
            case "user":
                self.step(after, index, argument)
                if isinstance(self.events[argument], Begin):
                    self._serve(after, index)
            case "store":
                self._serve(after, index)
            case "delete":
                after[METADATA] = self.records.number(self.records[state[METADATA]]._replace(deleted=True))
            case "depart":
                after[DEPARTURES] -= 1
                after[index] = self.slots.change(slot, kind, sync_at_once=False)
                if self.options.heals:
                    self.step(after, index - len(self.bookies), self.events.number(Crashed()))
            case "collect":
                after[index] = self.slots.collect(slot, (self.ledger_id,))
            case "boot" | "sync" | "told":
                after[index] = self.slots.change(slot, kind, sync_at_once=self.sync_at_once(state))
            case "ask":
                name = self.bookies[index - self.slots_from]
                after[index] = self.slots.ask(slot, name, self.metadata(state), state[METADATA])
            case "crash":
                metadata = self.metadata(state)
                self.crash(after, index, Found(() if metadata is None else (metadata,)))
            case "heal":
                healing = index - len(self.bookies)
                self.step(after, healing, self.events.number(Heal(self.slots.traits(slot).limbo_boot)))
                self._serve(after, healing)
            case "timeout":
                if not self.slots.traits(slot).gone:
                    after[LOSSES] -= 1
                self._time_out(after, index, self.slots.messages[argument], argument)
            case "store_lost" | "deadline":
                after[LOSSES] -= 1
                self.step(
                    after, index, self.events.number(_STORE_LOST if kind == "store_lost" else act.DeadlinePassed())
                )
            case "duplicate":
                after[DUPLICATES] -= 1
                sync_at_once = self.sync_at_once(state)
                after[index] = self.slots.deliver(slot, argument, sync_at_once=sync_at_once, kept=True)
            case _:
                raise AssertionError(f"unknown move {kind}")
        return tuple(after)

    def heard(self, state: State, index: int, message: int, incarnation: int) -> State:
        """The state after an answer, other than a new connection, from a bookie of this incarnation. ``state`` may have
        symbolic slots."""
        after = list(state)
        after[index] = self.slots.take(after[index], message)
        self.step(after, *self.answered(index, message, incarnation))
        return tuple(after)

    def sync_at_once(self, state: State) -> bool:
        """Whether everything is synced at once: true if no crash can show the difference."""
        return not self._is_volatile and (self._instant or not state[CRASHES])

    def metadata(self, state: State) -> LedgerMetadata | None:
        """The ledger's metadata in the metadata store. None for a deleted ledger."""
        record = self.records[state[METADATA]]
        return None if record.deleted else record.metadata

    def crash(self, after: list[int], index: int, found: Found) -> None:
        after[CRASHES] -= 1
        after[index] = self.slots.crash(after[index], self.bookies[index - self.slots_from], found)
        if self._is_volatile or self.options.losses:
            self._reconnect(after, index)
        if self.options.heals:
            self.step(after, index - len(self.bookies), self.events.number(Crashed()))

    def _reconnect(self, after: list[int], index: int) -> None:
        """Let the writer connect to the bookie again."""
        again = self.slots.message(Message(0, Reachable()))
        if self.slots.traits(after[index]).gone:
            return
        if again not in self.slots.table[after[index]].messages and self.clients[after[CLIENTS]].machine is not None:
            after[index] = self.slots.put(after[index], again)

    def _cut_off(self, after: list[int], index: int) -> None:
        """Time out the writer's messages of the old connection, before it learns of the new connection."""
        for number in self.slots.table[after[index]].messages:
            message = self.slots.messages[number]
            if message.client == 0 and not isinstance(message.body, Reachable):
                self._time_out(after, index, message, number)

    def _time_out(self, after: list[int], index: int, message: Message, number: int) -> None:
        after[index] = self.slots.time_out(after[index], number)
        if message.client == 0:
            self._reconnect(after, index)
        found = self._unanswered.get((index, number))
        if found is None:
            told = Message(message.client, unanswered(message.body, _TIMEOUT))
            found = self._unanswered[index, number] = self.event(
                index, told, self.slots.bookie(after[index]).incarnation
            )
        self.step(after, *found)

    # -- clients

    def event(self, index: int, message: Message, incarnation: int) -> tuple[int, int]:
        """The place of the receiving client, and its event, for ``message`` from the bookie at ``index``."""
        event = event_of(self.bookies[index - self.slots_from], message.body, incarnation)  # type: ignore[arg-type]
        return CLIENTS + message.client, self.events.number(event)

    def answered(self, index: int, message: int, incarnation: int) -> tuple[int, int]:
        """``event`` for the number of a message."""
        key = (index, message, incarnation)
        found = self._answered.get(key)
        if found is None:
            found = self._answered[key] = self.event(index, self.slots.messages[message], incarnation)
        return found

    def step(self, after: list[int], index: int, event: int) -> None:
        """Step a client, and send its requests."""
        found = self.client_step(index, after[index], event)
        after[index] = found.after
        for slot, message in found.sends:
            after[slot] = self.slots.put(after[slot], message)
        if found.idle:
            for slot in range(self.slots_from, len(after)):
                after[slot] = self.slots.leave(after[slot], index - CLIENTS)

    def client_step(self, index: int, client: int, event: int) -> ClientStep:
        """The real machine's step, made once."""
        key = (index, client, event)
        found = self._steps.get(key)
        if found is None:
            copy = clone(self.clients[client])
            if copy.machine is not None:
                self.met.add(Met(type(copy.machine), _states(copy.machine), type(self.events[event])))
            sends, _ = copy.stepped(self.events[event], self.options)
            after = self.clients.number(copy)
            self.origins.setdefault(after, key)
            messages: list[tuple[int, int]] = []
            last: Any = None
            for bookie, request in sends:
                # Mostly the same request to several bookies.
                if request is not last:
                    last, number = request, self.slots.message(Message(index - CLIENTS, request))
                messages.append((self.slots_from + self.bookies.index(bookie), number))
            idle = copy.machine is None and self.clients[client].machine is not None
            found = self._steps[key] = ClientStep(after, tuple(messages), idle)
        return found

    def _serve(self, after: list[int], index: int) -> None:
        """Apply the client's request in the metadata store, or deliver its answer."""
        key = (after[index], after[METADATA])
        found = self._served.get(key)
        if found is None:
            record = self.records[after[METADATA]]
            event: Any = self.clients[after[index]].store
            if isinstance(event, act.ReadMetadata):
                event = _DELETED if record.deleted else act.MetadataRead(record.metadata, record.version)
            elif isinstance(event, act.WriteMetadata) and record.deleted:
                event = WriteTaken(_DELETED)
            elif isinstance(event, act.WriteMetadata):
                if event.version == record.version:
                    record = Record(event.metadata, record.version + 1)
                    event = WriteTaken(act.MetadataWritten(record.version))
                else:
                    event = WriteTaken(act.MetadataConflict())
            found = self._served[key] = (self.records.number(record), self.events.number(event))
        after[METADATA], told = found
        self.step(after, index, told)

    # -- Checks

    def violation(self, state: State) -> Violation | None:
        """The first checker's violation in ``state``, or None."""
        return self.verdicts.of(state)

    def violation_after(self, before: State, state: State) -> Violation | None:
        """``violation`` of a state that follows ``before``, itself without a violation."""
        return self.verdicts.after(before, state)

    def view(self, state: State) -> WorldView:
        """The state as seen by checkers and stories. Callers must not change it."""
        record = self.records[state[METADATA]]
        bookies = (self.slots.bookie(slot) for slot in state[self.slots_from :])
        return WorldView(
            self.options,
            record.metadata,
            tuple(self.clients[number] for number in state[CLIENTS : self.slots_from]),
            dict(zip(self.bookies, bookies, strict=True)),
            record.deleted,
        )


def _event_key(event: Any) -> Hashable:
    """Equal for events with equal fields, except that an error counts by its message, which stories quote."""
    return (act.NoBookies, str(event.error)) if isinstance(event, act.NoBookies) else freeze_fields(event)


def _states(machine: Any) -> tuple[Enum, ...]:
    return (machine.state, machine.asked) if isinstance(machine, LedgerWriter) else (machine.phase,)
