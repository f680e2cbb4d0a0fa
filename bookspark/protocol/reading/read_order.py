"""In which order the replicas of an entry are asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """A reader's preferences. Every replica is asked before an entry counts as unreadable, whatever they are."""

    rotation: int = 0
    """Which of several equally good replicas comes first. Readers with different numbers spread over the replicas."""
    sticky: bool = True
    """True: the replica that delivered last is asked first for what follows. False: the one that delivered least often is."""
    first: str | None = None
    """The replica that delivered before this read."""
    near: frozenset[str] = frozenset()
    """Bookies that are asked before the others."""
    doubtful: frozenset[str] = frozenset()
    """Bookies that are asked after the others: they could not be reached a moment ago."""

    def choose(
        self, candidates: Sequence[str], delivered_by: str | None, late: Collection[str], deliveries: Mapping[str, int]
    ) -> str:
        """The one of ``candidates`` that is asked next. ``late``: those that were slow and have not delivered since;
        ``deliveries``: how often each bookie has delivered."""
        if self.sticky and delivered_by is not None and delivered_by in candidates and delivered_by not in late:
            return delivered_by
        start = self.rotation % len(candidates)
        return min(
            [*candidates[start:], *candidates[:start]],
            key=lambda b: (b in late, b in self.doubtful, b not in self.near, deliveries.get(b, 0)),
        )


ANY_ORDER = ReadOrder()
