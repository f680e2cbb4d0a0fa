"""Digests: what a writer puts on each entry so that every reader can tell whether it is what was written.

Law: a digest covers (ledger, entry, LAC, length, payload) as they stand in the entry's row, so a copied row keeps a valid one; it
is made by the writer, checked by each reader, and never by a bookie. The two keys come from the password: the *master key*
is shown to bookies and kept in the metadata, the MAC key never leaves the clients.

Source: BookKeeper's ``DigestManager`` and ``MacDigestManager`` (which uses HMAC-SHA-1; ours is SHA-256 and, for parity,
SHA-1 by its own name).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from zlib import crc32

from crc32c import crc32c

from bookspark.protocol.errors import DigestMismatchError
from bookspark.protocol.ledger_metadata import DigestType
from bookspark.wire.entry_batch import Buffer, Entry

Digester = Callable[[int, int, int, int, Buffer], bytes]
"""(ledger_id, entry_id, last_add_confirmed, length, payload) → digest bytes."""

_ROW = struct.Struct("<qqqq")
_SUM = struct.Struct("<I")


def master_key(password: bytes) -> bytes:
    """16 bytes that prove knowledge of ``password`` to a bookie."""
    return hashlib.sha256(b"bookspark ledger\0" + password).digest()[:16]


def digester(digest_type: DigestType, password: bytes) -> Digester:
    """The digest function of a ledger."""
    if digest_type is DigestType.DUMMY:
        return lambda ledger_id, entry_id, confirmed, length, payload: b""
    if digest_type in (DigestType.CRC32C, DigestType.CRC32):
        checksum = crc32c if digest_type is DigestType.CRC32C else crc32
        row, pack = _ROW.pack, _SUM.pack
        return lambda ledger_id, entry_id, confirmed, length, payload: pack(
            checksum(payload, checksum(row(ledger_id, entry_id, confirmed, length)))
        )
    algorithm = "sha256" if digest_type is DigestType.HMAC else "sha1"
    keyed = hmac.new(hashlib.sha256(b"bookspark mac\0" + password).digest(), digestmod=algorithm)

    def mac(ledger_id: int, entry_id: int, confirmed: int, length: int, payload: Buffer) -> bytes:
        running = keyed.copy()
        running.update(_ROW.pack(ledger_id, entry_id, confirmed, length))
        running.update(payload)
        return running.digest()

    return mac


def check(entry: Entry, digest: Digester) -> None:
    """Raise DigestMismatchError unless the entry carries the digest of its own content."""
    expected = digest(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload)
    if not hmac.compare_digest(expected, entry.digest):
        raise DigestMismatchError(
            f"ledger {entry.ledger_id}, entry {entry.entry_id}: the digest does not match; the entry was damaged, "
            "or the digest type or password is not the writer's"
        )
