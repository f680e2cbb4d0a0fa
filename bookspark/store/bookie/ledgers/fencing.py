"""Fences: a ledger's writer is shut out, so that the ledger can be recovered.

Law: a fence holds from the moment it is asked for, whether it is answered or not. It is answered OK only once it is durable in
every directory that is in use; a fence that no directory took is never answered OK. A request that comes while the fence is being
synced waits for the same sync; one that comes after a failed sync has the fence written again. A fenced ledger's writer is told
nothing of syncs any more.

Source: docs/decisions/one-log.md; BookKeeper's ``Bookie.fenceLedger``.
"""

from __future__ import annotations

from bookspark.protocol.ledger.responses import Positive
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.bookie.traffic import Traffic


class Fences:
    """The fences of one bookie. Owned by the loop."""

    def __init__(
        self, state: ControlState, records: ControlRecords, volatile: VolatileLedgers, traffic: Traffic
    ) -> None:
        self._state = state
        self._records = records
        self._volatile = volatile
        self._traffic = traffic

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Fence a ledger, known here or not. ``done``: OK once that is durable, UNAUTHORIZED, or IO_ERROR."""
        ledger = self._state.of(ledger_id)
        decision = ledger.fence(master_key)
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
            return
        self._state.suspects.discard(ledger_id)
        if decision.records:
            self._volatile.forget(ledger_id)
            self._traffic.fences += 1
        self._records.note(ledger, decision.records, done)
