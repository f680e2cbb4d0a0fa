"""BookKeeper's wire protocol: decoding of its clients' requests, encoding of answers."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookspark.servers.bookkeeper.messages import SCHEMA, Operation
from bookspark.servers.bookkeeper.requests import (
    Asked,
    RequestReceiver,
    answer,
    answer_auth,
    decode,
    first_message_size,
)
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.header import Flag, Status, WireError
from tests.servers.bookkeeper.kit import add_2, framed, read_2, request

KEY = bytes(range(20))
BODY = struct.pack(">qqqq", 7, 3, 2, 100) + b"sum." + b"payload"


def received(data: bytes, step: int) -> list[Asked]:
    receiver = RequestReceiver(ChunkPool())
    found = []
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        while piece:
            room = receiver.buffer()
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            piece = piece[count:]
            found += receiver.requests(count)
    return found


THREE = request(Operation.ADD_ENTRY, 9, "add", ledgerId=7, entryId=3, masterKey=KEY, body=BODY, flag=1, writeFlags=1)


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_requests_of_both_versions_are_decoded_in_pieces_of_any_size(step: int) -> None:
    two, three, read = received(add_2(KEY, BODY, flags=2) + THREE + read_2(7, 3), step)
    assert two == Asked(2, Operation.ADD_ENTRY, 0, 7, 3, int(Flag.RECOVERY), KEY, BODY)
    assert three == Asked(3, Operation.ADD_ENTRY, 9, 7, 3, int(Flag.RECOVERY | Flag.VOLATILE), KEY, BODY)
    assert read == Asked(2, Operation.READ_ENTRY, 0, 7, 3)


def test_an_add_longer_than_a_piece_is_decoded_whole() -> None:
    body = BODY + bytes(3 << 20)
    [found] = received(add_2(KEY, body), 1 << 20)
    assert found.body == body


def test_fencing_read_of_version_2_carries_the_master_key() -> None:
    [found] = received(read_2(7, -1, KEY), 100)
    assert (found.flags, found.entry_id, found.master_key) == (Flag.FENCE, -1, KEY)
    with pytest.raises(WireError, match="master key"):
        received(read_2(7, -1, KEY[:10]), 100)


def test_batched_read_is_decoded_and_its_answer_encoded() -> None:
    [found] = received(framed(struct.pack(">BBHqqqiq", 2, 7, 0, 7, 3, 11, 50, 4096)), 100)
    assert found == Asked(2, Operation.BATCH_READ_ENTRY, 11, 7, 3, entries_max=50, size=4096)
    told = answer(found, Status.OK, [b"one", b"three"])
    assert told[4:] == struct.pack(">BBHIqqq", 2, 7, 0, 0, 7, 3, 11) + b"\0\0\0\3one" + b"\0\0\0\5three"
    assert struct.unpack_from(">I", told)[0] == len(told) - 4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"flag": 1, "masterKey": KEY}, {"flags": int(Flag.FENCE), "master_key": KEY}),
        ({"flag": 2, "previousLac": -1, "timeOut": 500}, {"flags": int(Flag.ENTRY), "previous_lac": -1, "timeout_ms": 500}),
        ({"previousLac": 4}, {"previous_lac": 4}),
        ({}, {}),
    ],
)  # fmt: skip
def test_reads_of_version_3_are_decoded(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    [found] = received(request(Operation.READ_ENTRY, 5, "read", ledgerId=7, entryId=-1, **fields), 100)
    assert found == Asked(3, Operation.READ_ENTRY, 5, 7)._replace(**expected)


def test_other_requests_of_version_3_are_decoded() -> None:
    written = request(Operation.WRITE_LAC, 1, "writeLac", ledgerId=7, lac=4, masterKey=KEY, body=b"signed")
    assert received(written, 100) == [Asked(3, Operation.WRITE_LAC, 1, 7, 4, 0, KEY, b"signed")]
    for operation, name in (
        (Operation.READ_LAC, "readLac"),
        (Operation.FORCE_LEDGER, "force"),
        (Operation.GET_LIST_OF_ENTRIES, "entries"),
    ):
        assert received(request(operation, 2, name, ledgerId=7), 100) == [Asked(3, operation, 2, 7)]
    assert received(request(Operation.GET_BOOKIE_INFO, 3, "bookieInfo", requested=3), 100)[0].size == 3
    assert received(request(Operation.AUTH, 3, "auth", pluginName="sasl", payload=b""), 100)[0].body == b"sasl"


def test_answers_of_version_2_have_bookkeepers_bytes_and_codes() -> None:
    asked = Asked(2, Operation.READ_ENTRY, 0, 7, 3)
    assert answer(asked, Status.OK, [b"body"]) == framed(struct.pack(">BBHIqq", 2, 2, 0, 0, 7, 3) + b"body")
    codes = {Status.NO_SUCH_LEDGER: 1, Status.NO_SUCH_ENTRY: 2, Status.FENCED: 104, Status.UNAUTHORIZED: 102}
    for status, code in codes.items():
        assert answer(asked, status)[8:12] == struct.pack(">I", code)


@pytest.mark.parametrize("version", [2, 3])
def test_only_absence_is_answered_with_the_codes_of_absence(version: int) -> None:
    """To a client these codes mean that the bookie never had the entry: its recovery closes the ledger before it."""
    asked = Asked(version, Operation.READ_ENTRY, 4, 7, 3)

    def code(status: Status) -> int:
        told = answer(asked, status)
        if version == 2:
            return int(struct.unpack_from(">I", told, 8)[0])
        return int(SCHEMA.message("Response").FromString(told[4:]).status)

    negative = {code(Status.NO_SUCH_LEDGER), code(Status.NO_SUCH_ENTRY)}
    others = {code(status) for status in Status if status not in (Status.NO_SUCH_LEDGER, Status.NO_SUCH_ENTRY)}
    assert not negative & others
    assert code(Status.OK) == 0 and sum(code(status) == 0 for status in Status) == 1


def test_answers_of_version_3_carry_the_transaction_id() -> None:
    told = answer(Asked(3, Operation.READ_ENTRY, 4, 7, 3), Status.OK, [b"body"], {"maxLac": 8})
    found = SCHEMA.message("Response").FromString(told[4:])
    assert (found.header.version, found.header.operation, found.header.txnId, found.status) == (3, 1, 4, 0)
    assert (found.read.ledgerId, found.read.entryId, found.read.body, found.read.maxLac) == (7, 3, b"body", 8)
    auth = SCHEMA.message("Response").FromString(answer_auth(Asked(3, Operation.AUTH, 6), "none")[4:])
    assert (auth.header.txnId, auth.auth.pluginName) == (6, "none")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\2",
        b"\2\x09\0\0",
        b"\1\1\0\0" + KEY + BODY,
        b"\2\1\0\0" + KEY,
        b"\2\2\0\0" + b"short",
        b"\x0a\6\x08\3\x10\2\x18\1",
        b"\x0a\6\x08\3\x10\x63\x18\1",
        b"\x0a\xff\xff",
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_frames_without_a_valid_request_are_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        received(framed(frame), 100)


@pytest.mark.parametrize("size", [0, FRAME_BYTES_MAX + 1, 0xFFFFFFFF])
def test_frames_of_an_invalid_size_are_refused(size: int) -> None:
    with pytest.raises(WireError, match="a frame of"):
        received(struct.pack(">I", size) + b"\2", 100)
    with pytest.raises(WireError, match="a frame of"):
        first_message_size(struct.pack(">I", size))


def test_first_request_is_checked_by_its_first_14_bytes() -> None:
    """A first request may be an add of megabytes, but a connection without a valid request may take only 16 KiB."""
    for said in (
        add_2(KEY, BODY + bytes(1 << 20)),
        THREE,
        request(Operation.GET_BOOKIE_INFO, 1, "bookieInfo", requested=1),
    ):
        for known in range(len(said[:40])):
            assert first_message_size(said[:known]) <= 14
        assert first_message_size(said[:14]) <= 14
    for said in (
        b"BSPK\0\0\0\0",
        b"GET / HTTP/1.1\r\n",
        b"\0\0\1\0\2\x63" + bytes(20),
        b"\0\0\1\0\x0a\x06" + bytes(20),
    ):
        with pytest.raises(WireError):
            first_message_size(said)


@given(st.binary(max_size=200))
@example(THREE[4:])
def test_random_frame_is_decoded_or_refused(frame: bytes) -> None:
    if len(frame) >= 4:
        with contextlib.suppress(WireError):
            decode(frame)


@given(st.data())
def test_request_with_flipped_bits_is_decoded_or_refused(data: st.DataObject) -> None:
    said = bytearray(data.draw(st.sampled_from([THREE, add_2(KEY, BODY), read_2(7, 3, KEY)]))[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        said[data.draw(st.integers(0, len(said) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(WireError):
        decode(bytes(said))


def test_repr_of_a_request_has_no_master_key() -> None:
    assert str(KEY) not in repr(received(add_2(KEY, BODY), 100)[0])


def test_short_message_that_begins_like_a_request_is_refused() -> None:
    """The byte behind it raised IndexError in the loop's callback, which was called again and again until the deadline."""
    said = struct.pack(">I", 5) + b"\x0a\x00\x08\x03\x10"
    assert first_message_size(said[:8]) == len(said)
    with pytest.raises(WireError, match="neither"):
        first_message_size(said)
