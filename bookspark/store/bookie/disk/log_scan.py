"""Scan of an entry log: its good batch frames, and its torn and damaged bytes.

Law: a frame is trusted only after every check: its Arrow message, its header's checksum, its body's checksum. Below the log's
synced note each bad byte is damage. Above the note a bad frame is *torn* if it lacks a sector or its end, as a power cut leaves
unsynced bytes. Any other bad frame may have been synced and acknowledged, and is damage too. The scan continues behind both, so
later writes are never given up.

The next frame starts at the bad frame's stated end; its size stands in it twice. If both agree, nothing before this end is
tried, even if the next frame is bad, too. If neither end leads to a good frame, the next bytes that begin like a frame are tried.
A payload may hold whole frames, so such a candidate needs good frames up to the last good one of the log, or up to a frame with
bytes that the disk can't read. (Nobody can choose these; a payload passes for frames only if the head of its own frame is bad,
and another part of it can't be read, or no good frame follows.) This search reads each byte behind the bad frame about twice, for
any content.

A torn frame before good frames is replaced by a *filler*: a good frame of ledger −1, without entries for any reader.

A byte that the disk can't read is neither good nor damaged: frames may lie there, and nothing is cut. The scan of a boot goes on
behind some such places, and raises OSError at a disk with many.

A scan retains no good frame, and holds some MiB of the log at a time; behind bad bytes, the rest of the log.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges, with_ranges
from bookspark.store.bookie.disk.disk_errors import is_of_process
from bookspark.store.bookie.disk.file_system import File
from bookspark.store.bookie.disk.torn import is_frame_but_for_one_bit, lacks_sector
from bookspark.store.wire.batch_prefix import BODY_LENGTH_OFFSET, BUFFERS_OFFSET, PREFIX_BYTES, PREFIX_START
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Buffer, encode_one
from bookspark.store.wire.header import Header, Kind
from bookspark.store.wire.logged_frames import LoggedFrame, LoggedFrames, parse_logged_frame, parse_logged_frames

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
"""The first message of the Arrow stream: ``entry_batch.arrow_schema()``, as bytes, so that a bookie does not load pyarrow."""

_LAST_BUFFER = struct.Struct("<qq")
_LAST_BUFFER_OFFSET = BUFFERS_OFFSET + 13 * 16
_BODY_LENGTH = struct.Struct("<q")
_READ_BYTES, _PAGE_BYTES = 4 << 20, 4096
_UNREADABLE = b"\xee"
_FRAME_START = re.compile(re.escape(PREFIX_START[:8]))
_BODY_BYTES_MIN = 56
_UNREAD_MAX = 256
FILLER_LEDGER = -1
_FILLER_BYTES_MAX = 1 << 20


class LogScan(NamedTuple):
    """Result of a scan: number of good ``frames``; ``end`` of the last; ``damaged``, if bad bytes may have been acknowledged;
    ``torn`` frames before good frames (start, end); ``headless``, if the schema is to be rewritten; ``good`` bytes (start, end),
    where frames follow each other; ``unread`` (first, last byte), that the disk could not read and that may hold frames."""

    frames: int
    end: int
    damaged: bool
    torn: tuple[tuple[int, int], ...] = ()
    headless: bool = False
    good: tuple[tuple[int, int], ...] = ()
    unread: EntryRanges = NO_RANGES

    @property
    def unread_end(self) -> int:
        return self.unread[-1][1] + 1 if self.unread else 0

    @property
    def may_be_cut(self) -> bool:
        """Are the bytes behind the last good frame known to be of no use?"""
        return not self.damaged and not self.unread


class BadBytes(NamedTuple):
    """Bytes ``start..end`` without a good frame. ``end`` is None if nothing good follows."""

    start: int
    end: int | None
    torn: bool


Unread = list[tuple[int, int]]
"""Ranges (start, end) of a file that the disk could not read."""


class FewUnread(Unread):
    """Unread ranges of a scan that gives up a disk which reads next to nothing. Raises OSError."""

    def append(self, found: tuple[int, int]) -> None:
        if len(self) >= _UNREAD_MAX:
            raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} at {_UNREAD_MAX} places and more")
        super().append(found)


def touches(unread: Unread, start: int, end: int) -> bool:
    return any(first < end and last > start for first, last in unread)


def scan_log(file: File, size: int, covered: int, noted: int, take: Callable[[LoggedFrames], object]) -> LogScan:
    """Scan a log of ``size`` bytes from position ``covered`` on. Every byte below position ``noted`` has to be good, or unread.
    ``take`` is called with all good frames, ascending; the scan retains none. Raises OSError."""
    start = max(covered, len(SCHEMA))
    unread = FewUnread()
    headless = covered < len(SCHEMA) and read_padded(file, 0, len(SCHEMA), unread) != SCHEMA and not unread
    below = max(noted, covered)
    torn: list[tuple[int, int]] = []
    good: list[tuple[int, int]] = []
    count, begin, end, damaged = 0, start, start, size < below
    for found in _read(file, start, size, below, unread):
        if not isinstance(found, BadBytes):
            frames = found[0]
            take(frames)
            count += len(frames.position)
            end = frames.end
            continue
        is_unread = touches(unread, found.start, size if found.end is None else found.end)
        damaged |= not found.torn and not is_unread
        if begin < found.start:
            good.append((begin, found.start))
        if found.end is not None:
            begin = end = found.end
            if found.torn and not is_unread:
                torn.append((found.start, found.end))
        else:
            begin = size
    if begin < end:
        good.append((begin, end))
    if headless and not count:
        return LogScan(0, 0, damaged or noted > 0, headless=True)
    damaged |= end < noted and not unread
    return LogScan(
        count,
        end,
        damaged,
        tuple(torn),
        headless,
        tuple(good),
        with_ranges(NO_RANGES, [(at, after - 1) for at, after in unread]),
    )


def read_frames(
    file: File, start: int, end: int, below: int, unread: Unread | None = None
) -> Iterator[tuple[LoggedFrame, memoryview] | BadBytes]:
    """Good frames in the bytes ``start..end`` of a log, each with its bytes, and the bad bytes between them. Every byte below
    position ``below`` has to be good. Parts of some MiB are read; behind bad bytes, the whole rest at once. ``unread`` collects
    the bytes that the disk can't read, which then count as bad; None: OSError is raised for them."""
    for found in _read(file, start, end, below, unread):
        if isinstance(found, BadBytes):
            yield found
            continue
        frames, content = found
        begin = frames.position[0]
        for frame in frames.each():
            yield frame, content[frame.position - begin : frame.position - begin + frame.size]


def _read(
    file: File, start: int, end: int, below: int, unread: Unread | None
) -> Iterator[tuple[LoggedFrames, memoryview] | BadBytes]:
    """As ``read_frames``, with some hundred good frames at a time and the bytes from the first of them on."""
    at = start
    while at < end:
        base, stop = at, min(end, at + _READ_BYTES)
        content = memoryview(read_padded(file, base, stop, unread))
        while (frames := parse_logged_frames(rest := content[at - base :], at)) is not None:
            yield frames, rest
            at = frames.end
        if at == stop or (at > base and stop < end):
            # The end of the part may merely cut off the last frame.
            continue
        content = rest if stop == end else memoryview(read_padded(file, at, end, unread))
        base = at
        for found in _frames(content, base, below, unread or []):
            if isinstance(found, BadBytes):
                yield found
            else:
                yield LoggedFrames.of([found]), content[found.position - base :]
        return


def _frames(content: memoryview, base: int, below: int, unread: Unread) -> Iterator[LoggedFrame | BadBytes]:
    """Good frames of ``content``, which starts at ``base``, and the bad bytes between them. Every byte below position ``below``
    has to be good, or ``unread``."""
    at: int | None = 0
    while at is not None and at < len(content):
        frame = parse_logged_frame(content, at, base + at)
        if frame is not None:
            yield frame
            at += frame[1]
            continue
        following = _next_frame(content, at, [(start - base, end - base) for start, end in unread])
        torn = base + at >= below and _is_torn(content, at, following, base)
        if torn and following == len(content):
            following = None
        yield BadBytes(base + at, None if following is None else base + following, torn)
        at = following


def filler(size: int) -> Iterator[bytes]:
    """Filler frames of ``size`` bytes together. ``size`` is the size of one or more real frames."""
    overhead = len(_filler(0))
    while size:
        taken = size if size <= _FILLER_BYTES_MAX else min(size - overhead, _FILLER_BYTES_MAX)
        yield _filler(taken - overhead)
        size -= taken


def _filler(payload_bytes: int) -> bytes:
    return encode_one(Header(Kind.ADD, 0, FILLER_LEDGER, 0, 0), payload_bytes, bytes(payload_bytes), b"")


def _stated_ends(content: memoryview, at: int) -> list[int]:
    """Plausible ends that the bad frame at ``at`` states. Its size stands in it twice."""
    if at + PREFIX_BYTES > len(content):
        return []
    stated: int = _BODY_LENGTH.unpack_from(content, at + BODY_LENGTH_OFFSET)[0]
    offset, size = _LAST_BUFFER.unpack_from(content, at + _LAST_BUFFER_OFFSET)
    sizes = (stated, offset + size + (-size & 7))
    return [at + PREFIX_BYTES + body_bytes for body_bytes in sizes if _BODY_BYTES_MIN <= body_bytes <= FRAME_BYTES_MAX]


def _next_frame(content: memoryview, at: int, unread: Unread) -> int | None:
    """Start of the frame after a bad frame, or the end of ``content`` if the bad frame ends there; None if unknown. ``unread``:
    ranges of ``content``."""
    while True:
        ends = _stated_ends(content, at)
        for end in ends:
            if end == len(content) or (end < len(content) and parse_logged_frame(content, end, 0) is not None):
                return end
        if len(ends) < 2 or ends[0] != ends[1]:
            break
        # Both agree: what begins like a frame before this end is payload.
        if (at := ends[0]) > len(content):
            return None
    tried = at + PREFIX_BYTES + _BODY_BYTES_MIN
    for found in _FRAME_START.finditer(content, tried):
        start = found.start()
        if start < tried or (start - at) % 8:
            continue
        end = start
        while (frame := parse_logged_frame(content, end, 0)) is not None:
            end += frame.size
        if end > start and (end == len(content) or _is_unread(content, end, unread) or not _any_frame(content, end)):
            return start
        # Frames from a payload, because no good frame follows them. None of them is tried again.
        tried = max(tried, end)
    return None


def _is_unread(content: memoryview, at: int, unread: Unread) -> bool:
    """Has a frame at ``at`` bytes that the disk could not read?"""
    ends = [at + PREFIX_BYTES]
    if content[at : at + 8] == PREFIX_START[:8]:
        ends += _stated_ends(content, at)
    return any(touches(unread, at, end) for end in ends)


def _any_frame(content: memoryview, at: int) -> bool:
    return any(
        parse_logged_frame(content, found.start(), 0) is not None for found in _FRAME_START.finditer(content, at)
    )


def _is_torn(content: memoryview, at: int, following: int | None, base: int) -> bool:
    """Does the bad frame at ``at`` look like a write cut short, without its end or a sector?"""
    ends = _stated_ends(content, at)
    if following is not None:
        end = following
    elif len(content) - at < PREFIX_BYTES or (ends and min(ends) > len(content)):
        return True
    else:
        end = min((end for end in ends if end <= len(content)), default=len(content))
    frame = content[at:end]
    return lacks_sector(frame, base + at) and not is_frame_but_for_one_bit(frame)


def read_padded(file: File, start: int, end: int, unread: Unread | None = None) -> Buffer:
    """The bytes ``start..end``. Bytes beyond the file's end are replaced by bytes that pass no check and don't look torn; with
    ``unread``, which collects their ranges, so are bytes that the disk can't read. Raises OSError without it."""
    size = max(0, end - start)
    try:
        content = file.read(size, start)
        if len(content) == size:
            return content
    except OSError as error:
        if unread is None or is_of_process(error):
            raise
    pieces = bytearray(_UNREADABLE * size)
    _read_pieces(file, memoryview(pieces), start, unread, [_READ_BYTES, _PAGE_BYTES])
    return pieces


def _read_pieces(file: File, into: memoryview, start: int, unread: Unread | None, steps: list[int]) -> None:
    """Read in steps, which end at multiples of their size; a failed step in smaller steps."""
    ends = [*range(-start % steps[0] or steps[0], len(into), steps[0]), len(into)]
    for at, end in pairwise([0, *ends]):
        part = into[at:end]
        try:
            piece = file.read(len(part), start + at)
            part[: len(piece)] = piece
        except OSError as error:
            if unread is None or is_of_process(error):
                raise
            if len(steps) > 1:
                _read_pieces(file, part, start + at, unread, steps[1:])
            else:
                unread.append((start + at, start + at + len(part)))
