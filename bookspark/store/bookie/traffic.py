"""What passes through a bookie, counted for its metrics: requests, entries and bytes, and how long they took.

Law: each counter has one owner: the loop, or the thread that writes a directory, which counts between two of its groups. Who
scrapes copies without a lock (``metrics.histogram``), so counting holds nobody up. The loop counts by request and by part of an
answer, never by entry; a commit thread by group and by sync.
"""

from __future__ import annotations

from collections import Counter

from bookspark.support.metrics.histogram import BYTES, COUNTS, Histogram
from bookspark.support.metrics.lately import Lately


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
