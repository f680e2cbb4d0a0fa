"""Page of readers and producers of all logs: who, of which log, how far behind, since when.

Law: the page waits for no look: it shows the last look at each log, and says how many logs were looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bookspark.logs.readers.lag import ReaderLag
from bookspark.operations.console.logs import KeptLog, LaneSeen, readers_table
from bookspark.operations.console.pages import Cell, Markup, Table, Text, Time, address, columns, part, render
from bookspark.support.plain_text import counted

ON_A_PAGE = 50


class Producer(NamedTuple):
    """The writer of a lane that has not ended."""

    log: str
    lane: LaneSeen


def content(kept: Mapping[str, KeptLog], logs: int | None, query: Mapping[str, str]) -> Markup:
    """``logs``: number of all logs; None: not known. ``query``: ``find``, a part of the name of a reader, writer or log."""
    find = query.get("find", "").strip()
    readers = [one for log in kept.values() for one in log.seen.readers if _fits(find, one.title, one.reader, one.log)]
    producers = [one for one in _producers(kept) if _fits(find, one.log, one.lane.name, one.lane.writer)]
    readers.sort(key=_behind, reverse=True)
    producers.sort(key=lambda one: one.lane.last_ms or 0, reverse=True)
    form = render("find.html", path="/readers", find=find, label="Name contains", hidden={})
    so_far = "The logs are being looked at." if logs is None else f"{len(kept):,} of {counted(logs, 'log')} looked at."
    waiting = logs is None or len(kept) < logs
    note = Markup('<p class="soft{}" role="status">{}</p>').format(" waiting" if waiting else "", so_far)
    return (
        form
        + part("readers", (note, readers_table(readers[:ON_A_PAGE], with_log=True), _more(readers)), "Readers")
        + part("producers", (_producers_table(producers[:ON_A_PAGE]), _more(producers)), "Writers")
    )


def _fits(find: str, *words: str) -> bool:
    return not find or any(find in one for one in words)


def _behind(one: ReaderLag) -> tuple[bool, int]:
    return one.lag_rows is None, one.lag_rows or 0


def _producers(kept: Mapping[str, KeptLog]) -> Iterator[Producer]:
    for name, log in kept.items():
        for lane in log.seen.lanes:
            if lane.record is None or lane.record.ended_rows is None:
                yield Producer(name, lane)


def _more(found: list[ReaderLag] | list[Producer]) -> Markup:
    left = len(found) - ON_A_PAGE
    return Markup('<p class="soft">and {:,} more: find them by name</p>').format(left) if left > 0 else Markup()


def _producers_table(producers: list[Producer]) -> object:
    if not producers:
        return Markup('<p class="soft">No log has a lane that is written.</p>')
    rows = [
        (
            one.lane.writer,
            Text(one.log, path=address("/log", name=one.log), name=f"producer-log-{at}"),
            one.lane.name,
            Cell(f"{one.lane.rows:,}", one.lane.rows),
            "" if one.lane.last_ms is None else Cell(Time(one.lane.last_ms), one.lane.last_ms),
        )
        for at, one in enumerate(producers)
    ]
    names = ("writer", "log", "lane", "rows", "newest row")
    return Table("producers", columns(*names, numbers=("rows",), minor=("lane", "newest row")), rows)
