"""Phase two of a lossy boot: one ledger in limbo is recovered, its missing entries are copied from peers, and limbo ends.

Law: limbo ends only when the ledger is CLOSED and every entry of it that is assigned to this bookie is on it, synced; what can't
be recovered or copied now stays in limbo and is tried again. It runs while the bookie serves::

    RECOVERING ──► LISTING ──► COPYING ⇄ SAVING ──► CLEARING ──► DONE
     (LedgerRecovery)            (RangeRead, one run after the other)

Copies go to the bookie itself as recovery adds, so they are synced before they count. Source: BP-46, "The Full Boot-Up
Sequence", phase two; what is missing is for ``replication_plan`` to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bookspark.protocol.actions import (
    Action,
    AddAnswered,
    DeadlinePassed,
    Deliver,
    Event,
    Fail,
    Finish,
    ReadAnswered,
    SendAdd,
)
from bookspark.protocol.errors import BookKeeperError, LedgerRecoveryError
from bookspark.protocol.ledger_metadata import LedgerMetadata
from bookspark.protocol.reader import RangeRead
from bookspark.protocol.recovery import LedgerRecovery
from bookspark.protocol.replication_plan import lacks
from bookspark.protocol.responses import Positive


@dataclass(frozen=True, slots=True)
class ListHeld:
    """List the entries that this bookie holds synced; answered by ``HeldListed``."""


@dataclass(frozen=True, slots=True)
class HeldListed:
    """Inclusive ranges of entry ids, ascending, that don't overlap."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ClearLimbo:
    """``BookieLedger.clear_limbo``, durably; answered by ``LimboIsCleared``."""

    boot: int


@dataclass(frozen=True, slots=True)
class LimboIsCleared:
    """The record is synced."""


HealingAction = Action | ListHeld | ClearLimbo
HealingEvent = Event | HeldListed | LimboIsCleared


class HealingPhase(Enum):
    RECOVERING = auto()
    LISTING = auto()
    COPYING = auto()
    SAVING = auto()
    CLEARING = auto()
    DONE = auto()


class LedgerHealing:
    """Heals one ledger on ``bookie`` after its lossy boot number ``boot``. Start it with ``step(MetadataRead(…))``."""

    def __init__(self, bookie: str, boot: int, run_entries_max: int = 10_000) -> None:
        self.phase = HealingPhase.RECOVERING
        self._bookie = bookie
        self._boot = boot
        self._run_entries_max = run_entries_max
        self._recovery: LedgerRecovery | None = LedgerRecovery(run_entries_max)
        self._metadata: LedgerMetadata | None = None
        self._missing: tuple[tuple[int, int], ...] = ()
        self._read: RangeRead | None = None
        self._saving: tuple[int, int] | None = None

    def step(self, event: HealingEvent) -> list[HealingAction]:
        """The actions that follow from ``event``; those of an earlier phase are ignored."""
        match self.phase, event:
            case HealingPhase.DONE, _:
                return []
            case HealingPhase.RECOVERING, HeldListed() | LimboIsCleared():
                return []
            case HealingPhase.RECOVERING, _:
                return self._recovering(event)  # type: ignore[arg-type]
            case _, DeadlinePassed():
                return self._fail(LedgerRecoveryError(f"{self._what()} was not healed in time; it is tried again"))
            case HealingPhase.LISTING, HeldListed():
                assert self._metadata is not None
                self._missing = tuple(
                    (run.first, run.last) for run in lacks(self._metadata, self._bookie, event.ranges)
                )
                return self._next_run()
            case HealingPhase.COPYING, ReadAnswered():
                return self._copied(event)
            case HealingPhase.SAVING, AddAnswered() if (event.first, event.last) == self._saving:
                return self._saved(event)
            case HealingPhase.CLEARING, LimboIsCleared():
                self.phase = HealingPhase.DONE
                return [Finish(self._metadata)]
        return []

    def _recovering(self, event: Event) -> list[HealingAction]:
        assert self._recovery is not None
        actions: list[HealingAction] = []
        for action in self._recovery.step(event):
            if isinstance(action, Finish):
                self._metadata, self._recovery = action.metadata, None
                self.phase = HealingPhase.LISTING
                return [*actions, ListHeld()]
            if isinstance(action, Fail):
                return self._fail(action.error)
            actions.append(action)
        return actions

    def _next_run(self) -> list[HealingAction]:
        if not self._missing:
            self.phase = HealingPhase.CLEARING
            return [ClearLimbo(self._boot)]
        assert self._metadata is not None
        first, last = self._missing[0]
        self.phase = HealingPhase.COPYING
        self._read = RangeRead(self._metadata, first, min(last, first + self._run_entries_max - 1))
        return list(self._read.start())

    def _copied(self, event: ReadAnswered) -> list[HealingAction]:
        assert self._read is not None and self._metadata is not None
        for action in (actions := self._read.step(event)):
            if isinstance(action, Deliver):
                # What else the read asks for comes with the next run, which starts behind what is saved now.
                self.phase = HealingPhase.SAVING
                self._read = None
                self._saving = (action.first, action.last)
                lac = self._metadata.last_entry_id
                return [SendAdd((self._bookie,), action.first, action.last, lac, action.entries)]
            if isinstance(action, Fail):
                return self._fail(action.error)
        return list(actions)

    def _saved(self, event: AddAnswered) -> list[HealingAction]:
        if not isinstance(event.response, Positive):
            return self._fail(LedgerRecoveryError(f"{self._what()}: the copy was refused ({event.response})"))
        (first, last), *others = self._missing
        behind = [(event.last + 1, last)] if event.last < last else []
        assert event.first == first
        self._missing = (*behind, *others)
        self._saving = None
        return self._next_run()

    def _fail(self, error: BookKeeperError) -> list[HealingAction]:
        self.phase = HealingPhase.DONE
        return [Fail(error)]

    def _what(self) -> str:
        return (
            f"ledger {self._metadata.ledger_id} on {self._bookie}" if self._metadata else f"a ledger on {self._bookie}"
        )
