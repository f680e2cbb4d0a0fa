"""Records in BookKeeper's own formats, for ledgers and bookies used by its clients.

Law: a ledger with a digest of BookKeeper has a record that BookKeeper's clients read and write: format version 3, the text
``BookieMetadataFormatVersion\\t3\\n`` and then a ``LedgerMetadataFormat`` behind its size (a varint). It has all properties of
such a ledger, so a rewrite by those clients loses nothing. It holds the password itself, because they compare it. An accepted
loss is a document of ours in the custom metadata, which they leave alone.

In a cluster with BookKeeper's formats every other ledger has such a record too, so that their tools can list and describe it.
That document then has the properties unknown to their format (digest type, key, ledger type, replication, an accepted loss);
their fields have the rest, and count. Their clients can't use such a ledger: the record names a digest that none of its
entries carries, and a password that opens nothing, so they report a failed authorization or a digest mismatch.

A bookie with ``bookkeeper_address`` registers with a ``BookieServiceInfoFormat``: the endpoint ``bookie-rpc`` for them, and
our own registration as the property ``bookspark``.

Source: BookKeeper's ``LedgerMetadataSerDe``, ``DataFormats.proto`` and ``ZKRegistrationManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from bookspark.errors import ConfigurationError, InvalidArgumentError, UnreadableRecordError
from bookspark.protocol.ledger.accepted_loss import MILLISECONDS_MAX
from bookspark.protocol.ledger.bookkeeper_keys import bookkeeper_master_key, kept_key
from bookspark.protocol.ledger.ledger_metadata import (
    NO_ENTRY,
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    Replication,
)
from bookspark.store.metadata.records.documents import unreadable
from bookspark.support.addresses import address_text, split_address
from bookspark.support.protobuf_messages import Schema

_VERSION_KEY = b"BookieMetadataFormatVersion\t"
_HEAD = _VERSION_KEY + b"3\n"
_STATES = {1: LedgerState.OPEN, 2: LedgerState.IN_RECOVERY, 3: LedgerState.CLOSED}
_STATE_NUMBERS = {state: number for number, state in _STATES.items()}
_DIGESTS = {
    1: DigestType.BOOKKEEPER_CRC32,
    2: DigestType.BOOKKEEPER_HMAC,
    3: DigestType.BOOKKEEPER_CRC32C,
    4: DigestType.BOOKKEEPER_DUMMY,
}
_DIGEST_NUMBERS = {digest: number for number, digest in _DIGESTS.items()}
BOOKKEEPERS_DIGESTS = frozenset(_DIGEST_NUMBERS)
_PROTOCOL, _OURS = "bookie-rpc", "bookspark"
OUR_RECORD = "bookspark.record"
"""Key of the custom metadata with properties unknown to BookKeeper's record."""
_NO_PASSWORD, _NO_DIGEST = b"for clients of Bookspark only", 2
"""Placeholders in their fields. The digest is a MAC, whose key comes from the password."""

_SCHEMA = Schema(
    "bookspark.bookkeeper.formats",
    {
        "Ledger": (
            ("quorumSize", 1, "int32"),
            ("ensembleSize", 2, "int32"),
            ("length", 3, "int64"),
            ("lastEntryId", 4, "int64"),
            ("state", 5, "int32"),
            ("segment", 6, "Segment*"),
            ("digestType", 7, "int32"),
            ("password", 8, "bytes"),
            ("ackQuorumSize", 9, "int32"),
            ("ctime", 10, "int64"),
            ("customMetadata", 11, "Labelled*"),
            ("cToken", 12, "int64"),
        ),
        "Segment": (("ensembleMember", 1, "string*"), ("firstEntryId", 2, "int64")),
        "Labelled": (("key", 1, "string"), ("value", 2, "bytes")),
        "ServiceInfo": (("endpoints", 6, "Endpoint*"), ("properties", 7, "Property*")),
        "Endpoint": (
            ("id", 1, "string"),
            ("port", 2, "int32"),
            ("host", 3, "string"),
            ("protocol", 4, "string"),
            ("auth", 5, "string*"),
            ("extensions", 6, "string*"),
        ),
        "Property": (("key", 1, "string"), ("value", 2, "string")),
    },
)


def is_bookkeepers(document: bytes) -> bool:
    """True for a ledger's record in a format of BookKeeper."""
    return document.startswith(_VERSION_KEY)


def ledger_document(metadata: LedgerMetadata, ours: bytes = b"") -> bytes:
    """The record of a ledger. ``ours``: the document of properties unknown to their format; empty if there are none, because
    the digest is BookKeeper's. Raises InvalidArgumentError for a combination that such a ledger can't have."""
    labels = {**metadata.custom_metadata, OUR_RECORD: ours} if ours else metadata.custom_metadata
    if metadata.digest_type not in BOOKKEEPERS_DIGESTS:
        return _document(metadata, _NO_DIGEST, _NO_PASSWORD, labels)
    if (metadata.ledger_type, metadata.replication) != (LedgerType.PD_JOURNAL, Replication.BEST_EFFORT):
        raise InvalidArgumentError(
            f"ledger {metadata.ledger_id} with a digest of BookKeeper is PD_JOURNAL, best effort"
        )
    return _document(metadata, _DIGEST_NUMBERS[metadata.digest_type], metadata.password, labels)


def _document(metadata: LedgerMetadata, digest: int, password: bytes, labels: Mapping[str, bytes]) -> bytes:
    ledger = _SCHEMA.message("Ledger")(
        quorumSize=metadata.write_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=_STATE_NUMBERS[metadata.state],
        digestType=digest,
        password=password,
        ackQuorumSize=metadata.ack_quorum,
        cToken=metadata.c_token,
    )
    if metadata.ctime_ms:
        ledger.ctime = metadata.ctime_ms
    for fragment in metadata.fragments:
        ledger.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
    for key, value in labels.items():
        ledger.customMetadata.add(key=key, value=value)
    body: bytes = ledger.SerializeToString()
    return _HEAD + _varint(len(body)) + body


def ledger_of(ledger_id: int, document: bytes) -> LedgerMetadata:
    """The metadata in a record of BookKeeper. Raises UnreadableRecordError, naming the ledger."""
    what = f"metadata of ledger {ledger_id}"
    if not document.startswith(_HEAD):
        raise unreadable(what, document[:40], "only format version 3 of BookKeeper's records is known")
    try:
        found = _SCHEMA.parse("Ledger", _delimited(document[len(_HEAD) :]))
        starts = [segment.firstEntryId for segment in found.segment]
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise unreadable(what, _HEAD, f"its fragments start at {starts[:20]}, which does not ascend")
        out_of_bounds = _out_of_bounds(found)
        if out_of_bounds:
            raise unreadable(what, _HEAD, out_of_bounds)
        return _metadata(ledger_id, found)
    except (ValueError, KeyError) as error:
        # The rest is not shown: it may contain the password.
        raise unreadable(what, _HEAD, error) from error
    except ConfigurationError as error:
        raise UnreadableRecordError(f"{what} contradicts itself: {error}") from error


def _out_of_bounds(found: Any) -> str:
    """The impossible property, in words; "" if there is none."""
    if not 0 <= found.ctime <= MILLISECONDS_MAX:
        return f"it was made {found.ctime} ms after the beginning of 1970"
    if _STATES[found.state] is LedgerState.CLOSED and not (
        found.HasField("lastEntryId") and found.lastEntryId >= NO_ENTRY and found.length >= 0
    ):
        return f"it is closed at entry {found.lastEntryId}, with {found.length} bytes"
    return ""


def _metadata(ledger_id: int, found: Any) -> LedgerMetadata:
    state = _STATES[found.state]
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=found.ensembleSize,
        write_quorum=found.quorumSize,
        ack_quorum=found.ackQuorumSize if found.HasField("ackQuorumSize") else found.quorumSize,
        fragments=tuple(Fragment(s.firstEntryId, tuple(s.ensembleMember)) for s in found.segment),
        state=state,
        last_entry_id=found.lastEntryId if closed else NO_ENTRY,
        length=found.length if closed else 0,
        digest_type=_DIGESTS[found.digestType],
        master_key=kept_key(bookkeeper_master_key(found.password)),
        password=found.password,
        ctime_ms=found.ctime,
        c_token=found.cToken,
        custom_metadata={one.key: one.value for one in found.customMetadata},
    )


def is_service_info(document: bytes) -> bool:
    """True for a bookie's node that serves BookKeeper's clients too: it begins with the endpoints."""
    return document.startswith(b"\x32")


def service_info(address: str, registration: bytes) -> bytes:
    """A bookie's node: its address for BookKeeper's clients (``host:port``), and our own ``registration``."""
    info = _SCHEMA.message("ServiceInfo")()
    host, port = split_address(address)
    info.endpoints.add(id="bookie", port=port, host=host, protocol=_PROTOCOL)
    info.properties.add(key=_OURS, value=registration.decode())
    document: bytes = info.SerializeToString()
    return document


def rpc_address(document: bytes) -> str:
    """A bookie's address for BookKeeper's clients, ``host:port``; "" if its node lacks it. Raises ValueError for other bytes."""
    info = _SCHEMA.parse("ServiceInfo", document)
    return next((address_text(one.host, one.port) for one in info.endpoints if one.protocol == _PROTOCOL), "")


def registration_in(document: bytes) -> bytes:
    """Our own registration in a bookie's node; b"" if it has none. Raises ValueError for other bytes."""
    info = _SCHEMA.parse("ServiceInfo", document)
    found: str = next((one.value for one in info.properties if one.key == _OURS), "")
    return found.encode()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _delimited(data: bytes) -> bytes:
    """The message behind its size. Raises ValueError."""
    size = shift = at = 0
    while at < len(data):
        size |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            if len(data) - at != size:
                raise ValueError(f"{len(data) - at} bytes follow, and the record says {size}")
            return data[at:]
    raise ValueError("its size is cut off")
