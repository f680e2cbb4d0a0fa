"""Group writer: file operations for the items of one group, and the handling of failures.

Law: control records are written before entries. A group is reported done only after one sync of the control log (if it has
control records), one write and one sync of the entry log, and the note of the synced position. A ``RelaxedWrite`` is reported as
soon as it is written; if its ledger is of persistent durability, the directory is marked unclean first. Its sync follows after
some bytes or milliseconds, or with any other sync. The notes themselves become durable about once a second, between two groups.

A failed write or sync retires the directory for good: this and all later groups fail. Nothing is retried, because after a failed
fdatasync the content of the disk is unknown. A failure that is not the disk's is a defect, which ``broken`` reports too.

A write without room fails its group and all later items, because the loop queued them counting on it. Only a ``SealLog`` that
names the failure, or ``Stop``, ends this state. The loop queues that ``SealLog`` once it knows of the failure; it cuts off the
written part of the failed group. Any other item proves nothing: a ``Barrier`` may belong to a copy that the failed write was to
make.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import NamedTuple

from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.commit_items import (
    Barrier,
    ControlRewrite,
    ControlWrite,
    EntryWrite,
    Item,
    NoteSync,
    RelaxedWrite,
    RemovalNote,
    SealLog,
    Stop,
    SyncWritten,
)
from bookspark.store.bookie.disk.control_log import ControlLog
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import NoSpaceError
from bookspark.store.bookie.disk.unclean_marker import UncleanMarker
from bookspark.store.bookie.traffic import GroupFigures
from bookspark.support.metrics.histogram import Histogram

log = logging.getLogger(__name__)


# -- Background sync: syncs of entries that were acknowledged before.


class Sync(NamedTuple):
    """Sync ``log`` up to position ``end`` for waiting ``items`` and ``byte_count`` acknowledged bytes."""

    log: EntryLog
    end: int
    byte_count: int
    items: Sequence[Item]


Synced = Callable[[Sequence[Item], int, Exception | None], None]
"""Called as ``synced(items, byte_count, failure)`` in the thread of the sync."""


class BackgroundSync:
    """The second thread of a directory, for background syncs.

    Law: a sync covers the writes before its request, and no later writes. The synced note is written after it, as after every
    sync. No write waits for it. A failed sync retires the directory, as in the commit thread: each thread has its own file
    descriptor, open since before the first write, so the kernel reports a failed write-back to both. Any other error is reported
    like a failed sync.

    Queued syncs are merged. The first sync starts the thread, so a bookie without relaxed writes has no second thread. If the
    thread can't be started, the commit thread syncs.

    Source: BP-14, "Changes to Bookies"; BookKeeper's ``ForceWriteThread``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.syncs = Histogram()
        """Durations in seconds, for metrics."""
        self._queue: SimpleQueue[Sync | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, sync: Sync, synced: Synced, *, apart: bool) -> None:
        """Sync, then call ``synced``. ``apart``: True leaves both to the second thread; False does both before returning."""
        self._queue.put(sync)
        if not (apart and self._has_thread(synced)):
            self.sync_queued(synced)

    def stop(self) -> None:
        """Finish the queued syncs and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def sync_queued(self, synced: Synced) -> None:
        """Make the queued syncs as one, in the calling thread."""
        self._make(self._queued(), synced)

    def _has_thread(self, synced: Synced) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, args=(synced,), name=f"sync {self._directory}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                log.warning("%s: %s, so its commit thread makes the syncs; allow more threads", self._directory, error)
                return False
            self._thread = thread
        return True

    def _queued(self) -> list[Sync]:
        queued = [self._queue.get() for _ in range(self._queue.qsize())]
        return [sync for sync in queued if sync is not None]

    def _run(self, synced: Synced) -> None:
        goes_on = True
        while goes_on:
            queued = [self._queue.get()]
            queued += [self._queue.get() for _ in range(self._queue.qsize())]
            goes_on = None not in queued
            self._make([sync for sync in queued if sync is not None], synced)

    def _make(self, syncs: Sequence[Sync], synced: Synced) -> None:
        failure: Exception | None = None
        begun = monotonic()
        try:
            # The last sync of a log covers the earlier syncs.
            for sync in reversed(syncs):
                sync.log.sync_beside(sync.end)
        except Exception as error:
            failure = error
        if syncs:
            self.syncs.observe(monotonic() - begun)
            synced([item for sync in syncs for item in sync.items], sum(sync.byte_count for sync in syncs), failure)


# -- A group: the items of a commit, sorted by kind. Law: items of one kind stay in their queued order.


class Group:
    """Items of a group by kind, and their joint needs."""

    __slots__ = ("controls", "durable", "entries", "promised", "relaxed", "seals", "stop", "sync_notes", "syncs")

    def __init__(self, items: Sequence[Item]) -> None:
        self.entries: list[EntryWrite | RelaxedWrite] = []
        self.relaxed: list[RelaxedWrite] = []
        self.controls: list[ControlWrite | ControlRewrite | RemovalNote] = []
        self.syncs: list[SyncWritten] = []
        self.seals: list[SealLog] = []
        self.durable = self.promised = self.sync_notes = self.stop = False
        for item in items:
            kind = type(item)
            if kind is EntryWrite:
                self.entries.append(item)  # type: ignore[arg-type]
            elif kind is RelaxedWrite:
                self.relaxed.append(item)  # type: ignore[arg-type]
                self.entries.append(item)  # type: ignore[arg-type]
            elif kind is ControlWrite or kind is ControlRewrite or kind is RemovalNote:
                self.controls.append(item)  # type: ignore[arg-type]
            elif kind is SyncWritten:
                self.syncs.append(item)  # type: ignore[arg-type]
            elif kind is Barrier:
                self.durable = True
            elif kind is NoteSync:
                self.sync_notes = True
            elif kind is SealLog:
                self.seals.append(item)  # type: ignore[arg-type]
            elif kind is Stop:
                self.stop = self.sync_notes = self.durable = True
        if self.relaxed:
            self.promised = any(item.promised for item in self.relaxed)
        self.durable |= len(self.entries) > len(self.relaxed)


def runs(
    entries: Sequence[EntryWrite | RelaxedWrite],
) -> Iterable[tuple[EntryLog, Sequence[EntryWrite | RelaxedWrite]]]:
    """Split the entries into runs of one log each, nearly always one."""
    start = 0
    while start < len(entries):
        entry_log = entries[start].log
        end = len(entries)
        if entries[-1].log is not entry_log:
            end = next(i for i in range(start, end) if entries[i].log is not entry_log)
        yield entry_log, entries[start:end] if start or end < len(entries) else entries
        start = end


# -- The group writer


Tell = Callable[[Sequence[Item], int, OSError | None], None]
"""``tell(items, synced_bytes, failure)``: these items are done, or failed with ``failure``. ``synced_bytes`` of ``RelaxedWrite``
are synced now."""

_IDLE_SECONDS = 1.0
"""A fully synced directory is marked clean after this time without an add."""
_NOTE_SECONDS = 1.0
"""Interval between syncs of the synced notes."""
_QUICK_SECONDS = 0.001


class GroupWriter:
    """Writes the groups of one directory. One thread uses it at a time; background syncs run in their own thread."""

    def __init__(self, directory: str, control: ControlLog, marker: UncleanMarker, config: BookieConfig) -> None:
        self._directory = directory
        self._control = control
        self._marker = marker
        self._background = BackgroundSync(directory)
        self._log_bytes = config.entry_log_bytes_max
        self._sync_bytes = config.background_sync_bytes
        self._sync_seconds = config.background_sync_interval_ms / 1000
        self.figures = GroupFigures()
        """For metrics: written groups, and durations of this thread's syncs."""
        self.quick_groups = 0
        self.failure: OSError | None = None
        """Cause of the directory's retirement."""
        self.broken: Callable[[str], None] = lambda why: None
        """Called in any thread on a failure that is not the disk's."""
        self._no_space: NoSpaceError | None = None
        """A write without room that the loop has not acknowledged by a ``SealLog``."""
        self._cut = False
        """The loop has acknowledged it, so the log is to be sealed."""
        self._log: EntryLog | None = None
        self._end = 0
        """End of the written part of ``_log``."""
        self.relaxed_bytes = 0
        """Bytes acknowledged before their sync, without a requested sync."""
        self._sync_at = 0.0
        self._notes_at = monotonic() + _NOTE_SECONDS

    def commit(self, items: list[Item], tell: Tell, *, in_threads: bool) -> bool:
        """Write a group, sync it, report. False after the last item. ``in_threads``: the background sync runs in its own thread,
        else here."""
        begun = monotonic()
        if self._no_space is not None and self.failure is None:
            items = self._refuse(items, tell)
        rest: Sequence[Item] = items
        group = Group(items)
        if group.stop:
            self._background.stop()
        if group.relaxed:
            if not self.relaxed_bytes:
                self._sync_at = monotonic() + self._sync_seconds
            self.relaxed_bytes += sum(len(item.frame) for item in group.relaxed)
        if self.failure is None:
            try:
                self._write(group)
                if group.relaxed:
                    self._tell(tell, group.relaxed)
                    rest = [item for item in items if type(item) is not RelaxedWrite]
                self._sync(group)
                if items:
                    self.quick_groups = self.quick_groups + 1 if monotonic() - begun < _QUICK_SECONDS else 0
            except NoSpaceError as error:
                self._no_space = error
                log.debug("%s found no room: %s", self._directory, error)
                self._tell(tell, rest, failure=error)
                group.syncs, rest = [], []
                if group.stop:
                    self._stop()
            except Exception as error:
                self._fail(error)
        if self._is_synced or self.failure is not None:
            released, self.relaxed_bytes = self.relaxed_bytes, 0
            if rest or released:
                self._tell(tell, rest, released)
        else:
            if group.syncs:
                rest = [item for item in rest if type(item) is not SyncWritten]
            if group.syncs or self._is_due:
                self._sync_in_background(group.syncs, tell, in_threads=in_threads)
            if rest:
                self._tell(tell, rest)
        return not group.stop

    def takes_at_once(self, items: Sequence[Item]) -> bool:
        """Are all ``items`` adds to the current log, with no other work pending?"""
        return (
            self.failure is None
            and self._no_space is None
            # Only the thread can handle unsynced bytes and a removable marker, because it works while idle.
            and not (self.relaxed_bytes or self._marker.removable)
            and all(type(item) is EntryWrite and item.log is self._log for item in items)
        )

    @property
    def background_syncs(self) -> Histogram:
        """Durations of the second thread's syncs, in seconds."""
        return self._background.syncs

    @property
    def patience(self) -> float | None:
        """Seconds until work is due without a new item; None: never."""
        if self.relaxed_bytes:
            return max(0.0, self._sync_at - monotonic())
        # The loop writes notes too while the thread waits, so an open log may always have a note to sync.
        return (
            _IDLE_SECONDS if self._marker.removable or self._log is not None or self._control.note_is_written else None
        )

    def note_idle(self) -> None:
        """No item came for ``patience`` seconds: mark the directory clean if it is fully synced."""
        if self._marker.removable and not self.relaxed_bytes and self._is_synced and self.failure is None:
            try:
                self._marker.clear()
            except OSError as error:
                self._fail(error)
        self.sync_notes()

    def sync_notes(self) -> None:
        """Make the notes durable, about once a second. In the thread, between two groups."""
        if self.failure is None and monotonic() >= self._notes_at:
            self._notes_at = monotonic() + _NOTE_SECONDS
            try:
                self._sync_notes()
            except OSError as error:
                self._fail(error)

    # -- writing

    def _write(self, group: Group) -> None:
        if self._cut:
            self._cut = False
            self._leave_log()
        if group.controls:
            self._write_controls(group.controls)
        if group.promised:
            self._marker.make()
        byte_count = 0
        for entry_log, run in runs(group.entries):
            if entry_log is not self._log:
                self._leave_log()
                entry_log.create(self._log_bytes, partial(self._control.note_log, entry_log.number))
                self._log, self._end = entry_log, run[0].position
            self._end = entry_log.write([item.frame for item in run], run[0].position)
            byte_count += self._end - run[0].position
        if group.promised and self._log is not None and self._marker.is_trusted:
            self._log.note_written(self._end)
        if group.entries:
            self.figures.entry_batches.observe(len(group.entries))
            self.figures.bytes.observe(byte_count)
        if any(item.log is self._log for item in group.seals):
            self._leave_log()

    def _write_controls(self, controls: Sequence[ControlWrite | ControlRewrite | RemovalNote]) -> None:
        appended: list[ControlWrite] = []
        for item in controls:
            if isinstance(item, ControlRewrite):
                self._control.rewrite(item.content, item.number)
                # The new content has these records already.
                appended = []
            elif isinstance(item, RemovalNote):
                self._control.note_removal(item.gone, item.rewritten)
            else:
                appended.append(item)
        if appended:
            self._control.append(b"".join(item.content for item in appended), appended[-1].number)

    def _refuse(self, items: list[Item], tell: Tell) -> list[Item]:
        """Fail the items queued before the loop knew of the lack of room; return the rest."""
        known = next(
            (
                i
                for i, item in enumerate(items)
                if isinstance(item, Stop) or (isinstance(item, SealLog) and item.failure is self._no_space)
            ),
            len(items),
        )
        if known:
            never_written = sum(len(item.frame) for item in items[:known] if type(item) is RelaxedWrite)
            self._tell(tell, items[:known], never_written, self._no_space)
        if known < len(items):
            self._no_space, self._cut = None, True
        return items[known:]

    # -- syncing

    def _sync(self, group: Group) -> None:
        if group.durable:
            self._sync_log()
        if group.sync_notes:
            self._sync_notes()
        if group.stop:
            self._leave_log()
            self._marker.clear()

    def _sync_notes(self) -> None:
        self._control.sync_note()
        if self._log is not None:
            self._log.sync_note()

    def _sync_log(self) -> None:
        if self._log is not None and self._log.synced < self._end:
            begun = monotonic()
            self.figures.lately.begins(begun)
            try:
                self._log.sync(self._end)
            finally:
                ended = monotonic()
                self.figures.lately.ends(ended)
            self.figures.syncs.observe(ended - begun)

    def _leave_log(self) -> None:
        if self._log is not None:
            self._sync_log()
            self._log.seal()
            self._log = None

    def _stop(self) -> None:
        """Sync the earlier writes at the stop, after a last group without room."""
        try:
            self._leave_log()
            self._marker.clear()
        except OSError as error:
            self._fail(error)

    @property
    def _is_synced(self) -> bool:
        return self._log is None or self._log.synced >= self._end

    @property
    def _is_due(self) -> bool:
        waiting = self.relaxed_bytes
        return waiting > 0 and (waiting >= self._sync_bytes or monotonic() >= self._sync_at)

    def _sync_in_background(self, items: Sequence[SyncWritten], tell: Tell, *, in_threads: bool) -> None:
        assert self._log is not None
        byte_count, self.relaxed_bytes = self.relaxed_bytes, 0
        sync = Sync(self._log, self._end, byte_count, items)
        self._background.submit(sync, partial(self._synced, tell), apart=in_threads)

    # -- in either thread

    def _synced(self, tell: Tell, items: Sequence[Item], byte_count: int, failure: Exception | None) -> None:
        if failure is not None:
            self._fail(failure)
        self._tell(tell, items, byte_count)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, OSError):
            self.failure = error
            log.error(
                "%s failed and is retired until the bookie is started again: %s; check the disk", self._directory, error
            )
        else:
            self.failure = OSError(errno.EIO, f"{type(error).__name__}: {error}")
            log.critical("%s can't be written to any more", self._directory, exc_info=error)
            self.broken(f"{self._directory} can't be written to any more: {self.failure.strerror}")
        self._marker.spoil()

    def _tell(self, tell: Tell, items: Sequence[Item], byte_count: int = 0, failure: OSError | None = None) -> None:
        tell(items, byte_count, self.failure or failure)
