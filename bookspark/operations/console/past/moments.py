"""Choice of snapshots: the sliders, and the common parts of all pages of the past.

Law: a slider moves over versions; a missing version stands for the snapshot before it. Without the script a button requests the
same page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bookspark.operations.console.pages import link, moment, part, text
from bookspark.support.snapshot_commits import Snapshot

VIEWS = (("/time", "The cluster"), ("/time/ledgers", "Ledgers"), ("/time/logs", "Logs"))
"""Path and title of the pages of the past."""
LEDGER = "/time/ledger"


class Chosen(NamedTuple):
    """The chosen snapshots."""

    at: Snapshot
    since: Snapshot | None
    """The earlier snapshot of the comparison; None: no comparison."""

    def query(self) -> dict[str, object]:
        """The choice as a query of links."""
        return {"at": self.at.version, **({} if self.since is None else {"since": self.since.version})}


def chosen(snapshots: Sequence[Snapshot], query: Mapping[str, str]) -> Chosen:
    """The choice of a query. ``snapshots``: the oldest first. Default: the newest, compared with the previous snapshot. Raises
    ValueError, with a sentence for the page."""
    at, since = (_place(snapshots, query.get(name, "")) for name in ("at", "since"))
    if at is None:
        at = len(snapshots) - 1
    if since is None:
        since = at - 1
    at, since = max(at, since), min(at, since)
    return Chosen(snapshots[at], snapshots[since] if 0 <= since < at else None)


def _place(snapshots: Sequence[Snapshot], asked: str) -> int | None:
    """Index of the newest snapshot at or before the typed version, else of the oldest; None: not given."""
    if not asked:
        return None
    if not (asked.isascii() and asked.isdigit() and len(asked) < 20):
        raise ValueError(f"{asked!r} is no snapshot: give its version, a number")
    return max((at for at, one in enumerate(snapshots) if one.version <= int(asked)), default=0)


def form(snapshots: Sequence[Snapshot], now: Chosen, path: str, hidden: Mapping[str, str]) -> str:
    """The sliders. ``hidden``: other fields of the query. No live part, so updates do not move a slider in use."""
    kept = "".join(f'<input type="hidden" name="{text(name)}" value="{text(value)}">' for name, value in hidden.items())
    times = " ".join(f"{one.version}:{one.time.timestamp():.0f}" for one in snapshots)
    since = now.since or now.at
    return (
        f'<form id="moments" class="moments" action="{text(path)}" aria-label="Time" data-times="{times}">'
        f"{_slider('at', 'As it was', snapshots, now.at)}{_slider('since', 'Compared with', snapshots, since)}"
        f"{kept}<button>Show</button></form>"
    )


def _slider(name: str, words: str, snapshots: Sequence[Snapshot], one: Snapshot) -> str:
    told = f"{one.time:%Y-%m-%d %H:%M:%S} UTC, snapshot {one.version}"
    return (
        f'<div><label for="{name}">{words}</label> <output id="{name}-told" for="{name}">{told}</output>'
        f'<input type="range" id="{name}" name="{name}" min="{snapshots[0].version}" max="{snapshots[-1].version}" '
        f'value="{one.version}" aria-valuetext="{told}"></div>'
    )


def head(now: Chosen, path: str, cluster: str) -> str:
    """The snapshot's time, and links to its other pages. ``cluster``: the console's live cluster."""
    ways = " ".join(
        link(where, words, f"view-{at}", **now.query())
        if where != path
        else f'<a id="view-{at}" aria-current="page" href="{text(where)}">{text(words)}</a>'
        for at, (where, words) in enumerate(VIEWS)
    )
    other = (
        f'<p class="bad">These snapshots are of another cluster: {text(now.at.cluster)}</p>'
        if now.at.cluster and now.at.cluster != cluster
        else ""
    )
    return part(
        "then",
        f"<h1>As it was at {moment_of(now.at)}</h1>{other}"
        f'<nav aria-label="Pages of that time" class="views">{ways}</nav>',
        still=True,
    )


def moment_of(snapshot: Snapshot) -> str:
    """The snapshot's time as HTML."""
    return moment(int(snapshot.time.timestamp() * 1000 + 0.5))
