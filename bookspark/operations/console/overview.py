"""Page of the whole cluster: health with the next command, totals, troubles, bookies, repairs, plots.

Law: the page depends on the last looks of the watches only. An unknown figure is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bookspark.operations.console.figures import Point
from bookspark.operations.console.logs import LogsKnown
from bookspark.operations.console.pages import (
    KINDS,
    Cell,
    Lines,
    Markup,
    Meter,
    Table,
    Text,
    Time,
    answers,
    columns,
    html,
    part,
    render,
)
from bookspark.operations.console.plots import Plot, section
from bookspark.operations.console.watch import Seen
from bookspark.operations.why.facts import Facts
from bookspark.operations.why.picture import BookieLine, bookie_lines, moving
from bookspark.operations.why.words import duration
from bookspark.store.wire.messages import BookieStatus
from bookspark.support.plain_text import counted, size_text

_AT = {name: at for at, name in enumerate(Point._fields)}
PLOTS = (
    Plot("entries", "Entries, all copies", "/s", (("added", _AT["adds"]), ("read", _AT["reads"]))),
    Plot("bytes", "Bytes added, all copies", "B/s", (("added", _AT["added_bytes"]),)),
    Plot("times", "Mean times", "ms", (("an add", _AT["add_ms"]), ("a read", _AT["read_ms"]))),
    Plot("zookeeper", "A small read of ZooKeeper", "ms", (("read", _AT["zookeeper_ms"]),)),
)
"""The cluster's plots, over ``Point``."""


class Card(NamedTuple):
    """A total, and a sentence about it."""

    title: str
    total: object
    note: object = ""
    kind: str = ""
    path: str = ""


def content(seen: Seen | None, known: LogsKnown | None = None, hour: Sequence[Point] = ()) -> Markup:
    """The page's content. ``seen`` None: the first look has not ended. ``hour``: points of the last hour."""
    if seen is None:
        return part("health", render("overview.html", seen=None))
    worst = max((one.severity for one in seen.health.troubles), default=None)
    kind = "good" if worst is None else KINDS[worst]
    banner = render("overview.html", seen=seen, kind=kind, at=Time(seen.facts.at_ms))
    return html(
        (
            part("health", banner),
            part("totals", render("cards.html", cards=list(_cards(seen, known, hour))), "Totals"),
            part("troubles", answers(seen.health.troubles), "Troubles"),
            part("bookies", _bookies(seen), "Bookies"),
            part("repair", _repair(seen.facts), "Under way"),
            _metrics(seen),
            section(PLOTS, "/figures"),
        )
    )


# -- totals


def _cards(seen: Seen, known: LogsKnown | None, hour: Sequence[Point]) -> Iterator[Card]:
    facts, statuses = seen.facts, seen.facts.cluster.statuses
    total, up = len(facts.observed.bookies), len(statuses)
    writable = len(facts.writable())
    yield Card("Bookies up", f"{up} of {total}", f"{writable} writable", "good" if up == total else "bad")
    point = seen.point
    yield _rate("Entries added", None if point is None else point.adds, [one.adds for one in hour], "{:,.0f}/s".format)
    yield _rate(
        "Bytes added",
        None if point is None else point.added_bytes,
        [one.added_bytes for one in hour],
        lambda value: f"{size_text(value)}/s",
    )
    yield _rate("Entries read", None if point is None else point.reads, [one.reads for one in hour], "{:,.0f}/s".format)
    lacking = None if facts.autorecovery is None else facts.autorecovery.ledgers
    yield Card(
        "Ledgers",
        f"{len(seen.ledgers):,}",
        f"{facts.open_ledgers:,} open" + (f", {lacking:,} lack copies" if lacking else ""),
        "busy" if lacking else "",
        "/ledgers",
    )
    if known is not None:
        so_far = "" if known.looked_at >= known.logs else f", of {known.looked_at:,} logs so far"
        yield Card("Logs", f"{known.logs:,}", f"{counted(known.rows, 'row')}{so_far}", path="/logs")
        late = f"{known.behind:,} behind or not known" if known.behind else "none is behind"
        yield Card("Readers", f"{known.readers:,}", f"{late}{so_far}", "busy" if known.behind else "", "/readers")
    used = sum(one.log_bytes for one in statuses.values())
    free = sum(one.free_bytes for one in statuses.values())
    if statuses:
        yield Card(
            "Free space",
            size_text(free),
            (Meter(used, used + free, "logs of logs and free space"), f" {size_text(used)} of logs"),
        )


def _rate(title: str, now: float | None, hour: Sequence[float | None], words: object) -> Card:
    assert callable(words)
    known = [one for one in hour if one is not None]
    trend = f"hour: mean {words(sum(known) / len(known))}, most {words(max(known))}" if known else "no figures yet"
    return Card(title, Text("not known", "soft") if now is None else words(now), trend)


def _metrics(seen: Seen) -> Markup:
    up = len(seen.facts.cluster.statuses)
    if seen.metrics >= up:  # a bookie may have ended since its last metrics
        return Markup()
    told = f"{seen.metrics} of {up} bookies tell metrics: set their option metrics_port."
    return part("metrics", Markup("<p>{}</p>").format(told), "Metrics")


# -- bookies

_STATES = {"writable": "good", "read-only": "busy", "healing": "busy"}


def _bookies(seen: Seen) -> object:
    facts = seen.facts
    rows = [_row(facts, line) for line in bookie_lines(facts, seen.before)]
    if not rows:
        return Text("No bookie is known.", "soft")
    names = ("bookie", "state", "host", "ledgers", "disks", "written a second", "version", "keeper")
    numbers = ("ledgers", "written a second")
    return Table("bookies", columns(*names, numbers=numbers, minor=("host", "disks", "version", "keeper")), rows)


def _row(facts: Facts, line: BookieLine) -> tuple[object, ...]:
    status = facts.cluster.statuses.get(line.bookie)
    why = Markup().join(Markup('<p class="why soft">{}</p>').format(reason) for reason in _reasons(facts, line, status))
    return (
        line.bookie,
        Cell((Text(line.state, _STATES.get(line.state, "bad")), why), line.state),
        line.host,
        Cell("" if line.ledgers is None else f"{line.ledgers:,}", line.ledgers),
        Cell("" if status is None else _disks(status), None if status is None else status.log_bytes),
        line.written.removesuffix("/s"),
        "" if status is None else status.version,
        "" if status is None else _keeper(status),
    )


def _reasons(facts: Facts, line: BookieLine, status: BookieStatus | None) -> Iterator[str]:
    away = None if facts.autorecovery is None or facts.autorecovery.away is None else facts.autorecovery.away
    if line.state == "silent":
        yield facts.cluster.problems.get(line.bookie, "it does not answer")
    elif line.state == "down" and away is not None and line.bookie in away:
        yield f"counts as lost in {duration(away[line.bookie])}"
    if status is None:
        return
    yield from status.reasons
    if status.limbo_ledgers:
        left = None if status.healing is None else status.healing.seconds_left
        time = "an unknown time" if left is None else duration(left)
        yield f"{counted(status.limbo_ledgers, 'ledger')} in limbo, {time} left"


def _disks(status: BookieStatus) -> object:
    """Every directory, and the space of all together: a bookie reports only the sum."""
    used, free = status.log_bytes, status.free_bytes
    told: list[object] = [(path, *_disk_state(status, path)) for path in status.directories]
    told += [(path, " ", Text("failed", "bad")) for path in status.failed_directories if path not in status.directories]
    bar = Meter(used, used + free, "logs of what logs and free space have")
    return (f"{size_text(used)} of logs, {size_text(free)} free ", bar, Lines(told))


def _disk_state(status: BookieStatus, path: str) -> tuple[object, ...]:
    if path in status.failed_directories:
        return " ", Text("failed", "bad")
    return (" ", Text("full", "busy")) if path in status.full_directories else ()


def _keeper(status: BookieStatus) -> str:
    if status.stops_in_seconds is not None:
        return f"nobody: it stops in {duration(status.stops_in_seconds)}"
    return status.keeper


# -- repairs


def _repair(facts: Facts) -> object:
    if facts.autorecovery is None:
        return Text("What autorecovery does is not known.", "soft")
    told = moving(facts)
    return Markup("<p>{}</p>").format(told or "No ledger is known to lack copies, and nothing heals.")
