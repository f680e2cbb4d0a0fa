"""Reads small pieces of several ledgers together: each ledger in one go, then all rows put in their order.

Law: the rows are those of the pieces, in their order. If an entry of a group is missing, the group delivers no row, and its
pieces are read one by one; the error then comes with its piece.

Tasks that write side by side leave a range of each in every commit: thousands of pieces of a few rows, which alone would cost
twenty times as much as their rows. The length of earlier rows sets the number of rows in a group, about GROUP_BYTES. A group that
reaches GROUP_BYTES_MAX is given up, and its pieces are read one by one.

Pieces may leave entries out (option ``where``), and entries may differ in their numbers of rows. So whole entries are decoded
together, and the rows of each piece are taken from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError
from bookspark.logs.feeds.gaps import NOT_READ
from bookspark.logs.rows.encodings import ID_COLUMNS
from bookspark.logs.rows.splits import Piece
from bookspark.spark.offload.offloaded import columns_of
from bookspark.spark.offload.opened_ledgers import LEDGERS_MAX, OpenedLedgers

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql.types import StructType

GROUP_BYTES, GROUP_ROWS_MAX = 1 << 20, 8192
"""Approximate bytes of a group, and its most rows."""
GROUP_BYTES_MAX = 16 << 20
"""A group with more bytes is not read together."""
FIRST_ROWS = 256
"""Rows of the first group, while their length is unknown."""
_PIECES_MAX = 1024


class SmallPieces:
    """Reads the pieces of one task, some of them small."""

    def __init__(self, ledgers: OpenedLedgers, schema: StructType, others: Sequence[str]) -> None:
        """``schema``, ``others``: as for ``offloaded.rows_of``."""
        self._ledgers, self._schema, self._others = ledgers, schema, others
        self._rows_max = FIRST_ROWS
        self._alone = 0
        """Remaining pieces of a group that could not be read together."""

    def read(self, pieces: deque[Piece]) -> pyarrow.RecordBatch | None:
        """The rows of some of the first pieces, which are taken from ``pieces``; None: read the first by itself. Raises
        UnauthorizedAccessError and MetadataStoreError."""
        if self._alone:
            self._alone -= 1
            return None
        count = _count(pieces, self._rows_max)
        if count < 2:
            return None
        group = list(islice(pieces, count))
        try:
            rows = self._together(group, list(islice(pieces, count, count + _PIECES_MAX)))
        except (NoSuchLedgerError, *NOT_READ):
            rows = None
        if rows is None:
            self._alone, self._rows_max = count - 1, max(1, min(self._rows_max // 2, FIRST_ROWS))
            return None
        for _ in group:
            pieces.popleft()
        self._rows_max = max(1, min(GROUP_ROWS_MAX, GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)))
        return rows

    def _together(self, group: Sequence[Piece], following: Iterable[Piece]) -> pyarrow.RecordBatch | None:
        """The rows of ``group``; None if its ledgers differ in columns, or it is too long."""
        import numpy
        import pyarrow

        places: dict[int, _Place] = {}
        for piece in group:
            places.setdefault(piece.ledger_id, _Place()).add(piece)
        batches: list[pyarrow.RecordBatch] = []
        byte_length = 0
        before, rows_before = dict[int, int](), 0
        for ledger_id, place in places.items():
            before[ledger_id] = rows_before
            for batch in self._ledgers.whole(place.spans, place.counts, following):
                if batch is None:
                    return None
                batches.append(batch.select(columns_of(batch, self._schema, self._others)))
                byte_length += batch.nbytes
                if byte_length > GROUP_BYTES_MAX:
                    return None
            rows_before += place.rows
        if any(batch.schema != batches[0].schema for batch in batches):
            return None
        rows = pyarrow.concat_batches(batches)
        counts = numpy.array([piece.rows for piece in group], numpy.int64)
        starts = numpy.array([before[piece.ledger_id] + places[piece.ledger_id].starts.popleft() for piece in group])
        if len(places) > 1 or rows.num_rows != int(counts.sum()):
            rows = rows.take(pyarrow.array(_spread(starts, counts)))
        position = rows.schema.get_field_index(ID_COLUMNS[0])
        if position >= 0:
            own = _spread(numpy.array([piece.position for piece in group], numpy.int64), counts)
            columns = [*rows.columns[:position], pyarrow.array(own), *rows.columns[position + 1 :]]
            rows = pyarrow.RecordBatch.from_arrays(columns, schema=rows.schema)
        return rows


class _Place:
    """Positions of one ledger's pieces among all rows of their entries."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.rows = 0
        self.starts: deque[int] = deque()
        """The first row of each piece."""
        self._ledger_id = 0
        self._spans: list[list[int]] = []
        """The first and last entry of each consecutive run."""

    def add(self, piece: Piece) -> None:
        """Add a piece that is behind all others; it may begin in the entry in which the last one ends."""
        first, last, each = piece.first_entry_id, piece.last_entry_id, piece.rows_each
        end = self._spans[-1][1] if self._spans else -2
        begun = first == end
        self.starts.append(self.rows - (each if begun else 0) + piece.skip)
        more = last + 1 - first - begun
        self.counts += [each] * more
        self.rows += more * each
        if first > end + 1:
            self._ledger_id = piece.ledger_id
            self._spans.append([first, last])
        else:
            self._spans[-1][1] = last

    @property
    def spans(self) -> list[Piece]:
        """The entries as pieces, one for each consecutive run."""
        return [Piece(self._ledger_id, first, 0, last + 1 - first) for first, last in self._spans]


def _spread(starts: numpy.ndarray, counts: numpy.ndarray) -> numpy.ndarray:
    """For each of ``starts``, that number and its successors, as many as ``counts`` says."""
    import numpy

    ends = numpy.cumsum(counts)
    found: numpy.ndarray = numpy.arange(ends[-1], dtype=numpy.int64) + numpy.repeat(starts - (ends - counts), counts)
    return found


def _count(pieces: deque[Piece], rows_max: int) -> int:
    """Number of first pieces that can be read together: of one lane, those of each ledger in order."""
    last_of: dict[int, Piece] = {}
    rows = count = 0
    for piece in islice(pieces, _PIECES_MAX):
        rows += piece.rows
        last = last_of.get(piece.ledger_id)
        if rows > rows_max or piece.lane != pieces[0].lane or (last is not None and not _is_behind(piece, last)):
            break
        if last is None and len(last_of) == LEDGERS_MAX:
            break
        last_of[piece.ledger_id] = piece
        count += 1
    return count


def _is_behind(piece: Piece, other: Piece) -> bool:
    """Whether its rows come after those of ``other`` in the ledger. Pieces that share an entry must agree on its number of
    rows."""
    if piece.first_entry_id != other.last_entry_id:
        return piece.first_entry_id > other.last_entry_id
    end = (other.skip + other.rows - 1) % other.rows_each + 1
    return piece.rows_each == other.rows_each and piece.skip >= end
