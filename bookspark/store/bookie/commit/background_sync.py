"""The background sync of a directory: for entries that are acknowledged before they are synced.

Law: a sync covers the writes before its request, and no later ones. The synced note is written after it, as after every sync. No
write waits for it. A sync that fails retires the directory, as one of the commit thread's own does: each thread has a file
descriptor of its own, open since before the first write, so the kernel tells both of a failed write-back. Whatever else goes
wrong is told like a failed sync.

Syncs that pile up are made as one. The thread is started by the first sync, so a bookie that needs none has none. If it can't be
started, the commit thread makes the sync.

Source: BP-14, "Changes to Bookies"; BookKeeper's ``ForceWriteThread``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic
from typing import NamedTuple

from bookspark.store.bookie.commit.commit_items import Item
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.support.metrics.histogram import Histogram


class Sync(NamedTuple):
    """Sync ``log`` up to position ``end``. ``items`` wait for that, and ``byte_count`` bytes that were acknowledged before."""

    log: EntryLog
    end: int
    byte_count: int
    items: Sequence[Item]


Synced = Callable[[Sequence[Item], int, Exception | None], None]
"""``synced(items, byte_count, failure)``, in the thread of the sync."""


log = logging.getLogger(__name__)


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
