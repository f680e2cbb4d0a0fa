"""Records of the metadata store as JSON documents.

Law: decoding returns the encoded value, or raises an error that names the record and the reason. A document of a newer format,
or with unknown fields, is refused: a compare-and-set by an older client would drop them.

A ledger's record has the field names of BookKeeper's ``LedgerMetadataFormat`` (bookkeeper-overview, "Metadata Store")::

    {"formatVersion": 1, "quorumSize": 3, "ensembleSize": 3, "ackQuorumSize": 2, "length": 0, "lastEntryId": -1,
     "state": "OPEN", "segment": [{"ensembleMember": ["bookie-5f2c9a1e", …], "firstEntryId": 0}], "digestType": "CRC32C",
     "password": "<master key, base64>", "ctime": 1700000000000, "customMetadata": {"name": "<base64>"}, "cToken": 42,
     "ledgerType": "PD_JOURNAL", "replication": "best_effort"}

``quorumSize`` is the write quorum. The ledger's id is not in it: it is the record's path. A ledger closed with an accepted
loss has the additional field ``acceptedLoss``, and format version 2. All other records stay at version 1, so that older
clients read them. The record of a ledger with a digest of BookKeeper is in BookKeeper's own format (``bookkeeper_format``),
and so are cookies and tasks in a cluster begun for BookKeeper's clients (``bookkeeper_texts``).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated

import msgspec
from crc32c import crc32c
from msgspec import Meta

from bookspark.errors import ConfigurationError, UnreadableRecordError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.accepted_loss import MILLISECONDS_MAX, AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    Replication,
)
from bookspark.protocol.repair.underreplication_task import Missed, Reason, Task
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.bookkeeper_format import (
    BOOKKEEPERS_DIGESTS,
    OUR_RECORD,
    is_bookkeepers,
    is_service_info,
    ledger_document,
    ledger_of,
    registration_in,
    service_info,
)
from bookspark.store.metadata.records.bookkeeper_texts import (
    cookie_of,
    cookie_text,
    is_cookie,
    is_text,
    task_of,
    task_text,
)
from bookspark.store.metadata.records.documents import (
    FORMAT_VERSION,
    VersionedDocument,
    learn,
    proven,
    proven_struct,
    read_struct,
    read_versioned,
    unreadable,
)

log = logging.getLogger(__name__)


# -- Accepted loss: a part of a ledger's record (``protocol.ledger.accepted_loss``).


_Last = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
Milliseconds = Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)]


class _LossDocument(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    kind: LossKind
    first_entry_id: _Last
    last_entry_id: _Last
    bookies: tuple[str, ...]


class AcceptedLossDocument(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    accepted_by: str
    at: Milliseconds
    named_bookies: tuple[str, ...]
    losses: tuple[_LossDocument, ...]
    not_known: tuple[str, ...]


def loss_document(loss: AcceptedLoss) -> AcceptedLossDocument:
    losses = tuple(_LossDocument(*one) for one in loss.losses)
    return AcceptedLossDocument(loss.by, loss.at_ms, loss.named, losses, loss.not_known)


def accepted_loss(found: AcceptedLossDocument) -> AcceptedLoss:
    losses = tuple(Loss(one.kind, one.first_entry_id, one.last_entry_id, one.bookies) for one in found.losses)
    return AcceptedLoss(found.accepted_by, found.at, found.named_bookies, losses, found.not_known)


# -- Documents of ledgers, cookies, tasks and registrations.


TASK_FORMAT_VERSION = 2
"""Version of a task with missed entries; other tasks have version 1."""
LEDGER_FORMAT_VERSION = 2
"""The version of a ledger's record with an accepted loss."""


_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Copies = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]


class _Segment(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    ensemble_member: tuple[str, ...]
    first_entry_id: _Count


class _LedgerDocument(VersionedDocument, frozen=True, kw_only=True):
    quorum_size: _Copies
    ensemble_size: _Copies
    length: _Count
    last_entry_id: _Last
    state: LedgerState
    segment: tuple[_Segment, ...]
    digest_type: DigestType
    password: bytes
    ack_quorum_size: _Copies
    ctime: Milliseconds
    custom_metadata: dict[str, bytes]
    c_token: int
    ledger_type: LedgerType
    replication: Replication
    accepted_loss: AcceptedLossDocument | msgspec.UnsetType = msgspec.UNSET


class _OursDocument(VersionedDocument, frozen=True, kw_only=True):
    """A ledger's properties unknown to BookKeeper's record. The key comes late, beyond the 80 bytes that an error quotes."""

    digest_type: DigestType
    ledger_type: LedgerType
    replication: Replication
    password: bytes
    accepted_loss: AcceptedLossDocument | msgspec.UnsetType = msgspec.UNSET


class _CookieDocument(VersionedDocument, frozen=True, kw_only=True):
    bookie_id: str
    directories: tuple[str, ...]
    instance_id: str
    nonce: str
    next_nonce: str | msgspec.UnsetType = msgspec.UNSET
    checksum: int | None = None
    """CRC32C of the document without this field, so that a bit flip on a disk can't make it another bookie's. None: written by
    hand."""


class _TaskDocument(VersionedDocument, frozen=True, kw_only=True):
    replica: dict[str, Reason]
    detail: str
    ctime: Milliseconds
    marks: _Count
    attempts: _Count
    error: str
    not_before: Milliseconds
    wait: Milliseconds
    missed: tuple[Missed, ...] | msgspec.UnsetType = msgspec.UNSET


def encode_ledger(metadata: LedgerMetadata, bookkeepers: bool = False) -> bytes:
    """The record of a ledger's metadata. ``bookkeepers``: in a cluster with BookKeeper's formats. Raises InvalidArgumentError
    for a value that could not be decoded again."""
    what = f"metadata of ledger {metadata.ledger_id}"
    document = _ledger_document
    if metadata.digest_type in BOOKKEEPERS_DIGESTS and metadata.accepted_loss is None:
        document = ledger_document
    elif metadata.digest_type in BOOKKEEPERS_DIGESTS or bookkeepers:
        document = _with_ours
    return proven(metadata, document, partial(decode_ledger, metadata.ledger_id), what)


def _with_ours(metadata: LedgerMetadata) -> bytes:
    loss = metadata.accepted_loss
    ours = _OursDocument(
        format_version=FORMAT_VERSION if loss is None else LEDGER_FORMAT_VERSION,
        digest_type=metadata.digest_type,
        ledger_type=metadata.ledger_type,
        replication=metadata.replication,
        password=metadata.master_key,
        accepted_loss=msgspec.UNSET if loss is None else loss_document(loss),
    )
    return ledger_document(metadata, msgspec.json.encode(ours))


def _ledger_with_ours(metadata: LedgerMetadata) -> LedgerMetadata:
    """``metadata``, read from BookKeeper's record, completed by the document in its custom metadata."""
    labels = dict(metadata.custom_metadata)
    what = f"metadata of ledger {metadata.ledger_id}"
    ours = read_versioned(labels.pop(OUR_RECORD), _OursDocument, what, LEDGER_FORMAT_VERSION)
    loss = ours.accepted_loss
    return replace(
        metadata,
        digest_type=ours.digest_type,
        master_key=ours.password,
        password=metadata.password if ours.digest_type in BOOKKEEPERS_DIGESTS else b"",
        ledger_type=ours.ledger_type,
        replication=ours.replication,
        accepted_loss=None if loss is msgspec.UNSET else accepted_loss(loss),
        custom_metadata=labels,
    )


def _ledger_document(metadata: LedgerMetadata) -> bytes:
    loss = metadata.accepted_loss
    return msgspec.json.encode(
        _LedgerDocument(
            format_version=FORMAT_VERSION if loss is None else LEDGER_FORMAT_VERSION,
            quorum_size=metadata.write_quorum,
            ensemble_size=metadata.ensemble_size,
            length=metadata.length,
            last_entry_id=metadata.last_entry_id,
            state=metadata.state,
            segment=tuple(_Segment(f.ensemble, f.first_entry_id) for f in metadata.fragments),
            digest_type=metadata.digest_type,
            password=metadata.master_key,
            ack_quorum_size=metadata.ack_quorum,
            ctime=metadata.ctime_ms,
            custom_metadata=dict(metadata.custom_metadata),
            c_token=metadata.c_token,
            ledger_type=metadata.ledger_type,
            replication=metadata.replication,
            accepted_loss=msgspec.UNSET if loss is None else loss_document(loss),
        )
    )


def decode_ledger(ledger_id: int, document: bytes) -> LedgerMetadata:
    """The metadata of ledger ``ledger_id``. Raises UnreadableRecordError, naming the ledger."""
    if is_bookkeepers(document):
        theirs = ledger_of(ledger_id, document)
        return _ledger_with_ours(theirs) if OUR_RECORD in theirs.custom_metadata else theirs
    what = f"metadata of ledger {ledger_id}"
    found = read_versioned(document, _LedgerDocument, what, LEDGER_FORMAT_VERSION)
    starts = [segment.first_entry_id for segment in found.segment]
    if any(later <= earlier for earlier, later in pairwise(starts)):
        raise unreadable(what, document, f"its fragments start at {starts[:20]}, which does not ascend")
    try:
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=found.ensemble_size,
            write_quorum=found.quorum_size,
            ack_quorum=found.ack_quorum_size,
            fragments=tuple(Fragment(s.first_entry_id, s.ensemble_member) for s in found.segment),
            state=found.state,
            last_entry_id=found.last_entry_id,
            length=found.length,
            digest_type=found.digest_type,
            master_key=found.password,
            ledger_type=found.ledger_type,
            replication=found.replication,
            ctime_ms=found.ctime,
            c_token=found.c_token,
            custom_metadata=found.custom_metadata,
            accepted_loss=None if found.accepted_loss is msgspec.UNSET else accepted_loss(found.accepted_loss),
        )
    except ConfigurationError as error:
        raise UnreadableRecordError(f"{what} contradicts itself: {error}") from error


def encode_cookie(cookie: Cookie, bookkeepers: bool = False) -> bytes:
    """The document of a cookie, in the metadata store and in each of the bookie's directories. ``bookkeepers``: in
    BookKeeper's format. Raises InvalidArgumentError for a value that could not be decoded again."""
    where = f"of {cookie.bookie_id}"
    write = _cookie_text if bookkeepers else _cookie_document
    return proven(cookie, write, lambda document: decode_cookie(document, where), f"cookie {where}")


def _cookie_text(cookie: Cookie) -> bytes:
    return cookie_text(cookie.bookie_id, cookie.directories, cookie.instance_id, _cookie_document(cookie))


def _cookie_document(cookie: Cookie) -> bytes:
    document = _CookieDocument(
        bookie_id=cookie.bookie_id,
        directories=cookie.directories,
        instance_id=cookie.instance_id,
        nonce=cookie.nonce,
        next_nonce=cookie.next_nonce or msgspec.UNSET,
    )
    return msgspec.json.encode(msgspec.structs.replace(document, checksum=_checksum(document)))


def decode_cookie(document: bytes, where: str) -> Cookie:
    """A cookie. ``where``: its place, for the UnreadableRecordError."""
    if is_cookie(document):
        return _cookie_in_text(document, where)
    found = read_versioned(document, _CookieDocument, f"cookie {where}")
    if found.checksum not in (None, _checksum(found)):
        raise UnreadableRecordError(f"cookie {where}: its checksum does not match")
    next_nonce = "" if found.next_nonce is msgspec.UNSET else found.next_nonce
    return Cookie(found.bookie_id, found.directories, found.instance_id, found.nonce, next_nonce)


def _cookie_in_text(document: bytes, where: str) -> Cookie:
    try:
        found = cookie_of(document)
    except ValueError as error:
        raise unreadable(f"cookie {where}", document, error) from error
    if not found.own:
        # A tool of BookKeeper wrote the cookie. Without a nonce it matches no bookie until an operator confirms it.
        return Cookie(found.bookie_id, found.directories, found.instance_id, "")
    cookie = decode_cookie(found.own, where)
    text = cookie_of(_cookie_text(cookie))
    if text[:3] != found[:3]:
        raise unreadable(f"cookie {where}", document, "its text and the line for Bookspark contradict each other")
    return cookie


def encode_task(task: Task, bookkeepers: bool = False) -> bytes:
    """The document of an underreplication task. ``bookkeepers``: in BookKeeper's format. Raises InvalidArgumentError for a
    value that could not be decoded again."""
    what = f"underreplication task of ledger {task.ledger_id}"
    write = _task_text if bookkeepers else _task_document
    return proven(task, write, partial(decode_task, task.ledger_id), what)


def _task_text(task: Task) -> bytes:
    return task_text(tuple(task.bookies), task.marked_at_ms, _task_document(task))


def _task_document(task: Task) -> bytes:
    return msgspec.json.encode(
        _TaskDocument(
            replica=dict(task.bookies),
            detail=task.detail,
            ctime=task.marked_at_ms,
            marks=task.marks,
            attempts=task.attempts,
            error=task.error,
            not_before=task.not_before_ms,
            wait=task.wait_ms,
            format_version=TASK_FORMAT_VERSION if task.missed else FORMAT_VERSION,
            missed=task.missed or msgspec.UNSET,
        )
    )


def decode_task(ledger_id: int, document: bytes) -> Task:
    """The task of ledger ``ledger_id``. Raises UnreadableRecordError, naming the ledger."""
    what = f"underreplication task of ledger {ledger_id}"
    if is_text(document):
        return _task_in_text(ledger_id, document, what)
    t = read_versioned(document, _TaskDocument, what, TASK_FORMAT_VERSION)
    missed = () if isinstance(t.missed, msgspec.UnsetType) else t.missed
    return Task(ledger_id, t.replica, t.detail, t.ctime, t.marks, t.attempts, t.error, t.not_before, t.wait, missed)


def _task_in_text(ledger_id: int, document: bytes, what: str) -> Task:
    try:
        found = task_of(document)
    except ValueError as error:
        raise unreadable(what, document, error) from error
    if found.own:
        task = decode_task(ledger_id, found.own)
        if (tuple(task.bookies), task.marked_at_ms) == found[:2]:
            return task
    # BookKeeper gives no reasons. LOST also suits a serving bookie that lacks entries, because a registered bookie is asked
    # for its lacking entries.
    return Task(ledger_id, dict.fromkeys(found.bookies, Reason.LOST), marked_at_ms=found.ctime_ms)


def _checksum(document: _CookieDocument) -> int:
    return crc32c(msgspec.json.encode(msgspec.structs.replace(document, checksum=None)))


def encode_registration(registration: BookieRegistration) -> bytes:
    """The document in a bookie's ephemeral node. It lives no longer than its process, so it has no format version."""
    document = proven_struct(registration, f"registration of {registration.bookie_id}")
    address = registration.bookkeeper_address
    return document if isinstance(address, msgspec.UnsetType) else service_info(address, document)


def decode_registration(bookie_id: str, document: bytes) -> BookieRegistration:
    """A registration. Unknown fields of a newer bookie are ignored. Raises UnreadableRecordError, naming the bookie."""
    what = f"registration of {bookie_id}"
    if not is_service_info(document):
        return read_struct(document, BookieRegistration, what)
    try:
        return read_struct(registration_in(document), BookieRegistration, what)
    except ValueError as error:
        raise unreadable(what, document, error) from error


def readable_ledger(ledger_id: int, document: bytes, unreadable: dict[int, str]) -> LedgerMetadata | None:
    """The metadata of a ledger. None if its record can't be decoded: the reason goes into ``unreadable``."""
    try:
        return decode_ledger(ledger_id, document)
    except UnreadableRecordError as error:
        unreadable[ledger_id] = str(error)
        return None


def readable_registration(bookie_id: str, document: bytes) -> BookieRegistration:
    """A registration. Without a readable record the bookie counts as serving, but gets no address, so nothing is sent to it."""
    try:
        return decode_registration(bookie_id, document)
    except UnreadableRecordError as error:
        log.warning("%s", error)
        return BookieRegistration(bookie_id, address="", incarnation=0, read_only=True)


learn(_LedgerDocument, _OursDocument, _CookieDocument, _TaskDocument, BookieRegistration)
