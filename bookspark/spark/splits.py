"""Splitting what is to be read into partitions of about equal size. Pure.

Law: the pieces of all partitions, in order, are exactly the ranges given, in order; nothing is read twice or left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bookspark.protocol.log_record import EntryRange

PARTITION_BYTES_MAX = 32 << 20
ENTRY_COST_BYTES = 64
"""What an entry costs over its payload: many small ones are as much work as few large ones."""


class Piece(NamedTuple):
    """Entries ``first..last`` of a ledger; the first one is row ``position`` of what is read."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    position: int


SizedPiece = tuple[Piece, int]
"""With its bytes of payload."""


def positioned(
    ranges: Iterable[EntryRange], at: int = 0, start: int = 0, end: int | None = None
) -> Iterator[SizedPiece]:
    """Each range, cut to the rows ``start`` to before ``end``. The first one begins at row ``at``; a row is an entry."""
    for item in ranges:
        count = item.last_entry_id - item.first_entry_id + 1
        low = max(at, start) - at
        high = (count if end is None else min(at + count, end) - at) - 1
        if low <= high:
            size = item.size * (high - low + 1) // count
            yield Piece(item.ledger_id, item.first_entry_id + low, item.first_entry_id + high, at + low), size
        at += count


def rows_within(sized: Iterable[SizedPiece], rows: int | None, size: int | None) -> int | None:
    """The position up to which pieces have at most ``rows`` rows and ``size`` bytes, one row at least; None: all of them."""
    least = 1
    for piece, weight in sized:
        count = taken = _count(piece)
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
    """At least ``min_partitions`` lists of pieces (if there are as many entries), none much over PARTITION_BYTES_MAX."""
    weighed = [(piece, size + ENTRY_COST_BYTES * _count(piece)) for piece, size in sized]
    total = sum(weight for _, weight in weighed)
    target = min(PARTITION_BYTES_MAX, total / min_partitions)
    partitions: list[list[Piece]] = []
    room = 0.0
    for piece, weight in weighed:
        each = weight / _count(piece)
        rest: Piece | None = piece
        while rest is not None:
            if room < each / 2 or not partitions:
                partitions.append([])
                room += target
            taken, rest = _cut(rest, max(1, round(room / each)))
            partitions[-1].append(taken)
            room -= each * _count(taken)
    return _at_least(partitions, min_partitions)


def _at_least(partitions: list[list[Piece]], minimum: int) -> list[list[Piece]]:
    """Halve the largest partitions until there are ``minimum``, or each is one entry."""
    while 0 < len(partitions) < minimum:
        index = max(range(len(partitions)), key=lambda i: sum(map(_count, partitions[i])))
        entries = sum(map(_count, partitions[index]))
        if entries == 1:
            break
        left, right = _halves(partitions[index], entries // 2)
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
        count -= _count(taken)
        if rest is not None:
            right.append(rest)
    return left, right


def _cut(piece: Piece, count: int) -> tuple[Piece, Piece | None]:
    if count >= _count(piece):
        return piece, None
    middle = piece.first_entry_id + count
    return piece._replace(last_entry_id=middle - 1), piece._replace(
        first_entry_id=middle, position=piece.position + count
    )


def _count(piece: Piece) -> int:
    return piece.last_entry_id - piece.first_entry_id + 1
