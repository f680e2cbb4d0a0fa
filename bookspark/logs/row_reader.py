"""A reader of a log's rows, with no Spark: once, or as the log grows.

Law: reading never fences and disturbs no writer. A reader sees committed rows alone: those of a lane in their order, each once,
the lanes in the order of their numbers between two looks (docs/decisions/lanes.md). Its place is an *offset*, a small dict that
JSON takes, the same as in Spark's checkpoints: a reader that begins at a saved offset goes on exactly there.

``commit`` saves the offset in the cluster, under the reader's ``group``. A row that was read and not yet committed comes again to
the next reader of the group, so each row comes once at least; once exactly, if what a row causes and the offset are saved
together elsewhere. One reader of a group at a time: the one that commits last wins.

Source: docs/decisions/logs.md, docs/decisions/lanes.md. Kafka's consumer has ``seek`` and ``commit`` of the same meaning.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from bookspark.arguments import WaitSeconds, checks_methods
from bookspark.errors import ConfigurationError, MetadataVersionError, NoSuchLedgerError, ReadError
from bookspark.logs.chain.log_run import LogAddress
from bookspark.logs.chain.registry import POSITIONS, LogRegistry
from bookspark.logs.feeds.log_feed import Limit, LogFeed, Offset
from bookspark.logs.feeds.times import RowTimes, Times
from bookspark.logs.rows.encodings import ARROW, PLAIN, ZSTD_DICTIONARY
from bookspark.logs.rows.splits import Piece
from bookspark.logs.rows.value_rows import value_decoder
from bookspark.metadata.records.documents import proven, read_struct
from bookspark.protocol.logs.lanes import lane_name, lane_of
from bookspark.protocol.logs.log_record import ENCODING_LABEL, RowFormat

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

READ_BYTES_MAX = 8 << 20
"""About the most bytes of one read."""
_HANDLES_MAX = 64
_SAVES_MAX = 10
_POLL_SECONDS = 1.0

Rows = Annotated[int, Meta(ge=1, le=1_000_000)]


class LogRow(NamedTuple):
    """A row of a log."""

    lane: int
    position: int
    """Its number in the lane, from 0."""
    value: bytes
    time_ms: int
    """When it was committed, in ms since 1970; in a lane it never goes back."""


@checks_methods
class RowReader:
    """Reads a log from an offset on; ``Log.reader`` makes it. For one thread."""

    def __init__(self, bookkeeper: BookKeeper, log: LogAddress, start: str, group: str) -> None:
        self._bookkeeper, self._log, self._group = bookkeeper, log, group
        self._registry = LogRegistry(bookkeeper.metadata)
        if self._registry.get(log.name).options.row_format is not RowFormat.VALUE:
            raise ConfigurationError(f"log {log.name!r} keeps rows of several columns: read it with Spark")
        self._feed = LogFeed(bookkeeper, log.name, log.password, fail_on_data_loss=True, with_times=True)
        self._handles: dict[int, tuple[ReadHandle, Callable[[bytes], bytes]]] = {}
        self._offset = self._saved() or (self._feed.newest() if start == "latest" else self._feed.earliest())

    @property
    def offset(self) -> dict[str, int]:
        """The place behind the last row that ``read`` returned."""
        return dict(self._offset)

    def read(self, rows_max: Rows = 10_000, timeout: WaitSeconds = 0.0) -> list[LogRow]:
        """The next rows, at most ``rows_max`` and about READ_BYTES_MAX bytes; without any, those that come within ``timeout``
        seconds; [] if none do.

        Raises DataLossError if rows from the reader's place on were truncated or deleted, ReadError if too few bookies answer or
        the rows were offloaded to a table, NoSuchLogError, and MetadataStoreError.
        """
        deadline = time.monotonic() + timeout
        newest = self._newest()
        while newest == self._offset and (left := deadline - time.monotonic()) > 0:
            self._feed.wait(left)
            newest = self._newest()
        if newest == self._offset:
            return []
        end = self._feed.limited(self._offset, newest, Limit(rows_max, READ_BYTES_MAX))
        pieces = [piece for piece, _ in self._feed.pieces(self._offset, end)]
        rows = [row for piece in pieces for row in self._rows(piece)]
        self._offset = end
        return rows

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
        self._feed.check(offset)
        self._offset = dict(offset)

    def seek_to_time(self, moment: datetime) -> None:
        """Go on at the first row of each lane that was committed at ``moment`` or later. A moment without a time zone is in local
        time, as Python has it."""
        newest = self._feed.newest()
        self._offset = self._feed.at_times(Times(round(moment.timestamp() * 1000)), newest)

    def commit(self) -> None:
        """Save the offset in the cluster: the next reader of this group begins there. Raises ConfigurationError if the reader has
        no group, and MetadataStoreError."""
        if not self._group:
            raise ConfigurationError("a reader without a group has no place to save its offset: make it with one")
        store, name = self._bookkeeper.metadata, self._record
        document = proven(self._offset, msgspec.json.encode, msgspec.json.decode, f"position {name!r}")
        for left in range(_SAVES_MAX)[::-1]:
            found = store.read_record(POSITIONS, name)
            try:
                store.write_record(POSITIONS, name, document, None if found is None else found.version)
                return
            except MetadataVersionError:
                if not left:
                    raise

    def close(self) -> None:
        """Close the ledgers that are open for reading."""
        while self._handles:
            self._handles.popitem()[1][0].close()

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- inside

    @property
    def _record(self) -> str:
        return f"{self._group}@{self._log.name}"

    def _saved(self) -> Offset | None:
        found = self._bookkeeper.metadata.read_record(POSITIONS, self._record) if self._group else None
        if found is None:
            return None
        offset = read_struct(found.value, dict[str, int], f"position {self._record!r}")
        self._feed.check(offset)
        return offset

    def _newest(self) -> Offset:
        """Behind the last row, and never before a place where the reader has been."""
        newest = self._feed.newest()
        return {**newest, **{key: max(rows, newest.get(key, 0)) for key, rows in self._offset.items()}}

    def _rows(self, piece: Piece) -> Iterator[LogRow]:
        try:
            handle, decode = self._opened(piece)
            handle.confirm(piece.last_entry_id)
            entries = list(handle.read(piece.first_entry_id, piece.last_entry_id))
        except NoSuchLedgerError:
            raise self._gone(piece) from None
        times = RowTimes([piece]).each()
        for position, (entry, time_ms) in enumerate(zip(entries, times, strict=True), piece.position):
            yield LogRow(piece.lane, position, decode(entry.payload), time_ms)

    def _opened(self, piece: Piece) -> tuple[ReadHandle, Callable[[bytes], bytes]]:
        found = self._handles.pop(piece.ledger_id, None)
        if found is None:
            handle = self._bookkeeper.open_ledger_no_recovery(piece.ledger_id, password=self._log.password)
            found = handle, self._decoder(handle.metadata.custom_metadata, piece)
            while len(self._handles) >= _HANDLES_MAX:
                self._handles.pop(next(iter(self._handles)))[0].close()
        # The one that was used last is the last one.
        self._handles[piece.ledger_id] = found
        return found

    def _decoder(self, labels: Mapping[str, bytes], piece: Piece) -> Callable[[bytes], bytes]:
        encoding = labels.get(ENCODING_LABEL, PLAIN.encode()).decode()
        if encoding == ARROW:
            raise ReadError(f"data ledger {piece.ledger_id} of log {self._log.name!r} has rows of several columns")
        name = lane_name(lane_of(self._log.name)[0], piece.lane)
        dictionary = self._registry.get(name).dictionary if encoding == ZSTD_DICTIONARY else b""
        return value_decoder(encoding, dictionary)

    def _gone(self, piece: Piece) -> ReadError:
        name = lane_name(lane_of(self._log.name)[0], piece.lane)
        offload = self._registry.get(name).offload
        where = (
            f"they were offloaded to the table {offload.table}: read them with Spark" if offload else "it was deleted"
        )
        last = piece.position + piece.rows - 1
        return ReadError(f"rows {piece.position} to {last} of log {name!r} are in ledger {piece.ledger_id}; {where}")
