"""Memory that logs are read into, one part after the other.

Law: memory that was lent keeps its content until the last view of it is gone, and is lent again only then. So the answers to a
fast reader are all read into the same memory, which is in the processor's cache and need not be cleared first. Each answer to a
slow reader gets memory of its own.
"""

from __future__ import annotations

import mmap

from bookspark.store.wire.chunks import is_viewed, new_chunk

_CHUNK_BYTES = 1 << 20


class ReadMemory:
    """The memory that one thread reads logs into."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._lent = 0
        """How many bytes of the chunk are lent, from its start."""

    def lend(self, size: int) -> memoryview:
        """``size`` bytes to read into. Their content is undefined."""
        if size > _CHUNK_BYTES:
            return memoryview(bytearray(size))
        if self._chunk is not None and not is_viewed(self._chunk):
            self._lent = 0
        if self._chunk is None or self._lent + size > _CHUNK_BYTES:
            self._chunk, self._lent = new_chunk(_CHUNK_BYTES), 0
        start, self._lent = self._lent, self._lent + size
        return memoryview(self._chunk)[start : self._lent]
