"""Where a blocking call waits for the events that the I/O thread puts.

Law: events are taken in the order in which they were put. No wait lasts past the deadline; at the deadline the caller gets
``DeadlinePassed``.
"""

from __future__ import annotations

import queue
import time

from bookspark.protocol.ledger import actions as act


class Mailbox:
    """Where a blocking call waits for its events. Any thread puts, the caller takes, and no wait lasts past the deadline."""

    def __init__(self, timeout_seconds: float) -> None:
        self._queue: queue.SimpleQueue[act.Event] = queue.SimpleQueue()
        self._deadline = time.monotonic() + timeout_seconds

    def put(self, event: act.Event) -> None:
        """Add an event, from any thread."""
        self._queue.put(event)

    def allow(self, seconds: float) -> None:
        """Move the deadline to ``seconds`` from now."""
        self._deadline = time.monotonic() + seconds

    def left_seconds(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        return max(0.0, self._deadline - time.monotonic())

    def take(self) -> act.Event:
        """Wait for the next event; ``DeadlinePassed`` once the deadline has passed."""
        try:
            return self._queue.get(timeout=self.left_seconds())
        except queue.Empty:
            return act.DeadlinePassed()
