"""The lag of a log's readers: for ``bookspark log readers``, ``bookspark why`` and metrics.

Law: a look changes nothing. The client computes the lag from a lane's current end and the reader's last reported offset, or, for
a dead reader of a group, the group's saved offset. So the lag of dead readers is known, and grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import BookKeeperError, MetadataStoreError, UnreadableRecordError
from bookspark.logs.chain.commit_times import time_of
from bookspark.logs.chain.reader import AT_THE_END, LogReader
from bookspark.logs.chain.registry import POSITIONS, Lane, LogRegistry, check_password
from bookspark.logs.readers.records import records_of
from bookspark.protocol.logs.lanes import MARK, LaneId, ended_before, is_offset, lane_of, rows_before
from bookspark.protocol.logs.reader_record import ReaderKind, ReaderRecord, ReaderState, outdated
from bookspark.store.cluster_view import learn_time
from bookspark.store.metadata.records.documents import read_struct
from bookspark.support.arguments import Password, checked
from bookspark.support.metrics.described import Figures

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.metadata.store import MetadataStore


# -- Lag


class ReaderLag(NamedTuple):
    """A reader of a log, and its lag."""

    log: str
    """The log that it reads, or a lane (``orders@3``)."""
    key: str
    """Distinguishes readers of the same name."""
    kind: ReaderKind
    reader: str
    """Query id or group name; empty if none, or not known yet."""
    name: str
    state: ReaderState
    since_ms: int
    """Start, in ms since 1970, by the reader's clock."""
    heard_ms: int
    """Last report, in ms since 1970, by ZooKeeper's clock."""
    lanes: Mapping[int, int]
    """Lane → next row."""
    lag_rows: int | None
    """Unread rows, without truncated ones. None: the log's end can't be read now (``problem``)."""
    lag_seconds: float | None
    """Age of the first unread row; 0 if there are none; None: unknown."""
    problem: str = ""
    process: str = ""
    """Host and process id of the reader, ``HOST:PID``."""

    @property
    def title(self) -> str:
        return self.name or self.reader or self.key

    @property
    def gone(self) -> bool:
        """Does it not run, although rows wait for it? A query that ended by itself is not gone: its next run is scheduled. A
        closed Python reader is, because ``close`` also follows an error."""
        if self.state is ReaderState.LIVE or self.lag_rows == 0:
            return False
        return self.state is ReaderState.STALE or self.kind is ReaderKind.PYTHON


@checked
def readers_of(bookkeeper: BookKeeper, name: Lane, password: Password = b"") -> list[ReaderLag]:
    """The readers of log ``name``, or of one lane (``orders@3``). Live readers come first, the largest lag in rows first among
    them.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password) and MetadataStoreError.
    """
    store, registry = bookkeeper.metadata, LogRegistry(bookkeeper.metadata)
    lanes_of = registry.lanes_of(name)
    log = lanes_of[0].lane(0)
    record = registry.get(log)
    check_password(record, password)
    wanted = {lane.number for lane in lanes_of}
    ended = registry.ended_lanes(record) if len(lanes_of) > 1 else []
    records, now = records_of(store, log.log), learn_time(bookkeeper)
    gone = outdated(records, now)
    ends = _Ends(bookkeeper, log, password)
    readers = []
    for record_name, one in records.items():
        key, _, what = record_name.partition(MARK)
        lanes = {lane_of(what)[1]} & wanted if MARK in what else wanted
        if lanes and record_name not in gone:
            named = f"{log.name}{what.removeprefix(log.key)}"
            readers.append(_lag(one, key, named, _place(store, one, what, now), lanes, ended, ends, now))
    return sorted(readers, key=lambda one: (one.state is not ReaderState.LIVE, -(one.lag_rows or 0), one.title))


def _place(store: MetadataStore, record: ReaderRecord, what: str, now: int) -> Mapping[str, int]:
    """Offset of the reader; for a group without a live reader, the saved offset of its next reader."""
    if record.kind is ReaderKind.PYTHON and record.reader and record.state(now) is not ReaderState.LIVE:
        name = f"{record.reader}{MARK}{what}"
        saved = store.read_record(POSITIONS, name)
        if saved is not None:
            try:
                offset = read_struct(saved.value, dict[str, int], f"position {name!r}")
            except UnreadableRecordError:
                return record.offset
            return offset if is_offset(offset) else record.offset
    return record.offset


def _lag(
    record: ReaderRecord,
    key: str,
    what: str,
    place: Mapping[str, int],
    wanted: set[int],
    ended: list[int],
    ends: _Ends,
    now: int,
) -> ReaderLag:
    before = rows_before(place)
    # The reader has read all lanes that ended before its offset, which no longer names them.
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
    seconds = None if problem else 0.0 if oldest_ms is None else max(0.0, (now - oldest_ms) / 1000)
    return ReaderLag(
        what,
        key,
        record.kind,
        record.reader,
        record.name,
        record.state(now),
        record.since_ms,
        record.heard_ms,
        lanes,
        rows,
        seconds,
        problem,
        record.process,
    )


class _Ends:
    def __init__(self, bookkeeper: BookKeeper, log: LaneId, password: bytes) -> None:
        def span(lane: int) -> tuple[int, int]:
            reader = LogReader(bookkeeper, log.lane(lane), password, AT_THE_END)
            return reader.record.first_position, reader.newest()

        def time_at(lane: int, row: int) -> int | None:
            return time_of(bookkeeper, log.lane(lane), password, row)

        self._span, self._time_at = cache(span), cache(time_at)

    def unread(self, lane: int, row: int) -> int:
        """Number of remaining rows from ``row`` on."""
        first, end = self._span(lane)
        return max(0, end - max(first, row))

    def first_unread_ms(self, lane: int, row: int) -> int | None:
        """Time of the first remaining row from ``row`` on, in ms since 1970; None if there is none."""
        return self._time_at(lane, max(self._span(lane)[0], row)) if self.unread(lane, row) else None


# -- Lag as figures for Prometheus, described by ``metrics.tables.LOG_READERS``.
#
# Law: a label has few values. A reader's label is the name of its query or group, or its query's id. A reader without any is left
# out: it would add a series at each start. Among readers of the same name, live readers count before others, then the largest
# lag.


def lag_figures(bookkeeper: BookKeeper, log: LaneId, password: bytes) -> tuple[Figures, Mapping[str, str]]:
    """The current figures, and the log's label. Raises the errors of ``readers_of``."""
    readers: dict[tuple[str, str], ReaderLag] = {}
    # Live readers come first, the largest lag first.
    for reader in readers_of(bookkeeper, log, password):
        if reader.name or reader.reader:
            readers.setdefault((reader.kind.value, reader.title), reader)
    figures: Figures = {
        "bookspark_log_reader_lag_rows": {
            key: reader.lag_rows for key, reader in readers.items() if reader.lag_rows is not None
        },
        "bookspark_log_reader_lag_seconds": {
            key: reader.lag_seconds for key, reader in readers.items() if reader.lag_seconds is not None
        },
        "bookspark_log_reader_gone": {key: float(reader.gone) for key, reader in readers.items()},
    }
    return figures, {"log": str(log)}
