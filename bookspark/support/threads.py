"""The client's own threads, and waits that an interrupt or a finalizer may break into.

Law: no exception ends such a thread. The threads are daemons and outlast the main thread, so that ``atexit`` functions and
other threads can still use a client then. (Those of ``concurrent.futures`` end with the main thread.)

A finalizer (``__del__``) runs in any thread, also in one of these, and must not wait there for work of that very thread: such
a call is refused at once (``check_may_wait``).

Python runs a signal handler in the main thread, in the middle of any step. If the main thread held a lock there, a waiting
handler would wait for ever. So no thread waits with a lock held: a waiter leaves a lock of its own, and a thread that changes
something releases it (``Waiters``). Unlike a condition's notification, a release before the wait is not lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from bookspark.errors import BookKeeperError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_JOIN_SECONDS = 5.0


class _OwnThread(threading.local):
    """The calling thread's role, if it is a thread of the client's own."""

    what = ""
    asks_store = False


_here = _OwnThread()


def mark_own_thread(what: str, *, asks_store: bool = False) -> None:
    """From now on, code in the calling thread must not wait for the client; ``asks_store``: but it may wait for the metadata
    store. ``what``: the thread's name, for errors."""
    _here.what, _here.asks_store = what, asks_store


def check_may_wait() -> None:
    """Raises BookKeeperError in a thread of the client's own, which would wait for itself."""
    if _here.what:
        raise _refusal()


def check_may_ask_store() -> None:
    """Raises BookKeeperError in a thread that must not wait for the metadata store."""
    if _here.what and not _here.asks_store:
        raise _refusal()


def _refusal() -> BookKeeperError:
    return BookKeeperError(
        f"this runs in the client's own thread {_here.what!r}, as a finalizer (__del__) may, and must not wait for it; have "
        "another thread wait"
    )


class _Here:
    """This process: ``here.process`` is another object after a fork. To compare it costs no system call, so an append may."""

    __slots__ = ("process",)

    def __init__(self) -> None:
        self.process = object()


here = _Here()
os.register_at_fork(after_in_child=here.__init__)  # type: ignore[misc]


class Waiters:
    """Threads that wait for a condition. ``wake`` lets all of them check it again."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[Any, None] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def wait(self, condition: Callable[[], object], timeout_seconds: float | None = None) -> bool:
        """Wait until ``condition()`` is true; False if it is not after ``timeout_seconds`` (None: no limit)."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            woken = threading.Lock()
            woken.acquire()
            # The lock exists before the check, and a changing thread makes its change before it looks for locks.
            self._locks[woken] = None
            try:
                if condition():
                    return True
                left = -1.0 if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                if deadline is not None and left <= 0:
                    return False
                woken.acquire(timeout=left)
            finally:
                self._locks.pop(woken, None)

    def wake(self) -> None:
        """Report a change. May be called from any thread."""
        for woken in list(self._locks):
            if self._locks.pop(woken, self) is None:
                woken.release()


class Latch:
    """``threading.Event``, for threads that a signal handler may interrupt."""

    __slots__ = ("_listeners", "_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters = Waiters()
        self._listeners: dict[object, Callable[[], object]] = {}

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()
        for listener in list(self._listeners.values()):
            listener()

    @contextlib.contextmanager
    def calling(self, listener: Callable[[], object]) -> Iterator[None]:
        """Within it, call ``listener`` once the latch is set, or at once if it is; perhaps twice."""
        key = object()
        # Added before the check, as in ``Waiters``.
        self._listeners[key] = listener
        try:
            if self._set:
                listener()
            yield
        finally:
            del self._listeners[key]

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it is set; False if it is not after ``timeout_seconds``."""
        return self._set or self._waiters.wait(self.is_set, timeout_seconds)


class _Polls(threading.local):
    end: Latch | None = None


_polls = _Polls()


@contextlib.contextmanager
def polls_end_with(latch: Latch) -> Iterator[None]:
    """Within it, long polls of this thread at bookies end once ``latch`` is set, as at their deadlines."""
    before, _polls.end = _polls.end, latch
    try:
        yield
    finally:
        _polls.end = before


def end_of_polls() -> Latch:
    """The latch that ends long polls of this thread; outside of ``polls_end_with`` one that is never set."""
    return _polls.end or Latch()


class BackOff:
    """Growing pauses between attempts: ``first`` seconds, then twice the last, at most ``most``.

    ``drawn``: draws each pause between 0 and that, such as ``random.uniform``, so that many who begin at the same moment spread
    (full jitter)."""

    def __init__(self, first: float, most: float, drawn: Callable[[float, float], float] | None = None) -> None:
        self._first, self._most, self._next, self._drawn = first, most, first, drawn

    def next(self) -> float:
        """Seconds of the next pause."""
        pause, self._next = self._next, min(2 * self._next, self._most)
        return pause if self._drawn is None else self._drawn(0.0, pause)

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next = self._first


class Repeated:
    """A daemon thread that calls ``turn`` again and again, from ``start`` to ``stop``.

    ``turn`` returns the seconds until its next call (``wake`` shortens them), or None to end the thread. An exception does not
    end it: a BookKeeperError is a warning, any other exception a defect with its traceback, and ``turn`` is called again after a
    pause of ``retry``. ``end`` is called at the end of the thread."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        retry: BackOff,
        *,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        self._name, self._turn, self._retry, self._end = name, turn, retry, end
        self.stopping = threading.Event()
        """Set by ``stop``; for the waits of ``turn``."""
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def ended(self) -> bool:
        """Was the thread started, and has it ended?"""
        return self._thread.ident is not None and not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Call ``turn`` now. A call during ``turn`` has it called once more."""
        self._woken.set()

    def stop(self, seconds: float | None = None) -> bool:
        """Call ``turn`` no more. False if the thread has not ended within ``seconds`` (None: no limit; 0: don't wait)."""
        self.stopping.set()
        self._woken.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._woken.clear()
                pause = self._attempt()
                if pause is None:
                    return
                if pause > 0 and not self.stopping.is_set():
                    self._woken.wait(min(pause, threading.TIMEOUT_MAX))
        finally:
            self._end()

    def _attempt(self) -> float | None:
        try:
            pause = self._turn()
        except BookKeeperError as error:
            if not self.stopping.is_set():
                log.warning("%s goes on later: %s", self._name, error)
            return self._retry.next()
        except Exception:
            if not self.stopping.is_set():
                log.exception("%s failed, and is tried again", self._name)
            return self._retry.next()
        self._retry.reset()
        return pause


class Threads:
    """At most ``count`` threads that run posted functions, begun in the order of the calls.

    One is started at once, and one more when a call would wait for another. When the interpreter ends none can be started any
    more; then the calls wait.
    """

    def __init__(self, count: int, name: str, begin: Callable[[], None] = lambda: None) -> None:
        """``begin`` is called in each thread first."""
        self._queue: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._count, self._name, self._begin = count, name, begin
        self._stopped = False
        self._threads: list[threading.Thread] = []
        self._calls = 0
        """Calls posted and not ended; not counted for a single thread."""
        # A finalizer may post in the middle of a post of the same thread.
        self._lock = threading.RLock()
        if count:
            self._add_thread().start()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run ``function`` soon, and log its exception. After ``stop`` it runs in the caller's thread; before, this never
        blocks."""
        self._queue.put((function, arguments))
        if self._stopped:
            self._run_rest()
        elif self._count > 1:
            self._start_if_needed()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Run ``function`` soon; the future has its result or exception."""
        future: Future[Result] = Future()
        self.post(_settle, future, function, arguments)
        return future

    def stop(self, seconds: float = _JOIN_SECONDS) -> None:
        """End the threads after all posted functions; wait for that, at most ``seconds``."""
        self._stopped = True
        self._queue.put(None)
        deadline = time.monotonic() + seconds
        for thread in list(self._threads):
            # A thread that starts only now ends by itself.
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _add_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        return thread

    def _start_if_needed(self) -> None:
        with self._lock:
            self._calls += 1
            if len(self._threads) >= min(self._calls, self._count):
                return
            thread = self._add_thread()
        # Without the lock: the new thread may run a finalizer that posts.
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("the calls of %s wait for its other threads: %s", self._name, error)
            self._threads.remove(thread)

    def _run(self) -> None:
        self._begin()
        while (call := self._queue.get()) is not None:
            _attempt(*call)
            # Keep no reference to this call until the next one.
            del call
            if self._count > 1:
                with self._lock:
                    self._calls -= 1
        # The end for the next thread.
        self._queue.put(None)

    def _run_rest(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if (call := self._queue.get_nowait()) is not None:
                    _attempt(*call)
        self._queue.put(None)


def _attempt(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except BaseException:
        log.exception("%r failed", function)


def _settle(future: Future[Result], function: Callable[..., Result], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*arguments)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
