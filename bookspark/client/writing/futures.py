"""The futures of appends: one watermark completes all futures of a ledger, without a lock for each.

Law: a ledger's appends are acknowledged in id order, so one number, the last acknowledged id, completes all of them. A future
looks at that number. It takes a lock only when somebody waits or wants to be called back. A callback must not wait: it runs in
the thread that tells everybody. docs/decisions/completing-appends.md has the measurement.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
from collections.abc import Callable

from bookspark.errors import BookKeeperError, LedgerClosedError

log = logging.getLogger(__name__)


class Watermark:
    """The entry id up to which all entries of a ledger are acknowledged (or confirmed), or the error that ended the ledger. One
    thread advances it, and any thread of the process watches it. ``advanced_here`` tells whether the calling thread is the one
    that advances it."""

    def __init__(self, advanced_here: Callable[[], bool] = lambda: False) -> None:
        self._advanced_here = advanced_here
        self.value = -1
        self.error: BookKeeperError | None = None
        self._changed = threading.Condition()
        self._waiting = 0
        self._callbacks: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._pid = os.getpid()

    def advance(self, value: int) -> None:
        """Everything up to ``value`` is acknowledged (or confirmed) now."""
        # The value is written before `_waiting` is read. A waiter counts itself before it reads the value. So one of the two sees
        # the other.
        self.value = value
        if self._waiting or self._callbacks:
            self._tell()

    def fail(self, error: BookKeeperError) -> None:
        """Nothing after ``value`` will be acknowledged (or confirmed)."""
        self.error = self.error or error
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            if self._waiting:
                self._changed.notify_all()
            due = []
            while self._callbacks and (self.error or self._callbacks[0][0] <= self.value):
                due.append(heapq.heappop(self._callbacks)[2])
        for callback in due:
            try:
                callback()
            except Exception:
                log.exception("a callback of an append raised")

    def wait(self, condition: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Wait until ``condition()`` holds or an error came; False if neither came in ``timeout_seconds`` (None: no limit).
        Raises BookKeeperError in the thread that advances it, and LedgerClosedError in a forked process."""
        self._check_process()
        self.check_may_wait()
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self.error is not None or condition(), timeout_seconds)
            finally:
                self._waiting -= 1

    def wait_for(self, entry_id: int) -> None:
        """Wait until the watermark has reached ``entry_id`` or an error came, however long that takes. Other waiters sleep on.
        Raises BookKeeperError in the thread that advances it, and LedgerClosedError in a forked process."""
        self.check_may_wait()
        passed = threading.Lock()
        passed.acquire()
        self.call_when(entry_id, passed.release)
        passed.acquire()

    def call_when(self, entry_id: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when the watermark has reached ``entry_id`` or an error came: now, or from the client's I/O
        thread. Raises LedgerClosedError in a forked process."""
        self._check_process()
        with self._changed:
            # From here on `advance` takes the lock, so it finds the waiter that is pushed below.
            self._waiting += 1
            try:
                if not self.error and entry_id > self.value:
                    heapq.heappush(self._callbacks, (entry_id, next(self._order), callback))
                    return
            finally:
                self._waiting -= 1
        callback()

    def check_may_wait(self) -> None:
        """Raises BookKeeperError in the thread that advances the watermark: it would wait for itself."""
        if self._advanced_here():
            raise BookKeeperError(
                "a callback of an append runs in the client's I/O thread, and must not wait for it; use append_async, or have "
                "another thread wait"
            )

    def _check_process(self) -> None:
        """Raises LedgerClosedError in a forked process: nothing advances the watermark there, and its lock may be held for
        ever."""
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"the outcome of this append or sync is told in process {self._pid}, which made it; wait for it there"
            )


class AppendFuture:
    """The outcome of one append: the methods of ``concurrent.futures.Future`` that make sense for it. It can't be cancelled."""

    __slots__ = ("_watermark", "entry_id")

    def __init__(self, watermark: Watermark, entry_id: int) -> None:
        self._watermark = watermark
        self.entry_id = entry_id
        """The id that the entry has if it is acknowledged."""

    def done(self) -> bool:
        """True once the entry is acknowledged, or the ledger failed before it was."""
        return self.entry_id <= self._watermark.value or self._watermark.error is not None

    def result(self, timeout: float | None = None) -> int:
        """The entry id, once the entry is acknowledged.

        Raises TimeoutError after ``timeout`` seconds; without it, AddTimeoutError when the append got no acknowledgement within
        the client's ``add_timeout_seconds``. Raises the error that ended the ledger: LedgerFencedError, UnauthorizedAccessError,
        NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError, or LedgerClosedError if the client was closed. Raises
        BookKeeperError in a callback of an append, and LedgerClosedError in a forked process.
        """
        error = self.exception(timeout)
        if error is not None:
            # The one error is raised to every caller: with its traceback it would collect all of their frames.
            raise error.with_traceback(None)
        return self.entry_id

    def exception(self, timeout: float | None = None) -> BookKeeperError | None:
        """The error that the append failed with; None if it is acknowledged. Raises TimeoutError after ``timeout`` seconds,
        BookKeeperError in a callback of an append, and LedgerClosedError in a forked process."""
        watermark, entry_id = self._watermark, self.entry_id
        if not self.done():
            if timeout is None:
                watermark.wait_for(entry_id)
            elif not watermark.wait(lambda: entry_id <= watermark.value, timeout):
                raise TimeoutError(f"entry {entry_id} is not acknowledged after {timeout} s")
        return None if entry_id <= watermark.value else watermark.error

    def add_done_callback(self, callback: Callable[[AppendFuture], object]) -> None:
        """Call ``callback(self)`` when done. It runs in the client's I/O thread and must not block: an append or a close that
        waits raises BookKeeperError there. Raises LedgerClosedError in a forked process."""
        self._watermark.call_when(self.entry_id, lambda: (callback(self), None)[1])


class SyncFuture(AppendFuture):
    """The outcome of one sync. Its result is the last entry id that is synced by then."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> int:
        super().result(timeout)
        return self._watermark.value
