"""Thread that looks at the cluster, more often while pages are requested, and keeps the last result.

Law: requests never start a look at the whole cluster, so a thousand viewers cost no more than one. The watch rests at least
``_RESTS`` times a look's processor time, up to ``_REST_SECONDS_MAX``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from bookspark.operations.console.figures import History, Point, Track, counts_of
from bookspark.operations.why.facts import Facts, Health
from bookspark.operations.why.gathering import Gathering
from bookspark.operations.why.troubles import health_of
from bookspark.protocol.changes.observed import Shape
from bookspark.store.client import BookKeeper
from bookspark.support.plain_text import one_line
from bookspark.support.threads import BackOff, Repeated

LIVE_SECONDS = 2.0
"""Rest between two looks while pages are requested."""
IDLE_SECONDS = 10.0
"""Rest between two looks without requests: the plots continue."""
_WATCHED_SECONDS = 10.0
"""A viewer counts for this time after its last request."""
_RESTS = 130
"""Keeps looks below 1 % of a core."""
_REST_SECONDS_MAX = 60.0
_END_SECONDS_MAX = 30.0

log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """Results of the last successful look."""

    facts: Facts
    """The latest facts. The watch changes their fragments in place at the next look."""
    before: Facts | None
    """Facts of the previous look, for rates."""
    health: Health
    point: Point | None
    """The newest figures."""
    metrics: int
    """Bookies that told their metrics."""
    problem: str = ""
    """The error of the later looks."""
    ledgers: Sequence[int] = ()
    """Ids of all ledgers, ascending."""
    by_shape: Mapping[Shape, Collection[int]] = MappingProxyType({})
    """Ledgers by shape of fragments, at the time of the look."""


class Watch:
    """Looks until ``close``."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper
        self._gathering = Gathering(bookkeeper)
        self._history = History()
        self.track: Track = self._history.track
        """The cluster's figures, as ``Point``."""
        self._point: Point | None = None
        self._metrics = 0
        self._seen: Seen | None = None
        self._asked = float("-inf")
        self._first = threading.Event()
        self._thread = Repeated("console watch", self._turn, BackOff(LIVE_SECONDS, IDLE_SECONDS))
        self._thread.start()

    def seen(self, timeout: float = 5.0) -> Seen | None:
        """The last result. None if the first look did not end within ``timeout`` seconds."""
        now = time.monotonic()
        slept, self._asked = now - self._asked > _WATCHED_SECONDS, now
        if slept:
            self._thread.wake()
        self._first.wait(timeout)
        return self._seen

    def close(self) -> None:
        """Stop. Returns after the running look has ended, or after ``_END_SECONDS_MAX``."""
        self._thread.stop(_END_SECONDS_MAX)

    def _turn(self) -> float:
        began = time.process_time()
        try:
            self._look()
        except Exception as error:
            # The pages mark the last result as old; the next look may succeed.
            log.warning("the cluster could not be looked at: %s: %s", type(error).__name__, error)
            if self._seen is not None:
                self._seen = self._seen._replace(problem=one_line(error))
        self._first.set()
        cost = time.process_time() - began
        watched = time.monotonic() - self._asked < _WATCHED_SECONDS
        return max(LIVE_SECONDS if watched else IDLE_SECONDS, min(_RESTS * cost, _REST_SECONDS_MAX))

    def _look(self) -> None:
        facts = self._gathering.look()
        # The points' clock is monotonic: the host's wall clock may jump.
        now = time.monotonic()
        if self._history.due(now):
            addresses = {
                name: one.metrics_address for name, one in facts.cluster.statuses.items() if one.metrics_address
            }
            counts = counts_of(addresses)
            self._metrics = len(counts)
            self._point = self._history.add(now, counts, None if facts.zookeeper_problem else facts.zookeeper_seconds)
        before = None if self._seen is None else self._seen.facts
        # Copied in this thread, because only it changes the fragments.
        ids, unreadable = facts.observed.fragments.ledgers(), facts.observed.unreadable
        ledgers = sorted({*ids, *unreadable} if unreadable else ids)
        by_shape = facts.observed.fragments.by_shape()
        self._seen = Seen(
            facts, before, health_of(facts), self._point, self._metrics, ledgers=ledgers, by_shape=by_shape
        )
