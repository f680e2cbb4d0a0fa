"""The ledgers that are not closed, as the auditor sees them, for metrics: how many there are, and whose recovery does not end.

Law: nothing is decided by it, and nothing marked. A look reads at most ``_READ_MAX`` records of ledgers that were not seen yet,
and as many of those that are not closed, in turns; it rests 50 times as long as it took. So an auditor of a million ledgers
knows them all some hours after its election, and costs no more than one of a thousand. A recovery stands once it was seen at two
looks that are ``_STANDS_SECONDS`` apart. Ledgers with ids that users give are known to the next auditor.

A writer that pauses looks like one that died, so nobody counts those: ``bookspark why not closed LEDGER`` looks at one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.store.metadata.store import MetadataStore
from bookspark.support.metrics.described import Figures

_READ_MAX = 1000
_NEW_MAX = 100_000
"""Of ids that were given out since the look before, so many are looked at, the newest: somebody may have skipped very many."""
_STANDS_SECONDS = 10.0
_REST_SECONDS = 10.0
_RESTS = 50


class OpenLedgers:
    """What one auditor saw. One thread looks; any may ask for the figures."""

    def __init__(self, store: MetadataStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._due = float("-inf")
        self._given: tuple[int, int] | None = None
        """The ids that had been given out last at the two looks before. None: nobody has looked."""
        self._unseen: deque[int] = deque()
        self._again: dict[int, None] = {}
        """Those that are not closed, the one that was looked at longest ago first."""
        self._recovering: dict[int, float] = {}
        """Since when they were seen in recovery."""
        self._told = 0, 0

    def look(self) -> None:
        """Look, if it is time. Raises MetadataStoreError."""
        began = self._clock()
        if began < self._due:
            return
        newest = self._store.last_ledger_id()
        if self._given is None:
            self._unseen.extend(self._store.list_ledgers())
            self._given = newest, newest
        # Those of the look before: between its id and its record a ledger takes a moment.
        seen, given = self._given
        self._unseen.extendleft(range(max(seen, given - _NEW_MAX) + 1, given + 1))
        self._given = given, newest
        some = [self._unseen.popleft() for _ in range(min(len(self._unseen), _READ_MAX))]
        some += islice(self._again, _READ_MAX)
        states = {one.ledger_id: one.state for one, _ in self._store.read_ledgers(sorted(set(some)), {})}
        for ledger_id in some:
            state = states.get(ledger_id, LedgerState.CLOSED)
            self._again.pop(ledger_id, None)
            if state is not LedgerState.CLOSED:
                self._again[ledger_id] = None
            if state is LedgerState.IN_RECOVERY:
                self._recovering.setdefault(ledger_id, began)
            else:
                self._recovering.pop(ledger_id, None)
        stand = sum(began - since >= _STANDS_SECONDS for since in self._recovering.values())
        self._told = len(self._again), stand
        ended = self._clock()
        self._due = ended + max(_REST_SECONDS, _RESTS * (ended - began))

    def figures(self) -> Figures:
        """What metrics tell of it."""
        still_open, stand = self._told
        return {
            "bookspark_autorecovery_open_ledgers": still_open,
            "bookspark_autorecovery_standing_recoveries": stand,
        }
