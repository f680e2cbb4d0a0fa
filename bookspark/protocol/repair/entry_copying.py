"""Copying entries from a ledger's bookies to others: the common part of re-replication and of a bookie's healing.

Law: a copy counts once its target has it synced (it is written as a recoverer does), one run at a time, and a run that
can't be read or written ends the whole: what was copied so far is there, and stays. The replica that delivered is asked
first for what follows, so that a dead one is asked once. ::

    READING ──Deliver──► WRITING ──ack──► READING … ──► Finish

The copies carry a LAC that is certainly confirmed: the end of a closed ledger, or the entry before the last fragment.
Source: ``LedgerFragmentReplicator`` of BookKeeper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from bookspark.errors import LedgerRecoveryError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    Deliver,
    Fail,
    Finish,
    ReadAnswered,
    ReadIsLate,
    SendAdd,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.reading.reader import RangeRead, ReadOrder
from bookspark.protocol.repair.replication_plan import Copy


class EntryCopying:
    """Makes ``copies``, whose entries are all confirmed, one after the other."""

    def __init__(
        self, metadata: LedgerMetadata, copies: Iterable[Copy], run_entries_max: int, doubtful: Collection[str] = ()
    ) -> None:
        """``doubtful``: bookies that are asked after the others, as they are believed to be lost, or to lack the entries."""
        self._metadata = metadata
        self._left = tuple(copies)
        self._run_entries_max = run_entries_max
        self._order = ReadOrder(doubtful=frozenset(doubtful))
        self._read: RangeRead | None = None
        self._writing: tuple[str, int, int] | None = None
        """Target, first and last of the run that is being written."""

    def start(self) -> list[Action]:
        """The first request, or the end."""
        return self._next_run()

    def step(self, event: ReadAnswered | ReadIsLate | AddAnswered) -> list[Action]:
        """The actions that follow; what belongs to an earlier run is ignored."""
        if isinstance(event, AddAnswered):
            return self._written(event) if self._writing == (event.bookie, event.first, event.last) else []
        return self._hand_over(self._read.step(event)) if self._read is not None else []

    def _next_run(self) -> list[Action]:
        if not self._left:
            return [Finish(self._metadata)]
        first, last, _ = self._left[0]
        self._read = RangeRead(self._metadata, first, min(last, first + self._run_entries_max - 1), self._order)
        return self._hand_over(self._read.start())

    def _hand_over(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Deliver):
                assert self._read is not None
                self._order = replace(self._order, first=self._read.delivered_by)
                # What else the read asks for comes with the next run, which starts behind what is written now.
                self._read = None
                target = self._left[0].target
                self._writing = target, action.first, action.last
                return [SendAdd((target,), action.first, action.last, self._confirmed(), action.entries)]
        return actions

    def _written(self, event: AddAnswered) -> list[Action]:
        self._writing = None
        if not isinstance(event.response, Positive):
            what = f"entries {event.first}..{event.last} of ledger {self._metadata.ledger_id}"
            return [Fail(LedgerRecoveryError(f"{what} could not be copied to {event.bookie} ({event.response})"))]
        copy, *others = self._left
        behind = [copy._replace(first=event.last + 1)] if event.last < copy.last else []
        self._left = (*behind, *others)
        return self._next_run()

    def _confirmed(self) -> int:
        m = self._metadata
        return m.last_entry_id if m.closed else m.last_fragment.first_entry_id - 1
