"""Feeds: what can be read from one offset to another, now or as it grows. A feed is a log or a set of ledgers.

Law: an offset names the same entries for ever, and proves that the entries before it are confirmed. All entries between two
offsets are planned, or there is a DataLossError that says which are missing and why. With ``failOnDataLoss`` false, missing
entries are logged with their number and left out. Only entries that were truncated or deleted are ever left out; what can't be
read at the moment is an error. Entries that planning leaves out are counted too (``PassedOver``), and the query's progress shows
the count. What a task finds deleted is in its executor's log.

Offsets are what Spark keeps in its checkpoints, as JSON:

* of a log ``{"position": rows before it, "log": when the log was created, in ms since 1970}``: the second value tells the log
  from a later one of the same name. ``position`` counts the rows of lane 0; of another lane there is ``"<number>": rows``;
* of ledgers ``{"<ledger id>": the next entry id, …}``.

Sources: docs/decisions/logs.md, docs/decisions/lanes.md. The meaning of ``failOnDataLoss``, and the share of each ledger or lane
in a limited micro-batch, are those of Spark's Kafka source.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bookspark.errors import ConfigurationError, MetadataStoreError, NoSuchLedgerError
from bookspark.protocol.logs.commits import EntryRange
from bookspark.protocol.logs.lanes import MARK, is_offset, lane_name, lane_of, offset_at, rows_before, shared_out
from bookspark.spark.connector.connector_options import SourceOptions
from bookspark.spark.connector.lane_feed import LaneFeed
from bookspark.spark.connector.lost_rows import PassedOver, data_loss
from bookspark.spark.connector.times import Times
from bookspark.spark.logs.reader import made_anew
from bookspark.spark.logs.registry import KIND, LogRegistry
from bookspark.spark.logs.splits import SizedPiece, positioned
from bookspark.spark.process_client import client

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

Offset = dict[str, int]
"""A place in a feed, as Spark keeps it."""


class Limit(NamedTuple):
    """How much one micro-batch takes at most; it takes one entry at least. None: no limit."""

    rows: int | None = None
    """Rows of a log, or entries of ledgers."""
    size: int | None = None
    """Bytes of payload."""


class Feed(Protocol):
    """A log, or ledgers."""

    passed_over: PassedOver
    """The rows that planning left out."""

    def earliest(self) -> Offset:
        """The offset before the first entry that is still there."""

    def newest(self) -> Offset:
        """The offset after the last entry that is confirmed now. Raises DataLossError, ReadError and MetadataStoreError."""

    def wait(self, seconds: float) -> None:
        """Return when there may be more entries than the last ``newest`` told, or after ``seconds``."""

    def check(self, offset: Offset) -> None:
        """Raise DataLossError if ``offset`` is that of another log of this name, ConfigurationError if it has another form."""

    def limited(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        """``end``, or an earlier offset, so that no more than ``limit`` lies between ``start`` and the result."""

    def pieces(self, start: Offset, end: Offset) -> list[SizedPiece]:
        """The entries between two offsets, in order, with their bytes. Raises DataLossError, ReadError and MetadataStoreError."""


def feed(options: SourceOptions) -> Feed:
    """The feed that a read asks for.

    Raises NoSuchLogError, DataLossError (a ledger does not exist), UnauthorizedAccessError (wrong password), MetadataStoreError
    and ReadError.
    """
    bookkeeper = client(options.zookeeper)
    if options.log is not None:
        return LogFeed(bookkeeper, options.log, options.password, options.fail_on_data_loss, options.include_timestamp)
    return LedgersFeed(bookkeeper, options.ledgers or (), options.password, options.fail_on_data_loss)


def _another_kind(what: str, offset: Offset) -> ConfigurationError:
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
        missing = times.lanes.keys() - self._lanes.keys()
        if missing:
            raise ConfigurationError(
                f"log {self.name!r} has no lane {min(missing)}: its lanes are {', '.join(map(str, sorted(self._lanes)))}"
            )
        rows = rows_before(otherwise)
        chosen = {number: times.of_lane(number) for number in self._lanes}
        found = {
            number: self._lanes[number].row_at(time_ms) for number, time_ms in chosen.items() if time_ms is not None
        }
        return self._at({**rows, **found})

    def wait(self, seconds: float) -> None:
        for lane in self._lanes.values():
            known = lane.rows
            lane.wait(seconds / len(self._lanes))
            if len(self._lanes) > 1 and lane.newest() > known:
                return

    def check(self, offset: Offset) -> None:
        if not is_offset(offset):
            raise _another_kind(f"log {self.name!r}", offset)
        if offset["log"] != self._ctime_ms:
            raise made_anew(self.name, offset["position"])
        others = {lane for lane, rows in rows_before(offset).items() if rows} - {self._first}
        if self._one_lane and others:
            raise _another_kind(f"lane {self._first} of log {self.name!r}", offset)

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


class LedgersFeed:
    """The entries of some ledgers, each up to its last add confirmed (LAC)."""

    def __init__(
        self, bookkeeper: BookKeeper, ledger_ids: tuple[int, ...], password: bytes, fail_on_data_loss: bool
    ) -> None:
        self._handles: dict[int, ReadHandle] = {}
        self._gone: set[int] = set()
        """Ledgers that were deleted before they were closed. They grow no more."""
        self._fail_on_data_loss = fail_on_data_loss
        self.passed_over = PassedOver(fail_on_data_loss)
        for ledger_id in ledger_ids:
            try:
                self._handles[ledger_id] = bookkeeper.open_ledger_no_recovery(ledger_id, password=password)
            except NoSuchLedgerError:
                data_loss(
                    f"there is no ledger {ledger_id}; it was deleted, or it is in another cluster", fail_on_data_loss
                )

    def earliest(self) -> Offset:
        return {str(ledger_id): 0 for ledger_id in self._handles}

    def newest(self) -> Offset:
        found: Offset = {}
        for ledger_id, handle in self._handles.items():
            try:
                if ledger_id not in self._gone:
                    handle.read_last_add_confirmed()
            except NoSuchLedgerError:
                data_loss(_deleted(ledger_id, f"from {handle.last_add_confirmed + 1} on"), self._fail_on_data_loss)
                self._gone.add(ledger_id)
            found[str(ledger_id)] = handle.last_add_confirmed + 1
        return found

    def wait(self, seconds: float) -> None:
        growing = [
            handle
            for ledger, handle in self._handles.items()
            if ledger not in self._gone and not handle.metadata.closed
        ]
        # ``newest`` reports a ledger that was deleted meanwhile.
        with suppress(NoSuchLedgerError):
            for handle in growing:
                known = handle.last_add_confirmed
                if handle.read_last_add_confirmed_and_entry(known + 1, timeout=seconds / len(growing))[0] > known:
                    return

    def check(self, offset: Offset) -> None:
        # No ledger id is used twice, so an offset needs no more than the right form.
        if not all(ledger.isdigit() for ledger in offset):
            raise _another_kind("ledgers", offset)

    def limited(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        waiting = {ledger: last - start.get(ledger, 0) for ledger, last in end.items()}
        total = sum(waiting.values())
        allowed = total
        if limit.rows is not None:
            allowed = min(allowed, limit.rows)
        if limit.size is not None and total:
            size = sum(size for _, size in self.pieces(start, end))
            allowed = min(allowed, int(limit.size * total / max(size, 1)))
        if allowed >= total:
            return end
        shares = {ledger: count * allowed // total for ledger, count in waiting.items()}
        if not any(shares.values()):
            shares[max(waiting, key=waiting.__getitem__)] = 1
        return {ledger: start.get(ledger, 0) + share for ledger, share in shares.items()}

    def pieces(self, start: Offset, end: Offset) -> list[SizedPiece]:
        ranges = []
        for ledger, last in end.items():
            first = start.get(ledger, 0)
            handle = self._handles.get(int(ledger))
            if first >= last:
                continue
            try:
                if handle is None:
                    raise NoSuchLedgerError
                handle.confirm(last - 1)
                size = _size(handle, first, last)
            except NoSuchLedgerError:
                self.passed_over.add(_deleted(int(ledger), f"{first} to {last - 1}"), ledger, first, last)
            else:
                ranges.append(EntryRange(handle.ledger_id, first, last - 1, last - first, size))
        return list(positioned(ranges))


def _deleted(ledger_id: int, entries: str) -> str:
    return f"entries {entries} of ledger {ledger_id} were to be read, and the ledger was deleted"


def _size(handle: ReadHandle, first: int, last: int) -> int:
    """About the bytes of payload from entry ``first`` to before entry ``last``: their number times the average of all before
    ``last``."""
    if handle.metadata.closed and last == handle.last_add_confirmed + 1:
        length = handle.length
    else:
        # An entry has the length of the ledger up to and with itself.
        length = next(handle.read(last - 1, last - 1)).length
    return length * (last - first) // last
