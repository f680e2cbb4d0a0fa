"""Memory that logs are read into, one part after the other.

Law: what was lent stays as it is until the last view of it is gone, and is lent again only then. So the answers to a reader that
takes them as they come are all read into the same memory, which is in the processor's cache and need not be cleared first; those
to a slow one each have their own.
"""

from __future__ import annotations

from bookspark.wire.chunks import is_viewed, new_chunk

_CHUNK_BYTES = 1 << 20


class ReadMemory:
    """For one thread."""

    def __init__(self) -> None:
        self._chunk = bytearray()
        self._lent = 0
        """Bytes of it that are lent, from its start."""

    def lend(self, size: int) -> memoryview:
        """So many bytes to be read into; what they hold means nothing."""
        if size > _CHUNK_BYTES:
            return memoryview(bytearray(size))
        if not is_viewed(self._chunk):
            self._lent = 0
        if self._lent + size > len(self._chunk):
            self._chunk, self._lent = new_chunk(_CHUNK_BYTES), 0
        start, self._lent = self._lent, self._lent + size
        return memoryview(self._chunk)[start : self._lent]
