"""Payloads on their way into a frame: lists of bytes and Arrow arrays as runs of the same shape.

Law: a run fits a frame and its entries get consecutive ids; an Arrow array's values are not copied into Python objects,
and values that come with heads are copied only into the frame.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import concat, sub
from typing import TYPE_CHECKING, Any

from bookspark.errors import EntryTooLargeError
from bookspark.store.wire.columns import Buffer, Heads, from_zero, offsets_of, spread, values
from bookspark.store.wire.entry_batch import ENTRY_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX
from bookspark.support.arguments import bytes_of, refusal
from bookspark.support.arguments.taken import Misfit

if TYPE_CHECKING:
    import pyarrow


_TOGETHER = 128
"""How many heads and pieces are joined for a frame."""


class PayloadRun:
    """``count`` payloads of ``byte_length`` bytes together. ``pieces`` are the payloads themselves, without their ``heads``, if
    they have some; or one buffer with all of them, which ``offsets`` (as Arrow has them, i32 × (count+1), from 0) divides."""

    __slots__ = ("_offsets", "byte_length", "count", "heads", "pieces")

    def __init__(
        self, pieces: Sequence[Buffer], byte_length: int, offsets: bytes | None = None, heads: Heads | None = None
    ) -> None:
        self.pieces = pieces
        self.byte_length = byte_length
        self.heads = heads
        self.count = len(pieces) if offsets is None else len(offsets) // 4 - 1
        self._offsets = offsets

    @property
    def offsets(self) -> bytes:
        if self._offsets is not None:
            return self._offsets
        offsets = offsets_of(map(len, self.pieces))
        return offsets if self.heads is None else spread(offsets, self.heads.size)

    @property
    def is_list(self) -> bool:
        """Is each of ``pieces`` a payload?"""
        return len(self.pieces) == self.count

    @property
    def with_heads(self) -> Sequence[Buffer]:
        """The pieces, each behind its head, some of them together: so many parts, or one of a megabyte, for which the kernel has
        to give memory each time, would cost the frame more than a copy of a few does."""
        if self.heads is None:
            return self.pieces
        parts: list[Buffer] = [b""] * (2 * self.count)
        parts[::2], parts[1::2] = self.heads.each(), self.pieces
        return [b"".join(parts[at : at + _TOGETHER]) for at in range(0, len(parts), _TOGETHER)]

    def payloads(self) -> Iterator[Buffer]:
        """Each payload without its head: as it is, or a part of the buffer that they are in."""
        if self.is_list:
            return iter(self.pieces)
        return values(memoryview(self.offsets).cast("i"), memoryview(self.pieces[0]))


_BINARY = "a list of bytes, or an Arrow array, binary or string, without nulls"


def payload_of(payload: object, function: str) -> bytes:
    """The bytes of one payload. ``function``: who is asked to append it. Raises InvalidArgumentError."""
    try:
        return bytes_of(payload)
    except Misfit as misfit:
        raise refusal(function, "payload", payload, misfit.words, misfit.hint, hidden=True) from None


def payloads_of(payloads: Any, function: str) -> Any:
    """``payloads`` as ``runs_of`` takes them: a list of bytes, or an Arrow array. Raises InvalidArgumentError."""
    if type(payloads) is list and set(map(type, payloads)) <= {bytes}:
        return payloads
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(payloads, arrow.Array | arrow.ChunkedArray):
        if not (
            arrow.types.is_binary(payloads.type) or arrow.types.is_string(payloads.type) or _is_large(payloads.type)
        ):
            raise refusal(function, "payloads", payloads, _BINARY, f"not an array of {payloads.type}", hidden=True)
        if payloads.null_count:
            hint = f"{payloads.null_count} of {len(payloads)} are null; an entry may be empty, but not null"
            raise refusal(function, "payloads", payloads, _BINARY, hint, hidden=True)
        return payloads
    if isinstance(payloads, str | bytes | bytearray | memoryview) or not isinstance(payloads, Sequence):
        raise refusal(function, "payloads", payloads, _BINARY, hidden=True)
    try:
        return [bytes_of(payload) for payload in payloads]
    except Misfit as misfit:
        raise refusal(function, "payloads", misfit.value, _BINARY, misfit.hint, hidden=True) from None


def runs_of(
    payloads: Sequence[bytes] | pyarrow.BinaryArray, frame_bytes: int, one_each: bool, heads: Heads | None = None
) -> list[PayloadRun]:
    """Split payloads into runs of about ``frame_bytes``, or of one entry each (striped ledgers).

    ``payloads``: as ``payloads_of`` returns them. ``heads``: what comes before each of a list. Raises EntryTooLargeError before
    anything is appended.
    """
    if isinstance(payloads, list):
        if heads is not None and one_each:
            payloads, heads = list(map(concat, heads.each(), payloads)), None
        more = 0 if heads is None else heads.size
        sizes = list(map(len, payloads))
        _check_sizes(max(sizes, default=0) + more)
        ends = list(accumulate(sizes))
        return [
            PayloadRun(
                payloads[a:b],
                ends[b - 1] - (ends[a - 1] if a else 0) + more * (b - a),
                None,
                None if heads is None else heads.part(a, b),
            )
            for a, b in _cuts(ends, 0, frame_bytes, one_each, more)
        ]
    offsets, data = _arrow_columns(payloads)
    _check_sizes(max(map(sub, offsets[1:], offsets), default=0))
    runs = []
    for a, b in _cuts(offsets[1:], offsets[0], frame_bytes, one_each):
        base, end = offsets[a], offsets[b]
        runs.append(PayloadRun((data[base:end],), end - base, from_zero(offsets[a : b + 1])))
    return runs


def _cuts(ends: Sequence[int], base: int, frame_bytes: int, one_each: bool, more: int = 0) -> Iterator[tuple[int, int]]:
    """(start, end) rows of each run. ``ends``: where each payload ends, in bytes, the first one starting at ``base``; ``more``:
    the bytes of each head, which ``ends`` does not count."""
    rows, overhead = range(len(ends)), ENTRY_OVERHEAD_BYTES + more
    start = 0
    while start < len(ends):
        stop = start + 1
        if not one_each:
            limit = base + frame_bytes + overhead * start
            stop = bisect_right(rows, limit, lo=stop, key=lambda row: ends[row] + overhead * (row + 1))
        yield start, stop
        start, base = stop, ends[stop - 1]


def _check_sizes(largest: int) -> None:
    if largest > PAYLOAD_BYTES_MAX:
        raise EntryTooLargeError(f"an entry of {largest} bytes; at most {PAYLOAD_BYTES_MAX} fit, split it")


def _arrow_columns(values: Any) -> tuple[memoryview, memoryview]:
    """(offsets as i32, data) of a binary or string array, on its own memory."""
    import pyarrow

    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    if _is_large(values.type):
        values = values.cast(pyarrow.binary())
    _, offsets, data = values.buffers()
    if len(values) == 0:
        return memoryview(bytes(4)).cast("i"), memoryview(b"")
    view = memoryview(offsets).cast("B").cast("i")[values.offset : values.offset + len(values) + 1]
    return view, memoryview(data if data is not None else b"")


def _is_large(kind: pyarrow.DataType) -> bool:
    """Has the array offsets of 64 bits?"""
    import pyarrow

    return bool(pyarrow.types.is_large_binary(kind) or pyarrow.types.is_large_string(kind))
