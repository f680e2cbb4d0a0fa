"""A producer's row as an entry holds it: the stamp and the value.

Law: a row's value, key and headers are read exactly as they were appended. The label ``bookspark.encoding`` of a ledger says that
its rows are stamped (``bookspark.logs.rows.encodings``). Little-endian:

==========  =====  ============================================================================================
bytes       type   what
==========  =====  ============================================================================================
0–7         int64  time of the append, in ms since 1970; never decreases within a lane
8–15        int64  sequence number; always increases within a ledger
16          uint8  1: the row has a key; 2: it has headers; 3: it has both
17–20       int32  length of the key, and then the key, if there is one
then        int32  length of the headers, and then the headers, if there are any: an array of (name, value) in
                   MessagePack, names as strings and values as binary
then               the value, compressed by the ledger's encoding
==========  =====  ============================================================================================

Source: docs/decisions/lanes.md; keys and headers are those of Kafka's records.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

import msgspec

from bookspark.errors import InvalidRowError
from bookspark.store.wire.columns import Heads, consecutive, repeated

STAMP_BYTES = 17
FLAGS_AT = 16
TIME_MS_MAX = 253_402_300_799_999
"""End of the year 9999: no later time can be shown."""
SEQUENCE_MAX = 3 << 61
"""Callers give numbers up to 2⁶²; later rows count on. A row with the highest int64 would leave the next one no number."""
_STAMP = Struct("<qqB")
_TIME, _LENGTH = Struct("<q"), Struct("<i")
_KEY, _HEADERS = 1, 2

Headers = tuple[tuple[str, bytes], ...]
_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(Headers).decode

plain_stamp = _STAMP.pack
"""Stamp of a row without key and headers: (time in ms, sequence number, 0) -> bytes."""


def plain_stamps(time_ms: int, first: int, count: int) -> Heads:
    """``plain_stamp`` for ``count`` rows with consecutive sequence numbers from ``first`` on."""
    return Heads((repeated(time_ms, count), consecutive(first, count), repeated(0, count)), STAMP_BYTES)


def restamped(row: bytes, time_ms: int) -> bytes:
    """The row, encoded, with another time of its append."""
    return _TIME.pack(time_ms) + row[_TIME.size :]


class Stamped(NamedTuple):
    """A row's stamp, and its value as the entry holds it."""

    time_ms: int
    sequence: int
    key: bytes | None
    headers: Headers
    value: bytes


def stamped(time_ms: int, sequence: int, value: bytes, key: bytes | None = None, headers: Headers = ()) -> bytes:
    """Encode a row. ``value``: already compressed. (Without key and headers: ``plain_stamp`` and the value.)"""
    parts = [plain_stamp(time_ms, sequence, _KEY * (key is not None) | _HEADERS * bool(headers))]
    if key is not None:
        parts += _LENGTH.pack(len(key)), key
    if headers:
        encoded = _encode_headers(headers)
        parts += _LENGTH.pack(len(encoded)), encoded
    return b"".join((*parts, value))


def stamp_of(payload: bytes, where: str) -> Stamped:
    """Decode a row. Raises InvalidRowError, with ``where``, if the entry is no row."""
    try:
        time_ms, sequence, flags = _STAMP.unpack_from(payload)
        at, key, headers = STAMP_BYTES, None, b"\x90"
        if flags & _KEY:
            at, key = _part(payload, at)
        if flags & _HEADERS:
            at, headers = _part(payload, at)
        if flags & ~(_KEY | _HEADERS):
            raise ValueError(f"flags {flags}")
        if not 0 <= time_ms <= TIME_MS_MAX:
            raise ValueError(f"time {time_ms}")
        if not 0 <= sequence <= SEQUENCE_MAX:
            raise ValueError(f"sequence number {sequence}")
        return Stamped(time_ms, sequence, key, _decode_headers(headers), payload[at:])
    except (ValueError, msgspec.MsgspecError, StructError) as error:
        raise InvalidRowError(f"{where}: the entry is no row of a producer ({error})") from error


def _part(payload: bytes, at: int) -> tuple[int, bytes]:
    (length,) = _LENGTH.unpack_from(payload, at)
    first = at + _LENGTH.size
    if not 0 <= length <= len(payload) - first:
        raise ValueError(f"a part of {length} bytes")
    return first + length, payload[first : first + length]
