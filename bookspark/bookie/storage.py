"""A bookie's storage: ledgers, index and directories put together behind one set of calls.

Law: an add is answered OK once its batch, or the copy that was there before, is durable; a fence once its record is durable in
every directory. An add is in the index from the moment it is admitted, so a fence that follows it sees it, and a read never
denies it. A batch is taken whole or refused whole. Entries of a directory that failed are unknown, never absent.

One loop owns all state; ``add``, ``fence`` and ``write_last_add_confirmed`` return at once and call ``done(status)`` on that
loop, at once or later. Files are written by one commit thread per directory.

Source: design.md section 1; BookKeeper's ``Bookie`` and ``DbLedgerStorage``, with the journal and the entry log in one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from bookspark.bookie.boot import collector_paused, replay_control_logs, replay_logs
from bookspark.bookie.checkpoint import Snapshot, fill, write_checkpoint
from bookspark.bookie.commit import Barrier, CommitThread, ControlWrite, EntryWrite, Item, NoteSync, Post, Stop
from bookspark.bookie.completions import AllOf, AnyOf, Done, ignore
from bookspark.bookie.config import BookieConfig
from bookspark.bookie.confirmed_watches import ConfirmedWatches
from bookspark.bookie.control_log import encode_records
from bookspark.bookie.entry_log import EntryLog
from bookspark.bookie.file_system import File, FileSystem, RealFileSystem
from bookspark.bookie.index import Index, Row, location, log_of, position_of
from bookspark.bookie.log_directory import LogDirectory
from bookspark.bookie.reads import LogFiles, Piece, ReadPlan, plan_read
from bookspark.bookie.statuses import status_of
from bookspark.protocol.bookie_ledger import BookieLedger, ControlRecord, Decision, may_read, same_content
from bookspark.protocol.errors import StorageError
from bookspark.protocol.ledger_metadata import NO_ENTRY
from bookspark.protocol.responses import Positive
from bookspark.wire.entry_batch import Buffer, EntryBatch
from bookspark.wire.header import NO_KEY, Flag, Header, Status
from bookspark.wire.messages import Ranges

_RECOVERY = int(Flag.RECOVERY)
_STOP_SECONDS_MAX = 60.0
_POSITION_MAX = (1 << 32) - 1
RANGES_ROWS_MAX = 1 << 16

log = logging.getLogger(__name__)


Prepared = list[tuple[LogDirectory, Snapshot]]
"""Checkpoints that are ready to be written."""


class StorageStatus(NamedTuple):
    """Sizes in bytes."""

    ledgers: int
    log_bytes: int
    free_bytes: int
    read_only: bool


class Storage:
    """``Storage(config).open()``, then ``start(post)``, then the requests, then ``close()``."""

    def __init__(self, config: BookieConfig, file_system: FileSystem | None = None) -> None:
        self._file_system: FileSystem = file_system or RealFileSystem()
        self._directories = [
            LogDirectory(self._file_system, path, config.entry_log_bytes_max) for path in config.directories
        ]
        self._by_thread = {directory.commit: directory for directory in self._directories}
        self._live = list(self._directories)
        self._ledgers: dict[int, BookieLedger] = {}
        self._index = Index()
        self._recent: dict[int, Buffer] = {}
        """Frames that are not written yet, by location."""
        self._logs: dict[int, tuple[LogDirectory, EntryLog]] = {}
        self._next_log = 1
        self._fencing: dict[int, list[Done]] = {}
        """Who waits for a fence that is being synced."""
        self._not_durable: set[int] = set()
        """Ledgers that are fenced in memory only, because no directory took the record."""
        self._relief: tuple[int, Callable[[], None]] | None = None
        self._checkpointed: list[int] = []
        self._writing_checkpoints = threading.Lock()
        self._open = False
        self.watches = ConfirmedWatches()
        self.files = LogFiles(self._open_log)
        """For reading what ``plan_read`` found, from any thread."""
        self.bytes_in_flight = 0
        """Batches that are admitted and not yet durable."""

    # -- life

    def open(self) -> Storage:
        """Read everything; nothing is served before this returns. Raises StorageError."""
        try:
            for directory in self._directories:
                directory.prepare()
            with collector_paused():
                replay_control_logs(self._file_system, self._directories, self._ledgers)
                self._next_log = 1 + replay_logs(self._directories, self._ledgers, self._index)
        except OSError as error:
            raise StorageError(
                f"the bookie's directories can't be read: {error}; check the disk and its rights"
            ) from error
        for directory in self._directories:
            for entry_log in directory.logs:
                self._logs[entry_log.number] = (directory, entry_log)
            if directory.damaged:
                log.error(
                    "%s is damaged: what can't be found is answered I/O error until it is repaired", directory.path
                )
        self._open = True
        return self

    def start(self, post: Post) -> None:
        """Start writing. ``post(function, *arguments)`` has a function called on the loop, from any thread."""
        for directory in self._directories:
            directory.commit.start(post, self._completed)

    def close(self) -> None:
        """Finish what is queued, seal the logs, write the checkpoints. Whoever waits is called on the loop, as ever."""
        if not self._open:
            return
        self._open = False
        for directory in self._directories:
            directory.commit.submit(Stop(ignore))
        late = [d.path for d in self._directories if not d.commit.join(_STOP_SECONDS_MAX)]
        if late:
            raise StorageError(f"{', '.join(late)}: the disk does not answer; nothing more is written")
        checkpoint = self._snapshots()
        for _ in fill([snapshot for _, snapshot in checkpoint], self._ledgers, self._index):
            pass
        self.write_checkpoints(checkpoint)
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
            ledger = BookieLedger(ledger_id)
        decision = ledger.admit_add(header.master_key, bool(header.flags & _RECOVERY))
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
            return
        rows = self._index.get(ledger_id)
        if rows is not None and first <= rows.last_entry_id:
            kept = list(rows.covering(first, last))
            if kept:
                refusal = self._compare(ledger_id, kept, batch)
                if refusal is not None:
                    done(refusal)
                    return
                if sum(min(last, row.last) - max(first, row.first) + 1 for row in kept) == last - first + 1:
                    self._note_added(ledger, decision, header)
                    self._when_synced([row.where for row in kept], done)
                    return
        live = self._live
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
        directory.commit.submit(EntryWrite(entry_log, position, frame, done))

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Fence a ledger, known here or not. ``done``: OK once it is durable, UNAUTHORIZED, or IO_ERROR."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = BookieLedger(ledger_id)
        decision = ledger.fence(master_key)
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
        elif ledger_id in self._fencing:
            self._fencing[ledger_id].append(done)
        elif decision.records:
            self._fencing[ledger_id] = [done]
            self._write_control(decision.records, lambda status: self._fenced(ledger_id, status))
        else:
            done(Status.IO_ERROR if ledger_id in self._not_durable else Status.OK)

    def write_last_add_confirmed(self, ledger_id: int, master_key: bytes, last_add_confirmed: int, done: Done) -> None:
        """Explicit LAC. ``done``: OK once it is durable, FENCED, UNAUTHORIZED, or IO_ERROR."""
        ledger = self._ledgers.get(ledger_id) or BookieLedger(ledger_id)
        decision = ledger.write_last_add_confirmed(master_key, last_add_confirmed)
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
            return
        self._ledgers[ledger_id] = ledger
        self.watches.reached(ledger.ledger_id, ledger.last_add_confirmed)
        if decision.records:
            self._write_control(decision.records, done)
        else:
            self.settle(done)  # the same LAC may still be on its way to the disk

    def settle(self, done: Done) -> None:
        """Call ``done`` once all that was asked for before is through in every directory."""
        if not self._live or not self._open:
            done(Status.IO_ERROR)
            return
        any_of = AnyOf(len(self._live), done)
        for directory in self._live:
            directory.commit.submit(Barrier(any_of))

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

    def status(self) -> StorageStatus:
        return StorageStatus(
            ledgers=len(self._ledgers),
            log_bytes=sum(directory.bytes for directory in self._directories),
            free_bytes=sum(self._file_system.free_bytes(directory.path) for directory in self._live),
            read_only=not self._live,
        )

    @property
    def damaged(self) -> bool:
        """Was something lost that had been synced? Then what is not found is unknown."""
        return any(directory.damaged for directory in self._directories)

    @property
    def directories(self) -> list[str]:
        return [directory.path for directory in self._directories]

    # -- checkpoints

    def checkpoint(self) -> Generator[None, None, Prepared]:
        """Prepare checkpoints, in steps of some milliseconds, on the loop. The result goes to ``write_checkpoints``."""
        if any(directory.control.worth_rewriting for directory in self._live):
            content = encode_records(record for ledger in self._ledgers.values() for record in ledger.control_records())
            for directory in self._live:
                directory.commit.submit(ControlWrite(content, ignore, rewrite=True))
        covered = [directory.covered() for directory in self._live]
        if covered == self._checkpointed:
            return []
        checkpoint = self._snapshots()
        for directory in self._live:
            directory.commit.submit(NoteSync(ignore))
        yield from fill([snapshot for _, snapshot in checkpoint], self._ledgers, self._index)
        self._checkpointed = covered
        return checkpoint

    def write_checkpoints(self, checkpoint: Prepared) -> None:
        """Write prepared checkpoints, in any thread. One that can't be written costs a longer boot and nothing else."""
        if not self._writing_checkpoints.acquire(timeout=_STOP_SECONDS_MAX):
            log.error("the last checkpoint is still being written; this one is left out")
            return
        try:
            for directory, snapshot in checkpoint:
                try:
                    write_checkpoint(self._file_system, directory.path, snapshot)
                except OSError as error:
                    log.error("%s: the checkpoint can't be written: %s; the last one stays", directory.path, error)
        finally:
            self._writing_checkpoints.release()

    def _snapshots(self) -> Prepared:
        alone = len(self._directories) == 1
        return [
            (
                directory,
                Snapshot(
                    None if alone else frozenset(entry_log.number for entry_log in directory.logs),
                    directory.covered(),
                    directory.damaged,
                ),
            )
            for directory in self._live
        ]

    # -- inside

    def _note_added(self, ledger: BookieLedger, decision: Decision, header: Header) -> None:
        if decision.records:
            self._ledgers[ledger.ledger_id] = ledger
            # Not waited for: each directory writes it before the batch, so where the batch is, the record is.
            self._write_control(decision.records, ignore)
        if ledger.added(decision, header.last_add_confirmed, header.last_add_fully_replicated):
            self.watches.reached(ledger.ledger_id, ledger.last_add_confirmed)

    def _compare(self, ledger_id: int, kept: Sequence[Row], batch: EntryBatch) -> Status | None:
        """Are all entries of ``batch`` that are held already held with the same content? None if so."""
        added = {entry_id: (length, payload) for entry_id, length, payload in batch.contents()}
        pieces = [Piece(ledger_id, *row, self._recent.get(row.where)) for row in kept]
        frames = self.files.fetch(pieces, cached_only=False)
        if frames is None or len(frames) < len(pieces):
            return Status.IO_ERROR
        for piece, frame in zip(pieces, frames, strict=True):
            for entry_id, length, payload in EntryBatch(frame).contents():
                if not piece.first <= entry_id <= piece.last or entry_id not in added:
                    continue
                if not same_content((length, payload), added[entry_id]):
                    return Status.CONFLICT
        return None

    def _when_synced(self, wheres: Sequence[int], done: Done) -> None:
        """Call ``done`` once the frames at ``wheres`` are durable."""
        waiting: list[LogDirectory] = []
        for where in wheres:
            directory, entry_log = self._logs[log_of(where)]
            if entry_log.synced <= position_of(where) and directory not in waiting:
                waiting.append(directory)
        if not waiting:
            done(Status.OK)
            return
        all_of = AllOf(len(waiting), done)
        for directory in waiting:
            directory.commit.submit(Barrier(all_of))

    def _write_control(self, records: Sequence[ControlRecord], done: Done) -> None:
        """Sync control records in every directory that is in use."""
        if not self._live or not self._open:
            done(Status.IO_ERROR)
            return
        content = encode_records(records)
        any_of = AnyOf(len(self._live), done)
        for directory in self._live:
            directory.commit.submit(ControlWrite(content, any_of))

    def _fenced(self, ledger_id: int, status: int) -> None:
        if status != Status.OK:
            self._not_durable.add(ledger_id)
        for done in self._fencing.pop(ledger_id):
            done(status)

    def _completed(self, thread: CommitThread, items: Sequence[Item], failure: OSError | None) -> None:
        """A commit thread finished a group."""
        status = Status.OK
        if failure is not None:
            status = Status.IO_ERROR
            self._retire(self._by_thread[thread])
        recent = self._recent
        for item in items:
            if type(item) is EntryWrite:
                self.bytes_in_flight -= len(item.frame)
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
        for entry_log in directory.logs:
            if entry_log.synced < entry_log.end:
                first = location(entry_log.number, entry_log.synced)
                for ledger_id in self._index.remove(first, location(entry_log.number, _POSITION_MAX)):
                    self._ledgers[ledger_id].damaged = True

    def _open_log(self, number: int) -> File:
        _, entry_log = self._logs[number]
        return self._file_system.open(entry_log.path)
