"""A mailbox: a blocking call takes from it the events that the I/O thread puts.

Law: events are taken in the order of the puts. No wait lasts past the deadline; at the deadline the caller gets
``DeadlinePassed``. A wait where no event can come is refused: in the thread that puts events, and in a forked process.
"""

from __future__ import annotations

import os
import queue
import time

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger import actions as act
from bookspark.support.threads import check_may_wait


class Mailbox:
    """Queue of events with a deadline. Any thread puts, the caller takes."""

    def __init__(self, timeout_seconds: float) -> None:
        self._queue: queue.SimpleQueue[act.Event] = queue.SimpleQueue()
        self._deadline = time.monotonic() + timeout_seconds
        self._pid = os.getpid()

    def put(self, event: act.Event) -> None:
        self._queue.put(event)

    def allow(self, seconds: float) -> None:
        """Move the deadline to ``seconds`` from now, from any thread."""
        self._deadline = time.monotonic() + seconds

    def left_seconds(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def take(self) -> act.Event:
        """Wait for the next event; ``DeadlinePassed`` after the deadline. Raises BookKeeperError in a thread of the client's own,
        and in a forked process."""
        check_may_wait()
        if os.getpid() != self._pid:
            raise BookKeeperError(f"process {self._pid} began this read, and gets its answers; read anew in this one")
        while True:
            left = self.left_seconds()
            try:
                return self._queue.get(timeout=left)
            except queue.Empty:
                # Check again: the deadline may have moved meanwhile.
                if not left:
                    return act.DeadlinePassed()
