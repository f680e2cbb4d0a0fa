"""Bookies that failed a moment ago: chosen for an ensemble, and read from, only if there are no others.

Law: a bookie leaves quarantine when its time is over, or as soon as a new connection to it is made.

Source: BookKeeper's ``BookieWatcher.quarantineBookie``.
"""

from __future__ import annotations

import time

from bookspark.protocol.ledger.responses import Unknown


class Quarantine:
    """Of one process. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failures: dict[str, tuple[float, Unknown]] = {}

    def failed(self, bookie_id: str, why: Unknown) -> None:
        """It did not answer, could not be reached, or said that it is not able to."""
        self._failures[bookie_id] = time.monotonic() + self._seconds, why

    def is_back(self, bookie_id: str) -> None:
        self._failures.pop(bookie_id, None)

    def now(self) -> dict[str, str]:
        """Those that are in it, with words for an error: for how long still, and why."""
        now = time.monotonic()
        return {
            bookie_id: f"in quarantine for {until - now:.1f} s more: {why}"
            for bookie_id, (until, why) in self._failures.copy().items()
            if until > now
        }
