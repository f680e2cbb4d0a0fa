"""Conversion of entries between BookKeeper's bodies and stored rows.

Law: both hold the same facts, and each converts into the other without a password::

    BookKeeper's body, big-endian   i64 ledger │ i64 entry │ i64 LAC │ i64 length │ digest │ payload
    a row of an entry batch         ledger_id, entry_id, last_add_confirmed, length, payload, digest

The digest's bytes are the same in both, so a body made from a row equals the client's, byte for byte. The length of the digest
follows from the ledger's digest type, which is only in the ledger's metadata.

Source: BookKeeper's ``DigestManager.computeDigestAndPackageForSending``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from zlib import crc32

from crc32c import crc32c

from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.store.wire.digests import bookkeepers_digest_of_row, digester
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX, Buffer, Entry, new_entry
from bookspark.store.wire.header import WireError

_ROW = struct.Struct(">qqqq")
BODY_BYTES_MIN = _ROW.size
LAC_BODY_BYTES = 16
"""Bytes of an explicit LAC's body before its digest: the ledger and the LAC."""


def body_of(entry: Entry) -> bytes:
    """The entry's body in BookKeeper's form."""
    row = _ROW.pack(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length)
    return b"".join((row, entry.digest, entry.payload))


def confirmed_by(lac_body: bytes) -> int:
    """The LAC in the body of an explicit LAC."""
    return int.from_bytes(lac_body[8:LAC_BODY_BYTES], "big", signed=True)


def lac_body_of(ledger_id: int, confirmed: int, digest_type: DigestType) -> bytes | None:
    """The body of an explicit LAC in BookKeeper's form; None if its digest needs the password."""
    named = struct.pack(">qq", ledger_id, confirmed)
    match digest_type:
        case DigestType.BOOKKEEPER_CRC32C:
            return named + struct.pack(">I", crc32c(named))
        case DigestType.BOOKKEEPER_CRC32:
            return named + struct.pack(">Q", crc32(named))
        case DigestType.BOOKKEEPER_DUMMY:
            return named
    return None


@cache
def _checks_of(digest_type: DigestType) -> tuple[int, Callable[[bytes, Buffer], bytes] | None]:
    """Size of a type's digests in bytes, and the function that computes them from a row and its payload; None if that needs the
    password."""
    return digester(digest_type, b"").size, bookkeepers_digest_of_row(digest_type)


def entry_of(body: bytes, ledger_id: int, entry_id: int, digest_type: DigestType, *, recovery: bool = False) -> Entry:
    """The row of an add. ``recovery``: for a recovery add, whose LAC may be the ledger's (BookKeeper's replication sets it so).
    Raises WireError if the body is not entry ``entry_id`` of ``ledger_id``, or if its digest is wrong, as far as that can be
    checked without the password."""
    digest_bytes, digest_of = _checks_of(digest_type)
    if len(body) < _ROW.size + digest_bytes:
        raise WireError(f"an entry of {len(body)} bytes, too short for its digest ({digest_type.value})")
    named_ledger, named_entry, confirmed, length = _ROW.unpack_from(body)
    payload = body[_ROW.size + digest_bytes :]
    row, digest = body[: _ROW.size], body[_ROW.size : _ROW.size + digest_bytes]
    if (named_ledger, named_entry) != (ledger_id, entry_id):
        raise WireError(f"the body of entry {named_entry} of ledger {named_ledger}, sent as {entry_id} of {ledger_id}")
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise WireError(f"an entry of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} are allowed")
    if confirmed < -1 or (confirmed >= entry_id and not recovery) or length < len(payload):
        raise WireError(f"entry {entry_id} with LAC {confirmed} and length {length} contradicts itself")
    if digest_of is not None and digest_of(row, payload) != digest:
        raise WireError(f"entry {entry_id} of ledger {ledger_id} does not carry its digest ({digest_type.value})")
    return new_entry((named_ledger, named_entry, confirmed, length, payload, digest))
