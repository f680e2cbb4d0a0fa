"""Synced notes: the position up to which a file is known to be durable.

Law: a note is made before its file, holds 0, and is synced with its name. It is written after each sync of the file, before any
answer that rests on that sync. It is synced itself about once a second, when the file is sealed, at a checkpoint, at a clean
stop, and by a boot that rests on it. So it is exact after the death of the process; after the death of the host it may be behind,
but never ahead. It tells damage from a torn write; BookKeeper #2908 lost data for lack of such a note. A note that its disk can't
read counts as damaged, which cuts nothing; the next write makes it anew, as another file, because a bad sector takes no bytes::

    i64 position │ u32 CRC32C(i64 file number, i64 position) │ u32 0

The number (an entry log's; 0 for the control log) keeps the note of one file from being taken for another's. A control log's note
goes on with the number of the last write that it covers (``control_log``)::

    i64 write number │ u32 CRC32C(i64 file number, i64 position, i64 write number) │ u32 0

An entry log's note goes on with the position up to which the log was written before an unsynced entry was acknowledged. It is
never synced on purpose: it serves a boot under the same kernel (``unclean_marker``), whose page cache still has the dead
process's writes. A page may be missing there if the disk wrote it to a wrong place and it was read again::

    i64 written │ u32 CRC32C(i64 file number, i64 1, i64 written) │ u32 0
"""

from __future__ import annotations

import logging
import struct
from contextlib import closing

from crc32c import crc32c

from bookspark.errors import StorageError
from bookspark.store.bookie.disk.disk_errors import is_of_file
from bookspark.store.bookie.disk.file_system import File, FileSystem, needing_space, replace_file, write_all

_NOTE = struct.Struct("<qII")
_NUMBERED = struct.Struct("<qq")
_WRITE_NUMBERED = struct.Struct("<qqq")

log = logging.getLogger(__name__)


class SyncedNote:
    """The synced note of one file, an entry log or the control log."""

    def __init__(self, file_system: FileSystem, path: str, number: int) -> None:
        self._file_system = file_system
        self._path = path
        self._number = number
        self._file: File | None = None
        self._writes = False
        self.is_written = False
        self.unread = False
        """Could the disk not read the note?"""

    def read(self) -> int | None:
        """The position in bytes, or None for a missing, damaged or unreadable note. Raises OSError."""
        if not self._file_system.exists(self._path):
            return None
        content = self._read(_NOTE.size, 0)
        if len(content) < _NOTE.size:
            return None
        position: int
        position, checksum, zero = _NOTE.unpack(content)
        return position if checksum == self._checksum(position) and zero == 0 else None

    def is_blank(self) -> bool:
        """Is the note short, or all zeros? The host then went down while the note was being made, before its file was begun.
        Raises OSError."""
        return self._file_system.exists(self._path) and not any(self._read(_NOTE.size, 0)) and not self.unread

    def read_write_number(self) -> int | None:
        """Number of the last write that the note covers; None if unreadable. Raises OSError."""
        if (position := self.read()) is None:
            return None
        content = self._read(_NOTE.size, _NOTE.size)
        if len(content) < _NOTE.size:
            return None
        write_number: int
        write_number, checksum, zero = _NOTE.unpack(content)
        good = checksum == crc32c(_WRITE_NUMBERED.pack(self._number, position, write_number)) and zero == 0
        return write_number if good else None

    def has_bad_write_number(self) -> bool:
        """Does a present write number fail its checks? Raises OSError."""
        return self.read_write_number() is None and len(self._read(2 * _NOTE.size, 0)) > _NOTE.size

    def write(self, position: int, write_number: int | None = None) -> None:
        """Write ``position`` without a sync, with the number of the last write before it if writes are numbered. Raises
        NoSpaceError, OSError."""
        content = _NOTE.pack(position, self._checksum(position), 0)
        if write_number is not None:
            checksum = crc32c(_WRITE_NUMBERED.pack(self._number, position, write_number))
            content += _NOTE.pack(write_number, checksum, 0)
        if self.unread:
            # Another file takes its name at once: if it can't be made, the unreadable one keeps the name.
            self.close()
            replace_file(self._file_system, self._path, [content])
            self.unread = False
        if (file := self._file) is None or not self._writes:
            with needing_space():
                file = self._opened(write=True)
        write_all(file, (content,), 0)
        self.is_written = True

    def has_written(self) -> bool:
        """Does an entry log's note hold a written position, or may it? Raises OSError."""
        if not self._file_system.exists(self._path):
            return False
        return len(self._read(2 * _NOTE.size, 0)) > _NOTE.size or self.unread

    def read_written(self) -> int | None:
        """The written position of an entry log; None if missing or damaged. Raises OSError."""
        content = self._read(_NOTE.size, _NOTE.size)
        if len(content) < _NOTE.size:
            return None
        written: int
        written, checksum, zero = _NOTE.unpack(content)
        return written if checksum == self._written_checksum(written) and zero == 0 else None

    def note_written(self, written: int) -> None:
        """Write the written position of an entry log, without a sync. Raises NoSpaceError, OSError."""
        with needing_space():
            file = self._opened(write=True)
        write_all(file, [_NOTE.pack(written, self._written_checksum(written), 0)], _NOTE.size)

    def sync(self) -> None:
        self._opened().sync()

    def sync_if_written(self) -> None:
        """Make the note durable, if it was written since the last call. Another thread may write meanwhile. Raises OSError."""
        if self.is_written:
            self.is_written = False
            self._opened().sync()

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _checksum(self, position: int) -> int:
        return crc32c(_NUMBERED.pack(self._number, position))

    def _written_checksum(self, written: int) -> int:
        return crc32c(_WRITE_NUMBERED.pack(self._number, 1, written))

    def _read(self, size: int, position: int) -> bytes:
        """Bytes of the note, b"" if the disk can't read them. Raises OSError."""
        try:
            return self._opened().read(size, position)
        except OSError as error:
            if not is_of_file(error):
                raise
            if not self.unread:
                log.warning("%s can't be read: %s; the synced position is unknown; check the disk", self._path, error)
            self.unread = True
            self.close()
            return b""

    def _opened(self, *, write: bool = False) -> File:
        """The open note: for reading it must exist; for writing it is created."""
        if self._file is None or write > self._writes:
            self.close()
            self._file = self._file_system.open(self._path, create=write)
            self._writes = write
        return self._file


def cut_to_note(file_system: FileSystem, path: str, note: SyncedNote) -> None:
    """Cut a file back to its note; no effect without a file. Raises StorageError if the note can't be read, and OSError."""
    if not file_system.exists(path):
        return
    position = note.read()
    note.close()
    if position is None:
        raise StorageError(f"{path} has no readable note of its synced position beside it; it was not cut")
    with closing(file_system.open(path, write=True)) as file:
        if file.size() > position:
            file.truncate(position)
