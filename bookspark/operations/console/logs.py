"""Pages of logs: a list, and one log with its lanes and readers' lags.

Law: a look changes nothing and never fences. The list waits for no look: it shows the last ones. The console knows no password,
so for a log with a password it shows only the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bookspark.errors import UnauthorizedAccessError
from bookspark.logs import LogRegistry
from bookspark.logs.readers.lag import ReaderLag, readers_of
from bookspark.operations.console.figures import Track
from bookspark.operations.console.looks import UNDER_WAY, Look, unseen
from bookspark.operations.console.pages import (
    Cell,
    Column,
    Markup,
    Pairs,
    Table,
    Text,
    Time,
    address,
    answers,
    columns,
    html,
    part,
    render,
)
from bookspark.operations.console.plots import Plot, section
from bookspark.operations.why.answers import log_troubles
from bookspark.operations.why.facts import Facts, LaneFacts, LogFacts
from bookspark.operations.why.gathering import lane_end
from bookspark.operations.why.words import duration
from bookspark.protocol.logs.lanes import lane_id, writers_of_lanes
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.logs.reader_record import ReaderState
from bookspark.store.client import BookKeeper
from bookspark.support.plain_text import counted, size_text

ON_A_PAGE = 25
_LANES_SHOWN = 100


class LaneSeen(NamedTuple):
    name: str
    writer: str
    first_position: int
    """First row that is not truncated."""
    rows: int
    """Rows committed in all, truncated rows included."""
    size: int
    """Bytes of all committed rows."""
    last_ms: int | None
    """Commit time of the newest row, in ms since 1970; None: not known."""
    commits: int = 0
    record: LogRecord | None = None
    """None: no troubles of the lane are computed."""


class LogSeen(NamedTuple):
    record: LogRecord
    lanes: tuple[LaneSeen, ...] = ()
    readers: tuple[ReaderLag, ...] = ()
    problem: str = ""
    """The reason why lanes and readers are not known."""


class KeptLog(NamedTuple):
    """The last look at a log."""

    seen: LogSeen
    at: float
    """Time of the look, on the monotonic clock."""
    track: Track
    """Values: rows a second, bytes a second, then rows behind for each of ``readers``."""
    readers: tuple[str, ...]
    """The first readers of the log, by title; a reader keeps its place."""
    rows: int
    size: int


class LogsKnown(NamedTuple):
    """Totals of the logs that were looked at so far."""

    logs: int
    looked_at: int
    rows: int
    readers: int
    behind: int
    """Readers that are more than a minute behind, or whose lag is not known."""


def look_at(bookkeeper: BookKeeper, name: str) -> LogSeen:
    """The log's present state. Raises NoSuchLogError, ReadError, MetadataStoreError."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(name)
    records = {lane: registry.get(lane) for lane in registry.lanes_of(name)}
    writers = writers_of_lanes(record, records.values())
    try:
        lanes = [_lane(bookkeeper, one, writers[one.name]) for one in records.values()]
        return LogSeen(record, tuple(lanes), tuple(readers_of(bookkeeper, lane_id(record))))
    except UnauthorizedAccessError:
        return LogSeen(
            record, problem="It has a password, and the console knows none: lanes and readers can't be told."
        )


def _lane(bookkeeper: BookKeeper, record: LogRecord, writer: str) -> LaneSeen:
    end, time_ms = lane_end(bookkeeper, lane_id(record), b"")
    return LaneSeen(record.name, writer, record.first_position, end.rows, end.size, time_ms, end.batches, record)


# -- the list

_NO_ORDER = -1.0


def _newest(seen: LogSeen) -> int | None:
    return max((lane.last_ms for lane in seen.lanes if lane.last_ms is not None), default=None)


def _lag(seen: LogSeen) -> int:
    """The largest lag; a lag that is not known counts as larger than any."""
    return max((1 << 63 if one.lag_rows is None else one.lag_rows for one in seen.readers), default=-1)


ORDERS: Mapping[str, Callable[[KeptLog], float]] = {
    "rows": lambda one: one.rows,
    "bytes": lambda one: one.size,
    "newest row": lambda one: _newest(one.seen) or _NO_ORDER,
    "readers": lambda one: len(one.seen.readers),
    "most behind": lambda one: _lag(one.seen),
}
"""Columns by which the list can be ordered, the largest first, besides the name."""


def list_content(names: Look[list[str]], kept: Mapping[str, KeptLog], query: Mapping[str, str]) -> Markup:
    """A list of logs. ``query``: ``find`` (a part of the name), ``by`` (of ORDERS; else by name) and ``page`` (from 0 on)."""
    find, by = query.get("find", "").strip(), query.get("by", "")
    page = query.get("page", "0")
    at = int(page) if page.isascii() and page.isdigit() and len(page) < 7 else 0
    form = render(
        "find.html", path="/logs", find=find, label="Name contains", hidden={"by": by} if by in ORDERS else {}
    )
    if names.found is None:
        return form + part("logs", unseen(names))
    found = [one for one in names.found if find in one]
    if by in ORDERS:
        order = ORDERS[by]
        found.sort(key=lambda one: order(kept[one]) if one in kept else _NO_ORDER - 1, reverse=True)
    shown = found[at * ON_A_PAGE : (at + 1) * ON_A_PAGE]
    asked = {**({"find": find} if find else {}), **({"by": by} if by in ORDERS else {})}
    rows = [_line(one, kept.get(one), place) for place, one in enumerate(shown)]
    told: object = Table("logs", _list_columns(asked, by), rows) if rows else Text("There is none.", "soft")
    more = [
        Text("First", path=address("/logs", **asked), name="logs-first") if at else "",
        Text("Next", path=address("/logs", **asked, page=at + 1), name="logs-next")
        if (at + 1) * ON_A_PAGE < len(found)
        else "",
    ]
    count = counted(len(found), "log") + (f" of {len(names.found):,}" if find else "")
    return form + part("logs", (told, render("more.html", count=count, links=more)))


def _list_columns(asked: Mapping[str, str], by: str) -> list[Column]:
    kept = {name: value for name, value in asked.items() if name != "by"}
    found = [Column("log", path=address("/logs", **kept), sorted=by not in ORDERS), Column("lanes", True, True)]
    for name in ORDERS:
        path = address("/logs", **kept, by=name)
        minor = name not in ("rows", "most behind")
        found.append(Column(name, name in ("rows", "bytes"), minor, "the largest first", path, name == by))
    return found


def _line(name: str, kept: KeptLog | None, at: int) -> tuple[object, ...]:
    named = Text(name, path=address("/log", name=name), name=f"log-{at}")
    if kept is None:
        return named, "", "", "", "", "", unseen(UNDER_WAY)
    seen = kept.seen
    if seen.problem:
        return named, "", "", "", "", "", Text(seen.problem, "soft")
    last = _newest(seen)
    return (
        named,
        f"{len(seen.lanes):,}",
        f"{kept.rows:,}",
        size_text(kept.size),
        "" if last is None else Time(last),
        f"{len(seen.readers):,}" if seen.readers else "none",
        _most_behind(seen.readers),
    )


def _most_behind(readers: tuple[ReaderLag, ...]) -> object:
    unknown = [one for one in readers if one.lag_rows is None]
    if unknown:
        return Text("not known", "bad"), f" {unknown[0].title}"
    worst = max(readers, key=lambda one: one.lag_rows or 0, default=None)
    if worst is None:
        return ""
    return f"{counted(worst.lag_rows or 0, 'row')}: {worst.title}" if worst.lag_rows else "nobody"


# -- one log

PLOTS = (
    Plot("rows", "Rows written", "/s", (("rows", 0),)),
    Plot("bytes", "Bytes written", "B/s", (("bytes", 1),)),
    Plot("lag", "Rows behind, by reader", "rows"),
)
"""A log's plots, over the values of ``KeptLog.track``; the lag has a line for each reader."""


def lag_plot(readers: Sequence[str]) -> Plot:
    return PLOTS[-1]._replace(series=tuple((name, 2 + at) for at, name in enumerate(readers)))


def content(name: str, look: Look[LogSeen], now: Facts | None = None) -> Markup:
    """One log. ``now``: the watch's last facts; None: no troubles are shown."""
    seen = look.found
    if seen is None:
        return part("log", unseen(look))
    problem = Text(seen.problem, "bad") if seen.problem else ""
    log = part("log", (problem, Pairs(_facts(seen))))
    if seen.problem:
        return log
    troubles = Markup()
    if now is not None:
        found = log_troubles(now, LogFacts(seen.record, tuple(_lane_facts(seen, now)), seen.readers))
        troubles = part("troubles", answers(found), "Troubles")
    return html(
        (
            log,
            troubles,
            part("lanes", _lanes(seen), "Lanes"),
            part("readers", readers_table(seen.readers), "Readers"),
            section(PLOTS, address("/figures/log", name=name)),
        )
    )


def _lane_facts(seen: LogSeen, now: Facts) -> Iterator[LaneFacts]:
    for lane in seen.lanes:
        if lane.record is not None and lane.record.ended_rows is None:
            ago = None if lane.last_ms is None else max(0.0, (now.at_ms - lane.last_ms) / 1000)
            yield LaneFacts(lane.record, lane.writer, lane.rows, lane.commits, ago)


def _facts(seen: LogSeen) -> list[tuple[str, object]]:
    record, options = seen.record, seen.record.options
    offload = record.offload
    return [
        ("id", str(record.log_id)),
        ("made", Time(record.ctime_ms)),
        ("rows", "" if seen.problem else f"{sum(lane.rows for lane in seen.lanes):,}"),
        ("bytes", "" if seen.problem else size_text(sum(lane.size for lane in seen.lanes))),
        ("row format", options.row_format.value),
        ("compression", options.compression.value),
        (
            "copies",
            f"{options.write_quorum} on {counted(options.ensemble_size, 'bookie')}, {options.ack_quorum} acknowledge",
        ),
        ("fewer copies while bookies are missing", "yes" if options.fewer_copies else "no"),
        ("ledger type", options.ledger_type.value),
        ("truncated before row", f"{record.first_position:,} of lane 0" if record.first_position else "nothing"),
        ("offloaded to", "nothing" if offload is None else f"{offload.table}, {counted(offload.position, 'row')}"),
        (
            "commit ledgers of lane 0",
            ", ".join(str(one.ledger_id) for one in record.commit_ledgers[-10:]) or "none",
        ),
    ]


def _lanes(seen: LogSeen) -> object:
    rows = [
        (
            lane.name,
            lane.writer,
            Cell(f"{lane.first_position:,}", lane.first_position),
            Cell(f"{lane.rows:,}", lane.rows),
            Cell(size_text(lane.size), lane.size),
            "" if lane.last_ms is None else Cell(Time(lane.last_ms), lane.last_ms),
        )
        for lane in seen.lanes[:_LANES_SHOWN]
    ]
    more = len(seen.lanes) - len(rows)
    note = Markup('<p class="soft">and {}</p>').format(counted(more, "more lane")) if more else ""
    names = ("lane", "writer", "first row", "rows", "bytes", "newest row")
    return Table("lanes", columns(*names, numbers=names[2:5], minor=("first row", "bytes", "newest row")), rows), note


def readers_table(readers: Sequence[ReaderLag], *, with_log: bool = False) -> object:
    """Readers with their lags. ``with_log``: with a link to the log of each."""
    if not readers:
        return Markup('<p class="soft">Nobody reads it, and nobody did in the last 7 days.</p>')
    rows = []
    for place, one in enumerate(readers):
        lag = (
            Cell((Text("not known", "bad"), f": {one.problem}"), 1 << 62)
            if one.lag_rows is None
            else Cell(f"{one.lag_rows:,}", one.lag_rows)
        )
        rows.append(
            (
                one.title,
                *((_log_link(one.log, place),) if with_log else ()),
                one.kind.value,
                one.process,
                Text(one.state.value, "bad" if one.gone else "good" if one.state is ReaderState.LIVE else ""),
                lag,
                "" if one.lag_seconds is None else Cell(duration(one.lag_seconds), one.lag_seconds),
                Cell(Time(one.heard_ms), one.heard_ms),
                Cell(Time(one.since_ms), one.since_ms),
            )
        )
    log = ("log",) if with_log else ()
    names = ("reader", *log, "kind", "process", "state", "rows behind", "time behind", "heard", "since")
    minor = ("kind", "process", "time behind", "heard", "since", *(("state",) if with_log else ()))
    return Table("readers", columns(*names, numbers=("rows behind", "time behind"), minor=minor), rows)


def _log_link(log: str, at: int) -> Text:
    return Text(log, path=address("/log", name=log.partition("@")[0]), name=f"reader-log-{at}")


# -- Readers and producers of all logs: who, of which log, how far behind, since when
#
# Law: the page waits for no look: it shows the last look at each log, and says how many logs were looked at.


READERS_ON_A_PAGE = 50


class Producer(NamedTuple):
    """The writer of a lane that has not ended."""

    log: str
    lane: LaneSeen


def readers_content(kept: Mapping[str, KeptLog], logs: int | None, query: Mapping[str, str]) -> Markup:
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
        + part("readers", (note, readers_table(readers[:READERS_ON_A_PAGE], with_log=True), _more(readers)), "Readers")
        + part("producers", (_producers_table(producers[:READERS_ON_A_PAGE]), _more(producers)), "Writers")
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
    left = len(found) - READERS_ON_A_PAGE
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
