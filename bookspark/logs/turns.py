"""Whose turn it is at a producer: one thread at a time, and an interrupt leaves the turn to nobody.

Law: CPython lets signals in behind calls, at starts of functions and at jumps back. So each call that takes the lock is in a
``try`` that lets go of it, and no such point lies between that ``try`` and the next one, which ends with the call that lets go.
Whoever has the turn may be interrupted by a signal handler that wants it too: it is told so, or served within the turn.

``with lock`` would be as safe, but waits without a deadline.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerClosedError

Found = TypeVar("Found")


class Turns:
    """The turns of one producer, ``name``; a wait takes ``seconds_max`` at most."""

    def __init__(self, name: str, seconds_max: float) -> None:
        self._name, self._seconds_max, self._pid = name, seconds_max, os.getpid()
        self.lock = cast(Any, threading.RLock())
        """Whoever has it has the turn. Taken and let go of directly where rows are appended, to save calls."""
        self.is_mine: Callable[[], bool] = self.lock._is_owned
        """Has this thread the turn?"""

    def wait(self) -> None:
        """Take the turn. Raises AddTimeoutError, and LedgerClosedError in a forked process."""
        self.check_process()
        if not self.lock.acquire(timeout=self._seconds_max):
            raise AddTimeoutError(
                f"producer {self._name!r}: another append has waited for {self._seconds_max:g} s; look at the bookies "
                "(bookspark why)"
            )

    def let_go(self) -> None:
        """Let go of the turn if this thread has it: an error, or an interrupt, came before it was used."""
        if self.is_mine():
            self.lock.release()

    def within(self, call: Callable[[], Found]) -> Found:
        """Call it within a turn; within this thread's own, if it is a signal handler's. Raises what ``wait`` does."""
        if self.is_mine():
            return call()
        try:
            self.wait()
        except BaseException:
            self.let_go()
            raise
        try:
            return call()
        finally:
            self.lock.release()

    def interrupted(self) -> BookKeeperError:
        """The error of an append that finds another one under way in its own thread."""
        return BookKeeperError(
            f"producer {self._name!r}: this append interrupted another one, in a signal handler for example; append in "
            "another thread"
        )

    def check_process(self) -> None:
        """Raise LedgerClosedError in a forked process."""
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"producer {self._name!r} is of process {self._pid}: make another one in this process"
            )
