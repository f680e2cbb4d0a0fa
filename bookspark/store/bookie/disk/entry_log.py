"""Entry logs: the append-only files that hold every entry of a bookie, each a plain Arrow IPC stream.

Law: a log is Arrow's schema message and then batch frames, byte for byte as received. Bytes below its *synced note* are synced:
damage there is reported, never cut and never taken for absence. Bytes above it may be torn by a crash (``log_scan``). The first
sync of a log also syncs the note, so a short or missing log with acknowledged entries is always known. Log numbers ascend and are
used once in a bookie, over all of its directories::

    <directory>/logs/<number, 8 hex>.arrows     400 bytes of schema │ batch frame │ batch frame │ …
    <directory>/logs/<number, 8 hex>.synced     its note (``synced_note``)

Disk space for a log is reserved without changing its length, and returned by the seal. Each start of a bookie begins a new log at
its first add, so a bookie never appends to a file of another process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from bookspark.store.bookie.disk.disk_errors import took_nothing
from bookspark.store.bookie.disk.file_system import File, FileSystem, NoSpaceError, needing_space, write_all
from bookspark.store.bookie.disk.log_scan import SCHEMA, LogScan, filler, scan_log
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.wire.entry_batch import Buffer
from bookspark.store.wire.logged_frames import LoggedFrames

LOGS = "logs"
LOG_SUFFIX = ".arrows"
NOTE_SUFFIX = ".synced"

_COPY_BYTES = 4 << 20


class EntryLog:
    """One log. The loop decides where frames go (``end``); the directory's commit thread performs all file operations."""

    __slots__ = (
        "_file_system", "_noting", "_removed", "directory", "end", "file", "note", "number", "second_file", "synced",
    )  # fmt: skip

    def __init__(self, file_system: FileSystem, directory: str, number: int) -> None:
        self._file_system = file_system
        self.directory = directory
        self.number = number
        self.end = len(SCHEMA)
        """Bytes written or queued."""
        self.synced = 0
        """Durable bytes. Set by the directory's own threads only."""
        self.file: File | None = None
        self.second_file: File | None = None
        """For the syncs of a second thread; open for as long, and since before the first write. The kernel reports a failed
        write-back to each descriptor open at that time, but to a later descriptor only if no other saw the error (Linux,
        errseq_t). So a sync on a freshly opened descriptor may succeed although the disk lacks written bytes."""
        self.note = SyncedNote(file_system, self._stem + NOTE_SUFFIX, number)
        self._noting = threading.Lock()
        self._removed = False

    @property
    def path(self) -> str:
        return self._stem + LOG_SUFFIX

    @property
    def note_path(self) -> str:
        return self._stem + NOTE_SUFFIX

    @property
    def _stem(self) -> str:
        return f"{self.directory}/{LOGS}/{self.number:08x}"

    def create(self, size: int, begun: Callable[[], None] = lambda: None) -> None:
        """Create note and file, with ``size`` bytes reserved. ``begun`` is called once their names are durable, before anything
        is written. Raises NoSpaceError, with both removed, and OSError."""
        try:
            # This covers the sync too: nothing rests on these files yet, so a lack of room does no harm.
            with needing_space():
                self._create(size, begun)
        except NoSpaceError:
            self._close()
            self._unlink()
            raise

    def _create(self, size: int, begun: Callable[[], None]) -> None:
        directory = os.path.dirname(self.path)
        self.note.write(0)
        self.note.sync()
        # The note is durable before the log exists: a log without its note counts as damaged.
        self._file_system.sync_directory(directory)
        self.file = self._file_system.open(self.path, create=True)
        self.second_file = self._file_system.open(self.path, write=True)
        write_all(self.file, [SCHEMA], 0)
        self._file_system.sync_directory(directory)
        begun()
        # Without room for the whole log, the remaining space may still hold some frames.
        with suppress(NoSpaceError), needing_space():
            self.file.preallocate(size)

    def write(self, frames: Sequence[Buffer], position: int) -> int:
        """Write frames that follow each other from ``position`` on; return the end. Raises NoSpaceError, after which some frames
        may be there until ``seal`` cuts them off, and OSError."""
        assert self.file is not None
        return write_all(self.file, frames, position)

    def sync(self, position: int) -> None:
        """Make everything up to ``position`` durable, and note it. Raises OSError, after which the content of the disk is
        unknown."""
        assert self.file is not None
        self._sync(self.file, position)

    def sync_beside(self, position: int) -> None:
        """``sync``, in a second thread. The first thread may write and sync meanwhile, and may seal the log once it is fully
        synced."""
        # In this order: a log without a file is sealed, hence fully synced.
        file = self.second_file
        if position > self.synced:
            assert file is not None
            self._sync(file, position)

    def _sync(self, file: File, position: int) -> None:
        file.sync()
        with self._noting:
            if position > self.synced:
                self.note.write(position)
                if not self.synced:
                    self.note.sync()
                self.synced = position

    def renew_note(self) -> None:
        """Replace a damaged note durably, in any thread. No effect on a removed log, or a log without synced bytes. Raises
        OSError."""
        with self._noting:
            if self._removed or not self.synced:
                return
            with closing(SyncedNote(self._file_system, self.note_path, self.number)) as note:
                if self.file is None:
                    # Nobody else has a sealed log's note open, so an unreadable note becomes another file.
                    note.read()
                note.write(self.synced)
                note.sync()
            self._file_system.sync_directory(os.path.dirname(self.note_path))

    def seal(self) -> None:
        """End the log: return the reserved space, make the note durable, close. Raises NoSpaceError, with the log still open,
        and OSError."""
        if self.file is not None:
            with needing_space():
                self.file.truncate(self.synced)
            self.note.sync()
        self._close()

    def _close(self) -> None:
        if self.file is not None:
            self.file.close()
        # The second thread may still use its file; dropping the last reference closes it.
        self.file = self.second_file = None
        self.note.close()

    # -- boot

    def recover(
        self,
        covered: int,
        lose: Callable[[str], None],
        take: Callable[[LoggedFrames], object],
        *,
        begun: bool = False,
        cached: bool = False,
    ) -> LogScan:
        """Scan the log from position ``covered`` on (0: all of it) and settle its tail: cut torn bytes, make the rest durable.

        If the disk does not take that now, ``synced`` stays below ``end``. Nothing is cut below the note; nothing at all is cut
        without a note or in a damaged log. ``lose(why)`` is called before any change of a log that has lost possibly acknowledged
        entries. Nothing is cut either in a log with bytes that the disk can't read. ``begun``: the log once existed, and was not
        removed on purpose. ``cached``: only the process died, so bytes noted as written are not cut either. ``take`` is called
        with all good frames, before the tail is known to be settled. Raises OSError."""
        noted = self.note.read()
        if not self._file_system.exists(self.path):
            damaged = (noted != 0 and not self.note.is_blank()) or covered > 0 or begun
            if damaged:
                lose(f"{self.path} is gone")
            return LogScan(0, 0, damaged)
        with closing(self._file_system.open(self.path)) as file:
            size = file.size()
            below = size if noted is None else noted
            if has_written := self.note.has_written():
                written = self.note.read_written() if cached else 0
                below = max(below, size if written is None else written)
            scan = scan_log(file, size, covered, below, take)
            if scan.damaged:
                lose(f"{self.path} is damaged")
        # Bytes below the note are synced, also where they can't be read.
        self.end = self.synced = max(scan.end, scan.unread_end, noted or 0) if scan.unread else scan.end
        try:
            self._settle(scan, size, noted, has_written=has_written)
        except OSError as error:
            # What can't be written now is settled at a later start: nothing is appended to this log.
            if not took_nothing(error):
                if not scan.unread:
                    raise
                lose(f"{self.path} can't be written to the disk again: {error}")
            self.synced = min(self.end, noted or 0)
        finally:
            self.note.close()
        return scan

    def _settle(self, scan: LogScan, size: int, noted: int | None, *, has_written: bool) -> None:
        with closing(self._file_system.open(self.path, write=True)) as file:
            if noted is None or noted < scan.end or size > scan.end or scan.headless or scan.torn:
                _settle_bytes(file, scan, noted or 0)
                if scan.may_be_cut:
                    noted = scan.end
                elif noted is not None:
                    # Unread bytes may have been acknowledged too: no later start may take them for a torn write.
                    noted = max(noted, scan.end, scan.unread_end)
            elif scan.may_be_cut:
                # This returns the reserved space of a process that died.
                file.truncate(scan.end)
        if noted is not None:
            # An unchanged note too: the process that wrote it may have died, or failed, before it was durable.
            self.note.write(noted)
            if has_written and not scan.unread:
                # The bytes written above it are settled, and may be cut.
                self.note.note_written(0)
            self.note.sync()

    def adopt(self) -> bool:
        """Take over, unread, a log that a checkpoint covers whole. False if it is shorter than before. Raises OSError."""
        noted = self.note.read()
        self.note.close()
        if not self._file_system.exists(self.path):
            self.end = self.synced = 0
            return False
        with closing(self._file_system.open(self.path)) as file:
            self.end = self.synced = file.size()
        return noted is None or self.end >= noted

    @property
    def is_removed(self) -> bool:
        return not self._file_system.exists(self.path) and self.note.read() == 0

    def remove(self) -> None:
        """Unlink the log, then its note. (A log without a note is damage; a note of 0 without a log is not.) Raises OSError."""
        with self._noting:
            self._removed = True
        self.note.write(0)
        self.note.sync()
        self.note.close()
        self._unlink()

    def _unlink(self) -> None:
        for suffix in (LOG_SUFFIX, NOTE_SUFFIX):
            if self._file_system.exists(self._stem + suffix):
                self._file_system.unlink(self._stem + suffix)
                # Each unlink is synced: otherwise a crash could restore the log but not its note.
                self._file_system.sync_directory(os.path.dirname(self.path))


def _settle_bytes(file: File, scan: LogScan, noted: int) -> None:
    if scan.headless and scan.frames:
        write_all(file, [SCHEMA], 0)
    for fill in (bytes, filler):
        # First zeros, so that a crash leaves a torn frame here and nothing that looks like damage.
        for start, end in scan.torn:
            write_all(file, list(fill(end - start)) if fill is filler else [bytes(end - start)], start)
        if scan.torn:
            file.sync()
    if scan.may_be_cut:
        file.truncate(scan.end)
    # The tail may be in the page cache only, even after a failed sync; written again, it is dirty again.
    for start, end in scan.good:
        _write_again(file, max(start, noted), end)
    file.sync()


def _write_again(file: File, start: int, end: int) -> None:
    for at in range(start, end, _COPY_BYTES):
        write_all(file, [file.read(min(_COPY_BYTES, end - at), at)], at)


def log_numbers(file_system: FileSystem, directory: str) -> list[int]:
    """Numbers of a directory's entry logs, ascending, including logs with only a note left."""
    names = (os.path.splitext(name) for name in file_system.list(f"{directory}/{LOGS}"))
    return sorted({int(stem, 16) for stem, suffix in names if suffix in (LOG_SUFFIX, NOTE_SUFFIX)})
