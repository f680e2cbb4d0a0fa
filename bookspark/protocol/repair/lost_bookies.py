"""Which bookies are lost: what an auditor concludes from the registrations that come and go.

Law: a registered bookie, writable or read-only, is not lost. A bookie that goes away is lost after a delay, unless it is back
before, so a rolling restart costs no copy. If a second one goes away while a first is missing, the delay ends for all, because
the next one could hold the last copy. That second one must have been *seen* to go: bookies that a new auditor does not find
may be starting at the same time, and have the whole delay. While no bookie at all is registered, nothing is decided: then the
view is lost and not the bookies, or there is nobody to copy to. ::

    registered ──gone──► missing ──delay, or a second one seen to go──► lost
        ▲                   │                                            │
        └────── back ───────┴─────────────────── back ───────────────────┘

Time is an argument, in seconds of any clock that does not go back. Source: ``AuditorBookieCheckTask`` and ``Auditor`` of
BookKeeper (``lostBookieRecoveryDelay``), which does not distinguish a first look.
"""

from __future__ import annotations

import math
from collections.abc import Collection


class LostBookies:
    """Feed it with ``look``. After that, ``to_mark`` has the bookies whose ledgers need tasks, until they are ``marked``."""

    def __init__(self, delay_seconds: float) -> None:
        self.delay_seconds = delay_seconds
        """How long a missing bookie may stay away. It may be set at any time; the next look uses it."""
        self.lost: frozenset[str] = frozenset()
        self.to_mark: frozenset[str] = frozenset()
        self._missing: dict[str, float] = {}
        self._registered: frozenset[str] = frozenset()
        self._looked_at = -math.inf

    def look(self, now: float, registered: Collection[str], expected: Collection[str]) -> None:
        """``registered``: all registered bookies, read-only ones too. ``expected``: the bookies that may hold entries.

        Raises ValueError, and changes nothing, if ``now`` is before the look before this one.
        """
        if now < self._looked_at:
            raise ValueError(f"a look at {now:g} s after one at {self._looked_at:g} s: the clock has gone back")
        self._looked_at = now
        if not registered:
            return
        seen_to_go = self._registered - set(registered)
        self._registered = frozenset(registered)
        absent = (set(expected) | seen_to_go | self._missing.keys() | self.lost) - self._registered
        self._missing = {bookie: self._missing.get(bookie, now) for bookie in sorted(absent - self.lost)}
        at_once = len(self._missing) > 1 and not seen_to_go.isdisjoint(self._missing)
        newly = {bookie for bookie, since in self._missing.items() if at_once or now - since >= self.delay_seconds}
        for bookie in newly:
            del self._missing[bookie]
        self.to_mark = (self.to_mark & absent) | newly
        # A decommissioned bookie is not expected any more.
        kept = self.lost & absent & (self.to_mark | set(expected))
        self.lost = kept | newly

    def marked(self, bookies: Collection[str]) -> None:
        """The ledgers of these bookies have their tasks. Raises ValueError, and changes nothing, for a bookie that was not to be
        marked."""
        others = set(bookies) - self.to_mark
        if others:
            raise ValueError(f"{', '.join(sorted(others))} marked, but never reported as lost")
        self.to_mark -= set(bookies)

    def lost_at(self) -> dict[str, float]:
        """The bookies that are missing, and when each is lost if nothing happens."""
        return {bookie: since + self.delay_seconds for bookie, since in self._missing.items()}
