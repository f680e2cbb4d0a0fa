"""Options of the start and end of a read of logs.

Law: at most one option sets each end. A place in several logs is a place for each log, never one number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bookspark.errors import ConfigurationError
from bookspark.logs.feeds.times import (
    A_TIME,
    TIMES_OF_LANES,
    Times,
    json_object,
    one_time,
    rows_of_lanes,
    times_of_lanes,
)
from bookspark.spark.options.given_options import GivenOptions

EARLIEST, LATEST = "earliest", "latest"
_POSITIONS = """a position (a number from 0), a JSON object with a position in each lane, like {"0": 12, "3": 7}"""
_STARTS = f"'earliest', {_POSITIONS} or, of a stream, 'latest'"
_ENDS = f"'latest', {_POSITIONS}"
_KAFKAS = {"-2": EARLIEST, "-1": LATEST}
"""The words that Kafka's source writes as numbers."""
Place = int | str | Mapping[int, int] | Times
"""A start or end of a read of a log: a row, EARLIEST or LATEST, a row of each lane, or times."""
_PLACES_OF_LOGS = """a JSON object with a place for each log, like {"a": 12, "b": {"0": 3, "1": 7}}"""
_TIMES_OF_LOGS = (
    """a JSON object with a time for each log, like {"a": 1795356300000, "b": {"0": "2026-11-22T14:05:00Z"}}"""
)

T = TypeVar("T")
_Taken = tuple[Callable[[str], T], str]


@dataclass(frozen=True)
class PlaceOfLogs:
    places: Mapping[str, Place]
    others: Place

    def of(self, log: str) -> Place:
        return self.places.get(log, self.others)


def place_in_log(options: GivenOptions, which: str) -> Place | None:
    """The start or end of a read of one log, or None. ``which``: ``starting`` or ``ending``. Raises ConfigurationError."""
    offsets = (_offset(EARLIEST, LATEST), _STARTS) if which == "starting" else (_offset(LATEST), _ENDS)
    return _place(options, which, offsets, (one_time, A_TIME), (times_of_lanes, TIMES_OF_LANES))


def place_in_logs(options: GivenOptions, which: str, all_rows: str) -> PlaceOfLogs | None:
    """The start or end of a read of several logs, or None. ``which``: ``starting`` or ``ending``; ``all_rows``: the word for all
    rows, on that side. Raises ConfigurationError."""

    def offsets(text: str) -> PlaceOfLogs:
        return PlaceOfLogs({}, all_rows) if text.lower() == all_rows else _of_logs(text, _offset(all_rows), all_rows)

    def one(text: str) -> PlaceOfLogs:
        return PlaceOfLogs({}, one_time(text))

    def times(text: str) -> PlaceOfLogs:
        return _of_logs(
            text, lambda time: (times_of_lanes if time.strip().startswith("{") else one_time)(time), all_rows
        )

    places = (offsets, f"{all_rows!r} or {_PLACES_OF_LOGS}")
    return _place(options, which, places, (one, A_TIME), (times, _TIMES_OF_LOGS))


def number(text: str) -> int:
    """A number from 0 below 2^63. Raises ValueError."""
    value = int(text)
    if not 0 <= value < 1 << 63:
        raise ValueError
    return value


def _offset(*words: str) -> Callable[[str], Place]:
    """Parses a place. ``words``: the allowed words, first the one for a lane without a row."""

    def place(text: str) -> Place:
        text = text.strip()
        if text.startswith("{"):
            return _rows(text, words[0])
        word = _KAFKAS.get(text, text.lower())
        return word if word in words else number(text)

    return place


def _rows(text: str, others: str) -> Place:
    """The rows of lanes from a JSON object, in which Kafka's number for ``others`` is as good as a missing lane. Raises
    ValueError."""
    rows = rows_of_lanes(text, least=-2)
    if any(row < 0 and _KAFKAS[str(row)] != others for row in rows.values()):
        raise ValueError("a lane's other end")
    return {lane: row for lane, row in rows.items() if row >= 0} or others


def _of_logs(text: str, place: Callable[[str], Place], others: Place) -> PlaceOfLogs:
    """The places by log from a JSON object, each parsed by ``place``. Raises ValueError."""
    texts = {log: said if isinstance(said, str) else json.dumps(said) for log, said in json_object(text).items()}
    return PlaceOfLogs({log: place(said) for log, said in texts.items()}, others)


def _place(options: GivenOptions, which: str, offsets: _Taken[T], one: _Taken[T], times: _Taken[T]) -> T | None:
    """The place from one of three options, or None. ``which``: ``starting`` or ``ending``."""
    places = {
        f"{which}Offsets": options.take(f"{which}Offsets", *offsets),
        f"{which}Timestamp": options.take(f"{which}Timestamp", *one),
        f"{which}OffsetsByTimestamp": options.take(f"{which}OffsetsByTimestamp", *times),
    }
    given = {name: place for name, place in places.items() if place is not None}
    if len(given) > 1:
        raise ConfigurationError(f"options {' and '.join(given)} say two things: give one of them")
    return next(iter(given.values()), None)
