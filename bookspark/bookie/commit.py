"""The commit thread of one directory: everything that is written there, in groups.

Law: what is queued is written in its order, control records before entries; a group is reported done only after one sync of the
control log (if it has control records), one write and one sync of the entry log, and the note of the synced position. A write or
sync that fails retires the directory for good: the group and all that follows it is reported failed, and nothing is tried
again, because after a failed fdatasync nobody knows what the disk holds.

The queue is filled by the bookie's loop, and the loop is told of each group once. All that came while a group was being written
is the next group, so there is no timer: one add alone waits for one sync, a thousand share one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from bookspark.bookie.completions import Done
from bookspark.bookie.control_log import ControlLog
from bookspark.bookie.entry_log import EntryLog
from bookspark.wire.entry_batch import Buffer


class EntryWrite(NamedTuple):
    """A batch frame to be written at ``position`` of ``log``. Consecutive ones of a log follow each other."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done


class ControlWrite(NamedTuple):
    """Encoded control records to be appended, or (``rewrite``) to stand in place of all that were queued before."""

    content: bytes
    done: Done
    rewrite: bool = False


class Barrier(NamedTuple):
    """Nothing to write: done when all that was queued before it is."""

    done: Done


class NoteSync(NamedTuple):
    """The notes of the synced positions are to be made durable themselves."""

    done: Done


class Stop(NamedTuple):
    """The last item: seal the log and end the thread."""

    done: Done


Item = EntryWrite | ControlWrite | Barrier | NoteSync | Stop
Completed = Callable[["CommitThread", Sequence[Item], OSError | None], None]
Post = Callable[..., object]
"""``post(function, *arguments)``: have it called on the loop (``loop.call_soon_threadsafe``)."""

log = logging.getLogger(__name__)


class CommitThread:
    """Writes and syncs one directory. ``submit`` from the loop; ``completed`` is posted to the loop, once a group."""

    def __init__(self, directory: str, control: ControlLog, log_bytes: int) -> None:
        self.directory = directory
        self.control = control
        self._log_bytes = log_bytes
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self.submit = self._queue.put
        """Queue an item; its ``done`` will be called, whatever happens."""
        self._failure: OSError | None = None
        self._log: EntryLog | None = None
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

    def _run(self, post: Post, completed: Completed) -> None:
        queue = self._queue
        while True:
            items = [queue.get()]
            items += [queue.get() for _ in range(queue.qsize())]
            if self._failure is None:
                try:
                    self._commit(items)
                except OSError as error:
                    self._failure = error
                    log.error(
                        "%s failed and is retired until the bookie is started again: %s; check the disk",
                        self.directory,
                        error,
                    )
            try:
                post(completed, self, items, self._failure)
            except RuntimeError:
                log.debug("%s: the loop is closed, nobody waits for this group", self.directory)
            if isinstance(items[-1], Stop):
                return

    def _commit(self, items: Sequence[Item]) -> None:
        entries: list[EntryWrite] = []
        controls: list[ControlWrite] = []
        sync_notes = stop = False
        for item in items:
            kind = type(item)
            if kind is EntryWrite:
                entries.append(item)  # type: ignore[arg-type]
            elif kind is ControlWrite:
                controls.append(item)  # type: ignore[arg-type]
            elif kind is NoteSync:
                sync_notes = True
            elif kind is Stop:
                stop = True
        if controls:
            self._commit_controls(controls)
        if entries:
            self._commit_entries(entries)
        if sync_notes or stop:
            self.control.sync_note()
            if self._log is not None:
                self._log.sync_note()
        if stop and self._log is not None:
            self._log.seal()
            self._log = None

    def _commit_controls(self, controls: Sequence[ControlWrite]) -> None:
        start = 0
        for i, item in enumerate(controls):
            if item.rewrite:
                self.control.rewrite(item.content)
                start = i + 1
        if start < len(controls):
            self.control.append(b"".join(item.content for item in controls[start:]))

    def _commit_entries(self, entries: Sequence[EntryWrite]) -> None:
        for entry_log, run in _runs(entries):
            if entry_log is not self._log:
                if self._log is not None:
                    self._log.seal()
                entry_log.create(self._log_bytes)
                self._log = entry_log
            end = entry_log.write([item.frame for item in run], run[0].position)
            entry_log.sync(end)


def _runs(entries: Sequence[EntryWrite]) -> Iterable[tuple[EntryLog, Sequence[EntryWrite]]]:
    """The entries log by log; nearly always all are of one."""
    start = 0
    while start < len(entries):
        entry_log = entries[start].log
        end = len(entries)
        if entries[-1].log is not entry_log:
            end = next(i for i in range(start, end) if entries[i].log is not entry_log)
        yield entry_log, entries[start:end] if start or end < len(entries) else entries
        start = end
