"""Columns of a batch as bytes: constructed, compared and shifted whole.

A Python step for each value would cost more than all other work on an entry of 100 bytes.

Law: numbers are little-endian, i32 or i64, as in Arrow. An addition to every value reads the column as one long integer with a
field for each value. It is correct only if no operand and no result is negative or exceeds its field; callers ensure that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct, pack
from typing import NamedTuple, TypeVar

Buffer = bytes | bytearray | memoryview
Column = TypeVar("Column")
Value = TypeVar("Value", bytes, memoryview)

_INT, _LONG = 4, 8
_KEPT_VALUES_MAX = 8192
"""Longer columns are not cached: a comparison costs as much as the construction."""
_COPIED_BYTES_MAX = 4096
"""Up to this size a copy of a value costs less than a view."""
_TOGETHER = 64


def _kept(make: Callable[[int, int], Column]) -> Callable[[int, int], Column]:
    """``make(count, …)`` with a cache of its last results: neighbouring batches are often of one size."""
    kept = lru_cache(maxsize=64)(make)
    return lambda count, number: kept(count, number) if count <= _KEPT_VALUES_MAX else make(count, number)


@_kept
def _ones(count: int, width: int) -> int:
    """1 in each of ``count`` fields of ``width`` bytes."""
    return int.from_bytes((b"\1" + bytes(width - 1)) * count, "little")


@_kept
def _ramp(count: int, width: int) -> int:
    """0, 1, 2 … in ``count`` fields of ``width`` bytes."""
    return int.from_bytes(pack(f"<{count}{'i' if width == _INT else 'q'}", *range(count)), "little")


def repeated(number: int, count: int) -> bytes:
    """i64 × count: ``number`` each time."""
    return number.to_bytes(_LONG, "little", signed=True) * count


def consecutive(first: int, count: int) -> bytes:
    """i64 × count: ``first``, ``first`` + 1 and so on; ``first`` is not negative."""
    return (_ramp(count, _LONG) + first * _ones(count, _LONG)).to_bytes(_LONG * count, "little")


def offsets_of(sizes: Iterable[int]) -> bytes:
    """Arrow's offsets column, i32 × (n+1) from 0, of values of these sizes in bytes."""
    offsets = tuple(accumulate(sizes, initial=0))
    return pack(f"<{len(offsets)}i", *offsets)


@_kept
def equal_offsets(count: int, size: int) -> bytes:
    """Arrow's offsets column, i32 × (n+1) from 0, of ``count`` values of ``size`` bytes each: digests, and often payloads."""
    return (_ramp(count + 1, _INT) * size).to_bytes(_INT * (count + 1), "little")


def from_zero(offsets: memoryview) -> bytes:
    """Consecutive offsets (a view of i32, ascending), shifted so that the first is 0."""
    start: int = offsets[0]
    if start == 0:
        return offsets.tobytes()
    moved = int.from_bytes(offsets.cast("B"), "little") - start * _ones(len(offsets), _INT)
    return moved.to_bytes(_INT * len(offsets), "little")


def spread(offsets: bytes, size: int) -> bytes:
    """The offsets (i32 × (n+1), from 0) after each value grew by ``size`` bytes."""
    count = len(offsets) // _INT
    return (int.from_bytes(offsets, "little") + size * _ramp(count, _INT)).to_bytes(_INT * count, "little")


def ends_after(start: int, offsets: bytes) -> bytes:
    """i64 × n: ``start`` plus the end of each value, from n+1 ``offsets`` that begin with 0."""
    count = len(offsets) // _INT - 1
    wide = bytearray(_LONG * count)
    memoryview(wide).cast("i")[::2] = memoryview(offsets).cast("i")[1:]
    return (int.from_bytes(wide, "little") + start * _ones(count, _LONG)).to_bytes(_LONG * count, "little")


def ascends(offsets: memoryview, total: int) -> bool:
    """True if the offsets (a view of i32), whose last is ``total``, ascend from 0."""
    if size_of_each(offsets, total) is not None:
        return True
    numbers = offsets.tolist()
    # Sorting sorted numbers takes one pass.
    return numbers[0] == 0 and numbers == sorted(numbers)


def values(offsets: memoryview, data: Value) -> Iterator[bytes] | Iterator[Value]:
    """The values of a binary column: ``data`` split at ``offsets`` (a view of i32 from 0). Slices of ``data`` (views of a
    view), or copies where a copy costs less."""
    size = size_of_each(offsets, len(data))
    if size is None or not 0 < size <= _COPIED_BYTES_MAX:
        return map(data.__getitem__, map(slice, offsets, offsets[1:]))
    return _divided(memoryview(data), size)


def rows(columns: Sequence[Buffer], size: int | None = None) -> Iterator[bytes]:
    """The rows of columns of i64 × n: the first value of each column, joined, then the second of each, and so on. ``size``:
    bytes kept of each row, which end within or at the end of its last number; None: all."""
    packed = bytearray(len(columns) * len(columns[0]))
    numbers = memoryview(packed).cast("q")
    for index, column in enumerate(columns):
        numbers[index :: len(columns)] = memoryview(column).cast("q")
    return _divided(memoryview(packed), _LONG * len(columns), size)


class Heads(NamedTuple):
    """Heads of values: the first ``size`` bytes of a row of ``columns`` (i64 × n each), kept apart from the values, because a
    joined object costs more than a stamp and a copy of the value."""

    columns: tuple[bytes, ...]
    size: int

    def each(self) -> Iterator[bytes]:
        return rows(self.columns, self.size)

    def part(self, first: int, end: int) -> Heads:
        """The heads from index ``first`` to before index ``end``."""
        return Heads(tuple(column[_LONG * first : _LONG * end] for column in self.columns), self.size)


def joined(heads: Sequence[Heads]) -> Heads:
    """Heads of several runs of values, of one size, concatenated."""
    return Heads(tuple(map(b"".join, zip(*(one.columns for one in heads), strict=True))), heads[0].size)


def _divided(data: memoryview, size: int, taken: int | None = None) -> Iterator[bytes]:
    """``data`` in pieces of ``size`` bytes, many for each call. ``taken``: bytes kept of each piece; None: all."""
    rest, taken = len(data) % (_TOGETHER * size), size if taken is None else taken
    together = _divider(size, taken, _TOGETHER).iter_unpack(data[: len(data) - rest])
    last = _divider(size, taken, rest // size).unpack(data[len(data) - rest :])
    return chain(chain.from_iterable(together), last)


def size_of_each(offsets: memoryview, total: int) -> int | None:
    """The common size of all values in bytes; None if sizes differ."""
    count = len(offsets) - 1
    if total % count or offsets.tobytes() != equal_offsets(count, total // count):
        return None
    return total // count


@lru_cache(maxsize=256)
def _divider(size: int, taken: int, count: int) -> Struct:
    return Struct(f"{taken}s{size - taken}x" * count)
