"""The feed of a log: the union of its lanes, between two offsets, now or as it grows.

Law: that of every feed (``spark.connector.feeds``). An offset is ``{"position": next row, "log": id of the log}``; the second
value distinguishes the log from a later one of the same name. ``position`` is the next row of lane 0; another
lane has ``"<number>": next row``. ``"ended": n`` stands for all rows of the first n lanes that ended; they are read before other
lanes, in the order of their ends.

Source: docs/decisions/lanes.md. Lanes share a limited micro-batch as in Spark's Kafka source.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.logs.chain.commit_times import KnownLedgers, row_at
from bookspark.logs.chain.registry import RECORDS, LaneName, LogRegistry, recreated
from bookspark.logs.feeds.lane_feed import Choice, LaneFeed
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.feeds.times import Times, check_lanes
from bookspark.logs.rows.splits import SizedPiece
from bookspark.protocol.logs.lanes import (
    MARK,
    LaneId,
    ended_before,
    is_offset,
    lane_id,
    lane_of,
    offset_at,
    rows_before,
    rows_in_bytes,
    shared_out,
)
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.support.threads import BackOff, Latch, polls_end_with

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper


# -- Waiting for rows in any lane


_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.01, 0.25
_LOOK_SECONDS_MAX = 10.0
"""Longest pause between looks for lanes that fail."""


class LaneWatch:
    """Waits for rows in the lanes of one log. Each call gets ``lanes``, the live lanes by number.

    Law: the wait is a long poll on the liveliest lane, which had rows last. In between, the other lanes are polled, at growing
    intervals while they stay silent. The wait does not notice rows of the liveliest lane during these polls. So in a log of
    several lanes, a row of a long silent lane is noticed up to a quarter of a second late.
    """

    def __init__(self, first: int) -> None:
        """``first``: the liveliest lane until another has rows."""
        self._liveliest = first
        self._next_look, self._pauses = -math.inf, BackOff(2 * _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)
        """Time of the last poll of all lanes, and the pause after it, in seconds."""
        self._found = False
        """Did ``wait`` see rows that no lane's ``has_news`` covers?"""

    def look(self, lanes: Mapping[int, LaneFeed]) -> None:
        for number in lanes:
            self._has_more(number, lanes)
        self._looked_at, self._found = time.monotonic(), False

    @property
    def looked_just_now(self) -> bool:
        """Would ``wait`` begin with the liveliest lane, not with a poll of the others?"""
        return time.monotonic() < self._next_look

    def news(self, lanes: Mapping[int, LaneFeed]) -> bool:
        """Did ``wait`` learn of more rows? Updates the lanes without a request."""
        heard = [lane for lane in lanes.values() if lane.has_news]
        for lane in heard:
            lane.newest()
        has_more, self._found = self._found or bool(heard), False
        return has_more

    def wait(self, lanes: Mapping[int, LaneFeed], seconds: float, changed: Callable[[], bool]) -> bool:
        """Return True when there may be more rows than the lanes know, or when ``changed`` reports other lanes; False after
        ``seconds``."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._liveliest not in lanes:
                # The lane has ended.
                self._liveliest = next(iter(lanes))
            lane = lanes[self._liveliest]
            if len(lanes) == 1:
                return lane.wait(left) or changed()
            due_in = self._next_look - time.monotonic()
            if due_in <= 0:
                if self._look_at_others(lanes) or changed():
                    return True
                continue
            lane.wait(min(due_in, left))
            # A wait on a commit ledger shows only that there may be more rows.
            if lane.has_news or changed() or (not lane.tells_news and self._has_more(self._liveliest, lanes)):
                return True
        return False

    def _look_at_others(self, lanes: Mapping[int, LaneFeed]) -> bool:
        for number in [number for number in lanes if number != self._liveliest]:
            if self._has_more(number, lanes):
                self._pauses.reset()
                self._next_look = time.monotonic() + _PAUSE_SECONDS_MIN
                return True
        self._next_look = time.monotonic() + self._pauses.next()
        return False

    def _has_more(self, number: int, lanes: Mapping[int, LaneFeed]) -> bool:
        """Has the lane more rows than known? If so, it becomes the liveliest."""
        known = lanes[number].rows
        if lanes[number].newest() <= known:
            return False
        self._liveliest, self._found = number, True
        return True


# -- The feed


Offset = dict[str, int]
"""A place in a feed, as in Spark's checkpoints."""

_ENDED_KEPT = 1000
"""Number of passed ended lanes whose rows stay known."""
_LANES_MAX = 64
"""Number of ended lanes with kept searches by time."""


class Limit(NamedTuple):
    """Most rows and bytes of a micro-batch, which takes at least one entry. None: no limit."""

    rows: int | None = None
    """Rows of a log, or entries of ledgers."""
    size: int | None = None


def another_kind(what: str, offset: Offset) -> ConfigurationError:
    return ConfigurationError(
        f"this query reads {what}, but its checkpoint is at {offset}, an offset of another source: "
        "give each query a checkpointLocation of its own"
    )


class _Ended(NamedTuple):
    rows: int
    newest_ms: int


class LogFeed:
    """The rows of a log: the union of its lanes, or one lane (``protocol.logs.lanes``)."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        name: LaneName,
        password: bytes,
        fail_on_data_loss: bool,
        with_times: bool = False,
        log: LaneId | None = None,
    ) -> None:
        """``log``: id of the log; None: the log that has ``name`` now."""
        self._bookkeeper, self._password, self._with_times = bookkeeper, password, with_times
        self.name = name
        self.choose: Choice | None = None
        """Selects parts of the pieces; None: all."""
        self.passed_over = PassedOver(fail_on_data_loss)
        self._one_lane, self._first = MARK in name, lane_of(name)[1]
        found = name if log is None else log.lane(self._first)
        first = LaneFeed(bookkeeper, found, password, self.passed_over, with_times)
        self.log = first.lane
        self._lanes = {self._first: first}
        self._watch = LaneWatch(self._first)
        self._record = first.record
        self._ended: dict[int, _Ended] = {}
        """Ended lanes, cached while the reader still needs them."""
        self._searches: OrderedDict[str, KnownLedgers] = OrderedDict()
        """By the names of ended lanes, the most recently searched last."""
        self._record_changed: Latch | None = None
        self._look_at, self._look_pauses = -math.inf, BackOff(_PAUSE_SECONDS_MAX, _LOOK_SECONDS_MAX)
        """Earliest time of the next look for lanes, after a look failed."""
        self._end_watch: Callable[[], None] = lambda: None
        self._find_lanes()

    @property
    def log_id(self) -> int:
        return self.log.log

    @property
    def key(self) -> str:
        """The key of the log, or of the lane, under which its readers' records lie."""
        return f"{self.log_id}{MARK}{self._first}" if self._one_lane else str(self.log_id)

    def earliest(self) -> Offset:
        """The offset before the first existing row."""
        first = {number: lane.record.first_position for number, lane in self._lanes.items()}
        ended = {number: record.first_position for number, record in self._records_of_ended()}
        return self._folded({**first, **ended})

    def newest(self) -> Offset:
        """The offset after the last confirmed row. Raises DataLossError, ReadError and MetadataStoreError."""
        self._look_for_lanes()
        self._watch.look(self._lanes)
        return self.known()

    def known(self) -> Offset:
        """Offset after the known rows, without a request."""
        return self._at({number: lane.rows for number, lane in self._lanes.items()})

    @property
    def looked_just_now(self) -> bool:
        """Were all lanes polled so recently that ``wait`` would wait for rows at once?"""
        return self._watch.looked_just_now

    def news(self) -> Offset | None:
        """Offset after the rows that ``wait`` learned of, without a request; None if it learned of none."""
        return self.known() if self._watch.news(self._lanes) else None

    def at(self, position: int, option: str = "row") -> Offset:
        """Offset before row ``position`` (value of ``option``). Raises ConfigurationError if the log has several lanes."""
        lanes = len(self._lanes) + self._ended_count
        if lanes > 1:
            raise ConfigurationError(
                f"log {self.name!r} has {lanes} lanes, and {option} {position} is a row of one of them: read "
                f"one lane, for example {self.name}{MARK}0, or leave {option} out"
            )
        return self._at({self._first: position})

    def at_rows(self, rows: Mapping[int, int], otherwise: Offset) -> Offset:
        """Offset before these rows of lanes; other lanes as in ``otherwise``. Raises ConfigurationError for a lane that does not
        exist."""
        check_lanes(self.name, rows, [*self._lanes, *self._all_ended()])
        return self._folded({**self.all_rows(otherwise), **rows})

    def at_times(self, times: Times, otherwise: Offset) -> Offset:
        """Offset before the first row of each lane at the lane's time or later, else at the lane's end; lanes without a time as
        in ``otherwise``. Raises ConfigurationError for a lane that does not exist."""
        ended = dict(self._records_of_ended())
        lanes = [*self._lanes, *ended]
        check_lanes(self.name, times.lanes, lanes)
        chosen = {number: time_ms for number in lanes if (time_ms := times.of_lane(number)) is not None}
        rows = {
            number: self._row_of_ended(ended[number], time_ms)
            if number in ended
            else self._lanes[number].row_at(time_ms)
            for number, time_ms in chosen.items()
        }
        return self._folded({**self.all_rows(otherwise), **rows})

    def at_time(self, time_ms: int) -> Offset:
        """Offset before the first row of each lane at ``time_ms`` or later, else at the lane's end. A lane's number of
        rows is read again only if no row of that time or later is known."""
        self._look_for_lanes()
        every, lanes = self._all_ended(), list(self._lanes.items())
        known = {number: self._ended[number] for number in every if number in self._ended}
        rows = {number: lane.rows for number, lane in known.items() if lane.newest_ms < time_ms}
        left = [number for number in every if number not in rows]
        every_lane = [*(lane.lane for _, lane in lanes), *(self.log.lane(number) for number in left)]
        # All records in one read.
        records = LogRegistry(self._bookkeeper.metadata).find_each(every_lane)
        rows |= {number: lane.row_at(time_ms, record) for (number, lane), record in zip(lanes, records, strict=False)}
        ended = (self._known_ended(number, record) for number, record in zip(left, records, strict=True))
        rows |= {number: self._row_of_ended(record, time_ms) for number, record in zip(left, ended, strict=True)}
        return self._folded(rows, every)

    def all_rows(self, offset: Offset) -> dict[int, int]:
        """Rows of each lane before the offset, ended lanes included."""
        rows = rows_before(offset)
        for number in self._all_ended()[: ended_before(offset)]:
            rows[number] = self._rows_of_ended(number)
        return rows

    def rows_of(self, lane: int, offset: Offset) -> int:
        named = rows_before(offset)
        if lane in named:
            return named[lane]
        return self._rows_of_ended(lane) if lane in self._ended_from(0, ended_before(offset)) else 0

    def wait(self, seconds: float) -> bool:
        """Wait until there may be rows after the last ``newest``, or for ``seconds``. False: there are none."""
        changed, pause = self._record_changed, self._look_at - time.monotonic()
        if changed is None:
            return self._watch.wait(self._lanes, seconds, lambda: False)
        if pause > 0 and changed.is_set():
            # The store did not tell which lanes there are. The bookies go on to tell rows of the known lanes.
            return self._watch.wait(self._lanes, min(seconds, pause), lambda: False)
        with polls_end_with(changed):
            return self._watch.wait(self._lanes, seconds, changed.is_set)

    def close(self) -> None:
        """End the feed's watches and waits. Never raises."""
        self._end_watch()
        for lane in self._lanes.values():
            lane.close()

    def check(self, offset: Offset) -> None:
        """Raise LogRecreatedError if ``offset`` belongs to another log of this name, ConfigurationError if it has another
        form."""
        if not is_offset(offset):
            raise another_kind(f"log {self.name!r}", offset)
        if offset["log"] != self.log_id:
            raise recreated(self.log.name, offset["log"], self.log_id)
        others = {lane for lane, rows in rows_before(offset).items() if rows} - {self._first}
        if self._one_lane and (others or ended_before(offset)):
            raise another_kind(f"lane {self._first} of log {self.name!r}", offset)

    def rows(self, start: Offset, end: Offset) -> int:
        """Number of rows between two offsets, with the deleted. Raises MetadataStoreError."""
        return sum(last - first for first, last in self.spans(start, end).values())

    def sized(self, start: Offset, end: Offset) -> list[tuple[int, Iterator[tuple[int, int]]]]:
        """For each lane with rows between two offsets, the number of the remaining rows, and these rows as ``LaneFeed.sized``
        gives them."""
        lanes = ((self._lane(lane), span) for lane, span in self.spans(start, end).items())
        return [(lane.remaining(*span), lane.sized(*span)) for lane, span in lanes]

    def limited(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        """``end``, or an earlier offset, so that no more than ``limit`` lies between ``start`` and the result."""
        spans = self.spans(start, end)
        ended = self._ended_between(start, end)
        if any(lane in spans for lane in ended):
            return self._limited_to_ended(start, ended, spans, limit)
        if len(spans) == 1:
            ((lane, (first, last)),) = spans.items()
            ends = {lane: self._lane(lane).limited(first, last, limit.rows, limit.size)}
        else:
            ends = self._shared(spans, limit)
        return self._at({**rows_before(end), **ends}, ended_before(end))

    def _limited_to_ended(
        self, start: Offset, ended: Sequence[int], spans: Mapping[int, tuple[int, int]], limit: Limit
    ) -> Offset:
        """Offset after the rows that ``limit`` allows of ended lanes, one lane after another; live lanes wait."""
        before, rows, size = rows_before(start), limit.rows, limit.size
        done = ended_before(start)
        for lane in ended:
            first, last = spans.get(lane, (0, 0))
            if first < last:
                if 0 in (rows, size):
                    break
                feed = self._lane(lane)
                end = feed.limited(first, last, rows, size)
                if end < last:
                    return self._at({**before, lane: end}, done)
                rows = None if rows is None else max(0, rows - (last - first))
                size = None if size is None else max(0, size - sum(weight for _, weight in feed.sized(first, last)))
            before.pop(lane, None)
            done += 1
        return self._at(before, done)

    def _shared(self, spans: Mapping[int, tuple[int, int]], limit: Limit) -> dict[int, int]:
        """Lane → end row of its share of ``limit``."""
        ends = {lane: last for lane, (_, last) in spans.items()}
        if limit.rows is not None:
            rows = shared_out({lane: last - first for lane, (first, last) in spans.items()}, limit.rows)
            ends = {lane: self._limited(lane, spans[lane], Limit(rows=rows[lane])) for lane in spans}
        if limit.size is not None:
            # Looks at the rows that it takes, not at the whole backlog. Truncated rows are passed with others.
            left = {lane: self._lane(lane).remaining(first, ends[lane]) for lane, (first, _) in spans.items()}
            left = {lane: rows for lane, rows in left.items() if rows}
            sized = {lane: self._lane(lane).sized(spans[lane][0], ends[lane]) for lane in left}
            # A row of each lane at least, or a lane of few rows would wait for the others.
            shares = shared_out(left, max(min(len(left), limit.size), rows_in_bytes(left, sized, limit.size)))
            ends |= {lane: self._limited(lane, (spans[lane][0], ends[lane]), Limit(rows=shares[lane])) for lane in left}
        return ends

    def _limited(self, lane: int, span: tuple[int, int], limit: Limit) -> int:
        nothing = 0 in (limit.rows, limit.size)
        return span[0] if nothing else self._lane(lane).limited(*span, limit.rows, limit.size)

    def pieces(self, start: Offset, end: Offset) -> list[SizedPiece]:
        """The rows between two offsets, in order, with their bytes. Raises DataLossError, ReadError and MetadataStoreError."""
        spans = self.spans(start, end)
        return [piece for lane, span in spans.items() for piece in self._lane(lane).pieces(*span, self.choose)]

    def spans(self, start: Offset, end: Offset) -> dict[int, tuple[int, int]]:
        """Lane → (first row, end), for each lane with rows between the offsets, in order."""
        before = rows_before(start)
        ends = {lane: self._rows_of_ended(lane) for lane in self._ended_between(start, end)}
        ends |= {lane: last for lane, last in rows_before(end).items() if lane not in ends}
        spans = {lane: (before.get(lane, 0), last) for lane, last in ends.items()}
        return {lane: (first, last) for lane, (first, last) in spans.items() if first < last}

    @property
    def lanes(self) -> list[int]:
        """The live lanes, as last seen."""
        return list(self._lanes)

    def lanes_after(self, offset: Offset) -> set[int]:
        """Live lanes with rows, and ended lanes with rows after the offset, as last known."""
        ended = self._ended_from(ended_before(offset), self._ended_count)
        done = rows_before(offset)
        left = {lane for lane in ended if done.get(lane, 0) < self._rows_of_ended(lane)}
        return left | {number for number, lane in self._lanes.items() if lane.rows}

    def combined(self, lanes: Collection[int], chosen: Offset, others: Offset) -> Offset:
        """The offset ``chosen`` for ``lanes``, and ``others`` for all other lanes."""
        counts = ended_before(chosen), ended_before(others)
        first = min(counts)
        ended = self._ended_from(first, max(counts))

        def rows_of(offset: Offset) -> dict[int, int]:
            counted = ended[: ended_before(offset) - first]
            return {**rows_before(offset), **{lane: self._rows_of_ended(lane) for lane in counted}}

        of_chosen, of_others = rows_of(chosen), rows_of(others)
        rows = {lane: (of_chosen if lane in lanes else of_others).get(lane, 0) for lane in {*of_chosen, *of_others}}
        done = next((n for n, lane in enumerate(ended) if rows[lane] < self._rows_of_ended(lane)), len(ended))
        left = {lane: count for lane, count in rows.items() if lane not in ended[:done]}
        return self._at(left, first + done)

    # -- inside

    @property
    def _ended_count(self) -> int:
        return 0 if self._one_lane else self._record.ended_count

    def _at(self, rows: Mapping[int, int], ended: int | None = None) -> Offset:
        return offset_at(self.log_id, rows, self._ended_count if ended is None else ended)

    def _folded(self, rows: Mapping[int, int], every: Sequence[int] | None = None) -> Offset:
        """Offset after these numbers of rows, one for each lane, including each ended lane in ``every``."""
        every = self._all_ended() if every is None else every
        done = next((at for at, lane in enumerate(every) if rows.get(lane, 0) < self._rows_of_ended(lane)), len(every))
        left = {lane: count for lane, count in rows.items() if count or lane in self._lanes}
        return self._at({lane: count for lane, count in left.items() if lane not in every[:done]}, done)

    def _lane(self, number: int) -> LaneFeed:
        feed = self._lanes.get(number)
        if feed is None:
            lane = self.log.lane(number)
            feed = LaneFeed(self._bookkeeper, lane, self._password, self.passed_over, self._with_times)
            if feed.record.ended_rows is None:
                self._lanes[number] = feed
        return feed

    def _look_for_lanes(self) -> None:
        # A lane found later is read later: a reader with an open commit ledger needs only the bookies.
        if time.monotonic() < self._look_at:
            return
        try:
            self._find_lanes()
            self._look_pauses.reset()
        except MetadataStoreError:
            self._look_at = time.monotonic() + self._look_pauses.next()

    def _find_lanes(self) -> None:
        """Look for lanes that were created or ended since the last call."""
        if self._one_lane or (self._record_changed is not None and not self._record_changed.is_set()):
            return
        changed = Latch()
        self._end_watch()
        self._end_watch = self._bookkeeper.metadata.watch_record(RECORDS, self.log.key, changed.set)
        record = LogRegistry(self._bookkeeper.metadata).get(self.log)
        live = {self._first, *(lane.number for lane in record.lanes)}
        lanes = {number: self._lanes.get(number) or self._lane(number) for number in sorted(live)}
        self._record, self._lanes = record, lanes
        # Set last, so that a failure is retried.
        self._record_changed = changed

    # -- ended lanes

    def _all_ended(self) -> list[int]:
        return self._ended_from(0, self._ended_count)

    def _ended_between(self, start: Offset, end: Offset) -> list[int]:
        """The ended lanes that ``end`` counts among its ended lanes and ``start`` does not."""
        ended = self._ended_from(ended_before(start), ended_before(end))
        if len(self._ended) > 2 * len(ended) + _ENDED_KEPT:
            self._ended = {lane: self._ended[lane] for lane in ended if lane in self._ended}
        return ended

    def _ended_from(self, first: int, last: int) -> list[int]:
        if first >= last:
            return []
        registry = LogRegistry(self._bookkeeper.metadata)
        if last > self._record.ended_count:
            # The offset is from a reader with a newer record.
            self._record = registry.get(self.log)
        return registry.ended_lanes(self._record, first)[: last - first]

    def _records_of_ended(self) -> Iterator[tuple[int, LogRecord]]:
        numbers = self._all_ended()
        lanes = [self.log.lane(number) for number in numbers]
        records = LogRegistry(self._bookkeeper.metadata).find_each(lanes)
        return ((number, self._known_ended(number, record)) for number, record in zip(numbers, records, strict=True))

    def _known_ended(self, number: int, record: LogRecord | None) -> LogRecord:
        if record is None:
            # If the log was deleted meanwhile, this raises the reason.
            record = LogRegistry(self._bookkeeper.metadata).get(self.log.lane(number))
        assert record.ended_rows is not None, "the index says so"
        self._ended[number] = _Ended(record.ended_rows, record.ended_ms)
        return record

    def _rows_of_ended(self, number: int) -> int:
        if number not in self._ended:
            self._known_ended(number, None)
        return self._ended[number].rows

    def _row_of_ended(self, record: LogRecord, time_ms: int) -> int:
        """The first remaining row of time ``time_ms`` or later in an ended lane; the end, if there is none. ``record``: a fresh
        copy of the lane's, which shows truncation, the only change of such a lane. Raises the errors of ``row_at``."""
        rows = record.ended_rows or 0
        if record.ended_ms < time_ms:
            return rows
        known = self._searches.setdefault(record.name, KnownLedgers())
        self._searches.move_to_end(record.name)
        if len(self._searches) > _LANES_MAX:
            self._searches.popitem(last=False)
        return row_at(self._bookkeeper, lane_id(record), self._password, time_ms, rows, None, known, record)
