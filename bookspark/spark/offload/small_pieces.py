"""Small pieces of several ledgers, read together: each ledger in one go, then all rows put in their order.

Law: the rows are those of the pieces, in their order. What can't be read together is read piece by piece: if anything is missing,
nothing of the group was delivered, and the error comes with the piece that it is of.

Tasks that write side by side leave a range of each in every commit, so a log of small micro-batches has thousands of pieces of a
few rows. To carry each by itself through the steps of a read costs twenty times what its rows cost. How many rows are taken
together follows from how long those before them were, so a group has about GROUP_BYTES. Where rows get longer it may be far more,
so a group that has GROUP_BYTES_MAX is given up, and its pieces are read one by one.
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
from bookspark.spark.offload.offloaded import rows_in_ledger
from bookspark.spark.offload.opened_ledgers import LEDGERS_MAX, OpenedLedgers

if TYPE_CHECKING:
    import numpy
    import pyarrow
    from pyspark.sql.types import StructType

GROUP_BYTES, GROUP_ROWS_MAX = 1 << 20, 8192
"""About the most bytes of a group, and the most rows."""
GROUP_BYTES_MAX = 16 << 20
"""A group with more bytes is not read together."""
FIRST_ROWS = 256
"""The rows of the first group, when nobody knows how long they are."""
_PIECES_MAX = 1024


class SmallPieces:
    """Reads the pieces of one task, of which some may be small."""

    def __init__(self, ledgers: OpenedLedgers, schema: StructType, others: Sequence[str]) -> None:
        """``schema``, ``others``: as for ``offloaded.rows_of``."""
        self._ledgers, self._schema, self._others = ledgers, schema, others
        self._rows_max = FIRST_ROWS
        self._alone = 0
        """How many pieces are left of a group that could not be read together."""

    def read(self, pieces: deque[Piece]) -> pyarrow.RecordBatch | None:
        """The rows of some of the first pieces, which are taken from ``pieces``; None: read the first one by itself. Raises
        UnauthorizedAccessError and MetadataStoreError."""
        if self._alone:
            self._alone -= 1
            return None
        count = _count(pieces, self._rows_max)
        if count < 2:
            return None
        group = list(islice(pieces, count))
        try:
            found = self._together(group, list(islice(pieces, count, count + _PIECES_MAX)))
        except (NoSuchLedgerError, *NOT_READ):
            found = None
        if found is None:
            self._alone, self._rows_max = count - 1, max(1, min(self._rows_max // 2, FIRST_ROWS))
            return None
        for _ in group:
            pieces.popleft()
        self._rows_max = max(1, min(GROUP_ROWS_MAX, GROUP_BYTES * found.num_rows // max(found.nbytes, 1)))
        return found

    def _together(self, group: Sequence[Piece], following: Iterable[Piece]) -> pyarrow.RecordBatch | None:
        """The rows of ``group``; None if its ledgers do not have the same columns, or it is too long."""
        import numpy
        import pyarrow

        firsts, of_ledger = dict[int, Piece](), dict[int, int]()
        for piece in group:
            firsts.setdefault(piece.ledger_id, piece)
            of_ledger[piece.ledger_id] = of_ledger.get(piece.ledger_id, 0) + piece.rows
        batches: list[pyarrow.RecordBatch] = []
        byte_length = 0
        at, before = 0, dict[int, int]()
        for ledger_id, first in firsts.items():
            # Positions are those of the group, so they are made below.
            whole = first._replace(position=0, rows=of_ledger[ledger_id], times=())
            before[ledger_id] = at
            for batch in rows_in_ledger(self._ledgers, whole, self._schema, self._others, following):
                batches.append(batch)
                byte_length += batch.nbytes
                if byte_length > GROUP_BYTES_MAX:
                    return None
            at += whole.rows
        if any(batch.schema != batches[0].schema for batch in batches):
            return None
        rows = pyarrow.concat_batches(batches)
        counts = numpy.array([piece.rows for piece in group], numpy.int64)
        starts = numpy.zeros(len(group), numpy.int64)
        for number, piece in enumerate(group):
            starts[number] = before[piece.ledger_id]
            before[piece.ledger_id] += piece.rows
        if rows.num_rows != at:
            return None
        if len(firsts) > 1:
            rows = rows.take(pyarrow.array(_spread(starts, counts)))
        position = rows.schema.get_field_index(ID_COLUMNS[0])
        if position >= 0:
            own = _spread(numpy.array([piece.position for piece in group], numpy.int64), counts)
            columns = [*rows.columns[:position], pyarrow.array(own), *rows.columns[position + 1 :]]
            rows = pyarrow.RecordBatch.from_arrays(columns, schema=rows.schema)
        return rows


def _spread(starts: numpy.ndarray, counts: numpy.ndarray) -> numpy.ndarray:
    """For each of ``starts`` that number and those after it, as many as ``counts`` says."""
    import numpy

    ends = numpy.cumsum(counts)
    found: numpy.ndarray = numpy.arange(ends[-1], dtype=numpy.int64) + numpy.repeat(starts - (ends - counts), counts)
    return found


def _count(pieces: deque[Piece], rows_max: int) -> int:
    """How many of the first pieces can be read together: of one lane, those of each ledger one after the other."""
    after: dict[int, tuple[int, int]] = {}
    rows = count = 0
    for piece in islice(pieces, _PIECES_MAX):
        rows += piece.rows
        each = piece.rows_each
        first = piece.first_entry_id * each + piece.skip
        known = after.get(piece.ledger_id)
        if rows > rows_max or piece.lane != pieces[0].lane or (known is not None and known != (each, first)):
            break
        if known is None and len(after) == LEDGERS_MAX:
            break
        after[piece.ledger_id] = each, first + piece.rows
        count += 1
    return count
