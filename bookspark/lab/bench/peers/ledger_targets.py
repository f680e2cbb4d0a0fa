"""The targets of ``bookspark bench peers ledger``, and the table that compares them with the measured figures.

A target is a ratio of medians over the rounds, Bookspark's to the peer's. L9's target is Bookspark's own figure. L12 compares
guaranteed replication with Bookspark's own best effort. Beside each ratio stands the limit measured in the same run
(``bench.peers.ledger_comparison``), and Bookspark's figure divided by it: 1 is the limit itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from bookspark.lab.bench.kept_results import figure_text, markdown

Line = dict[str, Any]
Figure = Callable[[Line], float]


class Target(NamedTuple):
    """A row of the table."""

    case: str
    """The case, such as L2."""
    what: str
    """Description of the row. Braces insert numbers of the workload."""
    label: str
    figure: Figure
    bound: float | None
    """Above 0: the ratio must be at least this. Below 0: at most minus this. None: the ratio is only shown."""
    peers: tuple[str, ...] = ()
    """Labels of the peer's lines; the highest figure counts. Empty: the same label."""
    api: str | None = None
    """Only Bookspark's lines of this call count."""
    absolute: bool = False
    """Whether the bound is for Bookspark's own figure instead of the ratio."""
    beside_own: str = ""
    """A label of Bookspark to compare with instead of the peer."""


def _named(name: str) -> Figure:
    return lambda line: float(line[name])


def _cpu(line: Line) -> float:
    return float(line["client_cpu_seconds"] + line["bookies_cpu_seconds"]) / int(line["entries"]) * 1e6


def bookies_cpu(line: Line) -> float:
    """The bookies' processor time for an entry, all copies together, in µs."""
    return float(line["bookies_cpu_seconds"]) / int(line["entries"]) * 1e6


ADDS, READS, P50, P99 = _named("adds_per_second"), _named("reads_per_second"), _named("p50_ms"), _named("p99_ms")

TARGETS: Sequence[Target] = (
    Target("L1", "one in flight, 1 KiB, p50 ms", "L1", P50, -1 / 8),
    Target("L1", "… p99 ms", "L1", P99, -1 / 4),
    Target("L1", "… p50 ms, peer without group wait", "L1", P50, -1, ("L1-no-group-wait",)),
    Target("L1", "… p99 ms, peer without group wait", "L1", P99, -1, ("L1-no-group-wait",)),
    *(
        target
        for size, bound in ((100, 3.0), (1024, 2.0), (16384, 1.3))
        for target in (
            Target("L2", f"1,000 in flight, {size} B, adds/s", f"L2-{size}", ADDS, bound),
            Target("L2", "… p99 ms", f"L2-{size}", P99, -1),
        )
    ),
    *(
        Target(
            "L3",
            f"batches of {batch:,}, {size} B, adds/s",
            f"L3-{size}x{batch}",
            ADDS,
            bound,
            (f"L2-{size}", f"L2-{size}-deep"),
        )
        for size, bound in ((100, 20.0), (1024, 8.0))
        for batch in (100, 1000)
    ),
    *(
        Target(
            "L4",
            f"read in order, {size} B, {cache}, {api}, entries/s",
            f"L4-{size}-{cache}",
            READS,
            wanted,
            (f"L4-{size}-{cache}", f"L4-{size}-{cache}-deep"),
            api=api,
        )
        for cache in ("warm", "cold")
        for size, bound in ((100, 10.0), (1024, 4.0), (16384, 1.5))
        for api, wanted in (("read_batches", bound), ("read", None))
    ),
    Target("L5", "recovery of 2,000 entries, p50 ms", "L5", P50, -1 / 3),
    Target("L6", "create and close, p50 ms", "L6", P50, -1),
    *(Target("L7", "{ledgers:,} ledgers at once, 1 KiB, adds/s", label, ADDS, 1.5) for label in ("L7", "L7-10000")),
    Target("L8", "without journal, 1 KiB, adds/s", "L8", ADDS, 2.0),
    Target("L9", "bytes written per byte and copy", "L9", _named("written_per_byte"), -1.1, absolute=True),
    Target("L10", "CPU seconds per million adds, 1 KiB", "L2-1024", _cpu, -1 / 2),
    Target("L11", "memory of an idle bookie, MB", "L11", lambda line: line["idle_bytes"] / 1e6, -1 / 5),
    Target("L11", "… that took {entries:,} entries, MB", "L11", lambda line: line["resident_bytes"] / 1e6, -1 / 5),
    Target("L14", "one entry at a random place, 1 KiB, p50 ms", "L14", P50, None),
    Target("L14", "… p99 ms", "L14", P99, None),
    *(
        target
        for label, what in (("L12-pd", "PD"), ("L12-vd", "VD, a sync each {sync_every:,} entries"))
        for target in (
            Target("L12", f"{what}, 1 KiB, adds/s", label, ADDS, None),
            Target("L12", "… p99 ms", label, P99, None),
            Target("L12", f"{what}, guaranteed, 1 KiB, adds/s", f"{label}-guaranteed", ADDS, 0.9, beside_own=label),
            Target("L12", "… p99 ms", f"{label}-guaranteed", P99, None, beside_own=label),
        )
    ),
)


def table(lines: Iterable[Line], targets: Sequence[Target] = TARGETS, peer: str = "BookKeeper") -> str:
    """A Markdown table of the targets with figures in ``lines``. ``peer``: the table's name for the system ``bookkeeper``."""
    lines = list(lines)
    rows = []
    for target in targets:
        ours = _median(lines, "bookspark", target.label, target.figure, target.api)
        if ours is None:
            continue
        system, labels = "bookkeeper", target.peers or (target.label,)
        if target.beside_own:
            system, labels = "bookspark", (target.beside_own,)
        peers = [_median(lines, system, label, target.figure, None) for label in labels]
        theirs = max((peer for peer in peers if peer is not None), default=None)
        if theirs is None:
            continue
        ratio = ours / theirs
        met, wanted = _judge(ours if target.absolute else ratio, target.bound)
        what = target.what.format_map(next(line for line in lines if line["label"] == target.label))
        beside = f"{figure_text(theirs)} (own, best effort)" if target.beside_own else figure_text(theirs)
        limit = _limit(lines, target)
        of_it = ("", "") if limit is None else (figure_text(limit), f"{ours / limit:.3g}")
        rows.append((target.case, what, figure_text(ours), beside, f"{ratio:.3g}", wanted, met, *of_it))
    return markdown(("case", "", "bookspark", peer, "ratio", "target", "", "limit", "of it"), rows)


def _limit(lines: Sequence[Line], target: Target) -> float | None:
    """The limit measured for the target; None without one, as for processor time."""
    try:
        return _median(lines, "limit", target.label, target.figure, None)
    except KeyError:
        return None


def _median(lines: Sequence[Line], system: str, label: str, figure: Figure, api: str | None) -> float | None:
    found = [
        figure(line)
        for line in lines
        if (line["system"], line["label"]) == (system, label) and api in (None, line.get("api"))
    ]
    return median(found) if found else None


def _judge(value: float, bound: float | None) -> tuple[str, str]:
    if bound is None:
        return "", ""
    if bound > 0:
        return "met" if value >= bound else "missed", f"≥ {bound:.3g}"
    return "met" if value <= -bound else "missed", f"≤ {-bound:.3g}"
