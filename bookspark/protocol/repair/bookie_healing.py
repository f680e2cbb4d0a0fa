"""Phase two of a lossy boot: one ledger in limbo is recovered, its missing entries are copied from peers, and limbo ends.

Law: limbo ends only when the ledger is CLOSED and every entry of it that is assigned to this bookie is on it, synced; what can't
be recovered or copied now stays in limbo and is tried again. It runs while the bookie serves::

    RECOVERING ──► LISTING ──► COPYING ──► CLEARING ──► DONE
     (LedgerRecovery)       (EntryCopying)

Copies go to the bookie itself. Source: BP-46, "The Full Boot-Up
Sequence", phase two; what is missing is for ``replication_plan`` to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bookspark.errors import BookKeeperError, LedgerRecoveryError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    DeadlinePassed,
    Event,
    Fail,
    Finish,
    ReadAnswered,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.repair.entry_copying import EntryCopying
from bookspark.protocol.repair.replication_plan import lacks


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
        self._copying: EntryCopying | None = None

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
                plan = lacks(self._metadata, self._bookie, event.ranges)
                self.phase = HealingPhase.COPYING
                self._copying = EntryCopying(self._metadata, plan, self._run_entries_max, {self._bookie})
                return self._copied(self._copying.start())
            case HealingPhase.COPYING, ReadAnswered() | AddAnswered():
                assert self._copying is not None
                return self._copied(self._copying.step(event))
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

    def _copied(self, actions: list[Action]) -> list[HealingAction]:
        match actions:
            case [Finish()]:
                self.phase = HealingPhase.CLEARING
                self._copying = None
                return [ClearLimbo(self._boot)]
            case [Fail(error)]:
                return self._fail(error)
        return list(actions)

    def _fail(self, error: BookKeeperError) -> list[HealingAction]:
        self.phase = HealingPhase.DONE
        return [Fail(error)]

    def _what(self) -> str:
        return (
            f"ledger {self._metadata.ledger_id} on {self._bookie}" if self._metadata else f"a ledger on {self._bookie}"
        )
