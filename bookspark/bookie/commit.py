"""The commit thread of one directory: everything that is written there, in groups.

Law: what is queued is written in its order, control records before entries; a group is reported done only after one sync of the
control log (if it has control records), one write and one sync of the entry log, and the note of the synced position. Entries
that are acked before their sync (``RelaxedWrite``) are reported as soon as they are written, the directory being marked unclean
before if their acks are promises; they are synced after some bytes or milliseconds, in the background, and with whatever else
is synced before that. A write or sync that fails retires the directory for good: the group and all that follows it is reported
failed, and nothing is tried again, because after a failed fdatasync nobody knows what the disk holds. A write that finds no room
fails its group only; but what follows fails too, for it was queued by one that counted on the writes before it, until the
loop, having heard of it, sends a ``SealLog``, which cuts off what was written of the group.

The queue is filled by the bookie's loop, and the loop is told of each group once (twice if some of it need not wait for the
sync). All that came while a group was being written is the next group: one add alone waits for one sync, a thousand share one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from bookspark.bookie.background_sync import BackgroundSync, Sync
from bookspark.bookie.commit_items import (
    Barrier,
    ControlRewrite,
    ControlWrite,
    EntryWrite,
    Item,
    NoteSync,
    RelaxedWrite,
    SealLog,
    Stop,
    SyncWritten,
)
from bookspark.bookie.config import BookieConfig
from bookspark.bookie.control_log import ControlLog
from bookspark.bookie.entry_log import EntryLog
from bookspark.bookie.file_system import NoSpaceError
from bookspark.bookie.unclean_marker import UncleanMarker

Completed = Callable[["CommitThread", Sequence[Item], OSError | None, int], None]
"""``completed(thread, items, failure, byte_count)``: the items are through; so many bytes of ``RelaxedWrite`` are synced."""
Post = Callable[..., object]
"""``post(function, *arguments)``: have it called on the loop (``loop.call_soon_threadsafe``)."""

_IDLE_SECONDS = 1.0
"""After so long without an add, a directory that is all synced is marked clean."""

log = logging.getLogger(__name__)


class Group:
    """What was queued, by what has to be done."""

    __slots__ = ("controls", "durable", "entries", "promised", "relaxed", "seals", "stop", "sync_notes", "syncs")

    def __init__(self, items: Sequence[Item]) -> None:
        self.entries: list[EntryWrite | RelaxedWrite] = []
        self.relaxed: list[RelaxedWrite] = []
        self.controls: list[ControlWrite | ControlRewrite] = []
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
            elif kind is ControlWrite or kind is ControlRewrite:
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


class CommitThread:
    """Writes and syncs one directory. ``submit`` from the loop; ``completed`` is posted to the loop."""

    def __init__(
        self,
        directory: str,
        control: ControlLog,
        marker: UncleanMarker,
        background: BackgroundSync,
        config: BookieConfig,
    ) -> None:
        self.directory = directory
        self.control = control
        self.marker = marker
        self._background = background
        self._log_bytes = config.entry_log_bytes_max
        self._sync_bytes = config.background_sync_bytes
        self._sync_seconds = config.background_sync_interval_ms / 1000
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self.submit = self._queue.put
        """Queue an item; its ``done`` will be called, whatever happens."""
        self._failure: OSError | None = None
        self._no_space: NoSpaceError | None = None
        """A write found no room, and the loop has not shown that it knows."""
        self._log: EntryLog | None = None
        self._end = 0
        """Up to where ``_log`` is written."""
        self._relaxed_bytes = 0
        """What was acked before its sync, and of which no sync has been asked for."""
        self._sync_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self, post: Post, completed: Completed) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(post, completed), name=f"commit {self.directory}", daemon=True
        )
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end, after ``Stop`` was submitted. False if it has not in time."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    @property
    def queued(self) -> int:
        """How many items wait."""
        return self._queue.qsize()

    def _run(self, post: Post, completed: Completed) -> None:
        while self.commit_queued(post, completed):
            pass

    def commit_queued(self, post: Post, completed: Completed) -> bool:
        """Wait for an item, make one group of it and all that is queued behind it, and tell. False once it held the last item.
        What is synced in the background is so in a thread of its own if this one was started, else here."""
        items = self._take()
        if self._no_space is not None and self._failure is None:
            items = self._refuse(items, post, completed)
        rest: Sequence[Item] = items
        group = Group(items)
        if group.stop:
            self._background.stop()
        if group.relaxed:
            if not self._relaxed_bytes:
                self._sync_at = time.monotonic() + self._sync_seconds
            self._relaxed_bytes += sum(len(item.frame) for item in group.relaxed)
        if self._failure is None:
            try:
                self._write(group)
                if group.relaxed:
                    self._tell(post, completed, group.relaxed)
                    rest = [item for item in items if type(item) is not RelaxedWrite]
                self._sync(group)
            except NoSpaceError as error:
                self._no_space = error
                log.warning("%s has no room left: %s; make some", self.directory, error)
                self._tell(post, completed, rest, failure=error)
                group.syncs, rest = [], []
                if group.stop:
                    self._stop()
            except OSError as error:
                self._fail(error)
        if self._is_synced or self._failure is not None:
            released, self._relaxed_bytes = self._relaxed_bytes, 0
            if rest or released:
                self._tell(post, completed, rest, released)
        else:
            if group.syncs:
                rest = [item for item in rest if type(item) is not SyncWritten]
            if group.syncs or self._is_due:
                self._sync_in_background(group.syncs, partial(self._synced, post, completed))
            if rest:
                self._tell(post, completed, rest)
        return not group.stop

    def _take(self) -> list[Item]:
        """The next group; empty if none came until something else is to be done."""
        timeout = None
        if self._relaxed_bytes:
            timeout = max(0.0, self._sync_at - time.monotonic())
        elif self.marker.removable:
            timeout = _IDLE_SECONDS
        try:
            items = [self._queue.get(timeout=timeout)]
        except Empty:
            if not self._relaxed_bytes and self._is_synced and self._failure is None:
                self._mark_clean()
            return []
        items += [self._queue.get() for _ in range(self._queue.qsize())]
        return items

    def _write(self, group: Group) -> None:
        if group.controls:
            self._commit_controls(group.controls)
        if group.promised:
            self.marker.make()
        for entry_log, run in _runs(group.entries):
            if entry_log is not self._log:
                self._leave_log()
                entry_log.create(self._log_bytes)
                self._log, self._end = entry_log, run[0].position
            self._end = entry_log.write([item.frame for item in run], run[0].position)
        if any(item.log is self._log for item in group.seals):
            self._leave_log()

    def _sync(self, group: Group) -> None:
        if group.durable:
            self._sync_log()
        if group.sync_notes:
            self.control.sync_note()
            if self._log is not None:
                self._log.sync_note()
        if group.stop:
            self._leave_log()
            self.marker.clear()

    def _leave_log(self) -> None:
        if self._log is not None:
            self._sync_log()
            self._log.seal()
            self._log = None

    def _refuse(self, items: list[Item], post: Post, completed: Completed) -> list[Item]:
        """Fail what was queued before the loop knew that there is no room; returns the rest."""
        known = next((i for i, item in enumerate(items) if isinstance(item, (SealLog, Stop))), len(items))
        if known:
            never_written = sum(len(item.frame) for item in items[:known] if type(item) is RelaxedWrite)
            self._tell(post, completed, items[:known], never_written, self._no_space)
        if known < len(items):
            self._no_space = None
        return items[known:]

    def _stop(self) -> None:
        """The last group found no room; what there is can be synced."""
        try:
            self._leave_log()
        except OSError as error:
            self._fail(error)

    @property
    def _is_synced(self) -> bool:
        return self._log is None or self._log.synced >= self._end

    @property
    def _is_due(self) -> bool:
        """Has it been long enough, or much enough, for a sync in the background?"""
        waiting = self._relaxed_bytes
        return waiting > 0 and (waiting >= self._sync_bytes or time.monotonic() >= self._sync_at)

    def _sync_log(self) -> None:
        if self._log is not None and self._log.synced < self._end:
            self._log.sync(self._end)

    def _commit_controls(self, controls: Sequence[ControlWrite | ControlRewrite]) -> None:
        appended: list[bytes] = []
        for item in controls:
            if isinstance(item, ControlRewrite):
                self.control.rewrite(item.content)
                appended = []  # the new content has them
            else:
                appended.append(item.content)
        if appended:
            self.control.append(b"".join(appended))

    def _mark_clean(self) -> None:
        try:
            self.marker.clear()
        except OSError as error:
            self._fail(error)

    # -- in the background

    def _sync_in_background(
        self, items: Sequence[SyncWritten], synced: Callable[[Sequence[Item], int, OSError | None], None]
    ) -> None:
        assert self._log is not None
        byte_count, self._relaxed_bytes = self._relaxed_bytes, 0
        sync = Sync(self._log, self._end, byte_count, items)
        self._background.submit(sync, synced, apart=self._thread is not None)

    def _synced(
        self, post: Post, completed: Completed, items: Sequence[Item], byte_count: int, failure: OSError | None
    ) -> None:
        if failure is not None:
            self._fail(failure)
        self._tell(post, completed, items, byte_count)

    # -- either thread

    def _fail(self, error: OSError) -> None:
        self._failure = error
        self.marker.spoil()
        log.error(
            "%s failed and is retired until the bookie is started again: %s; check the disk", self.directory, error
        )

    def _tell(
        self,
        post: Post,
        completed: Completed,
        items: Sequence[Item],
        byte_count: int = 0,
        failure: OSError | None = None,
    ) -> None:
        try:
            post(completed, self, items, self._failure or failure, byte_count)
        except RuntimeError:
            log.debug("%s: the loop is closed, nobody waits for this group", self.directory)


def _runs(
    entries: Sequence[EntryWrite | RelaxedWrite],
) -> Iterable[tuple[EntryLog, Sequence[EntryWrite | RelaxedWrite]]]:
    """The entries log by log; nearly always all are of one."""
    start = 0
    while start < len(entries):
        entry_log = entries[start].log
        end = len(entries)
        if entries[-1].log is not entry_log:
            end = next(i for i in range(start, end) if entries[i].log is not entry_log)
        yield entry_log, entries[start:end] if start or end < len(entries) else entries
        start = end
