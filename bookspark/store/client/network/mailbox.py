"""Where a blocking call waits for the events that the I/O thread puts.

Law: events are taken in the order in which they were put. No wait lasts past the deadline; at the deadline the caller gets
``DeadlinePassed``. Nobody waits where no event can come: in the thread that puts them, or in a forked process.
"""

from __future__ import annotations

import os
import queue
import time

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger import actions as act
from bookspark.support.threads import check_may_wait


class Mailbox:
    """Where a blocking call waits for its events. Any thread puts, the caller takes, and no wait lasts past the deadline."""

    def __init__(self, timeout_seconds: float) -> None:
        self._queue: queue.SimpleQueue[act.Event] = queue.SimpleQueue()
        self._deadline = time.monotonic() + timeout_seconds
        self._pid = os.getpid()

    def put(self, event: act.Event) -> None:
        """Add an event, from any thread."""
        self._queue.put(event)

    def allow(self, seconds: float) -> None:
        """Move the deadline to ``seconds`` from now. From any thread."""
        self._deadline = time.monotonic() + seconds

    def left_seconds(self) -> float:
        """Seconds until the deadline; 0 once it has passed."""
        return max(0.0, self._deadline - time.monotonic())

    def take(self) -> act.Event:
        """Wait for the next event; ``DeadlinePassed`` once the deadline has passed. Raises BookKeeperError in a thread of the
        client's own, and in a forked process."""
        check_may_wait()
        if os.getpid() != self._pid:
            raise BookKeeperError(f"process {self._pid} began this read, and gets its answers; read anew in this one")
        while True:
            left = self.left_seconds()
            try:
                return self._queue.get(timeout=left)
            except queue.Empty:
                # The deadline may have been moved meanwhile.
                if not left:
                    return act.DeadlinePassed()
