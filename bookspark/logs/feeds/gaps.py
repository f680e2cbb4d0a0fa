"""Gaps: rows of a log that a reader passes without reading them, and their kinds.

Law: gaps are not stored; the kind is current knowledge. *Unknown is never No*: rows are lost only if every replica denies them,
if an operator accepted their loss, or if their ledger is deleted and they are neither truncated nor offloaded. All other
unreadable rows are *not yet known*, and may become readable.

Source: docs/decisions/lanes.md, "Times, gaps, options, lag, groups". LogDevice reports gaps of such kinds to its readers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bookspark.errors import BookKeeperError, NoSuchEntryError, NoSuchLedgerError, ReadError
from bookspark.logs.chain.registry import Lane, LogRegistry
from bookspark.logs.feeds.lane_feed import LaneFeed
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.ledger.accepted_loss import LossKind
from bookspark.protocol.logs.log_record import LogRecord

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

Row = TypeVar("Row")
NOT_READ = (NoSuchEntryError, ReadError)
"""Errors of a read that make a gap."""


class GapKind(Enum):
    TRUNCATED = "truncated"
    """Removed from the log on purpose."""
    LOST = "lost"
    """No replica has them, or an operator accepted their loss, or their ledger was deleted."""
    INVALID = "invalid"
    """The rows' entry is no row of the log, or too large for a row: Bookspark did not write it."""
    NOT_YET_KNOWN = "not_yet_known"
    """No replica answered with them, and a silent one may have them: retry later."""


class Gap(NamedTuple):
    """Rows ``first`` to ``last`` of a lane, both included."""

    lane: int
    first: int
    last: int
    kind: GapKind

    @property
    def rows(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"rows {self.first} to {self.last} of lane {self.lane} are {self.kind.value.replace('_', ' ')}"


def gap_of(piece: Piece, kind: GapKind) -> Gap:
    return Gap(piece.lane, piece.position, piece.position + piece.rows - 1, kind)


def with_truncated(spans: Mapping[int, tuple[int, int]], pieces: Iterable[Piece]) -> Iterator[Piece | Gap]:
    """``pieces``, and the gaps between them. ``spans``: (first requested row, end) of each lane, in the order of ``pieces``."""
    by_lane: dict[int, list[Piece]] = {lane: [] for lane in spans}
    for piece in pieces:
        by_lane[piece.lane].append(piece)
    for lane, (at, end) in spans.items():
        for piece in by_lane[lane]:
            if at < piece.position:
                yield Gap(lane, at, piece.position - 1, GapKind.TRUNCATED)
            yield piece
            at = piece.position + piece.rows
        if at < end:
            yield Gap(lane, at, end - 1, GapKind.TRUNCATED)


def kind_of(bookkeeper: BookKeeper, error: BookKeeperError, piece: Piece) -> GapKind:
    """Kind of gap after the failed read of ``piece``, of one entry."""
    metadata, entry_id = bookkeeper.get_ledger_metadata(piece.ledger_id), piece.first_entry_id
    if isinstance(error, NoSuchEntryError) or (metadata.closed and entry_id > metadata.last_entry_id):
        return GapKind.LOST
    losses = metadata.accepted_loss.losses if metadata.accepted_loss is not None else ()
    accepted = any(loss.kind is LossKind.ENTRIES and loss.first <= entry_id <= loss.last for loss in losses)
    return GapKind.LOST if accepted else GapKind.NOT_YET_KNOWN


def rows_and_gaps(
    piece: Piece, read: Callable[[Piece], Iterable[Row]], kind: Callable[[BookKeeperError, Piece], GapKind]
) -> Iterator[Row | Gap]:
    """The rows of ``piece``, and its gaps, in order. An unreadable piece is halved down to single entries.

    ``read``: reads a piece, and raises one of NOT_READ behind the rows that it has returned. ``kind``: the kind of gap after such
    an error for a piece of one entry."""
    returned = 0
    try:
        for row in read(piece):
            yield row
            returned += 1
    except NOT_READ as error:
        piece = piece.part(returned, piece.rows)
        if piece.entries == 1:
            yield gap_of(piece, kind(error, piece))
            return
        # First row of the second half of the entries.
        middle = piece.entries // 2 * piece.rows_each - piece.skip
        yield from rows_and_gaps(piece.part(0, middle), read, kind)
        yield from rows_and_gaps(piece.part(middle, piece.rows), read, kind)


def joined(items: Iterable[Row | Gap]) -> Iterator[Row | Gap]:
    """The same items, with consecutive gaps of one kind merged."""
    open_gap: Gap | None = None
    for item in items:
        continued = None if open_gap is None else (open_gap.lane, open_gap.last + 1, open_gap.kind)
        if isinstance(item, Gap) and open_gap is not None and (item.lane, item.first, item.kind) == continued:
            open_gap = open_gap._replace(last=item.last)
            continue
        if open_gap is not None:
            yield open_gap
        open_gap = item if isinstance(item, Gap) else None
        if not isinstance(item, Gap):
            yield item
    if open_gap is not None:
        yield open_gap


def deleted_gap(record: LogRecord, piece: Piece) -> Gap | None:
    """The gap of a piece whose ledger was deleted; None if its rows were offloaded. ``record``: the lane's, read after the
    deletion."""
    if piece.position < record.first_position:
        return gap_of(piece, GapKind.TRUNCATED)
    if record.offload is not None and piece.position + piece.rows <= record.offload.position:
        return None
    return gap_of(piece, GapKind.LOST)


def readable_and_gaps(bookkeeper: BookKeeper, password: bytes, piece: Piece) -> Iterator[Piece | Gap]:
    """The currently readable parts of ``piece``, and its gaps, in order. Reads all of its entries. Raises NoSuchLedgerError."""
    handle = bookkeeper.open_ledger_no_recovery(piece.ledger_id, password=password, confirmed=piece.last_entry_id)

    def read(part: Piece) -> Sequence[Piece]:
        deque(handle.read(part.first_entry_id, part.last_entry_id), 0)
        return [part]

    return joined(rows_and_gaps(piece, read, partial(kind_of, bookkeeper)))


def gaps_of_lane(bookkeeper: BookKeeper, name: Lane, password: bytes) -> Iterator[Gap]:
    """All gaps of a lane. Reads all rows that are not offloaded. Raises NoSuchLogError, UnauthorizedAccessError (wrong password),
    ReadError if its commits can't be read, and MetadataStoreError."""
    silent = PassedOver(fail=False)
    silent.told_elsewhere = True
    feed = LaneFeed(bookkeeper, name, password, silent)
    lane, end = feed.lane, feed.newest()

    def each() -> Iterator[Piece | Gap]:
        for part in with_truncated({lane.number: (0, end)}, (piece for piece, _ in feed.pieces(0, end))):
            if isinstance(part, Gap):
                yield part
                continue
            try:
                yield from readable_and_gaps(bookkeeper, password, part)
            except NoSuchLedgerError:
                gap = deleted_gap(LogRegistry(bookkeeper.metadata).get(lane), part)
                yield part if gap is None else gap

    return (part for part in joined(each()) if isinstance(part, Gap))
