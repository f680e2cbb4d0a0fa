"""The client's one I/O thread: an event loop in which all connections of a process live.

Law: what is submitted runs in the order of the calls, each exactly once, until the loop stops; an exception in one call does not
keep the next from running.
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

log = logging.getLogger(__name__)

Result = TypeVar("Result")
_HELD_UP_SECONDS = 0.05
"""A timer that fires this late shows that the loop was held up. It is put off once, by the same time."""


class IoLoop:
    """A running event loop in a daemon thread. Everything that touches a connection runs in it, by ``submit``."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._submitted: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._woken = False
        """True if the loop is going to look at ``_submitted``. Waking it takes a system call, so only the first caller does."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    @property
    def here(self) -> bool:
        """Whether the calling thread is the I/O thread."""
        return threading.get_ident() == self._thread.ident

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run ``function`` in the loop, soon and in the order of the calls. May be called from any thread.

        Does nothing once the loop has stopped.
        """
        self._submitted.append((function, arguments))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._run_submitted)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def _run_submitted(self) -> None:
        # Before the first look, so that what is submitted from now on wakes the loop again.
        self._woken = False
        for _ in range(len(self._submitted)):
            function, arguments = self._submitted.popleft()
            try:
                function(*arguments)
            except Exception:
                log.exception("%r failed", function)

    def call(self, coroutine: Coroutine[Any, Any, Result], timeout_seconds: float = 10.0) -> Result:
        """Run a coroutine in the loop and return what it returns. Must not be called in the I/O thread.

        Raises TimeoutError after ``timeout_seconds``, and what the coroutine raises.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_seconds)

    def stop(self) -> None:
        """End the thread, after what was submitted before."""
        if self._thread.is_alive():
            self.submit(self.loop.stop)
            self._thread.join(timeout=10.0)


class DeadlineTimer:
    """Calls ``function`` after ``seconds``, in the running loop, to see whether an answer is late.

    A loop looks at its timers before its sockets. If the process slept or had no CPU, answers may be waiting in the sockets. So
    a timer that fires late is put off once, and the loop reads those answers first.
    """

    __slots__ = ("_due_at", "_function", "_handle", "_loop")

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._function = function
        self._due_at = time.monotonic() + seconds
        self._handle = self._loop.call_later(seconds, self._due)

    def cancel(self) -> None:
        """Do not call ``function`` any more."""
        self._handle.cancel()

    def _due(self) -> None:
        if time.monotonic() < self._due_at + _HELD_UP_SECONDS:
            self._function()
        else:
            self._handle = self._loop.call_later(_HELD_UP_SECONDS, self._function)
