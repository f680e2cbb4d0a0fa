"""Times that select rows of a log, and the times of rows.

Law: rows of one commit have one time, that of the commit. In each lane a time selects the first row of that time or later;
without such a row, the lane's end.

A time is written as in Spark's Kafka source, in ms since 1970, or as ISO 8601 with its offset from UTC
(``2026-11-22T14:05:00+01:00``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any

from bookspark.errors import ConfigurationError
from bookspark.logs.rows.splits import Piece, TimedRows
from bookspark.protocol.ledger.accepted_loss import MILLISECONDS_MAX

if TYPE_CHECKING:
    import pyarrow

A_TIME = "a time: ms since 1970, or ISO 8601 with an offset, like 2026-11-22T14:05:00+01:00"
"""Accepted forms of a time, in words."""
_LANE = re.compile(r"0|[1-9][0-9]{0,17}")
TIMES_OF_LANES = 'a JSON object with a time for each lane, like {"0": 1795356300000, "3": "2026-11-22T14:05:00Z"}'


@dataclass(frozen=True)
class Times:
    """A time for each lane of a log, in ms since 1970."""

    all_ms: int | None = None
    """Time for lanes that are not in ``lanes``; None: no selection by time."""
    lanes: Mapping[int, int] = field(default_factory=dict)

    def of_lane(self, lane: int) -> int | None:
        """Time for a lane; None: no selection by time."""
        return self.lanes.get(lane, self.all_ms)


def check_lanes(log: str, named: Collection[int], lanes: Collection[int]) -> None:
    """Raise ConfigurationError if a ``named`` lane is not one of the log's ``lanes``."""
    missing = set(named) - set(lanes)
    if missing:
        raise ConfigurationError(
            f"log {log!r} has no lane {min(missing)}: its lanes are {', '.join(map(str, sorted(lanes)))}"
        )


def time_ms(text: str) -> int:
    """Parse a time, in ms since 1970. Raises ValueError."""
    if text.strip().isdigit():
        found = int(text)
    else:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            raise ValueError("without its offset from UTC a time means another one in another place")
        found = round(moment.timestamp() * 1000)
    if not 0 <= found <= MILLISECONDS_MAX:
        raise ValueError("before 1970, or after 9999")
    return found


def one_time(text: str) -> Times:
    """The same time for all lanes. Raises ValueError."""
    return Times(time_ms(text))


def rows_of_lanes(text: str, least: int) -> dict[int, int]:
    """Parse a JSON object of rows, from ``least`` on, by lane number. Raises ValueError."""
    document = _by_lane(text)
    if not all(type(row) is int and least <= row < 1 << 63 for row in document.values()):
        raise ValueError("no rows")
    return {int(key): row for key, row in document.items()}


def times_of_lanes(text: str) -> Times:
    """Parse a JSON object of times by lane number. Raises ValueError."""
    document = _by_lane(text)
    if not all(type(value) in (int, str) for value in document.values()):
        raise ValueError("no times")
    return Times(lanes={int(key): time_ms(str(value)) for key, value in document.items()})


def _by_lane(text: str) -> dict[str, Any]:
    """Parse a JSON object whose names are lane numbers. Raises ValueError."""
    document = json_object(text)
    if not document or not all(_LANE.fullmatch(key) for key in document):
        raise ValueError("no object with numbers of lanes")
    return document


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object in which no name comes twice: one of its two values would count for nothing. Raises ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name comes twice")
        return dict(pairs)

    try:
        document = json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document


class RowTimes:
    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._left: list[TimedRows] = [timed for piece in pieces for timed in piece.times][::-1]

    def each(self) -> Iterator[int]:
        """Times of all remaining rows, in ms since 1970."""
        while self._left:
            rows, time_ms = self._left.pop()
            yield from repeat(time_ms, rows)

    def take(self, rows: int) -> pyarrow.Array:
        """Times of the next ``rows`` rows: an Arrow array of timestamps in microseconds, in UTC."""
        import numpy
        import pyarrow

        counts, times = [], []
        while rows:
            timed = self._left.pop()
            count = min(rows, timed.rows)
            if count < timed.rows:
                self._left.append(timed._replace(rows=timed.rows - count))
            counts.append(count)
            times.append(timed.time_ms)
            rows -= count
        values = numpy.repeat(numpy.array(times, numpy.int64) * 1000, counts)
        return pyarrow.array(values).view(pyarrow.timestamp("us", tz="UTC"))
