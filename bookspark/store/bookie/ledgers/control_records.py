"""Writes to the control logs: single records, and rewritten whole logs.

Law: a record is reported OK once it is durable in every directory in use. (A failing directory leaves use at once, so one
directory that took the record suffices.) A ledger's state in memory is no reason for OK before its record is durable: a repeated
request waits for the write under way. If no directory took a record, the next write repeats all records of the ledger.

A rewrite of a control log runs in steps, because a million ledgers take seconds to encode. Records noted meanwhile also go to the
end of the new log: a record may stand there twice, and in any order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, ControlRecord
from bookspark.store.bookie.commit.commit_thread import ControlRewrite, ControlWrite, Passing
from bookspark.store.bookie.commit.completions import AnyOf, Done, ignore
from bookspark.store.bookie.disk.control_log import encode_records
from bookspark.store.bookie.disk.control_state import ControlState, Record, WriteNumbered
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.steps import Steps
from bookspark.store.wire.header import Status

log = logging.getLogger(__name__)


class _Unsure:
    """Records of a ledger that may not be durable. ``writes``: their writes under way. ``last``: callers waiting for the last
    write. ``lost``: no directory took one of the records, and no later write repeated them."""

    __slots__ = ("last", "lost", "writes")

    def __init__(self) -> None:
        self.writes = 0
        self.last: list[Done] = []
        self.lost = False


class ControlRecords:
    """Writer of one bookie's control logs. Owned by the loop. ``live``: the directories in use; the owner keeps the list up to
    date."""

    def __init__(self, state: ControlState, live: Sequence[LogDirectory]) -> None:
        self.is_open = False
        """False before the end of the boot and after a stop: writes are refused."""
        self._state = state
        self._live = live
        self._noted: list[list[bytes]] = []
        """For each encoding of the state under way: the records noted since its start."""
        self._unsure: dict[int, _Unsure] = {}
        """Ledgers with a record that may not be durable."""

    def write(self, records: Iterable[Record], done: Done) -> None:
        """Append ``records`` to every control log. ``done``: OK once they are durable, or IO_ERROR."""
        if not self._live or not self.is_open:
            done(Status.IO_ERROR)
            return
        number = self._state.next_write()
        content = encode_records((WriteNumbered(number), *records))
        for noted in self._noted:
            noted.append(content)
        any_of = AnyOf(len(self._live), done)
        for directory in self._live:
            directory.commit.submit(ControlWrite(content, any_of, number))

    def note(self, ledger: BookieLedger, records: Sequence[ControlRecord], done: Done) -> None:
        """Append ``records``, which ``ledger`` has applied already. ``done``: OK once the ledger's whole state is durable, or
        IO_ERROR."""
        unsure = self._unsure.get(ledger.ledger_id)
        if unsure is None:
            if not records:
                done(Status.OK)
                return
            unsure = self._unsure[ledger.ledger_id] = _Unsure()
        whole = unsure.lost
        if not (records or whole):
            unsure.last.append(done)
            return
        unsure.writes += 1
        unsure.last = [done]
        written = partial(self._written, ledger.ledger_id, unsure, unsure.last, whole)
        self.write(ledger.control_records() if whole else records, written)

    def forget(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            self._unsure.pop(ledger_id, None)

    def _written(self, ledger_id: int, unsure: _Unsure, waiting: list[Done], whole: bool, status: int) -> None:
        """A write has ended. Each directory keeps the order, so earlier writes of the ledger have ended too."""
        unsure.writes -= 1
        if status != Status.OK:
            unsure.lost = True
        elif whole:
            unsure.lost = False
        if not (unsure.writes or unsure.lost) and self._unsure.get(ledger_id) is unsure:
            del self._unsure[ledger_id]
        for done in waiting:
            done(Status.IO_ERROR if unsure.lost else Status.OK)

    def settle(self, done: Done) -> None:
        """Write nothing. ``done``: OK once every directory has written its earlier queue, or IO_ERROR."""
        if not self._live or not self.is_open:
            done(Status.IO_ERROR)
            return
        any_of = AnyOf(len(self._live), done)
        for directory in self._live:
            directory.commit.submit(Passing(any_of))

    def rewrite(self) -> Steps[None]:
        """Write a new control log in every directory."""
        content = yield from self._encoded()
        for directory in self._live:
            directory.commit.submit(ControlRewrite(content, ignore, self._state.write_number))

    def rewrite_in(self, directory: LogDirectory, done: Done) -> Steps[None]:
        """Write a new control log in one directory. ``done``: OK once it is durable, READ_ONLY or IO_ERROR."""
        content = yield from self._encoded()
        directory.commit.submit(ControlRewrite(content, done, self._state.write_number))

    def rewrite_at_once(self) -> None:
        """After the end of the commit threads: write a new control log in every directory. A failure leaves the old one."""
        content = [encode_records(records) for records in self._state.records()]
        for directory in list(self._live):
            try:
                directory.control.rewrite(content, self._state.write_number)
            except OSError as error:
                log.warning("%s: its control log can't be written anew: %s", directory.path, error)

    def _encoded(self) -> Steps[list[bytes]]:
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
