"""Adds: admitted or refused, placed in a log, queued for its disk; and what waits for adds to be durable.

Law: an add is answered OK once its batch, or the copy that was there before, is durable; or, of a VD ledger and of a bookie
without a journal, once the operating system has it (``protocol.bookie_ledger.acked_after_sync`` decides). An add is in the index
from the moment it is admitted, so a fence that follows it sees it, and a read never denies it. A batch is taken whole or refused
whole. The copy of an entry that came first is kept, and another one has to be equal to it.

Source: docs/decisions/one-log.md; BookKeeper's ``Bookie.addEntry``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookspark.bookie.commit.commit_items import Barrier, EntryWrite, Item, Passing, RelaxedWrite, SyncWritten
from bookspark.bookie.commit.completions import AllOf, Done, ignore
from bookspark.bookie.disk.index import Row, location, log_of
from bookspark.bookie.holdings.commit_results import CommitResults
from bookspark.bookie.holdings.disks import Disks
from bookspark.bookie.holdings.holdings import Holdings
from bookspark.bookie.holdings.reads import Piece, Stop
from bookspark.bookie.ledgers.control_requests import ControlRequests
from bookspark.bookie.ledgers.long_polls import ConfirmedWatches
from bookspark.bookie.ledgers.statuses import status_of
from bookspark.bookie.ledgers.unsure_adds import MetadataWord, UnsureAdds, WaitingAdd
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision, acked_after_sync, same_content
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import Flag, Header, Status

_RECOVERY, _VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
_DURABILITY = _RECOVERY | _VOLATILE


class Adds:
    """Owned by the loop. Each call returns at once; its ``done`` is called on the loop, at once or later."""

    def __init__(
        self,
        holdings: Holdings,
        requests: ControlRequests,
        disks: Disks,
        watches: ConfirmedWatches,
        results: CommitResults,
        word: MetadataWord,
        *,
        journal_write_data: bool,
    ) -> None:
        self._holdings = holdings
        self._ledgers = holdings.ledgers
        self._index = holdings.index
        self._requests = requests
        self._disks = disks
        self._volatile = holdings.volatile
        self._watches = watches
        self._results = results
        self.unsure = UnsureAdds(word, self._add_again)
        self._acked_after_sync = [
            acked_after_sync(
                recovery=bool(flags & _RECOVERY),
                volatile=bool(flags & _VOLATILE),
                journal_write_data=journal_write_data,
            )
            for flags in range(256)
        ]
        """By the flags of an add."""

    def add(self, header: Header, batch: EntryBatch, done: Done) -> None:
        """Add the entries of a batch frame that passed its checks (``EntryBatch.checked``), all or none.

        ``done``: OK, FENCED, UNAUTHORIZED, CONFLICT (an entry is there with other content), READ_ONLY (no directory is left)
        or IO_ERROR (nothing is known).
        """
        ledger_id, first, last = header.ledger_id, header.first_entry_id, header.last_entry_id
        ledger = self._ledgers.get(ledger_id)
        holdings = self._holdings
        if ledger is None:
            ledger = holdings.control.known(ledger_id)
        flags = header.flags
        decision = ledger.admit_add(header.master_key, bool(flags & _RECOVERY))
        if type(decision.response) is not Positive:
            if decision.ask_metadata:
                self.unsure.wait(ledger_id, WaitingAdd(header, batch, done))
                return
            done(status_of(decision.response))
            return
        rows = self._index.get(ledger_id)
        kept: Sequence[Row] = ()
        if rows is not None and first <= rows.last_entry_id:
            kept = list(rows.covering(first, last))
            if kept:
                refusal = self._compare(ledger_id, kept, batch)
                if refusal is not None:
                    done(refusal)
                    return
                if flags & _DURABILITY == _VOLATILE:
                    self._volatile.added_again(ledger_id, header.assignment(), kept)
                if sum(min(last, row.last) - max(first, row.first) + 1 for row in kept) == last - first + 1:
                    self._note_added(ledger, decision, header)
                    self._when_kept([row.where for row in kept], done, self._acked_after_sync[flags])
                    return
        live = self._disks.for_recovery if flags & _RECOVERY else self._disks.writable
        if not live or not self._requests.is_open:
            done(Status.READ_ONLY)
            return
        directory = live[ledger_id % len(live)]
        self._note_added(ledger, decision, header)
        frame = batch.frame
        size = len(frame)
        entry_log, position = directory.place(size, holdings.next_log)
        if entry_log.number == holdings.next_log:
            holdings.logs[holdings.take_log_number()] = (directory, entry_log)
        where = location(entry_log.number, position)
        self._index.of(ledger_id).insert(first, last, where, size)
        holdings.recent[where] = frame
        self._results.bytes_in_flight += size
        if kept:
            both = AllOf(2, done)
            elsewhere = [row.where for row in kept if holdings.logs[log_of(row.where)][0] is not directory]
            self._when_kept(elsewhere, both, self._acked_after_sync[flags])
            done = both
        if self._acked_after_sync[flags]:
            directory.commit.submit(EntryWrite(entry_log, position, frame, done))
        else:
            volatile = flags & _DURABILITY == _VOLATILE
            if volatile:
                self._volatile.added(ledger_id, header.assignment(), first, last, where)
            directory.commit.submit(RelaxedWrite(entry_log, position, frame, done, not volatile))

    def sync(self, ledger_id: int, master_key: bytes, assignment: Assignment, done: Done) -> None:
        """Sync what was added to a VD ledger so far. ``done``: OK, and ``volatile`` tells LastAddSynced; FENCED, UNAUTHORIZED,
        LIMBO, or IO_ERROR if something of it is lost."""

        def synced(status: int) -> None:
            ledger = self._ledgers.get(ledger_id)
            response = decide().response
            if status == Status.OK and ledger is not None and ledger.damaged:
                status = Status.IO_ERROR
            done(status if type(response) is Positive else status_of(response))

        def decide() -> Decision:
            return self._holdings.control.known(ledger_id).admit_sync(master_key)

        if type(decide().response) is Positive:
            self._submit_behind(self._volatile.asked(ledger_id, assignment), synced, SyncWritten)
        else:
            synced(Status.OK)

    def held(self, ledger_id: int, done: Callable[[list[tuple[int, int]] | None], None]) -> None:
        """Tell the ranges of ids that are held of a ledger, once they are durable; None if they can't be."""
        rows = self._index.get(ledger_id)
        ranges: list[tuple[int, int]] = []
        wheres: list[int] = []
        for row in rows.covering(0, rows.last_entry_id) if rows is not None else ():
            wheres.append(row.where)
            if ranges and row.first == ranges[-1][1] + 1:
                ranges[-1] = (ranges[-1][0], row.last)
            else:
                ranges.append((row.first, row.last))
        self._when_kept(wheres, lambda status: done(ranges if status == Status.OK else None), synced=True)

    def _add_again(self, ledger_id: int, adds: Sequence[WaitingAdd]) -> None:
        """The metadata said that there was no fence to lose."""
        self._holdings.control.of(ledger_id).fence_is_sure()
        for add in adds:
            self.add(*add)

    def _note_added(self, ledger: BookieLedger, decision: Decision, header: Header) -> None:
        if decision.records:
            self._ledgers[ledger.ledger_id] = ledger
            # Not waited for: each directory writes it before the batch, so where the batch is, the record is.
            self._requests.write(decision.records, ignore)
        if ledger.added(decision, header.last_add_confirmed, header.last_add_fully_replicated):
            self._watches.reached(ledger.ledger_id, ledger.last_add_confirmed)

    def _compare(self, ledger_id: int, kept: Sequence[Row], batch: EntryBatch) -> Status | None:
        """Are all entries of ``batch`` that are held already held with the same content? None if so."""
        added = {entry_id: (length, payload) for entry_id, length, payload in batch.contents()}
        pieces = [Piece(ledger_id, *row, self._holdings.recent.get(row.where)) for row in kept]
        while pieces:
            fetched = self._holdings.files.fetch(pieces, cached_only=False)
            if fetched is None or fetched.stop not in (None, Stop.LIMIT):
                return Status.IO_ERROR
            for piece, frame in zip(pieces, fetched.frames, strict=False):
                for entry_id, length, payload in EntryBatch(frame).contents():
                    if not piece.first <= entry_id <= piece.last or entry_id not in added:
                        continue
                    if not same_content((length, payload), added[entry_id]):
                        return Status.CONFLICT
            pieces = pieces[len(fetched.frames) :]
        return None

    def _when_kept(self, wheres: Sequence[int], done: Done, synced: bool) -> None:
        """Call ``done`` once the frames at ``wheres`` are durable, or else (not ``synced``) written."""
        self._submit_behind(wheres, done, Barrier if synced else Passing)

    def _submit_behind(self, wheres: Sequence[int], done: Done, item: Callable[[Done], Item]) -> None:
        """Queue an ``item`` in every directory in which one of the frames at ``wheres`` is not durable yet."""
        waiting = dict.fromkeys(
            self._holdings.logs[log_of(where)][0] for where in wheres if not self._holdings.is_synced(where)
        )
        if not waiting:
            done(Status.OK)
            return
        all_of = AllOf(len(waiting), done)
        for directory in waiting:
            directory.commit.submit(item(all_of))
