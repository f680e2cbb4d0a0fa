"""Ledgers and records in memory, as several processes see them, with faults at each call.

Law: only behaviour that a client of real bookies may see.

* A recovery fences first, so no later append is acknowledged; then it closes the ledger behind all acknowledged entries.
* A compare-and-set of a record may be done, and its answer lost.
* A watch of a record notifies its process at its next call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from bookspark.errors import (
    BookKeeperError,
    LedgerRecoveryError,
    MetadataStoreError,
    MetadataVersionError,
    NotEnoughBookiesError,
    ReadError,
)
from bookspark.logs.chain.codec import decode_name, decode_record
from bookspark.logs.chain.registry import NAMES, RECORDS, LogRegistry
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.logs.lanes import lane_of
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.digests import master_key
from tests.histories.log_schedules.handles import Ledger, Reader, Writer
from tests.histories.log_schedules.truth import Truth
from tests.histories.log_schedules.turns import Turns

_STANDS_BEFORE_A_CHANGE = 10
"""Factor by which a process pauses more often before it changes a record."""


@dataclass
class Faults:
    """Probabilities of faults, per call."""

    lost_adds: float = 0.0
    """An append that may or may not be in the ledger."""
    lost_writes: float = 0.0
    """A change or deletion of a record that is done, but whose answer is lost."""
    refused: float = 0.0
    """A read, recovery or ledger creation without enough answering bookies."""


class World:
    """State shared by all processes."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.random, self.faults = turns, turns.random, Faults()
        self.records = MemoryStore()
        self.ledgers: dict[int, Ledger] = {}
        self.watches: dict[tuple[str, str], list[tuple[Client, Callable[[], None]]]] = {}
        self.made_for: dict[int, int] = {}
        """For each ledger, the id of the log whose run created it."""
        self.truth = Truth(self)
        self.meant_to_go: set[int] = set()
        """Ids of logs seen by their deleting process."""
        self.goes_on_after_fences = False
        """Whether rows of a fenced ledger wait for its producer. Else they fail at once, and the seeds that found a planted fault
        keep their schedules."""

    def client(self, process: object) -> Client:
        """A separate client for a process."""
        return Client(self, process)

    def record(self, name: str) -> LogRecord | None:
        """The current record of a lane."""
        return LogRegistry(self.records).find(name)

    def tell_all(self) -> None:
        """Make every reader see all acknowledged entries."""
        for ledger in self.ledgers.values():
            ledger.told = ledger.acknowledged - 1

    def close(self) -> None:
        self.records.close()


class Records:
    """The metadata store of a process. Methods not defined here come from the memory store."""

    def __init__(self, client: Client) -> None:
        self._client, self._world, self._store = client, client.world, client.world.records

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not callable(method):
            return method

        def call(*arguments: Any) -> Any:
            self._client.step(f"{name} {arguments}")
            return method(*arguments)

        return call

    def read_record(self, kind: str, name: str) -> Any:
        self._client.step(f"read_record {(kind, name)}")
        found = self._store.read_record(kind, name)
        if found is not None and kind == NAMES and name == self._client.deletes:
            self._client.found = self._client.found or decode_name(found.value, name)
            self._world.meant_to_go.add(self._client.found)
        return found

    def write_record(self, kind: str, name: str, value: bytes, version: int | None) -> int:
        # The read version may be outdated by then.
        self._world.turns.stand_still(_STANDS_BEFORE_A_CHANGE * self._world.turns.pause_chance)
        self._client.step(f"write_record {name} {value!r}")
        before = self._store.read_record(kind, name) if kind == RECORDS else None
        try:
            new = self._store.write_record(kind, name, value, version)
        except MetadataVersionError:
            self._client.world.turns.told.append("    lost the compare-and-set")
            raise
        if before is not None:
            old, changed = decode_record(before.value, name), decode_record(value, name)
            if self._client.idle_steps and changed.owner != old.owner:
                self._world.truth.idled(name, self._client.idle_steps)
            self._world.truth.changed(old, changed)
            if self._client.expires and changed.first_position > old.first_position:
                self._world.truth.expired(old, changed)
        if kind == RECORDS:
            self._world.truth.changed_at[name] = self._world.turns.steps
        self._changed(kind, name)
        self._client.lose_answer()
        return new

    def delete_record(self, kind: str, name: str, version: int | None = None) -> None:
        self._client.step(f"delete_record {name}")
        if kind == RECORDS and self._client.deletes:
            log_id = int(lane_of(name)[0])
            there = self._store.read_record(RECORDS, str(log_id)) is not None
            assert not there or log_id == self._client.found, (
                f"{name} of a log that is there is deleted by somebody who found another one"
            )
        self._store.delete_record(kind, name, version)
        self._changed(kind, name)
        self._client.lose_answer()

    def watch_record(self, kind: str, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        self._client.step(f"watch_record {name}")
        self._world.watches.setdefault((kind, name), []).append((self._client, changed))
        return lambda: None

    def _changed(self, kind: str, name: str) -> None:
        for client, changed in self._world.watches.pop((kind, name), []):
            client.news.append(changed)


class Client:
    """The client of a process."""

    zookeeper = "memory"

    def __init__(self, world: World, process: object) -> None:
        self.world, self.process = world, process
        self.metadata = Records(self)
        self.news: list[Callable[[], None]] = []
        self.expires = True
        """Whether its truncations are retention."""
        self.deletes = ""
        """The log that this process deletes."""
        self.found: int | None = None
        """The id of the log that it saw."""
        self.idle_steps = 0
        """The time that a lane is to be idle that this process ends; 0: it ends none."""
        self.before_each: Callable[[], None] = lambda: None
        """Called before each request."""
        self.context = SimpleNamespace(
            config=SimpleNamespace(add_timeout_seconds=60.0), possible_ensemble_size=self.possible_ensemble_size
        )

    def step(self, what: str) -> None:
        self.world.turns.step(what)
        self.before_each()
        while self.news:
            self.news.pop(0)()

    def lose_answer(self) -> None:
        """The request to the metadata store is done, but its answer may be lost."""
        if self.happens(self.world.faults.lost_writes):
            raise MetadataStoreError("the answer of the store was lost")

    def ask(self, what: str, error: type[BookKeeperError] = ReadError) -> None:
        """Ask the bookies; perhaps too few answer."""
        self.step(what)
        if self.happens(self.world.faults.refused):
            raise error("too few bookies answer")

    def happens(self, chance: float) -> bool:
        """Whether a fault of this probability occurs now. After the schedule none does."""
        happens = self.world.turns.current is not None and self.world.random.random() < chance
        if happens:
            self.world.turns.told.append("    that fails")
        return happens

    def possible_ensemble_size(self, ensemble_size: int, write_quorum: int) -> int:
        """Perhaps bookies are missing."""
        return 0 if self.happens(self.world.faults.refused) else ensemble_size

    def create_ledger(self, **options: Any) -> Writer:
        password = options.pop("password")
        store = self.world.records
        self.ask("create_ledger", NotEnoughBookiesError)
        metadata = LedgerMetadata(
            ledger_id=store.new_ledger_id(),
            fragments=(Fragment(0, tuple(f"bookie-{n}" for n in range(options["ensemble_size"]))),),
            master_key=master_key(password),
            **options,
        )
        store.create_ledger(metadata)
        self.world.ledgers[metadata.ledger_id] = Ledger()
        self.world.turns.told.append(f"    it is ledger {metadata.ledger_id}: {metadata.custom_metadata}")
        return Writer(self, metadata)

    def open_ledger(self, ledger_id: int, password: bytes = b"") -> Reader:
        """Fence and recover."""
        store, ledger = self.world.records, self.world.ledgers[ledger_id]
        self.step(f"fence {ledger_id}")
        store.read_ledger(ledger_id)
        ledger.fenced = True
        self.ask(f"close {ledger_id} as its recovery", LedgerRecoveryError)
        self.closed(ledger_id)
        return Reader(self, ledger_id)

    def closed(self, ledger_id: int) -> None:
        """Close a ledger if it is open. Unacknowledged entries may stay at its end."""
        store, ledger = self.world.records, self.world.ledgers[ledger_id]
        metadata, version = store.read_ledger(ledger_id)
        if metadata.closed:
            return
        end = self.world.random.randint(ledger.acknowledged, len(ledger.entries))
        del ledger.entries[end:]
        ledger.acknowledged = end
        size = sum(map(len, ledger.entries))
        store.write_ledger(replace(metadata, state=LedgerState.CLOSED, last_entry_id=end - 1, length=size), version)
        self.world.turns.told.append(f"    ledger {ledger_id} is closed with {end} entries")

    def open_ledger_no_recovery(self, ledger_id: int, password: bytes = b"", *, confirmed: int | None = None) -> Reader:
        self.ask(f"open {ledger_id}")
        reader = Reader(self, ledger_id)
        reader.confirm(-1 if confirmed is None else confirmed)
        return reader

    def delete_ledger(self, ledger_id: int) -> None:
        self.step(f"delete {ledger_id}")
        self.world.truth.deleted(ledger_id, bool(self.deletes))
        self.world.records.delete_ledger(ledger_id)
        self.lose_answer()

    def list_ledgers(self) -> list[int]:
        self.step("list ledgers")
        return self.world.records.list_ledgers()

    def get_ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        self.step(f"look at {ledger_id}")
        return self.world.records.read_ledger(ledger_id).value
