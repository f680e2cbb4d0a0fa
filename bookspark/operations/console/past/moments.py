"""The versions to choose from: the slider, and what every page of the past has.

Law: a slider goes over versions, also where one is missing between two: then the snapshot before it is meant. Without the script
the form asks for the same page by a button.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bookspark.operations.console.pages import link, moment, part, text
from bookspark.support.snapshot_commits import Snapshot

VIEWS = (("/time", "The cluster"), ("/time/ledgers", "Ledgers"), ("/time/logs", "Logs"))
"""The pages of the past: path and title."""
LEDGER = "/time/ledger"
"""The page of one ledger."""


class Chosen(NamedTuple):
    """What is asked for."""

    at: Snapshot
    """The snapshot that is shown."""
    since: Snapshot | None
    """The earlier one that it is compared with; None: there is no earlier one."""

    def query(self) -> dict[str, object]:
        """The same, for links."""
        return {"at": self.at.version, **({} if self.since is None else {"since": self.since.version})}


def chosen(snapshots: Sequence[Snapshot], query: Mapping[str, str]) -> Chosen:
    """Which of ``snapshots``, the oldest first, are asked for: the newest one if none is, compared with the one before it.
    Raises ValueError, with a sentence."""
    at, since = (_place(snapshots, query.get(name, "")) for name in ("at", "since"))
    if at is None:
        at = len(snapshots) - 1
    if since is None:
        since = at - 1
    at, since = max(at, since), min(at, since)
    return Chosen(snapshots[at], snapshots[since] if 0 <= since < at else None)


def _place(snapshots: Sequence[Snapshot], asked: str) -> int | None:
    """Which of the snapshots somebody typed: the newest one of that version or before it, otherwise the oldest."""
    if not asked:
        return None
    if not (asked.isascii() and asked.isdigit() and len(asked) < 20):
        raise ValueError(f"{asked!r} is no snapshot: give its version, a number")
    return max((at for at, one in enumerate(snapshots) if one.version <= int(asked)), default=0)


def form(snapshots: Sequence[Snapshot], now: Chosen, path: str, hidden: Mapping[str, str]) -> str:
    """The sliders. ``hidden``: what else the page was asked for. It is no live part: nobody's hand is pushed away."""
    kept = "".join(f'<input type="hidden" name="{text(name)}" value="{text(value)}">' for name, value in hidden.items())
    times = " ".join(f"{one.version}:{one.time:%s}" for one in snapshots)
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
    """When it was, and the ways to the other pages of that time. ``cluster``: the one that the console looks at."""
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
    """When the snapshot was taken."""
    return moment(int(snapshot.time.timestamp() * 1000 + 0.5))
