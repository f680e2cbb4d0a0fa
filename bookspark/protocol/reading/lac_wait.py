"""Waiting until an entry is confirmed, the ledger is closed, or the deadline has passed (long poll).

Law: the returned LAC (last add confirmed) is a confirmed one. Every bookie of the last ensemble holds its answer, because each
learns of a LAC at another time. Neither a close nor an ensemble change gives the bookies a LAC, so the driver watches the
metadata as well, and the machine takes every ``MetadataRead``. The bookies may be gone before the watch reports their
replacement, so the machine reads the metadata before it fails for lack of a LAC. ::

    NEW ──Start──► WAITING ──all bookies failed, twice in a row──► LOOKING (ReadMetadata)
                     ▲  │ confirmed, closed or deadline              │  │
                     │  ▼                                            │  │ no new bookies: nobody tells
                     │ DONE ◄────────────────────────────────────────┼──┘
                     └─────────── new bookies, or one told ──────────┘

Source: ``ReadLastConfirmedAndEntryOp`` of BookKeeper.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from bookspark.errors import BookKeeperError, NoSuchLedgerError, ReadError
from bookspark.protocol.ledger.actions import (
    Action,
    DeadlinePassed,
    Fail,
    Finish,
    LacAnswered,
    MetadataFailed,
    MetadataRead,
    ReadMetadata,
    SendReadLac,
    Start,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.responses import Response, Unknown
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of, row
from bookspark.protocol.reading.answers import in_words


class LacWaitPhase(Enum):
    NEW = auto()
    WAITING = auto()
    LOOKING = auto()
    """The metadata is being read, because no bookie reports its LAC."""
    DONE = auto()


LacWaitEvent = LacAnswered | MetadataRead | MetadataFailed | DeadlinePassed

TRANSITIONS = {
    LacWaitPhase.NEW: row(taken=(Start,)),
    # MetadataRead comes from the driver's watch. A failed watch is the driver's own concern.
    LacWaitPhase.WAITING: row(taken=(LacAnswered, MetadataRead, DeadlinePassed)),
    LacWaitPhase.LOOKING: row(taken=(LacAnswered, MetadataRead, MetadataFailed, DeadlinePassed)),
    LacWaitPhase.DONE: row(late=(LacAnswered, MetadataRead, MetadataFailed, DeadlinePassed)),
}


class LacWait:
    """Waits until ``entry_id`` is confirmed. ``last_add_confirmed``: the highest in the answers; ``entries``: the entry, if it
    came with that LAC."""

    def __init__(self, metadata: LedgerMetadata, entry_id: int) -> None:
        self.phase = LacWaitPhase.NEW
        self.last_add_confirmed = NO_ENTRY
        self.entries: Any = None
        self._metadata = metadata
        self._entry_id = entry_id
        self._ever_asked: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()
        """The last asked ensemble."""
        self._failed: dict[str, Response] = {}
        self._last_round = False
        """All have failed once, and none has reported a LAC since."""

    def start(self) -> list[Action]:
        return self.step(Start())

    def step(self, event: Start | LacWaitEvent) -> list[Action]:
        """Raises IllegalEventError, and changes nothing, for an answer to a question never asked.

        A bookie that held its answer in vain is asked again. Failed bookies are asked again once all have failed: they may have
        been restarted one after the other. The wait fails if all fail again without a LAC meanwhile, and the metadata names no
        others.
        """
        if cell_of(TRANSITIONS, self.phase, event) is LATE:
            return []
        match event:
            case Start():
                self.phase = LacWaitPhase.WAITING
                return self._learn(self._metadata)
            case DeadlinePassed():
                return [self._finish()]
            case MetadataRead():
                if not event.metadata.is_same_ledger(self._metadata):
                    raise IllegalEventError(self.phase, event, f"it is not of ledger {self._metadata.ledger_id}")
                return self._learn(event.metadata)
            case MetadataFailed():
                return [self._fail(self._not_looked_up(event.error))]
            case LacAnswered():
                if event.bookie not in self._ever_asked:
                    raise IllegalEventError(self.phase, event, "the bookie was not asked")
                return self._answered(event)

    def _learn(self, metadata: LedgerMetadata) -> list[Action]:
        """Take the metadata in: ask the new bookies, or end."""
        self._metadata = metadata
        self._hear(metadata.last_entry_id if metadata.closed else metadata.last_fragment.first_entry_id - 1)
        if metadata.closed or self.last_add_confirmed >= self._entry_id:
            return [self._finish()]
        ensemble = metadata.last_fragment.ensemble
        new = [bookie for bookie in ensemble if bookie not in self._asked]
        self._asked = frozenset(ensemble)
        self._ever_asked |= self._asked
        self._failed = {bookie: answer for bookie, answer in self._failed.items() if bookie in ensemble}
        if new:
            self._last_round = False
        if self.phase is LacWaitPhase.LOOKING and self._last_round:
            return [self._fail(self._nobody_tells())]
        self.phase = LacWaitPhase.WAITING
        return self._ask(new) or self._next_round()

    def _ask(self, bookies: list[str] | tuple[str, ...]) -> list[Action]:
        return [SendReadLac(bookie, wait_for=self._entry_id) for bookie in bookies]

    def _answered(self, event: LacAnswered) -> list[Action]:
        self._hear(event.last_add_confirmed)
        if self.last_add_confirmed >= self._entry_id:
            self.entries = event.entries
            return [self._finish()]
        ensemble = self._metadata.last_fragment.ensemble
        if event.bookie not in ensemble:
            return []
        if not isinstance(event.response, Unknown):
            self._last_round = False
            self._failed.pop(event.bookie, None)
            return self._ask((event.bookie,))
        self._failed[event.bookie] = event.response
        return [] if self.phase is LacWaitPhase.LOOKING else self._next_round()

    def _next_round(self) -> list[Action]:
        """Ask all again once all have failed; after a second failure read the metadata."""
        ensemble = self._metadata.last_fragment.ensemble
        if any(bookie not in self._failed for bookie in ensemble):
            return []
        if not self._last_round:
            self._last_round, self._failed = True, {}
            return self._ask(ensemble)
        self.phase = LacWaitPhase.LOOKING
        return [ReadMetadata()]

    def _hear(self, last_add_confirmed: int) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)

    # -- ends

    def _finish(self) -> Finish:
        self.phase = LacWaitPhase.DONE
        return Finish(self._metadata)

    def _fail(self, error: BookKeeperError) -> Fail:
        self.phase = LacWaitPhase.DONE
        return Fail(error)

    def _nobody_tells(self, more: str = "") -> ReadError:
        reasons = in_words(self._failed)
        return ReadError(f"ledger {self._metadata.ledger_id}: no bookie tells its LAC ({reasons}){more}; try again")

    def _not_looked_up(self, error: BookKeeperError) -> BookKeeperError:
        if isinstance(error, NoSuchLedgerError):
            return error
        return self._nobody_tells(f", and whether it has others by now could not be looked up: {error}")
