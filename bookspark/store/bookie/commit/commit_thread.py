"""The commit thread of one directory: it writes the items that the bookie's loop queues, in groups.

Law: the loop hands over once a turn and gets one report a group (two if a part need not wait for the sync). Items that arrive
during a group form the next group: a lone add waits for one sync, and a thousand adds share one.

Decision: the loop itself commits a few adds if the thread is idle, because two thread switches take longer than a quick sync. A
slow disk must not hold up other clients. So the loop commits only in the bookie's only directory, with at most one client active
or served (``Admission.is_shared``), and after many consecutive groups of less than a millisecond. The thread is idle once it has
finished all hand-overs. A connected but silent client counts as absent: a finished reader costs writers nothing, and a client
that wakes up waits for one slow sync at most.
"""

from __future__ import annotations

import errno
import logging
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import NamedTuple

import msgspec

from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.completions import Done, ignore
from bookspark.store.bookie.disk.control_log import ControlLog
from bookspark.store.bookie.disk.disk_errors import unless_refused
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import NoSpaceError
from bookspark.store.bookie.disk.unclean_marker import UncleanMarker
from bookspark.store.bookie.traffic import GroupFigures
from bookspark.store.wire.entry_batch import Buffer
from bookspark.support.metrics.histogram import Distribution, Histogram, together

log = logging.getLogger(__name__)


# -- Items that the loop queues for a directory's commit thread.
#
# Law: an item's ``done`` is called once, on the loop: with OK as its docstring says, else with the status of the failure. Items
# keep their order, except that control records are written before the entries of their group.


class EntryWrite(msgspec.Struct, frozen=True):
    """Write a batch frame at ``position`` of ``log``. Done when it is synced. The frames of a log, ``RelaxedWrite`` included, are
    queued in the order of their positions, without a gap."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done


class RelaxedWrite(msgspec.Struct, frozen=True):
    """Write a batch frame at ``position`` of ``log``. Done when the operating system has it; a background sync follows.
    ``promised``: the ledger is of persistent durability (PD), so the directory is marked unclean before the acknowledgement."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done
    promised: bool


class ControlWrite(NamedTuple):
    """Append encoded control records, as write ``number``. Done when they are synced."""

    content: bytes
    done: Done
    number: int


class ControlRewrite(NamedTuple):
    """Replace all control records, earlier queued ones included, by these encoded records, in pieces: the state up to write
    ``number``. Done when they are synced."""

    content: Sequence[bytes]
    done: Done
    number: int


class RemovalNote(NamedTuple):
    """Note the intended removal of the entry logs ``gone``, and the list of rewritten logs. Done when the note is synced."""

    gone: Sequence[int]
    rewritten: Sequence[int]
    done: Done


class Passing(NamedTuple):
    """Write nothing. Done when all earlier items are done."""

    done: Done


class Barrier(NamedTuple):
    """Write nothing. Done when everything queued before is synced."""

    done: Done


class SyncWritten(NamedTuple):
    """Write nothing. Done when everything queued before is synced. The sync runs in the background and delays no later write."""

    done: Done


class NoteSync(NamedTuple):
    """Make the synced notes themselves durable."""

    done: Done


class SealLog(NamedTuple):
    """Seal ``log`` if it is the current log, and return its reserved space (None: seal nothing). ``failure``: the loop knows of
    this write without room and has dropped its entries, so any current log is sealed, and later items may be written again."""

    log: EntryLog | None
    done: Done
    failure: OSError | None = None


class Stop(NamedTuple):
    """The last item: sync everything, seal the log and end the thread."""

    done: Done


Item = (
    EntryWrite
    | RelaxedWrite
    | ControlWrite
    | ControlRewrite
    | RemovalNote
    | Passing
    | Barrier
    | SyncWritten
    | NoteSync
    | SealLog
    | Stop
)


# -- Group writer: file operations for the items of one group, and the handling of failures.
#
# Law: control records are written before entries. A group is reported done only after one sync of the control log (if it has
# control records), one write and one sync of the entry log, and the note of the synced position. A ``RelaxedWrite`` is reported
# as soon as it is written; if its ledger is of persistent durability, the directory is marked unclean first. Its sync follows
# after some bytes or milliseconds, or with any other sync. The notes themselves become durable about once a second, between two
# groups.
#
# A failed write or sync retires the directory for good: this and all later groups fail. Nothing is retried, because after a
# failed fdatasync the content of the disk is unknown. A failure that is not the disk's is a defect, which ``broken`` reports
# too.
#
# A write without room fails its group and all later items, because the loop queued them counting on it. Only a ``SealLog`` that
# names the failure, or ``Stop``, ends this state. The loop queues that ``SealLog`` once it knows of the failure; it cuts off
# the written part of the failed group. Any other item proves nothing: a ``Barrier`` may belong to a copy that the failed write
# was to make.


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
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def sync_queued(self, synced: Synced) -> None:
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
        self.broken: Callable[[str], None] = lambda why: None
        """Called in any thread on a failure that is not the disk's."""
        self._no_space: NoSpaceError | None = None
        """A write without room that the loop has not acknowledged by a ``SealLog``."""
        self._cut = False
        """The loop has acknowledged the write without room, so the log is to be sealed."""
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
                log.debug("%s has no space left: %s", self._directory, error)
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
        return self._background.syncs

    @property
    def patience(self) -> float | None:
        """Seconds until work is due without a new item; None: never."""
        if self.relaxed_bytes:
            return max(0.0, self._sync_at - monotonic())
        # The loop writes notes too while the thread waits, so an open log may always have a note to sync.
        return (
            _IDLE_SECONDS if self._marker.removable or self._log is not None or self._control.note.is_written else None
        )

    def note_idle(self) -> None:
        """Called after ``patience`` seconds without an item: mark the directory clean if it is fully synced."""
        if self._marker.removable and not self.relaxed_bytes and self._is_synced and self.failure is None:
            try:
                # A marker that stays costs nothing.
                with unless_refused():
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
            self._leave_log()
            self._cut = False
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
            # Before a part of it is acknowledged unsynced.
            self._log.note.note_written(self._end)
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
                # The rewritten control log has these records already.
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
        self._control.note.sync_if_written()
        if self._log is not None:
            self._log.note.sync_if_written()

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


# -- The thread


Completed = Callable[["CommitThread", Sequence[Item], int, OSError | None], None]
"""``completed(thread, items, synced_bytes, failure)``: the items are done, or failed with ``failure``. ``synced_bytes`` of
``RelaxedWrite`` are synced now."""
Post = Callable[..., object]
"""``post(function, *arguments)``: schedule a call on the loop (``loop.call_soon_threadsafe``)."""

Soon = Callable[[Callable[[], None]], object]
"""``soon(function)``: schedule a call after this turn of the loop (``loop.call_soon``)."""

_Turn = tuple[float, Sequence[Item]]

_QUICK_GROUPS = 16
"""The loop may commit after this number of quick groups in a row."""
_ITEMS_HERE_MAX = 4
_BYTES_HERE_MAX = 32 << 10
"""Limits of a commit by the loop: adds, and their bytes."""


class CommitThread:
    """Writes and syncs one directory. ``submit`` from the loop; ``completed`` is posted to the loop."""

    def __init__(self, directory: str, writer: GroupWriter) -> None:
        self.directory = directory
        self._writer = writer
        self._queue: SimpleQueue[_Turn] = SimpleQueue()
        self._turn: list[Item] = []
        self._turn_begun = 0.0
        self.adds = Histogram()
        """For metrics: seconds from an add's turn of the loop to its report. Owned by the loop."""
        self._handed_over = 0
        self._through = 0
        self._soon: Soon | None = None
        self._completed: Completed | None = None
        self._thread: threading.Thread | None = None
        self.broken: Callable[[str], None] = lambda why: None
        """Called in any thread on a failure that is not the disk's. The bookie must then end, because queued items may never be
        answered."""
        self.loop_is_shared: Callable[[], bool] = lambda: False
        """Does the loop serve more than one client at present? It must then not wait for the disk."""
        writer.broken = lambda why: self.broken(why)

    def start(self, post: Post, completed: Completed, soon: Soon | None = None, *, alone: bool = False) -> None:
        """Start the thread. ``soon``: None hands over each item at once. ``alone``: the bookie has no other directory."""
        self._soon = soon
        if alone and soon is not None:
            self._completed = completed
        self._thread = threading.Thread(
            target=self._run, args=(post, completed), name=f"commit {self.directory}", daemon=True
        )
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Queue an item, on the loop. Its ``done`` is called in any case."""
        if self._soon is None:
            self._hand_over([item], monotonic())
            return
        if not self._turn:
            self._turn_begun = monotonic()
            self._soon(self._end_turn)
        self._turn.append(item)

    def stop(self) -> None:
        """Queue the last item, from any thread. The loop submits nothing afterwards."""
        turn, self._turn = self._turn, []
        self._hand_over([*turn, Stop(ignore)], self._turn_begun if turn else monotonic())

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end, after ``stop``. False if it still runs."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    @property
    def groups(self) -> GroupFigures:
        return self._writer.figures

    @property
    def syncs(self) -> Distribution:
        return together((self._writer.figures.syncs.copy(), self._writer.background_syncs.copy()))

    @property
    def sync_seconds(self) -> float | None:
        """Recent duration of a sync that adds wait for, in seconds. None: too few syncs."""
        return self._writer.figures.lately.seconds(monotonic())

    @property
    def queued(self) -> int:
        return self._queue.qsize()

    # -- the loop

    def _end_turn(self) -> None:
        items, self._turn = self._turn, []
        if self._completed is not None and self._may_commit_here(items):
            turns: list[_Turn] = [(self._turn_begun, items)]
            self._writer.commit(items, self._tell(operator.call, self._completed, turns), in_threads=True)
        elif items:
            self._hand_over(items, self._turn_begun)

    def _hand_over(self, items: Sequence[Item], begun: float) -> None:
        self._handed_over += 1
        self._queue.put((begun, items))

    def _may_commit_here(self, items: Sequence[Item]) -> bool:
        return (
            self._handed_over == self._through
            and 0 < len(items) <= _ITEMS_HERE_MAX
            and self._writer.quick_groups >= _QUICK_GROUPS
            and not self.loop_is_shared()
            and self._writer.takes_at_once(items)
            and sum([len(item.frame) for item in items if type(item) is EntryWrite]) <= _BYTES_HERE_MAX
        )

    def _told(
        self,
        completed: Completed,
        turns: list[_Turn],
        items: Sequence[Item],
        synced_bytes: int,
        failure: OSError | None,
    ) -> None:
        """Report a group, or its part that need not wait for the sync."""
        completed(self, items, synced_bytes, failure)
        if failure is None and items:
            now = monotonic()
            for begun, turn in turns:
                kinds = list(map(type, turn))
                if count := kinds.count(EntryWrite) + kinds.count(RelaxedWrite):
                    self.adds.observe(now - begun, count)
            # A second report of the group covers no adds.
            turns.clear()

    # -- the thread

    def _run(self, post: Post, completed: Completed) -> None:
        try:
            while self.commit_queued(post, completed):
                pass
        except BaseException as error:
            log.critical("%s: the commit thread ended", self.directory, exc_info=error)
            self.broken(f"the commit thread of {self.directory} ended with {type(error).__name__}: {error}")

    def commit_queued(self, post: Post, completed: Completed) -> bool:
        """Wait for an item, commit it and all queued items as one group, and report. False after the last item. The background
        sync runs in its own thread if this thread was started, else here."""
        turns = self._take()
        handed_over = len(turns)
        items = [item for _, turn in turns for item in turn]
        goes_on = self._writer.commit(items, self._tell(post, completed, turns), in_threads=self._thread is not None)
        self._writer.sync_notes()
        self._through += handed_over
        return goes_on

    def _take(self) -> list[_Turn]:
        """The turns that form the next group; none on a timeout for idle work."""
        try:
            turns = [self._queue.get(timeout=self._writer.patience)]
        except Empty:
            self._writer.note_idle()
            return []
        return turns + [self._queue.get() for _ in range(self._queue.qsize())]

    def _tell(self, post: Post, completed: Completed, turns: list[_Turn]) -> Tell:
        return partial(self._post, post, completed, turns)

    def _post(
        self,
        post: Post,
        completed: Completed,
        turns: list[_Turn],
        items: Sequence[Item],
        synced_bytes: int,
        failure: OSError | None,
    ) -> None:
        try:
            post(self._told, completed, turns, items, synced_bytes, failure)
        except RuntimeError:
            log.debug("%s: the loop is closed, nobody waits for this group", self.directory)
