"""Histograms of durations or sizes, in a few fixed buckets.

Law: one thread counts at a time, and any thread may copy, without a lock. A copy of the list is one step of the interpreter.
It may have a count whose value is not in the sum yet, but no bucket above the whole. So a scrape costs the counting thread
nothing, and is wrong by one observation at most. An observation takes about 0.2 µs: for a request, a batch or a sync, not for
an entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds for durations in seconds. A fast disk syncs within the first bound."""
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
BYTES = tuple(1 << shift for shift in range(8, 29, 2))
"""Bounds for sizes: 256 B to 256 MiB, each four times the bound before."""


class Distribution(NamedTuple):
    """A copy of a histogram."""

    bounds: Sequence[float]
    counts: Sequence[int]
    """Number of values up to each bound and above the bound before; the last: above all bounds."""
    total: float

    @property
    def cumulated(self) -> list[int]:
        """Number of values up to each bound, and at the end of all values, as in Prometheus."""
        return list(accumulate(self.counts))


class Histogram:
    __slots__ = ("_bounds", "_values")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """``bounds``: ascending. A value equal to a bound counts below it."""
        self._bounds = bounds
        self._values: list[float] = [0] * (len(bounds) + 2)

    def observe(self, value: float, times: int = 1) -> None:
        values = self._values
        values[bisect_left(self._bounds, value)] += times
        values[-1] += value * times

    def copy(self) -> Distribution:
        """The counts until now. In any thread."""
        *counts, total = self._values[:]
        return Distribution(self._bounds, [int(count) for count in counts], total)


def together(distributions: Iterable[Distribution]) -> Distribution:
    """The sum of distributions with the same bounds. At least one."""
    found = list(distributions)
    counts = [sum(column) for column in zip(*(one.counts for one in found), strict=True)]
    return Distribution(found[0].bounds, counts, sum(one.total for one in found))
