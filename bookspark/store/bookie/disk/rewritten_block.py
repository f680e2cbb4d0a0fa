"""A block of a rewritten log: entries of one ledger, compressed, as one Arrow record batch message.

Law: the rows are the written rows, verbatim, so every digest stays valid. A block is trusted only after its three checksums
(header, Arrow message, body), and if its buffers inflate to no more than a block may have. It describes itself completely, so a
scan needs no index. It differs from a batch frame (``wire.entry_batch``) in three points: each buffer of the body is compressed
on its own, by Arrow's ``BodyCompression``; ids ascend but may have gaps (striped ledgers); and the header's ``value`` and
``limit`` have another meaning::

      0  FF FF FF FF │ i32 544          Arrow's framing
      8  u32 root offset 132 │ u32 0
     16  the header (112 bytes)
    128  flatbuffer Message             152: i64 body length, 192: i64 rows n, 224: 14 buffers (i64 offset, i64 length),
                                        456: 6 field nodes (i64 n, i64 0)
    552  body, each buffer padded to 8: i64 plain size │ zstd frame, or i64 −1 │ the plain bytes; nothing if it is empty

    header   kind ADD, ledger, first and last id, the ledger's LAC, LAFR and master key when it was rewritten,
             limit: bytes of the payload column, value: CRC32C of the message without the header, CRC32C of the body

Buffers are compressed with zstd at level 1, without a dictionary; a block has up to 256 entries or 256 KiB of payload. The
measurement is in docs/decisions/one-log.md.
"""

from __future__ import annotations

import struct
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import zstandard
from crc32c import crc32c

from bookspark.store.wire.batch_prefix import BODY_LENGTH_OFFSET, HEADER_END, HEADER_OFFSET
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Buffer, encode
from bookspark.store.wire.header import Header, Kind, WireError, decode
from bookspark.support.inflating import InflationError, arrow_sizes, inflated

BLOCK_PREFIX_BYTES = 552
_PREFIX_START = bytes.fromhex("ffffffff200200008400000000000000")
BLOCK_BYTES_MAX = FRAME_BYTES_MAX + (1 << 20)
_LEVEL = 1
_ZSTD_BYTES_MIN = 64
"""Smaller buffers are left plain: a zstd frame alone costs about a dozen bytes."""

# The rest of the flatbuffer as pyarrow writes it, split at the numbers that change.
_MESSAGE = bytes.fromhex("0c00180006000500 08000c000c000000 000304001c000000")
_BATCH = bytes.fromhex("000000000c001e00 1000040008000c00 0c00000010010000 2400000018000000")
_COMPRESSION = bytes.fromhex("0000000000000600 0800070006000000 000000010e000000")
_NODES = bytes.fromhex("0000000006000000")
_REST = struct.Struct(f"<{len(_MESSAGE)}sq{len(_BATCH)}sq24s28q8s12q")
assert HEADER_END + _REST.size == BLOCK_PREFIX_BYTES
_LONG = struct.Struct("<q")
_ROWS_OFFSET = 192
_BUFFERS = struct.Struct("<28q")
_BUFFERS_OFFSET = 224
_DATA_BUFFERS = (1, 3, 5, 7, 9, 10, 12, 13)
"""Places of ledger_id, entry_id, LAC, length, payload offsets, payload, digest offsets and digest among the 14 buffers. The other
buffers are validity bitmaps, which are empty."""


class Block(NamedTuple):
    position: int
    size: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    last_add_confirmed: int
    last_add_fully_replicated: int
    master_key: bytes
    entries: int

    @property
    def has_gaps(self) -> bool:
        return self.entries < self.last_entry_id - self.first_entry_id + 1


def is_block(content: Buffer) -> bool:
    """Does ``content``, read at a location of the index, begin like a block? A plain frame begins otherwise."""
    return content[:HEADER_OFFSET] == _PREFIX_START


def encode_block(header: Header, columns: Sequence[Buffer], payload: Buffer, digest: Buffer) -> bytes:
    """Encode a block from the columns of ``entry_batch.encode``. Only ledger, LAC (last add confirmed), LAFR (last add fully
    replicated) and master key of ``header`` are used."""
    ledger_ids, entry_ids, confirmed, lengths, payload_offsets, digest_offsets = columns
    count = len(ledger_ids) >> 3
    (first,), (last,) = _LONG.unpack_from(entry_ids), _LONG.unpack_from(entry_ids, 8 * count - 8)
    body: list[Buffer] = []
    buffers = [0] * 28
    at = 0
    data = (ledger_ids, entry_ids, confirmed, lengths, payload_offsets, payload, digest_offsets, digest)
    for place, plain in zip(_DATA_BUFFERS, data, strict=True):
        packed = _compress(plain)
        buffers[2 * place : 2 * place + 2] = at, len(packed)
        padding = -len(packed) & 7
        body += (packed, bytes(padding))
        at += len(packed) + padding
        for following in range(place + 1, 14):
            buffers[2 * following] = at
    content = b"".join(body)
    nodes = (count, 0) * 6
    rest = _REST.pack(_MESSAGE, len(content), _BATCH, count, _COMPRESSION, *buffers, _NODES, *nodes)
    described = header._replace(
        kind=int(Kind.ADD),
        request_id=0,
        flags=0,
        first_entry_id=first,
        last_entry_id=last,
        limit=len(payload),
        value=_message_checksum(_PREFIX_START, rest),
    )
    return b"".join((_PREFIX_START, described.encode(crc32c(content)), rest, content))


def _message_checksum(before: Buffer, after: Buffer) -> int:
    """Of the Arrow message without the header: the bytes ``before`` it and ``after`` it."""
    return crc32c(after, crc32c(before))


def parse_block_prefix(prefix: Buffer, position: int) -> tuple[Block, int] | None:
    """The block described by the first 552 bytes, and its body's checksum; None unless these bytes are complete and good."""
    if len(prefix) < BLOCK_PREFIX_BYTES or not is_block(prefix):
        return None
    try:
        header, body_crc = decode(prefix, HEADER_OFFSET)
    except WireError:
        return None
    if header.value != _message_checksum(prefix[:HEADER_OFFSET], prefix[HEADER_END:BLOCK_PREFIX_BYTES]):
        return None
    (body_bytes,) = _LONG.unpack_from(prefix, BODY_LENGTH_OFFSET)
    (count,) = _LONG.unpack_from(prefix, _ROWS_OFFSET)
    block = Block(
        position,
        BLOCK_PREFIX_BYTES + body_bytes,
        header.ledger_id,
        header.first_entry_id,
        header.last_entry_id,
        header.last_add_confirmed,
        header.last_add_fully_replicated,
        header.master_key,
        count,
    )
    return block, body_crc


def parse_block(content: memoryview, position: int) -> Block | None:
    """The block at the start of ``content``; None unless it passes every check."""
    found = parse_block_prefix(content[:BLOCK_PREFIX_BYTES], position)
    if found is None:
        return None
    block, body_crc = found
    if block.size > len(content) or crc32c(content[BLOCK_PREFIX_BYTES : block.size]) != body_crc:
        return None
    try:
        arrow_sizes(content[: block.size], BLOCK_BYTES_MAX, BLOCK_BYTES_MAX)
    except InflationError:
        return None
    return block


def runs(content: memoryview, block: Block) -> Iterator[tuple[int, int]]:
    """Runs of consecutive ids (first, last) in a parsed block."""
    if not block.has_gaps:
        yield block.first_entry_id, block.last_entry_id
        return
    ids = _longs(_data(content, 1))
    start = 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[i - 1] + 1:
            yield ids[start], ids[i - 1]
            start = i


def plain_frame(content: memoryview, block: Block, first: int, last: int) -> Buffer | None:
    """Entries ``first..last`` of a parsed block, as a plain batch frame; None if any is absent."""
    entry_ids = _longs(_data(content, 1))
    start = bisect_left(entry_ids, first)
    stop = start + last - first + 1
    if stop > len(entry_ids) or entry_ids[start] != first or entry_ids[stop - 1] != last:
        return None
    columns: list[Buffer] = [array("q", [block.ledger_id]).tobytes() * (stop - start)]
    columns += [_data(content, column)[8 * start : 8 * stop] for column in (1, 2, 3)]
    values: list[Buffer] = []
    for column in (4, 6):
        offsets = array("i", _data(content, column))
        base, end = offsets[start], offsets[stop]
        columns.append(array("i", [offset - base for offset in offsets[start : stop + 1]]).tobytes())
        values.append(_data(content, column + 1)[base:end])
    header = Header(
        Kind.ADD,
        0,
        block.ledger_id,
        first,
        last,
        block.last_add_confirmed,
        last_add_fully_replicated=block.last_add_fully_replicated,
        master_key=block.master_key,
    )
    return encode(header, columns, values[0], values[1])


def _data(content: memoryview, column: int) -> bytes:
    """A data buffer, decompressed; ``column`` is its number among ``_DATA_BUFFERS``."""
    offset, size = struct.unpack_from("<qq", content, _BUFFERS_OFFSET + 16 * _DATA_BUFFERS[column])
    if not size:
        return b""
    start = BLOCK_PREFIX_BYTES + offset
    (plain_bytes,) = _LONG.unpack_from(content, start)
    stored = content[start + 8 : start + size]
    if plain_bytes < 0:
        return bytes(stored)
    return inflated(stored, plain_bytes, _zstd.decompress)


def _longs(column: bytes) -> memoryview:
    return memoryview(column).cast("q")


def _compress(plain: Buffer) -> Buffer:
    if not plain:
        return b""
    if len(plain) >= _ZSTD_BYTES_MIN:
        packed = _zstd.compress(plain)
        if len(packed) < len(plain):
            return _LONG.pack(len(plain)) + packed
    return _LONG.pack(-1) + bytes(plain)


class _Zstd(threading.local):
    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()
