"""The tables of docs/performance.md, and the page with them.

Law: the lines between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` are written by the command alone. A row is of the
newest kept run that measured it, with all figures of that run; a row that no run measured is left out, and a table of which
nothing was measured stays as it is in the page. Each run is named above its table: commit, machine, rounds, size and load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bookspark.errors import ConfigurationError
from bookspark.lab.bench.kept_results import FILE
from bookspark.lab.bench.page.rows import TABLES, Bound, Row

QUICK_SCALE_MAX = 0.1
"""Runs of less than this part of the usual size show that a bench works, and are no result."""
_HEAD = (
    "| | Bookspark | beside | | ratio | aim | | limit of the machine | of it |\n|---|---|---|---|---|---|---|---|---|"
)

Run = Mapping[str, Any]


class _Line(NamedTuple):
    """A row with its figures."""

    row: Row
    run: Run
    ours: float
    theirs: float | None
    limit: float | None


def kept_runs(cache: Path, quick: bool = False) -> list[Run]:
    """The runs that were kept in ``cache``, the oldest first; with ``quick`` those that were short too. Raises
    ConfigurationError if there are none."""
    path = cache / FILE
    if not path.exists():
        raise ConfigurationError(f"there is no {path}: run the benches first, with --cache {cache}")
    runs = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [run for run in runs if quick or run["scale"] >= QUICK_SCALE_MAX]


def with_tables(text: str, runs: Sequence[Run]) -> str:
    """The page ``text`` with new tables. Raises ConfigurationError if it lacks the marks of one."""
    for name, rows in TABLES.items():
        begin, end = marks(name)
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ConfigurationError(f"the page has no lines {begin} and {end}")
        lines = [line for row in rows if (line := _measured(row, runs)) is not None]
        if lines:
            text = f"{before}{begin}\n{table(lines)}{end}{after}"
    return text


def marks(name: str) -> tuple[str, str]:
    """The lines around a table."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def table(lines: Sequence[_Line]) -> str:
    """The runs that the lines are of, and the lines as a table."""
    told = list(dict.fromkeys(_run(line.run) for line in lines))
    return "\n".join([*told, "", _HEAD, *map(_cells, lines)]) + "\n"


def _measured(row: Row, runs: Sequence[Run]) -> _Line | None:
    for run in reversed(runs):
        figures = run["figures"]
        ours = figures.get(row.ours, {}).get(row.figure)
        if run["bench"] != row.bench or ours is None:
            continue
        choose = max if row.more_is_better else min
        theirs = _of(figures, row.beside, row.beside_figure or row.figure)
        if row.bound is Bound.DIFFERENCE and not theirs:
            continue
        (limit,) = _of(figures, (row.limit,), row.figure) or (None,)
        return _Line(row, run, ours, choose(theirs) if theirs else None, limit)
    return None


def _of(figures: Mapping[str, Mapping[str, float]], names: Iterable[str], figure: str) -> list[float]:
    return [found for name in names if (found := figures.get(name, {}).get(figure)) is not None]


def _cells(line: _Line) -> str:
    row, ours, theirs = line.row, line.ours, line.theirs
    numbers = {name: int(value) for name, value in line.run["figures"][row.ours].items() if float(value).is_integer()}
    value = {Bound.RATIO: None if theirs is None else ours / (theirs or 1e-9), Bound.OWN: ours}.get(row.bound)
    if row.bound is Bound.DIFFERENCE and theirs is not None:
        value = ours - theirs
    aim = met = ""
    if row.aim is not None:
        aim = f"{'≥' if row.more_is_better else '≤'} {_text(row.aim)}{'' if row.bound is Bound.RATIO else ' ' + _OF[row.bound]}"
        met = "not measured"
        if value is not None:
            met = "met" if (value >= row.aim if row.more_is_better else value <= row.aim) else "missed"
    shown = row.bound is Bound.DIFFERENCE and value is not None
    cells = (
        row.what.format_map(numbers),
        _text(value if shown else ours),
        row.beside_words if theirs is not None else "",
        _text(theirs),
        _text(None if theirs is None or shown else ours / (theirs or 1e-9)),
        aim,
        met,
        _text(line.limit),
        _text(None if not line.limit else ours / line.limit),
    )
    return f"| {' | '.join(cells)} |"


_OF = {Bound.OWN: "itself", Bound.DIFFERENCE: "more"}


def _run(run: Run) -> str:
    rounds = run.get("rounds", 1)
    size = "" if run["scale"] == 1 else f", {run['scale']:g} of the usual size"
    return (
        f"- `bench {run['bench']}`, {run['time'].replace('T', ' ').removesuffix(':00Z').removesuffix('Z')} UTC, commit "
        f"`{run['commit']}`, {run['machine'].partition(', ')[2]}; {rounds} round{'' if rounds == 1 else 's'}{size}; load up to "
        f"{run['load']:.1f}"
    )


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
