"""Bookies that failed a moment ago. They are chosen for an ensemble, and read from, only if there are no others.

Law: a bookie leaves quarantine when its time is over, or as soon as a new connection to it is made.

Source: BookKeeper's ``BookieWatcher.quarantineBookie``.
"""

from __future__ import annotations

import time

from bookspark.protocol.ledger.responses import Unknown


class Quarantine:
    """The quarantine of one process. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: how long a bookie stays in it."""
        self._seconds = seconds
        self._failures: dict[str, tuple[float, Unknown]] = {}

    def failed(self, bookie_id: str, why: Unknown) -> None:
        """The bookie did not answer, could not be reached, or failed at what it was asked."""
        self._failures[bookie_id] = time.monotonic() + self._seconds, why

    def is_back(self, bookie_id: str) -> None:
        """A new connection to the bookie was made."""
        self._failures.pop(bookie_id, None)

    def now(self) -> dict[str, str]:
        """The bookies in quarantine by id, each with the text for an error: for how long still, and why."""
        if not self._failures:
            # Each read asks.
            return {}
        now = time.monotonic()
        return {
            bookie_id: f"in quarantine for {until - now:.1f} s more: {why}"
            for bookie_id, (until, why) in self._failures.copy().items()
            if until > now
        }
