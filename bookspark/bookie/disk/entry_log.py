"""Entry logs: the append-only files that hold every entry of a bookie, each a plain Arrow IPC stream.

Law: a log is Arrow's schema message and then batch frames, byte for byte as they came. What lies below its *synced note* was
synced: damage there is reported, never cut and never taken for absence. What lies above it may be torn by a crash and ends at
the first frame that fails its checks. Log numbers ascend and are used once in a bookie, over all of its directories::

    <directory>/logs/<number, 8 hex>.arrows     400 bytes of schema │ batch frame │ batch frame │ …
    <directory>/logs/<number, 8 hex>.synced     its note (``synced_note``)

A log is preallocated without changing its length, and given back what it did not use when it is sealed. Every start of a
bookie begins a new log at its first add, so no file is appended to that another process wrote.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from bookspark.bookie.disk.file_system import File, FileSystem, NoSpaceError, needing_space, write_all
from bookspark.bookie.disk.synced_note import SyncedNote
from bookspark.wire.entry_batch import FRAME_BYTES_MAX, HEADER_OFFSET, PREFIX_BYTES, Buffer, around_header
from bookspark.wire.header import HEADER_BYTES, PROTOCOL_VERSION

SCHEMA = bytes.fromhex(
    "ffffffff880100001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400"
    "0000060000001c010000d4000000940000006000000030000000040000000cffffff00000004100000001800000004000000"
    "00000000060000006469676573740000d8ffffff34ffffff00000004100000001c0000000400000000000000070000007061"
    "796c6f616400040004000400000060ffffff0000000210000000180000000400000000000000060000006c656e6774680000"
    "4cffffff000000014000000090ffffff0000000210000000240000000400000000000000120000006c6173745f6164645f63"
    "6f6e6669726d6564000088ffffff0000000140000000ccffffff00000002100000001c000000040000000000000008000000"
    "656e7472795f696400000000bcffffff0000000140000000100014000800000007000c000000100010000000000000021000"
    "0000240000000400000000000000090000006c65646765725f696400000008000c0008000700080000000000000140000000"
)
"""``entry_batch.arrow_schema()`` as Arrow's first message; here as bytes, so that a bookie does not load pyarrow."""
LOGS = "logs"
LOG_SUFFIX = ".arrows"
NOTE_SUFFIX = ".synced"

# The fields that a scan needs, from the prefix of a batch frame: the body's length; of the header the version, ledger, first,
# last, LAC, LAFR, master key, the body's checksum and its own; of the message the bytes of the two binary columns.
_SCAN = struct.Struct("<48xq32xH14xqqqqq16x16s4xI12xI224xq40xq")
_HEADER = slice(HEADER_OFFSET, HEADER_OFFSET + HEADER_BYTES - 4)
_BEFORE_HEADER = slice(HEADER_OFFSET)
_AFTER_HEADER = slice(HEADER_OFFSET + HEADER_BYTES, PREFIX_BYTES)
_LAST_BUFFER = struct.Struct("<qq")
_LAST_BUFFER_OFFSET = 256 + 13 * 16
_LAST_ROW_LAC = struct.Struct("<q")
_READ_BYTES = 4 << 20


class LoggedFrame(NamedTuple):
    """One good frame found in a log, and what its header says."""

    position: int
    size: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    last_add_confirmed: int
    last_add_fully_replicated: int
    master_key: bytes


_logged_frame: Callable[[tuple[int | bytes, ...]], LoggedFrame] = partial(
    tuple.__new__, LoggedFrame
)  # as ``_make``, in C


class EntryLog:
    """One log. The loop decides where frames go (``end``); the directory's commit thread does everything to the file."""

    __slots__ = ("_file_system", "_noting", "directory", "end", "file", "note", "number", "synced")

    def __init__(self, file_system: FileSystem, directory: str, number: int) -> None:
        self._file_system = file_system
        self.directory = directory
        self.number = number
        self.end = len(SCHEMA)
        """Bytes that are written or queued to be."""
        self.synced = 0
        """Bytes that are durable. Set by the directory's own threads only."""
        self.file: File | None = None
        """Open while the log is being written."""
        self.note = SyncedNote(file_system, self._stem + NOTE_SUFFIX, number)
        self._noting = threading.Lock()

    @property
    def path(self) -> str:
        return self._stem + LOG_SUFFIX

    @property
    def _stem(self) -> str:
        return f"{self.directory}/{LOGS}/{self.number:08x}"

    def create(self, size: int) -> None:
        """Make note and file, with ``size`` bytes reserved; names are durable afterwards. Raises NoSpaceError, with nothing left
        of them, and OSError."""
        try:
            with needing_space():  # a sync, too: nothing rests on these files yet
                self._create(size)
        except NoSpaceError:
            if self.file is not None:
                self.file.close()
                self.file = None
            self.note.close()
            self._unlink()
            raise

    def _create(self, size: int) -> None:
        directory = os.path.dirname(self.path)
        self.note.write(0)
        self.note.sync()
        self._file_system.sync_directory(directory)  # before the log: one without its note is damaged
        self.file = self._file_system.open(self.path, create=True)
        with suppress(NoSpaceError), needing_space():
            self.file.preallocate(size)  # what there is may still do for some frames
        write_all(self.file, [SCHEMA], 0)
        self._file_system.sync_directory(directory)

    def write(self, frames: Sequence[Buffer], position: int) -> int:
        """Write frames that follow each other; returns the end. After a NoSpaceError some of them may be there; ``seal`` cuts
        them off."""
        assert self.file is not None
        return write_all(self.file, frames, position)

    def sync(self, position: int, file: File | None = None) -> None:
        """Make all up to ``position`` durable, and note it. With a ``file`` of its own, a second thread may do so."""
        file = file or self.file
        assert file is not None
        file.sync()
        with self._noting:
            if position > self.synced:
                self.note.write(position)
                self.synced = position

    def sync_note(self) -> None:
        """Make the note itself durable (checkpoint, clean stop)."""
        self.note.sync()

    def seal(self) -> None:
        """Nothing more will be written: give back reserved space, make the note durable, close."""
        if self.file is not None:
            self.file.truncate(self.synced)
            self.note.sync()
            self.file.close()
            self.file = None
        self.note.close()

    # -- boot

    def recover(self, covered: int) -> LogScan:
        """Scan from ``covered`` (0: all of it) and settle the tail: cut what is torn, make the rest durable. Nothing is cut
        below the note, nor where there is no note to tell."""
        noted = self.note.read()
        if not self._file_system.exists(self.path):
            return LogScan([], 0, damaged=noted != 0 and not self.note.is_blank())
        file = self._file_system.open(self.path)
        size = file.size()
        scan = scan_log(file, size, covered, size if noted is None else noted)
        if not scan.damaged:
            file.truncate(scan.end)
            if noted is None or noted < scan.end or size > scan.end:
                # The tail may be in the page cache only, even after a sync that failed: written again it is dirty again.
                tail = noted or 0
                write_all(file, [file.read(scan.end - tail, tail)], tail)
                file.sync()
                self.note.write(scan.end)
                self.note.sync()
        self.end = self.synced = scan.end
        self.note.close()
        file.close()
        return scan

    def adopt(self) -> bool:
        """Take over a log that a checkpoint covers whole, unread; False if it is shorter than it was."""
        noted = self.note.read()
        self.note.close()
        if not self._file_system.exists(self.path):
            self.end = self.synced = 0
            return False
        file = self._file_system.open(self.path)
        self.end = self.synced = file.size()
        file.close()
        return noted is None or self.end >= noted

    @property
    def is_removed(self) -> bool:
        """Is only the note left, of a log that was removed?"""
        return not self._file_system.exists(self.path) and self.note.read() == 0

    def remove(self) -> None:
        """Unlink log and note (in this order: a log without a note is damage, a note that holds 0 without a log is not)."""
        self.note.write(0)
        self.note.sync()
        self.note.close()
        self._unlink()

    def _unlink(self) -> None:
        for suffix in (LOG_SUFFIX, NOTE_SUFFIX):
            if self._file_system.exists(self._stem + suffix):
                self._file_system.unlink(self._stem + suffix)
                self._file_system.sync_directory(
                    os.path.dirname(self.path)
                )  # or a crash could keep the second one only


class LogScan(NamedTuple):
    """What a scan found. ``end`` is where the last good frame ends; ``damaged``: bytes below the note fail their checks."""

    frames: list[LoggedFrame]
    end: int
    damaged: bool


def log_numbers(file_system: FileSystem, directory: str) -> list[int]:
    """The numbers of a directory's logs, ascending, those of which only the note is left included."""
    names = (os.path.splitext(name) for name in file_system.list(f"{directory}/{LOGS}"))
    return sorted({int(stem, 16) for stem, suffix in names if suffix in (LOG_SUFFIX, NOTE_SUFFIX)})


def scan_log(file: File, size: int, covered: int, noted: int) -> LogScan:
    """Read a log from ``covered`` on. ``noted``: below it every byte has to be good."""
    position = covered
    if position < len(SCHEMA):
        if file.read(len(SCHEMA), 0) != SCHEMA:
            return LogScan([], 0, damaged=noted > 0)
        position = len(SCHEMA)
    content = memoryview(_read_tolerant(file, position, size))
    frames: list[LoggedFrame] = []
    base, damaged = position, size < max(noted, covered)
    for found in _frames(content, base, noted):
        if type(found) is LoggedFrame:
            frames.append(found)
        else:
            damaged = True
            position = found  # type: ignore[assignment]
    if frames and frames[-1].position >= position:
        position = frames[-1].position + frames[-1].size
    return LogScan(frames, position, damaged or position < noted)


def _frames(content: memoryview, base: int, noted: int) -> Iterator[LoggedFrame | int]:
    """The good frames of ``content``, which starts at ``base``; an int is the position after a damaged one below the note."""
    at, end = 0, len(content)
    while at < end:
        frame = parse_logged_frame(content, at, base + at)
        if frame is not None:
            yield frame
            at += frame[1]
            continue
        if base + at >= noted:
            return
        following = _skip_damaged(content, at)
        if following is None:
            return
        at = following
        yield base + at


def parse_logged_frame(content: memoryview, at: int, position: int) -> LoggedFrame | None:
    """The frame at ``content[at:]`` if it passes every check: its Arrow message, header checksum, body checksum. (A boot does
    this for each frame of a log's tail, and every read for what it serves, so it is one straight line.)"""
    body = at + PREFIX_BYTES
    if body > len(content):
        return None
    # fmt: off
    (
        body_bytes, version, ledger_id, first, last, confirmed, replicated, master_key, body_crc, header_crc,
        payload_bytes, digest_bytes,
    ) = _SCAN.unpack_from(content, at)
    # fmt: on
    count = last - first + 1
    end = body + body_bytes
    if (
        version != PROTOCOL_VERSION
        or not 0 < body_bytes <= FRAME_BYTES_MAX
        or end > len(content)
        or not (0 < count <= FRAME_BYTES_MAX and 0 <= payload_bytes <= FRAME_BYTES_MAX >= digest_bytes >= 0)
    ):
        return None
    prefix = content[at:body].tobytes()
    before, after = around_header(count, payload_bytes, digest_bytes)
    if (
        crc32c(prefix[_HEADER]) != header_crc
        or prefix[_BEFORE_HEADER] != before
        or prefix[_AFTER_HEADER] != after
        or crc32c(content[body:end]) != body_crc
    ):
        return None
    (row_confirmed,) = _LAST_ROW_LAC.unpack_from(content, body + 24 * count - 8)
    if row_confirmed > confirmed:
        confirmed = row_confirmed
    return _logged_frame((position, end - at, ledger_id, first, last, confirmed, replicated, master_key))


def _skip_damaged(content: memoryview, at: int) -> int | None:
    """Where the frame after a damaged one starts, if the damaged one still tells: its size stands in it twice. Looking for
    the next thing that resembles a frame is no way: a payload may hold a whole frame."""
    if at + PREFIX_BYTES > len(content):
        return None
    offset: int
    stated = _LAST_BUFFER.unpack_from(content, at + 40)[1]
    offset, size = _LAST_BUFFER.unpack_from(content, at + _LAST_BUFFER_OFFSET)
    for body_bytes in (stated, offset + size + (-size & 7)):
        end: int = at + PREFIX_BYTES + body_bytes
        if at + PREFIX_BYTES < end <= len(content) and (
            end == len(content) or parse_logged_frame(content, end, 0) is not None
        ):
            return end
    return None


def _read_tolerant(file: File, start: int, end: int) -> Buffer:
    """The bytes ``start..end``; what the disk can't read is zeros, which pass no check."""
    try:
        content = file.read(max(0, end - start), start)
        if len(content) >= end - start:
            return content
    except OSError:
        pass
    pieces = bytearray(max(0, end - start))
    for position in range(start, end, _READ_BYTES):
        try:
            piece = file.read(min(_READ_BYTES, end - position), position)
        except OSError:
            continue
        pieces[position - start : position - start + len(piece)] = piece
    return pieces
