"""The audits as one HTML page: a verdict first, then plots, then each finding as a table.

Law: the page is self-contained (plots are inline SVG) and names its snapshot. Findings of faults stand above the others.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame

from bookspark.spark import snapshots
from bookspark.spark.audit.runner import Finding, cell, left_out, question
from bookspark.support.arguments import BytesOrNone, Name, checked
from bookspark.support.extras import extra_needed
from bookspark.support.plain_text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

ROWS_SHOWN_MAX = 200
ROWS_OPEN_MAX = 12
"""Rows shown without a click."""
HISTORY_MAX = 30
"""Newest snapshots in the plots of the history."""
BOOKIES_NAMED_MAX = 40
"""Plots with more bookies have no names at the bars."""
NAME_CHARACTERS_MAX = 24
"""Longer names are shortened in plots."""
_BLUE, _RED, _GREY = "#2f6f9f", "#b3402f", "#c9ced6"
_NUMBER = "{x:,.10g}"

_STYLE = """
:root { --ink: #1d2733; --soft: #5b6672; --line: #dde2e8; --good: #2e7d4f; --bad: #b3402f; --page: #fff; --band: #f6f8fa }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page) }
body { max-width: 70rem; margin: 1.5rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem }
p { margin: .3rem 0; color: var(--soft); max-width: 50rem } .good { color: var(--good) } .bad { color: var(--bad) }
.verdict { font-size: 1.1rem; padding: .6rem .9rem; margin: 1rem 0; border-left: 4px solid; background: var(--band) }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem } figure { margin: 0 }
svg { width: 100%; height: auto } .table { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: .5rem }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { font-weight: 600; color: var(--soft) } .number { text-align: right } td span { white-space: nowrap }
details { margin-top: .5rem } summary { cursor: pointer; color: var(--soft) }
"""


class Point(NamedTuple):
    snapshot: snapshots.Snapshot
    entries: int = 0
    missing_copies: int = 0
    """Missing copies of these entries on bookies that are up."""
    bytes: int = 0


class Summary(NamedTuple):
    ledgers: int
    open_ledgers: int
    logs: int
    bookies: int
    bookies_down: int


@checked
def write_report(
    spark: SparkSession, path: Name, version: BytesOrNone | None, findings: Sequence[Finding], file: Path
) -> None:
    """Write the page about a snapshot under ``path`` to ``file``.

    ``spark``: a session with Delta. ``version``: that of the snapshot; None: the newest. ``findings``: the result of ``run`` on
    it. Raises ConfigurationError if there is no snapshot, OSError if ``file`` can't be written, and Spark's errors.
    """
    snapshot = next(known for known in snapshots.history(spark, path) if version in (None, known.version))
    with question(spark, snapshots.tables(spark, path, snapshot.version), "summary") as answer:
        summary = Summary(*answer.first())
    file.write_text(page(findings, history(spark, path), snapshot, summary), encoding="utf-8")


def history(spark: SparkSession, path: str) -> list[Point]:
    """The newest HISTORY_MAX snapshots under ``path``, the oldest first. Raises ConfigurationError and Spark's errors."""
    commits = snapshots.commits(spark, path)
    newest = snapshots.kept(commits)[:HISTORY_MAX][::-1]
    names = ("ledgers", "fragments", "log_commits", "index_ranges")
    each = [snapshots.tables_of(spark, path, commits, snapshot, names) for snapshot in newest]
    tables = {name: reduce(DataFrame.unionByName, [tables[name] for tables in each]) for name in names}
    # One job for all snapshots.
    with question(spark, tables, "history") as answer:
        counted = {row.snapshot_id: row[1:] for row in answer.collect()}
    return [Point(snapshot, *counted.get(snapshot.snapshot_id, ())) for snapshot in newest]


def page(
    findings: Sequence[Finding], points: Sequence[Point], snapshot: snapshots.Snapshot, summary: Summary | None = None
) -> str:
    """The page as HTML. ``findings`` and ``summary``: those of ``snapshot``; ``points``: the history."""
    bad = [finding for finding in findings if finding.good is False]
    verdict = (
        f'<div class="verdict bad">{len(bad)} of {len(findings)} audits found something: '
        f"{escape(', '.join(f.title.lower() for f in bad))}</div>"
        if bad
        else '<div class="verdict good">No audit found anything that should not be</div>'
    )
    ordered = sorted(findings, key=lambda finding: (finding.good is not False, finding.good is True))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_title(snapshot)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{_title(snapshot)}</h1>"
        f"<p>Snapshot {snapshot.version}, taken {snapshot.time:%Y-%m-%d %H:%M:%S} UTC ({escape(snapshot.snapshot_id)})</p>"
        f"{_summary(snapshot, summary, points)}"
        f'{verdict}<div class="plots">{_plots({f.name: f for f in findings}, points)}</div>'
        f"{''.join(map(_section, ordered))}{_not_audited(findings)}</body></html>\n"
    )


def _title(snapshot: snapshots.Snapshot) -> str:
    return f"Bookspark audit of {escape(snapshot.cluster)}" if snapshot.cluster else "Bookspark audit"


def _summary(snapshot: snapshots.Snapshot, summary: Summary | None, points: Sequence[Point]) -> str:
    if summary is None:
        return ""
    parts = [
        f"{counted(summary.bookies, 'bookie')}, {summary.bookies_down:,} of them down",
        f"{counted(summary.ledgers, 'ledger')}, {summary.open_ledgers:,} of them not closed",
        counted(summary.logs, "log"),
    ]
    for point in points:
        if point.snapshot.snapshot_id == snapshot.snapshot_id:
            parts += [f"{point.entries:,} confirmed entries", f"{point.bytes / 1e6:,.1f} MB on all bookies"]
    return f"<p>{'; '.join(parts)}</p>"


def _not_audited(findings: Sequence[Finding]) -> str:
    names = left_out(findings)
    return f"<h2>Not audited</h2><p>{escape(', '.join(name.replace('_', ' ') for name in names))}</p>" if names else ""


def _section(finding: Finding) -> str:
    head = f"<h2>{escape(finding.title)}</h2><p>{escape(finding.explanation[:1].upper() + finding.explanation[1:])}</p>"
    note = f"<p>{escape(finding.note[:1].upper() + finding.note[1:])}.</p>" if finding.note else ""
    if not finding.rows:
        return f'{head}<p class="good">None.</p>{note}'
    shown = finding.rows[:ROWS_SHOWN_MAX]
    first, others = shown[:ROWS_OPEN_MAX], shown[ROWS_OPEN_MAX:]
    more = f"<details><summary>{len(others)} more rows, of {finding.total:,} in all</summary>{_table(finding, others)}</details>"
    return f"{head}{note}{_table(finding, first)}{more if others else ''}"


def _table(finding: Finding, rows: Sequence[tuple[Any, ...]]) -> str:
    columns = "".join(
        f"<th{_alignment(value)}>{escape(column.replace('_', ' '))}</th>"
        for column, value in zip(finding.columns, finding.rows[0], strict=True)
    )
    body = "".join(f"<tr>{''.join(f'<td{_alignment(v)}>{_words(cell(v))}</td>' for v in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>'


def _alignment(value: Any) -> str:
    return " class=number" if isinstance(value, int) and not isinstance(value, bool) else ""


def _words(text: str) -> str:
    """The text as HTML that never breaks a name at its hyphens."""
    return " ".join(f"<span>{escape(word)}</span>" if "-" in word else escape(word) for word in text.split(" "))


def _plots(findings: dict[str, Finding], points: Sequence[Point]) -> str:
    plots = []
    bookies = findings.get("bytes_per_bookie")
    if bookies and bookies.rows:
        rows = _columns(bookies, "bookie_id", "entries", "state")
        plots.append(_plot("Entries per bookie (red names: down)", lambda axes: _bookies(axes, rows)))
    garbage = findings.get("garbage_per_entry_log")
    if garbage and garbage.rows:
        logs = _columns(garbage, "bookie_id", "live_bytes", "garbage_bytes")
        which = "" if len(logs) == garbage.total else f"the {len(logs):,} worst of {garbage.total:,} "
        plots.append(_plot(f"MB in {which}entry logs (red: garbage)", lambda axes: _garbage(axes, logs)))
    factors = findings.get("replication_factor_histogram")
    if factors and factors.rows:
        counts = _columns(factors, "replication_factor", "entries")
        plots.append(_plot("Confirmed entries by number of copies", lambda axes: _factors(axes, counts)))
    histories: tuple[tuple[str, list[float], str], ...] = (
        ("Missing copies", [point.missing_copies for point in points], _RED),
        ("Confirmed entries", [point.entries for point in points], _BLUE),
        ("MB on all bookies", [point.bytes / 1e6 for point in points], _BLUE),
    )
    for what, values, color in histories if len(points) > 1 else ():
        plots.append(_plot(f"{what}, by snapshot", partial(_history, points, values, color)))
    return "".join(plots)


def _columns(finding: Finding, *names: str) -> list[tuple[Any, ...]]:
    places = [finding.columns.index(name) for name in names]
    return [tuple(row[place] for place in places) for row in finding.rows]


def _bookies(axes: Axes, rows: Sequence[tuple[Any, ...]]) -> None:
    names, entries, states = zip(*rows, strict=True)
    axes.barh(range(len(names)), entries, color=_BLUE)
    # A bookie that is down reports no entries: it has no bar that could be red.
    _name_bars(axes, names, entries, {name for name, state in zip(names, states, strict=True) if state == "down"})
    axes.locator_params(axis="x", integer=True)


def _factors(axes: Axes, counts: Sequence[tuple[Any, ...]]) -> None:
    factors, entries = zip(*counts, strict=True)
    bars = axes.bar([str(factor) for factor in factors], entries, color=_BLUE, width=0.6)
    axes.yaxis.set_major_formatter(_NUMBER)
    axes.bar_label(bars, [f"{count:,}" for count in entries])
    axes.margins(y=0.15)
    axes.set_xlim(-0.6, max(len(factors), 3) - 0.4)
    axes.locator_params(axis="y", integer=True)
    axes.set_xlabel("copies")


def _garbage(axes: Axes, logs: Sequence[tuple[Any, ...]]) -> None:
    sums: dict[str, list[float]] = {}
    for bookie, live, dead in logs:
        total = sums.setdefault(bookie, [0.0, 0.0])
        total[0] += live / 1e6
        total[1] += dead / 1e6
    names = sorted(sums)
    live_mb = [sums[name][0] for name in names]
    axes.barh(range(len(names)), live_mb, color=_GREY)
    axes.barh(range(len(names)), [sums[name][1] for name in names], left=live_mb, color=_RED)
    _name_bars(axes, names, [sum(sums[name]) for name in names])


def _name_bars(axes: Axes, names: Sequence[str], lengths: Sequence[float], red: Collection[str] = ()) -> None:
    """Label the bars, in a plot high enough for all names."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(max(3.0, 0.8 + 0.2 * min(len(names), BOOKIES_NAMED_MAX)))
    named = names if len(names) <= BOOKIES_NAMED_MAX else ()
    axes.set_yticks(range(len(named)), [_short(name) for name in named])
    for label, name in zip(axes.get_yticklabels(), named, strict=True):
        if name in red:
            label.set_color(_RED)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.05 * max(lengths) or 1)
    axes.xaxis.set_major_formatter(_NUMBER)
    axes.locator_params(axis="x", nbins=4)


def _short(name: str) -> str:
    """The name, shortened in the middle: both ends distinguish bookies."""
    half = NAME_CHARACTERS_MAX // 2
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[: half - 1]}…{name[-half:]}"


def _history(points: Sequence[Point], values: Sequence[float], color: str, axes: Axes) -> None:
    axes.plot([point.snapshot.version for point in points], values, color=color, marker="o", markersize=4)
    axes.set_ylim(0, 1.1 * max(*values, 1))
    axes.yaxis.set_major_formatter(_NUMBER)
    axes.set_xlabel(f"snapshot ({points[0].snapshot.time:%d %b %H:%M} to {points[-1].snapshot.time:%d %b %H:%M} UTC)")
    axes.locator_params(axis="x", integer=True)
    axes.locator_params(axis="y", integer=all(isinstance(value, int) for value in values))


def _plot(title: str, draw: Callable[[Axes], None]) -> str:
    """An inline SVG whose text stays text."""
    with extra_needed("a report's page"):
        import matplotlib
        from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": title}):
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}</figure>"
