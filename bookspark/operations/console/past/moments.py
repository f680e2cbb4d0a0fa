"""Choice of snapshots: the sliders, and the common parts of all pages of the past.

Law: a slider moves over versions; a missing version stands for the snapshot before it. Without the script a button requests the
same page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bookspark.operations.console.pages import Markup, Time, address, part, render
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


def form(snapshots: Sequence[Snapshot], now: Chosen, path: str, hidden: Mapping[str, str]) -> Markup:
    """The sliders. ``hidden``: other fields of the query. No live part, so updates do not move a slider in use."""
    times = " ".join(f"{one.version}:{one.time.timestamp():.0f}" for one in snapshots)
    sliders = (("at", "As it was", now.at), ("since", "Compared with", now.since or now.at))
    return render("moments.html", path=path, hidden=hidden, times=times, sliders=sliders, snapshots=snapshots)


def head(now: Chosen, path: str, cluster: str) -> Markup:
    """The snapshot's time, and links to its other pages. ``cluster``: the console's live cluster."""
    other = f"These snapshots are of another cluster: {now.at.cluster}"
    views = [(where, words, address(where, **now.query())) for where, words in VIEWS]
    told = render(
        "then.html",
        at=moment_of(now.at),
        other=other if now.at.cluster and now.at.cluster != cluster else "",
        views=views,
        path=path,
    )
    return part("then", told, still=True)


def moment_of(snapshot: Snapshot) -> Time:
    """The snapshot's time."""
    return Time(int(snapshot.time.timestamp() * 1000 + 0.5))
