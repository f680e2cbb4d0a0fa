"""Copies of entries that a bookie holds: comparison with an add, their ranges, and waits for their durability.

Law: the first copy of an entry is kept as long as it is readable, and a later copy has to be equal to it (``same_content``). A
new copy takes the place of an unreadable copy. A wait for durable copies ends after everything queued earlier in their
directories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from bookspark.protocol.bookie.bookie_ledger import same_content
from bookspark.store.bookie.commit.commit_thread import Barrier, Item, Post
from bookspark.store.bookie.commit.completions import AllOf, Done
from bookspark.store.bookie.disk.index import Row, log_of
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.holdings.reads import Piece, Stop
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Status

Told = Callable[[list[tuple[int, int]] | None], None]

_ROWS_A_TURN = 1 << 10


class Compared(NamedTuple):
    """Result of a comparison with the rows ``held``. ``refusal``: CONFLICT, IO_ERROR if a copy can't be read now, None if the
    readable entries are equal. ``unreadable``: copies that the add replaces, each with the reason."""

    held: Sequence[Row]
    refusal: Status | None
    unreadable: Sequence[tuple[Piece, Stop]] = ()


class HeldCopies:
    """The held copies of one bookie. Owned by the loop."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._post: Post | None = None

    def start(self, post: Post) -> None:
        """Scan long ledgers in several turns of the loop from now on."""
        self._post = post

    def compare(self, held: Sequence[Row], pieces: Sequence[Piece], batch: EntryBatch) -> Compared:
        """Compare the entries of ``batch`` with the held copies in ``pieces``, of the rows ``held``. In any thread: it may wait
        for the disk."""
        unreadable: list[tuple[Piece, Stop]] = []
        added = {entry_id: (length, payload) for entry_id, length, payload in batch.contents()}
        while pieces:
            fetched = self._holdings.files.fetch(pieces, cached_only=False)
            if fetched is None or fetched.stop is Stop.FAILED:
                return Compared(held, Status.IO_ERROR, unreadable)
            for piece, frame in zip(pieces, fetched.frames, strict=False):
                for entry_id, length, payload in EntryBatch(frame).contents():
                    if not piece.first <= entry_id <= piece.last or entry_id not in added:
                        continue
                    if not same_content((length, payload), added[entry_id]):
                        return Compared(held, Status.CONFLICT, unreadable)
            pieces = pieces[len(fetched.frames) :]
            if fetched.stop not in (None, Stop.LIMIT):
                unreadable.append((pieces[0], fetched.stop))
                pieces = pieces[1:]
        return Compared(held, None, unreadable)

    def ranges(self, ledger_id: int, done: Told) -> None:
        """``Storage.held_ranges``."""
        self._look(ledger_id, 0, [], [], done)

    def _look(self, ledger_id: int, start: int, ranges: list[tuple[int, int]], unsynced: list[int], done: Told) -> None:
        """Collect the ranges from entry id ``start`` on: a thousand rows in this turn of the loop, the rest in later turns."""
        if self._holdings.gone:
            self._holdings.leave_gone(ledger_id, start)
        rows = self._holdings.index.get(ledger_id)
        last = -1 if rows is None else rows.last_entry_id
        looked_at = islice(rows.covering(start, last), _ROWS_A_TURN) if rows is not None else ()
        count = 0
        for row in looked_at:
            count += 1
            start = row.last + 1
            if self._holdings.is_gone(row.where) or self._holdings.is_unread(ledger_id, row.where):
                continue
            if not self._holdings.is_synced(row.where):
                unsynced.append(row.where)
            if ranges and row.first == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], row.last)
            else:
                ranges.append((row.first, row.last))
        if count == _ROWS_A_TURN and self._post is not None:
            self._post(self._look, ledger_id, start, ranges, unsynced, done)
        elif count == _ROWS_A_TURN:
            self._look(ledger_id, start, ranges, unsynced, done)
        else:
            self.when_durable(unsynced, lambda status: done(ranges if status == Status.OK else None))

    def when_durable(self, wheres: Sequence[int], done: Done) -> None:
        """Call ``done`` once the frames at ``wheres`` are durable: OK, or the status of a failure."""
        self.submit_behind(wheres, done, Barrier)

    def submit_behind(self, wheres: Sequence[int], done: Done, item: Callable[[Done], Item]) -> None:
        """Queue an ``item`` in every directory that holds an unsynced frame of ``wheres``. ``done``: OK if all these items end
        OK, or if no frame is unsynced; READ_ONLY if a frame lies where the boot could not write.

        A directory may refuse a frame for want of room before this loop hears of it, and an item queued behind the seal of the
        log still ends OK. So the answer is READ_ONLY if the directory's refusals changed during the wait."""
        unsynced = [self._holdings.logs[log_of(where)] for where in wheres if not self._holdings.is_synced(where)]
        if any(stored in directory.unsettled for directory, stored in unsynced):
            done(Status.READ_ONLY)
            return
        waiting = dict.fromkeys(directory for directory, _ in unsynced)
        if not waiting:
            done(Status.OK)
            return
        all_of = AllOf(len(waiting), done)
        for directory in waiting:
            directory.commit.submit(item(partial(_told_of, directory, directory.refusals, all_of)))


def _told_of(directory: LogDirectory, refusals: int, done: Done, status: int) -> None:
    refused = status == Status.OK and directory.refusals != refusals
    done(Status.READ_ONLY if refused else status)
