"""Recently read batches, for reads of single entries: the next entry is mostly in the same batch.

Law: the key is the place of a batch, whose bytes never change, and only entries that the index has at this place are served. One
bound, in bytes, holds for all connections of a bookie.

BookKeeper's clients read each entry by itself. Reading, checking and decompressing its batch each time cost 150 µs an entry of 1
KiB.
"""

from __future__ import annotations

from collections import OrderedDict

from bookspark.store.bookie.holdings.reads import Piece
from bookspark.store.wire.entry_batch import Buffer, Entry, EntryBatch

_BYTES_MAX = 8 << 20
_BATCH_BYTES_MAX = 2 << 20


class KeptBatches:
    """The kept batches of one bookie. Owned by the loop."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[int, EntryBatch] = OrderedDict()
        self._bytes = 0

    def entry(self, piece: Piece) -> Entry | None:
        """The first entry of a planned piece, None if its batch is not kept."""
        batch = self._batches.get(piece.where)
        if batch is None or not batch.first_entry_id <= piece.first <= batch.last_entry_id:
            return None
        self._batches.move_to_end(piece.where)
        entry = batch.entry(piece.first)
        # As after a read: the frame itself names its ledger.
        return entry if entry.ledger_id == piece.ledger_id else None

    def keep(self, piece: Piece, frame: Buffer) -> Entry:
        """The first entry of a piece with a read frame; keeps the frame if it has more entries."""
        batch = EntryBatch(frame)
        size = len(batch.frame)
        if batch.count > 1 and size <= _BATCH_BYTES_MAX and piece.frame is None:
            # A copy, because the read buffer is reused once no view of it is left.
            self._forget(piece.where)
            self._batches[piece.where] = EntryBatch(bytes(batch.frame))
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._forget(next(iter(self._batches)))
        return batch.entry(piece.first)

    def _forget(self, where: int) -> None:
        batch = self._batches.pop(where, None)
        if batch is not None:
            self._bytes -= len(batch.frame)
