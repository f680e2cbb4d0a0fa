"""Scanning an entry log: which of its bytes are good batch frames.

Law: a frame is believed only after every check: its Arrow message, its header's checksum, its body's checksum. Below the log's
synced note each byte has to be good, and what is not is damage. Above the note a bad frame is a *torn* write if it lacks a sector
or its end, because that is what a power cut does to what was not synced; anything else may have been synced and acknowledged, and
is damage too. Behind either the scan goes on with the next good frame: what was written later is never given up.

The next frame is where the bad one says that it ends: its size stands in it twice. If neither leads to a good frame, the next
bytes that begin like one are tried. A payload may hold whole frames, so these are believed only if good frames follow them up
to the end of the log. That reads each byte behind the bad frame about twice, whatever is in it.

A torn frame that good ones follow is replaced by a *filler*: a good frame of ledger −1, which has no entries for anybody.

A scan keeps nothing of a good frame, and some MiB of the log at a time; behind bad bytes what is left of the log.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from bookspark.bookie.disk.file_system import File
from bookspark.bookie.disk.torn import is_frame_but_for_one_bit, lacks_sector
from bookspark.wire.batch_prefix import HEADER_OFFSET, PREFIX_BYTES, around_header
from bookspark.wire.entry_batch import FRAME_BYTES_MAX, Buffer, encode_one
from bookspark.wire.header import HEADER_BYTES, PROTOCOL_VERSION, Header, Kind

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
_READ_BYTES, _PAGE_BYTES = 4 << 20, 4096
_UNREADABLE = b"\xee"
_FRAME_START = re.compile(re.escape(bytes.fromhex("ffffffff40020000")))
_BODY_BYTES_MIN = 56
FILLER_LEDGER = -1
_FILLER_BYTES_MAX = 1 << 20


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


class LogScan(NamedTuple):
    """What a scan found: how many good frames; the position ``end`` where the last of them ends; whether bytes are ``damaged``
    that may have been acknowledged; the ``torn`` frames that good ones follow (start, end); whether the schema is to be written
    again; and the ``good`` bytes (start, end), where frames follow each other."""

    frames: int
    end: int
    damaged: bool
    torn: tuple[tuple[int, int], ...] = ()
    headless: bool = False
    good: tuple[tuple[int, int], ...] = ()


class BadBytes(NamedTuple):
    """Bytes ``start..end`` that are no good frames. ``end`` is None if nothing good follows."""

    start: int
    end: int | None
    torn: bool


def scan_log(file: File, size: int, covered: int, noted: int, take: Callable[[LoggedFrame], object]) -> LogScan:
    """Read a log of ``size`` bytes from position ``covered`` on. Below position ``noted`` every byte has to be good. Bytes that
    the disk can't read are bad. ``take`` is called with each good frame, ascending; nothing is kept of it here."""
    start = max(covered, len(SCHEMA))
    headless = covered < len(SCHEMA) and read_tolerant(file, 0, len(SCHEMA)) != SCHEMA
    below = max(noted, covered)
    torn: list[tuple[int, int]] = []
    good: list[tuple[int, int]] = []
    count, begin, end, damaged = 0, start, start, size < below
    for found in read_frames(file, start, size, below):
        if not isinstance(found, BadBytes):
            frame = found[0]
            take(frame)
            count += 1
            end = frame.position + frame.size
            continue
        damaged |= not found.torn
        if begin < found.start:
            good.append((begin, found.start))
        if found.end is not None:
            begin = end = found.end
            if found.torn:
                torn.append((found.start, found.end))
        else:
            begin = size
    if begin < end:
        good.append((begin, end))
    if headless and not count:
        return LogScan(0, 0, damaged or noted > 0, headless=True)
    return LogScan(count, end, damaged or end < noted, tuple(torn), headless, tuple(good))


def read_frames(file: File, start: int, end: int, below: int) -> Iterator[tuple[LoggedFrame, memoryview] | BadBytes]:
    """The good frames of the bytes ``start..end`` of a log with their bytes, and what is bad between them. All of it is to be
    good up to the position ``below``. It is read in parts of some MiB; behind bad bytes all that follows is read at once."""
    at = start
    while at < end:
        base, stop = at, min(end, at + _READ_BYTES)
        content = memoryview(read_tolerant(file, base, stop))
        while (frame := parse_logged_frame(content, at - base, at)) is not None:
            yield frame, content[at - base : at - base + frame.size]
            at += frame.size
        if at == stop or (at > base and stop < end):
            # The last frame may only be cut off by the end of the part.
            continue
        content = content[at - base :] if stop == end else memoryview(read_tolerant(file, at, end))
        base = at
        for found in _frames(content, base, below):
            if isinstance(found, BadBytes):
                yield found
            else:
                yield found, content[found.position - base : found.position - base + found.size]
        return


def _frames(content: memoryview, base: int, below: int) -> Iterator[LoggedFrame | BadBytes]:
    """The good frames of ``content``, which starts at ``base``, and what is bad between them. All of it is to be good up to the
    position ``below``."""
    at: int | None = 0
    while at is not None and at < len(content):
        frame = parse_logged_frame(content, at, base + at)
        if frame is not None:
            yield frame
            at += frame[1]
            continue
        following = _next_frame(content, at)
        torn = base + at >= below and _is_torn(content, at, following, base)
        if torn and following == len(content):
            following = None
        yield BadBytes(base + at, None if following is None else base + following, torn)
        at = following


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


def filler(size: int) -> Iterator[bytes]:
    """Good frames of no ledger, of ``size`` bytes together. ``size`` is that of other frames."""
    overhead = len(_filler(0))
    while size:
        taken = size if size <= _FILLER_BYTES_MAX else min(size - overhead, _FILLER_BYTES_MAX)
        yield _filler(taken - overhead)
        size -= taken


def _filler(payload_bytes: int) -> bytes:
    return encode_one(Header(Kind.ADD, 0, FILLER_LEDGER, 0, 0), payload_bytes, bytes(payload_bytes), b"")


def _stated_ends(content: memoryview, at: int) -> list[int]:
    """Where the bad frame at ``at`` says that it ends, as far as that may be. Its size stands in it twice."""
    if at + PREFIX_BYTES > len(content):
        return []
    stated: int = _LAST_BUFFER.unpack_from(content, at + 40)[1]
    offset, size = _LAST_BUFFER.unpack_from(content, at + _LAST_BUFFER_OFFSET)
    sizes = (stated, offset + size + (-size & 7))
    return [at + PREFIX_BYTES + body_bytes for body_bytes in sizes if _BODY_BYTES_MIN <= body_bytes <= FRAME_BYTES_MAX]


def _next_frame(content: memoryview, at: int) -> int | None:
    """Where the frame after a bad one starts, or the end of ``content`` if the bad one ends there; None if that can't be told."""
    for end in _stated_ends(content, at):
        if end == len(content) or (end < len(content) and parse_logged_frame(content, end, 0) is not None):
            return end
    tried = at + PREFIX_BYTES + _BODY_BYTES_MIN
    for found in _FRAME_START.finditer(content, tried):
        start = found.start()
        if start < tried or (start - at) % 8:
            continue
        end = start
        while (frame := parse_logged_frame(content, end, 0)) is not None:
            end += frame.size
        if end > start and (end == len(content) or not _any_frame(content, end)):
            return start
        # Frames that a payload held: what follows them is no frame. None of them is tried again.
        tried = max(tried, end)
    return None


def _any_frame(content: memoryview, at: int) -> bool:
    """Is there a good frame anywhere behind ``at``?"""
    return any(
        parse_logged_frame(content, found.start(), 0) is not None for found in _FRAME_START.finditer(content, at)
    )


def _is_torn(content: memoryview, at: int, following: int | None, base: int) -> bool:
    """Does the bad frame at ``at`` look like a write that was cut short: without its end, or without a sector?"""
    ends = _stated_ends(content, at)
    if following is not None:
        end = following
    elif len(content) - at < PREFIX_BYTES or (ends and min(ends) > len(content)):
        return True
    else:
        end = min((end for end in ends if end <= len(content)), default=len(content))
    frame = content[at:end]
    return lacks_sector(frame, base + at) and not is_frame_but_for_one_bit(frame)


def read_tolerant(file: File, start: int, end: int) -> Buffer:
    """The bytes ``start..end``. What the disk can't read comes as bytes that pass no check and don't look like a torn write."""
    try:
        content = file.read(max(0, end - start), start)
        if len(content) >= end - start:
            return content
    except OSError:
        pass
    pieces = bytearray(_UNREADABLE * max(0, end - start))
    _read_pieces(file, memoryview(pieces), start, [_READ_BYTES, _PAGE_BYTES])
    return pieces


def _read_pieces(file: File, into: memoryview, start: int, steps: list[int]) -> None:
    """Read in steps; one that fails in smaller steps."""
    for at in range(0, len(into), steps[0]):
        part = into[at : at + steps[0]]
        try:
            piece = file.read(len(part), start + at)
            part[: len(piece)] = piece
        except OSError:
            if len(steps) > 1:
                _read_pieces(file, part, start + at, steps[1:])
