"""The background sync of a directory: for entries that are acknowledged before they are synced.

Law: a sync covers the writes before its request, and no later ones. The synced note is written after it, as after every sync. No
write waits for it. A sync that fails retires the directory, as one of the commit thread's own does: each thread has a file
descriptor of its own, so the kernel tells both of a failed write-back.

Syncs that pile up are made as one. The thread is started by the first sync, so a bookie that needs none has none.

Source: BP-14, "Changes to Bookies"; BookKeeper's ``ForceWriteThread``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from bookspark.bookie.commit.commit_items import Item
from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.disk.file_system import FileSystem


class Sync(NamedTuple):
    """Sync ``log`` up to position ``end``. ``items`` wait for that, and ``byte_count`` bytes that were acknowledged before."""

    log: EntryLog
    end: int
    byte_count: int
    items: Sequence[Item]


Synced = Callable[[Sequence[Item], int, OSError | None], None]
"""``synced(items, byte_count, failure)``, in the thread of the sync."""


class BackgroundSync:
    """The second thread of a directory."""

    def __init__(self, file_system: FileSystem, directory: str) -> None:
        self._file_system = file_system
        self._directory = directory
        self._queue: SimpleQueue[Sync | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, sync: Sync, synced: Synced, *, apart: bool) -> None:
        """Make a sync, then call ``synced``. ``apart``: True leaves both to the second thread. False does both here, before this
        returns."""
        self._queue.put(sync)
        if not apart:
            self.sync_queued(synced)
        elif self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(synced,), name=f"sync {self._directory}", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def sync_queued(self, synced: Synced) -> bool:
        """Wait for a sync, and make it one with all that are queued behind it. False after ``stop``."""
        queued = [self._queue.get()]
        queued += [self._queue.get() for _ in range(self._queue.qsize())]
        syncs = [sync for sync in queued if sync is not None]
        failure: OSError | None = None
        try:
            # The last sync of a log covers the earlier ones.
            for sync in reversed(syncs):
                self._sync(sync.log, sync.end)
        except OSError as error:
            failure = error
        if syncs:
            synced([item for sync in syncs for item in sync.items], sum(sync.byte_count for sync in syncs), failure)
        return None not in queued

    def _run(self, synced: Synced) -> None:
        while self.sync_queued(synced):
            pass

    def _sync(self, entry_log: EntryLog, end: int) -> None:
        if entry_log.synced < end:
            file = self._file_system.open(entry_log.path)
            try:
                entry_log.sync(end, file)
            finally:
                file.close()
