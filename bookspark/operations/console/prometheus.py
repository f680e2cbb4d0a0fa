"""The cluster's figures of up to a week, from a Prometheus that scrapes its bookies.

Law: Prometheus is asked by one look at a time for each range, with ``_SECONDS_MAX`` for an answer of at most ``_BYTES_MAX``. A
figure that it lacks is unknown.

Source: the HTTP API of Prometheus, ``/api/v1/query_range``.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from bookspark.errors import ConfigurationError, ReadError
from bookspark.operations.console.figures import Point, Values, ended_after

_SECONDS_MAX = 3.0
_BYTES_MAX = 4 << 20
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
        connection = kind(self._host, self._port, timeout=_SECONDS_MAX)
        asked = urlencode({"query": query, "start": start, "end": end, "step": step}, quote_via=quote)
        try:
            with ended_after(connection, _SECONDS_MAX):
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
