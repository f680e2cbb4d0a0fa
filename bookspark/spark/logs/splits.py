"""Splitting what is to be read into partitions of about equal size. Pure.

Law: the pieces of all partitions, in order, are exactly the rows of the ranges given, in order; no row is read twice or left
out. A row is an entry, or one of the rows that an entry holds: then all entries of a range hold the same number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bookspark.protocol.logs.commits import EntryRange

PARTITION_BYTES_MAX = 32 << 20
ENTRY_COST_BYTES = 64
"""What an entry costs over its payload: many small ones are as much work as few large ones."""


class Piece(NamedTuple):
    """``rows`` rows of a ledger, from entry ``first_entry_id`` on; the first one is row ``position`` of what is read.

    Each entry holds ``rows_each`` rows; the first ``skip`` rows of the first entry are not part of the piece.
    """

    ledger_id: int
    first_entry_id: int
    position: int
    rows: int
    rows_each: int = 1
    skip: int = 0

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + (self.skip + self.rows - 1) // self.rows_each

    @property
    def entries(self) -> int:
        return self.last_entry_id - self.first_entry_id + 1

    def part(self, start: int, stop: int) -> Piece:
        """The rows ``start`` to before ``stop``, counted from this piece's first one."""
        entries, skip = divmod(self.skip + start, self.rows_each)
        return self._replace(
            first_entry_id=self.first_entry_id + entries, position=self.position + start, rows=stop - start, skip=skip
        )


SizedPiece = tuple[Piece, int]
"""With its bytes of payload."""


def positioned(
    ranges: Iterable[EntryRange], at: int = 0, start: int = 0, end: int | None = None
) -> Iterator[SizedPiece]:
    """Each range, cut to the rows ``start`` to before ``end``. The first one begins at row ``at``."""
    for item in ranges:
        low = max(at, start) - at
        high = item.rows if end is None else min(at + item.rows, end) - at
        if low < high:
            whole = Piece(item.ledger_id, item.first_entry_id, at, item.rows, item.rows_each)
            yield whole.part(low, high), item.size * (high - low) // item.rows
        at += item.rows


def rows_within(sized: Iterable[SizedPiece], rows: int | None, size: int | None) -> int | None:
    """The position up to which pieces have at most ``rows`` rows and ``size`` bytes, one row at least; None: all of them."""
    least = 1
    for piece, weight in sized:
        count = taken = piece.rows
        if rows is not None:
            taken = min(taken, rows)
            rows -= taken
        if size is not None:
            taken = min(taken, max(size, 0) * count // max(weight, 1))
            size -= weight
        taken = max(taken, least)
        if taken < count:
            return piece.position + taken
        least = 0
    return None


def split(sized: Iterable[SizedPiece], min_partitions: int) -> list[list[Piece]]:
    """At least ``min_partitions`` lists of pieces (if there are as many rows), none much over PARTITION_BYTES_MAX."""
    weighed = [(piece, size + ENTRY_COST_BYTES * piece.entries) for piece, size in sized]
    total = sum(weight for _, weight in weighed)
    target = min(PARTITION_BYTES_MAX, total / min_partitions)
    partitions: list[list[Piece]] = []
    room = 0.0
    for piece, weight in weighed:
        each = weight / piece.rows
        rest: Piece | None = piece
        while rest is not None:
            if room < each / 2 or not partitions:
                partitions.append([])
                room += target
            taken, rest = _cut(rest, max(1, round(room / each)))
            partitions[-1].append(taken)
            room -= each * taken.rows
    return _at_least(partitions, min_partitions)


def _at_least(partitions: list[list[Piece]], minimum: int) -> list[list[Piece]]:
    """Halve the largest partitions until there are ``minimum``, or each is one row."""
    while 0 < len(partitions) < minimum:
        index = max(range(len(partitions)), key=lambda i: _rows(partitions[i]))
        rows = _rows(partitions[index])
        if rows == 1:
            break
        left, right = _halves(partitions[index], rows // 2)
        partitions[index : index + 1] = [left, right]
    return partitions


def _halves(pieces: Sequence[Piece], count: int) -> tuple[list[Piece], list[Piece]]:
    left: list[Piece] = []
    right: list[Piece] = []
    for piece in pieces:
        if count == 0:
            right.append(piece)
            continue
        taken, rest = _cut(piece, count)
        left.append(taken)
        count -= taken.rows
        if rest is not None:
            right.append(rest)
    return left, right


def _cut(piece: Piece, count: int) -> tuple[Piece, Piece | None]:
    if count >= piece.rows:
        return piece, None
    return piece.part(0, count), piece.part(count, piece.rows)


def _rows(pieces: Sequence[Piece]) -> int:
    return sum(piece.rows for piece in pieces)
