"""Fuzzing of the BookKeeper port: valid requests of both versions, damaged requests and random bytes.

``DoorTarget.take(data)`` raises if the bookie logs an error or raises, sends bytes that are no answer, leaves a request without
an answer or answers it twice, or returns an entry that no input added. The first byte of ``data`` chooses how the rest is used.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import OrderedDict
from contextlib import suppress
from typing import Any, NamedTuple

from bookspark.errors import MetadataStoreError, NoSuchLedgerError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.servers.bookkeeper.digest_types import DigestTypes
from bookspark.servers.bookkeeper.door import BookKeeperConnection, KeptBatches, SharedByClients
from bookspark.servers.bookkeeper.messages import SCHEMA, Operation
from bookspark.servers.bookkeeper.requests import Asked, decode, first_message_size
from bookspark.store.bookie.serving.admission import Admission
from bookspark.store.bookie.serving.server import BookieServer
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.header import WireError
from tests.awaiting import SECONDS_MAX
from tests.servers.bookkeeper.kit import KEY, add_2, body, framed, read_2, request
from tests.store.bookie.fuzzing import Errors, Known, Transport

_ANSWER_SECONDS_MAX = SECONDS_MAX
_PIECE_BYTES = 10
_RAW = 0xE0
_FLIPPED = 0xC0
_LONG = (-(1 << 63), -2, -1, 1 << 31, (1 << 31) - 2, (1 << 63) - 1)
_DIGESTS = (
    DigestType.BOOKKEEPER_CRC32C,
    DigestType.BOOKKEEPER_DUMMY,
    DigestType.BOOKKEEPER_CRC32,
    DigestType.BOOKKEEPER_HMAC,
    DigestType.CRC32C,
)
_NO_LAC = 250 + _LONG.index(-1)
_POLL_MS = (-1, 0, 1, 300_000)


def digest_type(ledger_id: int) -> DigestType:
    """Digest type of each ledger: one has a digest of ours, one lookup fails, and all other ledgers do not exist."""
    if ledger_id == len(_DIGESTS):
        raise MetadataStoreError("not now")
    if not 0 <= ledger_id < len(_DIGESTS):
        raise NoSuchLedgerError("none")
    return _DIGESTS[ledger_id]


def _number(byte: int) -> int:
    """A small id, or an id at a bound."""
    return _LONG[byte - 250] if byte >= 250 else byte % 24


def _framed_request(piece: bytes) -> bytes:
    """One frame, in most cases a valid request."""
    what, ledger, entry, flags, lac, size, key_byte, number, *_ = piece.ljust(_PIECE_BYTES, b"\0")
    ledger_id, entry_id, confirmed = _number(ledger), _number(entry), _number(lac)
    key = KEY if key_byte < 0xC0 else bytes([key_byte]) * (20 if key_byte < 0xF0 else key_byte & 31)
    payload = bytes([number]) * (size * 40 if size < 200 else 0)
    kind = _DIGESTS[ledger_id % len(_DIGESTS)] if ledger_id >= 0 else _DIGESTS[0]
    digest = kind if kind.bookkeepers else _DIGESTS[0]
    made = body(ledger_id, entry_id, payload, confirmed, None if 0 <= entry_id < 24 else number, digest_type=digest)
    fields: dict[str, Any] = {"ledgerId": ledger_id}
    match what % 16:
        case 0 | 1 | 2:
            return add_2(key, made, flags & 3)
        case 3 | 4:
            fields |= {
                "entryId": entry_id,
                "masterKey": key,
                "body": made,
                "writeFlags": flags & 3,
                "flag": flags >> 2 & 3,
            }
            return request(Operation.ADD_ENTRY, number, "add", **fields)
        case 5:
            at = min(size, len(made) - 1)
            return add_2(key, made[:at] + bytes([made[at] ^ (flags or 1)]) + made[at + 1 :], 0)
        case 6:
            return read_2(ledger_id, entry_id, key if flags & 1 else b"")
        case 7:
            head = struct.pack(
                ">BBHqqqiq", 2, 7, flags & 1, ledger_id, entry_id, number, confirmed % (1 << 31), size * 64
            )
            return framed(head + (key if flags & 1 else b""))
        case 8:
            fields |= {"entryId": entry_id, "flag": flags & 3, "masterKey": key}
            if flags & 4:
                fields |= {"previousLac": confirmed, "timeOut": _POLL_MS[flags >> 3 & 3]}
            return request(Operation.READ_ENTRY, number, "read", **fields)
        case 9:
            return request(Operation.READ_LAC, number, "readLac", **fields)
        case 10:
            named = struct.pack(">qq", ledger_id, confirmed) + bytes(size & 31)
            fields |= {"lac": entry_id if flags & 1 else confirmed, "masterKey": key, "body": named}
            return request(Operation.WRITE_LAC, number, "writeLac", **fields)
        case 11:
            return request(Operation.FORCE_LEDGER, number, "force", **fields)
        case 12:
            return request(Operation.GET_BOOKIE_INFO, number, "bookieInfo", requested=confirmed)
        case 13:
            return request(Operation.GET_LIST_OF_ENTRIES, number, "entries", **fields)
        case 14 if flags & 1:
            return request(Operation.AUTH, number, "auth", pluginName="a" * (size & 7))
        case 14:
            return request(Operation.START_TLS, number, "startTls")
        case _:
            return framed(struct.pack(">BBH", flags & 7, entry, lac) + piece)


def stream(data: bytes) -> bytes:
    """Bytes of one connection, derived from ``data``."""
    what, rest = data[0] if data else 0, data[1:]
    if what >= _RAW:
        return rest
    pieces = [rest[at : at + _PIECE_BYTES] for at in range(0, len(rest), _PIECE_BYTES)]
    said = b"".join(map(_framed_request, pieces))
    if what >= _FLIPPED and said:
        at = int.from_bytes(data[-3:], "big") % len(said)
        said = said[:at] + bytes([said[at] ^ (1 << (what & 7))]) + said[at + 1 :]
    return said


class _Answer(NamedTuple):
    version: int
    operation: int
    code: int
    ledger_id: int
    entry_id: int
    bodies: tuple[bytes, ...] = ()


class DoorTarget:
    """The BookKeeper port of a bookie in this process, on the event loop of its constructor's caller."""

    def __init__(self, server: BookieServer, certificate: str = "") -> None:
        self._server = server
        self._admission = Admission(server.storage, server._bookie.refusals, 64 << 20, 256 << 20)
        self._digest_types = DigestTypes(digest_type, server.storage.looks)
        self._shared = SharedByClients(
            server._bookie, self._digest_types, OrderedDict(), KeptBatches(), lambda: 1 << 40
        )
        self._added: dict[tuple[int, int], set[bytes]] = {}
        """Bodies of all adds, accepted or not."""
        self.reached: dict[str, int] = {}
        self._errors = Errors()
        logging.getLogger("bookspark").addHandler(self._errors)

    def close(self) -> None:
        """Stop watching the log."""
        self._digest_types.close()
        logging.getLogger("bookspark").removeHandler(self._errors)

    async def take(self, data: bytes) -> None:
        """Send one input and judge the answers."""
        said, transport = stream(data), Transport()
        with suppress(WireError):
            assert 4 <= first_message_size(said) <= 10
        porch: Any = None
        connection = BookKeeperConnection(
            self._shared, self._admission, self._server._chunks, Known(), "fuzzed", porch, None
        )
        connection.connection_made(transport)
        at, step = 0, 1 + (data[-1] if data else 0) * 64
        while at < len(said) and connection._transport is not None:
            room = connection.get_buffer(-1)
            assert 0 < len(room) <= 17 << 20
            part = said[at : at + min(step, len(room))]
            room[: len(part)] = part
            connection.buffer_updated(len(part))
            at += len(part)
            while connection._waiting and connection._transport is not None:
                # A transport reads no more until these requests are handled.
                await asyncio.sleep(0)
        dispatch = connection._dispatch
        deadline = asyncio.get_running_loop().time() + _ANSWER_SECONDS_MAX
        while (dispatch._under_way or connection._waiting) and connection._transport is not None:
            transport.wrote.clear()
            await asyncio.sleep(0)
            if not transport.wrote.is_set():
                left = deadline - asyncio.get_running_loop().time()
                await asyncio.wait_for(transport.wrote.wait(), max(0.0, left))
        await asyncio.sleep(0)
        refused, waiting = connection._transport is None, len(dispatch._polls)
        asked = self._asked(said)
        connection.connection_lost(None)
        answers = _answers(b"".join(transport.sent))
        assert len(answers) + waiting <= len(asked), "no request has two answers"
        assert refused or len(answers) + waiting == len(asked), f"{len(asked)} requests, {len(answers)} answers"
        self._note("refused" if refused else "served")
        for one in answers:
            self._judge(one)
        if self._errors.told:
            raise AssertionError(self._errors.told.pop())

    def _asked(self, said: bytes) -> list[Asked]:
        """Requests in these bytes, up to the first invalid frame. Their entries are noted."""
        found, at = [], 0
        while len(said) - at >= 4:
            size = int.from_bytes(said[at : at + 4], "big")
            if not 4 <= size <= FRAME_BYTES_MAX or len(said) - at < 4 + size:
                break
            try:
                one = decode(said[at + 4 : at + 4 + size])
            except WireError:
                break
            found.append(one)
            if one.operation is Operation.ADD_ENTRY:
                self._added.setdefault((one.ledger_id, one.entry_id), set()).add(one.body)
            at += 4 + size
        return found

    def _judge(self, one: _Answer) -> None:
        name = one.operation if one.version == 2 else Operation(one.operation).name
        self._note(f"{one.version} {name}:{one.code}")
        for number, found in enumerate(one.bodies):
            ledger_id, entry_id = struct.unpack_from(">qq", found)
            assert ledger_id == one.ledger_id
            # A read of −1 returns the last entry; a batch returns consecutive entries.
            assert one.entry_id < 0 or entry_id == one.entry_id + number
            assert found in self._added[ledger_id, entry_id], "an entry that nobody added"

    def _note(self, what: str) -> None:
        self.reached[what] = self.reached.get(what, 0) + 1


def _answers(sent: bytes) -> list[_Answer]:
    """Parse the sent bytes; they must be whole answers."""
    found, at = [], 0
    while at < len(sent):
        (size,) = struct.unpack_from(">I", sent, at)
        frame = sent[at + 4 : at + 4 + size]
        assert len(frame) == size, "the last answer is whole"
        found.append(_answer_2(frame) if frame[0] == 2 else _answer_3(frame))
        at += 4 + size
    return found


def _answer_2(frame: bytes) -> _Answer:
    operation = frame[1]
    if operation == 3:
        return _Answer(2, operation, 0, -1, -1)
    _, _, _, code, ledger_id, entry_id = struct.unpack_from(">BBHIqq", frame)
    rest, bodies = frame[24:], []
    if operation == 7:
        rest = rest[8:]
        while rest:
            (size,) = struct.unpack_from(">I", rest)
            assert 4 + size <= len(rest)
            bodies.append(rest[4 : 4 + size])
            rest = rest[4 + size :]
    elif rest:
        bodies.append(rest)
    assert not bodies or code == 0
    return _Answer(2, operation, code, ledger_id, entry_id, tuple(bodies))


def _answer_3(frame: bytes) -> _Answer:
    response = SCHEMA.message("Response").FromString(frame)
    operation = response.header.operation
    bodies = (response.read.body,) if operation == Operation.READ_ENTRY and response.read.HasField("body") else ()
    if operation == Operation.READ_LAC and response.readLac.HasField("lastEntryBody"):
        return _Answer(3, operation, response.status, response.readLac.ledgerId, -1, (response.readLac.lastEntryBody,))
    return _Answer(3, operation, response.status, response.read.ledgerId, response.read.entryId, bodies)


def seeds() -> list[bytes]:
    """First inputs of the fuzzer: each kind of request after some adds, intact and with a flipped bit."""
    adds = b"".join(
        bytes([what, ledger, entry, 0, _NO_LAC, 3, 0, entry, 0, 0])
        for ledger in range(4)
        for entry in range(3)
        for what in (0, 3)
    )
    auth = SCHEMA.message("AuthMessage")(pluginName="a").SerializeToString()
    made = [b"", bytes([_RAW]) + b"\0\0\0\x18\x02\x02\0\0"]
    made.append(bytes([_RAW]) + framed(struct.pack(">BBH", 2, 3, 0) + auth))
    for what in range(16):
        for flags in (0, 1, 2, 4 | 8, 4 | 16 | 2):
            asked = bytes([what, 0, 1, flags, 1, 9, 0, 5, 0, 0])
            made += [b"\0" + adds + asked, bytes([_FLIPPED]) + adds + asked]
        made.append(
            b"\0" + b"".join(bytes([what, ledger, 2, 0, 1, 2, 0, 5, 0, 0]) for ledger in (4, 5, 6, 250, 253, 255))
        )
    return made
