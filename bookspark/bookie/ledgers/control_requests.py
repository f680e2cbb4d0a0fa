"""Requests that change what the control log keeps: fences, explicit LACs, and whatever else has to be noted of ledgers.

Law: each is answered OK once its records are durable in every directory that is in use. A fence holds from the moment it is asked
for, answered or not; one that no directory took is never answered OK. A fenced ledger's writer is told nothing of syncs any more.

A control log is written anew in steps, for a million ledgers take seconds to encode. What is noted between two steps goes to the
end of the new log as well: records may come twice, and in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookspark.bookie.commit.commit_items import ControlRewrite, ControlWrite, Passing
from bookspark.bookie.commit.completions import AnyOf, Done, ignore
from bookspark.bookie.disk.control_log import encode_records
from bookspark.bookie.disk.control_state import ControlState, Record
from bookspark.bookie.disk.steps import Steps
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.bookie.ledgers.long_polls import ConfirmedWatches
from bookspark.bookie.ledgers.statuses import status_of
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Positive
from bookspark.wire.header import Status


class ControlRequests:
    """Owned by the loop. ``live``: the directories that are in use, which the owner keeps up to date."""

    def __init__(
        self,
        state: ControlState,
        live: Sequence[LogDirectory],
        volatile: VolatileLedgers,
        watches: ConfirmedWatches,
    ) -> None:
        self.is_open = False
        """Nothing is taken before the boot is through, nor after a stop."""
        self._state = state
        self._live = live
        self._volatile = volatile
        self._watches = watches
        self._fencing: dict[int, list[Done]] = {}
        """Who waits for a fence that is being synced."""
        self._not_durable: set[int] = set()
        """Ledgers that are fenced in memory only, because no directory took the record."""
        self._noted: list[list[bytes]] = []
        """Of each encoding of the state that is under way: what was noted since it began."""

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Fence a ledger, known here or not. ``done``: OK once it is durable, UNAUTHORIZED, or IO_ERROR."""
        decision = self._state.of(ledger_id).fence(master_key)
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
        elif ledger_id in self._fencing:
            self._fencing[ledger_id].append(done)
        elif decision.records:
            self._volatile.forget(ledger_id)
            self._fencing[ledger_id] = [done]
            self.write(decision.records, lambda status: self._fenced(ledger_id, status))
        else:
            done(Status.IO_ERROR if ledger_id in self._not_durable else Status.OK)

    def write_last_add_confirmed(
        self,
        ledger_id: int,
        master_key: bytes,
        last_add_confirmed: int,
        done: Done,
        last_add_fully_replicated: int = NO_ENTRY,
    ) -> None:
        """Explicit LAC. ``done``: OK once it is durable, FENCED, UNAUTHORIZED, or IO_ERROR. The LAFR is kept in memory only:
        knowing less of it costs a recovery some reads."""
        ledger = self._state.known(ledger_id)
        decision = ledger.write_last_add_confirmed(master_key, last_add_confirmed)
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
            return
        ledger.note(NO_ENTRY, last_add_fully_replicated)
        self._state.ledgers[ledger_id] = ledger
        self._watches.reached(ledger_id, ledger.last_add_confirmed)
        if decision.records:
            self.write(decision.records, done)
        else:
            self.settle(done)  # the same LAC may still be on its way to the disk

    def settle(self, done: Done) -> None:
        """Call ``done`` once all that was asked for before is through in every directory."""
        if not self._live or not self.is_open:
            done(Status.IO_ERROR)
            return
        any_of = AnyOf(len(self._live), done)
        for directory in self._live:
            directory.commit.submit(Passing(any_of))

    def write(self, records: Iterable[Record], done: Done) -> None:
        """Note ``records``. ``done``: OK once they are durable, or IO_ERROR."""
        if not self._live or not self.is_open:
            done(Status.IO_ERROR)
            return
        content = encode_records(records)
        for noted in self._noted:
            noted.append(content)
        any_of = AnyOf(len(self._live), done)
        for directory in self._live:
            directory.commit.submit(ControlWrite(content, any_of))

    def rewrite(self) -> Steps[None]:
        """Put the state in place of every directory's control log."""
        content = yield from self._encoded()
        for directory in self._live:
            directory.commit.submit(ControlRewrite(content, ignore))

    def rewrite_in(self, directory: LogDirectory, done: Done) -> Steps[None]:
        """The same in one directory, which had no room for a record. What was not durable for that is, once this is."""
        content = yield from self._encoded()

        def written(status: int) -> None:
            if status == Status.OK:
                self._not_durable.clear()
            done(status)

        directory.commit.submit(ControlRewrite(content, written))

    def _encoded(self) -> Steps[list[bytes]]:
        """The state as it is at the last step, in pieces."""
        noted: list[bytes] = []
        self._noted.append(noted)
        try:
            parts: list[bytes] = []
            for records in self._state.records():
                parts.append(encode_records(records))
                yield None
        finally:
            self._noted = [other for other in self._noted if other is not noted]
        return parts + noted

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """These ledgers are gone."""
        for ledger_id in ledger_ids:
            self._volatile.forget(ledger_id)
            self._not_durable.discard(ledger_id)

    def _fenced(self, ledger_id: int, status: int) -> None:
        if status != Status.OK:
            self._not_durable.add(ledger_id)
        for done in self._fencing.pop(ledger_id):
            done(status)
