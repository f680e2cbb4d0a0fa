"""Frames: the division of a connection's bytes into messages.

Law: after any prefix of a connection's bytes, a receiver holds whole frames and at most one partial frame. Its memory grows
with the received bytes, not with an announced size. An announced size is at most ``FRAME_BYTES_MAX``, or the receiver's lower
limit. Malformed bytes raise WireError, once, and end the connection. The two kinds differ in their first four bytes::

    batch frame     FF FF FF FF, …                                    an Arrow IPC message (``entry_batch``)
    control frame   "BSPK" │ u32 body length │ header (112) │ body    everything without entries

Receiving does not copy: frames are views into chunks, which live as long as their views. A connection starts with a chunk of 4
KiB, so that many idle connections cost little. Under load it gets a chunk of 64 KiB, and then of 2 MiB.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from bookspark.store.wire.batch_prefix import BODY_LENGTH_OFFSET, HEADER_OFFSET, PREFIX_BYTES, PREFIX_START
from bookspark.store.wire.chunks import LARGE_CHUNK_BYTES, ChunkPool, new_chunk
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Buffer
from bookspark.store.wire.header import HEADER_BYTES, Header, WireError, decode

# Arrow's continuation marker, and the only metadata size of a batch.
_BATCH_START = int.from_bytes(PREFIX_START[:8], "little")
_CONTROL = b"BSPK"
_CONTROL_PREFIX_BYTES = 8 + HEADER_BYTES
_CONTROL_START = int.from_bytes(_CONTROL, "little")
_START = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
_BODY_LENGTH = struct.Struct("<q")
FRAME_START_BYTES = BODY_LENGTH_OFFSET + 8
"""Bytes at the start of any frame that suffice to compute its size."""
HELLO_BYTES_MAX = 4 << 10
"""Limit of a frame before the peer has said HELLO."""
_FIRST_CHUNK_BYTES = HELLO_BYTES_MAX
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
    """Encode a frame without entries."""
    return b"".join((_CONTROL, _SIZE.pack(len(body)), header.encode(crc32c(body)), body))


def frame_size(buffer: Buffer, at: int = 0, end: int | None = None, bytes_max: int = FRAME_BYTES_MAX) -> int | None:
    """The size in bytes of the frame at the start of ``buffer[at:end]``; None while too few bytes are there. Raises WireError
    for bytes of no frame, or a frame of more than ``bytes_max``."""
    available = (len(buffer) if end is None else end) - at
    if available < 8:
        return None
    (start,) = _START.unpack_from(buffer, at)
    if start == _BATCH_START:
        if available < FRAME_START_BYTES:
            return None
        (body,) = _BODY_LENGTH.unpack_from(buffer, at + BODY_LENGTH_OFFSET)
        if body < 0 or body & 7:
            raise WireError(f"a batch body of {body} bytes")
        size: int = PREFIX_BYTES + body
    elif start & 0xFFFFFFFF == _CONTROL_START:
        size = _CONTROL_PREFIX_BYTES + (start >> 32)
    else:
        raise WireError(f"bytes that start with {bytes(buffer[at : at + 8])!r} are no frame")
    if size > bytes_max:
        known = "" if bytes_max == FRAME_BYTES_MAX else " before HELLO"
        raise WireError(f"a frame of {size} bytes; at most {bytes_max} are allowed{known}")
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

    def __init__(self, pool: ChunkPool | None = None, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """``frame_bytes_max``: the present limit of a frame. The attribute of this name may be raised later."""
        self._pool = pool or ChunkPool()
        self.frame_bytes_max = frame_bytes_max
        self.frame_number = 1
        """Another number means another frame under way."""
        self.frame_bytes = 0
        """Size of the frame under way; 0 while it is not known."""
        self._use(bytearray(_FIRST_CHUNK_BYTES), 0)

    def _use(self, chunk: bytearray | mmap.mmap, filled: int) -> None:
        self._memory = chunk
        self._chunk = memoryview(chunk)
        self._frames = self._chunk if self._pool.writable else self._chunk.toreadonly()
        self._start, self._end = 0, filled
        self._light = len(chunk) == _FIRST_CHUNK_BYTES

    def buffer(self) -> memoryview:
        """The memory for the next bytes; never empty."""
        return self._chunk[self._end :]

    def received(self, count: int) -> Iterator[Frame]:
        """The frames that ``count`` more bytes in ``buffer()`` complete. Their iteration raises WireError for bytes of no frame;
        until its end there may be no room in ``buffer()``."""
        self._end += count
        return self._whole_frames()

    def _whole_frames(self) -> Iterator[Frame]:
        begun, size = self._start, None
        while (start := self._start) < self._end:
            size = frame_size(self._chunk, start, self._end, self.frame_bytes_max)
            if size is None or size > self._end - start:
                break
            self._start = start + size
            yield parse_frame(self._frames[start : start + size])
            size = None
        self._make_room(begun, size)

    @property
    def is_at_rest(self) -> bool:
        """No byte is left after the last frame, and the chunk is the first one or as small."""
        return self._light and self._start == self._end

    @property
    def unfinished(self) -> int:
        """Bytes after the last frame that was taken."""
        return self._end - self._start

    @property
    def memory(self) -> int:
        """Bytes of memory that the present chunk may take, 0 for a small one."""
        length = len(self._chunk)
        if isinstance(self._memory, mmap.mmap) and length != LARGE_CHUNK_BYTES:
            # Pages behind ``_end`` were never written, and take no memory.
            return self._end
        return 0 if length == _FIRST_CHUNK_BYTES else length

    def shrink(self) -> None:
        """Keep no more memory than the unfinished bytes take."""
        rest = self._chunk[self._start : self._end]
        needed = max(self.frame_bytes, len(rest)) + _FIRST_CHUNK_BYTES // 4
        chunk = bytearray(_FIRST_CHUNK_BYTES) if needed <= _FIRST_CHUNK_BYTES else new_chunk(needed + _FREE_BYTES_MIN)
        self._replace(chunk, rest)

    def _make_room(self, begun: int, size: int | None) -> None:
        """Begin a new chunk if this one has too little room. ``begun``: start of the frame that was under way; ``size``: of the
        partial frame, None if unknown."""
        if begun != self._start:
            self.frame_number += 1
        self.frame_bytes = size or 0
        free = len(self._chunk) - self._end
        if free < min(_FREE_BYTES_MIN, len(self._chunk) // 4) or (
            size is not None and size > len(self._chunk) - self._start
        ):
            self._renew(size or 0, in_bulk=free == 0)

    def _renew(self, frame_bytes: int, *, in_bulk: bool) -> None:
        """Begin a chunk with room for the partial frame. The old chunk lives on in its views."""
        rest = self._chunk[self._start : self._end]
        length, needed = len(self._chunk), frame_bytes + _FREE_BYTES_MIN
        chunk: bytearray | mmap.mmap
        if needed > LARGE_CHUNK_BYTES:
            chunk = new_chunk(needed)
        elif needed > _CHUNK_BYTES or (in_bulk and length > _FIRST_CHUNK_BYTES):
            chunk = self._pool.take()
        elif frame_bytes > _FIRST_CHUNK_BYTES or in_bulk or length > _FIRST_CHUNK_BYTES:
            chunk = bytearray(_CHUNK_BYTES)
        else:
            chunk = bytearray(_FIRST_CHUNK_BYTES)
        self._replace(chunk, rest)

    def _replace(self, chunk: bytearray | mmap.mmap, rest: memoryview) -> None:
        chunk[: len(rest)] = rest
        old = self._memory
        self._use(chunk, len(rest))
        if isinstance(old, mmap.mmap):
            self._pool.retire(old)
