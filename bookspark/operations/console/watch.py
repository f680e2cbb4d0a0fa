"""Threads that look at the cluster and at its logs, more often while pages are requested, and keep the last results.

Law: requests never start a look at the whole cluster, so a thousand viewers cost no more than one. The watch rests at least
``_RESTS`` times a look's processor time, up to ``_REST_SECONDS_MAX``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from bookspark.logs import LogRegistry
from bookspark.operations.console.figures import (
    LOG_MEAN_SECONDS,
    POINT_SECONDS,
    History,
    Point,
    Track,
    Values,
    counts_of,
)
from bookspark.operations.console.logs import KeptLog, LogSeen, LogsKnown, look_at
from bookspark.operations.console.looks import PAGE_SECONDS, Look, Looks
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


class _Attended:
    """A thread that looks until ``close``."""

    def __init__(self, name: str, retry: BackOff) -> None:
        self._asked = float("-inf")
        self._thread = Repeated(name, self._turn, retry)
        self._thread.start()

    def close(self) -> None:
        """Stop. Returns after the running look has ended, or after ``_END_SECONDS_MAX``."""
        self._thread.stop(_END_SECONDS_MAX)

    def _attend(self) -> None:
        """Note a request, and wake a thread that rests long."""
        now = time.monotonic()
        slept, self._asked = now - self._asked > _WATCHED_SECONDS, now
        if slept:
            self._thread.wake()

    def _is_watched(self) -> bool:
        return time.monotonic() - self._asked < _WATCHED_SECONDS

    def _turn(self) -> float:
        raise NotImplementedError


class Watch(_Attended):
    """Looks until ``close``."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._gathering = Gathering(bookkeeper)
        self._history = History()
        self.track: Track = self._history.track
        """The cluster's figures, as ``Point``."""
        self._point: Point | None = None
        self._metrics = 0
        self._seen: Seen | None = None
        self._first = threading.Event()
        super().__init__("console watch", BackOff(LIVE_SECONDS, IDLE_SECONDS))

    def seen(self, timeout: float = 5.0) -> Seen | None:
        """The last result. None if the first look did not end within ``timeout`` seconds."""
        self._attend()
        self._first.wait(timeout)
        return self._seen

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
        return max(LIVE_SECONDS if self._is_watched() else IDLE_SECONDS, min(_RESTS * cost, _REST_SECONDS_MAX))

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


# -- All logs in turn: the last look and the figures of each
#
# Law: one log after the other, so a cluster of many logs costs no more at a time than one of few. The watch rests
# ``_LOG_RESTS_WATCHED`` times a look's processor time while pages are requested, else ``_LOG_RESTS`` times. A log that was made
# anew begins with no figures.


_LOG_RESTS, _LOG_RESTS_WATCHED = 130, 10
_ROUND_SECONDS = POINT_SECONDS
"""Least time between two looks at one log."""
_NAMES_SECONDS = 5.0
_READERS_TRACKED = 8
_BEHIND_SECONDS = 60.0


class LogWatch(_Attended):
    """Looks until ``close``. Thread-safe."""

    def __init__(self, bookkeeper: BookKeeper, looks: Looks) -> None:
        self._bookkeeper, self._looks = bookkeeper, looks
        self._kept: dict[str, KeptLog] = {}
        self._lock = threading.Lock()
        self._names: list[str] | None = None
        self._round_at = float("-inf")
        """Start of the last round."""
        self._turns: deque[str] = deque()
        super().__init__("console logs", BackOff(1.0, _REST_SECONDS_MAX))

    def kept(self) -> Mapping[str, KeptLog]:
        """The last looks, by the log's name, of logs that are there."""
        self._attend()
        with self._lock:
            return dict(self._kept)

    def look(self, name: str, seconds: float) -> Look[LogSeen]:
        """A look at one log that is at most some seconds old, as ``Looks.of``."""
        self._attend()
        return self._looks.of(("log", name), partial(self._look, name), seconds)

    def names(self, seconds: float) -> Look[list[str]]:
        """The names of all logs, sorted, as ``Looks.of``."""
        self._attend()
        return self._looks.of("logs", self._read_names, seconds)

    def known(self) -> LogsKnown | None:
        """Totals of what was seen; None: the names are not known yet."""
        kept = self.kept().values()
        if self._names is None:
            return None
        readers = [one for log in kept for one in log.seen.readers]
        behind = sum(one.lag_rows is None or (one.lag_seconds or 0.0) > _BEHIND_SECONDS for one in readers)
        return LogsKnown(len(self._names), len(kept), sum(one.rows for one in kept), len(readers), behind)

    def _turn(self) -> float:
        began = time.process_time()
        soon = self._next()
        cost = time.process_time() - began
        rests = _LOG_RESTS_WATCHED if self._is_watched() else _LOG_RESTS
        return max(soon, min(rests * cost, _REST_SECONDS_MAX))

    def _next(self) -> float:
        """Look at the next log. Returns the least seconds until the following turn."""
        now = time.monotonic()
        if not self._turns:
            if now - self._round_at < _NAMES_SECONDS:
                return _NAMES_SECONDS - (now - self._round_at)
            self._round_at = now
            self._turns.extend(self._read_names())
        while self._turns:
            name = self._turns.popleft()
            kept = self._kept.get(name)
            if kept is None or now - kept.at >= _ROUND_SECONDS:
                look = self._looks.of(("log", name), partial(self._look, name), PAGE_SECONDS)
                if look.found is None and not look.problem:
                    # It goes on: a further one would wait behind it, and the pages' looks behind that.
                    self._turns.appendleft(name)
                    return 1.0
                return 0.0
        return 1.0

    def _read_names(self) -> list[str]:
        names = LogRegistry(self._bookkeeper.metadata).names()
        there = set(names)
        with self._lock:
            for gone in self._kept.keys() - there:
                del self._kept[gone]
        self._names = names
        return names

    def _look(self, name: str) -> LogSeen:
        seen = look_at(self._bookkeeper, name)
        now = time.monotonic()
        rows, size = sum(lane.rows for lane in seen.lanes), sum(lane.size for lane in seen.lanes)
        with self._lock:
            before = self._kept.get(name)
            if before is not None and before.seen.record.log_id != seen.record.log_id:
                before = None
            track = Track(LOG_MEAN_SECONDS) if before is None else before.track
            readers = () if before is None else before.readers
            readers = tuple(dict.fromkeys((*readers, *(one.title for one in seen.readers))))[:_READERS_TRACKED]
            if seen.problem:
                self._kept[name] = KeptLog(seen, now, track, readers, 0, 0)
                return seen
            if before is not None and now - before.at < _ROUND_SECONDS / 2:
                # Figures are kept less often than pages look.
                self._kept[name] = before._replace(seen=seen)
                return seen
            rates: Values = (None, None)
            if before is not None and not before.seen.problem:
                passed = max(now - before.at, 1e-3)
                rates = ((rows - before.rows) / passed, (size - before.size) / passed)
            lags = {one.title: one.lag_rows for one in seen.readers}
            track.add(now, (*rates, *(lags.get(one) for one in readers)))
            self._kept[name] = KeptLog(seen, now, track, readers, rows, size)
        return seen
