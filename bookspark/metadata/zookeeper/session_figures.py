"""What a session with ZooKeeper tells for metrics: how long calls took, and how often the connection was lost.

Law: any thread may count, and so may a signal handler in the middle of that, so the lock is one that its holder may take again. A
call takes a thousand times as long as the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bookspark.metrics.described import Figures
from bookspark.metrics.histogram import Histogram


class SessionFigures:
    """The figures of one session. Thread-safe."""

    def __init__(self, is_connected: Callable[[], bool]) -> None:
        self._is_connected = is_connected
        self._lock = threading.RLock()
        self._seconds = Histogram()
        self._failed = 0
        self._disconnected = 0

    def answered(self, seconds: float) -> None:
        """A call was answered after so many seconds."""
        with self._lock:
            self._seconds.observe(seconds)

    def failed(self) -> None:
        """A call was not answered in time, or with an error that says nothing of the data."""
        with self._lock:
            self._failed += 1

    def disconnected(self) -> None:
        """The connection was lost."""
        with self._lock:
            self._disconnected += 1

    def figures(self) -> Figures:
        """As ``metrics.tables.ZOOKEEPER`` describes them."""
        return {
            "bookspark_zookeeper_connected": float(self._is_connected()),
            "bookspark_zookeeper_disconnections_total": self._disconnected,
            "bookspark_zookeeper_call_seconds": self._seconds.copy(),
            "bookspark_zookeeper_failed_calls_total": self._failed,
        }
