"""Pages of logs: a list, and one log with its lanes and readers' lags.

Law: a look changes nothing and never fences. The list reads only the shown logs. The console knows no password, so for a log with
a password it shows only the record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from bookspark.errors import UnauthorizedAccessError
from bookspark.logs import LogRegistry
from bookspark.logs.readers.lag import ReaderLag, readers_of
from bookspark.operations.console.looks import Look, Looks, Patience, unseen
from bookspark.operations.console.pages import facts, link, moment, part, table, text
from bookspark.operations.console.telling import answers
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
_STATES = {ReaderState.LIVE: "good", ReaderState.STALE: "busy"}


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


def log_look(bookkeeper: BookKeeper, looks: Looks, name: str, patience: Patience) -> Look[LogSeen]:
    return looks.of(("log", name), partial(look_at, bookkeeper, name), patience.left)


# -- the list


def list_content(bookkeeper: BookKeeper, looks: Looks, after: str) -> str:
    """A list of the logs with names after ``after``, as HTML."""
    patience = Patience()
    names = looks.of("logs", LogRegistry(bookkeeper.metadata).names, patience.left)
    if names.found is None:
        return part("logs", unseen(names), "Logs")
    at = bisect_right(names.found, after)
    shown = names.found[at : at + ON_A_PAGE]
    rows = [_line(one, log_look(bookkeeper, looks, one, patience), at) for at, one in enumerate(shown)]
    columns = ("log", "lanes", "rows", "bytes", "newest row", "readers", "most behind")
    told = table("logs", columns, rows, columns[1:4]) if rows else '<p class="soft">There is none.</p>'
    first = link("/logs", "First", "logs-first") if after else ""
    more = link("/logs", "Next", "logs-next", after=shown[-1]) if at + ON_A_PAGE < len(names.found) else ""
    return part("logs", f'{told}<p class="pages">{counted(len(names.found), "log")} {first} {more}</p>', "Logs")


def _line(name: str, look: Look[LogSeen], at: int) -> tuple[str, ...]:
    named = link("/log", name, f"log-{at}", name=name)
    seen = look.found
    if seen is None or seen.problem:
        return (
            named,
            "",
            "",
            "",
            "",
            "",
            unseen(look) if seen is None else f'<span class="soft">{text(seen.problem)}</span>',
        )
    last = max((lane.last_ms for lane in seen.lanes if lane.last_ms is not None), default=None)
    return (
        named,
        f"{len(seen.lanes):,}",
        f"{sum(lane.rows for lane in seen.lanes):,}",
        size_text(sum(lane.size for lane in seen.lanes)),
        "" if last is None else moment(last),
        f"{len(seen.readers):,}" if seen.readers else "none",
        _most_behind(seen.readers),
    )


def _most_behind(readers: tuple[ReaderLag, ...]) -> str:
    unknown = [one for one in readers if one.lag_rows is None]
    if unknown:
        return f'<b class="bad">not known</b> {text(unknown[0].title)}'
    worst = max(readers, key=lambda one: one.lag_rows or 0, default=None)
    if worst is None:
        return ""
    return f"{counted(worst.lag_rows or 0, 'row')}: {text(worst.title)}" if worst.lag_rows else "nobody"


# -- one log


def content(name: str, look: Look[LogSeen], now: Facts | None = None) -> str:
    """One log as HTML. ``now``: the watch's last facts; None: no troubles are shown."""
    seen = look.found
    if seen is None:
        return part("log", unseen(look), f"Log {name}")
    problem = f'<p class="bad">{text(seen.problem)}</p>' if seen.problem else ""
    parts = part("log", problem + facts(_facts(seen)), f"Log {name}")
    if seen.problem:
        return parts
    if now is not None:
        found = log_troubles(now, LogFacts(seen.record, tuple(_lane_facts(seen, now)), seen.readers))
        parts += part("troubles", answers(found), "Troubles")
    return parts + part("lanes", _lanes(seen), "Lanes") + part("readers", _readers(seen.readers), "Readers")


def _lane_facts(seen: LogSeen, now: Facts) -> Iterator[LaneFacts]:
    for lane in seen.lanes:
        if lane.record is not None and lane.record.ended_rows is None:
            ago = None if lane.last_ms is None else max(0.0, (now.at_ms - lane.last_ms) / 1000)
            yield LaneFacts(lane.record, lane.writer, lane.rows, lane.commits, ago)


def _facts(seen: LogSeen) -> list[tuple[str, str]]:
    record, options = seen.record, seen.record.options
    offload = record.offload
    return [
        ("id", text(record.log_id)),
        ("made", moment(record.ctime_ms)),
        ("rows", "" if seen.problem else f"{sum(lane.rows for lane in seen.lanes):,}"),
        ("bytes", "" if seen.problem else size_text(sum(lane.size for lane in seen.lanes))),
        ("row format", text(options.row_format.value)),
        ("compression", text(options.compression.value)),
        (
            "copies",
            f"{options.write_quorum} on {counted(options.ensemble_size, 'bookie')}, {options.ack_quorum} acknowledge",
        ),
        ("fewer copies while bookies are missing", "yes" if options.fewer_copies else "no"),
        ("ledger type", text(options.ledger_type.value)),
        ("truncated before row", f"{record.first_position:,} of lane 0" if record.first_position else "nothing"),
        (
            "offloaded to",
            "nothing" if offload is None else f"{text(offload.table)}, {counted(offload.position, 'row')}",
        ),
        (
            "commit ledgers of lane 0",
            ", ".join(text(one.ledger_id) for one in record.commit_ledgers[-10:]) or "none",
        ),
    ]


def _lanes(seen: LogSeen) -> str:
    rows = [
        (
            text(lane.name),
            text(lane.writer),
            f"{lane.first_position:,}",
            f"{lane.rows:,}",
            size_text(lane.size),
            "" if lane.last_ms is None else moment(lane.last_ms),
        )
        for lane in seen.lanes[:_LANES_SHOWN]
    ]
    more = len(seen.lanes) - len(rows)
    note = f'<p class="soft">and {counted(more, "more lane")}</p>' if more else ""
    columns = ("lane", "writer", "first row", "rows", "bytes", "newest row")
    return table("lanes", columns, rows, columns[2:5]) + note


def _readers(readers: tuple[ReaderLag, ...]) -> str:
    if not readers:
        return '<p class="soft">Nobody reads it, and nobody did in the last 7 days.</p>'
    rows = [
        (
            text(one.title),
            text(one.kind.value),
            f'<b class="{_STATES.get(one.state, "")}">{text(one.state.value)}</b>',
            f'<span class="bad">not known: {text(one.problem)}</span>' if one.lag_rows is None else f"{one.lag_rows:,}",
            "" if one.lag_seconds is None else duration(one.lag_seconds),
            moment(one.heard_ms),
            moment(one.since_ms),
        )
        for one in readers
    ]
    columns = ("reader", "kind", "state", "rows behind", "time behind", "heard", "since")
    return table("readers", columns, rows, columns[3:5])
