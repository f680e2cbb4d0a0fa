"""Waits of a trigger: for more rows (options ``minOffsetsPerTrigger`` and ``maxTriggerDelay``), or for any (``Patience``).

Law: a micro-batch with too few rows waits for the least number, or until ``maxTriggerDelay`` after the last micro-batch of this
source began; then it takes all present rows. The first micro-batch after a start does not wait. Without new rows there is no
micro-batch. A trigger that ends the query (``availableNow``, ``once``) takes all rows.

Source: Spark's ``KafkaMicroBatchStream.delayBatch``. The source waits by itself, because Spark 4.2 offers Python sources
``ReadMinRows`` without a longest delay, and one limit at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class TriggerDelay:
    """On the driver's side. ``rows``: the least number of rows of a micro-batch; ``seconds``: its longest wait for them."""

    def __init__(self, rows: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows, self._seconds, self._clock = rows, seconds, clock
        self._until = float("-inf")

    def holds(self, waiting: int) -> bool:
        """Whether a micro-batch of ``waiting`` rows waits for more."""
        return waiting == 0 or (waiting < self.rows and self.left > 0)

    @property
    def left(self) -> float:
        """Remaining wait of a micro-batch in seconds; 0 or less if it would not wait."""
        return self._until - self._clock()

    def begun(self) -> None:
        self._until = self._clock() + self._seconds


class Patience:
    """Wait of a trigger without entries: as long as the query has been idle, ``longest`` seconds at most.

    Spark asks the sources of a query one after the other. So a log without new rows does not delay a busy query, and an idle
    query asks at growing intervals.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._idle_since = time.monotonic()
        """End of the query's last micro-batch, of any source."""
        self._batch_done = False

    def batch_done(self) -> None:
        self._batch_done = True

    def seconds(self) -> float:
        now = time.monotonic()
        if self._batch_done:
            self._batch_done, self._idle_since = False, now
        return min(self._longest, now - self._idle_since)
