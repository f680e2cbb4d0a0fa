"""The commit thread of one directory: everything that is written there, in groups.

Law: what is queued is written in its order, control records before entries; a group is reported done only after one sync of the
control log (if it has control records), one write and one sync of the entry log, and the note of the synced position. Entries
that are acked before their sync (``RelaxedWrite``) are reported as soon as they are written, the directory being marked unclean
before if their acks are promises; they are synced after some bytes or milliseconds, in the background, and with whatever else
is synced before that. A write or sync that fails retires the directory for good: the group and all that follows it is reported
failed, and nothing is tried again, because after a failed fdatasync nobody knows what the disk holds. A write that finds no room
fails its group only; but what follows fails too, for it was queued by one that counted on the writes before it, until the
loop, having heard of it, sends a ``SealLog``, which cuts off what was written of the group.

The queue is filled by the bookie's loop, once in each of its turns, and the loop is told of each group once (twice if some of
it need not wait for the sync). All that came while a group was being written is the next group: one add alone waits for one sync,
a thousand share one.

Decision: a few adds that find the thread idle are written and synced by the loop itself, for waking a thread and being woken by
it takes longer than a quick sync. A loop must not hang on a sick disk, so that is done only where the directory is the bookie's
only one (there is little else then that its disk could hold up), after many groups each of which took less than a millisecond,
and one that takes longer leaves it to the thread again. Whether the thread is idle is known and not guessed: the loop counts what
it hands over, the thread what it is through with.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.commit.background_sync import BackgroundSync, Sync
from bookspark.bookie.commit.commit_group import Group, runs
from bookspark.bookie.commit.commit_items import (
    ControlRewrite,
    ControlWrite,
    EntryWrite,
    Item,
    RelaxedWrite,
    SealLog,
    Stop,
    SyncWritten,
)
from bookspark.bookie.commit.completions import ignore
from bookspark.bookie.disk.control_log import ControlLog
from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.disk.file_system import NoSpaceError
from bookspark.bookie.disk.unclean_marker import UncleanMarker

Completed = Callable[["CommitThread", Sequence[Item], OSError | None, int], None]
"""``completed(thread, items, failure, byte_count)``: the items are through; so many bytes of ``RelaxedWrite`` are synced."""
Post = Callable[..., object]
"""``post(function, *arguments)``: have it called on the loop (``loop.call_soon_threadsafe``)."""

Soon = Callable[[Callable[[], None]], object]
"""``soon(function)``: have it called once this turn of the loop is over (``loop.call_soon``)."""

_IDLE_SECONDS = 1.0
"""After so long without an add, a directory that is all synced is marked clean."""
_QUICK_SECONDS = 0.001
_QUICK_GROUPS = 16
"""After so many quick groups, the loop may commit."""
_ITEMS_HERE_MAX = 4
_BYTES_HERE_MAX = 32 << 10
"""What it may commit at once."""

log = logging.getLogger(__name__)


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
        self._queue: SimpleQueue[Sequence[Item]] = SimpleQueue()
        self._turn: list[Item] = []
        """What this turn of the loop submitted."""
        self._handed_over = self._through = 0
        """How often something was put into the queue, and how much of that the thread is through with."""
        self._quick_groups = 0
        """So many, up to the last one, were."""
        self._soon: Soon | None = None
        self._completed: Completed | None = None
        """Set where the loop may commit."""
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

    def start(self, post: Post, completed: Completed, soon: Soon | None = None, *, alone: bool = False) -> None:
        """``soon``: without it, nothing is gathered over a turn of the loop. ``alone``: the bookie has no other directory."""
        self._soon = soon
        if alone and soon is not None:
            self._completed = completed
        self._thread = threading.Thread(
            target=self._run, args=(post, completed), name=f"commit {self.directory}", daemon=True
        )
        self._thread.start()

    def submit(self, item: Item) -> None:
        """Queue an item; its ``done`` will be called, whatever happens. On the loop."""
        if self._soon is None:
            self._hand_over([item])
            return
        if not self._turn:
            self._soon(self._end_turn)
        self._turn.append(item)

    def _end_turn(self) -> None:
        items, self._turn = self._turn, []
        if self._completed is not None and self._may_commit_here(items):
            self._commit(items, _call, self._completed)
        elif items:
            self._hand_over(items)

    def _hand_over(self, items: Sequence[Item]) -> None:
        self._handed_over += 1
        self._queue.put(items)

    def _may_commit_here(self, items: Sequence[Item]) -> bool:
        return (
            self._handed_over == self._through
            and self._quick_groups >= _QUICK_GROUPS
            and 0 < len(items) <= _ITEMS_HERE_MAX
            and self._failure is None
            and self._no_space is None
            and not (self._relaxed_bytes or self.marker.removable)  # the thread sees to them, idle or not
            and all(type(item) is EntryWrite and item.log is self._log for item in items)
            and sum(len(item.frame) for item in items if type(item) is EntryWrite) <= _BYTES_HERE_MAX
        )

    def stop(self) -> None:
        """Queue the last item. From any thread, once the loop submits nothing any more."""
        turn, self._turn = self._turn, []
        self._hand_over([*turn, Stop(ignore)])

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end, after ``stop``. False if it has not in time."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    @property
    def queued(self) -> int:
        """How many turns of the loop wait."""
        return self._queue.qsize()

    def _run(self, post: Post, completed: Completed) -> None:
        while self.commit_queued(post, completed):
            pass

    def commit_queued(self, post: Post, completed: Completed) -> bool:
        """Wait for an item, make one group of it and all that is queued behind it, and tell. False once it held the last item.
        What is synced in the background is so in a thread of its own if this one was started, else here."""
        items, turns = self._take()
        goes_on = self._commit(items, post, completed)
        self._through += turns
        return goes_on

    def _commit(self, items: list[Item], post: Post, completed: Completed) -> bool:
        """Write a group, sync it, tell. False if it held the last item."""
        begun = monotonic()
        if self._no_space is not None and self._failure is None:
            items = self._refuse(items, post, completed)
        rest: Sequence[Item] = items
        group = Group(items)
        if group.stop:
            self._background.stop()
        if group.relaxed:
            if not self._relaxed_bytes:
                self._sync_at = monotonic() + self._sync_seconds
            self._relaxed_bytes += sum(len(item.frame) for item in group.relaxed)
        if self._failure is None:
            try:
                self._write(group)
                if group.relaxed:
                    self._tell(post, completed, group.relaxed)
                    rest = [item for item in items if type(item) is not RelaxedWrite]
                self._sync(group)
                if items:
                    self._quick_groups = self._quick_groups + 1 if monotonic() - begun < _QUICK_SECONDS else 0
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

    def _take(self) -> tuple[list[Item], int]:
        """The next group, and how many turns of the loop are in it; empty if none came until something else is to be done."""
        timeout = None
        if self._relaxed_bytes:
            timeout = max(0.0, self._sync_at - monotonic())
        elif self.marker.removable:
            timeout = _IDLE_SECONDS
        try:
            items = list(self._queue.get(timeout=timeout))
        except Empty:
            if not self._relaxed_bytes and self._is_synced and self._failure is None:
                self._mark_clean()
            return [], 0
        more = self._queue.qsize()
        for _ in range(more):
            items += self._queue.get()
        return items, 1 + more

    def _write(self, group: Group) -> None:
        if group.controls:
            self._commit_controls(group.controls)
        if group.promised:
            self.marker.make()
        for entry_log, run in runs(group.entries):
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
        return waiting > 0 and (waiting >= self._sync_bytes or monotonic() >= self._sync_at)

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


def _call(function: Callable[..., object], *arguments: object) -> object:
    """A ``Post`` for who is on the loop already."""
    return function(*arguments)
