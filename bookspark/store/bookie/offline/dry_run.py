"""A file system on which nothing changes: to look at a bookie's directories with the code that boots it.

Law: reads are those of the inner file system. Writes, syncs, renames and unlinks succeed, but are not made. Whoever asks through
here sees a file that was created as empty, and one that was unlinked as gone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from bookspark.store.bookie.disk.file_system import File, FileSystem
from bookspark.store.wire.entry_batch import Buffer


class DryRunFileSystem:
    """``Storage(config, DryRunFileSystem(RealFileSystem())).open()`` is a boot that leaves no trace. For the calls see
    ``FileSystem``."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner
        self._made: set[str] = set()
        self._gone: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> File:
        if path not in self._gone and self._inner.exists(path):
            return _UnchangedFile(self._inner.open(path))
        if not create and path not in self._made:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._made.add(path)
        return _UnchangedFile(None)

    def exists(self, path: str) -> bool:
        return path in self._made or (path not in self._gone and self._inner.exists(path))

    def list(self, directory: str) -> list[str]:
        if directory in self._made and not self._inner.exists(directory):
            return []
        return [name for name in self._inner.list(directory) if f"{directory}/{name}" not in self._gone]

    def make_directory(self, path: str) -> None:
        self._made.add(path)

    def rename(self, source: str, target: str) -> None:
        self.unlink(source)
        self._made.add(target)

    def unlink(self, path: str) -> None:
        self._made.discard(path)
        self._gone.add(path)

    def sync_directory(self, path: str) -> None:
        """Nothing has changed."""

    def free_bytes(self, path: str) -> int:
        return self._inner.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._inner.total_bytes(path)


class _UnchangedFile:
    def __init__(self, inner: File | None) -> None:
        """``inner``: the file to read; None: an empty file."""
        self._inner = inner

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        return sum(map(len, buffers))

    def read(self, size: int, position: int) -> bytes:
        return b"" if self._inner is None else self._inner.read(size, position)

    def read_cached(self, into: memoryview, position: int) -> bool:
        return self._inner is not None and self._inner.read_cached(into, position)

    def drop_cached(self) -> None:
        if self._inner is not None:
            self._inner.drop_cached()

    def sync(self) -> None:
        """Nothing has changed."""

    def preallocate(self, size: int) -> None:
        """Nothing is written."""

    def truncate(self, size: int) -> None:
        """Nothing is cut."""

    def size(self) -> int:
        return 0 if self._inner is None else self._inner.size()

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
