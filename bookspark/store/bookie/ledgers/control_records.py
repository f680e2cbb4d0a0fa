"""Writing to the control logs: single records, and whole logs anew.

Law: a record is reported OK once it is durable in every directory that is in use. (A directory that fails is out of use at once,
so it is enough that one took the record.) What a ledger knows in memory before its record is durable is never a reason for an OK:
whoever asks for it again waits for the record that is under way. If no directory took that one, the records of the ledger are
written again, all of them.

A control log is written anew in steps, because a million ledgers take seconds to encode. What is noted between two steps goes to
the end of the new log too: a record may stand there twice, and in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, ControlRecord
from bookspark.store.bookie.commit.commit_items import ControlRewrite, ControlWrite, Passing
from bookspark.store.bookie.commit.completions import AnyOf, Done, ignore
from bookspark.store.bookie.disk.control_log import encode_records
from bookspark.store.bookie.disk.control_state import ControlState, Record, WriteNumbered
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.steps import Steps
from bookspark.store.wire.header import Status


class _Unsure:
    """The records of a ledger that may not be durable. ``writes``: how many writes of them are under way. ``last``: who waits for
    the last one. ``lost``: no directory took one of the records, and they were not written again since."""

    __slots__ = ("last", "lost", "writes")

    def __init__(self) -> None:
        self.writes = 0
        self.last: list[Done] = []
        self.lost = False


class ControlRecords:
    """Writes the control logs of one bookie. Owned by the loop. ``live``: the directories that are in use; the owner keeps the
    list up to date."""

    def __init__(self, state: ControlState, live: Sequence[LogDirectory]) -> None:
        self.is_open = False
        """Nothing is taken before the boot has ended, nor after a stop."""
        self._state = state
        self._live = live
        self._noted: list[list[bytes]] = []
        """For each encoding of the state that is under way: what was noted since it began."""
        self._unsure: dict[int, _Unsure] = {}
        """The ledgers of which a record may not be durable."""

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
        """Append ``records``, which ``ledger`` has taken over already. ``done``: OK once all that the ledger knows is durable,
        with or without new records; or IO_ERROR."""
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
        """These ledgers are deleted."""
        for ledger_id in ledger_ids:
            self._unsure.pop(ledger_id, None)

    def _written(self, ledger_id: int, unsure: _Unsure, waiting: list[Done], whole: bool, status: int) -> None:
        """A write has ended. Earlier ones of the ledger have ended before it, because each directory keeps their order."""
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
        """Write nothing. ``done``: OK once all that was queued before is written in every directory, or IO_ERROR."""
        if not self._live or not self.is_open:
            done(Status.IO_ERROR)
            return
        any_of = AnyOf(len(self._live), done)
        for directory in self._live:
            directory.commit.submit(Passing(any_of))

    def rewrite(self) -> Steps[None]:
        """Write the state as a new control log in every directory."""
        content = yield from self._encoded()
        for directory in self._live:
            directory.commit.submit(ControlRewrite(content, ignore, self._state.write_number))

    def rewrite_in(self, directory: LogDirectory, done: Done) -> Steps[None]:
        """Write the state as a new control log in one directory. ``done``: OK once it is durable, READ_ONLY or IO_ERROR."""
        content = yield from self._encoded()
        directory.commit.submit(ControlRewrite(content, done, self._state.write_number))

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
