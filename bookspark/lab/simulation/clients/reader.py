"""A tailing reader in the simulation: LAC reads or long polls, and reads of all entries up to the LAC (last add confirmed).

Law: as in ``client``. The reader remembers all its results, and every contradiction among them.
"""

from __future__ import annotations

from typing import Any

from bookspark.errors import NoSuchEntryError, NoSuchLedgerError
from bookspark.lab.simulation.clients.client import BEGIN, FROM_STORE, Begin, Client, Step
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.responses import Unknown
from bookspark.protocol.reading.lac_read import LacRead
from bookspark.protocol.reading.lac_wait import LacWait, LacWaitPhase
from bookspark.protocol.reading.range_read import RangeRead, RangeReadPhase

_VAIN_ANSWERS_MAX = 2
"""Answers without a new entry after which the user stops waiting."""


class BeginWaiting(Begin):
    """A user waits for the next entry (long poll)."""


class MetadataWatched:
    """A waiting reader looks at the metadata, which may have changed."""

    def __repr__(self) -> str:
        return "MetadataWatched()"


_BEGIN_WAITING = BeginWaiting()
_WATCHED = MetadataWatched()


class ReaderClient(Client):
    """A tailing reader. Several times, it opens the ledger without recovery, asks for the LAC or waits for the next entry,
    and reads up to the LAC."""

    kind = "reader"
    seen = ("defect", "contradiction", "denied", "read")

    def __init__(self, options: SimulationOptions) -> None:
        super().__init__()
        self.reads_left = options.reads
        self.may_wait = options.long_polls
        self.may_watch = False
        """Whether the watch of the metadata may fire: once in each long poll."""
        self.patience = 0
        """Further answers without a new entry that the user waits for."""
        self.may_speculate = False
        """Whether another replica may be asked before the first answers: once in each read."""
        self.waits_for = NO_ENTRY
        self.metadata: LedgerMetadata | None = None
        self.last_add_confirmed = NO_ENTRY
        self.heard = False
        """Whether a bookie has answered the current LAC read."""
        self.read: dict[int, str] = {}
        """Contents of all reads so far, by id."""
        self.denied: frozenset[int] = frozenset()
        """Ids up to the LAC that were reported missing."""
        self.contradiction = ""
        """A read that did not repeat, or a LAC that went back."""

    def choices(self) -> list[Any]:
        if self.may_speculate and isinstance(self.machine, RangeRead):
            return [act.ReadIsLate(self.machine.next_entry_id)]
        if self.may_watch and isinstance(self.machine, LacWait):
            return [_WATCHED]
        if not self.reads_left or self.machine is not None or self.store is not None:
            return []
        return [BEGIN, _BEGIN_WAITING] if self.may_wait else [BEGIN]

    def step(self, event: Any, options: SimulationOptions) -> Step:
        if isinstance(event, FROM_STORE):
            self.store = None
        match event, self.machine:
            case Begin(), None:
                self.reads_left -= 1
                self.waits_for = self.last_add_confirmed + 1 if isinstance(event, BeginWaiting) else NO_ENTRY
                self.store = act.ReadMetadata()
                return [], []
            case act.MetadataRead(), None:
                return self._opened(event.metadata, options)
            case MetadataWatched(), LacWait():
                self.may_watch = False
                self.store = act.ReadMetadata()
                return [], []
            case act.LacAnswered(), LacRead():
                self.heard = self.heard or not isinstance(event.response, Unknown)
                return self._lac_told(self.machine.step(event), options)
            case act.MetadataFailed(), LacWait() if self.machine.phase is LacWaitPhase.WAITING:
                # A failed watch. The reader waits without it, because the bookies report new entries, unless the ledger is
                # gone.
                return self._perform(
                    [act.Fail(event.error)] if isinstance(event.error, NoSuchLedgerError) else [], options
                )
            case act.LacAnswered() | act.MetadataRead() | act.MetadataFailed() | act.DeadlinePassed(), LacWait():
                return self._lac_told(self._waited(event), options)
            case act.ReadIsLate(), RangeRead():
                self.may_speculate = False
                return self._perform(self.machine.step(event), options)
            case act.MetadataRead() | act.MetadataFailed(), RangeRead() if (
                self.machine.phase is not RangeReadPhase.LOOKING
            ):
                # The answer belongs to a finished long poll.
                return [], []
            case act.ReadAnswered() | act.MetadataRead() | act.MetadataFailed(), RangeRead():
                return self._perform(self.machine.step(event), options)
            case act.DeadlinePassed() | act.MetadataFailed(), _:
                self._end(act.Finish())
        return [], []

    def _opened(self, metadata: LedgerMetadata, options: SimulationOptions) -> Step:
        self.metadata = metadata
        if self.waits_for > NO_ENTRY:
            self.machine = LacWait(metadata, self.waits_for)
            self.may_watch, self.patience = True, _VAIN_ANSWERS_MAX
            return self._lac_told(self.machine.start(), options)
        if metadata.closed:
            return self._confirmed(metadata.last_entry_id, options)
        self.machine = LacRead(metadata)
        return self._perform(self.machine.start(), options)

    def _waited(self, event: Any) -> list[act.Action]:
        """A bookie answers when its LAC is high enough, or after a long wait without a new entry."""
        actions: list[act.Action] = self.machine.step(event)
        if isinstance(event, act.LacAnswered) and not isinstance(event.response, Unknown):
            self.patience -= event.last_add_confirmed < self.waits_for
        return actions if self.patience > 0 else self.machine.step(act.DeadlinePassed())

    def _lac_told(self, actions: list[act.Action], options: SimulationOptions) -> Step:
        for action in actions:
            if isinstance(action, act.Finish):
                if isinstance(self.machine, LacRead) and not self.heard:
                    self.contradiction = "a LAC was told, and no bookie has told one"
                self.metadata, self.may_watch = action.metadata, False
                return self._confirmed(self.machine.last_add_confirmed, options)
        return self._perform(actions, options)

    def _confirmed(self, last_add_confirmed: int, options: SimulationOptions) -> Step:
        assert self.metadata is not None
        given_up = self.metadata.accepted_loss is not None
        if self.metadata.closed and last_add_confirmed < self.last_add_confirmed and not given_up:
            self.contradiction = (
                f"the LAC was {self.last_add_confirmed}, and the ledger is closed at {last_add_confirmed}"
            )
        self.last_add_confirmed = max(last_add_confirmed, self.last_add_confirmed)
        self.heard = False
        self.machine = RangeRead(self.metadata, 0, self.last_add_confirmed, rereads_metadata=True)
        self.may_speculate = True
        return self._perform(self.machine.start(), options)

    def _told(self, action: act.Action) -> None:
        if isinstance(action, act.Deliver):
            for entry_id, content in zip(range(action.first, action.last + 1), action.entries, strict=True):
                if self.read.setdefault(entry_id, content) != content:
                    self.contradiction = f"entry {entry_id} was {self.read[entry_id]} and is {content}"

    def _end(self, action: act.Finish | act.Fail) -> None:
        if (
            isinstance(action, act.Fail)
            and isinstance(action.error, NoSuchEntryError)
            and isinstance(self.machine, RangeRead)
        ):
            self.denied |= {self.machine.next_entry_id}
        self.machine = None
        self.store = None
        self.metadata = None
        self.heard = False
        self.may_speculate = self.may_watch = False
