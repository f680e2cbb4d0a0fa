"""What passes through a bookie, counted for its metrics: requests, entries and bytes, and how long they took.

Law: each counter has one owner: the loop, or the thread that writes a directory, which counts between two of its groups. Who
scrapes copies without a lock (``metrics.histogram``), so counting holds nobody up. The loop counts by request and by part of an
answer, never by entry; a commit thread by group and by sync.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque

from bookspark.support.metrics.histogram import BYTES, COUNTS, Histogram

# -- How long something takes lately: the median of the last times, within a minute.
#
# Law: one thread counts, and any thread may ask, without a lock. What is under way counts once it takes longer than
# ``_STUCK_SECONDS``: a disk that answers no more has no new times. Fewer than ``_AT_LEAST`` times tell nothing, as one slow
# time is no slow disk.


_KEPT = 16
_AT_LEAST = 3
_LATELY_SECONDS = 60.0
_STUCK_SECONDS = 5.0


class Lately:
    """The last times of one thing. Moments are seconds of one clock that only goes on."""

    __slots__ = ("_begun", "_times")

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """When each began, and when it ended."""
        self._begun: float | None = None

    def begins(self, now: float) -> None:
        """It begins now."""
        self._begun = now

    def ends(self, now: float) -> None:
        """It has ended. Without a beginning nothing is counted."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._times.append((begun, now))

    def seconds(self, now: float) -> float | None:
        """How long it takes; None: not enough is known. In any thread."""
        begun = self._begun
        if begun is not None and now - begun > _STUCK_SECONDS:
            return now - begun
        # A copy is one step of the interpreter.
        found = [ended - began for began, ended in self._times.copy() if now - ended <= _LATELY_SECONDS]
        return statistics.median(found) if len(found) >= _AT_LEAST else None


# --


class Traffic:
    """Requests and their answers. Owned by the loop."""

    __slots__ = ("answers", "bytes_in", "bytes_out", "entries_in", "entries_out", "fences", "reads")

    def __init__(self) -> None:
        self.answers: Counter[tuple[int | str, int]] = Counter()
        """How many requests were answered, by ``Kind`` (or by name, of clients of BookKeeper) and ``Status``."""
        self.entries_in = 0
        """Entries that were taken in, to be put into a log."""
        self.bytes_in = 0
        """Bytes of their batches."""
        self.entries_out = 0
        """Entries that were sent to readers."""
        self.bytes_out = 0
        """Bytes of their batches, as they are stored."""
        self.reads = Histogram()
        """How long answers to reads of entries took, in seconds."""
        self.fences = 0
        """Ledgers that were fenced."""


class GroupFigures:
    """The groups of one directory. Owned by whoever writes it."""

    __slots__ = ("bytes", "entry_batches", "lately", "syncs")

    def __init__(self) -> None:
        self.entry_batches = Histogram(COUNTS)
        """How many adds were in a group that had any."""
        self.bytes = Histogram(BYTES)
        """Bytes of the adds of such a group."""
        self.syncs = Histogram()
        """How long a sync of the log took, in seconds."""
        self.lately = Lately()
        """The same of the last ones."""
