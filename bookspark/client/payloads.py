"""Payloads on their way into a frame: lists of bytes and Arrow arrays as runs of the same shape.

Law: a run fits a frame and its entries get consecutive ids; an Arrow array's values are not copied into Python objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bookspark.protocol.errors import EntryTooLargeError
from bookspark.wire.entry_batch import ENTRY_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, Buffer, offsets_of

if TYPE_CHECKING:
    import pyarrow


class PayloadRun:
    """``count`` payloads: ``offsets`` as Arrow has them (i32 × (count+1), from 0) into ``data``."""

    __slots__ = ("_payloads", "count", "data", "offsets")

    def __init__(self, offsets: bytes, data: Buffer, payloads: Sequence[bytes] | None = None) -> None:
        self.offsets = offsets
        self.data = data
        self.count = len(offsets) // 4 - 1
        self._payloads = payloads

    @property
    def byte_length(self) -> int:
        return len(self.data)

    def sizes(self) -> Iterator[int]:
        """Bytes of each payload."""
        return (end - start for start, end in pairwise(memoryview(self.offsets).cast("i")))

    def payloads(self) -> Iterator[Buffer]:
        """Each payload, as views where no bytes objects are at hand."""
        if self._payloads is not None:
            return iter(self._payloads)
        data = memoryview(self.data)
        return (data[start:end] for start, end in pairwise(memoryview(self.offsets).cast("i")))


def runs_of(payloads: Sequence[bytes] | pyarrow.BinaryArray, frame_bytes: int, one_each: bool) -> list[PayloadRun]:
    """Split payloads into runs of about ``frame_bytes``, or of one entry each (striped ledgers).

    Raises EntryTooLargeError, ValueError for nulls and TypeError for an array of another type, before anything is appended.
    """
    if isinstance(payloads, list | tuple):
        sizes = [len(payload) for payload in payloads]
        _check_sizes(sizes)
        return [
            PayloadRun(offsets_of(iter(sizes[a:b])), b"".join(payloads[a:b]), payloads[a:b])
            for a, b in _cuts(sizes, frame_bytes, one_each)
        ]
    offsets, data = _arrow_columns(payloads)
    sizes = [end - start for start, end in pairwise(offsets)]
    _check_sizes(sizes)
    runs = []
    for a, b in _cuts(sizes, frame_bytes, one_each):
        base = offsets[a]
        shifted = (
            offsets[a : b + 1].tobytes() if base == 0 else array("i", [o - base for o in offsets[a : b + 1]]).tobytes()
        )
        runs.append(PayloadRun(shifted, data[base : offsets[b]]))
    return runs


def _cuts(sizes: Sequence[int], frame_bytes: int, one_each: bool) -> Iterator[tuple[int, int]]:
    """(start, end) rows of each run."""
    if one_each:
        yield from ((i, i + 1) for i in range(len(sizes)))
        return
    start, filled = 0, 0
    for row, size in enumerate(sizes):
        if row > start and filled + size + ENTRY_OVERHEAD_BYTES > frame_bytes:
            yield start, row
            start, filled = row, 0
        filled += size + ENTRY_OVERHEAD_BYTES
    if start < len(sizes):
        yield start, len(sizes)


def _check_sizes(sizes: Sequence[int]) -> None:
    largest = max(sizes, default=0)
    if largest > PAYLOAD_BYTES_MAX:
        raise EntryTooLargeError(f"an entry of {largest} bytes; at most {PAYLOAD_BYTES_MAX} fit, split it")


def _arrow_columns(values: Any) -> tuple[memoryview, memoryview]:
    """(offsets as i32, data) of a binary or string array, on its own memory."""
    import pyarrow

    if isinstance(values, pyarrow.ChunkedArray):
        values = values.combine_chunks()
    if pyarrow.types.is_large_binary(values.type) or pyarrow.types.is_large_string(values.type):
        values = values.cast(pyarrow.binary())
    if not (pyarrow.types.is_binary(values.type) or pyarrow.types.is_string(values.type)):
        raise TypeError(f"payloads are binary or string, not {values.type}")
    if values.null_count:
        raise ValueError(f"{values.null_count} of {len(values)} payloads are null; an entry may be empty, but not null")
    _, offsets, data = values.buffers()
    if len(values) == 0:
        return memoryview(bytes(4)).cast("i"), memoryview(b"")
    view = memoryview(offsets).cast("B").cast("i")[values.offset : values.offset + len(values) + 1]
    return view, memoryview(data if data is not None else b"")
