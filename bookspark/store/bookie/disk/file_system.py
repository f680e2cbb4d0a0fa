"""The one seam through which a bookie touches files.

Law: nothing in ``bookspark.store.bookie`` opens, writes, syncs, renames or removes a file but through a ``FileSystem``, so that a
stand-in can lose what was not synced or fail any single call. The calls are those of the kernel and promise no more than it does.
A write may be short. A created or renamed name is durable only after ``sync_directory``. A failed ``sync`` says that data may be
gone, and is never tried again (see "fsyncgate", PostgreSQL 2018).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, TypeVar

from bookspark.store.wire.entry_batch import Buffer
from bookspark.support.private_files import PRIVATE_DIRECTORY, PRIVATE_FILE

Result = TypeVar("Result")

_IOV_MAX = 1024
_FALLOC_FL_KEEP_SIZE = 1


class File(Protocol):
    """An open file. Positions and sizes in bytes. Several threads may read it. It is closed when its last user drops it. Each
    call raises OSError."""

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write at most what ``buffers`` hold, one after the other; returns how many bytes were written."""

    def read(self, size: int, position: int) -> bytes:
        """``size`` bytes, or fewer at the end of the file."""

    def read_cached(self, into: memoryview, position: int) -> bool:
        """Fill ``into`` with what is there; False if that would have to wait for the disk, or the file ends before."""

    def drop_cached(self) -> None:
        """Have the page cache forget what is on the disk, so that the next read asks the disk. What is not synced may stay."""

    def sync(self) -> None:
        """Make the content durable."""

    def preallocate(self, size: int) -> None:
        """Reserve disk space for the first ``size`` bytes; the file's length stays what it is."""

    def truncate(self, size: int) -> None:
        """Set the length, and give back what is reserved beyond it."""

    def size(self) -> int:
        """The length."""

    def close(self) -> None:
        """No call is made after this one."""


class FileSystem(Protocol):
    """Names and directories. Paths are absolute. Each call raises OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless it exists or ``create`` is set."""

    def exists(self, path: str) -> bool:
        """Is there a file or a directory of this name? OSError if the disk can't tell: a marker, a note or a checkpoint that
        can't be looked at is not absent."""

    def list(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Make it with its parents; no error if it is there."""

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces ``target``."""

    def unlink(self, path: str) -> None:
        """Remove a file; FileNotFoundError if there is none."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def free_bytes(self, path: str) -> int:
        """What is free for this user, on the disk that ``path`` is on."""

    def total_bytes(self, path: str) -> int:
        """What is used and what is free for this user together, on the disk that ``path`` is on."""


class NoSpaceError(OSError):
    """The disk, a quota of it, or the table of open files has no room for what was to be written. What was written before is not
    affected. (A sync that fails for lack of room is no NoSpaceError: as after any failed sync, nobody knows what the disk
    holds.)"""


NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
"""Errors of a call that found no room in a table of open files: it did nothing, and says nothing of the disk."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, *NO_DESCRIPTOR)
_TRIES = 3


class _NeedingSpace:
    """A class and not a generator, because each add passes here."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise NoSpaceError(error.errno, error.strerror, error.filename) from error


_NEEDING_SPACE = _NeedingSpace()


def needing_space() -> _NeedingSpace:
    """``with needing_space(): …`` turns an OSError for lack of space into a NoSpaceError."""
    return _NEEDING_SPACE


def write_all(file: File, buffers: Sequence[Buffer], position: int) -> int:
    """Write every byte of ``buffers`` from ``position`` on, however short the single writes are; returns the position after the
    last one. Raises NoSpaceError, OSError."""
    # No ``with``: each add passes here, and its two calls cost more than a note that is in the page cache.
    try:
        return _write_all(file, buffers, position)
    except OSError as error:
        if error.errno in _NO_SPACE:
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
    """Have the next read of a file ask the disk; nothing if there is no such file. Raises OSError.

    Decision: the pages are dropped (``posix_fadvise``), and not passed by with direct reads. That works on every file system, and
    the checks are made by the readers that everybody uses. Readers fetch what they need again. Pages that are not written yet
    stay: what is checked is synced, and a page that it shares with what is not synced is seen the next time."""
    try:
        file = file_system.open(path)
    except FileNotFoundError:
        return
    try:
        file.drop_cached()
    finally:
        file.close()


def replace_file(file_system: FileSystem, path: str, content: Sequence[Buffer]) -> None:
    """Put ``content`` in place of ``path`` atomically and durably: a crash leaves the old content or the new. Raises
    NoSpaceError, with the old one in place, and OSError."""
    temporary = path + TEMPORARY_SUFFIX
    if file_system.exists(temporary):
        file_system.unlink(temporary)
    try:
        # This covers the sync too: nothing rests on the new file yet, so a lack of room does no harm.
        with needing_space():
            file = file_system.open(temporary, create=True)
            try:
                write_all(file, content, 0)
                file.sync()
            finally:
                file.close()
    except NoSpaceError:
        if file_system.exists(temporary):
            file_system.unlink(temporary)
        raise
    file_system.rename(temporary, path)
    sync_names(file_system, os.path.dirname(path))


def sync_names(file_system: FileSystem, directory: str) -> None:
    """Make the names in a directory durable. Raises OSError; a lack of file descriptors is tried again (``with_descriptor``)."""
    with_descriptor(lambda: file_system.sync_directory(directory))


def with_descriptor(call: Callable[[], Result]) -> Result:
    """The result of a call that opens a file where its failure would be taken for that of the disk. A lack of file descriptors
    is none: it is tried again. Raises what ``call`` raises, and the lack too after some tries."""
    for _ in range(_TRIES - 1):
        try:
            return call()
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
    return call()


TEMPORARY_SUFFIX = ".new"
"""A boot removes files whose names end so: a crash left them."""


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
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
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
            if number != errno.EOPNOTSUPP:
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

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _RealFile(os.open(path, flags, PRIVATE_FILE))

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
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
