"""The tables of docs/performance.md, and the page with them.

Law: only the command writes the lines between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``. A row comes from the
newest kept run that measured it, with all figures of that run. A row without a measurement is left out; a table without any
measurement stays unchanged. The runs are listed above each table: commit, machine, rounds, size and load. The comments on a row,
such as its limit, are written by hand in the page; ``tests/docs`` checks that none is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from bookspark.errors import ConfigurationError
from bookspark.lab.bench.kept_results import FILE, figure_text, markdown

# -- Comparisons and aims of docs/performance.md.
#
# Law: a row compares two figures of the same run. Its aim bounds their ratio, Bookspark's own figure, or the difference; a row
# without an aim is only shown. For rates more is better, for everything else less. A row that misses its aim stays.


_WORDS = {
    "L1": "one add in flight",
    "L2": "single adds",
    "L3": "batches",
    "L4": "reads in order",
    "L7": "one entry each in turn",
    "L13": "idle open ledger",
    "L14": "one entry at a random place",
}
"""Name of the bench's case on the page."""

RATES = ("adds_per_second", "reads_per_second", "rows_per_second", "megabytes_per_second")


class Bound(StrEnum):
    """The value bounded by an aim."""

    RATIO = "ratio"
    OWN = "own"
    DIFFERENCE = "difference"


class Row(NamedTuple):
    case: str
    """Key of the page's comments; several rows may share it."""
    what: str
    """Description of the row; "…" alone: another comparison of the figure above. Braces insert numbers of the case."""
    bench: str
    """The measuring bench, by its name in the kept results."""
    ours: str
    """Name of Bookspark's figures: system, label or case, and call."""
    figure: str
    beside: tuple[str, ...] = ()
    """Names of the figures to compare with; the best of them counts."""
    beside_words: str = ""
    aim: float | None = None
    """At least this for rates, at most this for everything else."""
    bound: Bound = Bound.RATIO
    limit: str = ""
    """Name of the limit measured in the same run."""
    beside_figure: str = ""
    """The figure of ``beside``, if different."""

    @property
    def more_is_better(self) -> bool:
        return self.figure in RATES


def _ledger(
    case: str, what: str, label: str, figure: str, *sides: tuple[str, float | None, Bound], api: str = ""
) -> list[Row]:
    """A row of the figure for each side: its comparison, its aim and the aim's bound. A side is ``limit``, "", a label of
    BookKeeper's, ``best SIZE`` of its labels, or a name of Bookspark's own figures."""
    rows: list[Row] = []
    for side, aim, bound in sides:
        words, beside = _side(side, label)
        rows.append(
            Row(
                _WORDS[case],
                "…" if rows else what,
                "ledger",
                f"bookspark {label}{api and ' ' + api}",
                figure,
                beside,
                words,
                aim,
                bound,
                f"limit {label}",
            )
        )
    return rows


def _side(side: str, label: str) -> tuple[str, tuple[str, ...]]:
    """The side in words, and the names of its figures."""
    kind, _, rest = side.partition(" ")
    match kind:
        case "":
            return "", ()
        case "limit":
            return "the limit", (f"limit {label}",)
        case "best":
            return "BookKeeper's best", (f"bookkeeper L2-{rest}", f"bookkeeper L2-{rest}-deep")
        case "bookspark":
            return "as many adds to 1,000 ledgers", (side,)
    waits = " without its group wait" if kind.endswith("no-group-wait") else ""
    return f"BookKeeper{waits}", (f"bookkeeper {side}",)


_RATIO, _OWN = Bound.RATIO, Bound.OWN
LEDGERS: Sequence[Row] = (
    *_ledger(
        "L1", "one add in flight, 1 KiB, p50 ms", "L1", "p50_ms",
        ("limit", 2.0, _RATIO), ("L1", 1 / 8, _RATIO), ("L1-no-group-wait", 0.5, _RATIO),
    ),
    *_ledger("L1", "… p99 ms", "L1", "p99_ms", ("L1", 1 / 4, _RATIO)),
    *_ledger("L2", "single adds, 1,000 in flight, 100 B, adds/s", "L2-100", "adds_per_second", ("L2-100", 350e3, _OWN)),
    *_ledger("L2", "… client's processor time, µs", "L2-100", "client_cpu_us", ("", 5.0, _OWN)),
    *_ledger("L2", "single adds, 1,000 in flight, 1 KiB, adds/s", "L2-1024", "adds_per_second", ("L2-1024", 200e3, _OWN)),
    *_ledger("L2", "… client's processor time, µs", "L2-1024", "client_cpu_us", ("", 5.0, _OWN)),
    *(
        row
        for batch in (100, 1000)
        for row in _ledger(
            "L3", f"batches of {batch:,}, 1 KiB, entries/s", f"L3-1024x{batch}", "adds_per_second",
            ("", 350e3, _OWN), ("best 1024", 8.0, _RATIO), ("limit", 0.7, _RATIO),
        )
    ),
    *_ledger("L7", "{ledgers:,} ledgers, one entry each in turn, 1 KiB, adds/s", "L7", "adds_per_second", ("L7", 1.5, _RATIO)),
    *_ledger(
        "L7", "{ledgers:,} ledgers, one entry each in turn, 1 KiB, adds/s", "L7-10000", "adds_per_second",
        ("L7-10000", 1.5, _RATIO), ("bookspark L7", 0.8, _RATIO),
    ),
    *_ledger("L13", "client memory of an idle open ledger, bytes", "L13", "idle_ledger_bytes", ("", 8000.0, _OWN)),
    *_ledger(
        "L4", "reads in order into Arrow, 1 KiB, warm, entries/s", "L4-1024-warm", "reads_per_second",
        ("L4-1024-warm", 1e6, _OWN), api="read_batches",
    ),
    *_ledger(
        "L4", "… cold", "L4-1024-cold", "reads_per_second", ("limit", 0.7, _RATIO), ("L4-1024-cold", None, _RATIO),
        api="read_batches",
    ),
    *_ledger(
        "L14", "one entry at a random place, 1 KiB, p50 ms", "L14", "p50_ms", ("limit", 1.5, _RATIO), ("L14", None, _RATIO)
    ),
)  # fmt: skip


def _storage(size: int, batch: int, aim: float | None) -> Row:
    label, payload = f"{size}x{batch} synced", f"{size} B" if size < 1024 else f"{size >> 10} KiB"
    return Row(
        "one entry a batch" if batch == 1 else "batches",
        f"batches of {batch:,}, {payload}, MB/s" if batch > 1 else f"one entry a batch, {payload}, MB/s",
        "storage", f"bookspark {label}", "megabytes_per_second", (f"limit {label}",), "bare loop", aim,
    )  # fmt: skip


STORAGE: Sequence[Row] = (
    *(_storage(size, batch, 0.8) for batch in (1000, 100, 10) for size in (100, 1024, 16384)),
    *(_storage(size, 1, 0.3 if size == 1024 else None) for size in (100, 1024, 16384)),
    *(
        Row(
            "replay", f"replay, {entries} of 100 B a frame, µs of processor time a frame", "storage",
            f"bookspark replay x{entries}", "cpu_us_a_frame", (f"limit replay x{entries}",), "a read of the files",
            2.0, _OWN,
        )
        for entries in (1, 10)
    ),
    *(
        Row(
            "rewriting", f"appends' p99.9 while {payload} is rewritten, ms", "storage", f"bookspark rewriting {payload}",
            "beside_p99_9_ms", (f"bookspark rewriting {payload}",), "without", 3.0, beside_figure="alone_p99_9_ms",
        )
        for payload in ("random", "text")
    ),
)  # fmt: skip

_SIZES = {100: "100 B", 1024: "1 KiB"}
SPARK: Sequence[Row] = (
    *(
        Row(
            "small commits", f"{{commits:,}} commits of ten rows, {words}, s", "micro-batches",
            f"bookspark commits 1500 {how}", "seconds", (f"bookspark commits 1 {how}",), "one commit", 2.0,
        )
        for how, words in (("count", "counted"), ("hash", "hashed"), ("stream", "streamed"))
    ),
    Row(
        "triggers", "a trigger of one row into a log, p50 ms", "micro-batches", "bookspark trigger sink", "p50_ms",
        ("bookspark trigger noop",), "noop", 1.15, limit="limit trigger sink",
    ),
    Row(
        "triggers", "… Bookspark's own share, ms", "micro-batches", "bookspark trigger sink", "p50_ms",
        ("bookspark trigger noop",), "noop", 30.0, Bound.DIFFERENCE,
    ),
    Row(
        "triggers", "… more than a Python sink that does nothing, ms", "micro-batches", "bookspark trigger sink", "p50_ms",
        ("limit trigger sink",), "the limit", bound=Bound.DIFFERENCE,
    ),
    Row(
        "triggers", "a trigger of one row from a log, p50 ms", "micro-batches", "bookspark trigger source", "p50_ms",
        ("bookspark trigger noop",), "noop", limit="limit trigger source",
    ),
    *(
        Row(
            words, f"{words}, {{rows:,}} rows of {size}, rows/s" if name == "delta" else "…", "spark",
            f"bookspark {case} {number} B", "rows_per_second", (f"{name} {case} {number} B",), peer,
            aim if case != "copy" else None, limit=f"limit {case} {number} B",
        )
        for case, words in (("write", "rows in"), ("read", "rows back"), ("copy", "rows from log to log"))
        for number, size in _SIZES.items()
        for name, peer, aim in (("delta", "Delta", 1.2), ("kafka", "Kafka", 3.0))
    ),
    *(
        Row(
            "latency", "a row through two queries at trigger 0, p50 s" if name == "delta" else "…", "spark",
            "bookspark latency", "p50_seconds", (f"{name} latency",), peer,
        )
        for name, peer in (("delta", "Delta"), ("kafka", "Kafka"))
    ),
)  # fmt: skip

TABLES: Mapping[str, Sequence[Row]] = {"ledgers": LEDGERS, "storage": STORAGE, "spark": SPARK}
"""By name in the page's marks."""


# -- The page


QUICK_SCALE_MAX = 0.1
"""Runs below this part of the usual size only check that a bench works, and are no result."""
_HEADS = ("", "Bookspark", "beside", "ratio", "aim", "of the limit")

Run = Mapping[str, Any]


class _Line(NamedTuple):
    row: Row
    run: Run
    ours: float
    theirs: float | None
    limit: float | None


def kept_runs(cache: Path, quick: bool = False) -> list[Run]:
    """The runs kept in ``cache``, the oldest first; with ``quick``, short runs too. Raises ConfigurationError without any."""
    path = cache / FILE
    if not path.exists():
        raise ConfigurationError(f"there is no {path}: run the benches first, with --cache {cache}")
    runs = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [run for run in runs if quick or run["scale"] >= QUICK_SCALE_MAX]


def with_tables(text: str, runs: Sequence[Run]) -> str:
    """The page ``text`` with new tables. Raises ConfigurationError if it lacks a table's marks."""
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
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def table(lines: Sequence[_Line]) -> str:
    """The list of the lines' runs, and the lines as a table, without the column of the limits if none was measured."""
    told = list(dict.fromkeys(_run(line.run) for line in lines))
    columns = len(_HEADS) - (not any(line.limit for line in lines))
    return "\n".join([*told, "", markdown(_HEADS[:columns], (_cells(line)[:columns] for line in lines))])


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


def _cells(line: _Line) -> tuple[str, ...]:
    row, ours, theirs = line.row, line.ours, line.theirs
    numbers = {name: int(value) for name, value in line.run["figures"][row.ours].items() if float(value).is_integer()}
    value = {Bound.RATIO: None if theirs is None else ours / (theirs or 1e-9), Bound.OWN: ours}.get(row.bound)
    if row.bound is Bound.DIFFERENCE and theirs is not None:
        value = ours - theirs
    aim = ""
    if row.aim is not None:
        of_what = "" if row.bound is Bound.RATIO else f" {_OF[row.bound]}"
        met = "not measured"
        if value is not None:
            met = "met" if (value >= row.aim if row.more_is_better else value <= row.aim) else "missed"
        aim = f"{'≥' if row.more_is_better else '≤'} {figure_text(row.aim)}{of_what}: {met}"
    shown = row.bound is Bound.DIFFERENCE and value is not None
    above = row.what == "…"
    return (
        row.what.format_map(numbers),
        "" if above else figure_text(value if shown else ours),
        f"{row.beside_words} {figure_text(theirs)}" if theirs is not None else "",
        figure_text(None if theirs is None or shown else ours / (theirs or 1e-9)),
        aim,
        "" if above or not line.limit else figure_text(ours / line.limit),
    )


_OF = {Bound.OWN: "itself", Bound.DIFFERENCE: "more"}


def _run(run: Run) -> str:
    rounds = run.get("rounds", 1)
    size = "" if run["scale"] == 1 else f", {run['scale']:g} of the usual size"
    return (
        f"- `bench {run['bench']}`, {run['time'].replace('T', ' ').removesuffix(':00Z').removesuffix('Z')} UTC, commit "
        f"`{run['commit']}`, {run['machine'].partition(', ')[2]}; {rounds} round{'' if rounds == 1 else 's'}{size}; load up to "
        f"{run['load']:.1f}"
    )
