"""Explicit LAC: telling the bookies a ledger's LAC without an entry, so that readers see the last one of a writer that pauses.

Law: each entry tells what was confirmed before it; what no entry has told is told by itself, once, to all. A bookie that may have
missed that, or did not say that it took it, is told again, seldom: it may be gone for long. In the I/O loop.

Source: BookKeeper's ``ExplicitLacUpdateFlow``; the LAFR goes with it ("Guaranteeing write quorum").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bookspark.client.network.connections import Answer, OnBookiesAnswer
from bookspark.client.writing.retries import FINAL
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Unknown
from bookspark.protocol.writing.writer_cursors import Cursors

_AGAIN_INTERVALS = 10
"""So many intervals later, it is told again to those that did not say that they took it."""

SendLac = Callable[[Iterable[str], OnBookiesAnswer], None]
"""``send(bookies, answered)``: send them the cursors as they are now; ``answered`` is called once for each."""


class ExplicitLac:
    """Of one ledger. ``interval_seconds``: how often an idle writer looks. ``wake`` is called when it has to look again."""

    def __init__(self, cursors: Cursors, interval_seconds: float, send: SendLac, wake: Callable[[], None]) -> None:
        self._cursors = cursors
        self._interval_seconds = interval_seconds
        self._send = send
        self._wake = wake
        self._told = (NO_ENTRY, NO_ENTRY)
        """The LAC and the LAFR that the bookies heard last."""
        self._untold: set[str] = set()
        """But these may not have heard them."""
        self._again_at = 0.0

    def told(self, last_add_confirmed: int, last_add_fully_replicated: int) -> None:
        """An entry told the bookies these."""
        self._told = max(self._told, (last_add_confirmed, last_add_fully_replicated))

    def missed(self, bookie: str) -> None:
        """It may not have heard what was told."""
        self._untold.add(bookie)

    def owes(self, ensemble: Sequence[str]) -> bool:
        """May one of the ensemble not know the cursors, as no entry told them?"""
        if self._is_news():
            return True
        return self._cursors.last_add_confirmed != NO_ENTRY and not self._untold.isdisjoint(ensemble)

    def due(self, ensemble: Sequence[str], now: float) -> Sequence[str]:
        """Those of the ensemble that are to be told now."""
        if self._is_news():
            return ensemble
        if now < self._again_at or not self.owes(ensemble):
            return ()
        return [bookie for bookie in ensemble if bookie in self._untold]

    def _is_news(self) -> bool:
        return self._told < (self._cursors.last_add_confirmed, self._cursors.last_add_fully_replicated)

    def tell(self, bookies: Iterable[str], answered: OnBookiesAnswer = lambda bookie, answer: None) -> None:
        """Tell them now; ``answered`` is called once for each."""
        cursors = self._cursors
        self._told = cursors.last_add_confirmed, cursors.last_add_fully_replicated
        self._untold.difference_update(bookies)
        self._send(bookies, partial(self._answered, answered))

    def _answered(self, answered: OnBookiesAnswer, bookie: str, answer: Answer) -> None:
        if isinstance(answer.response, Unknown) and answer.response.reason not in FINAL:
            self._untold.add(bookie)
            self._again_at = time.monotonic() + _AGAIN_INTERVALS * self._interval_seconds
            self._wake()
        answered(bookie, answer)
