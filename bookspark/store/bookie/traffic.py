"""Traffic of a bookie, counted for its metrics: requests, entries and bytes, and durations.

Law: each counter has one owner: the loop, or the thread that writes a directory, which counts between two groups. A scrape copies
without a lock (``metrics.histogram``), so it delays no counting. The loop counts by request and by part of an answer, never by
entry; a commit thread by group and by sync.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque

from bookspark.support.metrics.histogram import BYTES, COUNTS, Histogram

# -- Recent durations: the median of the last minute.


_KEPT = 16
_AT_LEAST = 3
_LATELY_SECONDS = 60.0
_STUCK_SECONDS = 5.0


class Lately:
    """Recent durations of one operation, such as a sync. Times are seconds of a monotonic clock.

    Law: one thread counts, and any thread reads without a lock. An operation under way counts once it exceeds
    ``_STUCK_SECONDS``, because a dead disk yields no new times. Fewer than ``_AT_LEAST`` times give no figure: one slow sync
    is no slow disk."""

    __slots__ = ("_begun", "_times")

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        # (start, end) of each operation.
        self._begun: float | None = None

    def begins(self, now: float) -> None:
        self._begun = now

    def ends(self, now: float) -> None:
        """End the operation. Without a start nothing is counted."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._times.append((begun, now))

    def seconds(self, now: float) -> float | None:
        """Median duration in seconds; None if too few times are known. In any thread."""
        begun = self._begun
        if begun is not None and now - begun > _STUCK_SECONDS:
            return now - begun
        # The copy is a single step of the interpreter, so it needs no lock.
        found = [ended - began for began, ended in self._times.copy() if now - ended <= _LATELY_SECONDS]
        return statistics.median(found) if len(found) >= _AT_LEAST else None


# -- Counters and histograms


class Traffic:
    """Requests and answers. Owned by the loop."""

    __slots__ = ("answers", "bytes_in", "bytes_out", "entries_in", "entries_out", "fences", "reads")

    def __init__(self) -> None:
        self.answers: Counter[tuple[int | str, int]] = Counter()
        """Answered requests, by ``Kind`` (for BookKeeper's clients by name) and ``Status``."""
        self.entries_in = 0
        """Entries accepted for a log."""
        self.bytes_in = 0
        """Bytes of the accepted batches."""
        self.entries_out = 0
        """Entries sent to readers."""
        self.bytes_out = 0
        """Bytes of the sent batches, as stored."""
        self.reads = Histogram()
        """Seconds of the answers to entry reads."""
        self.fences = 0


class GroupFigures:
    """Groups of one directory. Owned by the writer of the directory."""

    __slots__ = ("bytes", "entry_batches", "lately", "syncs")

    def __init__(self) -> None:
        self.entry_batches = Histogram(COUNTS)
        """Adds per group, of groups with adds."""
        self.bytes = Histogram(BYTES)
        """Bytes of the adds per group, of groups with adds."""
        self.syncs = Histogram()
        """Seconds of each sync of the log."""
        self.lately = Lately()
