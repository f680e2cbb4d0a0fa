"""When a trigger waits: for more rows (options ``minOffsetsPerTrigger`` and ``maxTriggerDelay``), or for any (``Patience``).

Law: a micro-batch with fewer rows than the least waits until there are as many, or until ``maxTriggerDelay`` is over since the
last one that this source began; then it takes what is there. The first micro-batch after a start of the query does not wait.
Without new rows there is none. A trigger that ends the query (``availableNow``, ``once``) takes all rows.

Source: Spark's ``KafkaMicroBatchStream.delayBatch``. Spark 4.2 offers Python sources ``ReadMinRows``, without a longest delay,
and one limit at a time: it hands a limit back to the source that gave it, without a look into it. So the source waits by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class TriggerDelay:
    """On the driver's side. ``rows``: the least of a micro-batch; ``seconds``: how long one waits for them at most."""

    def __init__(self, rows: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows, self._seconds, self._clock = rows, seconds, clock
        self._until = float("-inf")

    def holds(self, waiting: int) -> bool:
        """Does a micro-batch of ``waiting`` rows wait for more?"""
        return waiting == 0 or (waiting < self.rows and self.left > 0)

    @property
    def left(self) -> float:
        """How long a micro-batch would wait now, in seconds; not above 0 if it would not."""
        return self._until - self._clock()

    def begun(self) -> None:
        """A micro-batch begins."""
        self._until = self._clock() + self._seconds


class Patience:
    """How long a trigger waits for entries if there are none: as long as the query has been idle, ``longest`` seconds at most.

    Spark asks the sources of a query one after the other. So a log without new rows keeps a busy query waiting for nothing, and a
    query that has nothing to do at all asks less and less often.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._idle_since = time.monotonic()
        """When the query's last micro-batch was done, whatever source it was of."""
        self._batch_done = False

    def batch_done(self) -> None:
        """A micro-batch of the query is done."""
        self._batch_done = True

    def seconds(self) -> float:
        """How long to wait now, in seconds."""
        now = time.monotonic()
        if self._batch_done:
            self._batch_done, self._idle_since = False, now
        return min(self._longest, now - self._idle_since)
