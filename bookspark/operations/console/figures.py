"""Figures over time: rates of adds and reads from the bookies' metrics, and any other figures of up to a week.

Law: they are kept in memory, from the console's start. A figure covers the bookies that answered two consecutive scrapes; a
restarted bookie counts from its next answer on. An unknown figure is None, never 0. A slow or faulty bookie costs at most
``_SECONDS_MAX`` and ``_BYTES_MAX``.
"""

from __future__ import annotations

import http.client
import logging
import math
import socket
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from bookspark.errors import ConfigurationError, ReadError
from bookspark.support.addresses import split_address

HOUR_SECONDS = 3600.0
HISTORY_SECONDS = 7 * 86400.0
"""Age of the oldest point."""
POINT_SECONDS = 10.0
"""Least time between two points."""
MEAN_SECONDS = 120.0
"""Beyond the last hour, a point of the cluster is the mean of this time."""
LOG_MEAN_SECONDS = 900.0
"""The same for a log: there may be thousands."""
_SECONDS_MAX = 2.0
_BYTES_MAX = 4 << 20
_AT_ONCE = 8
_BOOKIE = "bookspark_bookie_"

log = logging.getLogger(__name__)

Counts = Mapping[str, float]
"""One bookie's counters since its start, by metric name."""


class Point(NamedTuple):
    """Figures of the whole cluster between two moments. None: not known."""

    adds: float | None
    """Entries added a second; each copy counts."""
    added_bytes: float | None
    """Bytes added a second; each copy counts."""
    reads: float | None
    """Entries sent to readers a second."""
    add_ms: float | None
    """Mean time of an add; also None without adds."""
    read_ms: float | None
    """Mean time of an answer to a read; also None without reads."""
    zookeeper_ms: float | None


Values = tuple[float | None, ...]
"""Some figures of one time; None: not known."""


class Track:
    """Some figures over time: every value of the last hour, and means of some seconds for a week. A later value may have more
    figures than an earlier one."""

    def __init__(self, mean_seconds: float = MEAN_SECONDS) -> None:
        self._mean_seconds = mean_seconds
        # Numbers in arrays: a console keeps the figures of all logs.
        self._fine: deque[tuple[float, array[float]]] = deque()
        self._means: deque[tuple[float, array[float]]] = deque(maxlen=int(HISTORY_SECONDS / mean_seconds) + 1)
        self._open: list[Values] = []
        self._since = 0.0

    def add(self, at: float, values: Values) -> None:
        """``at``: seconds of a clock that never goes back."""
        self._fine.append((at, _packed(values)))
        while at - self._fine[0][0] > HOUR_SECONDS:
            self._fine.popleft()
        if not self._open:
            self._since = at
        self._open.append(values)
        if at - self._since >= self._mean_seconds:
            self._means.append((at, _packed([_mean(each) for each in zip_longest(*self._open)])))
            self._open = []

    def last(self, seconds: float, now: float) -> list[tuple[float, Values]]:
        """Times and values of the last ``seconds`` up to ``now``, oldest first. Callable while another thread adds."""
        fine = self._fine.copy()
        oldest = fine[0][0] if fine else now
        means = [] if seconds <= HOUR_SECONDS else [one for one in self._means.copy() if one[0] < oldest]
        return [(at, _unpacked(values)) for at, values in (*means, *fine) if now - at <= seconds]


def _packed(values: Sequence[float | None]) -> array[float]:
    return array("d", [math.nan if one is None else one for one in values])


def _unpacked(values: array[float]) -> Values:
    return tuple(None if math.isnan(one) else one for one in values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


class History:
    """Points of the cluster, from the growth of counters."""

    def __init__(self) -> None:
        self.track = Track()
        self._before: dict[str, Counts] = {}
        self._before_at: float | None = None

    def due(self, now: float) -> bool:
        return self._before_at is None or now - self._before_at >= POINT_SECONDS

    def add(self, now: float, counts: Mapping[str, Counts], zookeeper_seconds: float | None) -> Point:
        """Add a point: the growth of each bookie's counters since the previous call."""
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

        point = Point(
            rate("added_entries_total"),
            rate("added_bytes_total"),
            rate("read_entries_total"),
            mean_ms("add_seconds"),
            mean_ms("read_seconds"),
            None if zookeeper_seconds is None else 1000 * zookeeper_seconds,
        )
        self.track.add(now, point)
        self._before, self._before_at = dict(counts), now
        return point


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
    """The counters of the answering bookies. ``addresses``: ``host:port`` of the metrics, by bookie."""
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
    """The wanted counters of a Prometheus page, summed over labels. Raises ValueError if a value is no number."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition(" ")[0].partition("{")[0]
        if name in _WANTED:
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


def _scraped(address: str) -> str:
    host, port = split_address(address)
    # Not urllib: it would use the proxy of the environment.
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS_MAX)
    with ended_after(connection, _SECONDS_MAX):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(f"status {answer.status}")
        content = answer.read(_BYTES_MAX + 1)
        if len(content) > _BYTES_MAX:
            raise ValueError(f"more than {_BYTES_MAX} bytes")
        return content.decode(errors="replace")


@contextmanager
def ended_after(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Close the connection at the block's end, and end it if the block takes longer. The connection's own timeout begins anew
    with each byte."""
    deadline = threading.Timer(seconds, _end, [connection])
    deadline.daemon = True
    deadline.start()
    try:
        yield
    finally:
        deadline.cancel()
        connection.close()


def _end(connection: http.client.HTTPConnection) -> None:
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


# -- The cluster's figures of up to a week, from a Prometheus that scrapes its bookies
#
# Law: Prometheus is asked by one look at a time for each range, with ``_PROMETHEUS_SECONDS_MAX`` for an answer of at most
# ``_BYTES_MAX``. A figure that it lacks is unknown.
#
# Source: the HTTP API of Prometheus, ``/api/v1/query_range``.


_PROMETHEUS_SECONDS_MAX = 3.0
_POINTS = 360
_SCRAPE_SECONDS = 60
"""A rate needs two scrapes: it covers at least four times the usual distance of scrapes, 15 s."""
_ADDED, _READ = "bookspark_bookie_add_seconds", "bookspark_bookie_read_seconds"


class Prometheus:
    """Reads the cluster's figures. Thread-safe."""

    def __init__(self, address: str) -> None:
        """``address``: URL of the Prometheus. Its query has labels that tell the cluster's bookies from others, for example
        ``http://127.0.0.1:9090?job=bookies``. Raises ConfigurationError."""
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.fragment:
            raise ConfigurationError(
                f"prometheus {address!r} is no address: give http://HOST:PORT, and labels of the bookies as its query "
                "(?job=bookies)"
            )
        try:
            port = url.port
        except ValueError as error:
            raise ConfigurationError(f"prometheus {address!r}: {error}") from error
        self._to, self._host, self._port = url.scheme, url.hostname, port
        self._path = url.path.rstrip("/") + "/api/v1/query_range"
        labels = dict(parse_qsl(url.query))
        if any(not name.isidentifier() for name in labels):
            raise ConfigurationError(f"prometheus {address!r}: its query has a name that is no label")
        # A label's value is quoted as in PromQL, whose strings have JSON's escapes.
        self._labels = ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in labels.items())

    def points(self, seconds: int) -> list[tuple[float, Values]]:
        """Points of the last ``seconds``: times in seconds since 1970, and the values of ``Point``. Raises ReadError."""
        step = max(1, seconds // _POINTS)
        window = max(_SCRAPE_SECONDS, 4 * step)
        end = time.time() // step * step
        asked = self._queries(window)
        found = {name: self._asked(query, end - seconds, end, step) for name, query in asked.items()}
        times = sorted({at for values in found.values() for at in values})
        return [(at, Point(**{name: found[name].get(at) for name in asked}, zookeeper_ms=None)) for at in times]

    def _queries(self, window: int) -> Mapping[str, str]:
        def rate(name: str) -> str:
            return f"sum(rate({name}{{{self._labels}}}[{window}s]))"

        def mean_ms(name: str) -> str:
            return f"1000 * {rate(name + '_sum')} / {rate(name + '_count')}"

        return {
            "adds": rate("bookspark_bookie_added_entries_total"),
            "added_bytes": rate("bookspark_bookie_added_bytes_total"),
            "reads": rate("bookspark_bookie_read_entries_total"),
            "add_ms": mean_ms(_ADDED),
            "read_ms": mean_ms(_READ),
        }

    def _asked(self, query: str, start: float, end: float, step: int) -> dict[float, float]:
        kind = http.client.HTTPSConnection if self._to == "https" else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_PROMETHEUS_SECONDS_MAX)
        asked = urlencode({"query": query, "start": start, "end": end, "step": step}, quote_via=quote)
        try:
            with ended_after(connection, _PROMETHEUS_SECONDS_MAX):
                connection.request("GET", f"{self._path}?{asked}")
                answer = connection.getresponse()
                content = answer.read(_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise ReadError(f"Prometheus can't be read: {error}") from error
        if answer.status != http.client.OK or len(content) > _BYTES_MAX:
            raise ReadError(f"Prometheus answered with status {answer.status} and {len(content):,} bytes")
        try:
            return _values(msgspec.json.decode(content))
        except msgspec.DecodeError as error:
            raise ReadError(f"Prometheus can't be read: {error}") from error


def _values(found: Any) -> dict[float, float]:
    """Values by time of a matrix with at most one series."""
    try:
        series = found["data"]["result"]
        told = {float(at): float(value) for at, value in series[0]["values"]} if series else {}
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise ReadError(f"Prometheus answered with no matrix: {error}") from error
    return {at: value for at, value in told.items() if math.isfinite(value)}
