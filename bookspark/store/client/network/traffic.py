"""Counters of a client's traffic with its bookies, for metrics.

Law: only the I/O thread counts, by frame and by answer, never by entry. Any thread may copy (``metrics.histogram``).
"""

from __future__ import annotations

from collections import Counter

from bookspark.store.wire.header import Kind
from bookspark.support.metrics.histogram import Histogram


class ClientTraffic:
    """Counters of one client in one process. Owned by the I/O thread."""

    __slots__ = (
        "appended_bytes",
        "appended_entries",
        "behind",
        "ensemble_changes",
        "failed",
        "received_bytes",
        "seconds",
        "sent_bytes",
        "unreachable",
    )

    def __init__(self) -> None:
        self.seconds: dict[int, Histogram] = {int(kind): Histogram() for kind in (Kind.ADD, Kind.READ, Kind.SYNC)}
        """Response times in seconds, by ``Kind``, for requests with a time limit."""
        self.failed: Counter[str] = Counter()
        """Requests without a definite answer, by the name of the ``UnknownReason``."""
        self.sent_bytes = self.received_bytes = 0
        self.appended_entries = self.appended_bytes = 0
        """Entries in frames, and bytes of their payloads. Copies don't count."""
        self.ensemble_changes = 0
        self.behind = 0
        """Number of connections that are behind now (``BookieConnection.is_behind``)."""
        self.unreachable = 0
