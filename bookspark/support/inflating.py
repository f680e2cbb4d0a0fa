"""Compressed bytes inflated up to a bound, and the sizes of Arrow messages before pyarrow inflates them.

Law: nothing is inflated beyond the longest that its writer may write; the caller names that bound. The size is read first, and no
memory is taken for a larger one. A zstd frame without a size, or of another size than it says, was not written by Bookspark.
(zstandard's own limit does not hold for a frame with a size: it takes as much memory as the frame says.)

Source: RFC 8878, 3.1.1.1.4 for the size in a frame; Arrow's "IPC Streaming Format" for messages, and for the size before each
compressed buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import zstandard

_NO_SIZE = -1


class InflationError(ValueError):
    """Bytes that are not what their writer may write: damaged, of an unknown size, or larger than the bound."""


def inflated_bytes(frame: bytes | memoryview, bytes_max: int) -> int:
    """Size in bytes of a zstd frame's content. Raises InflationError if it is unknown or above ``bytes_max``."""
    try:
        size: int = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise InflationError(f"no zstd frame ({error})") from error
    if size == _NO_SIZE:
        raise InflationError("a zstd frame that does not say its size")
    if size > bytes_max:
        raise InflationError(f"{len(frame):,} bytes that would inflate to {size:,}; at most {bytes_max:,} are written")
    return size


def inflated(
    frame: bytes | memoryview,
    bytes_max: int,
    decompress: Callable[[bytes | memoryview], bytes] | None = None,
) -> bytes:
    """Content of a zstd frame. ``decompress``: that of the caller's ``ZstdDecompressor``, if it has one. Raises InflationError
    if the frame is damaged, or its content would have more than ``bytes_max`` bytes."""
    inflated_bytes(frame, bytes_max)
    try:
        return (decompress or zstandard.ZstdDecompressor().decompress)(frame)
    except zstandard.ZstdError as error:
        raise InflationError(f"a damaged zstd frame ({error})") from error


# -- Arrow's record batch messages
#
# A message is FF FF FF FF, i32 size of the flatbuffer, the flatbuffer, the body. Of the flatbuffer only the few tables are read
# that say how much the message holds; pyarrow's own verifier judges the rest.


class ArrowSizes(NamedTuple):
    """Sizes that a record batch message declares."""

    rows: int
    inflated_bytes: int
    """Sum of all buffers after their inflation."""


_CONTINUES = b"\xff\xff\xff\xff"
_RECORD_BATCH, _V5 = 3, 4
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _VERSION = 1, 2, 3, 0
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_PAIR_BYTES = 16


def arrow_sizes(message: bytes | memoryview, bytes_max: int, rows_max: int) -> ArrowSizes:
    """Sizes of an encapsulated record batch message. Raises InflationError if it is none, or holds more than ``bytes_max`` bytes,
    more than ``rows_max`` rows, or a column with more values than bits fit in ``bytes_max`` bytes."""
    view = memoryview(message).cast("B")
    try:
        return _sizes(view, bytes_max, rows_max)
    except struct.error as error:
        raise InflationError("a damaged Arrow message") from error


def _sizes(view: memoryview, bytes_max: int, rows_max: int) -> ArrowSizes:
    (metadata_bytes,) = struct.unpack_from("<i", view, 4)
    if view[:4] != _CONTINUES or not 8 <= metadata_bytes <= len(view) - 8:
        raise InflationError("no Arrow message")
    metadata, body = view[8 : 8 + metadata_bytes], view[8 + metadata_bytes :]
    root = _follow(metadata, 0)
    # An older version may name its compression in other places.
    if _number(metadata, root, _VERSION, "<h") != _V5 or _number(metadata, root, _HEADER_TYPE, "<B") != _RECORD_BATCH:
        raise InflationError("an Arrow message that is no record batch of version 5")
    if _number(metadata, root, _BODY_LENGTH, "<q") > len(body):
        raise InflationError("an Arrow message that is shorter than it says")
    batch = _child(metadata, root, _HEADER)
    rows = _number(metadata, batch, _LENGTH, "<q")
    if not 0 <= rows <= rows_max:
        raise InflationError(f"an Arrow message of {rows:,} rows; at most {rows_max:,} are written")
    for length, _ in _pairs(metadata, batch, _NODES):
        if not 0 <= length <= 8 * bytes_max:
            raise InflationError(f"an Arrow message with a column of {length:,} values")
    compressed = _field(metadata, batch, _COMPRESSION) is not None
    total = 0
    for offset, length in _pairs(metadata, batch, _BUFFERS):
        if not (offset >= 0 and 0 <= length <= len(body) - offset):
            raise InflationError("an Arrow message with a buffer outside of it")
        total += length if not compressed else _plain_bytes(body, offset, length)
        if total > bytes_max:
            raise InflationError(
                f"an Arrow message of {len(view):,} bytes that would inflate to more than {bytes_max:,}, the most that is written"
            )
    return ArrowSizes(rows, total)


def _plain_bytes(body: memoryview, offset: int, length: int) -> int:
    """Inflated size of a compressed buffer; −1 in its place says that it is plain."""
    if not length:
        return 0
    (plain,) = struct.unpack_from("<q", body, offset)
    if plain < -1 or length < 8:
        raise InflationError(f"an Arrow message with a buffer of {plain} bytes")
    return int(plain) if plain >= 0 else length - 8


def _field(metadata: memoryview, table: int, index: int) -> int | None:
    """Place of a table's field; None if the table lacks it."""
    (back,) = struct.unpack_from("<i", metadata, table)
    fields = table - back
    if fields < 0:
        raise InflationError("a damaged Arrow message")
    (size,) = struct.unpack_from("<H", metadata, fields)
    if 4 + 2 * index + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, fields + 4 + 2 * index)
    return table + offset if offset else None


def _number(metadata: memoryview, table: int, index: int, form: str) -> int:
    """A number of a table; 0 if the table lacks it."""
    at = _field(metadata, table, index)
    return 0 if at is None else int(struct.unpack_from(form, metadata, at)[0])


def _follow(metadata: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _child(metadata: memoryview, table: int, index: int) -> int:
    at = _field(metadata, table, index)
    if at is None:
        raise InflationError("an Arrow message without content")
    return _follow(metadata, at)


def _pairs(metadata: memoryview, table: int, index: int) -> list[tuple[int, int]]:
    """A table's vector of pairs of i64."""
    at = _field(metadata, table, index)
    if at is None:
        return []
    start = _follow(metadata, at)
    (count,) = struct.unpack_from("<I", metadata, start)
    if count * _PAIR_BYTES > len(metadata) - start - 4:
        raise InflationError("a damaged Arrow message")
    numbers = struct.unpack_from(f"<{2 * count}q", metadata, start + 4)
    return list(zip(numbers[::2], numbers[1::2], strict=True))
