"""What passes between a client and its bookies, counted for the client's metrics.

Law: only the I/O thread counts: by frame and by answer, never by entry. Any thread may copy (``metrics.histogram``).
"""

from __future__ import annotations

from collections import Counter

from bookspark.store.wire.header import Kind
from bookspark.support.metrics.histogram import Histogram


class ClientTraffic:
    """Of one client in one process. Owned by the I/O thread."""

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
        """How long bookies took to answer, in seconds, by ``Kind``. A request has to have a time limit to be counted."""
        self.failed: Counter[str] = Counter()
        """Requests that a bookie did not answer, or answered without telling anything: by the name of the ``UnknownReason``."""
        self.sent_bytes = self.received_bytes = 0
        """Bytes of frames."""
        self.appended_entries = self.appended_bytes = 0
        """What was appended and went into frames: entries, and bytes of their payloads. Copies don't count."""
        self.ensemble_changes = 0
        """How often a ledger got other bookies."""
        self.behind = 0
        """How many connections are behind at this moment (``BookieConnection.is_behind``)."""
        self.unreachable = 0
        """Connections that could not be made."""
