"""Kept results: each run appends its medians to a file, with the commit and the machine.

Law: the file is only appended to, a JSON line for each run, and shows changes that no target shows. Only runs on the same
machine (name, processors, memory) are compared. A change by more than CHANGE is reported, with the load during the run,
because a busy machine changes more than that.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any

CHANGE = 0.05
FIGURES = (
    *("adds_per_second", "reads_per_second", "rows_per_second", "megabytes_per_second", "of_the_bare_loop"),
    *("p50_ms", "p99_ms", "p50_seconds", "p99_seconds", "seconds", "written_per_byte", "idle_bytes", "resident_bytes"),
    *("cpu_us", "client_cpu_us", "bookies_cpu_us", "cpu_us_a_frame", "cpu_seconds", "cpu_ms", "idle_ledger_bytes"),
    *("cpu_seconds_per_million_rows", "alone_p99_9_ms", "beside_p99_9_ms"),
)
"""The kept figures. For rates and shares of a bare loop more is better, for the others less."""
NUMBERS = ("entries", "ledgers", "rows", "commits", "triggers", "files")
"""Amounts of a case's work, kept beside its figures and never compared."""
FILE = "history.jsonl"

Line = dict[str, Any]


class Results:
    """The lines of a comparison, printed as they come, and also written to ``file``, if given. ``failures``: its failed turns,
    in words."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self.lines: list[Line] = []
        self.failures: list[str] = []
        self._files = [sys.stdout, *([] if file is None else [file])]

    def add(self, line: Line, **more: Any) -> None:
        """Add ``line`` with ``more``, the machine's load, and the bookies' processor time for an entry, all copies together."""
        whole = {**line, **more, "load": os.getloadavg()[0]}
        if "bookies_cpu_seconds" in whole and "entries" in whole:
            whole["bookies_cpu_us"] = whole["bookies_cpu_seconds"] / whole["entries"] * 1e6
        for file in self._files:
            print(json.dumps(whole), file=file, flush=True)
        self.lines.append(whole)

    def add_turn(
        self, lines: Iterable[Line], name: str, failures: tuple[type[Exception], ...] = (RuntimeError,), **more: Any
    ) -> None:
        """Add the lines of a turn, up to an error of ``failures``, which is kept in words."""
        try:
            for line in lines:
                self.add(line, **more)
        except failures as error:
            self.failures.append(f"round {more['round']}, {name}: {error}")

    def table(self, cache: Path, bench: str, scale: float, ours: str = "bookspark") -> str:
        """Keep the medians of the lines in ``cache``. Returns their table, and below it the changes since the last run."""
        told = "".join(f"\nchanged: {change}" for change in keep(cache, bench, self.lines, scale, checkout()))
        table = side_by_side(self.lines, ours)
        return f"{table}{told}\n" if told else table


def machine() -> str:
    """The machine, in words that are the same in all runs."""
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{platform.node()}, {os.cpu_count()} processors, {gigabytes:.0f} GB, {platform.machine()}"


def checkout() -> Path:
    return Path(__file__).parents[3]


def commit(tree: Path) -> str:
    """The commit of the checkout ``tree``, with ``+`` for uncommitted changes; ``unknown`` outside of a checkout."""
    try:
        found = _git(tree, "rev-parse", "--short=12", "HEAD")
        return found + ("+" if _git(tree, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(tree: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(tree), *words], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def medians(lines: Iterable[Line]) -> dict[str, dict[str, float]]:
    """The median of each figure of FIGURES and NUMBERS, by ``system label api``; for a bench with cases, by ``system case``."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        name = " ".join(str(line[key]) for key in ("system", "label", "case", "api") if key in line)
        for figure in (*FIGURES, *NUMBERS):
            if figure in line:
                found[name][figure].append(float(line[figure]))
    return {name: {figure: median(values) for figure, values in of.items()} for name, of in found.items()}


def keep(cache: Path, bench: str, lines: Sequence[Line], scale: float, tree: Path) -> list[str]:
    """Append the medians of ``lines`` to the file in ``cache``. Returns the changes by more than CHANGE since the last run
    of the same bench, machine and scale, in words."""
    loads = [line["load"] for line in lines if "load" in line]
    run = {
        "bench": bench,
        "commit": commit(tree),
        "machine": machine(),
        "scale": scale,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load": max(loads, default=0.0),
        "rounds": 1 + max((line["round"] for line in lines if "round" in line), default=0),
        "figures": medians(lines),
    }
    path = cache / FILE
    before = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    with open(path, "a") as file:
        print(json.dumps(run), file=file)
    alike = [old for old in before if all(old[key] == run[key] for key in ("bench", "machine", "scale"))]
    return changes(alike[-1], run) if alike else []


def side_by_side(lines: Sequence[Line], ours: str = "bookspark") -> str:
    """A Markdown table: the median of each figure for each system, and how many times better ``ours`` is than each other one."""
    found = medians(lines)
    systems = list(dict.fromkeys(str(line["system"]) for line in lines))
    others = [system for system in systems if system != ours] if ours in systems else []
    cases = dict.fromkeys(
        name.removeprefix(f"{system} ") for system in systems for name in found if name.startswith(f"{system} ")
    )
    rows = []
    for case in cases:
        # A peer without a choice of calls has a single line for all of our calls.
        of = {
            system: found.get(f"{system} {case}", found.get(f"{system} {case.split(' ')[0]}", {})) for system in systems
        }
        for figure in FIGURES:
            values = {system: of[system].get(figure) for system in systems}
            if any(value is not None for value in values.values()):
                factors = [_times_better(figure, values[ours], values[other]) for other in others]
                rows.append((f"{case}, {figure.replace('_', ' ')}", *map(figure_text, (*values.values(), *factors))))
    return markdown(("case", *systems, *(f"against {other}" for other in others)), rows)


def _times_better(figure: str, ours: float | None, theirs: float | None) -> float | None:
    if not ours or not theirs:
        return None
    return ours / theirs if _more_is_better(figure) else theirs / ours


def _more_is_better(figure: str) -> bool:
    return figure.endswith("_per_second") or figure == "of_the_bare_loop"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def figure_text(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Figures that differ by more than CHANGE, in words."""
    told = []
    for name, figures in now["figures"].items():
        for figure, value in figures.items():
            old = before["figures"].get(name, {}).get(figure) if figure in FIGURES else None
            if old and abs(value / old - 1) > CHANGE:
                better = (value > old) == _more_is_better(figure)
                told.append(
                    f"{name}, {figure}: {old:.4g} → {value:.4g} ({value / old - 1:+.0%}, {'better' if better else 'worse'} than "
                    f"{before['commit']} of {before['time']}; load {before['load']:.1f} then, {now['load']:.1f} now)"
                )
    return told
