"""What a session with ZooKeeper tells for metrics: how long calls took, and how often the connection was lost.

Law: any thread may count, and so may a signal handler in the middle of that, so the lock is one that its holder may take again. A
call takes a thousand times as long as the lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from bookspark.support.metrics.described import Figures
from bookspark.support.metrics.histogram import Histogram

_LATELY = 16


class SessionFigures:
    """The figures of one session. Thread-safe."""

    def __init__(self, is_connected: Callable[[], bool]) -> None:
        self._is_connected = is_connected
        self._lock = threading.RLock()
        self._seconds = Histogram()
        self._lately: deque[tuple[float, float]] = deque(maxlen=_LATELY)
        """When the last calls began, and how long each took."""
        self._failed = 0
        self._disconnected = 0

    def answered(self, seconds: float) -> None:
        """A call was answered after so many seconds."""
        with self._lock:
            self._seconds.observe(seconds)
            self._lately.append((time.monotonic() - seconds, seconds))

    def failed(self) -> None:
        """A call was not answered in time, or with an error that says nothing of the data."""
        with self._lock:
            self._failed += 1

    def since(self, began: float) -> list[float]:
        """How long each of the last calls took, of those that began after that moment of ``time.monotonic``."""
        with self._lock:
            return [seconds for at, seconds in self._lately if at >= began]

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
