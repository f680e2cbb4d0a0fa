"""Ledgers of volatile durability (VD) under write: the sync cursor and the unsynced batches of each.

Law: as in ``protocol.ledger.sync_cursor``, which decides LastAddSynced. The cursor learns of an entry only after the sync of its
log up to the end of the entry's frame; for a duplicate the kept copy counts. No LastAddSynced is reported for a fenced ledger.
After a boot, entries on disk at the writer's first request count as far as they are synced. In a ledger of many rows this check
runs in steps: meanwhile LastAddSynced is lower than possible, and a sync waits (``when_begun``).

The synced position of a log is looked up when an answer needs it, so no sync reports here.

A bookie does not learn of a ledger's close. So a cursor with nothing left to sync is *settled*: the index has the same
information, as after a boot. A bounded number of settled cursors is kept, the most recently used, and ``rest`` drops the cursors
unused since its last call. A ledger of many rows keeps its cursor until then, because a new cursor must visit each row.

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
"""A walk over this number of rows takes some 2 ms."""
_LEDGERS_A_STEP = 1 << 10


class VolatileLedger:
    """A VD ledger. ``unsynced``: (where, first, last) of the batches unsynced at the last check, in the order of the adds.
    ``following``: the entry id to continue the walk over the boot's rows at, None at its end; then ``waiting`` is called."""

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
        ``is_gone(where)``: does the frame there lie in a failed directory, so that its row is about to leave the index?
        ``carry_through``: runs steps to their end, at once or in later turns of the loop."""
        self._index = index
        self._is_gone = is_gone
        self._carry_through = carry_through
        self._is_synced = is_synced
        self._is_open = is_open
        self._ledgers: dict[int, VolatileLedger] = {}
        self._settled: dict[int, None] = {}
        """Ledgers with nothing left to sync, in the order of their last use."""
        self._idle: set[int] = set()
        """Ledgers settled at the last ``rest``, and unused since."""

    def __len__(self) -> int:
        return len(self._ledgers)

    def added(self, ledger_id: int, assignment: Assignment, first: int, last: int, where: int) -> None:
        """Note that entries ``first..last`` of a VD ledger were added in the frame at ``where``."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or (ledger.cursor.assignment != assignment and ledger.cursor.assign(assignment)):
            ledger = self._begin(ledger_id, assignment)
            if ledger.following is None:
                return
            # The ledger's row may be among the rows not yet visited.
        self._settled.pop(ledger_id, None)
        ledger.unsynced.append((where, first, last))

    def added_again(self, ledger_id: int, assignment: Assignment, kept: Iterable[Row]) -> None:
        """Note an add of entries that the rows ``kept`` hold already."""
        for row in kept:
            self.added(ledger_id, assignment, row.first, row.last, row.where)

    def asked(self, ledger_id: int, assignment: Assignment) -> list[int]:
        """Handle a sync request, after ``when_begun``; return the locations of unsynced frames."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.cursor.assign(assignment):
            ledger = self._begin(ledger_id, assignment)
        self._advance(ledger_id, ledger)
        return [where for where, _, _ in ledger.unsynced]

    def last_add_synced(self, ledger_id: int, assignment: Assignment) -> int:
        """LastAddSynced for a request with ``assignment``, NO_ENTRY if none."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if not self._is_open(ledger_id):
                return NO_ENTRY
            ledger = self._begin(ledger_id, assignment)
        if ledger.unsynced:
            self._advance(ledger_id, ledger)
        return ledger.cursor.last_add_synced_for(assignment)

    def when_begun(self, ledger_id: int, assignment: Assignment, then: Callable[[], None]) -> None:
        """Call ``then`` once all rows of the boot were visited: at once, or in later turns for many rows. It is called even if
        the ledger is fenced, deleted or assigned again meanwhile."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.cursor.assign(assignment):
            ledger = self._begin(ledger_id, assignment)
        if ledger.following is None:
            then()
        else:
            ledger.waiting.append(then)

    def forget(self, ledger_id: int) -> None:
        """Forget a fenced or deleted ledger."""
        self._ledgers.pop(ledger_id, None)
        self._settled.pop(ledger_id, None)

    def rest(self) -> Steps[None]:
        """Drop the settled cursors unused since the last call, in steps."""
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
        """Begin a cursor with the present index, at the first request since the boot or with another assignment."""
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
        """Visit the next rows of a new cursor. A row added meanwhile may be visited twice, which changes nothing."""
        assert ledger.following is not None
        rows = self._index.get(ledger_id)
        part = [] if rows is None else list(islice(rows.covering(ledger.following, rows.last_entry_id), _ROWS_MAX))
        ledger.following = part[-1].last + 1 if len(part) == _ROWS_MAX else None
        # In front of later adds: most of these rows are synced, and the cursor advances up to the first unsynced batch.
        held = [(row.where, row.first, row.last) for row in part if not self._is_gone(row.where)]
        ledger.unsynced.extendleft(reversed(held))
        self._advance(ledger_id, ledger)

    def _advance(self, ledger_id: int, ledger: VolatileLedger) -> None:
        """Report the synced batches to the cursor, consecutive entries in one call."""
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
        """Mark a ledger as settled, and drop the least recently used settled cursor above the maximum."""
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
