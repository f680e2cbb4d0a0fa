"""A file system in memory that shows the disk after a power cut, and simulates disk faults on request.

Law: a power cut loses everything that POSIX allows to be lost, and nothing else. Each piece of unsynced data is kept or
lost on its own: each sector of a write (perhaps as zeros), and a creation, a rename or an unlink until its directory is
synced. A synced file without a durable name is lost. ``crashed`` changes nothing, so a test can derive every possible disk
while the bookie goes on. A kill of the process alone loses nothing.

Disk faults beyond this law have their own calls: ``flip``, ``lose``, and on an open file ``fail_write_back`` and
``write_elsewhere``; ``faulty_files`` has rules for them. ``evict`` shows the disk's content without a crash.

::

    files = MemoryFileSystem("/disk")
    ...  # a bookie works on it
    after = files.crashed(nothing_kept)  # the disk of the next boot

Source: pebble's ``vfs.MemFS`` (its strict mode).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from functools import lru_cache

from bookspark.store.bookie.disk.file_system import File
from bookspark.store.wire.entry_batch import Buffer
from bookspark.testing.power_cuts import Change, Fate, Loss

# -- Files and directories: page cache and disk.
#
# Law: a reader sees the page cache, a boot after a power cut the disk. ``pending`` is the difference: a sync applies it to
# the disk, a power cut decides the fate of each piece of it. A failed write-back leaves on the disk the pieces that its
# ``Loss`` keeps and marks all pages clean, so a later sync succeeds without the rest. Like Linux since 4.17, it reports the
# error once to each file that was open before, and to a file opened before the first report.
#
# Source: pebble's ``vfs.MemFS``; "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).


Piece = tuple[int, bytes | None]
"""(position, written data), or (length, None) for a truncation."""


class Node:
    """A file's content, independent of its name."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        """The page cache, seen by reads."""
        self.durable = bytearray(content)
        """The disk."""
        self.pending: list[Piece] = []
        """Unsynced changes, in order."""
        self.reserved = 0
        """Preallocated bytes."""
        self.errors = 0
        """Failed write-backs."""
        self.told = True
        """True once an open file has reported the last failed write-back."""

    def write(self, position: int, data: bytes) -> None:
        put(self.content, position, data)
        self.pending.append((position, data))

    def write_elsewhere(self, position: int, data: bytes, target: int | None) -> None:
        """Apply a write to the page cache, but let the disk put it at ``target`` of the same file: nowhere (None), or only
        the part within the file."""
        put(self.content, position, data)
        self.pending.append((len(self.content), None))
        if target is not None and (hit := data[max(0, -target) : max(0, len(self.content) - target)]):
            self.pending.append((max(0, target), hit))

    def truncate(self, size: int) -> None:
        resize(self.content, size)
        self.pending.append((size, None))
        self.reserved = 0

    def flip(self, byte: int, bit: int, *, cached: bool = False) -> None:
        for content in (self.durable,) if cached else (self.content, self.durable):
            if byte < len(content):
                content[byte] ^= 1 << bit

    def sync(self) -> None:
        _apply(self.durable, self.pending)
        self.pending.clear()

    def fail_write_back(self, path: str, sector_bytes: int, loss: Loss) -> None:
        self.durable = self._left(path, sector_bytes, loss)
        self.pending.clear()
        self.errors += 1
        self.told = False

    def evict(self) -> None:
        """Drop clean pages: later reads see the disk's content with the unsynced changes."""
        self.content = bytearray(self.durable)
        _apply(self.content, self.pending)

    def crashed(self, path: str, sector_bytes: int, loss: Loss) -> Node:
        return Node(self._left(path, sector_bytes, loss))

    def _left(self, path: str, sector_bytes: int, loss: Loss) -> bytearray:
        pieces = [piece for change in self.pending for piece in _sectors(*change, sector_bytes)]
        content = bytearray(self.durable)
        for index, (position, data) in enumerate(pieces):
            fate = loss(Change(path, "truncate" if data is None else "write", index, len(pieces)))
            if fate is Fate.LOST:
                continue
            if data is None:
                resize(content, position)
            elif fate is Fate.KEPT:
                put(content, position, data)
            elif len(content) < position + len(data):
                resize(content, position + len(data))
        return content


Names = dict[str, "Node | Directory"]
Nodes = list["Node | Directory"]


class Directory:
    """A directory's names. ``pending`` has the changes since the last sync: (removed name, added name, its node)."""

    def __init__(self) -> None:
        self.names: Names = {}
        self.durable: Names = {}
        self.pending: list[tuple[str | None, str | None, Node | Directory]] = []

    def change(self, gone: str | None, came: str | None, node: Node | Directory) -> None:
        self.pending.append((gone, came, node))
        _rename(self.names, gone, came, node)

    def lose(self, name: str) -> None:
        """Remove a file from the page cache and from the disk."""
        node = self.names.pop(name)
        self.pending = [change for change in self.pending if change[2] is not node]
        self.durable = {other: kept for other, kept in self.durable.items() if kept is not node}

    def sync(self) -> None:
        for change in self.pending:
            _rename(self.durable, *change)
        self.pending.clear()

    def fail_write_back(self, path: str, loss: Loss) -> None:
        self.durable = self._left(path, loss)
        self.pending.clear()

    def crashed(self, path: str, sector_bytes: int, loss: Loss) -> Directory:
        after = Directory()
        after.names = {
            name: node.crashed(f"{path}/{name}", sector_bytes, loss) for name, node in self._left(path, loss).items()
        }
        after.durable = dict(after.names)
        return after

    def _left(self, path: str, loss: Loss) -> Names:
        found = dict(self.durable)
        for index, change in enumerate(self.pending):
            if loss(Change(path, "name", index, len(self.pending))) is not Fate.LOST:
                _rename(found, *change)
        return found


def _rename(names: Names, gone: str | None, came: str | None, node: Node | Directory) -> None:
    if gone is not None and names.get(gone) is node:
        del names[gone]
    if came is not None:
        names[came] = node


def _sectors(position: int, data: bytes | None, sector_bytes: int) -> list[Piece]:
    if data is None:
        return [(position, None)]
    end = position + len(data)
    starts = [position, *range((position // sector_bytes + 1) * sector_bytes, end, sector_bytes)]
    return [
        (start, data[start - position : stop - position])
        for start, stop in zip(starts, [*starts[1:], end], strict=True)
    ]


def _apply(content: bytearray, pieces: list[Piece]) -> None:
    for position, data in pieces:
        if data is None:
            resize(content, position)
        else:
            put(content, position, data)


def resize(content: bytearray, size: int) -> None:
    """Cut ``content``, or extend it with zeros."""
    del content[size:]
    content.extend(bytes(size - len(content)))


def put(content: bytearray, position: int, data: bytes) -> None:
    """Write ``data`` at ``position``; zeros fill a gap before it."""
    if len(content) < position:
        resize(content, position)
    content[position : position + len(data)] = data


# -- The file system


SECTOR_BYTES = 128
"""A sector is written completely or not at all. Smaller than a disk's sector, so that small frames are torn too."""
_UNBOUNDED = 1 << 50


class MemoryFile:
    """An open file. It stays usable after a rename or unlink of its name."""

    def __init__(
        self, file_system: MemoryFileSystem, path: str, node: Node, lock: threading.RLock, *, writes: bool
    ) -> None:
        """``writes``: open for writing too."""
        self._file_system = file_system
        self._writes = writes
        self._path = path
        self._node = node
        self._lock = lock
        self._errors_told = node.errors if node.told else node.errors - 1

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        with self._lock:
            data = self._that_fits(data, position)
            self._node.write(position, data)
        return len(data)

    def write_elsewhere(self, buffers: Sequence[Buffer], position: int, target: int | None) -> int:
        """Report a write as done, but put it at ``target`` of the same file on the disk, or (None) nowhere. Visible once
        the page cache is gone."""
        data = b"".join(buffers)
        with self._lock:
            data = self._that_fits(data, position)
            self._node.write_elsewhere(position, data, target)
        return len(data)

    def read(self, size: int, position: int) -> bytes:
        with self._lock:
            return bytes(self._node.content[position : position + size])

    def read_cached(self, into: memoryview, position: int) -> bool:
        content = self.read(len(into), position)
        into[: len(content)] = content
        return len(content) == len(into)

    def drop_cached(self) -> None:
        with self._lock:
            self._node.evict()

    def sync(self) -> None:
        with self._lock:
            node = self._node
            if self._errors_told != node.errors:
                self._errors_told, node.told = node.errors, True
                raise _error(errno.EIO, self._path)
            node.sync()

    def fail_write_back(self, loss: Loss) -> None:
        """Write back unsynced data to a failing disk: ``loss`` decides the part that reaches it. The next sync raises EIO,
        later syncs succeed."""
        with self._lock:
            self._node.fail_write_back(self._path, self._file_system.sector_bytes, loss)

    def preallocate(self, size: int) -> None:
        with self._lock:
            self._may_write()
            growth = size - max(len(self._node.content), self._node.reserved)
            if growth > 0:
                if self._file_system.room(growth) < growth:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._node.reserved = size

    def truncate(self, size: int) -> None:
        with self._lock:
            self._may_write()
            self._node.truncate(size)

    def size(self) -> int:
        return len(self._node.content)

    def close(self) -> None:
        """Do nothing."""

    def _may_write(self) -> None:
        if not self._writes:
            raise _error(errno.EBADF, self._path)
        self._file_system.may_change(self._path)

    def _that_fits(self, data: bytes, position: int) -> bytes:
        self._may_write()
        growth = position + len(data) - max(len(self._node.content), self._node.reserved)
        data = data[: len(data) - max(0, growth - self._file_system.room(growth))]
        if not data and growth > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return data


class MemoryFileSystem:
    """A ``FileSystem`` in memory, with absolute paths. The initial directories are durable from the start."""

    def __init__(self, *directories: str, capacity_bytes: int = _UNBOUNDED, sector_bytes: int = SECTOR_BYTES) -> None:
        """``capacity_bytes`` may be changed at any time. A write beyond it fails with ENOSPC."""
        self.capacity_inodes = 0
        """Files and directories at most, 0: no limit. May be changed at any time; another file fails with ENOSPC."""
        self.capacity_bytes = capacity_bytes
        self.sector_bytes = sector_bytes
        self.read_only: tuple[str, ...] = ()
        """Directories whose disks take no write: each fails with EROFS."""
        self._root = Directory()
        self._lock = threading.RLock()
        for directory in directories:
            self.make_directory(directory)
        self.sync_all()

    def crashed(self, loss: Loss) -> MemoryFileSystem:
        """A file system with the disk's content after the power cut ``loss``. This one stays unchanged."""
        with self._lock:
            after = MemoryFileSystem(capacity_bytes=self.capacity_bytes, sector_bytes=self.sector_bytes)
            after._root = self._root.crashed("", self.sector_bytes, loss)
            return after

    def sync_all(self) -> None:
        """Make everything durable."""
        with self._lock:
            for node in self._nodes():
                node.sync()

    def flip(self, path: str, byte: int, bit: int, *, cached: bool = False) -> None:
        """Invert one bit of a file (0 is the lowest), durably. ``cached``: the page cache keeps the old bit. Raises OSError
        for an unknown file."""
        with self._lock:
            self._node(path).flip(byte, bit, cached=cached)

    def lose(self, path: str) -> None:
        """Lose a file with its name, durably. Raises OSError for an unknown file."""
        with self._lock:
            self._node(path)
            directory, name = self._parent(path)
            directory.lose(name)

    def evict(self) -> None:
        """Empty the page cache: reads see the disk's content with the unsynced changes."""
        with self._lock:
            for node in self._nodes():
                if isinstance(node, Node):
                    node.evict()

    def fail_directory_write_back(self, path: str, loss: Loss) -> None:
        """Write back a directory's changed names to a failing disk: ``loss`` decides the part that reaches it. Later syncs
        of the directory do not write the rest."""
        with self._lock:
            self._directory(path).fail_write_back(path, loss)

    def files(self) -> dict[str, bytes]:
        with self._lock:
            return dict(sorted(_contents(self._root, "")))

    def used_bytes(self) -> int:
        """Bytes of all files, preallocated space included."""
        return sum(max(len(node.content), node.reserved) for node in self._nodes() if isinstance(node, Node))

    def room(self, wanted: int) -> int:
        """Free bytes, ``wanted`` at most."""
        if wanted <= 0 or self.capacity_bytes >= _UNBOUNDED:
            return max(wanted, 0)
        return min(wanted, max(0, self.capacity_bytes - self.used_bytes()))

    # -- the seam

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        with self._lock:
            if write or create:
                self.may_change(path)
            directory, name = self._parent(path)
            node = directory.names.get(name)
            if node is None:
                if not create:
                    raise _error(errno.ENOENT, path)
                if self.capacity_inodes and len(self._nodes()) >= self.capacity_inodes:
                    raise _error(errno.ENOSPC, path)
                node = Node()
                directory.change(None, name, node)
            if isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            return MemoryFile(self, path, node, self._lock, writes=write or create)

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
                    node = Directory()
                    at.change(None, name, node)
                if isinstance(node, Node):
                    raise _error(errno.ENOTDIR, path)
                at = node

    def rename(self, source: str, target: str) -> None:
        """Rename a file within its directory. Raises OSError (EXDEV) across directories."""
        with self._lock:
            self.may_change(source)
            directory, name = self._parent(source)
            target_directory, target_name = self._parent(target)
            if directory is not target_directory:
                raise _error(errno.EXDEV, target)
            if name not in directory.names:
                raise _error(errno.ENOENT, source)
            directory.change(name, target_name, directory.names[name])

    def unlink(self, path: str) -> None:
        with self._lock:
            self.may_change(path)
            directory, name = self._parent(path)
            node = directory.names.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
            if isinstance(node, Directory):
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

    def inodes(self, path: str) -> tuple[int, int]:
        with self._lock:
            limit = self.capacity_inodes
            return (max(0, limit - len(self._nodes())), limit) if limit else (0, 0)

    # -- inside

    def may_change(self, path: str) -> None:
        if any(f"{path}/".startswith(f"{disk}/") for disk in self.read_only):
            raise _error(errno.EROFS, path)

    def _directory(self, path: str) -> Directory:
        at = self._root
        for name in _parts(path):
            node = at.names.get(name)
            if not isinstance(node, Directory):
                raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            at = node
        return at

    def _node(self, path: str) -> Node:
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if not isinstance(node, Node):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        above, name = _split(path)
        return self._directory(above), name

    def _nodes(self) -> Nodes:
        found: Nodes = [self._root]
        for node in found:
            if isinstance(node, Directory):
                found += node.names.values()
        return found


@lru_cache(4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


@lru_cache(4096)
def _split(path: str) -> tuple[str, str]:
    return os.path.split(path)


def _contents(directory: Directory, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for name, node in directory.names.items():
        below = f"{path}/{name}"
        found += [(below, bytes(node.content))] if isinstance(node, Node) else _contents(node, below)
    return found


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
