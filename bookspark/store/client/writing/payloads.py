"""Payloads on their way into a frame: lists of bytes and Arrow arrays as runs of one shape, and the queue of runs.

Law: a run fits a frame and is never divided; its entries get consecutive ids. Entries leave in the order of their appends.
Waiting entries leave together, up to the frame size, entries with heads apart from those without. On a striped ledger each entry
is a frame of its own, because neighbours have different write sets. Values of an Arrow array are not copied into Python objects,
and values with heads are copied only into the frame.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import concat, sub
from typing import TYPE_CHECKING, Any

from bookspark.errors import EntryTooLargeError
from bookspark.store.wire.columns import (
    Buffer,
    Heads,
    consecutive,
    ends_after,
    equal_offsets,
    from_zero,
    joined,
    offsets_of,
    repeated,
    spread,
    values,
)
from bookspark.store.wire.digests import Digester
from bookspark.store.wire.entry_batch import ENTRY_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, encode_one, encode_pieces
from bookspark.store.wire.header import Header
from bookspark.support.arguments import Misfit, bytes_of, refusal

if TYPE_CHECKING:
    import pyarrow


_TOGETHER = 128


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
        return len(self.pieces) == self.count

    @property
    def with_heads(self) -> Sequence[Buffer]:
        """The pieces, each behind its head, copied together in groups of ``_TOGETHER``. Very many parts, or a single large
        part in new memory, would cost the frame more."""
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

    def entries(self) -> Iterator[bytes]:
        heads = repeat(b"") if self.heads is None else self.heads.each()
        return map(b"".join, zip(heads, self.payloads(), strict=False))


_BINARY = "a list of bytes, or an Arrow array, binary or string, without nulls"


def payload_of(payload: object, function: str) -> bytes:
    """The bytes of one payload. ``function``: the called function, for errors. Raises InvalidArgumentError."""
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
    import pyarrow

    return bool(pyarrow.types.is_large_binary(kind) or pyarrow.types.is_large_string(kind))


# -- The queue of appends that have no frame yet


_MANY = 256
"""From this number of waiting entries on, an idle ledger sends them as two frames, half each. As a single frame, a caller with
a bound on unacknowledged entries and the bookies would wait for each other in turns (docs/decisions/profile.md, "Small adds")."""


class Outgoing:
    """The appends of one ledger that wait for a frame. Callers put them under ``Room.lock``; the I/O thread takes them.

    An empty deque takes 700 bytes, and most of many ledgers are idle. So there are two lists: callers extend ``waiting``, and the
    I/O thread moves all of it to ``taken``, the next append last."""

    def __init__(self, ledger_id: int, digest: Digester, frame_bytes: int, *, striped: bool) -> None:
        self._ledger_id = ledger_id
        self._digest = digest
        self._frame_bytes = frame_bytes
        self._striped = striped
        self.waiting: list[bytes | PayloadRun] = []
        """Always the same list, so that the frequent check for waiting appends needs no call."""
        self.taken: list[bytes | PayloadRun] = []
        """Appends before those in ``waiting``, in reverse order."""
        self.put: Callable[[Sequence[bytes | PayloadRun]], None] = self.waiting.extend
        """Add appends at the end, without Python code, so that no interrupt comes in the middle."""

    def __len__(self) -> int:
        return len(self.taken) + len(self.waiting)

    def payloads(self) -> Iterator[bytes]:
        """The payloads of all appends, in their order. Only while no thread puts or takes appends."""
        for item in (*reversed(self.taken), *self.waiting):
            yield from (item,) if isinstance(item, bytes) else item.entries()

    def clear(self) -> None:
        self.taken.clear()
        self.waiting.clear()

    def _more(self) -> bool:
        """Move ``waiting`` to ``taken`` if that is empty. False if both are empty."""
        if not self.taken and (came := self.waiting[:]):
            # Other threads add at the end, so the copied appends are still the first.
            del self.waiting[: len(came)]
            came.reverse()
            self.taken = came
        return bool(self.taken)

    def take(self, *, idle: bool = False) -> PayloadRun:
        """The entries of the next frame: waiting appends up to the frame size, or one run of an Arrow array. ``idle``: nothing
        is under way."""
        if not self._more():
            raise IndexError("nothing waits")
        left = len(self) // 2 if idle and len(self) >= _MANY else 0
        item = self.taken.pop()
        run = PayloadRun((item,), len(item)) if isinstance(item, bytes) else item
        if self._striped or not run.is_list or not self._more():
            return run
        pieces, size = list(run.pieces), run.byte_length
        heads = [] if run.heads is None else [run.heads]
        while (self.taken or self._more()) and (not left or len(self) > left):
            item = self.taken[-1]
            if isinstance(item, bytes):
                if heads:
                    break
                size_after, count, more = size + len(item), len(pieces) + 1, None
            elif item.is_list and (item.heads is not None) == bool(heads):
                size_after, count, more = size + item.byte_length, len(pieces) + item.count, item.heads
            else:
                break
            if size_after + ENTRY_OVERHEAD_BYTES * count > self._frame_bytes:
                break
            pieces += (item,) if isinstance(item, bytes) else item.pieces
            if more is not None:
                heads.append(more)
            size = size_after
            self.taken.pop()
        return PayloadRun(pieces, size, None, joined(heads) if heads else None)

    def encode(self, header: Header, run: PayloadRun, length: int) -> Buffer:
        """The frame of ``run``. ``header`` has its ids and the LAC (last add confirmed); ``length`` is the ledger's before it, in
        bytes."""
        count, confirmed, ledger_id = run.count, header.last_add_confirmed, self._ledger_id
        first, digest = header.first_entry_id, self._digest
        if count == 1:
            payload = run.pieces[0] if run.heads is None else b"".join(run.with_heads)
            length += run.byte_length
            return encode_one(header, length, payload, digest(ledger_id, first, confirmed, length, payload))
        offsets = run.offsets
        columns = [
            repeated(ledger_id, count),
            consecutive(first, count),
            repeated(confirmed, count),
            ends_after(length, offsets),
        ]
        digests = digest.column(columns, run.payloads(), run.heads)
        columns += (offsets, equal_offsets(count, digest.size))
        return encode_pieces(header, columns, run.with_heads, run.byte_length, digests)
