"""The copies of entries that a bookie holds: are they the same as what comes, which ones are there, and when are they durable?

Law: the copy of an entry that came first is kept as long as it can be read, and another one has to be equal to it
(``same_content``). A copy that turns out unreadable is lost, so what comes takes its place. A wait for durable
copies ends after everything that was queued before in the directories that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookspark.bookie.commit.commit_items import Barrier, Item, Passing
from bookspark.bookie.commit.completions import AllOf, Done
from bookspark.bookie.disk.index import Row, log_of
from bookspark.bookie.holdings.holdings import Holdings
from bookspark.bookie.holdings.reads import Piece, Stop
from bookspark.protocol.bookie.bookie_ledger import same_content
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import Status


class HeldCopies:
    """The copies that one bookie holds. Owned by the loop."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def compare(self, ledger_id: int, held: Sequence[Row], batch: EntryBatch) -> Status | None:
        """Compare the entries of ``batch`` that lie in the rows ``held`` with what is held. Returns None if they are the same,
        CONFLICT, or IO_ERROR if what is held can't be read now. What can't be read any more leaves the index."""
        added = {entry_id: (length, payload) for entry_id, length, payload in batch.contents()}
        pieces = [Piece(ledger_id, *row, self._holdings.recent.get(row.where)) for row in held]
        while pieces:
            fetched = self._holdings.files.fetch(pieces, cached_only=False)
            if fetched is None or fetched.stop is Stop.FAILED:
                return Status.IO_ERROR
            for piece, frame in zip(pieces, fetched.frames, strict=False):
                for entry_id, length, payload in EntryBatch(frame).contents():
                    if not piece.first <= entry_id <= piece.last or entry_id not in added:
                        continue
                    if not same_content((length, payload), added[entry_id]):
                        return Status.CONFLICT
            pieces = pieces[len(fetched.frames) :]
            if self._holdings.lose_unreadable(pieces, fetched.stop):
                pieces = pieces[1:]
        return None

    def ranges(self, ledger_id: int, done: Callable[[list[tuple[int, int]] | None], None]) -> None:
        """Tell the ranges of entry ids (first, last) that are held of a ledger, once they are durable; None if they can't be."""
        rows = self._holdings.index.get(ledger_id)
        ranges: list[tuple[int, int]] = []
        wheres: list[int] = []
        for row in rows.covering(0, rows.last_entry_id) if rows is not None else ():
            wheres.append(row.where)
            if ranges and row.first == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], row.last)
            else:
                ranges.append((row.first, row.last))
        self.when_durable(wheres, lambda status: done(ranges if status == Status.OK else None))

    def when_durable(self, wheres: Sequence[int], done: Done) -> None:
        """Call ``done`` once the frames at ``wheres`` are durable."""
        self.submit_behind(wheres, done, Barrier)

    def when_written(self, wheres: Sequence[int], done: Done) -> None:
        """Call ``done`` once the operating system has the frames at ``wheres``."""
        self.submit_behind(wheres, done, Passing)

    def submit_behind(self, wheres: Sequence[int], done: Done, item: Callable[[Done], Item]) -> None:
        """Queue an ``item`` in every directory in which one of the frames at ``wheres`` is not durable yet. ``done``: OK if all
        these items end OK, or if there is none."""
        waiting = dict.fromkeys(
            self._holdings.logs[log_of(where)][0] for where in wheres if not self._holdings.is_synced(where)
        )
        if not waiting:
            done(Status.OK)
            return
        all_of = AllOf(len(waiting), done)
        for directory in waiting:
            directory.commit.submit(item(all_of))
