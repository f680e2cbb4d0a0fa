"""Copying entries from a ledger's bookies to others: the common part of re-replication and of a bookie's healing.

Law: a copy counts once its target has it synced, so it is written as a recoverer writes. Copies are made one run at a time, with
one request under way. A run that can't be read or written ends the machine; earlier copies stay. The replica that delivered is
asked first for what follows, so a dead one costs time once. ::

    NEW ──Start──► READING ──entries came──► WRITING ──ack──► READING … ──all copied──► DONE

The copies carry a LAC (last add confirmed) that is certainly confirmed: the end of a closed ledger, or the entry before the last
fragment. Source: ``LedgerFragmentReplicator`` of BookKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from enum import Enum, auto

from bookspark.errors import BookKeeperError, LedgerRecoveryError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    DeadlinePassed,
    Deliver,
    Fail,
    Finish,
    ReadAnswered,
    SendAdd,
    Start,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of, row
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.reading.read_order import ReadOrder
from bookspark.protocol.repair.replication_plan import Copy


class CopyingPhase(Enum):
    NEW = auto()
    READING = auto()
    WRITING = auto()
    DONE = auto()


CopyingEvent = ReadAnswered | AddAnswered | DeadlinePassed

TRANSITIONS = {
    CopyingPhase.NEW: row(taken=(Start,)),
    CopyingPhase.READING: row(taken=(ReadAnswered, DeadlinePassed)),
    CopyingPhase.WRITING: row(taken=(AddAnswered, DeadlinePassed)),
    # The request that was under way at the deadline is answered later.
    CopyingPhase.DONE: row(late=(ReadAnswered, AddAnswered, DeadlinePassed)),
}


class EntryCopying:
    """Makes ``copies``, whose entries are all confirmed, one after the other. It ends with a Finish or a Fail."""

    def __init__(
        self, metadata: LedgerMetadata, copies: Iterable[Copy], run_entries_max: int, doubtful: Collection[str] = ()
    ) -> None:
        """``doubtful``: bookies that are asked after the others, as they are believed to be lost, or to lack the entries."""
        self.phase = CopyingPhase.NEW
        self._metadata = metadata
        self._left = tuple(copies)
        self._run_entries_max = run_entries_max
        self._order = ReadOrder(doubtful=frozenset(doubtful))
        self._read: RangeRead | None = None
        self._reading: tuple[str, int, int] | None = None
        """Bookie, first and last entry of the read that is under way."""
        self._writing: tuple[str, int, int] | None = None
        """Target, first and last entry of the run that is being written."""

    def start(self) -> list[Action]:
        """The first request, or the end if there is nothing to copy."""
        return self.step(Start())

    def step(self, event: Start | CopyingEvent) -> list[Action]:
        """The actions that follow from ``event``. Raises IllegalEventError, and changes nothing, for what was not asked."""
        if cell_of(TRANSITIONS, self.phase, event) is LATE:
            return []
        match event:
            case Start():
                return self._next_run()
            case ReadAnswered():
                self._check(event)
                assert self._read is not None
                return self._hand_over(self._read.step(event))
            case AddAnswered():
                self._check(event)
                return self._written(event)
            case DeadlinePassed():
                what = f"entries of ledger {self._metadata.ledger_id} were not copied in time"
                return self._fail(LedgerRecoveryError(f"{what}; they are tried again"))

    def awaits(self, event: ReadAnswered | AddAnswered) -> bool:
        """Is it the answer to the request that is under way?"""
        if isinstance(event, AddAnswered):
            return self._writing == (event.bookie, event.first, event.last)
        if self._reading is None:
            return False
        bookie, first, last = self._reading
        return (event.bookie, event.first) == (bookie, first) and first - 1 <= event.last <= last

    def _check(self, event: ReadAnswered | AddAnswered) -> None:
        if not self.awaits(event):
            raise IllegalEventError(self.phase, event, "it does not answer the request that is under way")

    def _next_run(self) -> list[Action]:
        if not self._left:
            self.phase = CopyingPhase.DONE
            return [Finish(self._metadata)]
        first, last, _ = self._left[0]
        self.phase = CopyingPhase.READING
        self._read = RangeRead(self._metadata, first, min(last, first + self._run_entries_max - 1), self._order)
        return self._hand_over(self._read.start())

    def _hand_over(self, actions: list[Action]) -> list[Action]:
        """The next request of the read, or the write of the entries that it delivered."""
        match actions:
            case [Deliver(first, last, entries), *_]:
                assert self._read is not None
                self._order = replace(self._order, first=self._read.delivered_by)
                # The read's other requests are dropped: the next run starts after these entries and asks for the rest.
                self._read = self._reading = None
                self.phase = CopyingPhase.WRITING
                target = self._left[0].target
                self._writing = target, first, last
                return [SendAdd((target,), first, last, self._confirmed(), entries)]
            case [Fail(error)]:
                return self._fail(error)
        (read,) = actions
        self._reading = read.bookie, read.first, read.last  # type: ignore[union-attr]
        return actions

    def _written(self, event: AddAnswered) -> list[Action]:
        self._writing = None
        if not isinstance(event.response, Positive):
            what = f"entries {event.first}..{event.last} of ledger {self._metadata.ledger_id}"
            return self._fail(LedgerRecoveryError(f"{what} could not be copied to {event.bookie} ({event.response})"))
        copy, *others = self._left
        behind = [copy._replace(first=event.last + 1)] if event.last < copy.last else []
        self._left = (*behind, *others)
        return self._next_run()

    def _fail(self, error: BookKeeperError) -> list[Action]:
        self.phase = CopyingPhase.DONE
        self._read = self._reading = self._writing = None
        return [Fail(error)]

    def _confirmed(self) -> int:
        m = self._metadata
        return m.last_entry_id if m.closed else m.last_fragment.first_entry_id - 1
