"""Looks at all logs in turn, and keeps the last result and the figures of each.

Law: one log after the other, so a cluster of many logs costs no more at a time than one of few. The watch rests
``_RESTS_WATCHED`` times a look's processor time while pages are requested, else ``_RESTS`` times. A log that was made anew begins
with no figures.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import partial

from bookspark.logs import LogRegistry
from bookspark.operations.console.figures import LOG_MEAN_SECONDS, POINT_SECONDS, Track, Values
from bookspark.operations.console.logs import KeptLog, LogSeen, LogsKnown, look_at
from bookspark.operations.console.looks import PAGE_SECONDS, Look, Looks
from bookspark.store.client import BookKeeper
from bookspark.support.threads import BackOff, Repeated

_RESTS, _RESTS_WATCHED = 130, 10
_REST_SECONDS_MAX = 60.0
_ROUND_SECONDS = POINT_SECONDS
"""Least time between two looks at one log."""
_NAMES_SECONDS = 5.0
_WATCHED_SECONDS = 10.0
_END_SECONDS_MAX = 30.0
_READERS_TRACKED = 8
_BEHIND_SECONDS = 60.0


class LogWatch:
    """Looks until ``close``. Thread-safe."""

    def __init__(self, bookkeeper: BookKeeper, looks: Looks) -> None:
        self._bookkeeper, self._looks = bookkeeper, looks
        self._kept: dict[str, KeptLog] = {}
        self._lock = threading.Lock()
        self._names: list[str] | None = None
        self._round_at = float("-inf")
        """Start of the last round."""
        self._turns: deque[str] = deque()
        self._asked = float("-inf")
        self._thread = Repeated("console logs", self._turn, BackOff(1.0, _REST_SECONDS_MAX))
        self._thread.start()

    def kept(self) -> Mapping[str, KeptLog]:
        """The last looks, by the log's name, of logs that are there."""
        self._watched()
        with self._lock:
            return dict(self._kept)

    def look(self, name: str, seconds: float) -> Look[LogSeen]:
        """A look at one log that is at most some seconds old, as ``Looks.of``."""
        self._watched()
        return self._looks.of(("log", name), partial(self._look, name), seconds)

    def names(self, seconds: float) -> Look[list[str]]:
        """The names of all logs, sorted, as ``Looks.of``."""
        self._watched()
        return self._looks.of("logs", self._read_names, seconds)

    def known(self) -> LogsKnown | None:
        """Totals of what was seen; None: the names are not known yet."""
        kept = self.kept().values()
        if self._names is None:
            return None
        readers = [one for log in kept for one in log.seen.readers]
        behind = sum(one.lag_rows is None or (one.lag_seconds or 0.0) > _BEHIND_SECONDS for one in readers)
        return LogsKnown(len(self._names), len(kept), sum(one.rows for one in kept), len(readers), behind)

    def close(self) -> None:
        """Stop. Returns after the running look has ended, or after ``_END_SECONDS_MAX``."""
        self._thread.stop(_END_SECONDS_MAX)

    def _watched(self) -> None:
        now = time.monotonic()
        slept, self._asked = now - self._asked > _WATCHED_SECONDS, now
        if slept:
            self._thread.wake()

    def _turn(self) -> float:
        began = time.process_time()
        soon = self._next()
        cost = time.process_time() - began
        watched = time.monotonic() - self._asked < _WATCHED_SECONDS
        return max(soon, min((_RESTS_WATCHED if watched else _RESTS) * cost, _REST_SECONDS_MAX))

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
