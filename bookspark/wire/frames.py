"""Frames: how the bytes of a connection are divided into messages.

Law: after any prefix of a connection's bytes, a receiver holds whole frames and at most one partial one. The size of a partial
one is known to be within ``FRAME_BYTES_MAX`` before memory is spent on it. Bytes that are no frame raise WireError, once, and end
the connection. There are two kinds, which differ in their first four bytes::

    batch frame     FF FF FF FF, …                                    an Arrow IPC message (``entry_batch``)
    control frame   "BSPK" │ u32 body length │ header (112) │ body    everything without entries

Receiving does not copy: frames are views into chunks, which live as long as a view of them does. A connection starts with a small
chunk, so that many idle connections cost little, and gets large ones while bytes come faster than it takes them in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from bookspark.wire.batch_prefix import HEADER_OFFSET, PREFIX_BYTES
from bookspark.wire.chunks import LARGE_CHUNK_BYTES, ChunkPool
from bookspark.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.wire.header import HEADER_BYTES, Header, WireError, decode

# Arrow's continuation marker, and the one metadata size that a batch can have.
_BATCH = b"\xff\xff\xff\xff\x40\x02\x00\x00"
_BATCH_START = int.from_bytes(_BATCH, "little")
_CONTROL = b"BSPK"
_CONTROL_PREFIX_BYTES = 8 + HEADER_BYTES
_CONTROL_START = int.from_bytes(_CONTROL, "little")
_START = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
_BODY_LENGTH = struct.Struct("<q")
_BODY_LENGTH_OFFSET = 48
_CHUNK_BYTES = 64 << 10
_FREE_BYTES_MIN = 16 << 10
_NOTHING = memoryview(b"")


class Frame(NamedTuple):
    """One received frame. A batch frame is whole in ``batch``. For a control frame ``batch`` is None, and ``body`` is checked."""

    header: Header
    body_crc: int
    batch: memoryview | None
    body: memoryview


def control_frame(header: Header, body: bytes = b"") -> bytes:
    """Encode a frame that carries no entries."""
    return b"".join((_CONTROL, _SIZE.pack(len(body)), header.encode(crc32c(body)), body))


def frame_size(buffer: memoryview, at: int = 0, end: int | None = None) -> int | None:
    """The size in bytes of the frame that ``buffer[at:end]`` starts with, None while too few bytes are there to tell. Raises
    WireError if they are no frame, or one that is too large."""
    available = (len(buffer) if end is None else end) - at
    if available < 8:
        return None
    (start,) = _START.unpack_from(buffer, at)
    if start == _BATCH_START:
        if available < _BODY_LENGTH_OFFSET + 8:
            return None
        (body,) = _BODY_LENGTH.unpack_from(buffer, at + _BODY_LENGTH_OFFSET)
        if body < 0 or body & 7:
            raise WireError(f"a batch body of {body} bytes")
        size: int = PREFIX_BYTES + body
    elif start & 0xFFFFFFFF == _CONTROL_START:
        size = _CONTROL_PREFIX_BYTES + (start >> 32)
    else:
        raise WireError(f"bytes that start with {bytes(buffer[at : at + 8])!r} are no frame")
    if size > FRAME_BYTES_MAX:
        raise WireError(f"a frame of {size} bytes; at most {FRAME_BYTES_MAX} are allowed")
    return size


def parse_frame(frame: memoryview) -> Frame:
    """Decode one whole frame: check its header, and the body of a control frame. Raises WireError."""
    if frame[0] != _CONTROL[0]:
        header, body_crc = decode(frame, HEADER_OFFSET)
        return Frame(header, body_crc, frame, _NOTHING)
    header, body_crc = decode(frame, 8)
    body = frame[_CONTROL_PREFIX_BYTES:]
    if crc32c(body) != body_crc:
        raise WireError("body checksum does not match")
    return Frame(header, body_crc, None, body)


class FrameReceiver:
    """The receiving half of a connection, for ``asyncio.BufferedProtocol``: ``buffer()``, then ``received(n)`` → frames."""

    def __init__(self, pool: ChunkPool | None = None) -> None:
        self._pool = pool or ChunkPool()
        self._use(bytearray(_CHUNK_BYTES), 0)

    def _use(self, chunk: bytearray, filled: int) -> None:
        self._memory = chunk
        self._chunk = memoryview(chunk)
        self._read_only = self._chunk.toreadonly()
        self._start, self._end = 0, filled

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._chunk[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """The frames that ``count`` more bytes in ``buffer()`` complete. Raises WireError for bytes that are no frame."""
        self._end += count
        while True:
            start = self._start
            size = frame_size(self._chunk, start, self._end)
            if size is None or size > self._end - start:
                break
            self._start = start + size
            yield parse_frame(self._read_only[start : start + size])
        free = len(self._chunk) - self._end
        if free < _FREE_BYTES_MIN or (size is not None and size > len(self._chunk) - self._start):
            self._renew(size or 0, in_bulk=free == 0)

    def _renew(self, frame_bytes: int, *, in_bulk: bool) -> None:
        """A new chunk with room for the frame that has begun: the old one stays with whoever holds views of it."""
        rest = self._chunk[self._start : self._end]
        needed = frame_bytes + _FREE_BYTES_MIN
        if needed > LARGE_CHUNK_BYTES:
            chunk = bytearray(needed)
        elif in_bulk or needed > _CHUNK_BYTES:
            chunk = self._pool.take()
        else:
            chunk = bytearray(_CHUNK_BYTES)
        chunk[: len(rest)] = rest
        old = self._memory
        self._use(chunk, len(rest))
        self._pool.retire(old)
