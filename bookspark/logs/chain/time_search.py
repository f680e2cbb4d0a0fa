"""Search for a time in an ascending sequence of times, where one read returns a few neighbours.

Law: the result is the first place with the wanted time or a later one, as a scan of all places would return. Times are roughly
evenly spaced, so the search interpolates, but only as far from the middle as later halving can make good. However uneven the
times, the number of reads is at most log2(n / stretch), rounded up, plus 5.

There is no index beside the times (docs/decisions/lanes.md). ``KnownTimes`` keeps times already read, 16 bytes each; a search
starts between the two neighbours of the wanted time. In a known log it costs one read, and none if the neighbours are adjacent.

Source: the bound of Oliveira and Takahashi, "An enhancement of the bisection method average performance preserving minmax
optimality" (2020).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_MORE_READS = 2
"""Number of reads allowed beyond plain halving."""


class Between(NamedTuple):
    """Known bounds of a time's place: arguments of ``first_at``."""

    low: int
    high: int | None
    before_ms: int | None
    after_ms: int | None


class KnownTimes:
    """Times of some places of one ledger, in order; they never change."""

    def __init__(self) -> None:
        self._places, self._times = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._places)

    @property
    def newest_ms(self) -> int | None:
        return self._times[-1] if self._times else None

    def add(self, place: int, time_ms: int) -> None:
        at = bisect_left(self._places, place)
        if at == len(self._places) or self._places[at] != place:
            self._places.insert(at, place)
            self._times.insert(at, time_ms)

    def around(self, time_ms: int, low: int, before_ms: int | None = None) -> Between:
        """Bounds of the first place with ``time_ms`` or a later time. ``low``: a lower bound of the place; ``before_ms``: a time
        not later than that of ``low``."""
        at, high, after_ms = bisect_left(self._times, time_ms), None, None
        if at < len(self._places):
            high, after_ms = self._places[at], self._times[at]
        if at and self._places[at - 1] >= low:
            low, before_ms = self._places[at - 1] + 1, self._times[at - 1]
        return Between(low, high, before_ms, after_ms)

    def thin(self) -> None:
        del self._places[::2], self._times[::2]


class Looked(Sequence[int]):
    """Times of places that were read. An access decodes the time and adds it to the known times."""

    def __init__(self, known: KnownTimes, first: int, count: int, time_of: Callable[[int], int]) -> None:
        """``first``: the first place. ``time_of``: the time of a place."""
        self._known, self._first, self._count, self._time_of = known, first, count, time_of

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        place = self._first + (index if index >= 0 else self._count + index)
        time_ms = self._time_of(place)
        self._known.add(place, time_ms)
        return time_ms


def first_at(
    time_ms: int,
    low: int,
    high: int,
    read: Callable[[int, int], Sequence[int]],
    stretch: int,
    before_ms: int | None = None,
    after_ms: int | None = None,
) -> int:
    """The first place in [``low``, ``high``) whose time is ``time_ms`` or later; ``high`` if there is none.

    ``read(first, last)``: the times of these places. ``stretch``: number of places in one read. ``before_ms``: a time not later
    than that of ``low``. ``after_ms``: a time not earlier than all of them. None: unknown; the search reads that end first."""
    if low < high and after_ms is None:
        times = read(first := max(low, high - stretch), high - 1)
        after_ms = times[-1]
        if after_ms < time_ms:
            return high
        high = first + bisect_left(times, time_ms)
        if high > first:
            return high
        after_ms = times[0]
    if low < high and before_ms is None:
        times = read(low, min(low + stretch, high) - 1)
        index = bisect_left(times, time_ms)
        if index < len(times):
            return low + index
        low, before_ms = low + len(times), times[-1]
    left = stretch / 2 * 2.0 ** (_MORE_READS + math.ceil(math.log2(max(1.0, (high - low + 1) / stretch))))
    while low < high:
        first = low
        if high - low > stretch:
            assert before_ms is not None and after_ms is not None
            first = _place(time_ms - 0.5, low - 1, high, before_ms, after_ms, left) - stretch // 2
            first = min(max(first, low), high - stretch)
        times = read(first, min(first + stretch, high) - 1)
        index = bisect_left(times, time_ms)
        if index == len(times):
            low, before_ms = first + index, times[-1]
        elif index or first == low:
            return first + index
        else:
            high, after_ms = first, times[0]
        left /= 2
    return high


def _place(time_ms: float, low: int, high: int, low_ms: int, high_ms: int, left: float) -> int:
    """Place of the next read, between two places with these times; the bounds may be twice ``left`` apart after the read."""
    distance, middle = high - low, (low + high) / 2
    guess = low + distance * (time_ms - low_ms) / max(1, high_ms - low_ms)
    room = max(0.0, left - distance / 2)
    return round(min(max(guess, middle - room), middle + room))
