"""Waiting for other threads and processes: the only module of the tests that sleeps.

Law: a wait ends as soon as its condition holds, and fails with the name of the awaited state. A deadline only ends a test
that would hang, so it is far above the time that a loaded machine needs; no test measures speed by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS_MAX = 300.0
PATIENT = dict.fromkeys(("answer_timeout_seconds", "connect_timeout_seconds", "metadata_timeout_seconds"), 60.0)
"""Options of a client in tests that are about no deadline: a machine that is busy for some seconds makes a bookie silent."""
_LOOK_SECONDS = 0.01
_LOOK_SECONDS_MAX = 0.05


def await_that(
    condition: Callable[[], Found],
    seconds: float = SECONDS_MAX,
    what: str | Callable[[], object] = "",
    despite: type[Exception] | tuple[()] = (),
) -> Found:
    """Poll ``condition`` and return its value once it is true. Fails after ``seconds``; ``what`` names the awaited state.
    An error of the kind ``despite`` counts as "not yet", as from a server that is starting."""
    deadline, pause = time.monotonic() + seconds, _LOOK_SECONDS
    while True:
        failed: Exception | None = None
        try:
            if found := condition():
                return found
        except despite as error:
            failed = error
        if time.monotonic() > deadline:
            told = what() if callable(what) else what or condition
            raise AssertionError(f"not within {seconds:g} s: {told}") from failed
        time.sleep(pause)
        pause = min(2 * pause, _LOOK_SECONDS_MAX)


class Changes:
    """A callback that counts its calls and waits for them: a condition is checked only after a call."""

    def __init__(self) -> None:
        self.count = 0
        self._told = threading.Condition()

    def __call__(self, *_: object) -> None:
        with self._told:
            self.count += 1
            self._told.notify_all()

    def wait(self, count: int = 1, seconds: float = SECONDS_MAX) -> None:
        """Wait until this object has been called ``count`` times since its creation."""
        with self._told:
            assert self._told.wait_for(lambda: self.count >= count, seconds), f"{self.count} calls, not {count}"

    def await_that(self, condition: Callable[[], Found], seconds: float = SECONDS_MAX) -> Found:
        """Like the function, but check ``condition`` only once at first and then after each call."""
        deadline, seen = time.monotonic() + seconds, -1
        while not (found := condition()):
            with self._told:
                told = self._told.wait_for(lambda: self.count != seen, deadline - time.monotonic())  # noqa: B023
                assert told, f"not within {seconds:g} s, and {self.count} calls"
                seen = self.count
        return found


def stays(condition: Callable[[], object], seconds: float) -> None:
    """Poll ``condition`` for ``seconds``, and fail if it is ever false. For tests that nothing happens, since a non-event
    can't be awaited."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), "it did not stay so"
        time.sleep(_LOOK_SECONDS)


def time_passes(seconds: float) -> None:
    """Sleep, in tests about time itself: a fault at a random moment, a task that hangs, a timer that is due."""
    time.sleep(seconds)
