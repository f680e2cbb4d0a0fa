"""Adds of entries that are held already: they wait while a thread reads the held copies and compares.

Law: the loop compares what is in memory, and never waits for a disk. An add that waits is not admitted yet: it is decided anew,
as things are then, once its comparison is there. So a fence that comes meanwhile wins and need not wait, and an entry that is
replaced meanwhile is compared again. Adds of one ledger, and its SYNCs, keep their order: whoever comes later waits behind.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.disk.index import Row
from bookspark.store.bookie.holdings.commit_results import CommitResults
from bookspark.store.bookie.holdings.disk_threads import DiskThreads
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.reads import Piece
from bookspark.store.bookie.ledgers.held_copies import Compared, HeldCopies
from bookspark.store.bookie.ledgers.unsure_adds import WaitingAdd
from bookspark.store.wire.header import Status

Decide = Callable[[WaitingAdd, Compared | None], Sequence[Row]]
"""``decide(add, compared)``: decide an add; returns no rows, or those that have to be compared first."""

log = logging.getLogger(__name__)


class Comparisons:
    """The adds of one bookie that wait. Owned by the loop."""

    def __init__(
        self,
        holdings: Holdings,
        held: HeldCopies,
        results: CommitResults,
        threads: DiskThreads,
        decide: Decide,
    ) -> None:
        self._holdings = holdings
        self._held = held
        self._results = results
        self._threads = threads
        self._decide = decide
        self.waiting: dict[int, deque[WaitingAdd | Callable[[], None]]] = {}
        """By ledger: the add that is compared, and what waits behind it."""
        self._post: Post | None = None
        self._over: list[Callable[[], None]] = []

    def start(self, post: Post) -> None:
        """Compare in threads from now on. Without this call there is no loop that could be held up."""
        self._post = post

    def close(self) -> None:
        """Refuse everything that waits."""
        self._post = None
        for ledger_id, waiting in list(self.waiting.items()):
            del self.waiting[ledger_id]
            for one in waiting:
                if isinstance(one, WaitingAdd):
                    self._leave(one, Status.IO_ERROR)
                else:
                    one()
        self._tell_over()

    def here(self, held: Sequence[Row]) -> bool:
        """May the loop compare with these rows itself?"""
        recent = self._holdings.recent
        return self._post is None or all(row.where in recent for row in held)

    def begin(self, add: WaitingAdd, held: Sequence[Row]) -> None:
        """Have ``add`` decided when it is compared with ``held``, not all of which is in memory."""
        self.waiting[add.header.ledger_id] = deque([add])
        self._results.waits(len(add.batch.frame))
        self._compare(add, held)

    def behind(self, ledger_id: int, one: WaitingAdd | Callable[[], None]) -> None:
        """Something comes for a ledger of which an add waits."""
        self.waiting[ledger_id].append(one)
        if isinstance(one, WaitingAdd):
            self._results.waits(len(one.batch.frame))

    def when_over(self, over: Callable[[], None]) -> None:
        """Call ``over`` once no add waits."""
        self._over.append(over)
        self._tell_over()

    def _compare(self, add: WaitingAdd, held: Sequence[Row]) -> None:
        post = self._post
        recent = self._holdings.recent
        pieces = [Piece(add.header.ledger_id, *row, recent.get(row.where)) for row in held]
        slow = next((row.where for row in held if row.where not in recent), held[0].where)

        def compare() -> None:
            compared = Compared(held, Status.IO_ERROR)
            try:
                compared = self._held.compare(held, pieces, add.batch)
            except Exception:
                log.exception("entries of ledger %d could not be compared", add.header.ledger_id)
            finally:
                if post is not None:
                    post(self._compared, add, compared)

        try:
            self._threads.run(slow, compare)
        except RuntimeError:
            assert post is not None
            post(self._compared, add, Compared(held, Status.TOO_MANY_REQUESTS))

    def _compared(self, add: WaitingAdd, compared: Compared) -> None:
        ledger_id = add.header.ledger_id
        waiting = self.waiting.get(ledger_id)
        if waiting is None or waiting[0] is not add:
            # The bookie stops, and the add is answered.
            return
        result: Compared | None = compared
        while waiting:
            one = waiting[0]
            if isinstance(one, WaitingAdd):
                held = self._decide(one, result)
                result = None
                if held:
                    self._compare(one, held)
                    return
                self._results.waits(-len(one.batch.frame))
            else:
                one()
            waiting.popleft()
        del self.waiting[ledger_id]
        self._tell_over()

    def _leave(self, add: WaitingAdd, status: Status) -> None:
        self._results.waits(-len(add.batch.frame))
        add.done(status)

    def _tell_over(self) -> None:
        if not self.waiting:
            over, self._over = self._over, []
            for tell in over:
                tell()
