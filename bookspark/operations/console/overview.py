"""Page of the whole cluster: health with the next command, troubles, bookies, repairs, plots of the last hour.

Law: the page depends on the watch's last look only. An unknown figure is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from bookspark.operations.console.figures import HISTORY_SECONDS, Point
from bookspark.operations.console.pages import command, part, table, text
from bookspark.operations.console.telling import CLASSES, answers
from bookspark.operations.console.watch import Seen
from bookspark.operations.why.facts import Facts, Health
from bookspark.operations.why.picture import BookieLine, bookie_lines, moving
from bookspark.operations.why.words import duration
from bookspark.store.wire.messages import BookieStatus
from bookspark.support.plain_text import counted, size_text

# -- Plots of the last hour, as SVG within the page.
#
# Law: each plot has a text alternative. A gap stays a gap: no line is drawn over unknown values.


_WIDTH, _HEIGHT = 300.0, 60.0
_GAP_SECONDS = 90.0
"""Points further apart are not joined."""


def plot(title: str, points: Sequence[tuple[float, float | None]], now: float, words: Callable[[float], str]) -> str:
    """A figure with title, newest and highest value. ``points``: times in seconds up to ``now``, and values. ``words``: formats a
    value with its unit."""
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
    """A line's points; a single point is doubled, because a line of length 0 shows its round ends."""
    return " ".join(line if len(line) > 1 else [*line, *line])


# -- The page


_STATES = {"writable": "good", "read-only": "busy", "healing": "busy"}


def content(seen: Seen | None) -> str:
    """The page's content as HTML. ``seen`` None: the first look has not ended."""
    if seen is None:
        return part(
            "health", '<div class="banner"><h1 role="status">The first look at the cluster is under way</h1></div>'
        )
    return "".join(
        (
            part("health", _health(seen.health)),
            part("looked", _looked(seen)),
            part("troubles", answers(seen.health.troubles), "Troubles"),
            part("bookies", _bookies(seen), "Bookies"),
            part("repair", _repair(seen.facts), "Under way"),
            part("hour", _plots(seen), "The last hour"),
        )
    )


def _health(health: Health) -> str:
    worst = max((one.severity for one in health.troubles), default=None)
    kind = "good" if worst is None else CLASSES[worst]
    follow = f"<p>Next: {command(health.command)}</p>" if health.command else "<p>There is nothing to do.</p>"
    return f'<div class="banner {kind}"><h1 role="status">{text(health.sentence)}</h1>{follow}</div>'


def _looked(seen: Seen) -> str:
    at = datetime.fromtimestamp(seen.facts.at_ms / 1000, UTC)
    old = f'<p class="bad">The last look failed, what is shown is old: {text(seen.problem)}</p>' if seen.problem else ""
    return f'<p class="soft">Seen at <time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at:%H:%M:%S} UTC</time></p>{old}'


# -- bookies

_COLUMNS = ("bookie", "state", "host", "ledgers", "disks", "written a second", "version", "keeper")
_NUMBERS = ("ledgers", "written a second")


def _bookies(seen: Seen) -> str:
    facts = seen.facts
    rows = [_row(facts, line) for line in bookie_lines(facts, seen.before)]
    return table("bookies", _COLUMNS, rows, _NUMBERS) if rows else '<p class="soft">No bookie is known.</p>'


def _row(facts: Facts, line: BookieLine) -> tuple[str, ...]:
    status = facts.cluster.statuses.get(line.bookie)
    why = "".join(f'<p class="why soft">{text(reason)}</p>' for reason in _reasons(facts, line, status))
    return (
        text(line.bookie),
        f'<b class="{_STATES.get(line.state, "bad")}">{text(line.state)}</b>{why}',
        text(line.host),
        "" if line.ledgers is None else f"{line.ledgers:,}",
        "" if status is None else _disks(status),
        text(line.written.removesuffix("/s")),
        "" if status is None else text(status.version),
        "" if status is None else text(_keeper(status)),
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


def _disks(status: BookieStatus) -> str:
    """Every directory, and the space of all together: a bookie reports only the sum."""
    used, free = status.log_bytes, status.free_bytes
    told = [f"<li>{text(path)}{_disk_state(status, path)}</li>" for path in status.directories]
    told += [
        f'<li>{text(path)} <b class="bad">failed</b></li>'
        for path in status.failed_directories
        if path not in status.directories
    ]
    return (
        f"{size_text(used)} of logs, {size_text(free)} free "
        f'<meter min="0" max="{max(1, used + free)}" value="{used}" aria-label="logs of what logs and free space have">'
        f"</meter><ul>{''.join(told)}</ul>"
    )


def _disk_state(status: BookieStatus, path: str) -> str:
    if path in status.failed_directories:
        return ' <b class="bad">failed</b>'
    return ' <b class="busy">full</b>' if path in status.full_directories else ""


def _keeper(status: BookieStatus) -> str:
    if status.stops_in_seconds is not None:
        return f"nobody: it stops in {duration(status.stops_in_seconds)}"
    return status.keeper


# -- repairs and plots


def _repair(facts: Facts) -> str:
    found = facts.autorecovery
    if found is None:
        return '<p class="soft">What autorecovery does is not known.</p>'
    told = moving(facts)
    return f"<p>{text(told)}</p>" if told else "<p>No ledger is known to lack copies, and nothing heals.</p>"


def _plots(seen: Seen) -> str:
    def line(title: str, field: int, words: str) -> str:
        values = [(one.at, one[field]) for one in seen.points]
        return plot(title, values, seen.at, lambda value: words.format(value))

    names = {name: at for at, name in enumerate(Point._fields)}
    rates = (
        line("Entries added, all copies", names["adds"], "{:,.0f}/s")
        + plot(
            "Bytes added, all copies",
            [(one.at, one.added_bytes) for one in seen.points],
            seen.at,
            lambda value: f"{size_text(value)}/s",
        )
        + line("Entries read", names["reads"], "{:,.0f}/s")
        + line("Mean time of an add", names["add_ms"], "{:,.2f} ms")
        + line("Mean time of an answer to a read", names["read_ms"], "{:,.2f} ms")
    )
    up = len(seen.facts.cluster.statuses)
    note = (
        ""
        if seen.metrics >= up  # a bookie may have ended since its last metrics
        else f"<p>{seen.metrics} of {up} bookies tell metrics: set their option metrics_port.</p>"
    )
    zookeeper = line("A small read of ZooKeeper", names["zookeeper_ms"], "{:,.1f} ms")
    return f'{note}<div class="plots">{rates if seen.metrics else ""}{zookeeper}</div>'
