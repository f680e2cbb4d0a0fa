"""The futures of appends: one watermark completes all futures of a ledger, without a lock for each.

Law: a ledger's appends are acknowledged in id order, so one number, the last acknowledged id, completes all of them. A future
compares its id with that number, and registers only for a wait or a callback. No lock is held during a wait. A user's callback
may wait: it runs in the client's thread for callbacks. docs/decisions/completing-appends.md has the measurement.

An append's future is a ``concurrent.futures.Future`` without that class's fields, which cost more than the append. The three
fields for ``concurrent.futures.wait`` and ``as_completed`` are made at their first use, and kept up to date from then on.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import operator
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from bookspark.errors import BookKeeperError, LedgerClosedError
from bookspark.store.client.runtime.calls import AwaitableFuture
from bookspark.support.arguments import WaitSeconds, checks_itself, judged, refusal, taken_by
from bookspark.support.threads import Waiters

_WAIT = taken_by(WaitSeconds)

log = logging.getLogger(__name__)

_RUNNING, _FINISHED = "RUNNING", "FINISHED"
_watching = threading.RLock()


class Watermark:
    """The entry id up to which all entries of a ledger are acknowledged (or confirmed), or the error that ended the ledger.

    One thread at a time advances it, and any thread of the process watches it. ``check_may_wait`` raises BookKeeperError in a
    thread that it would keep from being advanced. ``deliver`` has a user's callback called."""

    __slots__ = ("_callbacks", "_new", "_order", "_pid", "_waiters", "check_may_wait", "deliver", "error", "value")

    def __init__(
        self,
        check_may_wait: Callable[[], None] = lambda: None,
        deliver: Callable[[Callable[[], object]], object] = operator.call,
    ) -> None:
        self.check_may_wait = check_may_wait
        self.deliver = deliver
        self.value = -1
        self.error: BookKeeperError | None = None
        self._waiters = Waiters()
        self._new: list[tuple[int, int, list[Callable[[], object]]]] = []
        """New callbacks that are not in ``_callbacks`` yet, unordered: (entry id, number, [callback]). The thread that takes the
        callback out of its list calls it. (Not a deque: an empty one takes 700 bytes, and each ledger has this.)"""
        self._callbacks: list[tuple[int, int, list[Callable[[], object]]]] = []
        """All other callbacks, as a heap. Only the thread that advances the watermark uses it."""
        self._order = itertools.count()
        self._pid = os.getpid()

    def advance(self, value: int) -> None:
        """Everything up to ``value`` is acknowledged (or confirmed) now."""
        # The value is written before the lists are read; a waiter registers before it reads the value. So one sees the other.
        self.value = value
        if self._new or self._callbacks or self._waiters:
            self._tell()

    def fail(self, error: BookKeeperError) -> None:
        """Nothing after ``value`` will be acknowledged (or confirmed)."""
        self.error = self.error or error
        self._tell()

    def wake(self) -> None:
        """Let waiters check their conditions again. From any thread."""
        self._waiters.wake()

    def _tell(self) -> None:
        self._waiters.wake()
        while self._new:
            heapq.heappush(self._callbacks, self._new.pop())
        while self._callbacks and (self.error or self._callbacks[0][0] <= self.value):
            callback = heapq.heappop(self._callbacks)[2]
            try:
                callback.pop()()
            except IndexError:
                # The registering thread has called it already.
                pass
            except BaseException:
                log.exception("telling the outcome of an append failed")

    def wait(self, condition: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Wait until ``condition()`` holds or an error came; False if neither came in ``timeout_seconds`` (None: no limit).
        Raises BookKeeperError where ``check_may_wait`` does, and LedgerClosedError in a forked process."""
        self.check_process()
        self.check_may_wait()
        return self._waiters.wait(lambda: self.error is not None or condition(), timeout_seconds)

    def wait_for(self, entry_id: int) -> None:
        """Wait until the watermark has reached ``entry_id`` or an error came, however long that takes. Other waiters sleep on.
        Raises BookKeeperError where ``check_may_wait`` does, and LedgerClosedError in a forked process."""
        self.check_may_wait()
        passed = threading.Lock()
        passed.acquire()
        self.call_when(entry_id, passed.release)
        passed.acquire()

    def call_when(self, entry_id: int, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, when the watermark has reached ``entry_id`` or an error came: now, or in the thread that
        advances it. Raises LedgerClosedError in a forked process."""
        self.check_process()
        waiting = [callback]
        if not self.is_done(entry_id):
            self._new.append((entry_id, next(self._order), waiting))
        if self.is_done(entry_id):
            try:
                callback = waiting.pop()
            except IndexError:
                return
            callback()

    def is_done(self, entry_id: int) -> bool:
        """Has the watermark reached ``entry_id``, or did an error come?"""
        return entry_id <= self.value or self.error is not None

    def check_process(self) -> None:
        """Raises LedgerClosedError in a forked process: nothing advances the watermark there."""
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"only process {self._pid}, which made this append or sync, gets its outcome; wait for it there"
            )


class AppendFuture(AwaitableFuture[int]):
    """The outcome of one append: a ``concurrent.futures.Future`` that can't be cancelled, and that a coroutine may ``await``."""

    __slots__ = ("_watermark", "entry_id")

    def __init__(self, watermark: Watermark, entry_id: int) -> None:
        # Not ``super().__init__()``: it makes a lock, a condition and two lists for each append.
        self._watermark = watermark
        self.entry_id = entry_id
        """The id that the entry has if it is acknowledged."""

    def done(self) -> bool:
        """True once the entry is acknowledged, or the ledger failed before it was."""
        return self._watermark.is_done(self.entry_id)

    def running(self) -> bool:
        """True until it is done."""
        return not self.done()

    def cancel(self) -> bool:
        """False: an append can't be taken back."""
        return False

    def cancelled(self) -> bool:
        """False: an append can't be taken back."""
        return False

    @checks_itself
    def result(self, timeout: WaitSeconds | None = None) -> int:
        """The entry id, once the entry is acknowledged.

        Raises TimeoutError after ``timeout`` seconds; without it, AddTimeoutError when the append got no acknowledgement within
        the client's ``add_timeout_seconds``. Raises the error that ended the ledger: LedgerFencedError, UnauthorizedAccessError,
        NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError, or LedgerClosedError if the client was closed. Raises
        BookKeeperError in a thread of the client's own, where only finalizers run, and LedgerClosedError in a forked process.
        """
        error = self.exception(timeout)
        if error is not None:
            # Every caller gets this one error object: without a reset, its traceback would collect the frames of all.
            raise error.with_traceback(None)
        return self.entry_id

    @checks_itself
    def exception(self, timeout: WaitSeconds | None = None) -> BookKeeperError | None:
        """The error that the append failed with; None if it is acknowledged. Raises TimeoutError after ``timeout`` seconds,
        BookKeeperError in a thread of the client's own, and LedgerClosedError in a forked process."""
        if timeout is not None:
            timeout = judged("exception:", "timeout", _WAIT, timeout)
        watermark, entry_id = self._watermark, self.entry_id
        if not self.done():
            if timeout is None:
                watermark.wait_for(entry_id)
            elif not watermark.wait(lambda: entry_id <= watermark.value, timeout):
                raise TimeoutError(f"entry {entry_id} is not acknowledged after {timeout} s")
        return None if entry_id <= watermark.value else watermark.error

    @checks_itself
    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` when done, in the client's thread for callbacks, also if it is done already.

        The callback may call everything. While it waits, the client's other callbacks do, too, and nothing else does.
        Exceptions are logged. Raises LedgerClosedError in a forked process."""
        if not callable(callback):
            raise refusal("add_done_callback", "callback", callback, "a function")
        self._watermark.call_when(self.entry_id, partial(self._watermark.deliver, partial(callback, self)))

    def tell_at_once(self, callback: Callable[[AppendFuture], object]) -> None:
        """Call ``callback(self)`` when done: now, or in the I/O thread as soon as the answer is there. It must not wait.

        Not part of the public API: for measurements, and histories of what happened when."""
        self._watermark.call_when(self.entry_id, partial(callback, self))

    def __repr__(self) -> str:
        if not self.done():
            told = "is not acknowledged yet"
        else:
            told = "is acknowledged" if self.entry_id <= self._watermark.value else f"failed: {self._watermark.error}"
        return f"<{type(self).__name__}: entry {self.entry_id} {told}>"

    # -- the fields of ``Future`` at which ``concurrent.futures.wait`` and ``as_completed`` look

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._watched().condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        """State for watchers; changes only while ``_condition`` is held."""
        return self._watched().state

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._watched().waiters

    def _watched(self) -> _Watched:
        # Not ``__getattr__``: a class that has it is slow in all its attributes.
        fields = self.__dict__
        with _watching:
            found: _Watched | None = fields.get("watched")
            if found is not None:
                return found
            if not self.done():
                self._watermark.check_process()
            made = fields["watched"] = _Watched()
        told = partial(self._tell_watchers, made)
        if self.done():
            told()
        else:
            # Not in the I/O thread, which must not wait for a watcher that holds the condition.
            self._watermark.call_when(self.entry_id, partial(self._watermark.deliver, told))
        return made

    def _tell_watchers(self, watched: _Watched) -> None:
        with watched.condition:
            watched.state = _FINISHED
            for watcher in watched.waiters:
                if self.exception() is None:
                    watcher.add_result(self)
                else:
                    watcher.add_exception(self)


class _Watched:
    """The fields of ``concurrent.futures.Future`` for the watchers of one future."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.state = _RUNNING
        self.waiters: list[Any] = []


class SyncFuture(AppendFuture):
    """The outcome of one sync. Its result is the last entry id that is synced by then."""

    __slots__ = ()

    @checks_itself
    def result(self, timeout: WaitSeconds | None = None) -> int:
        super().result(timeout)
        return self._watermark.value
