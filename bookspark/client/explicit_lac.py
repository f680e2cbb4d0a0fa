"""Explicit LAC: telling the bookies a ledger's LAC without an entry, so that readers see the last one of a writer that pauses.

Law: each entry tells what was confirmed before it; what no entry has told is told by itself, once, to all. A bookie that may have
missed that, or did not say that it took it, is told again, seldom: it may be gone for long. In the I/O loop.

Source: BookKeeper's ``ExplicitLacUpdateFlow``; the LAFR goes with it ("Guaranteeing write quorum").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bookspark.client.connections import Answer, OnBookiesAnswer
from bookspark.client.retries import FINAL
from bookspark.protocol.ledger_metadata import NO_ENTRY
from bookspark.protocol.responses import Unknown
from bookspark.protocol.writer_cursors import Cursors

_AGAIN_INTERVALS = 10
"""So many intervals later, it is told again to those that did not say that they took it."""

SendLac = Callable[[Iterable[str], OnBookiesAnswer], None]
"""``send(bookies, answered)``: send them the cursors as they are now; ``answered`` is called once for each."""


class ExplicitLac:
    """Of one ledger. ``interval_seconds``: how often an idle writer looks."""

    def __init__(self, cursors: Cursors, interval_seconds: float, send: SendLac) -> None:
        self._cursors = cursors
        self._interval_seconds = interval_seconds
        self._send = send
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

    def due(self, ensemble: Sequence[str], now: float) -> Sequence[str]:
        """Those of the ensemble that may not know the cursors, as no entry told them."""
        cursors = self._cursors
        if self._told < (cursors.last_add_confirmed, cursors.last_add_fully_replicated):
            return ensemble
        if not self._untold or now < self._again_at or cursors.last_add_confirmed == NO_ENTRY:
            return ()
        return [bookie for bookie in ensemble if bookie in self._untold]

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
        answered(bookie, answer)
