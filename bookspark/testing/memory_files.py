"""A file system in memory that tells what a power cut leaves of it.

Law: it loses all that POSIX allows to be lost, and nothing else. Synced data stays. Each piece of unsynced data is kept or lost
on its own: a write sector by sector (so perhaps partly, out of order, or with zeros for its data), and a creation, a rename or an
unlink until its directory is synced. A synced file whose name is not durable is lost. ``crashed`` changes nothing: one moment can
be asked for every disk that it might leave, while the bookie goes on.

::

    files = MemoryFileSystem("/disk")
    ...  # a bookie works on it
    after = files.crashed(nothing_kept)  # the disk that the next boot finds

Source: pebble's ``vfs.MemFS`` (its strict mode).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

from bookspark.bookie.disk.file_system import File
from bookspark.testing.power_cuts import Change, Fate, Loss
from bookspark.wire.entry_batch import Buffer

SECTOR_BYTES = 128
"""A sector is written completely or not at all. It is smaller than a disk's, so that small frames are torn too."""
_UNBOUNDED = 1 << 50


class _Node:
    """The content of a file, whatever its name."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytes(content)
        self.pending: list[tuple[int, bytes | None]] = []
        """The changes since the last sync: (position, what was written there), or (length, None) for a truncation."""
        self.reserved = 0
        """The size that was preallocated, in bytes."""

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()

    def crashed(self, path: str, sector_bytes: int, loss: Loss) -> _Node:
        changes = [piece for change in self.pending for piece in _sectors(*change, sector_bytes)]
        content = bytearray(self.durable)
        for index, (position, data) in enumerate(changes):
            fate = loss(Change(path, "truncate" if data is None else "write", index, len(changes)))
            if fate is Fate.LOST:
                continue
            if data is None:
                _resize(content, position)
            elif fate is Fate.KEPT:
                _put(content, position, data)
            elif len(content) < position + len(data):
                _resize(content, position + len(data))
        return _Node(bytes(content))


_Names = dict[str, "_Node | _Directory"]
_Nodes = list["_Node | _Directory"]


class _Directory:
    """A directory's names. ``pending`` has the changes since the last sync: (name that goes, name that comes, its node)."""

    def __init__(self) -> None:
        self.names: _Names = {}
        self.durable: _Names = {}
        self.pending: list[tuple[str | None, str | None, _Node | _Directory]] = []

    def change(self, gone: str | None, came: str | None, node: _Node | _Directory) -> None:
        self.pending.append((gone, came, node))
        _rename(self.names, gone, came, node)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.pending.clear()

    def crashed(self, path: str, sector_bytes: int, loss: Loss) -> _Directory:
        found = dict(self.durable)
        for index, change in enumerate(self.pending):
            if loss(Change(path, "name", index, len(self.pending))) is not Fate.LOST:
                _rename(found, *change)
        after = _Directory()
        after.names = {name: node.crashed(f"{path}/{name}", sector_bytes, loss) for name, node in found.items()}
        after.sync()
        return after


def _rename(names: _Names, gone: str | None, came: str | None, node: _Node | _Directory) -> None:
    if gone is not None and names.get(gone) is node:
        del names[gone]
    if came is not None:
        names[came] = node


def _sectors(position: int, data: bytes | None, sector_bytes: int) -> list[tuple[int, bytes | None]]:
    if data is None:
        return [(position, None)]
    end = position + len(data)
    starts = [position, *range((position // sector_bytes + 1) * sector_bytes, end, sector_bytes)]
    return [
        (start, data[start - position : stop - position])
        for start, stop in zip(starts, [*starts[1:], end], strict=True)
    ]


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _put(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        _resize(content, position)
    content[position : position + len(data)] = data


class _MemoryFile:
    """An open file. It stays usable when its name is renamed or unlinked."""

    def __init__(self, file_system: MemoryFileSystem, node: _Node, lock: threading.RLock) -> None:
        self._file_system = file_system
        self._node = node
        self._lock = lock

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        with self._lock:
            node = self._node
            growth = position + len(data) - max(len(node.content), node.reserved)
            data = data[: len(data) - max(0, growth - self._file_system.room(growth))]
            if not data and growth > 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _put(node.content, position, data)
            node.pending.append((position, data))
        return len(data)

    def read(self, size: int, position: int) -> bytes:
        with self._lock:
            return bytes(self._node.content[position : position + size])

    def read_cached(self, into: memoryview, position: int) -> bool:
        content = self.read(len(into), position)
        into[: len(content)] = content
        return len(content) == len(into)

    def sync(self) -> None:
        with self._lock:
            self._node.sync()

    def preallocate(self, size: int) -> None:
        with self._lock:
            growth = size - max(len(self._node.content), self._node.reserved)
            if growth > 0:
                if self._file_system.room(growth) < growth:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._node.reserved = size

    def truncate(self, size: int) -> None:
        with self._lock:
            _resize(self._node.content, size)
            self._node.pending.append((size, None))
            self._node.reserved = 0

    def size(self) -> int:
        return len(self._node.content)

    def close(self) -> None:
        """Do nothing: an open file holds nothing."""


class MemoryFileSystem:
    """A ``FileSystem`` in memory, with absolute paths. The directories that it is made with are durable from the start."""

    def __init__(self, *directories: str, capacity_bytes: int = _UNBOUNDED, sector_bytes: int = SECTOR_BYTES) -> None:
        """``capacity_bytes`` may be changed at any time. A write beyond it fails with ENOSPC."""
        self.capacity_bytes = capacity_bytes
        self._sector_bytes = sector_bytes
        self._root = _Directory()
        self._lock = threading.RLock()
        for directory in directories:
            self.make_directory(directory)
        self.sync_all()

    def crashed(self, loss: Loss) -> MemoryFileSystem:
        """A file system with what is on the disk after the power cut ``loss``. This one stays as it is."""
        with self._lock:
            after = MemoryFileSystem(capacity_bytes=self.capacity_bytes, sector_bytes=self._sector_bytes)
            after._root = self._root.crashed("", self._sector_bytes, loss)
            return after

    def sync_all(self) -> None:
        """Make everything durable."""
        with self._lock:
            for node in self._nodes():
                node.sync()

    def files(self) -> dict[str, bytes]:
        """The content of every file by its path, sorted by path."""
        with self._lock:
            return dict(sorted(_contents(self._root, "")))

    def used_bytes(self) -> int:
        """The bytes that all files take, with what is preallocated for them."""
        return sum(max(len(node.content), node.reserved) for node in self._nodes() if isinstance(node, _Node))

    def room(self, wanted: int) -> int:
        """How many more bytes fit, ``wanted`` at most."""
        if wanted <= 0 or self.capacity_bytes >= _UNBOUNDED:
            return max(wanted, 0)
        return min(wanted, max(0, self.capacity_bytes - self.used_bytes()))

    # -- the seam

    def open(self, path: str, *, create: bool = False) -> File:
        with self._lock:
            directory, name = self._parent(path)
            node = directory.names.get(name)
            if node is None:
                if not create:
                    raise _error(errno.ENOENT, path)
                node = _Node()
                directory.change(None, name, node)
            if isinstance(node, _Directory):
                raise _error(errno.EISDIR, path)
            return _MemoryFile(self, node, self._lock)

    def exists(self, path: str) -> bool:
        with self._lock:
            try:
                directory, name = self._parent(path)
            except FileNotFoundError:
                return False
            return name in directory.names

    def list(self, directory: str) -> list[str]:
        with self._lock:
            return sorted(self._directory(directory).names)

    def make_directory(self, path: str) -> None:
        with self._lock:
            at = self._root
            for name in _parts(path):
                node = at.names.get(name)
                if node is None:
                    node = _Directory()
                    at.change(None, name, node)
                if isinstance(node, _Node):
                    raise _error(errno.ENOTDIR, path)
                at = node

    def rename(self, source: str, target: str) -> None:
        """Rename a file within one directory. Raises OSError (EXDEV) for two directories."""
        with self._lock:
            directory, name = self._parent(source)
            target_directory, target_name = self._parent(target)
            if directory is not target_directory:
                raise _error(errno.EXDEV, target)
            if name not in directory.names:
                raise _error(errno.ENOENT, source)
            directory.change(name, target_name, directory.names[name])

    def unlink(self, path: str) -> None:
        with self._lock:
            directory, name = self._parent(path)
            node = directory.names.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
            if isinstance(node, _Directory):
                raise _error(errno.EISDIR, path)
            directory.change(name, None, node)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._directory(path).sync()

    def free_bytes(self, path: str) -> int:
        with self._lock:
            return max(0, self.capacity_bytes - self.used_bytes())

    def total_bytes(self, path: str) -> int:
        return self.capacity_bytes

    # -- inside

    def _directory(self, path: str) -> _Directory:
        at = self._root
        for name in _parts(path):
            node = at.names.get(name)
            if not isinstance(node, _Directory):
                raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            at = node
        return at

    def _parent(self, path: str) -> tuple[_Directory, str]:
        return self._directory(os.path.dirname(path)), os.path.basename(path)

    def _nodes(self) -> _Nodes:
        found: _Nodes = [self._root]
        for node in found:
            if isinstance(node, _Directory):
                found += node.names.values()
        return found


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _contents(directory: _Directory, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for name, node in directory.names.items():
        below = f"{path}/{name}"
        found += [(below, bytes(node.content))] if isinstance(node, _Node) else _contents(node, below)
    return found


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
