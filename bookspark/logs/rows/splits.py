"""Division of rows into partitions of about equal size. Pure.

Law: the pieces of all partitions, in order, are exactly the rows of the given ranges, in order. No row is read twice or left out.
A row is an entry, or one of several rows in an entry; all entries of a range hold the same number of rows. The division depends
on the ranges only, so a repeated plan is the same plan.

Large reads are divided even if ``min_partitions`` is 1: otherwise one core would read a micro-batch that one task wrote. The
number of cores is unknown, so a planner aims at PARTITIONS_WANTED partitions, none so small that its task costs more than its
rows. Entries of many rows stay whole if there are enough of them: a cut entry is read twice.

A task opens a ledger once for each piece, so consecutive neighbours in a partition are merged. The merge comes last, because
before it all rows of a piece count as equally large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bookspark.protocol.logs.commits import EntryRange

PARTITION_BYTES_MIN, PARTITION_BYTES_MAX = 8 << 20, 32 << 20
"""Approximate bounds of a partition, in bytes of payload plus ENTRY_COST_BYTES for each entry; a large ``min_partitions`` makes
it smaller."""
PARTITIONS_WANTED = 32
ENTRY_COST_BYTES = 64
"""Cost of an entry beside its payload, as bytes of payload."""


class TimedRows(NamedTuple):
    """Rows that were committed together."""

    rows: int
    time_ms: int
    """Time of the commit, in ms since 1970. (A producer's rows have their own times.)"""


class Piece(NamedTuple):
    """Consecutive rows of a ledger."""

    ledger_id: int
    first_entry_id: int
    position: int
    """Position of the first row in the read, from 0; for a log, in its lane."""
    rows: int
    rows_each: int = 1
    skip: int = 0
    """Rows of the first entry before the piece."""
    lane: int = 0
    times: tuple[TimedRows, ...] = ()
    """Times of the rows' commits, in order; empty if not requested."""

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + (self.skip + self.rows - 1) // self.rows_each

    @property
    def entries(self) -> int:
        return self.last_entry_id - self.first_entry_id + 1

    def continues(self, other: Piece) -> bool:
        """Do its rows directly follow those of ``other``, in the ledger and in the read?"""
        return (self.lane, self.ledger_id, self.rows_each, self.position, self._row) == (
            other.lane,
            other.ledger_id,
            other.rows_each,
            other.position + other.rows,
            other._row + other.rows,
        )

    @property
    def _row(self) -> int:
        """Number of the first row in the ledger, if all entries held ``rows_each`` rows."""
        return self.first_entry_id * self.rows_each + self.skip

    def part(self, start: int, stop: int) -> Piece:
        """The rows in [``start``, ``stop``), counted from this piece's first row."""
        entries, skip = divmod(self.skip + start, self.rows_each)
        return self._replace(
            first_entry_id=self.first_entry_id + entries,
            position=self.position + start,
            rows=stop - start,
            skip=skip,
            times=_part_of(self.times, start, stop) if self.times else (),
        )


SizedPiece = tuple[Piece, int]


def positioned(
    ranges: Iterable[EntryRange],
    at: int = 0,
    start: int = 0,
    end: int | None = None,
    lane: int = 0,
    time_ms: int | None = None,
) -> Iterator[SizedPiece]:
    """The ranges of a lane as pieces, cut to the rows in [``start``, ``end``). The first range begins at row ``at``. ``time_ms``:
    time of their commit; None: not requested."""
    for item in ranges:
        low = max(at, start) - at
        high = item.rows if end is None else min(at + item.rows, end) - at
        if low < high:
            times = () if time_ms is None else (TimedRows(item.rows, time_ms),)
            whole = Piece(item.ledger_id, item.first_entry_id, at, item.rows, item.rows_each, lane=lane, times=times)
            part = whole if high - low == item.rows else whole.part(low, high)
            yield part, item.size * (high - low) // item.rows
        at += item.rows


def rows_within(sized: Iterable[SizedPiece], rows: int | None, size: int | None) -> int | None:
    """The position up to which the pieces have at most ``rows`` rows and ``size`` bytes, but at least one row. None: no limit.
    Returns None if all pieces are within the limits."""
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
    """Divide the pieces into at least ``min_partitions`` lists of about equal size; one row each if there
    are fewer rows than ``min_partitions``."""
    weighed = [(piece, size + ENTRY_COST_BYTES * piece.entries) for piece, size in sized]
    total = sum(weight for _, weight in weighed)
    wanted = min(max(total / PARTITIONS_WANTED, PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)
    target = total / max(min_partitions, math.ceil(total / wanted), 1)
    partitions: list[list[Piece]] = []
    room = 0.0
    for piece, weight in weighed:
        each = weight / piece.rows
        entry = each * piece.rows_each
        rest: Piece | None = piece
        while rest is not None:
            if room < entry / 2 or not partitions:
                partitions.append([])
                room += target
            taken, rest = _cut(rest, max(1, round(room / entry)) * rest.rows_each - rest.skip)
            partitions[-1].append(taken)
            room -= each * taken.rows
    return [fewest(partition) for partition in _at_least(partitions, min_partitions)]


def fewest(pieces: Iterable[Piece]) -> list[Piece]:
    result: list[Piece] = []
    rows = 0
    times: list[TimedRows] = []

    def end() -> None:
        if result and rows > result[-1].rows:
            result[-1] = result[-1]._replace(rows=rows, times=tuple(times))

    last: Piece | None = None
    for piece in pieces:
        if last is not None and piece.continues(last):
            rows += piece.rows
            times += piece.times
        else:
            end()
            result.append(piece)
            rows, times = piece.rows, list(piece.times)
        last = piece
    end()
    return result


def ends_of_runs(pieces: Sequence[Piece]) -> list[int]:
    """For each piece the last entry of the run of consecutive pieces of its ledger, ignoring other pieces in between."""
    ends: list[int] = []
    following: dict[int, tuple[int, int]] = {}
    for piece in reversed(pieces):
        first, end = following.get(piece.ledger_id, (-1, -1))
        end = end if first == piece.last_entry_id + 1 else piece.last_entry_id
        following[piece.ledger_id] = piece.first_entry_id, end
        ends.append(end)
    return ends[::-1]


def _part_of(times: Sequence[TimedRows], start: int, stop: int) -> tuple[TimedRows, ...]:
    parts = []
    for rows, time_ms in times:
        count = min(stop, rows) - max(start, 0)
        if count > 0:
            parts.append(TimedRows(count, time_ms))
        start, stop = start - rows, stop - rows
    return tuple(parts)


def _at_least(partitions: list[list[Piece]], minimum: int) -> list[list[Piece]]:
    """Halve the largest partitions until there are ``minimum`` partitions, or each has one row."""
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
