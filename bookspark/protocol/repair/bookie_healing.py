"""Phase two of a lossy boot: one ledger in limbo is recovered, its missing entries are copied from peers, and limbo ends.

Law: limbo ends only when the ledger is CLOSED and every entry assigned to this bookie is on it, synced, or noted as lost. An
entry is lost if every other bookie of its write set was reached and none returns it (``NotCopied``); the bookie then answers
Unknown for it. A ledger that can't be recovered or copied now stays in limbo for another attempt. Healing runs while the bookie
serves. ::

    NEW ──► RECOVERING ──► LISTING ──► COPYING ──► CLEARING ──► DONE
          (LedgerRecovery)         (EntryCopying)

Copies go to the bookie itself; ``replication_plan.lacks`` lists the missing entries. Source: BP-46, "The Full Boot-Up Sequence",
phase two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bookspark.errors import BookKeeperError, EntriesNotCopiedError, LedgerRecoveryError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    DeadlinePassed,
    Event,
    Fail,
    Finish,
    LacAnswered,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
    RecordFull,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.transitions import LATE, cell_of, row
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.repair.entry_copying import ALONE, EntryCopying, NotCopied, Room
from bookspark.protocol.repair.replication_plan import lacks


@dataclass(frozen=True, slots=True)
class ListHeld:
    """List the entries that this bookie holds synced; answered by ``HeldListed``."""


@dataclass(frozen=True, slots=True)
class HeldListed:
    """Ascending, inclusive ranges of entry ids that don't overlap."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ClearLimbo:
    """Note the entries ``lost`` (inclusive ranges) as lost, then ``BookieLedger.clear_limbo``, both durably; answered by
    ``LimboIsCleared``."""

    boot: int
    lost: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LimboIsCleared:
    """The record is synced."""


HealingAction = Action | ListHeld | ClearLimbo
HealingEvent = Event | HeldListed | LimboIsCleared


class HealingPhase(Enum):
    NEW = auto()
    RECOVERING = auto()
    LISTING = auto()
    COPYING = auto()
    CLEARING = auto()
    DONE = auto()


_BOOKIES = (LacAnswered, ReadAnswered, AddAnswered)
_RECOVERY = (*_BOOKIES, MetadataRead, MetadataWritten, MetadataConflict, RecordFull, MetadataFailed)

# Only answers to the ledger recovery can be late: nothing else leaves a request under way.
TRANSITIONS = {
    HealingPhase.NEW: row(taken=(MetadataRead, MetadataFailed)),
    # ``LedgerRecovery`` has a table of its own, and decides in this phase.
    HealingPhase.RECOVERING: row(taken=(*_RECOVERY, DeadlinePassed)),
    HealingPhase.LISTING: row(taken=(HeldListed, DeadlinePassed), late=_BOOKIES),
    HealingPhase.COPYING: row(taken=(ReadAnswered, AddAnswered, DeadlinePassed), late=_BOOKIES),
    HealingPhase.CLEARING: row(taken=(LimboIsCleared, DeadlinePassed), late=_BOOKIES),
    HealingPhase.DONE: row(late=(*_RECOVERY, HeldListed, LimboIsCleared, DeadlinePassed)),
}


class LedgerHealing:
    """Heals one ledger on ``bookie`` after its lossy boot number ``boot``. Start it with ``step(MetadataRead(…))``; it ends with
    a Finish, or with a Fail before another attempt."""

    def __init__(self, bookie: str, boot: int, run_entries_max: int = 10_000, room: Room = ALONE) -> None:
        self.phase = HealingPhase.NEW
        self._bookie = bookie
        self._boot = boot
        self._run_entries_max = run_entries_max
        self._room = room
        self._recovery: LedgerRecovery | None = LedgerRecovery(run_entries_max)
        self._metadata: LedgerMetadata | None = None
        self._copying: EntryCopying | None = None
        self.lost: tuple[NotCopied, ...] = ()
        """Entries that no bookie returns, known after the copying."""

    def step(self, event: HealingEvent) -> list[HealingAction]:
        """Raises IllegalEventError, and changes nothing, for an answer to a question never asked."""
        cell = cell_of(TRANSITIONS, self.phase, event)
        if self._recovery is not None:
            return self._recovering(event)  # type: ignore[arg-type]
        if cell is LATE or (isinstance(event, ReadAnswered | AddAnswered) and not self._is_of_copying(event)):
            return []
        match event:
            case HeldListed():
                return self._copy(event)
            case ReadAnswered() | AddAnswered():
                assert self._copying is not None
                return self._copied(self._copying.step(event))
            case LimboIsCleared():
                self.phase = HealingPhase.DONE
                return [Finish(self._metadata)]
            case DeadlinePassed():
                return self._fail(LedgerRecoveryError(f"{self._what()} was not healed in time; it is tried again"))
        raise AssertionError("the table has a cell for an event that nobody handles")

    def _is_of_copying(self, event: ReadAnswered | AddAnswered) -> bool:
        return self._copying is not None and self._copying.awaits(event)

    def _recovering(self, event: Event) -> list[HealingAction]:
        assert self._recovery is not None
        actions = self._recovery.step(event)
        self.phase = HealingPhase.RECOVERING
        match actions:
            case [Finish(metadata)]:
                self._metadata, self._recovery = metadata, None
                self.phase = HealingPhase.LISTING
                return [ListHeld()]
            case [Fail(error)]:
                return self._fail(error)
        return list(actions)

    def _copy(self, held: HeldListed) -> list[HealingAction]:
        assert self._metadata is not None
        self.phase = HealingPhase.COPYING
        plan = lacks(self._metadata, self._bookie, held.ranges)
        self._copying = EntryCopying(self._metadata, plan, self._run_entries_max, {self._bookie}, self._room)
        return self._copied(self._copying.start())

    def _copied(self, actions: list[Action]) -> list[HealingAction]:
        match actions:
            case [Fail(EntriesNotCopiedError(entries=entries))] if all(one.lost for one in entries):
                self.lost = tuple(entries)
            case [Fail(error)]:
                return self._fail(error)
            case [Finish()]:
                pass
            case _:
                return list(actions)
        self.phase = HealingPhase.CLEARING
        self._copying = None
        return [ClearLimbo(self._boot, tuple((one.first, one.last) for one in self.lost))]

    def _fail(self, error: BookKeeperError) -> list[HealingAction]:
        self.phase = HealingPhase.DONE
        self._recovery = self._copying = None
        return [Fail(error)]

    def _what(self) -> str:
        return (
            f"ledger {self._metadata.ledger_id} on {self._bookie}" if self._metadata else f"a ledger on {self._bookie}"
        )
