"""A reader of a log's rows, without Spark: once, or as the log grows; alone, or sharing the lanes with its group.

Law: a reader never fences and disturbs no writer. It sees committed rows only: the rows of a lane in order, each once; between
two looks, lanes in the order of their numbers (docs/decisions/lanes.md). Its place is an *offset*, a small dict for JSON, as in
Spark's checkpoints. A reader that begins at a saved offset continues exactly there.

``commit`` saves the offset in the cluster, under the reader's ``group``. Rows read and not committed come again to the next
reader of the group: delivery at least once; exactly once if the caller saves the effects of a row and the offset together
elsewhere. A group has one reader at a time (the last commit wins), or several that *share* the lanes (``LaneShare``): a lane
passes on after its reader has committed, was closed, or lost its session.

A saved offset lies under the log's id, so a later log of the name never meets it.

A reader reports its place to the cluster, for ``bookspark log readers``, and never waits for the report (``logs.readers``).

Source: docs/decisions/logs.md, docs/decisions/lanes.md. Kafka's consumer has ``seek`` and ``commit`` with the same meaning.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from bookspark.errors import (
    BookKeeperError,
    ConfigurationError,
    DataLossError,
    InvalidRowError,
    LedgerClosedError,
    NoSuchLedgerError,
    ReadError,
)
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import POSITIONS, LogRegistry
from bookspark.logs.chain.stamps import Headers
from bookspark.logs.feeds.gaps import Gap, GapKind, deleted_gap, joined, kind_of, rows_and_gaps, with_truncated
from bookspark.logs.feeds.log_feed import Limit, LogFeed, Offset
from bookspark.logs.feeds.times import RowTimes
from bookspark.logs.readers.registration import Registration
from bookspark.logs.rows.encodings import ARROW, PLAIN, invalid_row
from bookspark.logs.rows.splits import Piece, ends_of_runs, fewest
from bookspark.logs.rows.stamped_rows import Row, entry_decoder
from bookspark.logs.rows.value_rows import NO_ROW
from bookspark.protocol.logs.lanes import LaneId, is_offset, lane_id, later, moves, with_rows
from bookspark.protocol.logs.log_options import RowFormat
from bookspark.protocol.logs.log_record import ENCODING_LABEL
from bookspark.protocol.logs.reader_record import ReaderKind
from bookspark.store.metadata.records.documents import proven, read_struct
from bookspark.store.metadata.store import change_record
from bookspark.support.arguments import Rule, WaitSeconds, checks_methods

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.client.reading.read_handle import ReadHandle
    from bookspark.store.metadata.documents.sharing import Sharing
    from bookspark.store.wire.entry_batch import Entry

log = logging.getLogger(__name__)


# -- Sharing of a group's lanes


LOOK_SECONDS = 1.0
"""Shortest interval between two looks, in the reader's own thread as it reads."""


class LaneShare:
    """One reader's part of the group's lanes. For one thread.

    Law: like every lock (``metadata.documents.locks``), the hold on a lane saves work, and correctness does not rely on it. A
    reader that lost its session reads on until it notices, and then commits only rows that it has read. So each row comes at
    least once, to any reader; exactly once unless a reader died, lost its session or was closed between its reads and its commit.

    A reader that stops reading keeps its lanes until it is closed or dropped, or its process ends.
    """

    def __init__(self, bookkeeper: BookKeeper, log: str, group: str) -> None:
        """``log``: the key of the log or lane."""
        # Earlier members sort first, as far as their hosts know the store's time.
        self._name = f"{bookkeeper.metadata.clock.known_ms():013}-{uuid.uuid4().hex[:12]}"
        self._sharing = bookkeeper.metadata.sharing(f"{group}@{log}", self._name)
        self.lanes: frozenset[int] = frozenset()
        self._due, self._held, self._pid = 0.0, set[str](), os.getpid()
        self._left = weakref.finalize(self, _leave_soon, self._sharing, self._held)
        self._left.atexit = False

    @property
    def due_in(self) -> float:
        return max(0.0, self._due - time.monotonic())

    def look(self, lanes: Collection[int], unsaved: Collection[int]) -> frozenset[int]:
        """Give back and take lanes (``protocol.logs.lanes.moves``). Returns the lanes held beside ``self.lanes``: they count from
        ``add`` on, once their saved offsets were read. Raises MetadataStoreError."""
        self._due = time.monotonic() + LOOK_SECONDS
        members = self._sharing.join()
        holders = {int(lane): name for lane, name in self._sharing.holders().items()}
        to_leave, to_take = moves(lanes, members, self._name, holders, unsaved)
        mine = {lane for lane, name in holders.items() if name == self._name}
        # If a request fails, each of these may be held. A lane of another reader is never given back.
        self._holds(mine.union(to_take))
        self.lanes = self.lanes.intersection(mine).difference(to_leave)
        self._sharing.give_back(map(str, to_leave))
        held = mine.difference(to_leave).union(map(int, self._sharing.take(map(str, to_take))))
        self._holds(held)
        return frozenset(held - self.lanes)

    def add(self, lanes: Collection[int]) -> None:
        self.lanes = self.lanes.union(lanes)

    def look_again(self) -> None:
        """Drop the lanes that this reader has lost. Raises MetadataStoreError."""
        holders = self._sharing.holders()
        self.lanes = frozenset(lane for lane in self.lanes if holders.get(str(lane)) == self._name)

    def close(self) -> None:
        """Free the lanes for other readers at once. Never raises."""
        if self._left.detach() is not None and self._pid == os.getpid():
            _leave(self._sharing, self._held)
        self.lanes = frozenset()

    def _holds(self, lanes: Collection[int]) -> None:
        # In place: the finalizer, which runs if the reader is dropped, uses the same set.
        self._held.clear()
        self._held.update(map(str, lanes))


def _leave(sharing: Sharing, lanes: set[str]) -> None:
    try:
        sharing.leave(lanes)
    except BookKeeperError as error:
        log.warning("a reader of a group has ended, and its lanes can be taken once its session has: %s", error)


def _leave_soon(sharing: Sharing, lanes: set[str]) -> None:
    """Leave in another thread: the dropped reader's thread, whichever it is, must not wait."""
    try:
        threading.Thread(target=_leave, args=(sharing, lanes), name="bookspark-leave-group", daemon=True).start()
    except RuntimeError:
        log.debug("a reader of a group was dropped as the process ends")


# -- The reader


READ_BYTES_MAX = 8 << 20
"""Approximate limit of one read, of payload and of rows after their inflation."""
_HANDLES_MAX = 64
_POLL_SECONDS = 1.0
_ROWS_AHEAD_MAX = 10_000

Found = TypeVar("Found")
Rows = Annotated[int, Meta(ge=1, le=1_000_000)]


def _has_a_timestamp(moment: datetime) -> bool:
    try:
        return math.isfinite(moment.timestamp())
    except (ValueError, OverflowError):
        return False


Moment = Annotated[datetime, Rule("a time that is in the years 1 to 9999 in UTC, too", _has_a_timestamp)]


class LogRow(NamedTuple):
    lane: int
    position: int
    """Row number in the lane, from 0."""
    value: bytes
    time_ms: int
    """Time of a producer's append, else of the commit, in ms since 1970; never decreases within a lane."""
    key: bytes | None = None
    headers: Headers = ()


class _Place:
    """The place behind the rows that a reader has returned; the reporting thread reads it too."""

    def __init__(self, offset: Offset) -> None:
        self.move(offset)

    def move(self, offset: Offset) -> None:
        self._parts: tuple[Offset, dict[int, int]] = offset, {}

    def passed(self, row: LogRow) -> None:
        # An offset for each row would cost more than the row.
        self._parts[1][row.lane] = row.position + 1

    def offset(self) -> Offset:
        offset, rows = self._parts
        return with_rows(offset, rows.copy())


@checks_methods
class RowReader:
    """Reads a log from an offset on; made by ``Log.reader``. For one thread.

    Law: the reader's place is behind the rows that it has returned to its caller, never behind rows that it only fetched. The row
    that an iteration returned last counts as handled: commit after handling it. Fetched rows come next, however the caller goes
    on, until ``seek``.

    Once closed, it raises LedgerClosedError. ``log_id``: the log at ``log``; None: the one that has its name now.
    """

    def __init__(
        self,
        bookkeeper: BookKeeper,
        log: LogAddress,
        start: str,
        group: str,
        share: bool = False,
        log_id: LaneId | None = None,
    ) -> None:
        self._bookkeeper, self._log, self._group = bookkeeper, log, group
        self._registry = LogRegistry(bookkeeper.metadata)
        record = self._registry.get(log_id or log.name)
        self._id = lane_id(record)
        if record.options.row_format is not RowFormat.VALUE:
            raise ConfigurationError(f"log {log.name!r} keeps rows of several columns: read it with Spark")
        self._feed = LogFeed(bookkeeper, log.name, log.password, fail_on_data_loss=True, with_times=True, log=self._id)
        self._handles: dict[int, tuple[ReadHandle, Callable[[bytes], Row]]] = {}
        self._closed = False
        self._fetched: deque[LogRow] = deque()
        """Rows that an iteration fetched and has not returned yet."""
        self._behind_fetched: Offset = {}
        self._share: LaneShare | None = None
        begin = self._saved()
        if begin is None:
            begin = first = self._feed.newest() if start == "latest" else self._feed.earliest()
            if group and (share or start == "latest"):
                # The group begins here, whichever reader gets a lane or ends first.
                begin = self._changed_saved(lambda saved: first if saved is None else None)
        self._place = _Place(begin)
        self._committed = self._since = begin
        """The saved offset, as known, and the place at the last commit or seek."""
        self._own, self._lost = frozenset[int](), set[int]()
        """Lanes of a sharing reader at its last look, and those that it ever lost."""
        if share:
            self._share = LaneShare(bookkeeper, self._feed.key, group)
            # Take lanes now, so that ``seek`` applies to them.
            self._newest()
        self._registration = Registration(bookkeeper, self._feed.key, ReaderKind.PYTHON, self._place.offset, group)

    @property
    def offset(self) -> dict[str, int]:
        """Offset after the rows that the reader has returned; for lanes of other readers of the group, their last committed
        offset. ``commit`` saves it."""
        return self._place.offset()

    @property
    def lanes(self) -> frozenset[int]:
        """This reader's lanes, as of its last look."""
        return frozenset(self._feed.lanes) if self._share is None else self._share.lanes

    def read(self, rows_max: Rows = 10_000, timeout: WaitSeconds = 0.0) -> list[LogRow]:
        """The next rows, at most ``rows_max`` and about READ_BYTES_MAX bytes. If there are none, waits up to ``timeout`` seconds;
        then []. All returned rows count as handled.

        Raises DataLossError if the reader's next rows were truncated or deleted, InvalidRowError if the next entry is no row,
        ReadError if too few bookies answer or the rows were offloaded to a table, NoSuchLogError, LedgerClosedError and
        MetadataStoreError.
        """
        return self._of_fetched(rows_max) or self._read(rows_max, timeout, self._rows_of)

    def read_with_gaps(self, rows_max: Rows = 10_000, timeout: WaitSeconds = 0.0) -> list[LogRow | Gap]:
        """Like ``read``, with a Gap in place of unreadable rows, in order. The reader continues after the gap.

        Rows of a gap that is ``not_yet_known`` may become readable: ``seek`` back to its first row. Each entry of such a gap is
        read separately, so a hanging bookie makes this slow. Raises ReadError if commits can't be read or rows were offloaded to
        a table, DataLossError if the log was recreated, NoSuchLogError, LedgerClosedError and MetadataStoreError.
        """
        self._feed.passed_over.told_elsewhere = True
        try:
            return [*self._of_fetched(rows_max)] or self._read(rows_max, timeout, self._rows_and_gaps)
        finally:
            self._feed.passed_over.told_elsewhere = False

    def __iter__(self) -> Iterator[LogRow]:
        """All rows from the reader's place to the end of the log. A loop may end early: the rows after its last row come next.
        Raises the errors of ``read``."""
        return self._each(0.0)

    def follow(self) -> Iterator[LogRow]:
        """All rows from the reader's place on, without an end: waits for more. Raises the errors of ``read``."""
        while True:
            yield from self._each(_POLL_SECONDS)

    def seek(self, offset: dict[str, int]) -> None:
        """Continue at ``offset``, an earlier offset of a reader of this log; fetched rows are dropped. Raises ConfigurationError
        if it is no offset, and DataLossError if it belongs to another log of this name."""
        if not is_offset(offset):
            raise ConfigurationError(
                f"{offset} is no place in log {self._log.name!r}: give an offset that a reader had"
            )
        self._feed.check(offset)
        self._go_to(dict(offset))

    def seek_to_time(self, moment: Moment) -> None:
        """Continue at the first row of each lane with the time ``moment`` or later. A ``moment`` without a time zone is local
        time."""
        self._go_to(self._feed.at_time(round(moment.timestamp() * 1000)))

    def commit(self, row: LogRow | None = None) -> None:
        """Save the place in the cluster, for the group's next reader: behind all returned rows or, in the lane of ``row``, behind
        that row only. A sharing reader saves only its own lanes; rows of a lost lane come again to the lane's new reader.

        Raises ConfigurationError (no group; ``row`` is older than the lane's last commit or seek, or the reader has not returned
        it since), DataLossError (the log was recreated, and the group has a reader of the new log), MetadataVersionError (other
        readers of the group saved their places first for five minutes), LedgerClosedError and MetadataStoreError.
        """
        self._check_open()
        if not self._group:
            raise ConfigurationError("a reader without a group has no place to save its offset: make it with one")
        lanes: frozenset[int] | None = None
        if self._share is not None:
            had = self._share.lanes
            self._share.look_again()
            lanes = self._share.lanes
            if lanes != had:
                # Fetched rows of a lost lane come to its new reader.
                self._fetched.clear()
        wanted = self.offset if row is None else self._behind(row)

        def changed(saved: Offset | None) -> Offset:
            return wanted if lanes is None or saved is None else self._feed.combined(lanes, wanted, saved)

        saved = self._changed_saved(changed)
        # The lost lane's state shows later whether another reader has saved its rows.
        self._committed = saved if lanes is None else self._feed.combined(lanes, saved, self._committed)
        self._since = wanted

    def close(self) -> None:
        """Close the open ledgers, and report the reader's end to the cluster. Fetched rows come to the group's next reader."""
        self._closed = True
        self._fetched.clear()
        if self._share is not None:
            self._share.close()
        self._registration.close()
        self._feed.close()
        while self._handles:
            self._handles.popitem()[1][0].close()

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RowReader(log={self._log.name!r}, group={self._group!r}, offset={self.offset})"

    def __reduce__(self) -> Any:
        raise TypeError("a RowReader can't be pickled: pickle its Log and its offset, make a reader there, and seek")

    # -- inside

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerClosedError(f"this reader of log {self._log.name!r} is closed; make another one")

    def _each(self, timeout: float) -> Iterator[LogRow]:
        while True:
            while self._has_fetched():
                yield self._next_fetched()
            rows, end = self._fetch(_ROWS_AHEAD_MAX, timeout, self._rows_of)
            if not rows:
                self._place.move(end)
                return
            self._fetched.extend(rows)
            self._behind_fetched = end

    def _has_fetched(self) -> bool:
        """Are there fetched rows to return? A sharing reader looks at its group first, if it is time."""
        if self._fetched and self._share is not None and not self._share.due_in:
            self._look_at_group(self._share)
        return bool(self._fetched)

    def _next_fetched(self) -> LogRow:
        row = self._fetched.popleft()
        if self._fetched:
            self._place.passed(row)
        else:
            self._place.move(self._behind_fetched)
        return row

    def _of_fetched(self, rows_max: int) -> list[LogRow]:
        return [self._next_fetched() for _ in range(min(rows_max, len(self._fetched)))] if self._has_fetched() else []

    def _read(
        self, rows_max: int, timeout: float, rows_of: Callable[[Offset, Sequence[Piece]], Iterator[Found]]
    ) -> list[Found]:
        rows, end = self._fetch(rows_max, timeout, rows_of)
        self._place.move(end)
        return rows

    def _fetch(
        self, rows_max: int, timeout: float, rows_of: Callable[[Offset, Sequence[Piece]], Iterator[Found]]
    ) -> tuple[list[Found], Offset]:
        """The result of ``rows_of`` for the end offset of the next pieces and the pieces, and that offset."""
        self._check_open()
        deadline = time.monotonic() + timeout
        # A follower has just looked, so it only waits for newer rows.
        waits = timeout > 0 and self._share is None and self._feed.looked_just_now
        newest = self._not_before(self._feed.known()) if waits else self._newest()
        while True:
            offset = self.offset
            if self._feed.spans(offset, newest):
                end = self._feed.limited(offset, newest, Limit(rows_max, READ_BYTES_MAX))
                pieces = [piece for piece, _ in self._feed.pieces(offset, end)]
                rows, end = self._taken(rows_of(end, pieces), end)
                if rows:
                    return rows, end
                self._place.move(end)
            elif (left := deadline - time.monotonic()) <= 0:
                # Lanes without rows may have been made, or have ended.
                return [], newest
            else:
                self._feed.wait(left if self._share is None else min(left, self._share.due_in))
                news = self._feed.news()
                newest = self._newest() if news is None else self._not_before(news)

    def _taken(self, found: Iterator[Found], end: Offset) -> tuple[list[Found], Offset]:
        """The rows and gaps of ``found``, up to ``end``; or those before an invalid row, or of about READ_BYTES_MAX bytes after
        their inflation, and the offset behind them."""
        rows, size, ends = list[Found](), 0, dict[int, int]()
        try:
            for row in found:
                rows.append(row)
                if isinstance(row, LogRow):
                    size += len(row.value)
                    ends[row.lane] = row.position + 1
                elif isinstance(row, Gap):
                    ends[row.lane] = row.last + 1
                if size > READ_BYTES_MAX:
                    return rows, with_rows(self.offset, ends)
        except InvalidRowError:
            if not rows:
                raise
            return rows, with_rows(self.offset, ends)
        return rows, end

    def _go_to(self, offset: Offset) -> None:
        self._fetched.clear()
        self._place.move(offset)
        self._since = offset

    def _behind(self, row: LogRow) -> Offset:
        """The offset behind ``row`` in its lane, and behind all returned rows of other lanes. A row of a lane that was lost and
        taken again does not count."""
        offset, lane = self.offset, row.lane
        first, end = (self._feed.rows_of(lane, place) for place in (self._since, offset))
        if first <= row.position + 1 <= end:
            behind = with_rows(self._since, {lane: row.position + 1})
            return self._feed.combined({lane}, behind, offset)
        if lane in self._lost or (self._share is not None and lane not in self._share.lanes):
            return offset
        what = f"row {row.position} of lane {lane} of log {self._log.name!r}"
        if row.position >= end:
            raise ConfigurationError(f"{what} was not returned by this reader, which is at row {end}: read it first")
        raise ConfigurationError(f"{what} is older than the last commit or seek, at row {first}: commit a later row")

    @property
    def _record(self) -> str:
        return f"{self._group}@{self._feed.key}"

    def _saved(self) -> Offset | None:
        record = self._bookkeeper.metadata.read_record(POSITIONS, self._record) if self._group else None
        return None if record is None else self._place_in(record.value)

    def _place_in(self, document: bytes) -> Offset:
        offset = read_struct(document, dict[str, int], f"position {self._record!r}")
        self._feed.check(offset)
        return offset

    def _changed_saved(self, change: Callable[[Offset | None], Offset | None]) -> Offset:
        """Change the saved offset by compare-and-set (None: leave it); returns the saved value."""
        store, name = self._bookkeeper.metadata, self._record
        what, stands = f"position {name!r}", Offset()

        def changed(document: bytes | None) -> bytes | None:
            nonlocal stands
            saved = None if document is None else self._place_in(document)
            if document is None:
                # The deletion of a log deletes its places; none is saved after that.
                self._registry.get(self._id)
            offset = change(saved)
            stands = offset or saved or {}
            return None if offset is None else proven(offset, msgspec.json.encode, msgspec.json.decode, what)

        change_record(store, POSITIONS, name, what, changed)
        return stands

    def _look_at_group(self, share: LaneShare) -> None:
        """Give back and take lanes. Lanes just taken, and lanes of other readers, continue at their saved offsets. A lane that
        was lost, and is taken again before another reader saved rows of it, continues where it was."""
        offset = self.offset
        added = frozenset[int]()
        try:
            added = share.look(self._feed.lanes_after(offset), self._different(self._committed, offset))
        finally:
            if added or share.lanes != self._own:
                # Rows of lost lanes come to their new readers; rows of more lanes are fetched together.
                self._fetched.clear()
        saved, kept = self._saved(), share.lanes
        if saved is not None:
            kept |= (added & self._own) - self._different(self._committed, saved)
            self._lost |= self._own - kept
            self._place.move(self._feed.combined(kept, offset, saved))
            self._since = self._feed.combined(kept, self._since, saved)
            self._committed = saved
        share.add(added)
        self._own = share.lanes

    def _different(self, one: Offset, other: Offset) -> set[int]:
        """The lanes at different rows in the two offsets."""
        return {*self._feed.spans(one, other), *self._feed.spans(other, one)}

    def _newest(self) -> Offset:
        newest = self._feed.newest()
        if self._share is not None and not self._share.due_in:
            self._look_at_group(self._share)
        return self._not_before(newest)

    def _not_before(self, newest: Offset) -> Offset:
        """``newest``, but never before the reader's own place, and only for its lanes."""
        offset = later(self.offset, newest)
        return offset if self._share is None else self._feed.combined(self._share.lanes, offset, self.offset)

    def _rows_of(self, end: Offset, pieces: Sequence[Piece]) -> Iterator[LogRow]:
        """The rows of ``pieces``, in order. Raises InvalidRowError."""
        done = 0
        try:
            for row in self._decoded(pieces):
                if isinstance(row, InvalidRowError):
                    raise row
                yield row
                done += 1
        except NoSuchLedgerError:
            ends = accumulate(piece.rows for piece in pieces)
            raise self._gone(next(piece for piece, end in zip(pieces, ends, strict=True) if done < end)) from None

    def _decoded(self, pieces: Sequence[Piece]) -> Iterator[LogRow | InvalidRowError]:
        """Each row of ``pieces`` in order, or the error of its entry. Reads consecutive pieces of a ledger at once, across pieces
        of other ledgers: a log of small commits has one piece for each. Raises NoSuchLedgerError if a ledger was deleted."""
        streams: dict[int, tuple[Iterator[Entry], Callable[[bytes], Row]]] = {}
        for piece, last in zip(pieces, ends_of_runs(pieces), strict=True):
            lane = str(self._id.lane(piece.lane))
            if piece.ledger_id not in streams:
                handle, decode = self._opened(piece)
                handle.confirm(last)
                streams[piece.ledger_id] = handle.read(piece.first_entry_id, last), decode
            stream, decode = streams[piece.ledger_id]
            times = RowTimes([piece]).each()
            # One by one: only the commit says how large they are.
            for position, (entry, time_ms) in enumerate(
                zip(islice(stream, piece.entries), times, strict=True), piece.position
            ):
                try:
                    value, own_ms, key, headers = decode(entry.payload)
                except NO_ROW as error:
                    yield invalid_row(lane, position, entry.ledger_id, entry.entry_id, error)
                else:
                    at_ms = time_ms if own_ms is None else own_ms
                    yield LogRow(piece.lane, position, value, at_ms, key, headers)
            if last == piece.last_entry_id:
                del streams[piece.ledger_id]

    def _rows_and_gaps(self, end: Offset, pieces: Sequence[Piece]) -> Iterator[LogRow | Gap]:
        spans, there = self._feed.spans(self.offset, end), set[int]()

        def each() -> Iterator[LogRow | Gap]:
            for part in with_truncated(spans, fewest(pieces)):
                yield from [part] if isinstance(part, Gap) else self._read_or_told(part, there)

        return joined(each())

    def _read_or_told(self, piece: Piece, there: set[int]) -> Iterator[LogRow | Gap]:
        """``there``: ledgers that exist, as this read has seen in the metadata store. A ledger may be deleted meanwhile."""
        returned = 0
        try:
            if piece.ledger_id not in there:
                self._bookkeeper.get_ledger_metadata(piece.ledger_id)
                there.add(piece.ledger_id)
            for item in rows_and_gaps(piece, self._rows_and_invalid, partial(kind_of, self._bookkeeper)):
                yield item
                returned += item.rows if isinstance(item, Gap) else 1
        except NoSuchLedgerError:
            rest = piece.part(returned, piece.rows)
            gap = deleted_gap(self._registry.get(self._id.lane(piece.lane)), rest)
            if gap is None:
                raise self._gone(rest) from None
            yield gap

    def _rows_and_invalid(self, piece: Piece) -> Iterator[LogRow | Gap]:
        for position, row in enumerate(self._decoded([piece]), piece.position):
            if isinstance(row, InvalidRowError):
                yield Gap(piece.lane, position, position, GapKind.INVALID)
            else:
                yield row

    def _opened(self, piece: Piece) -> tuple[ReadHandle, Callable[[bytes], Row]]:
        opened = self._handles.pop(piece.ledger_id, None)
        if opened is None:
            handle = self._bookkeeper.open_ledger_no_recovery(
                piece.ledger_id, password=self._log.password, confirmed=piece.last_entry_id
            )
            opened = handle, self._decoder(handle.metadata.custom_metadata, piece)
            while len(self._handles) >= _HANDLES_MAX:
                self._handles.pop(next(iter(self._handles)))[0].close()
        # Most recently used last.
        self._handles[piece.ledger_id] = opened
        return opened

    def _decoder(self, labels: Mapping[str, bytes], piece: Piece) -> Callable[[bytes], Row]:
        label = labels.get(ENCODING_LABEL, PLAIN.encode()).decode()
        if label == ARROW:
            raise ReadError(f"data ledger {piece.ledger_id} of log {self._log.name!r} has rows of several columns")
        lane = self._id.lane(piece.lane)
        return entry_decoder(label, lambda: self._registry.get(lane).dictionary, f"data ledger {piece.ledger_id}")

    def _gone(self, piece: Piece) -> BookKeeperError:
        """The error for a piece whose ledger was deleted after the plan."""
        lane = self._id.lane(piece.lane)
        record = self._registry.get(lane)
        gap = deleted_gap(record, piece)
        if gap is not None:
            return DataLossError(
                f"log '{lane}': {gap}; their ledger {piece.ledger_id} was deleted. `read_with_gaps` goes on behind them"
            )
        last, table = piece.position + piece.rows - 1, "" if record.offload is None else record.offload.table
        return ReadError(
            f"rows {piece.position} to {last} of log '{lane}' were offloaded to the table {table}: read them with Spark"
        )
