"""Strangers that make a bookie hold memory by silence, at both ports, and probes and web pages beside strangers."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import ssl
import struct
import urllib.request
from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from bookspark.servers.daemon.bookie_process import LINES_AT_ONCE, FewOfAKind
from bookspark.servers.daemon.directories import LOG
from bookspark.store.bookie.serving import porch
from bookspark.store.bookie.serving.admission import Admission
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from bookspark.support.metrics.web import Page, WebServer
from tests.authority import Authority
from tests.awaiting import SECONDS_MAX, await_that
from tests.remote_strangers import BATCH, alive, connected, figure_at
from tests.store.bookie.kit import Client, config, serving

MIB = 1 << 20
BUDGET = 64 * MIB
ADD_2 = struct.pack(">IBBH", 16 << 20, 2, 1, 0)
"""The same of BookKeeper's protocol, version 2."""


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10


def test_unfinished_frames_of_40_strangers_stay_within_the_budget_and_a_writer_goes_on():
    with (
        LocalCluster(bookies=1, bookkeeper_port=-1, metrics_port=-1, unfinished_bytes_max=BUDGET) as cluster,
        cluster.bookkeeper() as client,
        contextlib.ExitStack() as stack,
    ):
        [bookie] = cluster.bookies
        door = client.metadata.bookies()[bookie.bookie_id].bookkeeper_address
        ledger = client.create_ledger(1, 1, 1)
        ledger.append(b"known")
        before = resident_bytes(bookie.pid)
        for number in range(40):
            if number % 2:
                host, _, port = bookie.address.rpartition(":")
                stranger = Client((host, int(port))).socket
                start = BATCH
            else:
                stranger, start = connected(door), ADD_2
            stack.callback(stranger.close)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(start)
                for _ in range(15):
                    stranger.sendall(bytes(MIB))
            if number % 8 == 0:
                ledger.append(bytes(4 * MIB))
        assert figure_at(client.bookie_status(bookie.bookie_id).metrics_address, "unfinished_bytes") <= BUDGET
        # Without the budget: 600 MiB.
        assert resident_bytes(bookie.pid) - before < 250 * MIB
        assert ledger.append(b"last") == 6


def test_frame_that_is_never_whole_ends_its_connection(tmp_path, monkeypatch):
    monkeypatch.setattr("bookspark.protocol.bookie.peer_memory.FRAME_SECONDS", 1.0)
    with serving(config(tmp_path)) as (server, address):
        slow, idle = Client(address), Client(address)
        slow.send(control_frame(Header(Kind.STATUS, 1))[:-1])
        assert b"not whole" in slow.receive().body.tobytes()
        assert idle.call(Header(Kind.STATUS, 0)).header.status == Status.OK
        await_that(lambda: len(server.connections) == 1)
        slow.close()
        idle.close()


@pytest.mark.parametrize("kind", [Kind.STATUS, Kind.READ_LAC])
def test_unread_answers_and_long_polls_stay_within_the_budget(tmp_path, monkeypatch, kind):
    """Requests are pipelined, and answers are not read: one connection held 10 MiB of polls, or 26 MiB of answers at once."""
    # On a busy machine the loop needs longer for all these polls than a newcomer has for its HELLO.
    monkeypatch.setattr(porch, "STRANGER_SECONDS", 2 * SECONDS_MAX)
    settings = config(tmp_path, unfinished_bytes_max=BUDGET)
    request = control_frame(Header(kind, 1, 7, first_entry_id=5, limit=300_000))
    with serving(settings) as (server, address), contextlib.ExitStack() as stack:
        admission = server._admission
        peers = [Client(address) for _ in range(10)]
        for peer in peers:
            stack.callback(peer.close)
            peer.socket.setblocking(False)
            said = memoryview(request * 9_900)
            with contextlib.suppress(OSError):
                while said:
                    said = said[peer.socket.send(said) :]
                    if kind == Kind.READ_LAC:
                        peer.socket.setblocking(True)
        await_that(lambda: admission.memory.bound > MIB)
        other = Client(address)
        assert other.add(2, 0).status == Status.OK
        other.close()
        assert admission.memory.bound + admission.memory.slack <= BUDGET
        if kind == Kind.READ_LAC:
            await_that(lambda: len(server.connections) < 10)


def test_idle_connection_gives_back_its_receive_buffer(tmp_path, monkeypatch):
    monkeypatch.setattr("bookspark.protocol.bookie.peer_memory.IDLE_SECONDS", 0.0)
    with serving(config(tmp_path)) as (server, address):
        client = Client(address)
        assert client.add(1, 0, payload=bytes(3 * MIB)).status == Status.OK
        await_that(lambda: not len(server._admission.memory))
        assert client.add(1, 1, payload=bytes(3 * MIB)).status == Status.OK
        client.close()


# -- probes and pages


def test_probes_pass_while_strangers_fill_the_metrics_port():
    with LocalCluster(bookies=1, metrics_port=-1) as cluster, cluster.bookkeeper() as client:
        [bookie] = cluster.bookies
        directory = bookie.directories[0]
        address = client.bookie_status(bookie.bookie_id).metrics_address
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(connected(address))
            assert (alive(directory).returncode, alive(directory, "--ready").stdout) == (0, "ready\n")
            # A quick scraper of the same address takes a slow one's place.
            assert urllib.request.urlopen(f"http://{address}/health", timeout=SECONDS_MAX).status == 200
        bookie.kill()
        gone = alive(directory)
        assert gone.returncode == 1 and "no bookie answers" in gone.stdout


def test_slow_peers_of_one_address_stop_nobodys_page():
    web = WebServer("127.0.0.1", 0, {"/page": lambda: Page(200, b"page")})
    with contextlib.closing(web), contextlib.ExitStack() as stack:
        for number in range(60):
            slow = stack.enter_context(socket.socket())
            slow.bind((f"127.0.0.{2 + number % 5}", 0))
            slow.connect(("127.0.0.1", web.port))
            slow.sendall(b"GET /page")
        for _ in range(20):
            with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/page", timeout=SECONDS_MAX) as page:
                assert page.read() == b"page"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /page HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b"421"),
        (b"GET /page HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", b"200"),
        (b"GET /page\r\n\r\n", b"200"),
        (b"POST /page HTTP/1.1\r\n\r\n", b"501"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /page HTTP/9\r\n\r\n", b"400"),
    ],
)
def test_every_answer_has_the_headers_and_foreign_names_are_refused(said, status):
    web = WebServer("127.0.0.1", 0, {"/page": lambda: Page(200, b"page")})
    with contextlib.closing(web), connected(f"127.0.0.1:{web.port}") as peer:
        peer.sendall(said)
        answer = b"".join(iter(lambda: peer.recv(1 << 16), b""))
    assert answer.split()[1] == status and b"X-Content-Type-Options: nosniff" in answer


def test_long_head_ends_its_connection():
    web = WebServer("127.0.0.1", 0, {"/page": lambda: Page(200, b"page")})
    with contextlib.closing(web), connected(f"127.0.0.1:{web.port}") as peer, contextlib.suppress(ConnectionError):
        peer.sendall(b"GET /page HTTP/1.1\r\n" + (b"X: " + b"y" * 60_000 + b"\r\n") * 3 + b"\r\n")
        assert peer.recv(100) == b""


# -- TLS handshakes and log lines


def test_handshakes_of_an_address_are_limited_and_other_addresses_are_served(tmp_path, monkeypatch):
    monkeypatch.setattr(porch, "_HANDSHAKES_PER_SECOND", 0.01)
    monkeypatch.setattr(porch, "_HANDSHAKES_BURST", 3)
    monkeypatch.setattr(porch, "STRANGER_SECONDS", 2.0)
    monkeypatch.setattr(Admission, "connections_max", lambda self: 1 << 20)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    settings = config(tmp_path / "b", tls_certificate=Authority(tmp_path / "authority").certificate("bookie"))
    with serving(settings) as (_, address):
        for _ in range(3):
            Client(address, wrap=context.wrap_socket).close()
        with pytest.raises(OSError):
            Client(address, wrap=context.wrap_socket)
        other = socket.create_connection(address, SECONDS_MAX, ("127.0.0.9", 0))
        with context.wrap_socket(other) as wrapped:
            assert wrapped.version()


def test_10_000_lines_of_a_kind_make_a_few_lines_with_their_count(caplog):
    few = FewOfAKind()
    passed = [
        few.filter(logging.LogRecord("bookie", logging.INFO, "", 1, "%s asked for a collection", (peer,), None))
        for peer in range(10_000)
    ]
    assert sum(passed) <= LINES_AT_ONCE + 2


def test_flood_of_collections_makes_a_few_lines_in_a_bookies_log():
    with LocalCluster(bookies=1) as cluster:
        [bookie] = cluster.bookies
        host, _, port = bookie.address.rpartition(":")
        stranger = Client((host, int(port)))
        for _ in range(2_000):
            stranger.call(Header(Kind.COLLECT, 0))
        stranger.close()
        lines = (Path(bookie.directories[0]) / LOG).read_text().splitlines()
    assert 0 < sum("asked for a collection" in line for line in lines) < 100
