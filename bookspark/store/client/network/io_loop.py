"""The client's one I/O thread: an event loop for all connections of a process.

Law: submitted calls run in the order of their submission, each exactly once. An exception of a call neither stops others nor ends
the loop. After the end of the loop a call runs in the submitting thread: all connections are cut by then, so a request is
answered at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from bookspark.errors import BookKeeperError
from bookspark.support.threads import check_may_wait, mark_own_thread

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_CANCEL_SECONDS = 1.0
_SLOW_SECONDS = 5.0
_HELD_UP_SECONDS = 0.05
"""A timer that fires this late shows that the loop was held up. It is put off once, by the same time."""


class IoLoop:
    """A running event loop in a daemon thread. All code that touches a connection runs in it, by ``submit``."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        # With ``-X dev``, asyncio would log each large frame.
        self.loop.slow_callback_duration = _SLOW_SECONDS
        self._submitted: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._submitted_once: dict[Callable[[], Any], None] = {}
        self._woken = False
        """True if the loop will look at ``_submitted``. A wake takes a system call, so only the first caller makes it."""
        self._ends = False
        self._ended = False
        """True after the loop's end: submitting threads run ``_submitted`` then."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        mark_own_thread(self._thread.name)
        asyncio.set_event_loop(self.loop)
        while not self._ends:
            try:
                self.loop.run_forever()
            except BaseException:
                # asyncio lets a SystemExit or KeyboardInterrupt of a callback end the loop. Waiting callers would wait for ever.
                log.critical("the client's I/O loop was interrupted, and goes on", exc_info=True)
        if tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CANCEL_SECONDS))
        self.loop.close()
        self._ended = True
        self._run_submitted()

    @property
    def here(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run ``function`` in the loop, soon and in the order of the calls. From any thread. After the end of the loop it runs
        here and now."""
        self._submitted.append((function, arguments))
        self._wake()

    def submit_later(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> None:
        """``submit``, and run ``function`` after ``seconds``; at once after the end of the loop."""

        def later() -> None:
            if self._ended:
                function(*arguments)
            else:
                self.loop.call_later(seconds, function, *arguments)

        self.submit(later)

    def submit_once(self, function: Callable[[], Any]) -> None:
        """``submit``, unless ``function`` already waits for its turn. It runs after all functions submitted before."""
        self._submitted_once[function] = None
        if not self._woken or self._ended:
            self._wake()

    def _wake(self) -> None:
        if self._ended:
            self._run_submitted()
        elif not self._woken:
            # No call in between: an interrupt between the two would leave the loop asleep although it counts as woken.
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._run_submitted)
            except BaseException:
                # After an interrupt just here, the next caller wakes the loop. If the loop has just ended, it looks once more.
                self._woken = False
                if not self.loop.is_closed():
                    raise

    def _run_submitted(self) -> None:
        # Before the first look, so that later submissions wake the loop again.
        self._woken = False
        for _ in range(len(self._submitted)):
            try:
                function, arguments = self._submitted.popleft()
            except IndexError:
                # After the end of the loop, several threads may run this.
                break
            self._attempt(function, *arguments)
        for function in list(self._submitted_once):
            self._submitted_once.pop(function, None)
            self._attempt(function)

    @staticmethod
    def _attempt(function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except BaseException:
            log.exception("%r failed", function)

    def call(self, coroutine: Coroutine[Any, Any, Result], timeout_seconds: float = 10.0) -> Result:
        """Run a coroutine in the loop and return its result.

        Raises TimeoutError after ``timeout_seconds``, BookKeeperError if the loop has ended or this is the I/O thread, and the
        errors of the coroutine.
        """
        check_may_wait()
        try:
            called = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError as error:
            coroutine.close()
            raise BookKeeperError("this client was closed") from error
        return called.result(timeout_seconds)

    def stop(self) -> None:
        """End the thread, after all earlier submissions."""
        if self._thread.is_alive():
            self.submit(self._end)
            if not self.here:
                self._thread.join(timeout=10.0)

    def _end(self) -> None:
        self._ends = True
        self.loop.stop()


class DeadlineTimer:
    """Calls ``function`` after ``seconds``, in the running loop, to check for a late answer.

    A loop handles timers before sockets. If the process slept or had no CPU, answers may wait in the sockets. So a timer that
    fires late is put off once, and the loop reads those answers first.
    """

    __slots__ = ("_due_at", "_function", "_handle", "_loop")

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._function = function
        self._due_at = time.monotonic() + seconds
        self._handle = self._loop.call_later(seconds, self._due)

    def cancel(self) -> None:
        self._handle.cancel()

    def _due(self) -> None:
        if time.monotonic() < self._due_at + _HELD_UP_SECONDS:
            self._function()
        else:
            self._handle = self._loop.call_later(_HELD_UP_SECONDS, self._function)
