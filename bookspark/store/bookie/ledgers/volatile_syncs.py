"""SYNC requests: the writer of a ledger of volatile durability (VD) asks for its entries to be synced.

Law: as in ``protocol.ledger.sync_cursor``. The answer comes after the sync of everything that was added before the request, and
``holdings.volatile`` tells LastAddSynced then. A ledger that is fenced meanwhile, or of which something is lost, is not answered
OK.

Source: BP-14, "Changes to Bookies".
"""

from __future__ import annotations

from functools import partial

from bookspark.protocol.ledger.responses import Positive, Response
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.bookie.commit.commit_items import SyncWritten
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.ledgers.held_copies import HeldCopies
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.wire.header import Status


class VolatileSyncs:
    """The SYNC requests of one bookie. Owned by the loop."""

    def __init__(self, holdings: Holdings, held: HeldCopies) -> None:
        self._holdings = holdings
        self._held = held

    def sync(self, ledger_id: int, master_key: bytes, assignment: Assignment, done: Done) -> None:
        """Sync what was added to a VD ledger so far. ``done``: OK, FENCED, UNAUTHORIZED, LIMBO, or IO_ERROR if something of it
        is lost."""

        def synced(status: int) -> None:
            self._holdings.when_left(ledger_id, partial(answer, status))

        def answer(status: int) -> None:
            response = decide()
            if status == Status.OK and self._holdings.lacking(ledger_id):
                status = Status.IO_ERROR
            # What was refused stays refused, also if the fence has become sure meanwhile: nothing was synced for it.
            done(status if type(response) is Positive else status_of(response))

        def decide() -> Response:
            return self._holdings.control.known(ledger_id).admit_sync(master_key).response

        def begun() -> None:
            # It may have been fenced meanwhile.
            if type(response := decide()) is Positive:
                self._held.submit_behind(volatile.asked(ledger_id, assignment), synced, SyncWritten)
            else:
                synced(status_of(response))

        volatile = self._holdings.volatile
        if type(response := decide()) is Positive:
            volatile.when_begun(ledger_id, assignment, begun)
        else:
            synced(status_of(response))
