"""How long writers wait for a bookie that others are quicker than.

Law: a bookie may hold writers up for ``bookie_stall_seconds``, taken together. That time comes back at a twentieth of the time in
which it holds nobody up. So a bookie that stops for a moment misses nothing, one that hangs is found within
``bookie_stall_seconds``, and one that is slow for good costs its writers at most 5 % of their time, however often it is reached
again. All ledgers of a client share what is known of a bookie. All of it runs in the I/O loop.

Source: a leaky bucket, as networks police a sender's rate (ITU-T I.371).
"""

from __future__ import annotations

from collections.abc import Iterable

_REFILL = 1 / 20
_CONTINUOUS_SECONDS = 0.25
"""Hold-ups that were noted this far apart are one. Drivers look every 0.05 s."""


class Patience:
    """The patience of one client with each bookie, in seconds."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._noted: dict[str, tuple[float, float]] = {}
        """By bookie: the seconds that are spent, and when the bookie held somebody up last."""

    def spend(self, bookies: Iterable[str], now: float) -> None:
        """Each of ``bookies`` holds a writer up at ``now``, in seconds of a clock that never goes back."""
        for bookie in bookies:
            spent, at = self._noted.get(bookie, (0.0, now))
            since = now - at
            spent += since if since <= _CONTINUOUS_SECONDS else -since * _REFILL
            self._noted[bookie] = min(max(0.0, spent), self._seconds_max), now

    def is_spent(self, bookie: str) -> bool:
        """Did the bookie use up its time, when it held somebody up last?"""
        return self._noted.get(bookie, (0.0, 0.0))[0] >= self._seconds_max
