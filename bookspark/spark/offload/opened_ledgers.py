"""The ledgers that a task reads: each is opened once, and read on from piece to piece.

Law: the entries of a piece come in order, each once. They are confirmed, because the piece is of a plan: so opening a ledger asks
no bookie for its last add confirmed (LAC), and sets no watch. Entries read ahead are of later pieces of the same task. An error
comes with the piece of its entry, never with an earlier piece, and the ledger is then opened anew.

Tasks that wrote side by side left their ranges in turns, so ranges of one ledger continue one another between rows of other
ledgers. Read alone, each would cost a round trip. So a ledger is read in one go as far as the next LOOK_AHEAD pieces continue it,
and early entries wait here; the size of the task's partition bounds them (``logs.rows.splits``).

With option ``where``, pieces leave entries out. To read and drop a gap is quicker than a round trip, up to GAP_BYTES, estimated
from the mean length of the ledger's entries. If the entries turn out longer, or one of them is unreadable, the ledger is read
anew from the wanted entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchEntryError, ReadError
from bookspark.logs.rows.encodings import RowDecoder
from bookspark.logs.rows.splits import ENTRY_COST_BYTES, Piece
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

if TYPE_CHECKING:
    import pyarrow

    from bookspark.store.client import BookKeeper
    from bookspark.store.client.reading.read_handle import ReadHandle

LEDGERS_MAX = 64
"""Open ledgers at most; the least recently used is dropped."""
LOOK_AHEAD = 1024
"""Number of following pieces that are searched for continuations."""
GAP_BYTES = 64 << 10
"""Gaps of about this many bytes between two pieces are read and dropped."""
GAP_BYTES_MAX = 1 << 20
"""After this many dropped bytes before a piece, the rest of the gap is skipped."""


class KeptHandles:
    """Handles that a process keeps from task to task, as tasks of micro-batches read the same ledgers: a request to ZooKeeper for
    each ledger. A handle reads the metadata again when an entry is not in its place."""

    def __init__(self) -> None:
        self._handles: OrderedDict[int, ReadHandle] = OrderedDict()

    def get(self, ledger_id: int) -> ReadHandle | None:
        return self._handles.get(ledger_id)

    def keep(self, handle: ReadHandle) -> None:
        """Keep the handle, as one of the LEDGERS_MAX last used."""
        self._handles[handle.ledger_id] = handle
        self._handles.move_to_end(handle.ledger_id)
        if len(self._handles) > LEDGERS_MAX:
            self._handles.popitem(last=False)

    def forget(self, ledger_id: int) -> None:
        """Drop the handle after a failed read: the next reader opens the ledger anew, and sees whether it still exists."""
        self._handles.pop(ledger_id, None)


@lru_cache(maxsize=16)
def handles_of_process(pid: int, bookkeeper: BookKeeper, password: bytes) -> KeptHandles:
    """Handles of process ``pid``, the caller's, for this client's ledgers with this password."""
    return KeptHandles()


class OpenedLedgers:
    """The ledgers of one task. ``decoder_of`` gives the decoder of a ledger's entries; ``kept`` has handles of earlier tasks."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        password: bytes,
        decoder_of: Callable[[LedgerMetadata], RowDecoder],
        kept: KeptHandles | None = None,
    ) -> None:
        self.bookkeeper = bookkeeper
        self._password, self._decoder_of, self._kept = password, decoder_of, kept or KeptHandles()
        self._opened: OrderedDict[int, _Opened] = OrderedDict()

    def rows(self, piece: Piece, following: Iterable[Piece] = ()) -> Iterator[pyarrow.RecordBatch]:
        """The rows of ``piece`` with all columns that its entries have. ``following``: the pieces to be read after it, in order.

        Raises NoSuchLedgerError, UnauthorizedAccessError (wrong password), NoSuchEntryError, MetadataStoreError, and ReadError if
        too few bookies answer.
        """
        with self._reading(piece) as opened:
            for entries in opened.entries(piece, following):
                yield from opened.decoder.rows(entries, piece)

    def whole(
        self, spans: Sequence[Piece], counts: Sequence[int], following: Iterable[Piece] = ()
    ) -> Iterator[pyarrow.RecordBatch | None]:
        """All rows of the entries of ``spans``, which are pieces of one ledger, in order, no entry in two of them. ``counts``:
        number of rows of each entry. Positions have no meaning. None: some entry has another number, and the iterator ends.
        Raises NoSuchLedgerError, UnauthorizedAccessError, NoSuchEntryError, MetadataStoreError, ReadError."""
        at = 0
        with self._reading(spans[0]) as opened:
            for entries in gathered(opened.entries_of(spans, following)):
                rows = opened.decoder.whole(entries, counts[at : at + entries.num_rows])
                yield rows
                if rows is None:
                    return
                at += entries.num_rows

    @contextmanager
    def _reading(self, piece: Piece) -> Iterator[_Opened]:
        """The ledger of ``piece``. After a failed read it is opened anew."""
        try:
            yield self._of(piece)
        except BaseException:
            self._opened.pop(piece.ledger_id, None)
            self._kept.forget(piece.ledger_id)
            raise

    def _of(self, piece: Piece) -> _Opened:
        opened = self._opened.get(piece.ledger_id)
        if opened is None:
            handle = self._kept.get(piece.ledger_id) or self.bookkeeper.open_ledger_no_recovery(
                piece.ledger_id, password=self._password, confirmed=piece.last_entry_id
            )
            self._kept.keep(handle)
            opened = self._opened[piece.ledger_id] = _Opened(handle, self._decoder_of(handle.metadata))
            if len(self._opened) > LEDGERS_MAX:
                self._opened.popitem(last=False)
        self._opened.move_to_end(piece.ledger_id)
        return opened


class _Opened:
    def __init__(self, handle: ReadHandle, decoder: RowDecoder) -> None:
        self.decoder = decoder
        self._handle = handle
        self._coming: Iterator[pyarrow.RecordBatch] = iter(())
        self._last = -1
        self._held: pyarrow.RecordBatch | None = None
        self._first_held = self._after_held = 0
        self._gap_max = 0
        """Entries between two pieces that are read and dropped at most; 0 while their length is unknown."""
        self._drops = True
        metadata = handle.metadata
        if metadata.closed and metadata.last_entry_id >= 0:
            self._learn(handle.length, metadata.last_entry_id + 1)

    def entries_of(self, spans: Sequence[Piece], following: Iterable[Piece]) -> Iterator[pyarrow.RecordBatch]:
        for number, span in enumerate(spans):
            yield from self.entries(span, chain(islice(spans, number + 1, None), following))

    def entries(self, piece: Piece, following: Iterable[Piece]) -> Iterator[pyarrow.RecordBatch]:
        at, last = piece.first_entry_id, piece.last_entry_id
        if last > self._last or not self._first_held <= at or not self._dropped_before(at):
            self._begin(at, _end_of_run(piece, following, self._gap_max))
        while at <= last:
            if at >= self._after_held:
                self._take()
            assert self._held is not None, "entries that were taken are held"
            some = self._held.slice(at - self._first_held, last + 1 - at)
            at += some.num_rows
            yield some
        if last == self._last == self._after_held - 1 and piece.rows_each == 1:
            # No later piece needs these entries.
            self._held, self._first_held = None, self._after_held

    def _begin(self, first: int, last: int) -> None:
        self._last = last
        self._handle.confirm(last)
        self._coming = iter(self._handle.read_batches(first, last))
        self._held, self._first_held, self._after_held = None, first, first

    def _take(self) -> None:
        """Hold the next entries, and no others."""
        held = self._held = next(self._coming)
        self._first_held, self._after_held = self._after_held, self._after_held + held.num_rows
        # An entry records the length of the ledger up to and with itself.
        self._learn(held.column("length")[-1].as_py(), self._after_held)

    def _learn(self, length: int, entries: int) -> None:
        """Note the bytes of the first ``entries`` of the ledger."""
        self._gap_max = GAP_BYTES * entries // (length + ENTRY_COST_BYTES * entries) if self._drops else 0

    def _dropped_before(self, at: int) -> bool:
        """Read on to entry ``at``, and drop the entries before it. False if they are too many or unreadable: then the caller must
        read from ``at`` on."""
        dropped = 0
        try:
            while at > self._after_held and dropped <= GAP_BYTES_MAX:
                self._take()
                assert self._held is not None
                dropped += self._held.nbytes
        except (NoSuchEntryError, ReadError):
            # The unreadable entry is unwanted, or its own piece will report it. The failure takes long, so this is tried once.
            self._drops, self._gap_max = False, 0
            return False
        return at <= self._after_held


def _end_of_run(piece: Piece, following: Iterable[Piece], gap_max: int) -> int:
    """The last entry of the consecutive pieces of the ledger that continue ``piece``, with at most ``gap_max`` entries between
    two of them."""
    ledger_id, last = piece.ledger_id, piece.last_entry_id
    for other in islice(following, LOOK_AHEAD):
        if other.ledger_id == ledger_id:
            if not 0 <= other.first_entry_id - last <= 1 + gap_max:
                break
            last = other.last_entry_id
    return last


# -- Small record batches joined, before their entries are decoded and before Spark gets their rows
#
# Law: the same rows in the same order. A large batch passes as it is; small batches are joined to about the size of a large
# batch. Each batch costs a decoder, and Spark, about as much as a thousand small rows, and a log of small micro-batches has a
# batch for each.


LARGE_ROWS, LARGE_BYTES = 8192, 256 << 10


def gathered(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The rows of ``batches``, which have the same columns."""
    small: list[pyarrow.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        more = batch.nbytes
        if small and (rows + batch.num_rows > LARGE_ROWS or size + more > LARGE_BYTES):
            yield _one(small)
            small, rows, size = [], 0, 0
        if batch.num_rows >= LARGE_ROWS or more >= LARGE_BYTES:
            yield batch
            continue
        small.append(batch)
        rows, size = rows + batch.num_rows, size + more
    if small:
        yield _one(small)


def _one(batches: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    import pyarrow

    return batches[0] if len(batches) == 1 else pyarrow.concat_batches(batches)
