"""Explicit LAC: a writer sends the bookies its LAC (last add confirmed) without an entry, so that readers see the last entry of a
pausing writer.

Law: each entry carries the LAC of the moment when it was sent. An idle writer sends a newer LAC by itself, once, to all bookies
of the ensemble. A bookie may have missed it: it did not acknowledge it, was away, or joined later. Such a bookie gets it again,
but seldom, because it may be gone for long. The LAFR (last add fully replicated) of a guaranteed ledger goes along.

Source: BookKeeper's ``ExplicitLacUpdateFlow``; "Guaranteeing write quorum" for the LAFR.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from bookspark.protocol.ledger.actions import SendLac
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import FINAL_REASONS, Response, Unknown
from bookspark.protocol.writing.ensemble_change import NOBODY
from bookspark.protocol.writing.writer_cursors import Cursors

EXPLICIT_LAC_INTERVAL_SECONDS = 0.1
_AGAIN_INTERVALS = 10
"""Intervals until an unacknowledged explicit LAC is sent again."""


class ExplicitLac:
    """One writer's record of the cursors known to the bookies. ``now``: seconds of a monotonic clock."""

    __slots__ = ("_again_at", "_interval_seconds", "_told", "_untold")

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        """Time without progress after which a writer sends its LAC."""
        self._told = (NO_ENTRY, NO_ENTRY)
        """The LAC and the LAFR sent last."""
        self._untold = NOBODY
        """Bookies that may have missed ``_told``."""
        self._again_at = -math.inf
        """Earliest time of a repetition to ``_untold``."""

    def entry_told(self, last_add_confirmed: int, last_add_fully_replicated: int) -> None:
        """A new entry carries this LAC and this LAFR to the bookies."""
        self._told = last_add_confirmed, last_add_fully_replicated

    def missed(self, bookies: Iterable[str]) -> None:
        """These bookies may have missed the LAC and the LAFR."""
        self._untold = self._untold.union(bookies)

    def replace(self, swap: Mapping[str, str]) -> None:
        """The keys left the ensemble; the values joined and have no LAC yet."""
        self._untold = self._untold.difference(swap).union(swap.values())

    def owes(self, cursors: Cursors) -> bool:
        """May a bookie not know the cursors, so that an idle writer has to send them?"""
        return self._is_news(cursors) or (cursors.last_add_confirmed != NO_ENTRY and bool(self._untold))

    def _is_news(self, cursors: Cursors) -> bool:
        return self._told != (cursors.last_add_confirmed, cursors.last_add_fully_replicated)

    def idle(self, cursors: Cursors, ensemble: tuple[str, ...], now: float, quiet_seconds: float) -> list[SendLac]:
        """The LACs to send to bookies of ``ensemble`` after ``quiet_seconds`` without progress."""
        if quiet_seconds <= self._interval_seconds or not self.owes(cursors):
            return []
        if self._is_news(cursors):
            return self.tell(cursors, ensemble)
        if now < self._again_at:
            return []
        return self.tell(cursors, tuple(bookie for bookie in ensemble if bookie in self._untold))

    def tell(self, cursors: Cursors, bookies: tuple[str, ...]) -> list[SendLac]:
        self._told = cursors.last_add_confirmed, cursors.last_add_fully_replicated
        self._untold = self._untold.difference(bookies) or NOBODY
        return [SendLac(bookies, *self._told)]

    def answered(self, bookie: str, response: Response, now: float) -> None:
        """No repetition follows a final refusal: an unreachable bookie is ``missed`` once it is back."""
        if isinstance(response, Unknown) and response.reason not in FINAL_REASONS:
            self.missed((bookie,))
            self._again_at = now + _AGAIN_INTERVALS * self._interval_seconds
