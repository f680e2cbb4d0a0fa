"""What the bookies' metrics say of adds and reads, and the last hour of it.

Law: a figure is that of the bookies that answered twice; a bookie that was started again counts from its next answer on. What
nobody told is None, never 0. A bookie that is slow or sends nonsense costs ``_SECONDS_MAX`` and ``_BYTES_MAX`` at most.
"""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

HISTORY_SECONDS = 3600.0
"""How far back the points go."""
POINT_SECONDS = 10.0
"""The shortest time between two points."""
_SECONDS_MAX = 2.0
_BYTES_MAX = 4 << 20
_AT_ONCE = 8
_BOOKIE = "bookspark_bookie_"

log = logging.getLogger(__name__)

Counts = Mapping[str, float]
"""Sums of one bookie's counters since its start, by the name of the metric."""


class Point(NamedTuple):
    """The whole cluster between two moments. None: nobody told."""

    at: float
    """The end, in seconds of a clock that never jumps."""
    adds: float | None
    """Entries that bookies took in, a second; each copy counts."""
    added_bytes: float | None
    """Bytes of these, a second."""
    reads: float | None
    """Entries that bookies sent to readers, a second."""
    add_ms: float | None
    """The mean time of an add; None too if there was none."""
    read_ms: float | None
    """The mean time of an answer to a read; None too if there was none."""
    zookeeper_ms: float | None
    """How long ZooKeeper took for a small read."""


class History:
    """The points of the last hour."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=int(HISTORY_SECONDS / POINT_SECONDS) + 1)
        self._before: dict[str, Counts] = {}
        self._before_at: float | None = None

    def due(self, now: float) -> bool:
        """Is it time for the next point?"""
        return self._before_at is None or now - self._before_at >= POINT_SECONDS

    def add(self, now: float, counts: Mapping[str, Counts], zookeeper_seconds: float | None) -> None:
        """Note what each bookie's counters are ``now``, and what passed since the last time."""
        grown: dict[str, float] = {}
        for bookie, now_there in counts.items():
            before = self._before.get(bookie)
            if before is None or any(now_there.get(name, 0) < value for name, value in before.items()):
                continue
            for name, value in now_there.items():
                grown[name] = grown.get(name, 0.0) + value - before.get(name, 0.0)
        seconds = 0.0 if self._before_at is None else now - self._before_at

        def rate(name: str) -> float | None:
            return grown[_BOOKIE + name] / seconds if seconds > 0 and _BOOKIE + name in grown else None

        def mean_ms(name: str) -> float | None:
            count = grown.get(f"{_BOOKIE}{name}_count", 0.0)
            return 1000 * grown.get(f"{_BOOKIE}{name}_sum", 0.0) / count if count else None

        self.points.append(
            Point(
                now,
                rate("added_entries_total"),
                rate("added_bytes_total"),
                rate("read_entries_total"),
                mean_ms("add_seconds"),
                mean_ms("read_seconds"),
                None if zookeeper_seconds is None else 1000 * zookeeper_seconds,
            )
        )
        self._before, self._before_at = dict(counts), now


_WANTED = frozenset(
    _BOOKIE + name
    for name in (
        "added_entries_total",
        "added_bytes_total",
        "read_entries_total",
        "add_seconds_sum",
        "add_seconds_count",
        "read_seconds_sum",
        "read_seconds_count",
    )
)


def counts_of(addresses: Mapping[str, str]) -> dict[str, Counts]:
    """The counters of the bookies that answer. ``addresses``: ``host:port`` of their metrics, by bookie."""
    if not addresses:
        return {}
    with ThreadPoolExecutor(min(_AT_ONCE, len(addresses)), "console-metrics") as pool:
        found = pool.map(_counts, addresses.values())
        return {bookie: counts for bookie, counts in zip(addresses, found, strict=True) if counts is not None}


def _counts(address: str) -> Counts | None:
    try:
        return parsed(_scraped(address))
    except (OSError, ValueError, http.client.HTTPException) as error:
        log.debug("metrics of %s can't be read: %s", address, error)
        return None


def parsed(text: str) -> dict[str, float]:
    """The wanted counters of a page for Prometheus, each summed over its labels. Raises ValueError if a value is no number."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        if name in _WANTED:
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


def _scraped(address: str) -> str:
    host, _, port = address.rpartition(":")
    # Not urllib: it asks the proxy that the environment names.
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_SECONDS_MAX)
    deadline = threading.Timer(_SECONDS_MAX, _end, [connection])
    deadline.daemon = True
    deadline.start()
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(f"status {answer.status}")
        content = answer.read(_BYTES_MAX + 1)
        if len(content) > _BYTES_MAX:
            raise ValueError(f"more than {_BYTES_MAX} bytes")
        return content.decode(errors="replace")
    finally:
        deadline.cancel()
        connection.close()


def _end(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
