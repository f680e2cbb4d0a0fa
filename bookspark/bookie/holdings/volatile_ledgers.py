"""What a bookie keeps of the VD ledgers that are being written: the sync cursor of each, and what is not synced yet.

Law: that of ``protocol.sync_cursor``, which decides; here it is told what is synced, and nothing before it is. An entry is synced
once its log is up to the end of its frame; a duplicate counts by the copy that is kept. Nothing is told of a ledger that is
fenced. What is on disk when the writer's first request comes, after a boot, counts as far as it is synced.

Nobody has to be told of a sync for this: how far each log is synced is looked up when an answer needs it.

Source: BP-14, "Changes to Bookies".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from bookspark.bookie.disk.index import Index, Row
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.sync_cursor import Assignment, SyncCursor


class VolatileLedger:
    """One of them. ``unsynced``: (where, first, last) of what has not been seen synced yet, in the order of the adds."""

    __slots__ = ("cursor", "unsynced")

    def __init__(self) -> None:
        self.cursor = SyncCursor()
        self.unsynced: deque[tuple[int, int, int]] = deque()


class VolatileLedgers:
    """Owned by the loop. Ledgers are named by id."""

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
        """An add came of which ``kept`` are held already."""
        for row in kept:
            self.added(ledger_id, assignment, row.first, row.last, row.where)

    def asked(self, ledger_id: int, assignment: Assignment) -> list[int]:
        """A sync is asked for: where the frames lie that are not synced."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.cursor.assign(assignment):
            ledger = self._begin(ledger_id, assignment)
        self._advance(ledger)
        return [where for where, _, _ in ledger.unsynced]

    def last_add_synced(self, ledger_id: int, assignment: Assignment) -> int:
        """What to tell a request that came with ``assignment``."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return NO_ENTRY
        if ledger.unsynced:
            self._advance(ledger)
        return ledger.cursor.last_add_synced_for(assignment)

    def forget(self, ledger_id: int) -> None:
        """It is fenced, or gone."""
        self._ledgers.pop(ledger_id, None)

    def _begin(self, ledger_id: int, assignment: Assignment) -> VolatileLedger:
        """The first request since the boot, or of another stay: what the index holds by now was there before, or has just been
        added."""
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
        """Tell the cursor what is synced by now; runs of entries are told as one."""
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
