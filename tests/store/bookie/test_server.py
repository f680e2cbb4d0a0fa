"""The request server over a real socket."""

from __future__ import annotations

import errno
import gc
import socket
import struct
import threading
import weakref
from itertools import count, cycle

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from bookspark.errors import BookieError
from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.store.bookie.disk import file_system
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.serving import served_bookie
from bookspark.store.bookie.serving.connection import SHORT_BYTES_MAX
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.frames import FrameReceiver, control_frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Flag, Header, Kind, Status, WireError
from bookspark.store.wire.messages import BookieStatus, Hello, Ranges
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.awaiting import await_that
from tests.store.bookie.kit import KEY, OTHER_KEY, SECONDS_MAX, Client, add_frame, config, payloads, serving

FENCE, RECOVERY, SPARSE = int(Flag.FENCE), int(Flag.RECOVERY), int(Flag.SPARSE)


@pytest.fixture(scope="module")
def bookie(tmp_path_factory):
    with serving(config(tmp_path_factory.mktemp("bookie"))) as (server, address):
        yield server, address


@pytest.fixture
def client(bookie):
    made = Client(bookie[1])
    yield made
    made.close()


@pytest.fixture
def ledger_id(request):
    """The test's own ledger on the shared bookie."""
    return abs(hash(request.node.nodeid)) & 0xFFFFFFFF


def test_hello_returns_protocol_version_bookie_id_and_incarnation(bookie):
    client = Client(bookie[1], greet=False)
    answer = client.call(Header(Kind.HELLO, 0, value=9))
    assert (answer.header.value, bytes(answer.body), answer.header.incarnation) == (
        PROTOCOL_VERSION,
        b"bookie-test",
        77,
    )
    client.close()


def test_hello_of_an_older_protocol_is_refused_with_the_versions(bookie):
    client = Client(bookie[1], greet=False)
    answer = client.call(Header(Kind.HELLO, 0, value=PROTOCOL_VERSION - 1))
    assert answer.header.status == Status.BAD_REQUEST
    assert bytes(answer.body) == b"protocol version 0; this bookie speaks 1"
    assert client.call(Header(Kind.STATUS, 0)).header.status == Status.BAD_REQUEST, "it is not greeted"
    assert client.call(Header(Kind.HELLO, 0, value=PROTOCOL_VERSION)).header.status == Status.OK
    client.close()


def test_a_frame_of_another_protocol_version_ends_the_connection(bookie):
    client = Client(bookie[1], greet=False)
    frame = bytearray(control_frame(Header(Kind.HELLO, 0, value=2)))
    frame[8:10] = struct.pack("<H", 2)
    frame[116:120] = struct.pack("<I", crc32c(bytes(frame[8:116])))
    client.send(bytes(frame))
    assert bytes(client.receive().body) == b"protocol version 2, this is 1"
    with pytest.raises(EOFError):
        client.receive()
    client.close()


def test_repeated_hello_replaces_the_name_of_the_peer(bookie, caplog, monkeypatch):
    """Each HELLO made the name longer: endless HELLOs took the bookie's memory, and its time for copying the name."""
    monkeypatch.setattr(served_bookie, "TOLD_SECONDS", 0.0)
    client = Client(bookie[1], greet=False)
    for name in ("a" * 1000, "b" * 1000, "c"):
        client.send(control_frame(Header(Kind.HELLO, 0, value=PROTOCOL_VERSION), Hello(name).encode()))
        assert client.receive().header.status == Status.OK
    client.send(b"no frame at all, but long enough")
    assert client.receive().header.kind == Kind.REFUSAL
    (told,) = [record.getMessage() for record in caplog.records if "are no frame" in record.getMessage()]
    assert "('c')" in told and "aaa" not in told and "bbb" not in told
    client.close()


def test_requests_before_hello_are_refused(bookie):
    client = Client(bookie[1], greet=False)
    assert client.call(Header(Kind.STATUS, 0)).header.status == Status.BAD_REQUEST
    assert client.add(1, 0).status == Status.BAD_REQUEST
    client.close()


def test_client_reads_added_entries_back(client, ledger_id):
    answer = client.add(ledger_id, 0, 9, last_add_confirmed=4, last_add_fully_replicated=2, request_id=3)
    assert (answer.kind, answer.status, answer.request_id) == (Kind.ACKS, Status.OK, 3)
    assert answer.flags & Flag.RESPONSE and answer.incarnation == 77
    entries, end = client.read(ledger_id, 0, 9)
    assert payloads(entries) == [b"%08d:payload" % i for i in range(10)]
    assert (end.status, end.last_entry_id, end.last_add_confirmed) == (Status.OK, 9, 4)
    assert end.last_add_fully_replicated == 2


def test_read_ends_with_the_status_of_the_first_missing_entry(client, ledger_id):
    client.add(ledger_id, 0, 4)
    entries, end = client.read(ledger_id, 2, 7)
    assert [entry.entry_id for entry in entries] == [2, 3, 4]
    assert (end.status, end.last_entry_id) == (Status.NO_SUCH_ENTRY, 4)
    assert client.read(ledger_id, 5, 7)[1][7] == Status.NO_SUCH_ENTRY
    assert client.read(ledger_id, 5, 7)[1].last_entry_id == 4
    assert client.read(ledger_id + 1, 0, 0)[1].status == Status.NO_SUCH_LEDGER


def test_read_ends_with_ok_at_its_limit(client, ledger_id):
    for entry_id in range(6):
        client.add(ledger_id, entry_id)
    entries, end = client.read(ledger_id, 0, 5, limit=1000)
    assert [entry.entry_id for entry in entries] == [0, 1]
    assert (end.status, end.last_entry_id) == (Status.OK, 1)


def test_sparse_read_of_a_client_skips_missing_entries(client, ledger_id):
    for entry_id in (0, 3, 6):
        client.add(ledger_id, entry_id)
    entries, end = client.read(ledger_id, 0, 8, flags=SPARSE)
    assert [entry.entry_id for entry in entries] == [0, 3, 6]
    assert (end.status, end.last_entry_id) == (Status.OK, 8)


def test_pipelined_adds_are_all_answered(client, ledger_id):
    client.send(*(add_frame(ledger_id, i, request_id=i) for i in range(2000)))
    answers = [client.receive().header for _ in range(2000)]
    assert {answer.status for answer in answers} == {Status.OK}
    assert [answer.request_id for answer in answers] == list(range(2000))
    assert len(client.read(ledger_id, 0, 1999)[0]) == 2000


def test_large_and_small_frames_mix_on_a_connection(client, ledger_id):
    sizes = [1, 300_000, 5, 3_000_000, 7, 65_000]
    for entry_id, size in enumerate(sizes):
        client.send(add_frame(ledger_id, entry_id, payload=b"x" * size))
    assert [client.receive().header.status for _ in sizes] == [Status.OK] * len(sizes)
    assert [len(payload) - 9 for payload in payloads(client.read(ledger_id, 0, 3)[0])] == sizes[:4]
    assert [len(payload) - 9 for payload in payloads(client.read(ledger_id, 4, 5)[0])] == sizes[4:]


# -- fencing, passwords


def test_fencing_lac_read_fences_an_unknown_ledger(client, ledger_id):
    answer = client.call(Header(Kind.READ_LAC, 0, ledger_id, flags=FENCE, master_key=KEY)).header
    assert (answer.status, answer.last_add_confirmed, answer.value) == (Status.OK, -1, -1)
    assert client.add(ledger_id, 0).status == Status.FENCED
    assert client.add(ledger_id, 0, flags=RECOVERY).status == Status.OK


def test_recovery_read_fences_its_ledger(client, ledger_id):
    client.add(ledger_id, 0)
    entries, end = client.read(ledger_id, 0, 1, flags=FENCE, master_key=KEY)
    assert ([entry.entry_id for entry in entries], end.status) == ([0], Status.NO_SUCH_ENTRY)
    assert client.add(ledger_id, 1).status == Status.FENCED


def test_a_fence_sees_every_add_admitted_before_it(client, ledger_id):
    fence = control_frame(Header(Kind.READ_LAC, 9, ledger_id, flags=FENCE, master_key=KEY))
    client.send(*(add_frame(ledger_id, i) for i in range(50)), fence, add_frame(ledger_id, 50))
    answers = [client.receive().header for _ in range(52)]
    [fenced] = [answer for answer in answers if answer.kind == Kind.READ_LAC]
    assert fenced.value == 49
    assert sum(answer.status == Status.FENCED for answer in answers) == 1
    assert len(client.read(ledger_id, 0, 49)[0]) == 50


def test_request_with_a_wrong_password_is_refused_and_changes_nothing(client, ledger_id):
    client.add(ledger_id, 0)
    for header in (
        Header(Kind.READ_LAC, 0, ledger_id, flags=FENCE, master_key=OTHER_KEY),
        Header(Kind.READ_LAC, 0, ledger_id, master_key=OTHER_KEY),
        Header(Kind.WRITE_LAC, 0, ledger_id, last_add_confirmed=5, master_key=OTHER_KEY),
        Header(Kind.READ, 0, ledger_id, 0, 0, flags=FENCE, master_key=OTHER_KEY),
        Header(Kind.READ, 0, ledger_id, 0, 0, master_key=OTHER_KEY),
    ):
        assert client.call(header).header.status == Status.UNAUTHORIZED
    assert client.add(ledger_id, 1, master_key=OTHER_KEY).status == Status.UNAUTHORIZED
    answer = client.add(ledger_id, 1)
    assert (answer.status, answer.last_add_confirmed) == (Status.OK, -1)


# -- LAC


def test_lac_read_returns_lac_and_last_entry_id(client, ledger_id):
    assert client.call(Header(Kind.READ_LAC, 0, ledger_id)).header.status == Status.NO_SUCH_LEDGER
    client.add(ledger_id, 0, 5, last_add_confirmed=2)
    answer = client.call(Header(Kind.READ_LAC, 0, ledger_id)).header
    assert (answer.status, answer.last_add_confirmed, answer.value) == (Status.OK, 2, 5)


def test_long_poll_ends_when_the_lac_reaches_its_entry(bookie, client, ledger_id):
    client.add(ledger_id, 0)
    client.send(control_frame(Header(Kind.READ_LAC, 8, ledger_id, first_entry_id=1, limit=60_000)))
    writer = Client(bookie[1])
    writer.add(ledger_id, 1, last_add_confirmed=0)
    assert writer.call(Header(Kind.WRITE_LAC, 0, ledger_id, last_add_confirmed=1, master_key=KEY)).header.status == 0
    answer = client.receive().header
    assert (answer.request_id, answer.status, answer.last_add_confirmed) == (8, Status.OK, 1)
    writer.close()


def test_long_poll_ends_at_its_deadline(client, ledger_id):
    answer = client.call(Header(Kind.READ_LAC, 0, ledger_id, first_entry_id=1, limit=20)).header
    assert answer.status == Status.NO_SUCH_LEDGER
    client.add(ledger_id, 0)
    answer = client.call(Header(Kind.READ_LAC, 0, ledger_id, first_entry_id=1, limit=20)).header
    assert (answer.status, answer.last_add_confirmed) == (Status.OK, -1)


@pytest.mark.parametrize(("size", "comes"), [(100, True), (100_000, False)])
def test_long_poll_returns_its_entry_if_that_is_short(bookie, client, ledger_id, size, comes):
    writer = Client(bookie[1])
    client.add(ledger_id, 0, 2, payload=bytes(size))
    poll = Header(Kind.READ_LAC, 8, ledger_id, first_entry_id=1, limit=60_000, flags=Flag.ENTRY)
    client.send(control_frame(poll))
    writer.call(Header(Kind.WRITE_LAC, 0, ledger_id, last_add_confirmed=1, master_key=KEY))
    frames = [client.receive() for _ in range(1 + comes)]
    assert [frame.header.request_id for frame in frames] == [8] * len(frames)
    assert (frames[-1].batch, frames[-1].header.last_add_confirmed) == (None, 1)
    for frame in frames[:-1]:
        batch = EntryBatch.checked(frame.batch, frame.header, frame.body_crc)
        assert [entry.entry_id for entry in batch.entries()] == [1]
    writer.close()


def test_long_poll_returns_no_unconfirmed_entry(client, ledger_id):
    client.add(ledger_id, 0, 2, last_add_confirmed=0)
    answer = client.call(Header(Kind.READ_LAC, 0, ledger_id, first_entry_id=2, limit=20, flags=Flag.ENTRY)).header
    assert (answer.flags, answer.last_add_confirmed) == (Flag.RESPONSE, 0)


def test_long_polls_end_with_their_connection(bookie, ledger_id):
    client = Client(bookie[1])
    client.send(control_frame(Header(Kind.READ_LAC, 8, ledger_id, first_entry_id=0, limit=60_000)))
    client.call(Header(Kind.STATUS, 0))
    client.close()
    other = Client(bookie[1])
    assert other.add(ledger_id, 0, 3, last_add_confirmed=2).status == Status.OK
    other.close()


# -- lists


def test_ranges_and_status_describe_the_held_entries(client, ledger_id):
    client.add(ledger_id, 0, 4)
    client.add(ledger_id, 5)
    answer = client.call(Header(Kind.RANGES, 0, ledger_id, value=1))
    ranges = Ranges.decode(answer.body)
    assert (list(ranges.first_entry_ids), list(ranges.last_entry_ids)) == ([0, 5], [4, 5])
    assert list(ranges.sizes) == [len(add_frame(ledger_id, 0, 4)), len(add_frame(ledger_id, 5))]
    assert answer.header.value == -1
    partial = client.call(Header(Kind.RANGES, 0, ledger_id, limit=1, value=1)).header
    assert (partial.value, partial.first_entry_id) == (ledger_id, 5)
    status = msgspec.json.decode(client.call(Header(Kind.STATUS, 0)).body, type=BookieStatus)
    assert status.bookie_id == "bookie-test" and status.ledgers > 0 and not status.read_only


def test_ranges_list_an_entry_only_after_its_sync(tmp_path):
    """A row that was not synced yet counted as a copy for repairs and checks, but a power cut may undo it."""
    files = FaultyFileSystem(RealFileSystem(), "sync */logs/*.arrows 1.. hold")
    with serving(config(tmp_path), files) as (_, address):
        writer, asking = Client(address), Client(address)
        writer.send(add_frame(5, 0, 4))
        files.wait_held()
        asking.send(control_frame(Header(Kind.RANGES, 8, 5, value=1)))
        assert asking.call(Header(Kind.RANGES, 0, 6, value=1)).header.ledger_id == 6, "it is answered before"
        files.release()
        answer = asking.receive()
        ranges = Ranges.decode(answer.body)
        assert answer.header.request_id == 8 and answer.header.status == Status.OK
        assert (list(ranges.first_entry_ids), list(ranges.last_entry_ids)) == ([0], [4])
        for client in (writer, asking):
            client.close()


# -- bad peers


@pytest.mark.parametrize(
    "frame",
    [
        control_frame(Header(99, 5)),
        control_frame(Header(Kind.ADD, 5, 1, 0, 0)),
        control_frame(Header(Kind.READ, 5, 1, 3, 2)),
        control_frame(Header(Kind.READ, 5, 1, -1, 2)),
        control_frame(Header(Kind.WRITE_LAC, 5, -1)),
        add_frame(1, 0, request_id=5, flags=int(Flag.VOLATILE)),
        add_frame(1, 0, request_id=5)[:-8] + bytes(8),
    ],
)
def test_invalid_request_is_a_bad_request_and_the_connection_goes_on(client, frame):
    client.send(frame)
    answer = client.receive()
    assert (answer.header.status, answer.header.request_id) == (Status.BAD_REQUEST, 5)
    assert bytes(answer.body), "it says why"
    assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK


def test_long_polls_are_bounded_per_connection_and_never_block_its_adds(tmp_path):
    """A client with as many long polls as a connection may have requests could not write at all."""
    with serving(config(tmp_path, requests_in_flight_max=5)) as (_, address):
        client = Client(address)
        polls = [control_frame(Header(Kind.READ_LAC, 10 + i, 1, first_entry_id=0, limit=60_000)) for i in range(5)]
        client.send(*polls)
        assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK
        assert client.add(1, 0).status == Status.OK
        poll = Header(Kind.READ_LAC, 0, 1, first_entry_id=0, limit=60_000)
        assert client.call(poll).header.status == Status.TOO_MANY_REQUESTS
        other = Client(address)
        assert other.add(1, 1, 3, last_add_confirmed=2).status == Status.OK, "it is a matter of one connection"
        assert sorted(client.receive().header.request_id for _ in polls) == list(range(10, 15))
        assert client.call(poll).header.status == Status.OK
        client.close()
        other.close()


@pytest.mark.parametrize(
    ("rubbish", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "bytes that start with b'GET / HT' are no frame"),
        (
            b"BSPK" + struct.pack("<I", 1 << 31) + bytes(200),
            "a frame of 2147483768 bytes; at most 16777216 are allowed",
        ),
        (b"BSPK" + bytes(200), "header checksum does not match"),
        (add_frame(1, 0)[:110] + b"\xee" + add_frame(1, 0)[111:], "header checksum does not match"),
        (
            b"BSPK" + struct.pack("<I", 17 << 20) + bytes(17 << 20),
            "a frame of 17825912 bytes; at most 16777216 are allowed",
        ),
    ],
    ids=["HTTP", "oversized", "zeros", "damaged", "oversized and sent"],
)
def test_bytes_without_a_frame_get_a_reason_and_end_only_their_connection(bookie, client, rubbish, why):
    bad = Client(bookie[1])
    try:
        bad.send(rubbish)
        refusal = bad.receive()
        assert (refusal.header.kind, refusal.header.status) == (Kind.REFUSAL, Status.BAD_REQUEST)
        assert bytes(refusal.body).decode().startswith(why)
        with pytest.raises(EOFError):
            bad.receive()
    finally:
        bad.close()
    assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=8))
@settings(max_examples=60)
def test_frames_are_received_whole_for_any_split_of_the_bytes(sizes):
    frames = [add_frame(1, 0, 3), control_frame(Header(Kind.STATUS, 1), b"body"), add_frame(1, 4, payload=b"x" * 5000)]
    stream = b"".join(frames * 2)
    receiver, received, at = FrameReceiver(), [], 0
    for size in cycle(sizes):
        buffer = receiver.buffer()
        piece = stream[at : at + min(size, len(buffer))]
        buffer[: len(piece)] = piece
        at += len(piece)
        received += [bytes(f.batch) if f.batch is not None else bytes(f.body) for f in receiver.received(len(piece))]
        if at == len(stream):
            break
    assert received == [frames[0], b"body", frames[2]] * 2


@given(st.integers(0, 2000), st.integers(1, 255))
@settings(max_examples=150)
def test_damaged_frame_raises_only_a_wire_error(at, flip):
    stream = bytearray(add_frame(1, 0, 3) + control_frame(Header(Kind.STATUS, 1), b"body"))
    stream[at % len(stream)] ^= flip
    receiver = FrameReceiver()
    receiver.buffer()[: len(stream)] = stream
    try:
        for frame in receiver.received(len(stream)):
            assert frame.header.kind in (Kind.ADD, Kind.STATUS)
    except WireError:
        pass


# -- life, pressure


def test_bookie_names_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(BookieError, match=f"port {port} on 127.0.0.1 is in use"),
            serving(config(tmp_path, port=port)),
        ):
            pass


def test_backpressure_admits_every_add_in_the_end(tmp_path):
    with serving(config(tmp_path, request_bytes_in_flight_max=20_000)) as (_, address):
        client = Client(address)
        client.send(*(add_frame(1, i, payload=b"x" * 2000) for i in range(500)))
        assert {client.receive().header.status for _ in range(500)} == {Status.OK}
        client.close()


def test_server_stops_reading_from_a_peer_that_does_not_read(tmp_path):
    with serving(config(tmp_path)) as (server, address):
        client = Client(address)
        client.add(1, 0, payload=b"x" * 3_000_000)
        requests = 200
        for _ in range(requests):
            client.send(control_frame(Header(Kind.READ, 7, 1, 0, 0)))
        other = Client(address)
        assert other.add(2, 0).status == Status.OK
        # Requests received before the pause are held; none are if all of them still lie in the kernel.
        [behind] = await_that(lambda: [c for c in server.connections if c._reading_paused])
        assert behind._transport.get_write_buffer_size() < 20_000_000
        ends = 0
        while ends < requests:
            ends += client.receive().batch is None
        assert behind._waiting is None
        client.close()
        other.close()


def test_bookie_with_a_failed_disk_still_answers_adds_and_reads(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    with serving(config(tmp_path), files) as (_, address):
        client = Client(address)
        assert client.add(1, 0).status == Status.OK
        files.add("sync *.arrows 1.. io-error")
        assert client.add(1, 1).status == Status.IO_ERROR
        assert client.add(1, 1).status == Status.READ_ONLY
        entries, end = client.read(1, 0, 1)
        assert (entries, end.status) == ([], Status.IO_ERROR), "it holds nothing any more, and denies nothing"
        assert client.read(1, 2, 2)[1].status == Status.NO_SUCH_ENTRY, "nobody added it"
        (why,) = client.status().failed_directories.values()
        assert "Input/output error" in why
        client.close()


def test_cold_reads_are_all_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(file_system._RealFile, "read_cached", lambda *_: False)
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        client.add(1, 0, 9)
        client.add(1, 10)
        for _ in range(20):
            client.send(control_frame(Header(Kind.READ, 7, 1, 0, 10)))
        # Both batches are short, so they come joined.
        answers = [client.receive() for _ in range(40)]
        assert sum(answer.batch is None for answer in answers) == 20
        client.close()


def test_consecutive_short_batches_are_joined(tmp_path):
    """Unjoined, each batch cost a reader about 50 microseconds."""
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        for first in (0, 10, 11, 12):
            client.add(1, first, 9 if first == 0 else None)
        client.add(1, 13, payload=bytes(SHORT_BYTES_MAX))
        client.add(1, 14)
        # Entry 15 is not there.
        client.add(1, 16)
        entries, ended = client.read(1, 0, 14)
        assert ([entry.entry_id for entry in entries], ended.value) == (list(range(15)), 15)
        client.send(control_frame(Header(Kind.READ, 7, 1, 3, 16, flags=Flag.SPARSE)))
        spans = []
        while (answer := client.receive()).batch is not None:
            spans.append((answer.header.first_entry_id, answer.header.last_entry_id))
        assert spans[:4] == [(3, 9), (10, 12), (13, 13), (14, 14)]
        client.close()


def add_long_entries(client):
    """Add five entries of 300 KB: too long for a single read."""
    for i in range(5):
        assert client.add(1, i, payload=bytes(300_000)).status == Status.OK


def test_long_answer_is_sent_while_its_rest_is_read(tmp_path, monkeypatch):
    came, reads = threading.Event(), count()

    def read_cached(file, into, position, read=file_system._RealFile.read_cached):
        assert next(reads) == 0 or came.wait(SECONDS_MAX)
        return read(file, into, position)

    monkeypatch.setattr(file_system._RealFile, "read_cached", read_cached)
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        add_long_entries(client)
        client.send(control_frame(Header(Kind.READ, 7, 1, 0, 4)))
        assert client.receive().batch is not None
        came.set()
        answers = [client.receive() for _ in range(5)]
        assert [answer.batch is None for answer in answers] == [False] * 4 + [True]
        assert (answers[-1].header.last_entry_id, answers[-1].header.value) == (4, 5)
        client.close()


def test_unsent_answers_of_a_slow_reader_stay_unchanged(tmp_path):
    with serving(config(tmp_path)) as (_, address):
        slow, client = Client(address), Client(address)
        add_long_entries(slow)
        for request_id in range(10):
            slow.send(control_frame(Header(Kind.READ, request_id, 1, 0, 4)))
        for _ in range(10):
            assert client.read(1, 4, 4)[1].status == Status.OK
        came: dict[int, list[int]] = {request_id: [] for request_id in range(10)}
        for _ in range(10 * 6):
            frame = slow.receive()
            found = came[frame.header.request_id]
            if frame.batch is None:
                assert frame.header.value == 5
                found.append(-1)
            else:
                found.append(EntryBatch.checked(frame.batch, frame.header, frame.body_crc).first_entry_id)
        assert all(found == [0, 1, 2, 3, 4, -1] for found in came.values())
        for reader in (slow, client):
            reader.close()


@pytest.mark.parametrize(
    ("rule", "last", "status"),
    [
        ("cold", 4, Status.OK),
        ("io-error", 1, Status.IO_ERROR),
        ("io-error once", 4, Status.OK),
    ],
)
def test_long_answer_with_a_cold_or_unreadable_rest_ends_with_its_status(tmp_path, monkeypatch, rule, last, status):
    reads = count(1)

    def read_cached(file, into, position, read=file_system._RealFile.read_cached):
        if next(reads) < 3:
            return read(file, into, position)
        if rule == "cold":
            return False
        if rule == "io-error":
            monkeypatch.setattr(file_system._RealFile, "read", fail)
        raise OSError(errno.EIO, "the disk is broken")

    def fail(*_):
        raise OSError(errno.EIO, "the disk is broken")

    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        add_long_entries(client)
        assert client.read(1, 0, 0)[1].status == Status.OK, "the log is open from now on"
        monkeypatch.setattr(file_system._RealFile, "read_cached", read_cached)
        found, end = client.read(1, 0, 4)
        assert [entry.entry_id for entry in found] == list(range(last + 1))
        assert (end.last_entry_id, end.value, end.status) == (last, last + 1, status)
        client.close()


def test_acknowledged_entries_survive_a_restart(tmp_path):
    for start in range(3):
        with serving(config(tmp_path)) as (_, address):
            client = Client(address)
            assert len(client.read(1, 0, 100)[0]) == start
            assert client.add(1, start).status == Status.OK
            client.close()


def test_serving_bookie_makes_checkpoints(tmp_path, monkeypatch):
    written = threading.Event()
    monkeypatch.setattr(
        "bookspark.store.bookie.holdings.checkpointing.write_checkpoint",
        lambda files, path, parts, taken: written.set() or [],
    )
    with serving(config(tmp_path, checkpoint_interval_seconds=0.01)) as (_, address):
        client = Client(address)
        client.add(1, 0)
        assert written.wait(SECONDS_MAX)
        client.close()


def test_ended_connection_is_freed_without_the_garbage_collector(tmp_path):
    with serving(config(tmp_path)) as (server, address):
        client = Client(address)
        freed = threading.Event()
        [connection] = server.connections
        watch = weakref.ref(connection, lambda _: freed.set())
        del connection
        gc.disable()
        try:
            client.close()
            assert freed.wait(SECONDS_MAX), watch()
        finally:
            gc.enable()


def test_lost_entries_are_marked_for_repair_at_once_and_shown_in_the_status(tmp_path):
    metadata = MemoryStore()
    with serving(config(tmp_path), metadata=metadata) as (_, address):
        client = Client(address)
        client.add(1, 0, 4)
        client.add(1, 5, 9)
        [log] = (tmp_path / "logs").glob("*.arrows")
        content = bytearray(log.read_bytes())
        content[-1] ^= 1
        log.write_bytes(content)
        assert client.read(1, 0, 9)[1].status == Status.LOST, "for an I/O error a repair would try again for ever"
        task = await_that(lambda: metadata.underreplication.task(1))
        assert set(task.of(Reason.LACKS)) == {"bookie-test"}
        status = client.status()
        assert (status.lost_copies, status.lacking_ledgers) == (1, 1)
        assert client.add(1, 5, 9).status == Status.OK
        assert len(client.read(1, 0, 9)[0]) == 10 and client.read(1, 10, 10)[1].status == Status.NO_SUCH_ENTRY
        client.close()
