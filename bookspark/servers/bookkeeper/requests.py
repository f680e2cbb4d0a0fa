"""Requests and answers of BookKeeper's wire protocol: versions 2 (fixed binary) and 3 (Protocol Buffers), in one form.

Law: a frame is ``u32 size │ size bytes``, big-endian like all numbers of version 2. The first byte is the version::

    02   version 2    02 │ u8 operation │ u16 flags, then
                        ADD         20 bytes master key │ the entry's body (``entries``)
                        READ        i64 ledger │ i64 entry │ 20 bytes master key if FENCE
                        BATCH_READ  i64 ledger │ i64 entry │ i64 request │ i32 count │ i64 bytes │ 20 bytes key if FENCE
                        AUTH        an AuthMessage
    0A   version 3    a ``Request`` of ``messages``

An answer has the version of its request. Invalid bytes raise WireError. An answer names its request by ledger and entry in
version 2, by ``txnId`` in version 3.

Source: BookKeeper's ``BookieProtocol``, ``BookieProtoEncoding`` and ``BookkeeperProtocol.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from bookspark.servers.bookkeeper.messages import DEFERRED_SYNC, RECOVERY_ADD, SCHEMA, VERSION_3, Operation, ReadFlag
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.frames import FrameReceiver
from bookspark.store.wire.header import Flag, Status, WireError

MASTER_KEY_BYTES = 20
_START_BYTES = 10
"""Bytes of a connection needed to check the start of its first frame."""
_MIN_BYTES = 4
_VERSION_2, _VERSION_3_TAG = 2, 0x0A
_SIZE = struct.Struct(">I")
_START_2 = struct.Struct(">BBH")
_ENTRY = struct.Struct(">qq")
_BATCH = struct.Struct(">qqqiq")
_ANSWER_2 = struct.Struct(">IBBHIqq")
BATCH_HEAD_BYTES = _ANSWER_2.size + 8
"""Bytes of an answer to BATCH_READ before its entries. The client's size limit includes them."""
_FENCE_2, _RECOVERY_2 = 1, 2
_RECOVERY, _VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
_FLAGS_OF_READS = {ReadFlag.FENCE: int(Flag.FENCE), ReadFlag.ENTRY_PIGGYBACK: int(Flag.ENTRY)}
_NO_FIELDS: Mapping[str, object] = {}

_OPERATIONS_2 = {1: Operation.ADD_ENTRY, 2: Operation.READ_ENTRY, 3: Operation.AUTH, 7: Operation.BATCH_READ_ENTRY}
_OPERATIONS_3 = {int(operation): operation for operation in Operation}
_OPERATION_BYTES_3 = frozenset(bytes([operation]) for operation in Operation)
_NUMBERS_2 = {operation: number for number, operation in _OPERATIONS_2.items()}
_CODES = {
    Status.OK: (0, 0),
    Status.NO_SUCH_LEDGER: (1, 402),
    Status.NO_SUCH_ENTRY: (2, 403),
    Status.BAD_REQUEST: (100, 404),
    Status.IO_ERROR: (101, 501),
    Status.UNAUTHORIZED: (102, 502),
    Status.FENCED: (104, 504),
    Status.READ_ONLY: (105, 505),
    Status.TOO_MANY_REQUESTS: (106, 506),
    Status.LIMBO: (107, 507),
    Status.CONFLICT: (101, 501),
    Status.LOST: (101, 501),
}
"""BookKeeper's codes, of versions 2 and 3. The two Negatives have codes of their own, shared with no other status."""
_FIELDS_3 = {
    Operation.READ_ENTRY: "read",
    Operation.ADD_ENTRY: "add",
    Operation.AUTH: "auth",
    Operation.WRITE_LAC: "writeLac",
    Operation.READ_LAC: "readLac",
    Operation.GET_BOOKIE_INFO: "bookieInfo",
    Operation.START_TLS: "startTls",
    Operation.FORCE_LEDGER: "force",
    Operation.GET_LIST_OF_ENTRIES: "entries",
}
"""The field of a request, and of its answer."""


class Asked(NamedTuple):
    """A request of either version. Ids without a meaning are −1."""

    version: int
    operation: Operation
    txn_id: int = 0
    """The client's, of version 3 and of a batched read."""
    ledger_id: int = -1
    entry_id: int = -1
    flags: int = 0
    """``wire.header.Flag``: FENCE, RECOVERY, VOLATILE (deferred sync), ENTRY (long poll with the entry)."""
    master_key: bytes = b""
    """BookKeeper's, of 20 bytes; empty if the request has none."""
    body: bytes = b""
    """Body of an add or of an explicit LAC, or the plug-in's name of an AUTH."""
    previous_lac: int | None = None
    """A long poll waits for a higher LAC."""
    timeout_ms: int = 0
    entries_max: int = 1
    """Limit of entries in a batched read; 0 is no limit."""
    size: int = 0
    """Limit of bytes in a batched read, or the requested figures of GET_BOOKIE_INFO."""

    def __repr__(self) -> str:
        # For log lines, so without the master key, which allows fences.
        return f"Asked({self.operation.name}, version {self.version}, ledger {self.ledger_id}, entry {self.entry_id})"


_new_asked = cast(Callable[[Iterable[object]], Asked], partial(tuple.__new__, Asked))
"""``Asked._make`` without the cost of a Python call."""


def first_message_size(seen: bytes) -> int:
    """Number of bytes needed to recognise a client of BookKeeper, from the start ``seen`` of its connection: less than a first
    request, which may be a long add. Raises WireError for other bytes."""
    if len(seen) < 4:
        return 4
    size = _size_of(seen, 0)
    needed = min(4 + size, _START_BYTES)
    if len(seen) < needed:
        return needed
    is_2 = seen[4] == _VERSION_2 and seen[5] in _OPERATIONS_2
    # A message may end before its operation.
    is_3 = seen[4] == _VERSION_3_TAG and seen[6:9] == b"\x08\x03\x10" and seen[9:10] in _OPERATION_BYTES_3
    if not (is_2 or is_3):
        raise WireError("this port speaks BookKeeper's protocol, versions 2 and 3; these bytes are neither")
    return needed


def _size_of(buffer: bytes | memoryview, at: int, most: int = FRAME_BYTES_MAX) -> int:
    size: int = _SIZE.unpack_from(buffer, at)[0]
    if not _MIN_BYTES <= size <= most:
        raise WireError(f"a frame of {size} bytes; {_MIN_BYTES} to {most} are allowed")
    return size


class RequestReceiver(FrameReceiver):
    """Receiving half of a connection: ``buffer()``, then ``requests(n)``."""

    def __init__(self, pool: ChunkPool, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        super().__init__(pool, frame_bytes_max=frame_bytes_max)

    @property
    def is_empty(self) -> bool:
        """Is no byte left after the last request?"""
        return self._end == self._start

    def requests(self, count: int) -> Iterator[Asked]:
        """The requests completed by ``count`` more bytes in ``buffer()``. Raises WireError for invalid bytes."""
        self._end += count
        return self._whole_requests()

    def _whole_requests(self) -> Iterator[Asked]:
        begun, size = self._start, None
        while self._end - self._start >= 4:
            size = 4 + _size_of(self._chunk, self._start, self.frame_bytes_max)
            if size > self._end - self._start:
                break
            start, self._start, size = self._start, self._start + size, None
            yield decode(bytes(self._chunk[start + 4 : self._start]))
        self._make_room(begun, size)


def decode(frame: bytes) -> Asked:
    """The request in a frame (without its size). Raises WireError."""
    if frame[0] == _VERSION_3_TAG:
        return _decode_3(frame)
    version, number, flags = _START_2.unpack_from(frame)
    operation = _OPERATIONS_2.get(number)
    if version != _VERSION_2 or operation is None:
        raise WireError(f"operation {number} of protocol version {version}; versions 2 and 3 are known")
    try:
        return _decode_2(frame, operation, flags)
    except (struct.error, ValueError) as error:
        raise WireError(f"{operation.name}: {error}") from error


def _decode_2(frame: bytes, operation: Operation, bits: int) -> Asked:
    if operation is Operation.ADD_ENTRY:
        body = frame[4 + MASTER_KEY_BYTES :]
        ledger_id, entry_id = _ENTRY.unpack_from(body)
        flags = _RECOVERY if bits & _RECOVERY_2 else 0
        return _new_asked(
            (2, operation, 0, ledger_id, entry_id, flags, frame[4 : 4 + MASTER_KEY_BYTES], body, None, 0, 1, 0)
        )
    if operation is Operation.AUTH:
        return Asked(2, operation, body=_plugin(_parse("AuthMessage", frame[4:])))
    flags = int(Flag.FENCE) if bits & _FENCE_2 else 0
    if operation is Operation.READ_ENTRY:
        ledger_id, entry_id = _ENTRY.unpack_from(frame, 4)
        asked, end = Asked(2, operation, 0, ledger_id, entry_id, flags), 4 + _ENTRY.size
    else:
        ledger_id, entry_id, request, count, size = _BATCH.unpack_from(frame, 4)
        asked = Asked(2, operation, request, ledger_id, entry_id, flags, entries_max=max(count, 0), size=size)
        end = 4 + _BATCH.size
    if not flags:
        return asked
    key = frame[end : end + MASTER_KEY_BYTES]
    if len(key) != MASTER_KEY_BYTES:
        raise ValueError("a fencing read without a master key")
    return asked._replace(master_key=key)


def _plugin(message: Any) -> bytes:
    name: str = message.pluginName
    return name.encode()


def _parse(kind: str, frame: bytes) -> Any:
    try:
        return SCHEMA.parse(kind, frame)
    except ValueError as error:
        raise WireError(f"bytes that are no {kind} of protocol version 3") from error


def _decode_3(frame: bytes) -> Asked:
    request = _parse("Request", frame)
    header = request.header
    operation = _OPERATIONS_3.get(header.operation)
    if operation is None:
        raise WireError(f"operation {header.operation} of protocol version 3")
    field = _FIELDS_3.get(operation)
    if header.version != VERSION_3 or field is None or not request.HasField(field):
        raise WireError(f"{operation.name} of protocol version {header.version}, without its request")
    it = getattr(request, field)
    if operation is Operation.ADD_ENTRY:
        flags = _RECOVERY if it.flag & RECOVERY_ADD else 0
        if it.writeFlags & DEFERRED_SYNC:
            flags |= _VOLATILE
        return _new_asked(
            (3, operation, header.txnId, it.ledgerId, it.entryId, flags, it.masterKey, it.body, None, 0, 1, 0)
        )
    if operation is Operation.READ_ENTRY:
        flags = _FLAGS_OF_READS.get(it.flag, 0)
        previous = it.previousLac if it.HasField("previousLac") else None
        return _new_asked(
            (3, operation, header.txnId, it.ledgerId, it.entryId, flags, it.masterKey, b"", previous, it.timeOut, 1, 0)
        )
    asked = Asked(3, operation, header.txnId)
    if operation is Operation.AUTH:
        return asked._replace(body=_plugin(it))
    if operation is Operation.START_TLS:
        return asked
    if operation is Operation.GET_BOOKIE_INFO:
        return asked._replace(size=it.requested)
    asked = asked._replace(ledger_id=it.ledgerId)
    if operation is Operation.WRITE_LAC:
        return asked._replace(entry_id=it.lac, master_key=it.masterKey, body=it.body)
    return asked


def answer(asked: Asked, status: int, bodies: Sequence[bytes] = (), fields: Mapping[str, object] = _NO_FIELDS) -> bytes:
    """The frame that answers ``asked``. ``bodies``: of the entries of a read. ``fields``: further fields of version 3, by their
    names in ``messages``."""
    if asked.version == 3:
        return _answer_3(asked, status, bodies, fields)
    batch = asked.operation is Operation.BATCH_READ_ENTRY
    pieces = [struct.pack(">q", asked.txn_id)] if batch else []
    for body in bodies:
        pieces += (_SIZE.pack(len(body)), body) if batch else (body,)
    size = _ANSWER_2.size - 4 + sum(map(len, pieces))
    number, (code, _) = _NUMBERS_2[asked.operation], _CODES[Status(status)]
    head = _ANSWER_2.pack(size, _VERSION_2, number, 0, code, asked.ledger_id, asked.entry_id)
    return b"".join((head, *pieces))


def _answer_3(asked: Asked, status: int, bodies: Sequence[bytes], fields: Mapping[str, object]) -> bytes:
    response = SCHEMA.message("Response")()
    response.header.version, response.header.operation = VERSION_3, asked.operation
    response.header.txnId = asked.txn_id
    _, response.status = _CODES[Status(status)]
    if asked.operation not in (Operation.AUTH, Operation.START_TLS):
        part = getattr(response, _FIELDS_3[asked.operation])
        part.status = response.status
        if asked.operation is not Operation.GET_BOOKIE_INFO:
            part.ledgerId = asked.ledger_id
        if asked.operation in (Operation.READ_ENTRY, Operation.ADD_ENTRY):
            part.entryId = asked.entry_id
        for body in bodies:
            part.body = body
        for field, value in fields.items():
            setattr(part, field, value)
    return _framed(response.SerializeToString())


def answer_adds(adds: Sequence[Asked], status: int) -> bytes:
    """The frames that answer ``adds``, all of one version, with one status, as ``answer`` does, but cheaper: clients may send
    each entry by itself, and ``answer`` costs as much as the intake of an add."""
    first, (code_2, code_3) = adds[0], _CODES[Status(status)]
    if first.version != 3:
        number, size = _NUMBERS_2[first.operation], _ANSWER_2.size - 4
        return b"".join(
            [_ANSWER_2.pack(size, _VERSION_2, number, 0, code_2, asked.ledger_id, asked.entry_id) for asked in adds]
        )
    response = SCHEMA.message("Response")()
    header, part = response.header, response.add
    header.version, header.operation = VERSION_3, first.operation
    response.status = part.status = code_3
    frames: list[bytes] = []
    for asked in adds:
        header.txnId, part.ledgerId, part.entryId = asked.txn_id, asked.ledger_id, asked.entry_id
        body = response.SerializeToString()
        frames += (_SIZE.pack(len(body)), body)
    return b"".join(frames)


def answer_auth(asked: Asked, plugin: str) -> bytes:
    """The answer to an AUTH, with the bookie's plug-in."""
    if asked.version == 3:
        response = SCHEMA.message("Response")()
        response.header.version, response.header.operation = VERSION_3, asked.operation
        response.header.txnId, response.status = asked.txn_id, 0
        response.auth.pluginName, response.auth.payload = plugin, b""
        return _framed(response.SerializeToString())
    message = SCHEMA.message("AuthMessage")(pluginName=plugin, payload=b"")
    return _framed(_START_2.pack(_VERSION_2, _NUMBERS_2[Operation.AUTH], 0) + message.SerializeToString())


def _framed(body: bytes) -> bytes:
    return _SIZE.pack(len(body)) + body
