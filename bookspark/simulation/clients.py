"""The clients in the simulation: the writer, recoverers, readers, and a bookie's own healing.

Law: that of ``client``; what a user may do is in ``choices``, and nothing else starts a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from bookspark.protocol.actions import (
    Action,
    Confirm,
    DeadlinePassed,
    Deliver,
    Fail,
    Finish,
    LacAnswered,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadAnswered,
    ReadIsLate,
    ReadMetadata,
    Release,
    SendAdd,
)
from bookspark.protocol.bookie_healing import ClearLimbo, LedgerHealing, ListHeld
from bookspark.protocol.ensemble_change import ChangeMode
from bookspark.protocol.errors import NoSuchEntryError
from bookspark.protocol.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.reader import LacRead, RangeRead
from bookspark.protocol.recovery import LedgerRecovery
from bookspark.protocol.replication import GuaranteedWriteQuorum
from bookspark.protocol.writer import SYNC_BYTES, Append, BookiesChanged, Close, LedgerWriter, State, Sync
from bookspark.simulation.client import BEGIN, FROM_STORE, Begin, Client, Crashed, Heal, Step, content_of
from bookspark.simulation.messages import Add, Clear, Held, Request
from bookspark.simulation.options import SimulationOptions


class WriterClient(Client):
    """The application that created the ledger and appends to it."""

    kind = "writer"

    def __init__(self, metadata: LedgerMetadata, version: int, options: SimulationOptions) -> None:
        super().__init__()
        unpinned = metadata.replication is Replication.GUARANTEED and not options.pinning
        replication = WithoutPinning() if unpinned else None
        sync_bytes = SYNC_BYTES if options.entries < 3 else 2
        self.machine = LedgerWriter(metadata, version, options.ensemble_changes, sync_bytes, replication)
        self.appends_left = options.entries
        self.may_close = options.closes
        self.may_sync = metadata.ledger_type is LedgerType.VD_JOURNAL
        self.may_retry = False
        """Were there no bookies for an ensemble change?"""
        self.last_add_confirmed = NO_ENTRY
        """What the user was told."""
        self.last_add_fully_replicated = NO_ENTRY

    def choices(self) -> list[Any]:
        possible = {
            Append(1, 1): self.appends_left > 0,
            Sync(): self.may_sync and self.machine is not None and self.machine.last_add_pushed > NO_ENTRY,
            Close(): self.may_close,
            BookiesChanged(): self.may_retry,
        }
        return [event for event, may in possible.items() if may and not self.outcome]

    def step(self, event: Any, options: SimulationOptions) -> Step:
        match event:
            case Append():
                self.appends_left -= 1
            case Sync():
                self.may_sync = False
            case Close():
                self.appends_left, self.may_close, self.may_sync = 0, False, False
            case NoBookies():
                self.may_retry = True
            case BookiesChanged():
                self.may_retry = False
        step = super().step(event, options)
        if self.machine is not None and self.machine.state is not State.OPEN:
            # It gave up, and closes the ledger by itself.
            self.appends_left, self.may_close, self.may_sync = 0, False, False
        return step

    def _add(self, action: SendAdd) -> Request:
        contents = tuple(content_of(i) for i in range(action.first, action.last + 1))
        lac, lafr = action.last_add_confirmed, action.last_add_fully_replicated
        return Add(action.first, action.last, lac, lafr, contents, recovery=False, assignment=action.assignment)

    def _told(self, action: Action) -> None:
        if isinstance(action, Confirm):
            self.last_add_confirmed = action.last_add_confirmed
        if isinstance(action, Release):
            self.last_add_fully_replicated = action.last_add_fully_replicated

    def _end(self, action: Finish | Fail) -> None:
        super()._end(action)
        self.appends_left, self.may_close, self.may_sync, self.may_retry = 0, False, False, False


class WithoutPinning(GuaranteedWriteQuorum):
    """The guaranteed policy with its protection switched off: whoever failed is replaced."""

    __slots__ = ()

    def replaceable(
        self, failed: frozenset[str], confirmed: Iterable[Set[str]], metadata: LedgerMetadata
    ) -> frozenset[str]:
        return failed


class RecovererClient(Client):
    """Somebody who opens the ledger, once, at any time."""

    kind = "recoverer"

    def __init__(self) -> None:
        super().__init__()
        self.wrote_back: tuple[int, ...] = ()
        """Ids that it wrote back; kept if it closed the ledger itself."""

    def choices(self) -> list[Any]:
        return [] if self.outcome or self.machine else [BEGIN]

    def step(self, event: Any, options: SimulationOptions) -> Step:
        if isinstance(event, Begin):
            self.machine = LedgerRecovery(replaces_bookies=options.ensemble_changes is not ChangeMode.OFF)
            self.store = ReadMetadata()
            return [], []
        step = super().step(event, options)
        if self.outcome and not (self.outcome == "finished" and isinstance(event, MetadataWritten)):
            self.wrote_back = ()
        return step

    def _add(self, action: SendAdd) -> Request:
        ids = range(action.first, action.last + 1)
        self.wrote_back = tuple(sorted({*self.wrote_back, *ids}))
        return super()._add(action)


class HealingClient(Client):
    """A bookie's own phase two. The world starts it when the bookie is in limbo, and ends it when the bookie crashes."""

    kind = "healing"

    def __init__(self, bookie: str) -> None:
        super().__init__()
        self.bookie = bookie

    def step(self, event: Any, options: SimulationOptions) -> Step:
        match event:
            case Heal():
                self.machine = LedgerHealing(self.bookie, event.boot)
                self.store = ReadMetadata()
                return [], []
            case Crashed():
                self.machine = self.store = None
                return [], []
        return super().step(event, options)

    def _perform(self, actions: list[Any], options: SimulationOptions) -> Step:
        sends, told = super()._perform(actions, options)
        for action in actions:
            if isinstance(action, ListHeld):
                sends.append((self.bookie, Held()))
            if isinstance(action, ClearLimbo):
                sends.append((self.bookie, Clear(action.boot)))
        return sends, told

    def _end(self, action: Finish | Fail) -> None:
        self.machine = self.store = None  # it may begin again


class ReaderClient(Client):
    """A tailing reader: opens the ledger without recovery, asks for the LAC and reads up to it, some times over."""

    kind = "reader"

    def __init__(self, options: SimulationOptions) -> None:
        super().__init__()
        self.reads_left = options.reads
        self.may_speculate = False
        """May another replica be asked before the first has answered? Once a read."""
        self.metadata: LedgerMetadata | None = None
        self.last_add_confirmed = NO_ENTRY
        self.read: dict[int, str] = {}
        """Everything that was ever read, by id."""
        self.denied: frozenset[int] = frozenset()
        """Ids up to the LAC that were said not to exist."""
        self.contradiction = ""
        """A read that did not repeat, or a LAC that went back."""

    def choices(self) -> list[Any]:
        if self.may_speculate and isinstance(self.machine, RangeRead):
            return [ReadIsLate(self.machine.next_entry_id)]
        return [BEGIN] if self.reads_left and self.machine is None and self.store is None else []

    def step(self, event: Any, options: SimulationOptions) -> Step:
        if isinstance(event, FROM_STORE):
            self.store = None
        match event:
            case Begin():
                self.reads_left -= 1
                self.store = ReadMetadata()
                return [], []
            case MetadataRead() if self.machine is None:
                self.metadata = event.metadata
                if event.metadata.closed:
                    return self._confirmed(event.metadata.last_entry_id, options)
                self.machine = LacRead(event.metadata)
                return self._perform(self.machine.start(), options)
            case LacAnswered() if isinstance(self.machine, LacRead):
                machine = self.machine
                actions = machine.step(event)
                if any(isinstance(action, Finish) for action in actions):
                    return self._confirmed(machine.last_add_confirmed, options)
                return self._perform(actions, options)
            case ReadIsLate() if isinstance(self.machine, RangeRead):
                self.may_speculate = False
                return self._perform(self.machine.step(event), options)
            case ReadAnswered() | MetadataRead() | MetadataFailed() if isinstance(self.machine, RangeRead):
                return self._perform(self.machine.step(event), options)
            case DeadlinePassed() | MetadataFailed():
                self._end(Finish())
        return [], []

    def _confirmed(self, last_add_confirmed: int, options: SimulationOptions) -> Step:
        assert self.metadata is not None
        if self.metadata.closed and last_add_confirmed < self.last_add_confirmed:
            self.contradiction = (
                f"the LAC was {self.last_add_confirmed}, and the ledger is closed at {last_add_confirmed}"
            )
        self.last_add_confirmed = max(last_add_confirmed, self.last_add_confirmed)
        self.machine = RangeRead(self.metadata, 0, self.last_add_confirmed, rereads_metadata=True)
        self.may_speculate = True
        return self._perform(self.machine.start(), options)

    def _told(self, action: Action) -> None:
        if isinstance(action, Deliver):
            for entry_id, content in zip(range(action.first, action.last + 1), action.entries, strict=True):
                if self.read.setdefault(entry_id, content) != content:
                    self.contradiction = f"entry {entry_id} was {self.read[entry_id]} and is {content}"

    def _end(self, action: Finish | Fail) -> None:
        if isinstance(action, Fail) and isinstance(action.error, NoSuchEntryError) and self.machine is not None:
            self.denied |= {self.machine.next_entry_id}
        self.machine = None
        self.store = None
        self.metadata = None
        self.may_speculate = False


def make_clients(
    metadata: LedgerMetadata, version: int, bookies: tuple[str, ...], options: SimulationOptions
) -> list[Client]:
    """The writer first, then recoverers, readers, and one healing for each bookie if they heal."""
    clients: list[Client] = [WriterClient(metadata, version, options)]
    clients += [RecovererClient() for _ in range(options.recoverers)]
    clients += [ReaderClient(options) for _ in range(options.readers)]
    if options.heals:
        clients += [HealingClient(bookie) for bookie in bookies]
    return clients
