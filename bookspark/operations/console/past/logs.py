"""Logs of a snapshot, lane by lane.

Law: a page reads the names of all lanes, and the other columns of the shown lanes only. A lane with unreadable commits (a
password, a lost commit ledger) is shown as unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bookspark.operations.console.looks import Look, unseen
from bookspark.operations.console.pages import Markup, Table, Text, Time, address, columns, part, render
from bookspark.operations.console.past.deltas import Deltas
from bookspark.operations.console.past.moments import Chosen
from bookspark.support.plain_text import counted, size_text
from bookspark.support.snapshot_commits import Snapshot

ON_A_PAGE = 50
_COLUMNS = (
    "log",
    "batches",
    "rows",
    "bytes",
    "readable",
    "first_position",
    "offloaded_to",
    "offloaded_rows",
    "created_at",
)


class LogsSeen(NamedTuple):
    """A page of a snapshot's lanes."""

    rows: Sequence[Mapping[str, Any]]
    lanes: int
    later: str | None
    """The last name of this page, after which the next page begins; None: no next page."""


def look_at(deltas: Deltas, snapshot: Snapshot, after: str) -> LogsSeen:
    """A page of lanes with names after ``after``. Raises ReadError."""
    import pyarrow
    import pyarrow.compute as pc
    from pyarrow.dataset import field

    names = deltas.read(snapshot, "logs", ("log",))["log"].combine_chunks()
    following = names.filter(pc.greater(names, after)) if after else names
    # The names of a page, and one more to see whether a next page exists.
    first = following.take(pc.array_sort_indices(following)[: ON_A_PAGE + 1]).to_pylist()
    shown = first[:ON_A_PAGE]
    where = field("log").isin(pyarrow.array(shown, pyarrow.string()))
    rows = sorted(deltas.rows(snapshot, "logs", _COLUMNS, where), key=lambda row: row["log"]) if shown else []
    return LogsSeen(rows, len(names), shown[-1] if len(first) > ON_A_PAGE else None)


def content(now: Chosen, after: str, look: Look[LogsSeen]) -> Markup:
    seen = look.found
    if seen is None:
        return part("logs", unseen(look), "Logs")
    names = ("log or lane", "commits", "rows", "bytes", "first row", "offloaded", "made")
    shape = columns(*names, numbers=names[1:5], minor=("commits", "first row", "offloaded", "made"))
    told: object = Table("logs", shape, [_line(one) for one in seen.rows]) if seen.rows else "There was none."
    links = [
        Text("First", path=address("/time/logs", **now.query()), name="logs-first") if after else "",
        Text("Next", path=address("/time/logs", **now.query(), after=seen.later), name="logs-next")
        if seen.later is not None
        else "",
    ]
    note = Markup('<p class="soft">Snapshots don\'t tell who read the logs, and how far behind.</p>')
    more = render("more.html", count=counted(seen.lanes, "lane"), links=links)
    return part("logs", (told, more, note), "Logs", still=True)


def _line(row: Mapping[str, Any]) -> tuple[object, ...]:
    name, created = row["log"], row["created_at"]
    made = "" if created is None else Time(round(created.timestamp() * 1000))
    if not row["readable"]:
        return name, Text("its commits could not be read", "soft"), "", "", "", "", made
    offloaded = row["offloaded_to"]
    return (
        name,
        f"{row['batches']:,}",
        f"{row['rows']:,}",
        size_text(row["bytes"]),
        f"{row['first_position'] or 0:,}",
        "" if offloaded is None else f"{counted(row['offloaded_rows'], 'row')} to {offloaded}",
        made,
    )
