"""Completing appends by a watermark instead of a lock-laden future each.

Law: a ledger's appends are acknowledged in id order, so one number, the last confirmed id, completes all of them. A future looks
at that number and takes a lock only when somebody waits or wants to be called back. Who is called back must not wait: nothing
would be told any more, to anybody. (docs/decisions/profile.md: 1.0–1.2 M entries/s against
45–78 k/s with a ``concurrent.futures.Future`` each.)
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
    """The last confirmed entry id of a ledger, or the error that ended it. Advanced by one thread, watched by any of its
    process; ``advanced_here`` tells whether the calling thread is that one."""

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
        """Everything up to ``value`` is confirmed."""
        # Written before `_waiting` is looked at; a waiter counts itself before it looks at the value: one sees the other.
        self.value = value
        if self._waiting or self._callbacks:
            self._tell()

    def fail(self, error: BookKeeperError) -> None:
        """Nothing after ``value`` will be confirmed."""
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
        """Wait until ``condition()`` or an error; False if neither came in time."""
        self._check_process()
        self.check_may_wait()
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: self.error is not None or condition(), timeout_seconds)
            finally:
                self._waiting -= 1

    def wait_for(self, entry_id: int) -> None:
        """Wait until ``entry_id`` is confirmed or an error, however long that takes. The others are not woken for it."""
        self.check_may_wait()
        passed = threading.Lock()
        passed.acquire()
        self.call_when(entry_id, passed.release)
        passed.acquire()

    def call_when(self, entry_id: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when ``entry_id`` is confirmed or an error came: now, or from the client's I/O thread."""
        self._check_process()
        with self._changed:
            self._waiting += 1  # from here on `advance` takes the lock, and so finds what is pushed below
            try:
                if not self.error and entry_id > self.value:
                    heapq.heappush(self._callbacks, (entry_id, next(self._order), callback))
                    return
            finally:
                self._waiting -= 1
        callback()

    def check_may_wait(self) -> None:
        """Raises BookKeeperError in the thread that would be waited for."""
        if self._advanced_here():
            raise BookKeeperError(
                "a callback of an append runs in the client's I/O thread, and must not wait for it; use append_async, or have "
                "another thread wait"
            )

    def _check_process(self) -> None:
        """Raises LedgerClosedError in a forked process, where nothing is told any more, and the lock may be held for ever."""
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
        """The id the entry has if it is confirmed."""

    def done(self) -> bool:
        """True once the entry is confirmed or the ledger failed before it was."""
        return self.entry_id <= self._watermark.value or self._watermark.error is not None

    def result(self, timeout: float | None = None) -> int:
        """The entry id once it is confirmed. Raises the ledger's error, or TimeoutError after ``timeout`` seconds.

        Without ``timeout`` it waits as long as the client's own add timeout lets the append wait.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)  # else it would collect the frames of all who ever asked
        return self.entry_id

    def exception(self, timeout: float | None = None) -> BookKeeperError | None:
        """The error that the append failed with, None if it is confirmed. Raises TimeoutError after ``timeout`` seconds."""
        watermark, entry_id = self._watermark, self.entry_id
        if not self.done():
            if timeout is None:
                watermark.wait_for(entry_id)
            elif not watermark.wait(lambda: entry_id <= watermark.value, timeout):
                raise TimeoutError(f"entry {entry_id} is not acknowledged after {timeout} s")
        return None if entry_id <= watermark.value else watermark.error

    def add_done_callback(self, callback: Callable[[AppendFuture], object]) -> None:
        """Call ``callback(self)`` when done; it must not block, as it runs in the client's I/O thread, where an append or a
        close that waits raises BookKeeperError."""
        self._watermark.call_when(self.entry_id, lambda: (callback(self), None)[1])


class SyncFuture(AppendFuture):
    """The outcome of one sync; its result is the last entry id that is synced by then."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> int:
        super().result(timeout)
        return self._watermark.value
