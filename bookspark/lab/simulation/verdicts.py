"""The checkers' verdicts on states, each made once.

Law: a checker sees only the parts of a state that ``seen`` and ``SeenBookie`` name (``view``); other reads raise. So states
with equal visible parts share a verdict, and most states of a schedule equal an earlier state in them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from bookspark.lab.simulation.bookie import Row, SimulatedBookie
from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.lab.simulation.clients.client import Client
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.slots import Slots
from bookspark.lab.simulation.state import CLIENTS, METADATA, Record, State
from bookspark.lab.simulation.values import Table, freeze
from bookspark.lab.simulation.view import Violation, WorldView
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata


class SeenLedger(NamedTuple):
    """The visible part of a bookie's knowledge of the ledger."""

    last_add_confirmed: int


class SeenBookie(NamedTuple):
    """The visible part of a bookie."""

    rows: Mapping[int, Row]
    ledger: SeenLedger | None
    lost_boots: int
    gone: bool
    defect: str


class Alike(NamedTuple):
    """States with equal visible ledger and clients: the view ids of these, and verdicts by the view ids of the bookies."""

    seen: State
    verdicts: dict[tuple[int, ...], Violation | None]


class Verdicts:
    """The verdicts of a world, which shares its tables with this object."""

    def __init__(
        self,
        options: SimulationOptions,
        bookies: tuple[str, ...],
        slots_from: int,
        records: Table[Record],
        clients: Table[Client],
        slots: Slots,
    ) -> None:
        self._options = options
        self._bookies = bookies
        self._slots_from = slots_from
        self._records = records
        self._clients = clients
        self._slots = slots
        self._seen_ledgers: Table[tuple[LedgerMetadata, bool]] = Table(tuple)
        self._seen_clients: Table[Client] = Table(_looks_of_client, _seen)
        self._seen_bookies: Table[SeenBookie] = Table(_looks_of_bookie, _seen_bookie)
        # View ids, indexed by record, client, bookie and slot number.
        self._by_record: list[int] = []
        self._by_client: list[int] = []
        self._by_bookie: list[int] = []
        self._by_slot: list[int] = []
        self._alike: dict[State, Alike] = {}
        self._judged = 0

    def __len__(self) -> int:
        return self._judged

    def of(self, state: State) -> Violation | None:
        """The first checker's violation in ``state``, or None."""
        return self.of_slots(self.alike(state), state[self._slots_from :])

    def after(self, before: State, state: State) -> Violation | None:
        """The verdict of ``state``, which follows ``before``, itself without a violation."""
        if len(self._by_client) != len(self._clients.values):
            self._look()
        by_client, slots, start = self._by_client, self._slots.table.values, self._slots_from
        seen = before[METADATA] == state[METADATA]
        for place in range(CLIENTS, start):
            was, now = before[place], state[place]
            if was != now and by_client[was] != by_client[now]:
                seen = False
        for place in range(start, len(state)):
            was, now = before[place], state[place]
            if was != now and slots[was][0] != slots[now][0]:
                seen = False
        return None if seen else self.of(state)

    def alike(self, state: State) -> Alike:
        """The states whose ledger and clients look the same as in ``state``."""
        if len(self._by_client) != len(self._clients.values) or len(self._by_record) != len(self._records.values):
            self._look()
        by_client = self._by_client
        clients = state[CLIENTS : self._slots_from]
        key = (self._by_record[state[METADATA]], *[by_client[number] for number in clients])
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = Alike(key, {})
        return found

    def of_slots(self, alike: Alike, slots: tuple[int, ...]) -> Violation | None:
        """The verdict of such a state with these slots."""
        by_slot = self._by_slot
        if len(by_slot) != len(self._slots.table.values):
            self._look()
        key = tuple([by_slot[number] for number in slots])
        try:
            return alike.verdicts[key]
        except KeyError:
            self._judged += 1
            verdict = alike.verdicts[key] = self._judge(alike.seen, key)
            return verdict

    def _look(self) -> None:
        """Assign view ids to new values of the tables."""
        slots, records, clients = self._slots, self._records.values, self._clients.values
        if len(self._by_slot) < len(slots.table.values):
            bookies, by_bookie = slots.bookies.values, self._by_bookie
            by_bookie += [self._seen_bookies.number(one) for one in bookies[len(by_bookie) :]]
            self._by_slot += [by_bookie[slot[0]] for slot in slots.table.values[len(self._by_slot) :]]
        if len(self._by_client) < len(clients):
            self._by_client += [self._seen_clients.number(one) for one in clients[len(self._by_client) :]]
        if len(self._by_record) < len(records):
            new = records[len(self._by_record) :]
            self._by_record += [self._seen_ledgers.number((one.metadata, one.deleted)) for one in new]

    def _judge(self, ledger_and_clients: State, bookies: tuple[int, ...]) -> Violation | None:
        ledger, *clients = ledger_and_clients
        metadata, deleted = self._seen_ledgers[ledger]
        seen: Any = [self._seen_bookies[number] for number in bookies]
        view = WorldView(
            self._options,
            metadata,
            tuple(self._seen_clients[number] for number in clients),
            dict(zip(self._bookies, seen, strict=True)),
            deleted,
        )
        found = ((name, check(view)) for name, check in CHECKERS.items())
        return next((Violation(name, what) for name, what in found if what is not None), None)


def _looks_of_client(client: Client) -> Hashable:
    """Equal for clients with equal visible parts."""
    return (type(client), *[freeze(getattr(client, name)) for name in client.seen])


def _looks_of_bookie(bookie: SimulatedBookie) -> Hashable:
    rows = frozenset([(entry_id, row.content) for entry_id, row in bookie.rows.items()])
    last_add_confirmed = None if bookie.ledger is None else bookie.ledger.last_add_confirmed
    return rows, last_add_confirmed, bookie.lost_boots, bookie.gone, bookie.defect


def _seen(client: Client) -> Client:
    """An object of the client's class with only its visible fields."""
    shown = object.__new__(type(client))
    for name in client.seen:
        setattr(shown, name, getattr(client, name))
    return shown


def _seen_bookie(bookie: SimulatedBookie) -> SeenBookie:
    ledger = None if bookie.ledger is None else SeenLedger(bookie.ledger.last_add_confirmed)
    rows = {entry_id: Row(row.content, 0, 0) for entry_id, row in bookie.rows.items()}
    return SeenBookie(rows, ledger, bookie.lost_boots, bookie.gone, bookie.defect)
