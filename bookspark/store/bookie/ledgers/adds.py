"""Adds: admitted or refused, placed in a log, and queued for its disk.

Law: an add is answered OK once its batch, or the copy that was there before, is durable. On a ledger of volatile durability (VD),
and on a bookie without a journal, it is answered OK once the operating system has it; ``bookie_ledger.acked_after_sync`` decides.
An add is in the index from the moment it is admitted, so a fence that follows it sees it, and a read never denies it. A batch is
taken whole or refused whole. The copy of an entry that came first is kept, and another one has to be equal to it; but where the
first one can't be read any more, the other one takes its place.

Source: docs/decisions/one-log.md; BookKeeper's ``Bookie.addEntry``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision, acked_after_sync
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.bookie.commit.commit_items import EntryWrite, RelaxedWrite
from bookspark.store.bookie.commit.completions import AllOf, Done, ignore
from bookspark.store.bookie.disk.index import Row
from bookspark.store.bookie.holdings.commit_results import CommitResults
from bookspark.store.bookie.holdings.disk_threads import DiskThreads
from bookspark.store.bookie.holdings.disks import Disks
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.reads import Piece
from bookspark.store.bookie.ledgers.comparisons import Comparisons
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.bookie.ledgers.held_copies import Compared, HeldCopies
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.bookie.ledgers.unsure_adds import FenceCheck, UnsureAdds, WaitingAdd
from bookspark.store.bookie.traffic import Traffic
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Flag, Header, Status

_RECOVERY, _VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
_DURABILITY = _RECOVERY | _VOLATILE


class Adds:
    """The adds of one bookie. Owned by the loop. Each call returns at once; its ``done`` is called on the loop, at once or
    later."""

    def __init__(
        self,
        holdings: Holdings,
        records: ControlRecords,
        disks: Disks,
        results: CommitResults,
        check_fence: FenceCheck,
        threads: DiskThreads,
        traffic: Traffic,
        *,
        journal_write_data: bool,
    ) -> None:
        self._holdings = holdings
        self._ledgers = holdings.ledgers
        self._suspects = holdings.control.suspects
        self._index = holdings.index
        self._records = records
        self._disks = disks
        self._volatile = holdings.volatile
        self._results = results
        self._traffic = traffic
        self._held = HeldCopies(holdings)
        self.unsure = UnsureAdds(check_fence, self._add_again)
        self.comparisons = Comparisons(holdings, self._held, results, threads, self._decide_compared)
        self._waiting = self.comparisons.waiting
        self._acked_after_sync = _acked_after_sync(journal_write_data)

    def add(self, header: Header, batch: EntryBatch, done: Done) -> None:
        """Add the entries of a batch frame that passed its checks (``EntryBatch.checked``), all or none.

        ``done``: OK, FENCED, UNAUTHORIZED, CONFLICT (an entry is there with other content), READ_ONLY (no directory is left)
        or IO_ERROR (nothing is known).
        """
        if self._waiting and header.ledger_id in self._waiting:
            self.comparisons.behind(header.ledger_id, WaitingAdd(header, batch, done))
        elif held := self._decide(header, batch, done):
            self.comparisons.begin(WaitingAdd(header, batch, done), held)

    def _decide(self, header: Header, batch: EntryBatch, done: Done, compared: Compared | None = None) -> Sequence[Row]:
        """Decide an add, and call its ``done`` at once or later. Or return the rows that it has to be compared with first."""
        ledger_id, first, last = header.ledger_id, header.first_entry_id, header.last_entry_id
        holdings = self._holdings
        ledger = self._ledgers.used.get(ledger_id)
        if ledger is None:
            ledger = holdings.control.known(ledger_id)
        flags = header.flags
        decision = ledger.admit_add(header.master_key, bool(flags & _RECOVERY))
        if type(decision.response) is not Positive:
            if decision.ask_metadata:
                self.unsure.wait(ledger_id, WaitingAdd(header, batch, done))
            else:
                done(status_of(decision.response))
            return ()
        if holdings.gone:
            holdings.leave_gone(ledger_id, first)
        rows = self._index.changing(ledger_id)
        kept: Sequence[Row] = ()
        behind_all = rows is not None and first > rows.last_entry_id
        if rows is not None and not behind_all:
            kept = list(rows.covering(first, last))
            if kept:
                if compared is None or compared.held != kept:
                    if not self.comparisons.here(kept):
                        return kept
                    pieces = [Piece(ledger_id, *row, holdings.recent.get(row.where)) for row in kept]
                    compared = self._held.compare(kept, pieces, batch)
                for piece, stop in compared.unreadable:
                    holdings.lose_unreadable([piece], stop)
                if compared.refusal is not None:
                    done(compared.refusal)
                    return ()
                # Of what was held something may have turned out lost.
                rows = self._index.changing(ledger_id)
                kept = list(rows.covering(first, last)) if rows is not None else ()
                if kept and flags & _DURABILITY == _VOLATILE:
                    self._volatile.added_again(ledger_id, header.assignment(), kept)
                if sum(min(last, row.last) - max(first, row.first) + 1 for row in kept) == last - first + 1:
                    self._note_added(ledger, decision, header)
                    self._when_kept([row.where for row in kept], done, self._acked_after_sync[flags])
                    return ()
        live = self._disks.for_recovery if flags & _RECOVERY else self._disks.writable
        if not live or not self._records.is_open:
            done(Status.READ_ONLY)
            return ()
        directory = live[ledger_id % len(live)]
        self._note_added(ledger, decision, header)
        frame = batch.frame
        size = len(frame)
        entry_log, position = directory.place(size, holdings.begin_log)
        # ``location``, without a call for each add.
        where = entry_log.number << 32 | position
        if rows is not None and behind_all:
            rows.append(first, last, where, size)
        else:
            self._index.of(ledger_id).insert(first, last, where, size)
        holdings.recent[where] = frame
        self._results.bytes_in_flight += size
        traffic = self._traffic
        traffic.entries_in += last - first + 1
        traffic.bytes_in += size
        if kept:
            both = AllOf(2, done)
            self._when_kept([row.where for row in kept], both, self._acked_after_sync[flags])
            done = both
        if self._acked_after_sync[flags]:
            directory.commit.submit(EntryWrite(entry_log, position, frame, done))
        else:
            volatile = flags & _DURABILITY == _VOLATILE
            if volatile:
                self._volatile.added(ledger_id, header.assignment(), first, last, where)
            directory.commit.submit(RelaxedWrite(entry_log, position, frame, done, not volatile))
        return ()

    def _decide_compared(self, add: WaitingAdd, compared: Compared | None) -> Sequence[Row]:
        return self._decide(*add, compared)

    def _add_again(self, ledger_id: int, adds: Sequence[WaitingAdd]) -> None:
        """The metadata shows that there was no fence to lose."""
        self._holdings.control.of(ledger_id).fence_is_sure()
        for add in adds:
            self.add(*add)

    def _note_added(self, ledger: BookieLedger, decision: Decision, header: Header) -> None:
        if self._suspects:
            self._suspects.discard(ledger.ledger_id)
        if decision.records:
            self._ledgers[ledger.ledger_id] = ledger
            # Nobody waits for it: each directory writes the record before the batch, so where the batch is, the record is.
            self._records.write(decision.records, ignore)
        if ledger.added(decision, header.last_add_confirmed, header.last_add_fully_replicated):
            self._holdings.long_polls.reached(ledger.ledger_id, ledger.last_add_confirmed)

    def _when_kept(self, wheres: Sequence[int], done: Done, synced: bool) -> None:
        """Call ``done`` once the frames at ``wheres`` are durable, or else (not ``synced``) written."""
        if synced:
            self._held.when_durable(wheres, done)
        else:
            self._held.when_written(wheres, done)


@cache
def _acked_after_sync(journal_write_data: bool) -> list[bool]:
    """For each number of flags: is an add with them acknowledged after its sync?"""
    return [
        acked_after_sync(
            recovery=bool(flags & _RECOVERY),
            volatile=bool(flags & _VOLATILE),
            journal_write_data=journal_write_data,
        )
        for flags in range(256)
    ]
