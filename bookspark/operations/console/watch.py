"""Looks at the cluster in a thread of its own, often while somebody watches, and keeps what it saw.

Law: a page never looks at the cluster itself, so a thousand watchers cost it no more than one. The watch rests for at least
``_RESTS`` times what a look cost the processor, up to ``_REST_SECONDS_MAX``, so a large cluster is looked at less often.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from bookspark.operations.console.figures import History, Point, counts_of
from bookspark.operations.why.facts import Facts, Health
from bookspark.operations.why.gathering import Gathering
from bookspark.operations.why.troubles import health_of
from bookspark.protocol.changes.observed import Shape
from bookspark.store.client import BookKeeper
from bookspark.support.plain_text import one_line

LIVE_SECONDS = 2.0
"""Between two looks while somebody watches."""
IDLE_SECONDS = 10.0
"""Between two looks while nobody does: the plots go on."""
_WATCHED_SECONDS = 10.0
"""Who asked this long ago still watches."""
_RESTS = 130
"""So a look costs less than 1 % of a core."""
_REST_SECONDS_MAX = 60.0
_END_SECONDS_MAX = 30.0

log = logging.getLogger(__name__)


class Seen(NamedTuple):
    """What was seen at the last look."""

    facts: Facts
    before: Facts | None
    """The look before, for rates."""
    health: Health
    points: tuple[Point, ...]
    """The last hour, the oldest first."""
    at: float
    """When, in seconds of the clock of the points."""
    metrics: int
    """How many bookies answered with metrics."""
    problem: str = ""
    """Why the looks since then failed."""
    ledgers: Sequence[int] = ()
    """The ids of all ledgers, ascending. The facts' fragments are the watch's own: it changes them in place as it looks again."""
    by_shape: Mapping[Shape, Collection[int]] = MappingProxyType({})
    """The ledgers of each shape of fragments, as they were then."""


class Watch:
    """Looks until ``close``."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper
        self._gathering = Gathering(bookkeeper)
        self._history = History()
        self._metrics = 0
        self._seen: Seen | None = None
        self._asked = float("-inf")
        self._closing = False
        self._wake = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-watch", daemon=True)
        self._thread.start()

    def seen(self, timeout: float = 5.0) -> Seen | None:
        """What was seen last. None if the first look did not end within ``timeout`` seconds."""
        now = time.monotonic()
        slept, self._asked = now - self._asked > _WATCHED_SECONDS, now
        if slept:
            self._wake.set()
        self._first.wait(timeout)
        return self._seen

    def close(self) -> None:
        """Look no more. Returns once the look that is under way has ended."""
        self._closing = True
        self._wake.set()
        self._thread.join(_END_SECONDS_MAX)

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            began = time.process_time()
            try:
                self._look()
            except Exception as error:
                # What is shown is told to be old, and the next look may do better.
                log.warning("the cluster could not be looked at: %s: %s", type(error).__name__, error)
                if self._seen is not None:
                    self._seen = self._seen._replace(problem=one_line(error))
            self._first.set()
            cost = time.process_time() - began
            watched = time.monotonic() - self._asked < _WATCHED_SECONDS
            self._wake.wait(max(LIVE_SECONDS if watched else IDLE_SECONDS, min(_RESTS * cost, _REST_SECONDS_MAX)))

    def _look(self) -> None:
        facts = self._gathering.look()
        # The clock of the points: that of the host may jump.
        now = time.monotonic()
        if self._history.due(now):
            addresses = {name: one.metrics_address for name, one in facts.statuses.items() if one.metrics_address}
            counts = counts_of(addresses)
            self._metrics = len(counts)
            self._history.add(now, counts, None if facts.zookeeper_problem else facts.zookeeper_seconds)
        before = None if self._seen is None else self._seen.facts
        # Here, where nothing changes the fragments meanwhile.
        ids, unreadable = facts.observed.fragments.ledgers(), facts.observed.unreadable
        ledgers = sorted({*ids, *unreadable} if unreadable else ids)
        by_shape = facts.observed.fragments.by_shape()
        points = tuple(self._history.points)
        self._seen = Seen(
            facts, before, health_of(facts), points, now, self._metrics, ledgers=ledgers, by_shape=by_shape
        )
