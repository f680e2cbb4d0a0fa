"""A file system in memory that tells what a power cut leaves of it, and that lies when it is told to.

Law: it loses all that POSIX allows to be lost, and nothing else. Synced data stays. Each piece of unsynced data is kept or lost
on its own: a write sector by sector (so perhaps partly, out of order, or with zeros for its data), and a creation, a rename or an
unlink until its directory is synced. A synced file whose name is not durable is lost. ``crashed`` changes nothing: one moment can
be asked for every disk that it might leave, while the bookie goes on.

A disk that breaks this law does so only by a call of its own: ``flip``, ``lose``, and of an open file ``fail_write_back`` and
``write_elsewhere``. ``evict`` shows what is on the disk without a crash. ``faulty_files`` calls them by rules. Who is killed, and
not its host, goes on with the same file system.

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
from functools import lru_cache

from bookspark.store.bookie.disk.file_system import File
from bookspark.store.wire.entry_batch import Buffer
from bookspark.testing.power_cuts import Change, Fate, Loss

# -- The files and directories of ``memory_files``: what is in the page cache, and what is on the disk.
#
# Law: a reader sees the page cache, a boot after a power cut the disk. ``pending`` is what the disk does not have yet: a sync
# puts it there, a power cut decides the fate of each piece of it. A write-back that fails leaves on the disk what its ``Loss``
# keeps and takes all pages for clean, so that a later sync succeeds and brings nothing. It is told once to each file that was
# open before, and to one that is opened before anybody was told: Linux since 4.17 does so.
#
# Source: pebble's ``vfs.MemFS``; "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).


Piece = tuple[int, bytes | None]
"""(position, what is written there), or (length, None) for a truncation."""


class Node:
    """The content of a file, whatever its name."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        """What is in the page cache, so what is read."""
        self.durable = bytearray(content)
        """What is on the disk."""
        self.pending: list[Piece] = []
        """What a sync makes durable, in the order of the writes."""
        self.reserved = 0
        """The size that was preallocated, in bytes."""
        self.errors = 0
        """How many write-backs have failed."""
        self.told = True
        """Was somebody told of the last one?"""

    def write(self, position: int, data: bytes) -> None:
        put(self.content, position, data)
        self.pending.append((position, data))

    def write_elsewhere(self, position: int, data: bytes, target: int | None) -> None:
        """The page cache takes a write as it is. The disk says that it has taken it, too, and puts it at ``target`` of the same
        file: nowhere (None), or in part, if that is not in the file."""
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
        """The page cache is needed for something else: what is clean is read from the disk again."""
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
    """A directory's names. ``pending`` has the changes since the last sync: (name that goes, name that comes, its node)."""

    def __init__(self) -> None:
        self.names: Names = {}
        self.durable: Names = {}
        self.pending: list[tuple[str | None, str | None, Node | Directory]] = []

    def change(self, gone: str | None, came: str | None, node: Node | Directory) -> None:
        self.pending.append((gone, came, node))
        _rename(self.names, gone, came, node)

    def lose(self, name: str) -> None:
        """A file is gone from the page cache and from the disk."""
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
    """Cut ``content``, or fill it up with zeros."""
    del content[size:]
    content.extend(bytes(size - len(content)))


def put(content: bytearray, position: int, data: bytes) -> None:
    """Write ``data`` at ``position``; a gap before it is filled with zeros."""
    if len(content) < position:
        resize(content, position)
    content[position : position + len(data)] = data


# --


SECTOR_BYTES = 128
"""A sector is written completely or not at all. It is smaller than a disk's, so that small frames are torn too."""
_UNBOUNDED = 1 << 50


class MemoryFile:
    """An open file. It stays usable when its name is renamed or unlinked."""

    def __init__(self, file_system: MemoryFileSystem, path: str, node: Node, lock: threading.RLock) -> None:
        self._file_system = file_system
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
        """A write that the disk reports as done and makes at ``target`` of the same file, or (None) nowhere. It shows once the
        page cache is gone."""
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
        """What is not synced is written back, and the disk fails: ``loss`` says what of it is on the disk. The next sync tells of
        it (``memory_files``), and the syncs after that one succeed."""
        with self._lock:
            self._node.fail_write_back(self._path, self._file_system.sector_bytes, loss)

    def preallocate(self, size: int) -> None:
        with self._lock:
            growth = size - max(len(self._node.content), self._node.reserved)
            if growth > 0:
                if self._file_system.room(growth) < growth:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._node.reserved = size

    def truncate(self, size: int) -> None:
        with self._lock:
            self._node.truncate(size)

    def size(self) -> int:
        return len(self._node.content)

    def close(self) -> None:
        """Do nothing: an open file holds nothing."""

    def _that_fits(self, data: bytes, position: int) -> bytes:
        growth = position + len(data) - max(len(self._node.content), self._node.reserved)
        data = data[: len(data) - max(0, growth - self._file_system.room(growth))]
        if not data and growth > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return data


class MemoryFileSystem:
    """A ``FileSystem`` in memory, with absolute paths. The directories that it is made with are durable from the start."""

    def __init__(self, *directories: str, capacity_bytes: int = _UNBOUNDED, sector_bytes: int = SECTOR_BYTES) -> None:
        """``capacity_bytes`` may be changed at any time. A write beyond it fails with ENOSPC."""
        self.capacity_bytes = capacity_bytes
        self.sector_bytes = sector_bytes
        self._root = Directory()
        self._lock = threading.RLock()
        for directory in directories:
            self.make_directory(directory)
        self.sync_all()

    def crashed(self, loss: Loss) -> MemoryFileSystem:
        """A file system with what is on the disk after the power cut ``loss``. This one stays as it is."""
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
        """Invert one bit of a file, durably (0 is the lowest bit). ``cached``: the page cache has the old one still. Raises
        OSError if there is no such file."""
        with self._lock:
            self._node(path).flip(byte, bit, cached=cached)

    def lose(self, path: str) -> None:
        """Lose a file with its name, durably. Raises OSError if there is none."""
        with self._lock:
            self._node(path)
            directory, name = self._parent(path)
            directory.lose(name)

    def evict(self) -> None:
        """Empty the page cache: reads show what is on the disk, and what is not synced."""
        with self._lock:
            for node in self._nodes():
                if isinstance(node, Node):
                    node.evict()

    def fail_directory_write_back(self, path: str, loss: Loss) -> None:
        """What changed in a directory's names is written back, and the disk fails: ``loss`` says what of it is on the disk. Later
        syncs of the directory bring nothing of it."""
        with self._lock:
            self._directory(path).fail_write_back(path, loss)

    def files(self) -> dict[str, bytes]:
        """The content of every file by its path, sorted by path."""
        with self._lock:
            return dict(sorted(_contents(self._root, "")))

    def used_bytes(self) -> int:
        """The bytes that all files take, with what is preallocated for them."""
        return sum(max(len(node.content), node.reserved) for node in self._nodes() if isinstance(node, Node))

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
                node = Node()
                directory.change(None, name, node)
            if isinstance(node, Directory):
                raise _error(errno.EISDIR, path)
            return MemoryFile(self, path, node, self._lock)

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

    # -- inside

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
