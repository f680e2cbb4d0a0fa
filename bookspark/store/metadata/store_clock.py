"""The time of a cluster, by the clock of its metadata store: ZooKeeper's leader.

Law: a time that another host judges is read here and nowhere else, so the wall clock of no host decides for another. A host's own
clock counts while it agrees with the store's within ``AGREES_MS``; else the store's time counts. Between two readings of the
store's time only the monotonic clock runs, so a host whose clock is set keeps the time that it had. Who reads a kept time that
lies ahead distrusts it (``protocol.kept_times``).

ZooKeeper tells its time only as that of a change. So who changes a cluster (``now_ms``) makes a node of its own and deletes it,
once in ``RENEW_SECONDS``. Who only looks (``known_ms``) writes nothing: it knows the time from a bookie's answer
(``store.cluster_view``), and without one shows the time by its own clock.

Source: docs/decisions/clocks.md, with a list of all kept times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from bookspark.errors import MetadataStoreError
from bookspark.protocol.kept_times import AGREES_MS

RENEW_SECONDS = 600.0
"""Age of a reading after which a writer of the cluster's records reads the store's time again."""
_MS = 1_000_000


class _Reading(NamedTuple):
    """Bounds of the store's time, and the time that counts, each in ns after the monotonic clock of this host."""

    least_ns: int
    most_ns: int
    counts_ns: int
    at_ns: int
    """Moment of the reading, by the monotonic clock."""
    own: bool
    """True: this session read the time from the store. False: it came from a bookie or another caller."""


class StoreClock:
    """The store's time, for one session. Thread-safe: a reading is replaced as a whole."""

    def __init__(self, ask: Callable[[], int], renew_seconds: float = RENEW_SECONDS) -> None:
        """``ask`` changes something in the store and returns the time of that, in ms since 1970. Raises MetadataStoreError."""
        self._ask, self._renew_ns = ask, round(renew_seconds * 1e9)
        self._reading: _Reading | None = None

    def ahead_ns(self) -> int:
        """Difference between the time now and ``time.monotonic_ns()``. Raises MetadataStoreError if the store was never
        reached."""
        reading = self._reading
        sent_ns = time.monotonic_ns()
        if reading is None or not reading.own or sent_ns >= reading.at_ns + self._renew_ns:
            try:
                self._take(self._ask(), sent_ns, own=True)
            except MetadataStoreError:
                if reading is None:
                    raise
        assert self._reading is not None
        return self._reading.counts_ns

    def now_ms(self) -> int:
        """The time now, in ms since 1970, for who changes the cluster. Raises as ``ahead_ns``."""
        return (self.ahead_ns() + time.monotonic_ns()) // _MS

    def known_ms(self) -> int:
        """The time now, in ms since 1970, as far as it is known here. Asks nobody."""
        reading = self._reading
        return time.time_ns() // _MS if reading is None else (reading.counts_ns + time.monotonic_ns()) // _MS

    def store_ms(self) -> int:
        """The store's own time now, in ms since 1970, not later than it is; 0 if it is not known. Asks nobody."""
        reading = self._reading
        return 0 if reading is None else (reading.least_ns + time.monotonic_ns()) // _MS

    def host_ahead_ms(self) -> int:
        """Least lead of this host's wall clock over the store's; below 0: least lag; 0 if it is not known. Asks nobody."""
        reading, wall_ns = self._reading, _wall_ahead_ns()
        if reading is None or reading.least_ns <= wall_ns <= reading.most_ns:
            return 0
        off_ns = wall_ns - (reading.most_ns if wall_ns > reading.most_ns else reading.least_ns)
        return round(off_ns / _MS)

    def heard(self, store_ms: int, sent_ns: int) -> None:
        """Take ``store_ms`` for the store's time at some moment between ``sent_ns`` (of ``time.monotonic_ns``) and now, unless
        this session has asked the store itself."""
        reading = self._reading
        if reading is None or not reading.own:
            self._take(store_ms, sent_ns, own=False)

    def doubt(self) -> None:
        """Ask again before the next change: the connection was lost, as when this machine stood still, and with it the monotonic
        clock."""
        if self._reading is not None:
            self._reading = self._reading._replace(own=False)

    def _take(self, store_ms: int, sent_ns: int, own: bool) -> None:
        at_ns = time.monotonic_ns()
        least_ns, most_ns = store_ms * _MS - at_ns, (store_ms + 1) * _MS - sent_ns
        wall_ns, agrees_ns = _wall_ahead_ns(), AGREES_MS * _MS
        agrees = least_ns - agrees_ns <= wall_ns <= most_ns + agrees_ns
        counts_ns = wall_ns if agrees else min(max(wall_ns, least_ns), most_ns)
        self._reading = _Reading(least_ns, most_ns, counts_ns, at_ns, own)


def _wall_ahead_ns() -> int:
    """This host's wall clock minus its monotonic clock."""
    readings = ((time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(3))
    before_ns, wall_ns, after_ns = min(readings, key=lambda one: one[2] - one[0])
    return wall_ns - (before_ns + after_ns) // 2
