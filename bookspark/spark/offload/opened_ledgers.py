"""The ledgers that a task reads: each is opened once, and read on from piece to piece.

Law: the entries of a piece come in order, each once. They are confirmed, because the piece is of a plan: so opening a ledger asks
no bookie for its last add confirmed (LAC), and sets no watch. What is read ahead is of pieces that the same task reads later. An
error comes with the piece whose entry it is of, never with one before it, and the ledger is opened anew after it.

Tasks that wrote side by side left their ranges in turns: those of one ledger continue one another, though other ledgers' rows lie
between. Read alone, each would cost a round trip. So a ledger is read in one go as far as the next LOOK_AHEAD pieces continue
it, and the entries that came too early wait here. All of them are of one partition, whose size is bounded
(``logs.rows.splits``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from bookspark.logs.rows.encodings import RowDecoder
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

LEDGERS_MAX = 64
"""How many ledgers are open at once; the one that was read longest ago is forgotten."""
LOOK_AHEAD = 1024
"""How many of the pieces that follow are looked at for those that continue one."""


class KeptHandles:
    """Handles that tasks of one process, which it runs one after the other, leave to those that follow: the tasks of
    micro-batches read the same ledgers. ZooKeeper is asked for a ledger once. A handle asks again when an entry is not where it
    was."""

    def __init__(self) -> None:
        self._handles: OrderedDict[int, ReadHandle] = OrderedDict()

    def get(self, ledger_id: int) -> ReadHandle | None:
        """The handle that was kept."""
        return self._handles.get(ledger_id)

    def keep(self, handle: ReadHandle) -> None:
        """Keep the handle, as one of the LEDGERS_MAX that were used last."""
        self._handles[handle.ledger_id] = handle
        self._handles.move_to_end(handle.ledger_id)
        if len(self._handles) > LEDGERS_MAX:
            self._handles.popitem(last=False)

    def forget(self, ledger_id: int) -> None:
        """Reading failed: whoever comes next opens the ledger anew, and learns whether it is still there."""
        self._handles.pop(ledger_id, None)


@lru_cache(maxsize=16)
def handles_of_process(pid: int, bookkeeper: BookKeeper, password: bytes) -> KeptHandles:
    """The handles that process ``pid``, the caller's, keeps of this client's ledgers with this password."""
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
        """The rows of ``piece`` with all columns that its entries have. ``following``: the pieces that will be asked for after
        it, in order.

        Raises NoSuchLedgerError, UnauthorizedAccessError (wrong password), NoSuchEntryError, MetadataStoreError, and ReadError
        if too few bookies answer.
        """
        try:
            opened = self._of(piece)
            for entries in opened.entries(piece, following):
                yield from opened.decoder.rows(entries, piece)
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
    """A ledger that is open, and the entries of it that came last."""

    def __init__(self, handle: ReadHandle, decoder: RowDecoder) -> None:
        self.decoder = decoder
        self._handle = handle
        self._coming: Iterator[pyarrow.RecordBatch] = iter(())
        self._last = -1
        """The last entry that comes."""
        self._held: pyarrow.RecordBatch | None = None
        self._first_held = self._after_held = 0

    def entries(self, piece: Piece, following: Iterable[Piece]) -> Iterator[pyarrow.RecordBatch]:
        """The entries of ``piece``."""
        at, last = piece.first_entry_id, piece.last_entry_id
        if not self._first_held <= at <= self._after_held or last > self._last:
            self._last = _end_of_run(piece, following)
            self._handle.confirm(self._last)
            self._coming = iter(self._handle.read_batches(at, self._last))
            self._held, self._first_held, self._after_held = None, at, at
        while at <= last:
            if at >= self._after_held:
                self._held = next(self._coming)
                self._first_held, self._after_held = self._after_held, self._after_held + self._held.num_rows
            assert self._held is not None, "entries that were taken are held"
            some = self._held.slice(at - self._first_held, last + 1 - at)
            at += some.num_rows
            yield some
        if last == self._last == self._after_held - 1 and piece.rows_each == 1:
            # Nothing of it is asked for again.
            self._held, self._first_held = None, self._after_held


def _end_of_run(piece: Piece, following: Iterable[Piece]) -> int:
    """The last entry of those pieces of the ledger that continue ``piece``, one after the other."""
    ledger_id, last = piece.ledger_id, piece.last_entry_id
    for other in islice(following, LOOK_AHEAD):
        if other.ledger_id == ledger_id:
            if other.first_entry_id - last not in (0, 1):
                break
            last = other.last_entry_id
    return last
