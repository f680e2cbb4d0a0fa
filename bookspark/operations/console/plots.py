"""Lines over the last hour, as SVG within a page.

Law: a picture says in words what it shows. A gap stays a gap: nothing is drawn where nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from bookspark.operations.console.figures import HISTORY_SECONDS

_WIDTH, _HEIGHT = 300.0, 60.0
_GAP_SECONDS = 90.0
"""Points further apart than this are not joined."""


def plot(title: str, points: Sequence[tuple[float, float | None]], now: float, words: Callable[[float], str]) -> str:
    """A figure with its title, the newest value and the highest. ``points``: times in seconds up to ``now``, and values;
    ``words``: a value with its unit."""
    known = [(at, value) for at, value in points if value is not None and now - at <= HISTORY_SECONDS]
    latest = points[-1][1] if points else None
    top = max((value for _, value in known), default=0.0)
    told = words(latest) if latest is not None else "none now"
    high = f"at most {words(top)}" if known else ""
    spoken = f"{title}: {told}{f', {high} in the last hour' if high else ''}"
    lines = "".join(f'<polyline points="{line}"/>' for line in _lines(known, now, top or 1.0))
    return (
        f'<figure><figcaption>{escape(title)} <b>{escape(told)}</b></figcaption><svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(spoken)}">{lines}</svg>'
        f'<p class="axis"><span>an hour ago</span><span>{escape(high)}</span><span>now</span></p></figure>'
    )


def _lines(known: Sequence[tuple[float, float]], now: float, top: float) -> Iterator[str]:
    line: list[str] = []
    before = None
    for at, value in known:
        if before is not None and at - before > _GAP_SECONDS:
            yield _drawn(line)
            line = []
        before = at
        x = _WIDTH * (1 - (now - at) / HISTORY_SECONDS)
        line.append(f"{x:.1f},{(_HEIGHT - 2) * (1 - value / top) + 1:.1f}")
    if line:
        yield _drawn(line)


def _drawn(line: Sequence[str]) -> str:
    """One point alone would not show: a line of no length has round ends."""
    return " ".join(line if len(line) > 1 else [*line, *line])
