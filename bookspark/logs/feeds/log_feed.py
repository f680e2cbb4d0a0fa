"""The feed of a log: the union of its lanes, between two offsets, now or as it grows.

Law: as for every feed (``spark.connector.feeds``). An offset is ``{"position": rows before it, "log": when the log was created,
in ms since 1970}``: the second value tells the log from a later one of the same name. ``position`` counts the rows of lane 0; of
another lane there is ``"<number>": rows``.

Source: docs/decisions/lanes.md. The share of each lane in a limited micro-batch is that of Spark's Kafka source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.logs.chain.reader import made_anew
from bookspark.logs.chain.registry import KIND, LogRegistry
from bookspark.logs.feeds.lane_feed import LaneFeed
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.feeds.times import Times
from bookspark.logs.rows.splits import SizedPiece
from bookspark.protocol.logs.lanes import MARK, is_offset, lane_name, lane_of, offset_at, rows_before, shared_out

if TYPE_CHECKING:
    from bookspark.client import BookKeeper

Offset = dict[str, int]
"""A place in a feed, as Spark keeps it."""


_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.01, 0.25
"""How long a wait leaves lanes alone that are not the liveliest; it looks less and less often."""


class Limit(NamedTuple):
    """How much one micro-batch takes at most; it takes one entry at least. None: no limit."""

    rows: int | None = None
    """Rows of a log, or entries of ledgers."""
    size: int | None = None
    """Bytes of payload."""


def another_kind(what: str, offset: Offset) -> ConfigurationError:
    """The error for an offset that is no place in ``what``."""
    return ConfigurationError(
        f"this query reads {what}, but its checkpoint is at {offset}, which is a place in something else: "
        "give each query a checkpointLocation of its own"
    )


class LogFeed:
    """The rows of a log: the union of its lanes, or one of them (``protocol.logs.lanes``)."""

    def __init__(
        self, bookkeeper: BookKeeper, name: str, password: bytes, fail_on_data_loss: bool, with_times: bool = False
    ) -> None:
        self._bookkeeper, self._password, self._with_times = bookkeeper, password, with_times
        self.name = name
        """The name of the log, or of the lane."""
        self.passed_over = PassedOver(fail_on_data_loss)
        first = LaneFeed(bookkeeper, name, password, self.passed_over, with_times)
        self._one_lane, self._ctime_ms = MARK in name, first.ctime_ms
        self._first = lane_of(name)[1]
        self._lanes = {self._first: first}
        self._liveliest = self._first
        """The lane that had rows last: its bookies are waited for, the others are looked at now and then."""
        self._record_changed: threading.Event | None = None
        self._find_lanes()

    def earliest(self) -> Offset:
        return self._at({number: lane.record.first_position for number, lane in self._lanes.items()})

    def newest(self) -> Offset:
        # Lanes that are found later are read later: a reader that has an open commit ledger needs the bookies alone.
        with suppress(MetadataStoreError):
            self._find_lanes()
        return self._at({number: lane.newest() for number, lane in self._lanes.items()})

    def at(self, position: int, option: str = "row") -> Offset:
        """The offset before row ``position``, which ``option`` says. Raises ConfigurationError if the log has several lanes."""
        if len(self._lanes) > 1:
            raise ConfigurationError(
                f"log {self.name!r} has {len(self._lanes)} lanes, and {option} {position} is a row of one of them: read "
                f"one lane, for example {self.name}{MARK}0, or leave {option} out"
            )
        return self._at({self._first: position})

    def at_times(self, times: Times, otherwise: Offset) -> Offset:
        """The offset before the first row of each lane that was committed at the lane's time or later, or behind all of its rows;
        of a lane that ``times`` does not name as in ``otherwise``. Raises ConfigurationError for a lane that is not there."""
        times.check_lanes(self.name, self._lanes)
        rows = rows_before(otherwise)
        chosen = {number: times.of_lane(number) for number in self._lanes}
        found = {
            number: self._lanes[number].row_at(time_ms) for number, time_ms in chosen.items() if time_ms is not None
        }
        return self._at({**rows, **found})

    def wait(self, seconds: float) -> None:
        deadline, pause = time.monotonic() + seconds, _PAUSE_SECONDS_MIN
        while (left := deadline - time.monotonic()) > 0:
            if len(self._lanes) == 1:
                self._lanes[self._liveliest].wait(left)
                return
            self._lanes[self._liveliest].wait(min(pause, left))
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            if self._look_at_lanes():
                return

    def _look_at_lanes(self) -> bool:
        """Has a lane more rows than were told, or are there other lanes?"""
        for number, lane in self._lanes.items():
            known = lane.rows
            if lane.newest() > known:
                self._liveliest = number
                return True
        return self._record_changed is not None and self._record_changed.is_set()

    def check(self, offset: Offset) -> None:
        if not is_offset(offset):
            raise another_kind(f"log {self.name!r}", offset)
        if offset["log"] != self._ctime_ms:
            raise made_anew(self.name, offset["position"])
        others = {lane for lane, rows in rows_before(offset).items() if rows} - {self._first}
        if self._one_lane and others:
            raise another_kind(f"lane {self._first} of log {self.name!r}", offset)

    def limited(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        spans = self._spans(start, end)
        if len(spans) == 1:
            ((lane, (first, last)),) = spans.items()
            ends = {lane: self._lane(lane).limited(first, last, limit.rows, limit.size)}
        else:
            ends = self._shared(spans, limit)
        return self._at({**rows_before(end), **ends})

    def _shared(self, spans: Mapping[int, tuple[int, int]], limit: Limit) -> dict[int, int]:
        """For each lane the row up to which it gives what the lanes share of ``limit``."""
        ends = {lane: last for lane, (_, last) in spans.items()}
        if limit.rows is not None:
            rows = shared_out({lane: last - first for lane, (first, last) in spans.items()}, limit.rows)
            ends = {lane: self._limited(lane, spans[lane], Limit(rows=rows[lane])) for lane in spans}
        if limit.size is not None:
            # Rows that were truncated have no size, and are passed over as others are read.
            sizes = {lane: max(1, self._lane(lane).size(*span)) for lane, span in spans.items()}
            shares = shared_out(sizes, limit.size)
            ends = {lane: min(ends[lane], self._limited(lane, spans[lane], Limit(size=shares[lane]))) for lane in spans}
        return ends

    def _limited(self, lane: int, span: tuple[int, int], limit: Limit) -> int:
        nothing = 0 in (limit.rows, limit.size)
        return span[0] if nothing else self._lane(lane).limited(*span, limit.rows, limit.size)

    def pieces(self, start: Offset, end: Offset) -> list[SizedPiece]:
        return [piece for lane, span in self._spans(start, end).items() for piece in self._lane(lane).pieces(*span)]

    # -- inside

    def _at(self, rows: Mapping[int, int]) -> Offset:
        return offset_at(self._ctime_ms, rows)

    def _spans(self, start: Offset, end: Offset) -> dict[int, tuple[int, int]]:
        """For each lane that has rows between the offsets, in order: from which row, and before which row."""
        before = rows_before(start)
        spans = {lane: (before.get(lane, 0), last) for lane, last in rows_before(end).items()}
        return {lane: (first, last) for lane, (first, last) in spans.items() if first < last}

    def _lane(self, number: int) -> LaneFeed:
        if number not in self._lanes:
            name = lane_name(self.name, number)
            feed = LaneFeed(self._bookkeeper, name, self._password, self.passed_over, self._with_times)
            if feed.ctime_ms != self._ctime_ms:
                raise made_anew(self.name, 0)
            self._lanes[number] = feed
        return self._lanes[number]

    def _find_lanes(self) -> None:
        """Look for lanes that were made since the last call."""
        if self._one_lane or (self._record_changed is not None and not self._record_changed.is_set()):
            return
        changed = threading.Event()
        self._bookkeeper.metadata.watch_record(KIND, self.name, changed.set)
        record = LogRegistry(self._bookkeeper.metadata).get(self.name)
        if record.ctime_ms != self._ctime_ms:
            # Reading lane 0 says so as well, with the row.
            return
        for lane in record.lanes:
            self._lane(lane.number)
        # Only now: what failed is tried again.
        self._record_changed = changed
