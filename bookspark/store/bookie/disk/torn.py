"""Torn or damaged: the verdict on bad bytes that no note declares synced.

Law: a write that a power cut ended lacks its end, or sectors, which read as zeros. Rot changes bits. Bytes that are good but for
one bit were written whole, so they may have been acknowledged. Nothing is corrected here: a matching checksum after a guess
proves too little.

One case can't be decided: a control record begins in the last four bytes of a sector, that sector is lost, and its share of the
record's size was a single bit. The verdict is damage, because the record may have been acknowledged.

CRC32C is linear: a flipped bit changes the checksum by a value that depends only on its distance from the end. So stepping that
value back byte by byte finds the bit: the last bytes by a table, and so on 1024 at a time (baby steps, giant steps).
"""

from __future__ import annotations

import re
import struct
from functools import cache

from crc32c import crc32c

from bookspark.store.wire.batch_prefix import HEADER_END, HEADER_OFFSET, PREFIX_BYTES, PREFIX_START, behind_header
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Buffer

RECORD_HEAD = struct.Struct("<II")
"""Head of a control record: the body's length in bytes and its CRC32C."""
_BODY_START = re.compile(b"[\x90-\x9f][\xa0-\xbf]")
"""Start of each record's body: a short array and a short string."""
_STRIDE_LOG = 10
_STRIDE = 1 << _STRIDE_LOG
_SECTOR_BYTES = 128
"""The smallest part of a write that a disk may lose."""
_BODY_CRC = slice(92, 96)
_FIRST_AND_LAST = (slice(24, 32), slice(32, 40))


def lacks_sector(content: memoryview, position: int) -> bool:
    """Is any sector of the file all zeros, judged by its share of ``content``, which lies at ``position``?"""
    starts = [0, *range(-position % _SECTOR_BYTES or _SECTOR_BYTES, len(content), _SECTOR_BYTES)]
    return any(not any(content[start:end]) for start, end in zip(starts, [*starts[1:], len(content)], strict=True))


def record_end(content: bytes, at: int) -> int | None:
    """End of the record at ``at``; None if it is bad."""
    if at + RECORD_HEAD.size > len(content):
        return None
    size, checksum = RECORD_HEAD.unpack_from(content, at)
    end = at + RECORD_HEAD.size + size
    good = size > 0 and end <= len(content) and crc32c(content[at + RECORD_HEAD.size : end]) == checksum
    return end if good else None


def next_record(content: bytes, at: int) -> int | None:
    """Start of the first good record behind a bad record; None without any."""
    for found in _BODY_START.finditer(content, at + 1 + RECORD_HEAD.size):
        start = found.start() - RECORD_HEAD.size
        if record_end(content, start) is not None:
            return start
    return None


def is_torn_record(bad: memoryview, position: int, *, is_last: bool) -> bool:
    """Does a bad control record, which lies at ``position``, look like a write cut short? ``is_last``: no good record follows."""
    if len(bad) < RECORD_HEAD.size:
        return True
    size, checksum = RECORD_HEAD.unpack_from(bad)
    sizes = (other for bit in range(32) if 0 < (other := size ^ 1 << bit) <= len(bad) - RECORD_HEAD.size)
    if any(crc32c(bad[RECORD_HEAD.size : RECORD_HEAD.size + other]) == checksum for other in sizes):
        return False
    if RECORD_HEAD.size + size > len(bad):
        return is_last or lacks_sector(bad, position)
    body = bad[RECORD_HEAD.size : RECORD_HEAD.size + size]
    # No record is empty. A size of 0 means that the first sector is lost, so the checksum belongs to other bytes.
    one_bit = size and ((crc32c(body) ^ checksum).bit_count() == 1 or flipped_bit(body, checksum) is not None)
    return not one_bit and lacks_sector(bad, position)


def flipped_bit(content: Buffer, checksum: int) -> int | None:
    """The bit of ``content`` (8 × byte + bit) to flip for its CRC32C to be ``checksum``. None: no single bit."""
    changes, stride_back = _changes(), _stride_back()
    change = crc32c(content) ^ checksum
    for passed in range(0, len(content), _STRIDE):
        if (found := changes.get(change)) is not None:
            at = len(content) - 1 - passed - found // 8
            return 8 * at + found % 8 if at >= 0 else None
        change = _apply(stride_back, change)
    return None


@cache
def _table() -> list[int]:
    zero = crc32c(b"\0")
    return [crc32c(bytes([value])) ^ zero for value in range(256)]


@cache
def _changes() -> dict[int, int]:
    """Map the checksum change of a flipped bit → 8 × bytes that follow + bit, for the last bytes."""
    table = _table()
    found: dict[int, int] = {}
    for bit in range(8):
        change = table[1 << bit]
        for following in range(_STRIDE):
            found[change] = 8 * following + bit
            change = change >> 8 ^ table[change & 0xFF]
    return found


@cache
def _stride_back() -> list[int]:
    """The linear map that takes the last ``_STRIDE`` bytes back out of a change: the image of each bit."""
    table = _table()
    by_top_byte = {value >> 24: index for index, value in enumerate(table)}
    matrix = []
    for bit in range(32):
        index = by_top_byte[(1 << bit) >> 24]
        matrix.append((((1 << bit) ^ table[index]) << 8 | index) & 0xFFFFFFFF)
    for _ in range(_STRIDE_LOG):
        matrix = [_apply(matrix, image) for image in matrix]
    return matrix


def _apply(matrix: list[int], value: int) -> int:
    result = 0
    while value:
        lowest = value & -value
        result ^= matrix[lowest.bit_length() - 1]
        value ^= lowest
    return result


def is_frame_but_for_one_bit(frame: memoryview) -> bool:
    """Would ``frame``, of a batch frame's length, pass its checks after a flip of one bit?"""
    if len(frame) <= PREFIX_BYTES:
        return False
    header = bytearray(frame[HEADER_OFFSET:HEADER_END])
    body = frame[PREFIX_BYTES:]
    flips = 0
    stated = int.from_bytes(header[-4:], "little")
    if (difference := crc32c(header[:-4]) ^ stated) != 0:
        flips = 1
        bit = flipped_bit(header[:-4], stated)
        if bit is not None:
            header[bit // 8] ^= 1 << bit % 8
        elif difference.bit_count() != 1:
            return False
    body_crc = int.from_bytes(header[_BODY_CRC], "little")
    if crc32c(body) != body_crc:
        flips += 1
        # The prefix is checked below against the mended columns, as they were written.
        if flips > 1 or (bit := flipped_bit(body, body_crc)) is None:
            return False
        mended = bytearray(body)
        mended[bit // 8] ^= 1 << bit % 8
        body = memoryview(mended)
    return flips + _flips_around_header(frame, header, body) == 1


def _flips_around_header(frame: memoryview, header: bytearray, body: memoryview) -> int:
    """Number of wrong bits in the prefix, its header apart, judged by header and body."""
    first, last = (int.from_bytes(header[part], "little", signed=True) for part in _FIRST_AND_LAST)
    count = last - first + 1
    offsets = 32 * count
    if not 0 < count <= FRAME_BYTES_MAX or offsets + 4 * (count + 1) > len(body):
        return 2
    payload_bytes = int.from_bytes(body[offsets + 4 * count : offsets + 4 * count + 4], "little")
    ends = offsets + _padded(4 * (count + 1)) + _padded(payload_bytes)
    digest_bytes = int.from_bytes(body[ends + 4 * count : ends + 4 * count + 4], "little")
    if payload_bytes > FRAME_BYTES_MAX or digest_bytes > FRAME_BYTES_MAX:
        return 2
    right = PREFIX_START + behind_header(count, payload_bytes, digest_bytes)
    found = bytes(frame[:HEADER_OFFSET]) + bytes(frame[HEADER_END:PREFIX_BYTES])
    return (int.from_bytes(found, "little") ^ int.from_bytes(right, "little")).bit_count()


def _padded(size: int) -> int:
    return size + (-size & 7)
