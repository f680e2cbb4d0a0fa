"""Handles that a Spark worker keeps between its tasks, closed by the worker itself once nobody has used them for a while.

Law: a handle is closed IDLE_SECONDS after its last use, and never while it is in use. So a ledger stays open over quick
micro-batches, and a slow trigger leaves none open: Spark ends a Python worker that idles for a minute, and then only a ledger
recovery could close what it had open. A closed handle can be used again; it then begins anew.

A Python interpreter that ends by itself closes what idles first; so does a worker whose task fails, because Spark ends it then.
What can't be closed is left to a later writer of the log, who recovers it: handles in use, and what an application used less than
IDLE_SECONDS before it stopped. Spark's daemon then sends its workers SIGHUP, and it resets their signal handlers before they wait
for the next task, so no handler of ours is ever called (tried on Spark 4.2).

The driver does not close these for its workers. What Spark tells it of a query's end arrives beside the stop of a session, or not
at all. The process that commits knows the ledgers, but it is a worker too, and ends in the same way. To close a ledger of another
process is a ledger recovery, which fences: tasks of a query that was stopped may still run then, and a stop must not wait for
bookies that are away. The log's next run does the same recovery, after it has claimed the log. Until then readers lack nothing.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger(__name__)

IDLE_SECONDS = 30.0
"""A handle that was not used for this time is closed."""
END_SECONDS_MAX = 5.0
"""How long a process that ends closes handles."""


class Closable(Protocol):
    """What is closed: a data ledger, or a committer with its commit ledger."""

    def close(self) -> None:
        """Close it, in any thread. What fails is logged, not raised."""


class IdleCloser:
    """Closes handles ``seconds`` after their last use, in a thread of its own that lives while there are any."""

    def __init__(self, seconds: float = IDLE_SECONDS) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._idle: dict[int, tuple[Closable, float]] = {}
        """The handles that nobody uses, with the time when each is due, the first one first."""
        self._closing: set[int] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def in_use(self, handle: Closable) -> Iterator[None]:
        """The handle is not closed in the block. Waits if it is being closed just now."""
        with self._changed:
            self._idle.pop(id(handle), None)
            self._changed.wait_for(lambda: id(handle) not in self._closing)
        try:
            yield
        finally:
            with self._changed:
                self._idle[id(handle)] = handle, time.monotonic() + self._seconds
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="close idle ledgers", daemon=True)
                    self._thread.start()

    def close_all(self) -> None:
        """Close all that nobody uses."""
        while self._close_first(float("inf")):
            pass

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._idle:
                    self._thread = None
                    return
                _, due = next(iter(self._idle.values()))
                self._changed.wait(max(due - time.monotonic(), 0))
            self._close_first(time.monotonic())

    def _close_first(self, now: float) -> bool:
        """Close the handle that was not used for the longest time, if it is due ``now``."""
        with self._changed:
            key, (handle, due) = next(iter(self._idle.items()), (0, (None, 0.0)))
            if handle is None or due > now:
                return False
            del self._idle[key]
            self._closing.add(key)
        try:
            handle.close()
        except Exception:
            log.warning("a ledger that nobody used could not be closed", exc_info=True)
        finally:
            with self._changed:
                self._closing.discard(key)
                self._changed.notify_all()
        return True


_closers: dict[int, IdleCloser] = {}
"""The closer of each process, by its pid: a forked process closes nothing of its parent's."""


def idle_closer() -> IdleCloser:
    """This process's closer. The first call in a process sees to it that the process closes what idles when it ends."""
    closer = _closers.get(os.getpid())
    if closer is None:
        closer = _closers[os.getpid()] = IdleCloser()
        atexit.register(_close_in_time)
    return closer


@contextmanager
def closed_if_it_fails() -> Iterator[None]:
    """If the block raises, close what idles in this process before the error goes on."""
    try:
        yield
    except BaseException:
        _close_in_time()
        raise


def _close_in_time() -> None:
    closer = _closers.get(os.getpid())
    if closer is not None:
        # In a thread, because bookies that are down would hold up the process for longer.
        thread = threading.Thread(target=closer.close_all, name="close ledgers at the end", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # An interpreter from Python 3.12 on starts no thread when it ends.
            closer.close_all()
        else:
            thread.join(END_SECONDS_MAX)
