"""Connections before HELLO (strangers): memory, deadlines, displacement when there are too many, and refused ids."""

from __future__ import annotations

import logging
import random
import resource
import socket
import ssl
import struct
import threading
from contextlib import ExitStack, contextmanager

import pytest

from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bookspark.store.bookie.serving import admission, porch, served_bookie
from bookspark.store.bookie.serving.admission import Admission, most_of_one_origin
from bookspark.store.wire.batch_prefix import PREFIX_START
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.frames import HELLO_BYTES_MAX, FrameReceiver, control_frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Flag, Header, Kind, Status
from bookspark.support.addresses import origin_of
from tests.authority import Authority
from tests.awaiting import await_that
from tests.remote_strangers import hello_of_tls
from tests.store.bookie.kit import SECONDS_MAX, Client, add_frame, config, serving

HELLO = control_frame(Header(Kind.HELLO, 1, value=PROTOCOL_VERSION))
BOMB = b"BSPK" + struct.pack("<I", FRAME_BYTES_MAX - 200)


def ended(connection):
    """Wait until the bookie has ended the connection."""
    connection.settimeout(SECONDS_MAX)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@contextmanager
def strangers(address, count, said=b""):
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(address, SECONDS_MAX)) for _ in range(count)]
        for one in made:
            one.sendall(said)
        yield made


@pytest.fixture(scope="module")
def tls_options(tmp_path_factory):
    return {"tls_certificate": Authority(tmp_path_factory.mktemp("tls") / "authority").certificate("bookie")}


# -- time and memory


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("said", ["nothing", "half", "whole"])
def test_stranger_is_ended_at_its_deadline(tmp_path, monkeypatch, tls_options, tls, said):
    monkeypatch.setattr(porch, "STRANGER_SECONDS", 0.2)
    first = hello_of_tls() if tls else control_frame(Header(Kind.HELLO, 1, value=PROTOCOL_VERSION - 1))
    said = {"nothing": b"", "half": first[:50], "whole": first}[said]
    with (
        serving(config(tmp_path, **(tls_options if tls else {}))) as (server, address),
        strangers(address, 3, said) as made,
    ):
        assert all(map(ended, made))
        await_that(lambda: not server._admission.strangers)
        assert not server.connections


def test_greeted_client_outlives_the_deadline_of_strangers(tmp_path, monkeypatch):
    monkeypatch.setattr(porch, "STRANGER_SECONDS", 4.0)
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        with strangers(address, 1) as [later]:
            assert ended(later)
        assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK
        client.close()


@pytest.mark.parametrize("said", [b"", BOMB[:7], BOMB, HELLO[:-1], PREFIX_START[:8]])
def test_stranger_takes_less_than_16_kib_of_memory(tmp_path, monkeypatch, said):
    """Each stranger took 64 KiB, and 16 MiB if its 8 bytes announced a frame of that size."""
    monkeypatch.setattr(porch, "STRANGER_SECONDS", SECONDS_MAX)
    monkeypatch.setattr(admission, "_STRANGERS_MAX", 1000)
    monkeypatch.setattr(Admission, "connections_max", lambda self: 1 << 20)
    with serving(config(tmp_path)) as (server, address), strangers(address, 20, said):
        before = resident_bytes()
        with strangers(address, 200, said):
            await_that(lambda: len(server._admission.strangers) >= 200 or said == BOMB)
            assert resident_bytes() - before < 200 * 16 << 10


@pytest.mark.parametrize("said", ["half", "whole"])
def test_tls_handshakes_are_limited_to_32_at_a_time(tmp_path, monkeypatch, tls_options, said):
    """The state of each handshake takes some 50 KiB."""
    monkeypatch.setattr(porch, "STRANGER_SECONDS", SECONDS_MAX)
    monkeypatch.setattr(admission, "_STRANGERS_MAX", 1000)
    monkeypatch.setattr(Admission, "connections_max", lambda self: 1 << 20)
    hello = hello_of_tls()
    said = hello[: len(hello) // 2] if said == "half" else hello
    with serving(config(tmp_path, **tls_options)) as (server, address), strangers(address, 40, said):
        before = resident_bytes()
        with strangers(address, 200, said):
            await_that(lambda: len(server._porch.handshakes) == (32 if said == hello else 0))
            assert resident_bytes() - before < 200 * 16 << 10
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            client = Client(address, wrap=context.wrap_socket)
            assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK
            client.close()


def test_frame_announced_by_a_client_takes_no_memory_before_its_bytes_arrive(tmp_path):
    with serving(config(tmp_path)) as (_, address), ExitStack() as stack:
        clients = [Client(address) for _ in range(20)]
        before = resident_bytes()
        for client in clients:
            stack.callback(client.close)
            client.send(BOMB)
            client.send(b"x")
        other = Client(address)
        assert other.add(1, 0).status == Status.OK
        other.close()
        assert resident_bytes() - before < 8 << 20


def test_receiver_of_an_announced_long_frame_takes_memory_only_for_received_bytes():
    receiver = FrameReceiver()
    before = resident_bytes()
    receivers = [FrameReceiver() for _ in range(10)]
    for receiver in receivers:
        room = receiver.buffer()
        room[: len(BOMB)] = BOMB
        assert not list(receiver.received(len(BOMB)))
    assert resident_bytes() - before < 1 << 20


# -- bytes before HELLO


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "noise": random.Random(1).randbytes(64),
    "bomb": BOMB,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
def test_garbage_gets_a_refusal_and_ends_its_connection_at_once(tmp_path, said):
    with serving(config(tmp_path)) as (server, address), strangers(address, 1, said) as [stranger]:
        receiver = FrameReceiver()
        count = stranger.recv_into(receiver.buffer())
        [frame] = receiver.received(count)
        assert frame.header.kind == Kind.REFUSAL
        assert ended(stranger) and not server._admission.strangers


def test_garbage_ends_a_tls_connection_at_once(tmp_path, tls_options):
    with serving(config(tmp_path, **tls_options)) as (server, address), strangers(address, 1, HELLO) as [stranger]:
        assert ended(stranger) and not server._admission.strangers


def test_frames_before_hello_are_limited_in_size_and_number(tmp_path):
    with serving(config(tmp_path)) as (_, address):
        client = Client(address, greet=False)
        assert client.call(Header(Kind.STATUS, 0)).header.status == Status.BAD_REQUEST
        for _ in range(40):
            client.send(control_frame(Header(Kind.STATUS, 0)))
        kinds = [client.receive().header.kind]
        while kinds[-1] != Kind.REFUSAL:
            kinds.append(client.receive().header.kind)
        assert kinds.count(Kind.STATUS) < 40
        assert ended(client.socket)
        client.close()
        long = Client(address, greet=False)
        long.send(HELLO[:4] + struct.pack("<I", HELLO_BYTES_MAX))
        assert b"before HELLO" in long.receive().body.tobytes()
        long.close()


def test_hello_in_pieces_is_accepted(tmp_path):
    with serving(config(tmp_path)) as (_, address):
        client = Client(address, greet=False)
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(HELLO), 9):
            client.send(HELLO[start : start + 9])
        assert client.receive().header.status == Status.OK
        client.close()


# -- displacement


def test_many_strangers_displace_each_other_and_no_client(tmp_path, monkeypatch):
    monkeypatch.setattr(Admission, "connections_max", lambda self: 40)
    with serving(config(tmp_path)) as (server, address):
        client = Client(address)
        with strangers(address, 300) as made:
            assert client.add(1, 0).status == Status.OK
            newcomer = Client(address)
            assert newcomer.call(Header(Kind.STATUS, 0)).header.status == Status.OK
            assert len(server._admission.strangers) <= 16
            assert ended(made[0]), "the oldest goes first"
            newcomer.close()
        client.close()


def test_newcomer_never_displaces_a_client_of_its_own_address(tmp_path, monkeypatch):
    monkeypatch.setattr(Admission, "connections_max", lambda self: 20)
    with serving(config(tmp_path)) as (_, address):
        clients = [Client(address) for _ in range(20)]
        late = Client(address, greet=False)
        assert b"as many connections as it may" in late.receive().body.tobytes()
        assert all(client.call(Header(Kind.STATUS, 0)).header.status == Status.OK for client in clients)
        for client in (*clients, late):
            client.close()


def test_newcomer_displaces_the_silent_connection_of_an_address_with_far_more(tmp_path, monkeypatch):
    monkeypatch.setattr(Admission, "connections_max", lambda self: 20)
    with serving(config(tmp_path, host="127.0.0.1")) as (_, address):
        clients = [Client(address) for _ in range(20)]
        for client in clients[1:]:
            assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK
        other = socket.create_connection(address, SECONDS_MAX, source_address=("127.0.0.9", 0))
        other.sendall(HELLO)
        assert other.recv(1 << 16)
        assert ended(clients[0].socket)
        assert all(client.call(Header(Kind.STATUS, 0)).header.status == Status.OK for client in clients[1:])
        other.close()
        for client in clients:
            client.close()


def test_origin_of_an_ipv6_address_is_its_network():
    assert origin_of("2001:db8::1") == origin_of("2001:db8::ffff:1") != origin_of("2001:db8:0:1::1")
    assert origin_of("::ffff:10.0.0.1") == origin_of("10.0.0.1") != origin_of("10.0.0.2")
    assert origin_of("fe80::1%eth0") == "fe80::/64"


def test_most_of_one_origin_returns_the_connections_of_the_commonest_address():
    class One:
        def __init__(self, origin):
            self.origin = origin

    made = [One(origin) for origin in "abcbdb"]
    assert most_of_one_origin(made) == [made[1], made[3], made[5]]
    assert most_of_one_origin([]) == []


def test_stranger_that_disconnects_is_forgotten(tmp_path):
    with serving(config(tmp_path)) as (server, address):
        with strangers(address, 5, HELLO[:20]):
            await_that(lambda: len(server._admission.strangers) == 5)
        await_that(lambda: not server._admission.strangers)


def test_stop_ends_strangers_and_every_thread(tmp_path):
    before = set(threading.enumerate())
    with ExitStack() as stack:
        with serving(config(tmp_path)) as (_, address):
            [stranger] = stack.enter_context(strangers(address, 1))
        assert ended(stranger)
    await_that(lambda: not set(threading.enumerate()) - before, what="the end of the bookie's threads")


# -- ids


@pytest.mark.parametrize("ledger_id", [-(1 << 63), -5, -2, LEDGER_ID_MAX + 1, 1 << 62, (1 << 63) - 1])
def test_every_request_with_an_impossible_ledger_id_is_refused(tmp_path, ledger_id):
    with serving(config(tmp_path)) as (server, address):
        client = Client(address)
        for kind in Kind:
            for flags in (0, int(Flag.FENCE)):
                header = Header(kind, 0, ledger_id, 0, 0, 0, flags=flags, master_key=b"k" * 16, value=PROTOCOL_VERSION)
                assert client.call(header).header.status == Status.BAD_REQUEST or kind == Kind.HELLO
        client.send(add_frame(ledger_id, 0))
        assert client.receive().header.status == Status.BAD_REQUEST
        assert server.storage.status().ledgers == 0 and not len(server.storage.holdings.ledgers)
        client.close()


@pytest.mark.parametrize("kind", [Kind.READ, Kind.READ_LAC, Kind.WRITE_LAC, Kind.SYNC, Kind.RANGES, Kind.LIMBO])
def test_ledger_request_without_a_ledger_id_is_refused(tmp_path, kind):
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        assert client.call(Header(kind, 0, -1, 0, 0, 0)).header.status == Status.BAD_REQUEST
        client.close()


def test_100_refusals_make_a_single_log_line(tmp_path, caplog, monkeypatch):
    """Each refused request of a greeted client made a line."""
    monkeypatch.setattr(served_bookie, "TOLD_SECONDS", 3600.0)
    caplog.set_level(logging.WARNING, "bookspark.store.bookie.serving")
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        for _ in range(100):
            assert client.call(Header(Kind.READ_LAC, 0, -5)).header.status == Status.BAD_REQUEST
        client.close()
    (line,) = (record.getMessage() for record in caplog.records if "refused" in record.getMessage())
    assert line.startswith("1 requests or connections were refused; the last of ")


def test_log_line_counts_the_refusals_since_the_last_line(monkeypatch, caplog):
    now, refused = [0.0], served_bookie.Refusals()
    monkeypatch.setattr(served_bookie.time, "monotonic", lambda: now[0])
    for second in range(8):
        now[0] = float(second)
        refused.tell("a peer", second)
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["1", "5"]


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.FETCH])
def test_body_nested_too_deep_is_refused_and_no_failure_of_the_bookie(tmp_path, caplog, kind):
    caplog.set_level(logging.ERROR, "bookspark")
    deep = b'{"more":' + b"[" * 3900
    with serving(config(tmp_path / "bookie")) as (server, address):
        server.fetch = lambda *asked: None
        client = Client(address, greet=kind != Kind.HELLO)
        try:
            asked = Header(kind, 5, -1 if kind == Kind.HELLO else 7, 0, 0, value=PROTOCOL_VERSION)
            client.send(control_frame(asked, deep))
            answer = client.receive()
        finally:
            client.close()
    assert (answer.header.status, caplog.records) == (Status.BAD_REQUEST, [])
