"""Chunks of memory to receive or read into. A chunk is used again once no view of it is left.

Law: a chunk has a fixed length, and takes memory only as bytes are put into it. Its content stays as it is for as long as a view
of it lives. So it is an anonymous mapping: the kernel gives a page at its first write. A ``bytearray`` is cleared when it is
made, and takes all of its memory then: a peer that announced 16 MiB and sent 8 bytes took 16 MiB.
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
    # A huge page would take 2 MiB at the first byte. A kernel without huge pages does not know the advice.
    with suppress(OSError):
        chunk.madvise(mmap.MADV_NOHUGEPAGE)
    return chunk


def is_viewed(chunk: mmap.mmap) -> bool:
    """Does a view of it live?"""
    try:
        # Python refuses to resize a mapping while a view of it lives. To its own size, nothing changes.
        chunk.resize(len(chunk))
    except BufferError:
        return True
    return False


class ChunkPool:
    """Large chunks that the receivers of a process share, so that receiving much does not mean allocating much."""

    def __init__(self, *, writable: bool = False) -> None:
        """``writable``: whoever gets a frame out of a chunk may change it in place."""
        self.writable = writable
        self._retired: deque[mmap.mmap] = deque(maxlen=_POOLED_MAX)

    def take(self) -> mmap.mmap:
        """A chunk of 2 MiB that nobody views."""
        for _ in range(len(self._retired)):
            chunk = self._retired.popleft()
            if not is_viewed(chunk):
                return chunk
            self._retired.append(chunk)
        return new_chunk(LARGE_CHUNK_BYTES)

    def retire(self, chunk: mmap.mmap) -> None:
        """Nothing more is received into ``chunk``. Views of it may still live."""
        if len(chunk) == LARGE_CHUNK_BYTES:
            self._retired.append(chunk)
