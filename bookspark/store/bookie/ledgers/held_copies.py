"""The copies of entries that a bookie holds: are they the same as what comes, which ones are there, and when are they durable?

Law: the copy of an entry that came first is kept as long as it can be read, and another one has to be equal to it
(``same_content``). A copy that turns out unreadable is lost, so what comes takes its place. A wait for durable
copies ends after everything that was queued before in the directories that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from bookspark.protocol.bookie.bookie_ledger import same_content
from bookspark.store.bookie.commit.commit_items import Barrier, Item, Passing
from bookspark.store.bookie.commit.commit_thread import Post
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
    """What was compared, the rows ``held``, and why the add is refused: CONFLICT, IO_ERROR if it can't be read now. None:
    the entries are the same, as far as they can be read. ``unreadable``: copies that can't be read any more, and why."""

    held: Sequence[Row]
    refusal: Status | None
    unreadable: Sequence[tuple[Piece, Stop]] = ()


class HeldCopies:
    """The copies that one bookie holds. Owned by the loop."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._post: Post | None = None

    def start(self, post: Post) -> None:
        """Look through long ledgers in several turns of the loop from now on."""
        self._post = post

    def compare(self, held: Sequence[Row], pieces: Sequence[Piece], batch: EntryBatch) -> Compared:
        """Compare the entries of ``batch`` that lie in ``pieces``, which are the rows ``held``, with what is held there. In any
        thread: it may wait for the disk."""
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
        """Tell the ranges of entry ids (first, last) that are held of a ledger, once they are durable; None if they can't be."""
        self._look(ledger_id, 0, [], [], done)

    def _look(self, ledger_id: int, start: int, ranges: list[tuple[int, int]], unsynced: list[int], done: Told) -> None:
        """Add the ranges from entry id ``start`` on: a thousand rows in this turn of the loop, the rest in later ones."""
        if self._holdings.gone:
            self._holdings.leave_gone(ledger_id, start)
        rows = self._holdings.index.get(ledger_id)
        last = -1 if rows is None else rows.last_entry_id
        looked_at = islice(rows.covering(start, last), _ROWS_A_TURN) if rows is not None else ()
        count = 0
        for row in looked_at:
            count += 1
            start = row.last + 1
            if self._holdings.is_gone(row.where):
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
        """Call ``done`` once the frames at ``wheres`` are durable."""
        self.submit_behind(wheres, done, Barrier)

    def when_written(self, wheres: Sequence[int], done: Done) -> None:
        """Call ``done`` once the operating system has the frames at ``wheres``."""
        self.submit_behind(wheres, done, Passing)

    def submit_behind(self, wheres: Sequence[int], done: Done, item: Callable[[Done], Item]) -> None:
        """Queue an ``item`` in every directory in which one of the frames at ``wheres`` is not durable yet. ``done``: OK if all
        these items end OK, or if there is none.

        A frame may be refused for want of room, and this loop not have heard of it: an item that is queued later than the seal
        of the log ends OK all the same. So nothing counts that was waited for while writes left the index (READ_ONLY)."""
        waiting = dict.fromkeys(
            self._holdings.logs[log_of(where)][0] for where in wheres if not self._holdings.is_synced(where)
        )
        if not waiting:
            done(Status.OK)
            return
        all_of = AllOf(len(waiting), done)
        for directory in waiting:
            directory.commit.submit(item(partial(_told_of, directory, directory.refusals, all_of)))


def _told_of(directory: LogDirectory, refusals: int, done: Done, status: int) -> None:
    refused = status == Status.OK and directory.refusals != refusals
    done(Status.READ_ONLY if refused else status)
