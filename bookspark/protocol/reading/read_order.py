"""The order in which the replicas of an entry are asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """A reader's preferences. An entry is unreadable only after every replica was asked."""

    rotation: int = 0
    """Choice among equally good replicas. Readers with different numbers spread over the replicas."""
    sticky: bool = True
    """Ask first the replica of the last delivery. False: the replica with the fewest deliveries."""
    first: str | None = None
    """The replica of the last delivery before this read."""
    near: frozenset[str] = frozenset()
    """Bookies to ask before the others."""
    doubtful: frozenset[str] = frozenset()
    """Bookies to ask after the others: unreachable a moment ago."""

    def choose(
        self, candidates: Sequence[str], delivered_by: str | None, late: Collection[str], deliveries: Mapping[str, int]
    ) -> str:
        """The next of ``candidates``. ``late``: slow bookies without a delivery since; ``deliveries``: counts by bookie."""
        if self.sticky and delivered_by is not None and delivered_by in candidates and delivered_by not in late:
            return delivered_by
        start = self.rotation % len(candidates)
        return min(
            [*candidates[start:], *candidates[:start]],
            key=lambda b: (b in late, b in self.doubtful, b not in self.near, deliveries.get(b, 0)),
        )


ANY_ORDER = ReadOrder()
