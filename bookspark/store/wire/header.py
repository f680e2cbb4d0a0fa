"""The header of every request and response, and the kinds of request (numbers: docs/formats.md).

Law: a header is 112 bytes at a fixed offset of its frame, with a checksum, and the same in both directions. Every message
carries the LAC (last add confirmed), the LAFR (last add fully replicated), LastAddSynced and the bookie's incarnation, so no
mode of durability or replication needs another header. Little-endian::

      0  u16 protocol version      48  i64 last_add_fully_replicated
      2  u8  kind                  56  i64 last_add_synced       (responses)
      3  u8  flags                 64  u64 incarnation           (responses)
      4  u16 status                72  16 bytes master key       (requests)
      6  u16 reserved, 0           88  u32 limit
      8  u64 request id            92  u32 CRC32C of the body
     16  i64 ledger_id             96  i64 value
     24  i64 first_entry_id       104  u32 reserved, 0
     32  i64 last_entry_id        108  u32 CRC32C of bytes 0–107
     40  i64 last_add_confirmed   112

The kinds, and the bookie's work for each (``-`` after a name: the request is a control frame; ``=``: a batch frame):

``HELLO-``
    The first request. ``value`` is the client's highest protocol version, and the answer's the version to use. The answer's body
    is the bookie id, so that a client never talks to another bookie at a reused address. With a secret, both sides prove it first
    (``security``): the bookie answers UNAUTHORIZED with ``messages.Challenge``, and the client sends a second HELLO.
``ADD=``
    Append the entries ``first..last`` of one ledger, all or none. The answer is a control frame with the same range. An OK for
    a ledger of persistent durability (PD) comes in an ``ACKS``, together with others.
    ``RECOVERY``: sent by a recovery or a repair; allowed on a fenced ledger; synced before the answer in every mode.
    ``VOLATILE``: the ledger is of volatile durability (VD, BP-14); answered once the operating system has it, before the sync.
    Such a request, and ``SYNC``, carries the bookie's assignment: ``value`` is the first entry id, ``limit`` is ensemble
    size << 20 | write quorum << 10 | position. The answer's LastAddSynced is for that assignment.
``ACKS-``
    From bookies: ``value`` adds that became OK in one turn of the loop. The body is ``messages.Acks``.
``READ-``
    Entries ``first..last``, about ``limit`` bytes but at least one entry. The answer is any number of batch frames with
    ``MORE`` (stored batches up to 8 KiB joined to at most 256 KiB), then a control frame: ``last_entry_id`` is the last id sent
    (``first − 1`` if none), ``value`` the number of entries sent, and ``status`` that of the next id (OK at the end of the range
    or limit).
    ``FENCE``: fence first (recovery reads).
    ``SPARSE``: skip ids that this bookie lacks (striped ledgers); ``last_entry_id`` is then the last examined id.
``READ_LAC-``
    The LAC, the LAFR and (``value``) the bookie's highest entry id. ``limit`` of the answer is 1 if the ledger's writer,
    which sent the last ADD without ``RECOVERY``, SYNC or WRITE_LAC, is connected; 0 if it is not, or not known.
    ``FENCE``: fence first, durably: the first step of ledger recovery. It creates an unknown ledger, if the metadata has it with
    this bookie and this master key; so it has no Negative.
    ``limit`` > 0: wait up to ``limit`` ms, 300,000 at most, until the LAC is at least ``first_entry_id`` (long poll).
    ``ENTRY``: send that entry as a batch frame with ``MORE`` before the answer, if it is confirmed, in the page cache and at most
    64 KiB.
``WRITE_LAC-``
    Explicit LAC: note ``last_add_confirmed`` without an entry.
``SYNC-``
    Sync all earlier adds of a VD ledger; the answer has LastAddSynced.
``RANGES-``
    The held ranges of ``ledger_id`` from entry ``first_entry_id`` on, and of the ledgers after it (not if ``value`` is 1),
    ``limit`` and 2,048 rows at most, as ``messages.Ranges``, once they are durable (IO_ERROR, READ_ONLY: some can't be). The
    answer's ``value`` and ``first_entry_id`` are the ledger and the entry to go on with, −1 at the end.
``STATUS-``
    The answer's body is ``messages.BookieStatus``.
``ENTRY_LOGS-``
    The logs from number ``value`` on, 2,048 at most, as ``messages.EntryLogs``. The answer's ``value`` is the number to go on
    with, −1 at the end.
``LIMBO-``
    The ledgers in limbo from ``ledger_id`` on, ``limit`` and 2,048 at most, as ``messages.Limbo``. The answer's ``value`` is the
    ledger to go on with, −1 at the end.
``COLLECT-``
    Forget deleted ledgers and free their space now. Answered at once: ``value`` is the number of the collection, which
    ``STATUS`` reports when it is over.
``SWITCH_READ_ONLY-``
    ``value`` 1: take no adds but those of recovery and repair, also after a restart. 0: take adds again. Answered once durable.
    ``limit`` > 0: the order of a change of the cluster. After a higher order the answer is FENCED, and nothing is switched.
``FETCH-``
    From a repair: copy the entries ``first..last`` of a ledger from the bookie in the body (``messages.FetchFrom``). Each entry
    is read as by a client, and added as an ``ADD`` with ``RECOVERY`` and this request's LAC and LAFR. ``limit`` > 0: give up
    entries that have not arrived after ``limit`` ms; 0: the bookie's wait for any answer. ``last_entry_id`` of the answer is the
    last id synced here, and ``value`` the number of fetched bytes. After a failed read the answer is OK too, and its body
    explains the failure to people. A body of more than 4 KiB is refused; TOO_MANY_REQUESTS: 256 fetches wait already.
``REFUSAL-``
    From bookies: the last frame of a connection with malformed bytes. The body explains it to people.

The body of a BAD_REQUEST explains the fault in words. Any request may be answered TOO_MANY_REQUESTS; then the bookie did
nothing.

Source: BookKeeper's ``BookkeeperProtocol.proto`` for the kinds; BP-14 for LastAddSynced and ``SYNC``; "Guaranteeing write
quorum" for LAFR.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum, IntFlag
from functools import partial
from typing import NamedTuple, cast

from crc32c import crc32c

from bookspark.protocol.ledger.ledger_choices import STRIPED_ENSEMBLE_MAX
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment

PROTOCOL_VERSION = 1
HEADER_BYTES = 112
NO_KEY = bytes(16)

_LAYOUT = struct.Struct("<HBBHHQqqqqqqQ16sIIqI")
_CHECKED = struct.Struct("<I")
assert _LAYOUT.size + _CHECKED.size == HEADER_BYTES


class Kind(IntEnum):
    """See the module's docstring."""

    HELLO = 1
    ADD = 2
    READ = 3
    READ_LAC = 4
    WRITE_LAC = 5
    RANGES = 6
    STATUS = 7
    SYNC = 8
    ENTRY_LOGS = 9
    LIMBO = 10
    ACKS = 11
    REFUSAL = 12
    COLLECT = 13
    SWITCH_READ_ONLY = 14
    FETCH = 15


class Flag(IntFlag):
    """Options of a request, and RESPONSE; see the module's docstring."""

    NONE = 0
    FENCE = 1
    RECOVERY = 2
    VOLATILE = 4
    SPARSE = 8
    MORE = 16
    ENTRY = 32
    RESPONSE = 128


class Status(IntEnum):
    """The outcome of a request. ``Header.response`` maps it to the three classes of answers."""

    OK = 0
    NO_SUCH_ENTRY = 1
    NO_SUCH_LEDGER = 2
    FENCED = 3
    UNAUTHORIZED = 4
    IO_ERROR = 5
    LIMBO = 6
    TOO_MANY_REQUESTS = 7
    BAD_REQUEST = 8
    CONFLICT = 9
    READ_ONLY = 10
    LOST = 11


_REASONS = {
    status: Negative(NegativeReason[status.name])
    if status.name in NegativeReason.__members__
    else Unknown(UnknownReason[status.name])
    for status in Status
    if status is not Status.OK
}
_BAD_REQUEST = Unknown(UnknownReason.BAD_REQUEST)
_STATUSES = {response.reason: status for status, response in _REASONS.items()}


def status_of(response: Response) -> Status:
    """The status of a bookie's decision. Each reason of a Negative has one of its own. The inverse is ``Header.response``."""
    return Status.OK if isinstance(response, Positive) else _STATUSES.get(response.reason, Status.IO_ERROR)


class WireError(Exception):
    """Bytes that are not a frame of Bookspark. The receiver closes the connection, because no later byte is reliable."""


class Header(NamedTuple):
    """One decoded header. Ids are −1 where unused. Times are in milliseconds, sizes in bytes."""

    kind: int
    request_id: int
    ledger_id: int = -1
    first_entry_id: int = NO_ENTRY
    last_entry_id: int = NO_ENTRY
    last_add_confirmed: int = NO_ENTRY
    flags: int = 0
    status: int = Status.OK
    last_add_fully_replicated: int = NO_ENTRY
    last_add_synced: int = NO_ENTRY
    incarnation: int = 0
    master_key: bytes = NO_KEY
    limit: int = 0
    value: int = 0

    def __repr__(self) -> str:
        # Log lines contain it, and the master key permits fencing the ledger.
        told = [f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True) if name != "master_key"]
        return f"Header({', '.join(told)})"

    def encode(self, body_crc: int) -> bytes:
        """The 112 bytes. ``body_crc``: the CRC32C of the body that follows."""
        packed = _LAYOUT.pack(
            PROTOCOL_VERSION,
            self.kind,
            self.flags,
            self.status,
            0,
            self.request_id,
            self.ledger_id,
            self.first_entry_id,
            self.last_entry_id,
            self.last_add_confirmed,
            self.last_add_fully_replicated,
            self.last_add_synced,
            self.incarnation,
            self.master_key,
            self.limit,
            body_crc,
            self.value,
            0,
        )
        return packed + _CHECKED.pack(crc32c(packed))

    def with_assignment(self, assignment: Assignment) -> Header:
        """This request of a VD ledger, with the bookie's assignment in ``value`` and ``limit``."""
        first, ensemble_size, write_quorum, position = assignment
        return self._replace(value=first, limit=ensemble_size << 20 | write_quorum << 10 | position)

    def assignment(self) -> Assignment:
        """The bookie's assignment in a request of a VD ledger. Raises WireError if it is impossible."""
        packed = self.limit
        found = Assignment(self.value, packed >> 20, packed >> 10 & STRIPED_ENSEMBLE_MAX, packed & STRIPED_ENSEMBLE_MAX)
        if not (found.first_entry_id >= 0 and found.ensemble_size >= found.write_quorum >= 1):
            raise WireError(f"{found} is no assignment")
        if found.position >= found.ensemble_size:
            raise WireError(f"position {found.position} in an ensemble of {found.ensemble_size}")
        return found

    def response(self) -> Response:
        """The class of this answer, for the decisions of ``protocol``. Only NO_SUCH_ENTRY and NO_SUCH_LEDGER are a Negative."""
        if self.status == Status.OK:
            return Positive(self)
        return _REASONS.get(self.status, _BAD_REQUEST)  # type: ignore[call-overload,no-any-return]


def decode(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[Header, int]:
    """The header at ``offset``, and the CRC32C of its body. Raises WireError if it is damaged or not Bookspark's."""
    (
        version,
        kind,
        flags,
        status,
        _,
        request_id,
        ledger_id,
        first,
        last,
        confirmed,
        replicated,
        synced,
        incarnation,
        key,
        limit,
        body_crc,
        value,
        _,
    ) = _LAYOUT.unpack_from(buffer, offset)
    checksum = _CHECKED.unpack_from(buffer, offset + _LAYOUT.size)[0]
    if checksum != crc32c(buffer[offset : offset + _LAYOUT.size]):
        raise WireError("header checksum does not match: damaged bytes, or no Bookspark peer")
    if version != PROTOCOL_VERSION:
        raise WireError(f"protocol version {version}, this is {PROTOCOL_VERSION}")
    # fmt: off
    header = _new_header((
        kind, request_id, ledger_id, first, last, confirmed, flags, status, replicated, synced, incarnation, key, limit, value,
    ))
    # fmt: on
    return header, body_crc


_new_header = cast(Callable[[tuple[object, ...]], Header], partial(tuple.__new__, Header))
"""``Header._make`` without the cost of a Python call."""
