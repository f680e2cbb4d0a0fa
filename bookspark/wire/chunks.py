"""Chunks of memory that are received or read into, and used again once no view of them is left.

Law: a chunk is a bytearray of fixed length; as long as a view of it lives, whoever holds the view has its content.
"""

from __future__ import annotations

from collections import deque

LARGE_CHUNK_BYTES = 2 << 20
_POOLED_MAX = 8


def new_chunk(size: int) -> bytearray:
    """A chunk that ``is_viewed`` can tell about."""
    chunk = bytearray(size + 1)
    chunk.pop()  # leaves room for a byte
    return chunk


def is_viewed(chunk: bytearray) -> bool:
    """Does a view of it live?"""
    try:
        chunk.append(0)  # refused as long as one does
    except BufferError:
        return True
    chunk.pop()
    return False


class ChunkPool:
    """Large chunks that the receivers of a process share, so that those who receive much do not spend their time on new memory.
    A chunk is used again once no view of it is left."""

    def __init__(self) -> None:
        self._retired: deque[bytearray] = deque(maxlen=_POOLED_MAX)

    def take(self) -> bytearray:
        for _ in range(len(self._retired)):
            chunk = self._retired.popleft()
            if not is_viewed(chunk):
                return chunk
            self._retired.append(chunk)
        return new_chunk(LARGE_CHUNK_BYTES)

    def retire(self, chunk: bytearray) -> None:
        """Nothing more is received into it; frames may still lie there."""
        if len(chunk) == LARGE_CHUNK_BYTES:
            self._retired.append(chunk)
