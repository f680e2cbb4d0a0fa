"""The prefix of a batch frame: all bytes before the columns, with room for the request's header.

Law: prefixes differ in a few numbers only, so a template packs them (1.2 µs; pyarrow's writer: 31 µs), and a check packs the
prefix again and compares. The message is as pyarrow writes it, with one gap: its root offset leads over the header, always at
the same place. No Arrow reader looks into bytes that no offset reaches, so the header needs neither a field nor an encoding of
Arrow's. ``tests/store/wire`` compares the prefix with pyarrow's bytes::

      0  FF FF FF FF │ i32 520          Arrow's framing
      8  u32 root offset 132 │ u32 0
     16  the header (112 bytes)
    128  flatbuffer Message             152: i64 body length, 184: i64 rows n, 200: 14 buffers (i64 offset, i64 length),
                                        432: 6 field nodes (i64 n, i64 0)
    528  the body follows (``entry_batch``)

Source: docs/decisions/entry-batches.md; the format is Arrow's "IPC Streaming Format".
"""

from __future__ import annotations

import struct
from functools import lru_cache

from bookspark.store.wire.header import HEADER_BYTES

PREFIX_BYTES = 528
HEADER_OFFSET = 16
HEADER_END = HEADER_OFFSET + HEADER_BYTES
BODY_LENGTH_OFFSET = 152
ROWS_OFFSET = 184
BUFFERS_OFFSET = 200

PREFIX_START = bytes.fromhex("ffffffff080200008400000000000000")
"""The bytes before the header, the same in every batch frame."""
# The rest of the flatbuffer as pyarrow writes it, split at the numbers that vary.
_MESSAGE = bytes.fromhex("0c00160006000500 08000c000c000000 0003040018000000")
_BATCH = bytes.fromhex("00000a0018000c00 040008000a000000 fc00000010000000")
_BUFFERS = bytes.fromhex("000000000e000000")
_NODES = bytes.fromhex("0000000006000000")
_REST = struct.Struct(f"<{len(_MESSAGE)}sq{len(_BATCH)}sq8s28q8s12q")
assert HEADER_END + _REST.size == PREFIX_BYTES


@lru_cache(maxsize=1024)
def behind_header(count: int, payload_bytes: int, digest_bytes: int) -> bytes:
    """The bytes between the header and a body of ``count`` entries whose two binary columns have these sizes in bytes, each at
    most FRAME_BYTES_MAX.

    No checksum covers the prefix, so the check of a frame compares it with this. Neighbouring frames are often of one size:
    results are cached.
    """
    column = 8 * count
    offsets = 4 * (count + 1)
    padded_offsets = (offsets + 7) & -8
    at_payload_offsets = 4 * column
    at_payload = at_payload_offsets + padded_offsets
    at_digest_offsets = at_payload + ((payload_bytes + 7) & -8)
    at_digest = at_digest_offsets + padded_offsets
    body = at_digest + ((digest_bytes + 7) & -8)
    # fmt: off
    return _REST.pack(
        _MESSAGE, body, _BATCH, count, _BUFFERS,
        0, 0, 0, column,
        column, 0, column, column,
        2 * column, 0, 2 * column, column,
        3 * column, 0, 3 * column, column,
        at_payload_offsets, 0, at_payload_offsets, offsets, at_payload, payload_bytes,
        at_digest_offsets, 0, at_digest_offsets, offsets, at_digest, digest_bytes,
        _NODES, count, 0, count, 0, count, 0, count, 0, count, 0, count, 0,
    )
    # fmt: on
