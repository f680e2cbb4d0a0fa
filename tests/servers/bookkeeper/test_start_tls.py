"""TLS at the BookKeeper port: START_TLS comes first, and nothing is served in clear text."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading

import pytest
import uvloop

from bookspark.servers.bookkeeper.messages import SCHEMA, Operation
from bookspark.store.bookie.serving import porch
from bookspark.store.bookie.serving.porch import Porch
from bookspark.store.wire.frames import HELLO_BYTES_MAX
from tests.authority import Authority
from tests.awaiting import SECONDS_MAX, await_that
from tests.servers.bookkeeper.kit import KEY, Caller, add_2, body, open_door, request
from tests.store.bookie.kit import config

EOK, EBADREQ, EUA = 0, 404, 502
START = request(Operation.START_TLS, 1, "startTls")
INFO = request(Operation.GET_BOOKIE_INFO, 2, "bookieInfo", requested=3)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def certificate(authority):
    return authority.certificate("bookie")


def add(txn, entry_id, payload=b"payload"):
    made = body(7, entry_id, payload)
    return request(Operation.ADD_ENTRY, txn, "add", ledgerId=7, entryId=entry_id, masterKey=KEY, body=made)


def client_context(authority, own=None):
    context = ssl.create_default_context(cafile=str(authority.file))
    if own is not None:
        context.load_cert_chain(own)
    return context


def begin(caller: Caller, context: ssl.SSLContext) -> None:
    """Send START_TLS, then do the handshake."""
    caller.send(START)
    assert caller.answer().status == EOK
    caller.socket = context.wrap_socket(caller.socket, server_hostname="127.0.0.1")


def is_ended(caller: Caller) -> bool:
    """Does the bookie close this connection without an answer?"""
    try:
        return caller.socket.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_are_served_over_tls(tmp_path, authority, certificate, version):
    with open_door(config(tmp_path, tls_certificate=certificate)) as (server, call, _):
        caller, context = call(), client_context(authority)
        context.minimum_version = context.maximum_version = version
        begin(caller, context)
        caller.send(*(add(10 + i, i, bytes(50_000)) for i in range(40)))
        assert caller.statuses(40) == {10 + i: EOK for i in range(40)}
        for i in range(40):
            caller.send(request(Operation.READ_ENTRY, i, "read", ledgerId=7, entryId=i))
        told = [caller.answer() for _ in range(40)]
        assert {one.header.txnId: one.read.body for one in told} == {i: body(7, i, bytes(50_000)) for i in range(40)}
        assert len(server.connections) == 1
        caller.send(START)
        assert caller.answer().status == EBADREQ, "TLS is there already"


@pytest.mark.parametrize("new_event_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_requests_sent_with_the_last_handshake_message_are_answered(
    tmp_path, authority, certificate, monkeypatch, new_event_loop
):
    """On asyncio's own loop the requests arrive before ``start_tls`` has returned."""
    monkeypatch.setattr(uvloop, "new_event_loop", new_event_loop)
    with open_door(config(tmp_path, tls_certificate=certificate)) as (_, call, _):
        for _ in range(20):
            caller = call()
            caller.send(START)
            assert caller.answer().status == EOK
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    caller.socket.sendall(outgoing.read())
                    incoming.write(caller.socket.recv(1 << 16))
            tls.write(add(1, 0) + INFO)
            caller.socket.sendall(outgoing.read())  # the client's Finished message and two requests, in one piece
            found, statuses = b"", []
            while len(statuses) < 2:
                try:
                    found += tls.read(1 << 16)
                except ssl.SSLWantReadError:
                    piece = caller.socket.recv(1 << 16)
                    assert piece, "the bookie ended the connection"
                    incoming.write(piece)
                while len(found) >= 4 and len(found) >= 4 + (size := int.from_bytes(found[:4], "big")):
                    statuses.append(SCHEMA.message("Response").FromString(found[4 : 4 + size]).status)
                    found = found[4 + size :]
            assert statuses == [EOK, EOK]


def test_requests_in_clear_text_are_refused(tmp_path, certificate):
    with open_door(config(tmp_path, tls_certificate=certificate)) as (server, call, _):
        caller = call()
        caller.send(INFO, add(3, 0), request(Operation.READ_ENTRY, 4, "read", ledgerId=7, entryId=0))
        assert caller.statuses(3) == {2: EUA, 3: EUA, 4: EUA}
        assert server.storage.holdings.ledger(7) is None
        assert not server.connections, "it is a stranger still"
        two = call()
        two.send(add_2(KEY, body(7, 0, b"payload")))
        assert two.answer_2()[0] == 102
        named = call()
        named.send(request(Operation.AUTH, 1, "auth", pluginName="x", payload=b""))
        assert is_ended(named)
        long = call()
        long.send(add(3, 0, bytes(HELLO_BYTES_MAX)))
        assert is_ended(long), "a stranger makes the bookie keep no more than a few KiB"


def test_clear_text_after_start_tls_closes_the_connection(tmp_path, certificate):
    """A man in the middle appends an add to the client's START_TLS, so that the bookie would accept it as sent over TLS."""
    with open_door(config(tmp_path, tls_certificate=certificate)) as (server, call, _):
        for behind in (add(3, 0), add(3, 0)[:9]):
            caller = call()
            caller.send(START + behind)
            assert is_ended(caller)
        assert server.storage.holdings.ledger(7) is None


@pytest.fixture
def one_handshake(monkeypatch):
    """An address begins one handshake at once; another one waits. An event tells that one has begun."""
    begun, shakes_hands = threading.Event(), Porch.shakes_hands

    def begins(self, stranger):
        shakes_hands(self, stranger)
        begun.set()

    monkeypatch.setattr(porch, "_HANDSHAKES_BURST", 1)
    monkeypatch.setattr(porch, "_HANDSHAKES_PER_SECOND", 2)
    monkeypatch.setattr(Porch, "shakes_hands", begins)
    return begun


def test_handshake_that_waits_for_its_turn_succeeds(tmp_path, authority, certificate, one_handshake):
    """The ClientHello was read as a request in clear text, and refused."""
    with open_door(config(tmp_path, tls_certificate=certificate)) as (_, call, _):
        for _ in range(3):
            caller = call()
            begin(caller, client_context(authority))
            caller.send(INFO)
            assert caller.answer().status == EOK


def test_clear_text_while_a_handshake_waits_for_its_turn_is_not_served(tmp_path, authority, certificate, one_handshake):
    """A man in the middle sent an add behind the client's START_TLS, and the client's handshake once the bookie took it: the add
    was accepted as sent by the client over TLS."""
    with open_door(config(tmp_path, tls_certificate=certificate)) as (server, call, _):
        begin(call(), client_context(authority))
        caller = call()
        one_handshake.clear()
        caller.send(START)
        assert caller.answer().status == EOK
        caller.send(add(3, 0))
        assert one_handshake.wait(SECONDS_MAX)
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            caller.socket = client_context(authority).wrap_socket(caller.socket, server_hostname="127.0.0.1")
            caller.answer()
        assert server.storage.holdings.ledger(7) is None


def test_bytes_without_tls_in_the_handshake_close_the_connection(tmp_path, certificate):
    with open_door(config(tmp_path, tls_certificate=certificate)) as (server, call, _):
        caller = call()
        caller.send(START)
        assert caller.answer().status == EOK
        caller.send(add(3, 0))
        assert caller.socket.recv(100)[:1] in (b"", b"\x15"), "an alert, if anything"
        # The alert may arrive before the bookie has closed the connection.
        await_that(lambda: not server._porch.admission.connections)
        assert server.storage.holdings.ledger(7) is None


def test_a_client_without_the_required_certificate_is_refused(tmp_path, authority, certificate):
    settings = config(tmp_path, tls_certificate=certificate, tls_client_ca=str(authority.file))
    with open_door(settings) as (server, call, _):
        # With TLS 1.3 the client would get the error only when it reads.
        caller, context = call(), client_context(authority)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            begin(caller, context)
        caller = call()
        begin(caller, client_context(authority, authority.certificate("client")))
        caller.send(INFO)
        assert caller.answer().status == EOK
        assert len(server.connections) == 1


def test_client_with_a_certificate_of_no_role_is_refused(tmp_path, authority):
    client = authority.certificate("a client", usage="clientAuth")
    settings = config(
        tmp_path,
        tls_certificate=authority.certificate("a bookie", usage="serverAuth"),
        tls_client_ca=str(authority.file),
        tls_client_certificate=client,
        tls_roles=True,
    )
    with open_door(settings) as (server, call, _):
        caller = call()
        # The bookie looks at the role behind the handshake.
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            begin(caller, client_context(authority, authority.certificate("of no role")))
            caller.send(INFO)
        with contextlib.suppress(ssl.SSLError):
            assert is_ended(caller)
        caller = call()
        begin(caller, client_context(authority, client))
        caller.send(INFO)
        assert caller.answer().status == EOK
        assert len(server.connections) == 1


def test_connection_without_a_handshake_is_closed(tmp_path, certificate):
    with open_door(config(tmp_path, tls_certificate=certificate)) as (_, call, _):
        caller = call()
        caller.send(START)
        assert caller.answer().status == EOK
        assert is_ended(caller)


def test_concurrent_handshakes_are_bounded_and_the_oldest_is_closed_first(tmp_path, certificate, monkeypatch):
    monkeypatch.setattr("bookspark.store.bookie.serving.porch._HANDSHAKES_MAX", 3)
    for module in ("store.bookie.serving.porch", "servers.bookkeeper.door"):
        monkeypatch.setattr(f"bookspark.{module}.STRANGER_SECONDS", 600.0)
    with open_door(config(tmp_path, tls_certificate=certificate)) as (server, call, _):
        callers = [call() for _ in range(6)]
        for caller in callers:
            caller.send(START)
            assert caller.answer().status == EOK
        for caller in callers[:3]:
            assert is_ended(caller)
        assert len(server._porch.admission.strangers) == 3


def test_bookie_stops_during_a_handshake(tmp_path, certificate):
    with open_door(config(tmp_path, tls_certificate=certificate)) as (_, call, _):
        caller = call()
        caller.send(START)
        assert SCHEMA.message("Response").FromString(caller.frame()).status == EOK
        kept = socket.socket(fileno=caller.socket.detach())
    try:
        assert kept.recv(1) == b""
    except ConnectionResetError:
        pass
    finally:
        kept.close()
