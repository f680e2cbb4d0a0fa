"""Writing a group: what is done to a directory's files for the items that were queued together.

Law: control records are written before entries. A group is reported done only after one sync of the control log (if it has
control records), one write and one sync of the entry log, and the note of the synced position. Entries that are acknowledged
before their sync (``RelaxedWrite``) are reported as soon as they are written; if their acknowledgements are promises, the
directory is marked unclean before. They are synced in the background after some bytes or milliseconds, and earlier with whatever
else is synced. The notes themselves are made durable about once a second, after a group and before the next one; so a power cut
leaves notes that are about a second behind.

A write or sync that fails retires the directory for good: this group and all that follow are reported failed, and nothing is
tried again, because after a failed fdatasync nobody knows what the disk holds. An error that is not the disk's does so too, and
is told to who runs the bookie (``broken``), because it is a defect.

A write that finds no room fails its group and all later items, because the loop queued them counting on the failed write. A
``SealLog`` that names the failure ends that: the loop queues it once it knows of the failure. It cuts off the written part of
the failed group. Any other item, also a ``SealLog`` that was queued for another reason, proves nothing: a ``Barrier`` behind it
may be for a copy that the failed write was to make.
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


# -- The background sync of a directory: for entries that are acknowledged before they are synced.
#
# Law: a sync covers the writes before its request, and no later ones. The synced note is written after it, as after every sync.
# No write waits for it. A sync that fails retires the directory, as one of the commit thread's own does: each thread has a file
# descriptor of its own, open since before the first write, so the kernel tells both of a failed write-back. Whatever else goes
# wrong is told like a failed sync.
#
# Syncs that pile up are made as one. The thread is started by the first sync, so a bookie that needs none has none. If it can't
# be started, the commit thread makes the sync.
#
# Source: BP-14, "Changes to Bookies"; BookKeeper's ``ForceWriteThread``.


class Sync(NamedTuple):
    """Sync ``log`` up to position ``end``. ``items`` wait for that, and ``byte_count`` bytes that were acknowledged before."""

    log: EntryLog
    end: int
    byte_count: int
    items: Sequence[Item]


Synced = Callable[[Sequence[Item], int, Exception | None], None]
"""``synced(items, byte_count, failure)``, in the thread of the sync."""


class BackgroundSync:
    """The second thread of a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.syncs = Histogram()
        """How long they took, in seconds, for metrics."""
        self._queue: SimpleQueue[Sync | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, sync: Sync, synced: Synced, *, apart: bool) -> None:
        """Make a sync, then call ``synced``. ``apart``: True leaves both to the second thread. False does both here, before this
        returns."""
        self._queue.put(sync)
        if not (apart and self._has_thread(synced)):
            self.sync_queued(synced)

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def sync_queued(self, synced: Synced) -> None:
        """Make the queued syncs as one, in the thread that writes the logs."""
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
        """Make ``syncs`` as one and tell."""
        failure: Exception | None = None
        begun = monotonic()
        try:
            # The last sync of a log covers the earlier ones.
            for sync in reversed(syncs):
                sync.log.sync_beside(sync.end)
        except Exception as error:
            failure = error
        if syncs:
            self.syncs.observe(monotonic() - begun)
            synced([item for sync in syncs for item in sync.items], sum(sync.byte_count for sync in syncs), failure)


# -- A group: the items that a commit thread found queued, sorted by kind.
#
# Law: items of one kind stay in the order in which they were queued.


class Group:
    """The items of a group by kind, and what they ask for together."""

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
    """The entries in runs of one log each. Nearly always there is one run."""
    start = 0
    while start < len(entries):
        entry_log = entries[start].log
        end = len(entries)
        if entries[-1].log is not entry_log:
            end = next(i for i in range(start, end) if entries[i].log is not entry_log)
        yield entry_log, entries[start:end] if start or end < len(entries) else entries
        start = end


# --


Tell = Callable[[Sequence[Item], int, OSError | None], None]
"""``tell(items, synced_bytes, failure)``: these items are done, or failed with ``failure``. ``synced_bytes`` of ``RelaxedWrite``
are synced now."""

_IDLE_SECONDS = 1.0
"""After this time without an add, a directory of which everything is synced is marked clean."""
_NOTE_SECONDS = 1.0
"""How long a synced note may wait to be durable itself."""
_QUICK_SECONDS = 0.001


class GroupWriter:
    """Writes the groups of one directory. One thread uses it at a time; the background sync has a thread of its own."""

    def __init__(self, directory: str, control: ControlLog, marker: UncleanMarker, config: BookieConfig) -> None:
        self._directory = directory
        self._control = control
        self._marker = marker
        self._background = BackgroundSync(directory)
        self._log_bytes = config.entry_log_bytes_max
        self._sync_bytes = config.background_sync_bytes
        self._sync_seconds = config.background_sync_interval_ms / 1000
        self.figures = GroupFigures()
        """For metrics: what was written, and how long the syncs of this thread took."""
        self.quick_groups = 0
        """Consecutive groups that were written and synced in under a millisecond."""
        self.failure: OSError | None = None
        """Why the directory is retired."""
        self.broken: Callable[[str], None] = lambda why: None
        """Called, in any thread, when something failed that is not the disk's fault."""
        self._no_space: NoSpaceError | None = None
        """A write found no room, and the loop has not shown yet that it knows."""
        self._cut = False
        """The loop knows of it, and the log is to be sealed."""
        self._log: EntryLog | None = None
        """The log that is written to."""
        self._end = 0
        """The position up to which ``_log`` is written."""
        self.relaxed_bytes = 0
        """Bytes that were acknowledged before their sync, and for which no sync has been asked yet."""
        self._sync_at = 0.0
        self._notes_at = monotonic() + _NOTE_SECONDS

    def commit(self, items: list[Item], tell: Tell, *, in_threads: bool) -> bool:
        """Write a group, sync it, tell. False if it held the last item. ``in_threads``: the background sync is made in its
        thread, else here."""
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
        """Are ``items`` nothing but adds to the log that is written to, with nothing else waiting to be done?"""
        return (
            self.failure is None
            and self._no_space is None
            # Unsynced bytes and a marker to be removed are left to the thread, which sees to them even while it is idle.
            and not (self.relaxed_bytes or self._marker.removable)
            and all(type(item) is EntryWrite and item.log is self._log for item in items)
        )

    @property
    def background_syncs(self) -> Histogram:
        """How long the syncs of the second thread took, in seconds."""
        return self._background.syncs

    @property
    def patience(self) -> float | None:
        """The seconds after which something is to be done although no item came; None: never."""
        if self.relaxed_bytes:
            return max(0.0, self._sync_at - monotonic())
        # The loop writes notes too, while the thread waits: as long as a log is open, there may be one to make durable.
        return (
            _IDLE_SECONDS if self._marker.removable or self._log is not None or self._control.note_is_written else None
        )

    def note_idle(self) -> None:
        """No item came for ``patience`` seconds: mark the directory clean if everything in it is synced."""
        if self._marker.removable and not self.relaxed_bytes and self._is_synced and self.failure is None:
            try:
                self._marker.clear()
            except OSError as error:
                self._fail(error)
        self.sync_notes()

    def sync_notes(self) -> None:
        """In the thread, between two groups: make the notes durable, about once a second."""
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
        """Fail what was queued before the loop knew that there is no room; returns the rest."""
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
        """The last group found no room; what was written before can be synced."""
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
        """Has enough been written, or enough time passed, for a sync in the background?"""
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
