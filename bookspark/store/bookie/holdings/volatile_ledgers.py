"""Ledgers of volatile durability (VD) that are being written: the sync cursor of each, and what is not synced yet.

Law: as in ``protocol.ledger.sync_cursor``, which decides LastAddSynced. The cursor is told of an entry only after the entry is
synced. An entry is synced when its log is, up to the end of the entry's frame; for a duplicate the kept copy counts. Nothing is
told of a fenced ledger. After a boot, what is on disk when the writer's first request comes counts as far as it is synced. In a
ledger of many rows that is looked at in steps: until they are over, LastAddSynced is lower than it could be, and a sync waits
(``when_begun``).

How far each log is synced is looked up when an answer needs it, so no sync has to report here.

A bookie is not told when a ledger is closed. So a cursor that has nothing left to sync is *settled*: the index tells as much, as
it does after a boot. Of the settled cursors a bounded number is kept, those that were used last, and ``rest`` drops the ones
that were not used since its last call. A ledger of many rows keeps its cursor until then, because a new one has to look at each
row.

Source: BP-14, "Changes to Bookies".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.sync_cursor import Assignment, SyncCursor
from bookspark.store.bookie.disk.index import Index, Row
from bookspark.store.bookie.steps import Steps, at_once

_SETTLED_MAX = 1 << 12
_ROWS_MAX = 1 << 12
"""To look at so many rows takes some 2 ms."""
_LEDGERS_A_STEP = 1 << 10


class VolatileLedger:
    """A VD ledger. ``unsynced``: (where, first, last) of the batches that were not synced when last looked at, in the order of
    the adds. ``following``: the entry id from which on the rows of the boot are still to be looked at, None at the end; then
    those in ``waiting`` are called."""

    __slots__ = ("cursor", "following", "unsynced", "waiting")

    def __init__(self) -> None:
        self.cursor = SyncCursor()
        self.unsynced: deque[tuple[int, int, int]] = deque()
        self.following: int | None = None
        self.waiting: list[Callable[[], None]] = []


class VolatileLedgers:
    """The VD ledgers of one bookie. Owned by the loop."""

    def __init__(
        self,
        index: Index,
        is_synced: Callable[[int], bool],
        is_open: Callable[[int], bool] = lambda ledger_id: False,
        is_gone: Callable[[int], bool] = lambda where: False,
        carry_through: Callable[[Steps[None]], None] = at_once,
    ) -> None:
        """``is_synced(where)``: is the frame there durable? ``is_open(ledger_id)``: is the ledger known and not fenced?
        ``is_gone(where)``: does the frame there lie in a directory that failed? Its row is about to leave the index.
        ``carry_through``: carries steps through, at once or in later turns of the loop."""
        self._index = index
        self._is_gone = is_gone
        self._carry_through = carry_through
        self._is_synced = is_synced
        self._is_open = is_open
        self._ledgers: dict[int, VolatileLedger] = {}
        self._settled: dict[int, None] = {}
        """Those of them that have nothing left to sync, in the order of their last use."""
        self._idle: set[int] = set()
        """Those that were settled at the last ``rest``, and were not used since."""

    def __len__(self) -> int:
        """The number of cursors that are kept."""
        return len(self._ledgers)

    def added(self, ledger_id: int, assignment: Assignment, first: int, last: int, where: int) -> None:
        """Entries ``first..last`` of a VD ledger were taken, and lie in the frame at ``where``."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or (ledger.cursor.assignment != assignment and ledger.cursor.assign(assignment)):
            ledger = self._begin(ledger_id, assignment)
            if ledger.following is None:
                return
            # Its row may be one that is not looked at yet.
        self._settled.pop(ledger_id, None)
        ledger.unsynced.append((where, first, last))

    def added_again(self, ledger_id: int, assignment: Assignment, kept: Iterable[Row]) -> None:
        """An add came whose entries in the rows ``kept`` are held already."""
        for row in kept:
            self.added(ledger_id, assignment, row.first, row.last, row.where)

    def asked(self, ledger_id: int, assignment: Assignment) -> list[int]:
        """A sync is asked for (after ``when_begun``); returns where the frames lie that are not synced."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.cursor.assign(assignment):
            ledger = self._begin(ledger_id, assignment)
        self._advance(ledger_id, ledger)
        return [where for where, _, _ in ledger.unsynced]

    def last_add_synced(self, ledger_id: int, assignment: Assignment) -> int:
        """LastAddSynced for a request that came with ``assignment``, NO_ENTRY if there is none."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if not self._is_open(ledger_id):
                return NO_ENTRY
            ledger = self._begin(ledger_id, assignment)
        if ledger.unsynced:
            self._advance(ledger_id, ledger)
        return ledger.cursor.last_add_synced_for(assignment)

    def when_begun(self, ledger_id: int, assignment: Assignment, then: Callable[[], None]) -> None:
        """Call ``then`` when all rows that a ledger had at the boot were looked at: at once, or in later turns if there
        are many. Also if it is fenced, deleted or assigned anew meanwhile."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.cursor.assign(assignment):
            ledger = self._begin(ledger_id, assignment)
        if ledger.following is None:
            then()
        else:
            ledger.waiting.append(then)

    def forget(self, ledger_id: int) -> None:
        """The ledger is fenced, or deleted."""
        self._ledgers.pop(ledger_id, None)
        self._settled.pop(ledger_id, None)

    def rest(self) -> Steps[None]:
        """Drop the cursors that have nothing left to sync and were not used since the last call, in steps."""
        unsettled = [ledger_id for ledger_id in self._ledgers if ledger_id not in self._settled]
        for count, ledger_id in enumerate(unsettled, 1):
            ledger = self._ledgers.get(ledger_id)
            if ledger is not None:
                self._advance(ledger_id, ledger)
            if count % _LEDGERS_A_STEP == 0:
                yield None
        for ledger_id in self._idle:
            if ledger_id in self._settled:
                self.forget(ledger_id)
        self._idle = set(self._settled)

    def _begin(self, ledger_id: int, assignment: Assignment) -> VolatileLedger:
        """The first request since the boot, or with another assignment, came: begin with what the index holds by now."""
        ledger = self._ledgers[ledger_id] = VolatileLedger()
        ledger.cursor.assign(assignment)
        self._settled.pop(ledger_id, None)
        ledger.following = assignment.first_entry_id
        self._go_on(ledger_id, ledger)
        if ledger.following is not None:
            self._carry_through(self._go_through(ledger_id, ledger))
        return ledger

    def _go_through(self, ledger_id: int, ledger: VolatileLedger) -> Steps[None]:
        while ledger.following is not None and self._ledgers.get(ledger_id) is ledger:
            self._go_on(ledger_id, ledger)
            yield None
        for then in ledger.waiting:
            then()

    def _go_on(self, ledger_id: int, ledger: VolatileLedger) -> None:
        """Look at the next rows of a ledger that has just begun. A row that was added meanwhile may be looked at again, which
        changes nothing."""
        assert ledger.following is not None
        rows = self._index.get(ledger_id)
        part = [] if rows is None else list(islice(rows.covering(ledger.following, rows.last_entry_id), _ROWS_MAX))
        ledger.following = part[-1].last + 1 if len(part) == _ROWS_MAX else None
        # In front of what was added meanwhile: most of it is synced, and the cursor is told as far as that goes.
        held = [(row.where, row.first, row.last) for row in part if not self._is_gone(row.where)]
        ledger.unsynced.extendleft(reversed(held))
        self._advance(ledger_id, ledger)

    def _advance(self, ledger_id: int, ledger: VolatileLedger) -> None:
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
        if not unsynced and ledger.following is None:
            self._settle(ledger_id)

    def _settle(self, ledger_id: int) -> None:
        """The cursor has nothing left to sync. Drop the one that was used longest ago, if there are too many like it."""
        self._idle.discard(ledger_id)
        self._settled.pop(ledger_id, None)
        self._settled[ledger_id] = None
        if len(self._settled) > _SETTLED_MAX:
            oldest = next(iter(self._settled))
            rows = self._index.get(oldest)
            if rows is None or len(rows) <= _ROWS_MAX:
                self.forget(oldest)
            else:
                del self._settled[oldest]
