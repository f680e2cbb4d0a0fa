"""Ledgers of volatile durability (VD) that are being written: the sync cursor of each, and what is not synced yet.

Law: as in ``protocol.ledger.sync_cursor``, which decides LastAddSynced. The cursor is told of an entry only after the entry is
synced. An entry is synced when its log is, up to the end of the entry's frame; for a duplicate the kept copy counts. Nothing is
told of a fenced ledger. After a boot, what is on disk when the writer's first request comes counts as far as it is synced.

How far each log is synced is looked up when an answer needs it, so no sync has to report here.

Source: BP-14, "Changes to Bookies".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from bookspark.bookie.disk.index import Index, Row
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.sync_cursor import Assignment, SyncCursor


class VolatileLedger:
    """A VD ledger. ``unsynced``: (where, first, last) of the batches that were not synced when last looked at, in the order of
    the adds."""

    __slots__ = ("cursor", "unsynced")

    def __init__(self) -> None:
        self.cursor = SyncCursor()
        self.unsynced: deque[tuple[int, int, int]] = deque()


class VolatileLedgers:
    """The VD ledgers of one bookie. Owned by the loop."""

    def __init__(self, index: Index, is_synced: Callable[[int], bool]) -> None:
        """``is_synced(where)``: is the frame there durable?"""
        self._index = index
        self._is_synced = is_synced
        self._ledgers: dict[int, VolatileLedger] = {}

    def added(self, ledger_id: int, assignment: Assignment, first: int, last: int, where: int) -> None:
        """Entries ``first..last`` of a VD ledger were taken, and lie in the frame at ``where``."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            self._begin(ledger_id, assignment)
        else:
            if ledger.cursor.assignment != assignment and ledger.cursor.assign(assignment):
                self._begin(ledger_id, assignment)
            else:
                ledger.unsynced.append((where, first, last))

    def added_again(self, ledger_id: int, assignment: Assignment, kept: Iterable[Row]) -> None:
        """An add came whose entries in the rows ``kept`` are held already."""
        for row in kept:
            self.added(ledger_id, assignment, row.first, row.last, row.where)

    def asked(self, ledger_id: int, assignment: Assignment) -> list[int]:
        """A sync is asked for; returns where the frames lie that are not synced."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.cursor.assign(assignment):
            ledger = self._begin(ledger_id, assignment)
        self._advance(ledger)
        return [where for where, _, _ in ledger.unsynced]

    def last_add_synced(self, ledger_id: int, assignment: Assignment) -> int:
        """LastAddSynced for a request that came with ``assignment``, NO_ENTRY if there is none."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return NO_ENTRY
        if ledger.unsynced:
            self._advance(ledger)
        return ledger.cursor.last_add_synced_for(assignment)

    def forget(self, ledger_id: int) -> None:
        """The ledger is fenced, or deleted."""
        self._ledgers.pop(ledger_id, None)

    def _begin(self, ledger_id: int, assignment: Assignment) -> VolatileLedger:
        """The first request since the boot, or with another assignment, came: begin with what the index holds by now."""
        ledger = self._ledgers[ledger_id] = VolatileLedger()
        ledger.cursor.assign(assignment)
        rows = self._index.get(ledger_id)
        if rows is not None:
            ledger.unsynced += (
                (row.where, row.first, row.last) for row in rows.covering(assignment.first_entry_id, rows.last_entry_id)
            )
        self._advance(ledger)
        return ledger

    def _advance(self, ledger: VolatileLedger) -> None:
        """Tell the cursor what is synced by now, consecutive entries in one call."""
        unsynced = ledger.unsynced
        run = (0, -1)
        while unsynced:
            where, first, last = unsynced[0]
            if not self._is_synced(where):
                break
            unsynced.popleft()
            if first == run[1] + 1:
                run = (run[0], last)
            else:
                if run[1] >= run[0]:
                    ledger.cursor.synced(*run)
                run = (first, last)
        if run[1] >= run[0]:
            ledger.cursor.synced(*run)
