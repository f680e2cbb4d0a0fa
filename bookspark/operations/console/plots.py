"""Plots of figures over time, drawn by the page's script from JSON.

Law: a gap stays a gap: no line is drawn over unknown values. A page asks for one range of time, and an answer has at most
``_POINTS_MAX`` points a plot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from bookspark.operations.console.figures import HISTORY_SECONDS, HOUR_SECONDS, MEAN_SECONDS, Values
from bookspark.operations.console.pages import Markup, render

RANGES = (
    (900, "15 minutes"),
    (int(HOUR_SECONDS), "1 hour"),
    (6 * 3600, "6 hours"),
    (86400, "1 day"),
    (int(HISTORY_SECONDS), "7 days"),
)
"""Seconds and words of each range."""
_POINTS_MAX = 720
_GAP = 4.0
"""Points that are further apart than this many usual distances are not joined."""


class Plot(NamedTuple):
    key: str
    title: str
    unit: str
    """``/s``, ``B/s``, ``ms`` or a noun in the plural."""
    series: Sequence[tuple[str, int]] = ()
    """Label of each line, and the place of its figure among the values; empty: the lines vary."""


class Lines(NamedTuple):
    """A plot's values: times in seconds since 1970, and the values of each line at these times."""

    x: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]


def section(plots: Sequence[Plot], source: str) -> Markup:
    """The plots' part of a page. ``source``: address of their figures, without the range. No live part, so updates keep what
    somebody looks at."""
    return render("plots.html", plots=plots, source=source, ranges=RANGES)


def seconds_of(asked: str) -> int:
    """The asked range in seconds. Raises ValueError, with a sentence for the page."""
    known = {str(seconds): seconds for seconds, _ in RANGES}
    if asked not in known:
        raise ValueError(f"{asked!r} is no range: give {', '.join(known)} seconds")
    return known[asked]


def lines(plot: Plot, points: Sequence[tuple[float, Values]], clock: float) -> Lines:
    """``clock``: seconds to add to the points' clock for seconds since 1970."""
    kept = with_gaps(thinned(points))
    return Lines(
        [round(at + clock, 1) for at, _ in kept],
        {label: [_at(values, place) for _, values in kept] for label, place in plot.series},
    )


def _at(values: Values | None, place: int) -> float | None:
    return None if values is None or place >= len(values) else values[place]


def thinned(points: Sequence[tuple[float, Values]]) -> list[tuple[float, Values]]:
    """Every n-th point, the newest among them."""
    step = -(-len(points) // _POINTS_MAX) or 1
    return list(points[(len(points) - 1) % step :: step])


def with_gaps(points: Sequence[tuple[float, Values]]) -> list[tuple[float, Values | None]]:
    """The points, with an unknown one where many are missing."""
    found: list[tuple[float, Values | None]] = []
    distances = sorted(later[0] - earlier[0] for earlier, later in pairwise(points))
    usual = max(distances[len(distances) // 2], MEAN_SECONDS / _GAP) if distances else 0.0
    for at, values in points:
        if found and at - found[-1][0] > _GAP * usual:
            found.append(((at + found[-1][0]) / 2, None))
        found.append((at, values))
    return found


def answer(seconds: float, source: str, plots: Mapping[str, Lines]) -> bytes:
    """The figures as JSON. ``source``: a sentence on their origin."""
    now = time.time()
    return msgspec.json.encode(
        {
            "from": now - seconds,
            "to": now,
            "source": source,
            "plots": {key: {"x": one.x, "lines": one.lines} for key, one in plots.items()},
        }
    )
