"""Closes handles that a Spark worker keeps between its tasks, once they have been idle for a while.

Law: a handle is closed IDLE_SECONDS after its last use, and never during use. So a ledger stays open over quick micro-batches,
and a slow trigger leaves none open: Spark ends a Python worker after a minute of idleness, and then only a ledger recovery could
close its ledgers. A closed handle can be used again; it then begins anew.

A Python interpreter that ends by itself first closes its idle handles; so does a worker whose task fails, because Spark then ends
it. All others are left to ledger recovery by the log's next run, after it has claimed the log: signal handlers never run in
Spark's workers (4.2), and a recovery by the driver would fence tasks that may still run. Until then readers lack no row.
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
END_SECONDS_MAX = 5.0
"""Time that an ending process spends on closing handles."""


class Closable(Protocol):
    """A data ledger, or a committer with its commit ledger."""

    def close(self) -> None:
        """Close the handle, in any thread. Failures are logged, not raised."""


class IdleCloser:
    """Closes handles ``seconds`` after their last use, in a thread that lives while there are handles."""

    def __init__(self, seconds: float = IDLE_SECONDS) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._idle: dict[int, tuple[Closable, float]] = {}
        """Idle handles, each with the time when it is due, the first due first."""
        self._closing: set[int] = set()
        self._thread: threading.Thread | None = None

    @contextmanager
    def in_use(self, handle: Closable) -> Iterator[None]:
        """Keep the handle open in the block. Waits if it is being closed."""
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
        """Close the handle that was idle for the longest time, if it is due ``now``."""
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
"""Process id → closer: a forked process closes no handle of its parent."""


def idle_closer() -> IdleCloser:
    """This process's closer. The first call makes the process close its idle handles when it ends."""
    closer = _closers.get(os.getpid())
    if closer is None:
        closer = _closers[os.getpid()] = IdleCloser()
        atexit.register(_close_in_time)
    return closer


@contextmanager
def closed_if_it_fails() -> Iterator[None]:
    """If the block raises, close this process's idle handles before the error goes on."""
    try:
        yield
    except BaseException:
        _close_in_time()
        raise


def _close_in_time() -> None:
    closer = _closers.get(os.getpid())
    if closer is not None:
        # In a thread, because bookies that are down would delay the end of the process.
        thread = threading.Thread(target=closer.close_all, name="close ledgers at the end", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # An interpreter from Python 3.12 on starts no thread when it ends.
            closer.close_all()
        else:
            thread.join(END_SECONDS_MAX)
