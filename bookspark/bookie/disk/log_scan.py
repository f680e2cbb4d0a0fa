"""Scanning an entry log: which of its bytes are good batch frames.

Law: a frame is believed only after every check: its Arrow message, its header's checksum, its body's checksum. Below the log's
synced note each byte has to be good, and what is not is damage; the scan goes on behind it where the damaged frame still tells
its size. Above the note the first frame that fails its checks is a torn write, and the log ends there.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, overload

from crc32c import crc32c

from bookspark.bookie.disk.file_system import File
from bookspark.wire.batch_prefix import HEADER_OFFSET, PREFIX_BYTES, around_header
from bookspark.wire.entry_batch import FRAME_BYTES_MAX, Buffer
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
"""The first message of the Arrow stream: ``entry_batch.arrow_schema()``. It stands here as bytes, so that a bookie does not load
pyarrow."""

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
    """A good frame of a log, and what its header says. Position and size in bytes."""

    position: int
    size: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    last_add_confirmed: int
    last_add_fully_replicated: int
    master_key: bytes


# Does the same as ``LoggedFrame._make``, in C.
_logged_frame: Callable[[tuple[int | bytes, ...]], LoggedFrame] = partial(tuple.__new__, LoggedFrame)


class Frames(Sequence[LoggedFrame]):
    """The frames of a log, in 64 bytes each; as objects they take 444."""

    def __init__(self) -> None:
        self._values = array("q")
        self._keys: dict[bytes, int] = {}
        self._keys_by_number: list[bytes] = []

    def append(self, frame: LoggedFrame) -> None:
        """Add a frame."""
        number = self._keys.setdefault(frame[7], len(self._keys_by_number))
        if number == len(self._keys_by_number):
            self._keys_by_number.append(frame[7])
        self._values.extend((*frame[:7], number))

    def __len__(self) -> int:
        return len(self._values) // 8

    @overload
    def __getitem__(self, index: int) -> LoggedFrame: ...

    @overload
    def __getitem__(self, index: slice) -> list[LoggedFrame]: ...

    def __getitem__(self, index: int | slice) -> LoggedFrame | list[LoggedFrame]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        *values, number = self._values[8 * index : 8 * index + 8]
        return _logged_frame((*values, self._keys_by_number[number]))


class LogScan(NamedTuple):
    """What a scan found: the good frames, the position ``end`` where the last of them ends, and whether bytes below the note are
    ``damaged``."""

    frames: Sequence[LoggedFrame]
    end: int
    damaged: bool


def scan_log(file: File, size: int, covered: int, noted: int) -> LogScan:
    """Read a log of ``size`` bytes from position ``covered`` on. Below position ``noted`` every byte has to be good. Bytes that
    the disk can't read are bad."""
    position = covered
    if position < len(SCHEMA):
        if file.read(len(SCHEMA), 0) != SCHEMA:
            return LogScan([], 0, damaged=noted > 0)
        position = len(SCHEMA)
    content = memoryview(_read_tolerant(file, position, size))
    frames = Frames()
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
    """The frame at ``content[at:]``, which lies at ``position`` of its log; None unless it passes every check. (A boot calls this
    for each frame of a log's tail, and a read for each frame that it serves, so it is one straight line.)"""
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
    """Where the frame after a damaged one starts, None if that can't be told. The size of a frame stands in it twice. To look for
    the next bytes that resemble a frame would be wrong: a payload may hold a whole frame."""
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
    """The bytes ``start..end``. What the disk can't read comes as zeros, which pass no check."""
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
