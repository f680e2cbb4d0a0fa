"""A reader of a log's rows, with no Spark: once, or as the log grows.

Law: reading never fences and disturbs no writer. A reader sees committed rows alone: those of a lane in their order, each once,
the lanes in the order of their numbers between two looks (docs/decisions/lanes.md). Its place is an *offset*, a small dict that
JSON takes, the same as in Spark's checkpoints: a reader that begins at a saved offset goes on exactly there.

``commit`` saves the offset in the cluster, under the reader's ``group``. A row that was read and not yet committed comes again to
the next reader of the group, so each row comes once at least; once exactly, if what a row causes and the offset are saved
together elsewhere. One reader of a group at a time: the one that commits last wins. Readers that *share* have a part of the lanes
each (``logs.row_reader``): a lane goes to another reader when its own has committed, was closed, or its session ended.

A saved place is one in the log that it was saved in. A deletion of the log deletes it, but a reader that lives saves once more:
for a reader of a log that was made later under the name, it is none. So the group begins there where a new group would.

A reader tells the cluster how far it is, as ``bookspark log readers`` shows, and never waits for that (``logs.readers``).

Source: docs/decisions/logs.md, docs/decisions/lanes.md. Kafka's consumer has ``seek`` and ``commit`` of the same meaning.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from bookspark.errors import BookKeeperError, ConfigurationError, MetadataVersionError, NoSuchLedgerError, ReadError
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import POSITIONS, LogRegistry
from bookspark.logs.chain.stamps import Headers
from bookspark.logs.feeds.gaps import Gap, GapKind, deleted_gap, joined, kind_of, rows_and_gaps, with_truncated
from bookspark.logs.feeds.log_feed import Limit, LogFeed, Offset
from bookspark.logs.feeds.times import RowTimes
from bookspark.logs.readers.records import now_ms
from bookspark.logs.readers.registration import Registration
from bookspark.logs.rows.encodings import ARROW, PLAIN
from bookspark.logs.rows.splits import Piece, ends_of_runs, fewest
from bookspark.logs.rows.stamped_rows import Row, entry_decoder
from bookspark.protocol.logs.lanes import is_offset, lane_name, lane_of, later, moves
from bookspark.protocol.logs.log_options import RowFormat
from bookspark.protocol.logs.log_record import ENCODING_LABEL
from bookspark.protocol.logs.reader_record import ReaderKind
from bookspark.store.metadata.records.documents import proven, read_struct
from bookspark.support.arguments import Rule, WaitSeconds, checks_methods

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.client.reading.read_handle import ReadHandle
    from bookspark.store.metadata.documents.sharing import Sharing
    from bookspark.store.wire.entry_batch import Entry

log = logging.getLogger(__name__)


# -- The lanes that one reader of a group has, of those that the group shares.
#
# Law: as that of every lock (``metadata.documents.locks``), the hold on a lane saves work, and nothing relies on it. A reader
# that lost its session reads on until it hears of that, and what it saves then is behind what it read. So a row comes once at
# least, to whichever reader; and once, unless a reader died, lost its session or was closed before it saved what it had read.
#
# A reader looks once a second at most, in its own thread, as it reads. One that does not read any more keeps its lanes until it
# is closed or dropped, or its process ends.


LOOK_SECONDS = 1.0


class LaneShare:
    """One reader's part of the lanes. For one thread."""

    def __init__(self, bookkeeper: BookKeeper, log_name: str, group: str) -> None:
        # Those that joined first come first, as far as the hosts' clocks agree.
        self._name = f"{now_ms():013}-{uuid.uuid4().hex[:12]}"
        self._sharing = bookkeeper.metadata.sharing(f"{group}@{log_name}", self._name)
        self.lanes: frozenset[int] = frozenset()
        """The lanes that this reader has."""
        self._due, self._held, self._pid = 0.0, set[str](), os.getpid()
        self._left = weakref.finalize(self, _leave_soon, self._sharing, self._held)
        self._left.atexit = False

    @property
    def due_in(self) -> float:
        """The seconds until the next look."""
        return max(0.0, self._due - time.monotonic())

    def look(self, lanes: Collection[int], unsaved: Collection[int]) -> None:
        """Leave and take lanes (``protocol.logs.lanes.moves``). Raises MetadataStoreError."""
        self._due = time.monotonic() + LOOK_SECONDS
        members = self._sharing.join()
        holders = {int(lane): name for lane, name in self._sharing.holders().items()}
        to_leave, to_take = moves(lanes, members, self._name, holders, unsaved)
        mine = {lane for lane, name in holders.items() if name == self._name}
        self._has(mine)
        self._sharing.give_back(map(str, to_leave))
        self._has(mine.difference(to_leave))
        self._has(self.lanes.union(map(int, self._sharing.take(map(str, to_take)))))

    def look_again(self) -> None:
        """Drop the lanes that this reader has lost. Raises MetadataStoreError."""
        holders = self._sharing.holders()
        self._has({lane for lane in self.lanes if holders.get(str(lane)) == self._name})

    def close(self) -> None:
        """Let others take the lanes at once. Never raises."""
        if self._left.detach() is not None and self._pid == os.getpid():
            _leave(self._sharing, self._held)
        self.lanes = frozenset()

    def _has(self, lanes: Collection[int]) -> None:
        self.lanes = frozenset(lanes)
        # In place: what happens if this reader is dropped knows it too.
        self._held.clear()
        self._held.update(map(str, lanes))


def _leave(sharing: Sharing, lanes: set[str]) -> None:
    try:
        sharing.leave(lanes)
    except BookKeeperError as error:
        log.warning("a reader of a group has ended, and its lanes can be taken once its session has: %s", error)


def _leave_soon(sharing: Sharing, lanes: set[str]) -> None:
    """A reader was dropped: its thread, whichever it is, must not wait."""
    try:
        threading.Thread(target=_leave, args=(sharing, lanes), name="bookspark-leave-group", daemon=True).start()
    except RuntimeError:
        log.debug("a reader of a group was dropped as the process ends")


# --


READ_BYTES_MAX = 8 << 20
"""About the most bytes of one read."""
_HANDLES_MAX = 64
_SAVES_MAX = 10
_POLL_SECONDS = 1.0

Found = TypeVar("Found")
Rows = Annotated[int, Meta(ge=1, le=1_000_000)]


def _has_a_timestamp(moment: datetime) -> bool:
    try:
        return math.isfinite(moment.timestamp())
    except (ValueError, OverflowError):
        return False


Moment = Annotated[datetime, Rule("a time that is in the years 1 to 9999 in UTC, too", _has_a_timestamp)]


class LogRow(NamedTuple):
    """A row of a log."""

    lane: int
    position: int
    """Its number in the lane, from 0."""
    value: bytes
    time_ms: int
    """When it was appended by a producer, or else committed, in ms since 1970; in a lane it never goes back."""
    key: bytes | None = None
    """As the producer gave it."""
    headers: Headers = ()
    """Names and values, as the producer gave them."""


@checks_methods
class RowReader:
    """Reads a log from an offset on; ``Log.reader`` makes it. For one thread."""

    def __init__(self, bookkeeper: BookKeeper, log: LogAddress, start: str, group: str, share: bool = False) -> None:
        self._bookkeeper, self._log, self._group = bookkeeper, log, group
        self._registry = LogRegistry(bookkeeper.metadata)
        if self._registry.get(log.name).options.row_format is not RowFormat.VALUE:
            raise ConfigurationError(f"log {log.name!r} keeps rows of several columns: read it with Spark")
        self._feed = LogFeed(bookkeeper, log.name, log.password, fail_on_data_loss=True, with_times=True)
        self._handles: dict[int, tuple[ReadHandle, Callable[[bytes], Row]]] = {}
        self._offset = self._saved() or (self._feed.newest() if start == "latest" else self._feed.earliest())
        self._share = LaneShare(bookkeeper, log.name, group) if share else None
        if share and self._saved() is None:
            # The group begins here, whichever of its readers has a lane first.
            self._save()
        self._committed = self._offset
        if share:
            # It has lanes from now on, so that it can seek in them.
            self._newest()
        self._registration = Registration(bookkeeper, log.name, ReaderKind.PYTHON, self._offset, group)

    @property
    def offset(self) -> dict[str, int]:
        """The place behind the last row that ``read`` returned; in lanes that another reader of the group has, where that one
        was when it committed."""
        return dict(self._offset)

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that this reader has, as it saw them last."""
        return frozenset(self._feed.lanes) if self._share is None else self._share.lanes

    def read(self, rows_max: Rows = 10_000, timeout: WaitSeconds = 0.0) -> list[LogRow]:
        """The next rows, at most ``rows_max`` and about READ_BYTES_MAX bytes; without any, those that come within ``timeout``
        seconds; [] if none do.

        Raises DataLossError if rows from the reader's place on were truncated or deleted, ReadError if too few bookies answer or
        the rows were offloaded to a table, NoSuchLogError, and MetadataStoreError.
        """
        return self._next(rows_max, timeout, self._rows_of)

    def read_with_gaps(self, rows_max: Rows = 10_000, timeout: WaitSeconds = 0.0) -> list[LogRow | Gap]:
        """As ``read``, and where rows can't be read there is a Gap in their place, in order. The reader is then behind it.

        Rows of a gap that is ``not_yet_known`` may be read later: ``seek`` back to its first row. Each entry of such a gap is
        asked for by itself, so a bookie that hangs makes this slow. Raises ReadError if commits can't be read, or rows were
        offloaded to a table, DataLossError if the log was made anew, NoSuchLogError, and MetadataStoreError.
        """
        self._feed.passed_over.told_elsewhere = True
        try:
            return self._next(rows_max, timeout, self._rows_and_gaps)
        finally:
            self._feed.passed_over.told_elsewhere = False

    def __iter__(self) -> Iterator[LogRow]:
        """All rows from the reader's place on, up to those that are committed when the loop gets there. The offset is behind the
        rows that were fetched, which may be some more than those that the loop has seen: use ``read`` where that matters."""
        while rows := self.read():
            yield from rows

    def follow(self) -> Iterator[LogRow]:
        """All rows from the reader's place on, without an end: it waits for more."""
        while True:
            yield from self.read(timeout=_POLL_SECONDS)

    def seek(self, offset: dict[str, int]) -> None:
        """Go on at ``offset``, which a reader of this log had. Raises ConfigurationError if it is none, DataLossError if it is of
        an earlier log of this name."""
        if not is_offset(offset):
            raise ConfigurationError(
                f"{offset} is no place in log {self._log.name!r}: give an offset that a reader had"
            )
        self._feed.check(offset)
        self._go_to(dict(offset))

    def seek_to_time(self, moment: Moment) -> None:
        """Go on at the first row of each lane that was committed at ``moment`` or later. A moment without a time zone is in local
        time, as Python has it."""
        self._go_to(self._feed.at_time(round(moment.timestamp() * 1000)))

    def commit(self) -> None:
        """Save the offset in the cluster: the next reader of this group begins there. A reader that shares saves that of its own
        lanes; one that it has lost is not saved, and its rows come again to the reader that has it. Raises ConfigurationError if
        the reader has no group, DataLossError if the log was made anew and a reader of the group is there already, and
        MetadataStoreError."""
        if not self._group:
            raise ConfigurationError("a reader without a group has no place to save its offset: make it with one")
        if self._share is not None:
            self._share.look_again()
        self._committed = self._save()

    def close(self) -> None:
        """Close the ledgers that are open for reading, and say in the cluster that the reader ended."""
        if self._share is not None:
            self._share.close()
        self._registration.close()
        while self._handles:
            self._handles.popitem()[1][0].close()

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RowReader(log={self._log.name!r}, group={self._group!r}, offset={self._offset})"

    def __reduce__(self) -> Any:
        raise TypeError("a RowReader can't be pickled: pickle its Log and its offset, make a reader there, and seek")

    # -- inside

    def _next(
        self, rows_max: int, timeout: float, rows_of: Callable[[Offset, Sequence[Piece]], Iterator[Found]]
    ) -> list[Found]:
        """What ``rows_of`` makes of the next pieces, which end at the offset that it is given."""
        deadline = time.monotonic() + timeout
        # Who follows the log has just looked, and what came since is waited for.
        waits = timeout > 0 and self._share is None and self._feed.looked_just_now
        newest = self._not_before(self._feed.known()) if waits else self._newest()
        while newest == self._offset and (left := deadline - time.monotonic()) > 0:
            self._feed.wait(left if self._share is None else min(left, self._share.due_in))
            news = self._feed.news()
            newest = self._newest() if news is None else self._not_before(news)
        if newest == self._offset:
            return []
        end = self._feed.limited(self._offset, newest, Limit(rows_max, READ_BYTES_MAX))
        pieces = [piece for piece, _ in self._feed.pieces(self._offset, end)]
        rows = list(rows_of(end, pieces))
        self._go_to(end)
        return rows

    def _go_to(self, offset: Offset) -> None:
        self._offset = offset
        self._registration.moved(offset)

    @property
    def _record(self) -> str:
        return f"{self._group}@{self._log.name}"

    def _saved(self) -> Offset | None:
        found = self._bookkeeper.metadata.read_record(POSITIONS, self._record) if self._group else None
        return None if found is None else self._place_in(found.value)

    def _place_in(self, document: bytes) -> Offset | None:
        """The place that was saved; None if it is one in an earlier log of the name. Raises DataLossError if it is one in a later
        log."""
        offset = read_struct(document, dict[str, int], f"position {self._record!r}")
        made = self._feed.ctime_ms
        # The log is looked for after the place was read: if this one is still there, no later one was before.
        if is_offset(offset) and offset["log"] != made and self._registry.get(self._log.name).ctime_ms == made:
            return None
        self._feed.check(offset)
        return offset

    def _save(self) -> Offset:
        """Save the offset, of a reader that shares that of its lanes; returns what was saved. Raises DataLossError if a reader of
        a later log of the name saved its place."""
        store, name = self._bookkeeper.metadata, self._record
        for left in range(_SAVES_MAX)[::-1]:
            found, offset = store.read_record(POSITIONS, name), self._offset
            saved = None if found is None else self._place_in(found.value)
            if saved is not None and self._share is not None:
                offset = self._feed.combined(self._share.lanes, offset, saved)
            document = proven(offset, msgspec.json.encode, msgspec.json.decode, f"position {name!r}")
            try:
                store.write_record(POSITIONS, name, document, None if found is None else found.version)
                break
            except MetadataVersionError:
                if not left:
                    raise
        return offset

    def _look_at_group(self, share: LaneShare) -> None:
        """Leave and take lanes. Lanes that were taken, and those of other readers, are where they were saved."""
        lanes, had = self._feed.lanes_after(self._offset), share.lanes
        unsaved = {
            *self._feed.spans(self._committed, self._offset),
            *self._feed.spans(self._offset, self._committed),
        }
        share.look(lanes, unsaved)
        saved = self._saved()
        if saved is not None:
            self._offset = self._feed.combined(share.lanes & had, self._offset, saved)
            self._committed = saved

    def _newest(self) -> Offset:
        """Behind the last row."""
        newest = self._feed.newest()
        if self._share is not None and not self._share.due_in:
            self._look_at_group(self._share)
        return self._not_before(newest)

    def _not_before(self, newest: Offset) -> Offset:
        """``newest``, but never before a place where the reader has been, and only of lanes that it has."""
        found = later(self._offset, newest)
        return found if self._share is None else self._feed.combined(self._share.lanes, found, self._offset)

    def _rows(self, piece: Piece) -> Iterator[LogRow]:
        return self._rows_of({}, [piece])

    def _rows_of(self, end: Offset, pieces: Sequence[Piece]) -> Iterator[LogRow]:
        """The rows of ``pieces``, in order. A ledger is read in one go as far as its pieces continue one another, though those of
        others lie between: a log of small commits has one for each."""
        streams: dict[int, tuple[Iterator[Entry], Callable[[bytes], Row]]] = {}
        for piece, last in zip(pieces, ends_of_runs(pieces), strict=True):
            try:
                if piece.ledger_id not in streams:
                    handle, decode = self._opened(piece)
                    handle.confirm(last)
                    streams[piece.ledger_id] = handle.read(piece.first_entry_id, last), decode
                stream, decode = streams[piece.ledger_id]
                entries = list(islice(stream, piece.entries))
            except NoSuchLedgerError:
                raise self._gone(piece) from None
            if last == piece.last_entry_id:
                del streams[piece.ledger_id]
            times = RowTimes([piece]).each()
            for position, (entry, time_ms) in enumerate(zip(entries, times, strict=True), piece.position):
                value, own_ms, key, headers = decode(entry.payload)
                yield LogRow(piece.lane, position, value, time_ms if own_ms is None else own_ms, key, headers)

    def _rows_and_gaps(self, end: Offset, pieces: Sequence[Piece]) -> Iterator[LogRow | Gap]:
        spans, there = self._feed.spans(self._offset, end), set[int]()

        def each() -> Iterator[LogRow | Gap]:
            for part in with_truncated(spans, fewest(pieces)):
                yield from [part] if isinstance(part, Gap) else self._read_or_told(part, there)

        return joined(each())

    def _read_or_told(self, piece: Piece, there: set[int]) -> Iterator[LogRow | Gap]:
        """``there``: ledgers that this read has found in the metadata store."""
        try:
            if piece.ledger_id not in there:
                self._bookkeeper.get_ledger_metadata(piece.ledger_id)
                there.add(piece.ledger_id)
        except NoSuchLedgerError:
            record = self._registry.get(lane_name(lane_of(self._log.name)[0], piece.lane))
            gap = deleted_gap(record, piece)
            if gap is None:
                raise self._gone(piece) from None
            yield gap
            return
        yield from rows_and_gaps(piece, lambda part: list(self._rows(part)), self._kind_of)

    def _kind_of(self, error: BookKeeperError, piece: Piece) -> GapKind:
        try:
            return kind_of(error, self._bookkeeper.get_ledger_metadata(piece.ledger_id), piece.first_entry_id)
        except NoSuchLedgerError:
            # It was deleted just now: the next read tells why.
            return GapKind.NOT_YET_KNOWN

    def _opened(self, piece: Piece) -> tuple[ReadHandle, Callable[[bytes], Row]]:
        found = self._handles.pop(piece.ledger_id, None)
        if found is None:
            handle = self._bookkeeper.open_ledger_no_recovery(
                piece.ledger_id, password=self._log.password, confirmed=piece.last_entry_id
            )
            found = handle, self._decoder(handle.metadata.custom_metadata, piece)
            while len(self._handles) >= _HANDLES_MAX:
                self._handles.pop(next(iter(self._handles)))[0].close()
        # The one that was used last is the last one.
        self._handles[piece.ledger_id] = found
        return found

    def _decoder(self, labels: Mapping[str, bytes], piece: Piece) -> Callable[[bytes], Row]:
        label = labels.get(ENCODING_LABEL, PLAIN.encode()).decode()
        if label == ARROW:
            raise ReadError(f"data ledger {piece.ledger_id} of log {self._log.name!r} has rows of several columns")
        name = lane_name(lane_of(self._log.name)[0], piece.lane)
        return entry_decoder(label, lambda: self._registry.get(name).dictionary, f"data ledger {piece.ledger_id}")

    def _gone(self, piece: Piece) -> ReadError:
        name = lane_name(lane_of(self._log.name)[0], piece.lane)
        offload = self._registry.get(name).offload
        where = (
            f"they were offloaded to the table {offload.table}: read them with Spark" if offload else "it was deleted"
        )
        last = piece.position + piece.rows - 1
        return ReadError(f"rows {piece.position} to {last} of log {name!r} are in ledger {piece.ledger_id}; {where}")
