"""Chunks: receive and read buffers, reused once no view of them is left.

Law: a chunk has a fixed length, uses memory only for the bytes written into it, and keeps its content while a view of it
lives. So it is an anonymous mapping, whose pages the kernel provides at their first write. A ``bytearray`` is zeroed at once:
a peer that announced 16 MiB and sent 8 bytes would cost 16 MiB.
"""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress

LARGE_CHUNK_BYTES = 2 << 20
_POOLED_MAX = 8


def new_chunk(size: int) -> mmap.mmap:
    """A chunk of ``size`` bytes, at least one."""
    chunk = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A huge page would take 2 MiB at the first byte. A kernel without huge pages rejects the advice.
    with suppress(OSError):
        chunk.madvise(mmap.MADV_NOHUGEPAGE)
    return chunk


def is_viewed(chunk: mmap.mmap) -> bool:
    try:
        # Python refuses to resize a mapping while a view of it lives. A resize to its own size changes nothing.
        chunk.resize(len(chunk))
    except BufferError:
        return True
    return False


class ChunkPool:
    """Large chunks shared by the receivers of a process, so that bulk receiving allocates little."""

    def __init__(self, *, writable: bool = False) -> None:
        """``writable``: receivers of frames may change them in place."""
        self.writable = writable
        self._retired: deque[mmap.mmap] = deque(maxlen=_POOLED_MAX)

    def take(self) -> mmap.mmap:
        """A chunk of 2 MiB without views."""
        for _ in range(len(self._retired)):
            chunk = self._retired.popleft()
            if not is_viewed(chunk):
                return chunk
            self._retired.append(chunk)
        return new_chunk(LARGE_CHUNK_BYTES)

    def retire(self, chunk: mmap.mmap) -> None:
        """Take back a chunk that is not received into any more. Views of it may still live."""
        if len(chunk) == LARGE_CHUNK_BYTES:
            self._retired.append(chunk)
