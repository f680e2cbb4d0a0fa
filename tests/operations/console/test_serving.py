"""The console's HTTP: slow and odd peers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from starlette.responses import PlainTextResponse

from bookspark.operations.console import server
from bookspark.operations.console.server import Served
from tests.awaiting import SECONDS_MAX, await_that


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served(PlainTextResponse("here\n"), "127.0.0.1", 0, [("X-Own", "yes")])
    yield found
    found.close()


def peer(served: Served, sent: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS_MAX)
    found.sendall(sent)
    return found


def has_ended(one: socket.socket) -> bool:
    """The server has closed the connection, perhaps before it read a byte."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def answer(served: Served, sent: bytes) -> bytes:
    with peer(served, sent) as one:
        found = b""
        while more := one.recv(4096):
            found += more
        return found


GOOD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("slow", [b"", b"GET / HTT", GOOD[:-2]], ids=["nothing", "half a line", "no end of the head"])
def test_slow_peers_keep_nobody_out(served, slow):
    peers = [peer(served, slow) for _ in range(3 * server._CONNECTIONS_MAX)]
    try:
        assert answer(served, GOOD).endswith(b"here\n")
        # The first ones gave way.
        assert has_ended(peers[0])
    finally:
        for one in peers:
            one.close()


def test_peer_whose_request_does_not_come_is_closed(monkeypatch):
    monkeypatch.setattr(server, "_SECONDS_MAX", 0.2)
    served = Served(PlainTextResponse("here\n"), "127.0.0.1", 0, [])
    try:
        with peer(served, GOOD[:-2]) as one:
            assert has_ended(one)
    finally:
        served.close()


def test_peer_that_reads_no_answer_is_closed(monkeypatch):
    monkeypatch.setattr(server, "_SECONDS_MAX", 0.2)
    served = Served(PlainTextResponse("x" * (64 << 20)), "127.0.0.1", 0, [])
    try:
        with peer(served, GOOD) as one:
            has_ended(one)  # the answer has begun, or the connection has ended already
            await_that(lambda: served.connections == 0)
    finally:
        served.close()


def test_peer_that_asks_on_and_reads_no_answer_is_closed_and_keeps_nobody_out(monkeypatch):
    """Its answers filled the connection, which counted as one whose page is being made, for ever."""
    monkeypatch.setattr(server, "_SECONDS_MAX", 0.2)
    monkeypatch.setattr(server, "_CONNECTIONS_MAX", 4)
    served = Served(PlainTextResponse("x" * (1 << 20)), "127.0.0.1", 0, [])
    asked = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    try:
        peers = [peer(served, 20 * asked) for _ in range(6)]
        # A machine that is busy for longer than the peers' time ends a connection of a good peer too.
        await_that(lambda: answer(served, GOOD).endswith(b"x"), despite=ConnectionError)
        await_that(lambda: served.connections == 0)
        for one in peers:
            one.close()
    finally:
        served.close()


def test_bad_end_of_a_request_whose_answer_has_gone_logs_nothing(served, caplog):
    """asyncio logged a traceback for each connection."""
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with peer(served, head) as one:
        assert one.recv(4096)
        one.sendall(b"ZZZ\r\n")
        with contextlib.suppress(ConnectionError):
            while one.recv(4096):
                pass
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "odd",
    [
        b"\x00\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 40000,
    ],
    ids=["bytes", "no host", "long head"],
)
def test_refusal_of_an_odd_request_has_the_headers_too(served, odd):
    found = answer(served, odd)
    assert found.startswith(b"HTTP/1.1 400") and b"\r\nx-own: yes\r\n" in found.lower()


def test_every_answer_has_the_headers_and_names_no_library(served):
    found = answer(served, GOOD).lower()
    assert b"\r\nx-own: yes\r\n" in found and b"uvicorn" not in found
