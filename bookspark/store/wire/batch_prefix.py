"""The prefix of a batch frame: all bytes before the columns, with room for the request's header.

Law: prefixes differ in a few numbers only, so a template packs them (1.2 µs; pyarrow's writer: 31 µs), and a check packs the
prefix again and compares. ``tests/store/wire`` compares it with pyarrow's bytes. The header is custom metadata of the message
(key ``bookspark``), always at the same offset::

      0  FF FF FF FF │ i32 576          Arrow's framing
      8  flatbuffer Message             48: i64 body length, 88: the header (112 bytes), 240: i64 rows n,
                                        256: 14 buffers (i64 offset, i64 length), 488: 6 field nodes (i64 n, i64 0)
    584  the body follows (``entry_batch``)

Source: docs/decisions/entry-batches.md; the format is Arrow's "IPC Streaming Format".
"""

from __future__ import annotations

import struct
from functools import lru_cache

from bookspark.store.wire.header import HEADER_BYTES

PREFIX_BYTES = 584
HEADER_OFFSET = 88

# The flatbuffer as pyarrow writes it, split at the numbers that vary.
_HEAD = bytes.fromhex(
    "ffffffff40020000180000000000000000000e00180006000500080010000c000e00000000030400bc0000000c000000"
)
_KEY_VALUE = bytes.fromhex("010000000c00000008000c000400080008000000800000000400000070000000")
_MIDDLE = bytes.fromhex("0000000009000000626f6f6b737061726b000a0018000c00040008000a000000fc00000010000000")
_BUFFERS = bytes.fromhex("000000000e000000")
_NODES = bytes.fromhex("0000000006000000")
_PREFIX = struct.Struct(f"<{len(_HEAD)}sq32s{HEADER_BYTES}s{len(_MIDDLE)}sq8s28q8s12q")
assert _PREFIX.size == PREFIX_BYTES


def _prefix(header: bytes, count: int, payload_bytes: int, digest_bytes: int) -> bytes:
    """The 584 bytes before a body of ``count`` entries whose two binary columns have these sizes in bytes."""
    column = 8 * count
    offsets = 4 * (count + 1)
    padded_offsets = (offsets + 7) & -8
    at_payload_offsets = 4 * column
    at_payload = at_payload_offsets + padded_offsets
    at_digest_offsets = at_payload + ((payload_bytes + 7) & -8)
    at_digest = at_digest_offsets + padded_offsets
    body = at_digest + ((digest_bytes + 7) & -8)
    # fmt: off
    return _PREFIX.pack(
        _HEAD, body, _KEY_VALUE, header, _MIDDLE, count, _BUFFERS,
        0, 0, 0, column,
        column, 0, column, column,
        2 * column, 0, 2 * column, column,
        3 * column, 0, 3 * column, column,
        at_payload_offsets, 0, at_payload_offsets, offsets, at_payload, payload_bytes,
        at_digest_offsets, 0, at_digest_offsets, offsets, at_digest, digest_bytes,
        _NODES, count, 0, count, 0, count, 0, count, 0, count, 0, count, 0,
    )
    # fmt: on


@lru_cache(maxsize=1024)
def around_header(count: int, payload_bytes: int, digest_bytes: int) -> tuple[bytes, bytes]:
    """The prefix without the header: the bytes before it and the bytes after it. Sizes are at most FRAME_BYTES_MAX.

    No checksum covers the prefix, so the check of a frame compares it with this. Neighbouring frames are often of one size:
    results are cached.
    """
    prefix = _prefix(bytes(HEADER_BYTES), count, payload_bytes, digest_bytes)
    return prefix[:HEADER_OFFSET], prefix[HEADER_OFFSET + HEADER_BYTES :]
