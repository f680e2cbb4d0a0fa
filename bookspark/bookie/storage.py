"""A bookie's storage: ledgers, index and directories put together behind one set of calls.

Law: an add is answered OK once its batch, or the copy that was there before, is durable; or, of a VD ledger and of a bookie
without a journal, once the operating system has it (``protocol.bookie_ledger.acked_after_sync`` decides). A fence is answered
once its record is durable in every directory. An add is in the index from the moment it is admitted, so a fence that follows
it sees it, and a read never denies it. A batch is taken whole or refused whole. Entries of a directory that failed are unknown,
never absent.

One loop owns all state; ``add``, ``fence`` and ``write_last_add_confirmed`` return at once and call ``done(status)`` on that
loop, at once or later. Files are written by one commit thread per directory.

Source: design.md section 1; BookKeeper's ``Bookie`` and ``DbLedgerStorage``, with the journal and the entry log in one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Sequence
from typing import NamedTuple

from bookspark.bookie.boot import collector_paused, in_each, replay_control_logs, replay_logs
from bookspark.bookie.checkpointing import Checkpoints, Prepared
from bookspark.bookie.commit import CommitThread, Post
from bookspark.bookie.commit_items import (
    Barrier,
    ControlWrite,
    EntryWrite,
    Item,
    NoteSync,
    Passing,
    RelaxedWrite,
    SealLog,
    Stop,
    SyncWritten,
)
from bookspark.bookie.completions import AllOf, Done, ignore
from bookspark.bookie.config import BookieConfig
from bookspark.bookie.confirmed_watches import ConfirmedWatches
from bookspark.bookie.control_requests import ControlRequests
from bookspark.bookie.control_state import ControlState
from bookspark.bookie.disk_marks import Takes
from bookspark.bookie.disks import Disks
from bookspark.bookie.entry_log import EntryLog
from bookspark.bookie.file_system import File, FileSystem, NoSpaceError, RealFileSystem
from bookspark.bookie.index import Index, Row, location, log_of, position_of
from bookspark.bookie.log_directory import LogDirectory
from bookspark.bookie.losses import Losses
from bookspark.bookie.reads import LogFiles, Piece, ReadPlan, plan_read
from bookspark.bookie.reclaiming import Reclaiming
from bookspark.bookie.rewritten_log import RewrittenLog
from bookspark.bookie.statuses import status_of
from bookspark.bookie.steps import Steps
from bookspark.bookie.unsure_adds import MetadataWord, UnsureAdds, WaitingAdd, nobody_knows
from bookspark.bookie.volatile_ledgers import VolatileLedgers
from bookspark.protocol.bookie_ledger import (
    BookieLedger,
    Decision,
    acked_after_sync,
    may_read,
    same_content,
)
from bookspark.protocol.errors import StorageError
from bookspark.protocol.garbage_collection import note_collection
from bookspark.protocol.ledger_metadata import NO_ENTRY
from bookspark.protocol.responses import Positive
from bookspark.protocol.sync_cursor import Assignment
from bookspark.wire.entry_batch import HEADER_OFFSET, Buffer, EntryBatch
from bookspark.wire.header import NO_KEY, Flag, Header, Status, decode
from bookspark.wire.messages import Ranges

_RECOVERY, _VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
_DURABILITY = _RECOVERY | _VOLATILE
_STOP_SECONDS_MAX = 60.0
_POSITION_MAX = (1 << 32) - 1
_LOST_LOGS_MAX = 1 << 16
"""A directory that can't be read may have logs of higher numbers than the others, by fewer than this; no number is used twice."""
RANGES_ROWS_MAX = 1 << 16

_FORGOTTEN_PART = 0.1
"""When so many ledgers more than are left were forgotten at once, the control log is written anew without them."""

log = logging.getLogger(__name__)


class StorageStatus(NamedTuple):
    """Sizes in bytes."""

    ledgers: int
    log_bytes: int
    free_bytes: int
    read_only: bool


class Storage:
    """``Storage(config).open()``, then ``start(post)``, then the requests, then ``close()``."""

    def __init__(
        self,
        config: BookieConfig,
        file_system: FileSystem | None = None,
        *,
        boot_id: str = "",
        word: MetadataWord = nobody_knows,
        without: Collection[str] = (),
    ) -> None:
        """``boot_id``: the kernel's, if it is to be trusted (``unclean_marker``). ``word``: of the metadata, for ledgers whose
        fence a lossy boot may have lost (``unsure_adds``). ``without``: directories that can't be used."""
        self._file_system: FileSystem = file_system or RealFileSystem()
        self._directories = [LogDirectory(self._file_system, path, config, boot_id) for path in config.directories]
        self._by_thread = {directory.commit: directory for directory in self._directories}
        self._live = [directory for directory in self._directories if directory.path not in without]
        self._control = ControlState()
        self._ledgers = self._control.ledgers
        self._index = Index()
        self._recent: dict[int, Buffer] = {}
        """Frames that are not written yet, by location."""
        self._logs: dict[int, tuple[LogDirectory, EntryLog | RewrittenLog]] = {}
        self._next_log = 1
        self._relief: tuple[int, Callable[[], None]] | None = None
        self._open = False
        self._acked_after_sync = [
            acked_after_sync(
                recovery=bool(flags & _RECOVERY),
                volatile=bool(flags & _VOLATILE),
                journal_write_data=config.journal_write_data,
            )
            for flags in range(256)
        ]
        """By the flags of an add."""
        self.unsure = UnsureAdds(word, self._add_again)
        self.volatile = VolatileLedgers(self._index, self._is_synced)
        self.watches = ConfirmedWatches()
        self._requests = ControlRequests(self._control, self._live, self.volatile, self.watches)
        self.disks = Disks(config, self._file_system, self._live, self._requests.rewrite_in)
        self.fence = self._requests.fence
        self.write_last_add_confirmed = self._requests.write_last_add_confirmed
        self.settle = self._requests.settle
        self.losses = Losses(self._control, self._live, self._requests)
        self.checkpoints = Checkpoints(self._file_system, self._live, self._ledgers, self._index)
        self.files = LogFiles(self._open_log)
        """For reading what ``plan_read`` found, from any thread."""
        self.reclaiming = Reclaiming(
            self._file_system,
            self._live,
            self._ledgers,
            self._index,
            self._logs,
            self.files,
            self.checkpoints,
            self._take_log_number,
        )
        self.bytes_in_flight = 0
        """Batches that are admitted and not yet durable."""

    # -- life

    def open(self) -> Storage:
        """Read everything; nothing is served before this returns. Raises StorageError."""
        live = self._live
        in_each(live, LogDirectory.prepare)
        with collector_paused():
            scans = in_each(live, lambda directory: directory.control.scan())
            content = replay_control_logs(scans, self._control)
            ends = {directory: scan.end for directory, scan in scans}
            in_each(live, lambda directory: directory.control.begin(content, ends[directory]))
            recovered = in_each(live, LogDirectory.recover)
            self._next_log = 1 + replay_logs(recovered, self._control, self._index)
        self.losses.unreadable = [directory.path for directory in self._directories if directory not in live]
        if self.losses.unreadable:
            self._directories[:] = live
            self._next_log += _LOST_LOGS_MAX
        for directory in live:
            for stored in directory.stored:
                self._logs[stored.number] = (directory, stored)
            if directory.damaged:
                log.error(
                    "%s is damaged: what can't be found is answered I/O error until it is repaired", directory.path
                )
        for directory, used in self.disks.measure():
            self.disks.look(directory, used)
        self.disks.sort()
        self._open = self._requests.is_open = True
        return self

    def start(self, post: Post) -> None:
        """Start writing. ``post(function, *arguments)`` has a function called on the loop, from any thread."""
        self.unsure.start(post)
        for directory in self._directories:
            directory.commit.start(post, self._completed)

    def close(self) -> None:
        """Finish what is queued, seal the logs, write the checkpoints. Whoever waits is called on the loop, as ever."""
        if not self._open:
            return
        self._open = self._requests.is_open = False
        self.unsure.close()
        for directory in self._directories:
            directory.commit.submit(Stop(ignore))
        late = [d.path for d in self._directories if not d.commit.join(_STOP_SECONDS_MAX)]
        if late:
            raise StorageError(f"{', '.join(late)}: the disk does not answer; nothing more is written")
        taking = self.checkpoints.take()
        try:
            while True:
                next(taking)
        except StopIteration as taken:
            self.checkpoints.write(taken.value)
        for directory in self._directories:
            directory.control.close()
        self.files.clear()

    # -- requests

    def add(self, header: Header, batch: EntryBatch, done: Done) -> None:
        """Add the entries of a batch frame that passed its checks (``EntryBatch.checked``), all or none.

        ``done``: OK, FENCED, UNAUTHORIZED, CONFLICT (an entry is there with other content), READ_ONLY (no directory is left)
        or IO_ERROR (nothing is known).
        """
        ledger_id, first, last = header.ledger_id, header.first_entry_id, header.last_entry_id
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._control.known(ledger_id)
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
                    self.volatile.added_again(ledger_id, header.assignment(), kept)
                if sum(min(last, row.last) - max(first, row.first) + 1 for row in kept) == last - first + 1:
                    self._note_added(ledger, decision, header)
                    self._when_kept([row.where for row in kept], done, self._acked_after_sync[flags])
                    return
        live = self.disks.for_recovery if flags & _RECOVERY else self.disks.writable
        if not live or not self._open:
            done(Status.READ_ONLY)
            return
        directory = live[ledger_id % len(live)]
        self._note_added(ledger, decision, header)
        frame = batch.frame
        size = len(frame)
        entry_log, position = directory.place(size, self._next_log)
        if entry_log.number == self._next_log:
            self._logs[self._next_log] = (directory, entry_log)
            self._next_log += 1
        where = location(entry_log.number, position)
        self._index.of(ledger_id).insert(first, last, where, size)
        self._recent[where] = frame
        self.bytes_in_flight += size
        if kept:
            both = AllOf(2, done)
            elsewhere = [row.where for row in kept if self._logs[log_of(row.where)][0] is not directory]
            self._when_kept(elsewhere, both, self._acked_after_sync[flags])
            done = both
        if self._acked_after_sync[flags]:
            directory.commit.submit(EntryWrite(entry_log, position, frame, done))
        else:
            volatile = flags & _DURABILITY == _VOLATILE
            if volatile:
                self.volatile.added(ledger_id, header.assignment(), first, last, where)
            directory.commit.submit(RelaxedWrite(entry_log, position, frame, done, not volatile))

    def _add_again(self, ledger_id: int, adds: Sequence[WaitingAdd]) -> None:
        """The metadata said that there was no fence to lose."""
        self._control.of(ledger_id).fence_is_sure()
        for add in adds:
            self.add(*add)

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
            return self._control.known(ledger_id).admit_sync(master_key)

        if type(decide().response) is Positive:
            self._submit_behind(self.volatile.asked(ledger_id, assignment), synced, SyncWritten)
        else:
            synced(Status.OK)

    def when_below(self, bytes_in_flight: int, relieved: Callable[[], None]) -> None:
        """Call ``relieved`` once, when no more than so many bytes wait for their sync. One may wait at a time."""
        self._relief = (bytes_in_flight, relieved)

    def plan_read(self, ledger_id: int, first: int, last: int, limit: int, *, sparse: bool) -> ReadPlan:
        """Where entries ``first..last`` are, up to about ``limit`` bytes (0: as much as one answer takes)."""
        return plan_read(
            self._ledgers.get(ledger_id),
            self._index.get(ledger_id),
            self._recent,
            (first, last, limit),
            sparse=sparse,
            storage_damaged=self.damaged,
        )

    def has_moved(self, piece: Piece) -> bool:
        """Are the entries of what a read had planned held elsewhere by now, or no more?"""
        rows = self._index.get(piece.ledger_id)
        return rows is None or piece.where not in [row.where for row in rows.covering(piece.first, piece.last)]

    def ledger(self, ledger_id: int) -> BookieLedger | None:
        """What is known of a ledger (not to be changed), None if it was never heard of."""
        return self._ledgers.get(ledger_id)

    def may_read(self, ledger_id: int, master_key: bytes) -> bool:
        """Is this key, or the lack of one, good for reading the ledger?"""
        return may_read(self._ledgers.get(ledger_id), None if master_key == NO_KEY else master_key)

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id held, NO_ENTRY if none."""
        rows = self._index.get(ledger_id)
        return NO_ENTRY if rows is None else rows.last_entry_id

    def ranges(self, ledger_id: int, first_entry_id: int, limit: int, *, only: bool) -> tuple[Ranges, int, int]:
        """All rows from (``ledger_id``, ``first_entry_id``) on, of that ledger ``only`` or of all that follow, at most
        ``limit`` (0: 65,536); with the ledger id and the first entry id to go on with, −1 and −1 at the end."""
        limit = min(limit or RANGES_ROWS_MAX, RANGES_ROWS_MAX)
        ranges = Ranges.empty()
        ledger_ids = self._index.ledger_ids(ledger_id)
        for current in ledger_ids[:1] if only and ledger_ids[:1] == [ledger_id] else () if only else ledger_ids:
            rows = self._index.of(current)
            start = first_entry_id if current == ledger_id else 0
            for row in rows.covering(start, rows.last_entry_id):
                if len(ranges.ledger_ids) == limit:
                    return ranges, current, row.first
                values = (current, row.first, row.last, log_of(row.where), row.where & _POSITION_MAX, row.size)
                for column, value in zip(ranges, values, strict=True):
                    column.append(value)
        return ranges, -1, -1

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

    def status(self) -> StorageStatus:
        return StorageStatus(
            ledgers=len(self._ledgers),
            log_bytes=sum(directory.bytes for directory in self._directories),
            free_bytes=sum(self._file_system.free_bytes(directory.path) for directory in self._live),
            read_only=self.disks.read_only,
        )

    @property
    def damaged(self) -> bool:
        """Was something lost that had been synced? Then what is not found is unknown."""
        return bool(self.losses.unreadable) or any(directory.damaged for directory in self._directories)

    @property
    def live(self) -> list[LogDirectory]:
        """The directories that have not failed."""
        return list(self._live)

    @property
    def directories(self) -> list[str]:
        return [directory.path for directory in self._directories]

    @property
    def logs(self) -> dict[int, EntryLog | RewrittenLog]:
        """By number."""
        return {number: stored for number, (_, stored) in sorted(self._logs.items())}

    # -- collection

    def note_collection(self, ledger_ids: Collection[int], done: Done) -> None:
        """Before ``forget``. ``done``: OK once it is durable that there may have been fences of such ledgers."""
        before = self._control.collected
        note = note_collection(before, ledger_ids)
        if note == before:
            done(Status.OK)
            return
        self._control.collected = note

        def noted(status: int) -> None:
            if status != Status.OK and self._control.collected == note:
                self._control.collected = before
            done(status)

        self._requests.write([note], noted)

    def forget(self, ledger_ids: Collection[int]) -> Steps[None]:
        """Let go of deleted ledgers, with everything that is known of them."""
        self._requests.forget(ledger_ids)
        yield from self.reclaiming.forget(ledger_ids)
        if len(ledger_ids) >= _FORGOTTEN_PART * len(self._ledgers):
            self._requests.rewrite()

    # -- checkpoints

    def checkpoint(self) -> Generator[None, None, Prepared]:
        """Prepare checkpoints, in steps of some milliseconds, on the loop. The result goes to ``write_checkpoints``."""
        if any(directory.control.worth_rewriting for directory in self._live):
            self._requests.rewrite()
        if not self.checkpoints.due:
            return []
        for directory in self._live:
            directory.commit.submit(NoteSync(ignore))
        return (yield from self.checkpoints.take())

    def write_checkpoints(self, checkpoint: Prepared) -> None:
        """Write prepared checkpoints, in any thread. One that can't be written costs a longer boot and nothing else."""
        self.checkpoints.write(checkpoint)

    # -- inside

    def _note_added(self, ledger: BookieLedger, decision: Decision, header: Header) -> None:
        if decision.records:
            self._ledgers[ledger.ledger_id] = ledger
            # Not waited for: each directory writes it before the batch, so where the batch is, the record is.
            self._requests.write(decision.records, ignore)
        if ledger.added(decision, header.last_add_confirmed, header.last_add_fully_replicated):
            self.watches.reached(ledger.ledger_id, ledger.last_add_confirmed)

    def _compare(self, ledger_id: int, kept: Sequence[Row], batch: EntryBatch) -> Status | None:
        """Are all entries of ``batch`` that are held already held with the same content? None if so."""
        added = {entry_id: (length, payload) for entry_id, length, payload in batch.contents()}
        pieces = [Piece(ledger_id, *row, self._recent.get(row.where)) for row in kept]
        fetched = self.files.fetch(pieces, cached_only=False)
        if fetched is None or fetched.stop is not None:
            return Status.IO_ERROR
        for piece, frame in zip(pieces, fetched.frames, strict=True):
            for entry_id, length, payload in EntryBatch(frame).contents():
                if not piece.first <= entry_id <= piece.last or entry_id not in added:
                    continue
                if not same_content((length, payload), added[entry_id]):
                    return Status.CONFLICT
        return None

    def _is_synced(self, where: int) -> bool:
        """Is the frame at ``where`` durable? In a log that is gone it was."""
        found = self._logs.get(log_of(where))
        return found is None or found[1].synced > position_of(where)

    def _when_kept(self, wheres: Sequence[int], done: Done, synced: bool) -> None:
        """Call ``done`` once the frames at ``wheres`` are durable, or else (not ``synced``) written."""
        self._submit_behind(wheres, done, Barrier if synced else Passing)

    def _submit_behind(self, wheres: Sequence[int], done: Done, item: Callable[[Done], Item]) -> None:
        """Queue an ``item`` in every directory in which one of the frames at ``wheres`` is not durable yet."""
        waiting = dict.fromkeys(self._logs[log_of(where)][0] for where in wheres if not self._is_synced(where))
        if not waiting:
            done(Status.OK)
            return
        all_of = AllOf(len(waiting), done)
        for directory in waiting:
            directory.commit.submit(item(all_of))

    def _completed(
        self, thread: CommitThread, items: Sequence[Item], failure: OSError | None, synced_bytes: int
    ) -> None:
        """A commit thread finished a group, or a sync in the background; ``synced_bytes`` that were acked before are synced."""
        status = Status.OK
        if isinstance(failure, NoSpaceError):
            status = Status.READ_ONLY
            self._ran_out(self._by_thread[thread], items)
        elif failure is not None:
            status = Status.IO_ERROR
            self._retire(self._by_thread[thread])
        recent = self._recent
        self.bytes_in_flight -= synced_bytes
        for item in items:
            if type(item) is EntryWrite:
                self.bytes_in_flight -= len(item.frame)
                del recent[location(item.log.number, item.position)]
            elif type(item) is RelaxedWrite:
                del recent[location(item.log.number, item.position)]
            item.done(status)
        if self._relief is not None and self.bytes_in_flight <= self._relief[0]:
            (_, relieved), self._relief = self._relief, None
            relieved()

    def _retire(self, directory: LogDirectory) -> None:
        """Use a directory no more. What it had not synced is taken out of the index, and its ledgers' absences prove nothing."""
        if directory.retired:
            return
        directory.retired = True
        self._live.remove(directory)
        self.disks.sort()
        for entry_log in directory.logs:
            if entry_log.synced < entry_log.end:
                first = location(entry_log.number, entry_log.synced)
                for ledger_id in self._index.remove(first, location(entry_log.number, _POSITION_MAX)):
                    self._ledgers[ledger_id].damaged = True

    def _ran_out(self, directory: LogDirectory, items: Sequence[Item]) -> None:
        """A write found no room. What it was to add was not, and nobody was told that it was: it is absent like any other."""
        for item in items:
            if isinstance(item, (EntryWrite, RelaxedWrite)):
                ledger_id = decode(item.frame, HEADER_OFFSET)[0].ledger_id
                where = location(item.log.number, item.position)
                if (rows := self._index.get(ledger_id)) is not None:
                    rows.remove(where, where)
                self.volatile.forget(ledger_id)
                item.log.end = min(item.log.end, item.position)
            elif isinstance(item, ControlWrite):
                directory.control_behind = True
        if not any(isinstance(item, SealLog) for item in items):
            self.disks.take_less(directory, Takes.NOTHING)

    def _take_log_number(self) -> int:
        number = self._next_log
        self._next_log += 1
        return number

    def _open_log(self, number: int) -> File:
        _, entry_log = self._logs[number]
        return self._file_system.open(entry_log.path)
