"""Chunks of memory to receive or read into. A chunk is used again once no view of it is left.

Law: a chunk is a bytearray of fixed length. Its content stays as it is for as long as a view of it lives.
"""

from __future__ import annotations

from collections import deque

LARGE_CHUNK_BYTES = 2 << 20
_POOLED_MAX = 8


def new_chunk(size: int) -> bytearray:
    """A chunk of ``size`` bytes for which ``is_viewed`` works."""
    chunk = bytearray(size + 1)
    # Removing a byte leaves room to append one.
    chunk.pop()
    return chunk


def is_viewed(chunk: bytearray) -> bool:
    """Does a view of it live?"""
    try:
        # Python refuses to resize a bytearray while a view of it lives.
        chunk.append(0)
    except BufferError:
        return True
    chunk.pop()
    return False


class ChunkPool:
    """Large chunks that the receivers of a process share, so that receiving much does not mean allocating much."""

    def __init__(self) -> None:
        self._retired: deque[bytearray] = deque(maxlen=_POOLED_MAX)

    def take(self) -> bytearray:
        """A chunk of 2 MiB that nobody views."""
        for _ in range(len(self._retired)):
            chunk = self._retired.popleft()
            if not is_viewed(chunk):
                return chunk
            self._retired.append(chunk)
        return new_chunk(LARGE_CHUNK_BYTES)

    def retire(self, chunk: bytearray) -> None:
        """Nothing more is received into ``chunk``. Views of it may still live."""
        if len(chunk) == LARGE_CHUNK_BYTES:
            self._retired.append(chunk)
