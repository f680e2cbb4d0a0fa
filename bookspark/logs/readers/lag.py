"""How far the readers of a log are behind its end: for ``bookspark log readers``, ``bookspark why`` and metrics.

Law: looking changes nothing. Whoever asks computes the lag: the end of a lane is that of its commits now, a reader's place is
what it told last, or what its group saved if it lives no more. So the lag is known of readers that are down, and grows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import BookKeeperError, MetadataStoreError, UnreadableRecordError
from bookspark.logs.chain.commit_times import time_of
from bookspark.logs.chain.reader import AT_THE_END, LogReader
from bookspark.logs.chain.registry import POSITIONS, LaneName, LogRegistry, check_password
from bookspark.logs.readers.records import now_ms, records_of
from bookspark.protocol.logs.lanes import MARK, ended_before, is_offset, lane_name, lane_of, rows_before
from bookspark.protocol.logs.reader_record import ReaderKind, ReaderRecord, ReaderState, outdated
from bookspark.store.metadata.records.documents import read_struct
from bookspark.support.arguments import Password, checked
from bookspark.support.metrics.described import Figures

if TYPE_CHECKING:
    from bookspark.logs.chain.log_run import LogAddress
    from bookspark.store.client import BookKeeper
    from bookspark.store.metadata.store import MetadataStore


# --


class ReaderLag(NamedTuple):
    """A reader of a log, and how far it is behind."""

    log: str
    """What it reads: the log, or a lane of it (``orders@3``)."""
    key: str
    """What tells it from other readers of the same name."""
    kind: ReaderKind
    reader: str
    """The id of the query, or the name of the group; empty if it has none, or it is not known yet."""
    name: str
    """The name of the query; empty if it has none."""
    state: ReaderState
    since_ms: int
    """When it began, in ms since 1970, by its clock."""
    heard_ms: int
    """When it told last where it is, in ms since 1970, by its clock."""
    lanes: Mapping[int, int]
    """Before which row of each lane it is."""
    lag_rows: int | None
    """Rows that it has not read; those that were truncated don't count. None: the log's end can't be read now (``problem``)."""
    lag_seconds: float | None
    """How long ago the first of these rows was committed; 0 if there are none."""
    problem: str = ""
    """Why the lag is not known."""

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name or self.reader or self.key


@checked
def readers_of(bookkeeper: BookKeeper, name: LaneName, password: Password = b"") -> list[ReaderLag]:
    """The readers of log ``name``, or those of one of its lanes (``orders@3``). Those that live come first, of these the one that
    is the most rows behind.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password) and MetadataStoreError.
    """
    store, registry = bookkeeper.metadata, LogRegistry(bookkeeper.metadata)
    record = registry.get(name)
    check_password(record, password)
    log = lane_of(name)[0]
    wanted = {lane_of(lane)[1] for lane in registry.lanes_of(name)}
    ended = registry.ended_lanes(record) if MARK not in name else []
    records, now = records_of(store, log), now_ms()
    gone = outdated(records, record.ctime_ms, now)
    ends = _Ends(bookkeeper, log, password)
    found = []
    for key, what, one in ((*_parted(key), one) for key, one in records.items() if key not in gone):
        lanes = {lane_of(what)[1]} & wanted if MARK in what else wanted
        if lanes:
            found.append(_lag(one, key, what, _place(store, one, what, now), lanes, ended, ends))
    return sorted(found, key=lambda one: (one.state is not ReaderState.LIVE, -(one.lag_rows or 0), one.title))


def _parted(record_name: str) -> tuple[str, str]:
    key, _, what = record_name.partition(MARK)
    return key, what


def _place(store: MetadataStore, record: ReaderRecord, what: str, now: int) -> Mapping[str, int]:
    """Where the reader is; of a group that has no reader now, where the next one goes on."""
    if record.kind is ReaderKind.PYTHON and record.reader and record.state(now) is not ReaderState.LIVE:
        name = f"{record.reader}{MARK}{what}"
        saved = store.read_record(POSITIONS, name)
        if saved is not None:
            try:
                offset = read_struct(saved.value, dict[str, int], f"position {name!r}")
            except UnreadableRecordError:
                return record.offset
            return offset if is_offset(offset) and offset["log"] == record.offset["log"] else record.offset
    return record.offset


def _lag(
    record: ReaderRecord, key: str, what: str, place: Mapping[str, int], wanted: set[int], ended: list[int], ends: _Ends
) -> ReaderLag:
    before = rows_before(place)
    # It has read those that ended before its place, and its place names them no more.
    lanes = {lane: before.get(lane, 0) for lane in sorted(wanted.difference(ended[: ended_before(place)]))}
    rows: int | None = 0
    oldest_ms, problem = None, ""
    try:
        rows = sum(ends.unread(lane, at) for lane, at in lanes.items())
        times = [time_ms for lane, at in lanes.items() if (time_ms := ends.first_unread_ms(lane, at)) is not None]
        oldest_ms = min(times, default=None)
    except MetadataStoreError:
        raise
    except BookKeeperError as error:
        rows, problem = None, str(error)
    seconds = None if problem else 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
    return ReaderLag(
        what,
        key,
        record.kind,
        record.reader,
        record.name,
        record.state(now_ms()),
        record.since_ms,
        record.heard_ms,
        lanes,
        rows,
        seconds,
        problem,
    )


class _Ends:
    """What is behind places of a log's lanes. Each question goes to the bookies once."""

    def __init__(self, bookkeeper: BookKeeper, log: str, password: bytes) -> None:
        def span(lane: int) -> tuple[int, int]:
            reader = LogReader(bookkeeper, lane_name(log, lane), password, AT_THE_END)
            return reader.record.first_position, reader.newest()

        def time_at(lane: int, row: int) -> int | None:
            return time_of(bookkeeper, lane_name(log, lane), password, row)

        self._span, self._time_at = cache(span), cache(time_at)

    def unread(self, lane: int, row: int) -> int:
        """The rows from ``row`` on that are still there."""
        first, end = self._span(lane)
        return max(0, end - max(first, row))

    def first_unread_ms(self, lane: int, row: int) -> int | None:
        """When the first row from ``row`` on was committed, in ms since 1970; None if there is none."""
        return self._time_at(lane, max(self._span(lane)[0], row)) if self.unread(lane, row) else None


# -- How far the readers of a log are behind, as figures for Prometheus; ``metrics.tables.LOG_READERS`` describes them.
#
# Law: a label has few values. A reader is told by the name of its query or group, or by its query's id; one that has none of
# these would be another series at each start, and is left out. Of several of one name those that live count, and of these the
# one that is most behind.


def lag_figures(bookkeeper: BookKeeper, log: LogAddress) -> tuple[Figures, Mapping[str, str]]:
    """The figures of now, and the label of the log. Raises what ``readers_of`` does."""
    told: dict[tuple[str, str], ReaderLag] = {}
    # Those that live come first, and of these the one that is most behind.
    for one in readers_of(bookkeeper, log.name, log.password):
        if one.name or one.reader:
            told.setdefault((one.kind.value, one.title), one)
    figures: Figures = {
        "bookspark_log_reader_lag_rows": {key: one.lag_rows for key, one in told.items() if one.lag_rows is not None},
        "bookspark_log_reader_lag_seconds": {
            key: one.lag_seconds for key, one in told.items() if one.lag_seconds is not None
        },
        "bookspark_log_reader_live": {key: float(one.state is ReaderState.LIVE) for key, one in told.items()},
    }
    return figures, {"log": log.name}
