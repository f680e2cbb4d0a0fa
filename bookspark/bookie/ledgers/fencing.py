"""Fences: a ledger's writer is shut out, so that the ledger can be recovered.

Law: a fence holds from the moment it is asked for, whether it is answered or not. It is answered OK only once it is durable in
every directory that is in use; a fence that no directory took is never answered OK. A request that comes while the fence is being
synced waits for the same sync. A fenced ledger's writer is told nothing of syncs any more.

Source: docs/decisions/one-log.md; BookKeeper's ``Bookie.fenceLedger``.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookspark.bookie.commit.completions import Done
from bookspark.bookie.disk.control_state import ControlState
from bookspark.bookie.disk.steps import Steps
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.bookie.ledgers.control_records import ControlRecords
from bookspark.bookie.ledgers.statuses import status_of
from bookspark.protocol.ledger.responses import Positive
from bookspark.wire.header import Status


class Fences:
    """The fences of one bookie. Owned by the loop."""

    def __init__(self, state: ControlState, records: ControlRecords, volatile: VolatileLedgers) -> None:
        self._state = state
        self._records = records
        self._volatile = volatile
        self._under_way: dict[int, list[Done]] = {}
        """The callers that wait for a fence that is being synced, by ledger."""
        self._not_durable: set[int] = set()
        """Ledgers that are fenced in memory only, because no directory took the record."""

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Fence a ledger, known here or not. ``done``: OK once that is durable, UNAUTHORIZED, or IO_ERROR."""
        decision = self._state.of(ledger_id).fence(master_key)
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
        elif ledger_id in self._under_way:
            self._under_way[ledger_id].append(done)
        elif decision.records:
            self._volatile.forget(ledger_id)
            self._under_way[ledger_id] = [done]
            self._records.write(decision.records, lambda status: self._fenced(ledger_id, status))
        else:
            done(Status.IO_ERROR if ledger_id in self._not_durable else Status.OK)

    def rewrite_control_log(self, directory: LogDirectory, done: Done) -> Steps[None]:
        """Write a new control log in a directory that had no room for a record. Fences that were in memory only are durable once
        it is written. ``done`` as in ``ControlRecords.rewrite_in``: OK, READ_ONLY or IO_ERROR."""

        def written(status: int) -> None:
            if status == Status.OK:
                self._not_durable.clear()
            done(status)

        yield from self._records.rewrite_in(directory, written)

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """These ledgers are deleted."""
        self._not_durable.difference_update(ledger_ids)

    def _fenced(self, ledger_id: int, status: int) -> None:
        if status != Status.OK:
            self._not_durable.add(ledger_id)
        for done in self._under_way.pop(ledger_id):
            done(status)
