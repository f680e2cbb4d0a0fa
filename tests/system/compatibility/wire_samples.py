"""Samples of all messages between a client and a bookie, made with fixed values: by name, the bytes."""

from __future__ import annotations

from array import array

from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.wire import entry_batch, security
from bookspark.store.wire.digests import Digester, digester, master_key
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.store.wire.messages import (
    Acks,
    BookieStatus,
    Challenge,
    EntryLogFacts,
    EntryLogs,
    HealingStatus,
    Hello,
    Limbo,
    Ranges,
)


def samples() -> dict[str, bytes]:
    """Frames and bodies, the same at every call."""
    found: dict[str, bytes] = {}
    for kind in Kind:
        header = Header(kind, 7 * kind, 42, 3, 9, 2, Flag.FENCE, Status.OK, 1, 0, 12345, master_key(b"secret"), 99, -5)
        found[f"kind {kind.name}"] = control_frame(header, f"body of {kind.name}".encode())
    for flag in Flag.__members__.values():
        found[f"flag {flag.name}"] = control_frame(Header(Kind.READ, 1, 2, 3, 4, flags=flag))
    for status in Status:
        found[f"status {status.name}"] = control_frame(Header(Kind.READ, 1, 2, flags=Flag.RESPONSE, status=status))
    assigned = Header(Kind.ADD, 1, 2, 3, 4, flags=Flag.VOLATILE).with_assignment(Assignment(3, 5, 3, 4))
    found["assignment"] = control_frame(assigned)
    for digest_type in DigestType:
        digest = digester(digest_type, b"password")
        entries = [_entry(42, i, digest) for i in range(5)]
        header = Header(Kind.ADD, 11, 42, 0, 4, -1, master_key=master_key(b"password"))
        found[f"batch {digest_type.name}"] = bytes(entry_batch.encode_entries(header, entries))
        one = entries[0]
        header = Header(Kind.ADD, 12, 42, 0, 0, one.last_add_confirmed)
        found[f"one entry {digest_type.name}"] = entry_batch.encode_one(header, one.length, one.payload, one.digest)
    exchange = security.Exchange(b"c" * 32, b"b" * 32, "bookie-1", "127.0.0.1:3181", b"h" * 32)
    proofs = [security.proof(secret, "bookie", exchange) for secret in (b"old secret", b"new secret")]
    found["HELLO"] = Hello(nonce=exchange.client_nonce).encode()
    found["challenge"] = Challenge("bookie-1", exchange.address, exchange.bookie_nonce, proofs).encode()
    found["HELLO with a proof"] = Hello("a client", proof=security.proof(b"new secret", "client", exchange)).encode()
    found["acks"] = Acks.encode([1, 2, 1 << 40])
    found["ranges"] = Ranges(*(array("q", [column, 10 + column]) for column in range(6))).encode()
    found["entry logs"] = EntryLogs([EntryLogFacts(3, "/logs/3", 100, 90, True, False)]).encode()
    found["limbo"] = Limbo([(3, 1), (9, 2)]).encode()
    bookie = BookieStatus("bookie-1", 5, 6, ["/a", "/b"], 7, 8, 9, healing=HealingStatus(1, 2, 3, 4, 5.5))
    found["status"] = _json(bookie)
    return found


def _entry(ledger_id: int, entry_id: int, digest: Digester) -> entry_batch.Entry:
    payload = f"entry {entry_id}".encode() * (entry_id + 1)
    row = (ledger_id, entry_id, entry_id - 1, 100 * entry_id + len(payload))
    return entry_batch.Entry(*row, payload, digest(*row, payload))


def _json(body: BookieStatus) -> bytes:
    import msgspec

    return msgspec.json.encode(body)
