"""The one seam through which a bookie touches files.

Law: ``bookspark.store.bookie`` opens, writes, syncs, renames and removes files only through a ``FileSystem``, so that a stand-in
can lose unsynced data or fail any single call. The calls promise no more than the kernel's. A write may be short. A created or
renamed name is durable only after ``sync_directory``. A failed ``sync`` means that data may be gone, and is never retried (see
"fsyncgate", PostgreSQL 2018). No link is followed to a file (``support.private_files``).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from types import TracebackType
from typing import Protocol, TypeVar

from bookspark.store.bookie.disk.disk_errors import MEANINGS, Meaning, meaning, took_nothing
from bookspark.store.wire.entry_batch import Buffer
from bookspark.support.private_files import PRIVATE_DIRECTORY, PRIVATE_FILE

Result = TypeVar("Result")

_IOV_MAX = 1024
_FALLOC_FL_KEEP_SIZE = 1


class File(Protocol):
    """An open file. Positions and sizes in bytes. Several threads may read it. Dropping the last reference closes it. Each call
    raises OSError."""

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write ``buffers`` or a first part of them, one after the other; return the number of bytes written."""

    def read(self, size: int, position: int) -> bytes:
        """``size`` bytes, or fewer at the end of the file."""

    def read_cached(self, into: memoryview, position: int) -> bool:
        """Fill ``into`` from the page cache; False if that would wait for the disk, or if the file ends before."""

    def drop_cached(self) -> None:
        """Drop the file's clean pages from the page cache, so that the next read asks the disk. Unsynced pages may stay."""

    def sync(self) -> None:
        """Make the content durable."""

    def preallocate(self, size: int) -> None:
        """Reserve disk space for the first ``size`` bytes; the file's length stays unchanged."""

    def truncate(self, size: int) -> None:
        """Set the length, and release any space reserved beyond it."""

    def size(self) -> int:
        """The length."""

    def close(self) -> None:
        """The last call."""


class FileSystem(Protocol):
    """Names and directories. Paths are absolute. Each call raises OSError."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open for reading only, with ``write`` for writing too; FileNotFoundError unless it exists. ``create``: open for
        writing too, and make it if it does not exist."""

    def exists(self, path: str) -> bool:
        """Does a file or directory of this name exist? OSError if the disk can't tell: an unreadable marker, note or checkpoint
        is not absent."""

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Make it with its parents; no error if it exists."""

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces ``target``."""

    def unlink(self, path: str) -> None:
        """Remove a file; FileNotFoundError if there is none."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def free_bytes(self, path: str) -> int:
        """Free bytes for this user on the disk of ``path``."""

    def total_bytes(self, path: str) -> int:
        """Used bytes and free bytes for this user together, on the disk of ``path``."""

    def inodes(self, path: str) -> tuple[int, int]:
        """Free inodes for this user, and these and the used ones together, on the disk of ``path``; (0, 0) without a limit. A
        disk without a free inode takes no new file."""


class NoSpaceError(OSError):
    """The disk, a disk quota, or the table of open files has no room for a write, or the file system is read-only. Earlier writes
    are not affected. (A sync that fails so is no NoSpaceError: after any failed sync the content of the disk is unknown.)"""


_TRIES = 3


class _NeedingSpace:
    """A class and not a generator, for speed: each add passes here."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and took_nothing(error):
            raise NoSpaceError(error.errno, error.strerror, error.filename) from error


_NEEDING_SPACE = _NeedingSpace()


def needing_space() -> _NeedingSpace:
    """``with needing_space(): …`` turns an OSError for lack of space into a NoSpaceError."""
    return _NEEDING_SPACE


def write_all(file: File, buffers: Sequence[Buffer], position: int) -> int:
    """Write every byte of ``buffers`` from ``position`` on, over short writes; return the end position. Raises NoSpaceError,
    OSError."""
    # No ``with``: each add passes here, and its two calls cost more than a note in the page cache.
    try:
        return _write_all(file, buffers, position)
    except OSError as error:
        if took_nothing(error):
            raise NoSpaceError(error.errno, error.strerror, error.filename) from error
        raise


def _write_all(file: File, buffers: Sequence[Buffer], position: int) -> int:
    for start in range(0, len(buffers), _IOV_MAX):
        chunk = buffers[start : start + _IOV_MAX] if len(buffers) > _IOV_MAX else buffers
        expected = sum(map(len, chunk))
        written = file.write(chunk, position)
        if written < expected:
            rest = memoryview(b"".join(chunk))
            while written < expected:
                count = file.write([rest[written:]], position + written)
                if count == 0:
                    raise OSError(errno.EIO, "a write wrote nothing")
                written += count
        position += expected
    return position


def read_all(file: File) -> bytes:
    """The whole content of a small file. Raises OSError."""
    return file.read(file.size(), 0)


def uncached(file_system: FileSystem, path: str) -> None:
    """Drop a file's pages so that its next read asks the disk; no effect if the file is missing. Raises OSError.

    Decision: ``posix_fadvise``, not direct reads: it works on every file system, and the usual readers do the checks. Unwritten
    pages stay, but the checks concern synced bytes; a page shared with unsynced bytes is checked the next time."""
    try:
        file = file_system.open(path)
    except FileNotFoundError:
        return
    with closing(file):
        file.drop_cached()


def replace_file(file_system: FileSystem, path: str, content: Sequence[Buffer]) -> None:
    """Replace ``path`` by ``content``, atomically and durably: a crash leaves the old or the new content. Raises NoSpaceError,
    with the old content in place, and OSError."""
    temporary = path + TEMPORARY_SUFFIX
    if file_system.exists(temporary):
        file_system.unlink(temporary)
    try:
        # This covers the sync too: nothing rests on the new file yet, so a lack of room does no harm.
        with needing_space(), closing(create_anyway(file_system, temporary)) as file:
            write_all(file, content, 0)
            file.sync()
    except NoSpaceError:
        if file_system.exists(temporary):
            file_system.unlink(temporary)
        raise
    file_system.rename(temporary, path)
    sync_names(file_system, os.path.dirname(path))


def sync_names(file_system: FileSystem, directory: str) -> None:
    """Make the names in a directory durable, with retries as in ``with_descriptor``. Raises OSError."""
    with_descriptor(lambda: file_system.sync_directory(directory))


def with_descriptor(call: Callable[[], Result]) -> Result:
    """Call a function that opens a file, for callers that would take its failure for the disk's. A lack of file descriptors is no
    failure of the disk, so it is retried. Raises the errors of ``call``, and the lack too after some tries."""
    for _ in range(_TRIES - 1):
        try:
            return call()
        except OSError as error:
            if meaning(error) is not Meaning.NO_DESCRIPTOR:
                raise
    return call()


TEMPORARY_SUFFIX = ".new"
"""Suffix of unfinished files. A boot removes those that a crash left."""


class _RealFile:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._descriptor, buffers, position)

    def read(self, size: int, position: int) -> bytes:
        content = os.pread(self._descriptor, size, position)
        while len(content) < size and (
            more := os.pread(self._descriptor, size - len(content), position + len(content))
        ):
            content += more
        return content

    def read_cached(self, into: memoryview, position: int) -> bool:
        try:
            return os.preadv(self._descriptor, [into], position, os.RWF_NOWAIT) == len(into)
        except OSError as error:
            # The same read in a thread tells why.
            if meaning(error) in (Meaning.PROCESS, Meaning.UNSUPPORTED):
                return False
            raise

    def drop_cached(self) -> None:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def preallocate(self, size: int) -> None:
        if _libc.fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, 0, size) != 0:
            number = ctypes.get_errno()
            # A file system that can't reserve space is only slower.
            if MEANINGS.get(number) is not Meaning.UNSUPPORTED:
                raise OSError(number, os.strerror(number))

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class RealFileSystem:
    """The file system of the operating system."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | (os.O_CREAT if create else 0)
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        return _RealFile(os.open(path, flags, PRIVATE_FILE))

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except OSError as error:
            if meaning(error) is Meaning.ABSENT:
                return False
            raise
        return True

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=PRIVATE_DIRECTORY, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return (status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize

    def inodes(self, path: str) -> tuple[int, int]:
        status = os.statvfs(path)
        return status.f_favail, status.f_files - status.f_ffree + status.f_favail


# -- Spare files: empty files of a bookie's directory, given up for other files on a disk without a free inode.
#
# Law: a file by which room comes back, a checkpoint or a control log, and what a start needs is made although no inode is free:
# one spare file after the other is removed for it. The last one is for rewritten logs alone: several logs become one, and the
# checkpoint after which they go still has its own. A log for entries takes none. Spare files are made again once the disk has
# free inodes, and none where a file system has no limit.


SPARE_FILES = tuple(f"spare.{number}" for number in range(5))


def make_spare_files(file_system: FileSystem, directory: str) -> None:
    """Make the missing spare files, as far as there are free inodes."""
    with suppress(OSError):
        for name in SPARE_FILES:
            path = f"{directory}/{name}"
            if not file_system.exists(path):
                file_system.open(path, create=True).close()


def create_rewritten(file_system: FileSystem, directory: str, path: str) -> File:
    """Create a rewritten log of a bookie's directory, for its spare file if there is no free inode. Raises OSError."""
    spares = [f"{directory}/{SPARE_FILES[-1]}"]
    return _with_spare_files(spares, lambda: file_system.open(path, create=True), file_system)


def create_anyway(file_system: FileSystem, path: str) -> File:
    """Create a file in a bookie's directory, or one folder below, for a spare file if there is no free inode. Raises OSError."""
    directory = os.path.dirname(path)
    return with_spare_files(
        (directory, os.path.dirname(directory)), lambda: file_system.open(path, create=True), file_system
    )


def with_spare_files(
    directories: tuple[str, ...], make: Callable[[], Result], file_system: FileSystem | None = None
) -> Result:
    """Call ``make``; after a failure for lack of room remove a spare file of these directories, and call it again. Raises its
    last OSError."""
    spares = [f"{directory}/{name}" for directory in directories for name in SPARE_FILES[:-1]]
    return _with_spare_files(spares, make, file_system or RealFileSystem())


def _with_spare_files(spares: list[str], make: Callable[[], Result], files: FileSystem) -> Result:
    while True:
        try:
            return make()
        except OSError as error:
            if error.errno != errno.ENOSPC or not _gives_up_one(files, spares):
                raise


def _gives_up_one(file_system: FileSystem, spares: list[str]) -> bool:
    while spares:
        with suppress(OSError):
            file_system.unlink(spares.pop())
            return True
    return False
