"""A bookie's figures for Prometheus."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookspark.daemon import web
from bookspark.daemon.metrics import metrics_page
from bookspark.errors import BookieError
from bookspark.local import LocalCluster
from bookspark.wire.messages import BookieStatus
from tests.awaiting import await_that


def test_what_prometheus_is_told(new_chroot):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with LocalCluster(bookies=1, metrics_port=port, zookeeper=new_chroot()) as cluster:
        bookkeeper = cluster.bookkeeper()
        bookkeeper.create_ledger(1, 1, 1).append(b"entry")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        told = {sample.name: sample for family in families for sample in family.samples}
        bookie_id = cluster.bookies[0].bookie_id
        assert {sample.labels["bookie_id"] for sample in told.values()} == {bookie_id}
        status = bookkeeper.bookie_status(bookie_id)
        assert told["bookspark_bookie_ledgers"].value == status.ledgers == 1
        assert told["bookspark_bookie_log_bytes"].value == status.log_bytes > 0
        assert told["bookspark_bookie_read_only"].value == 0
        with pytest.raises(BookieError, match=rf"metrics can't be answered at 127.0.0.1:{port}"):
            cluster.add_bookie(metrics_port=port)


@pytest.fixture
def pages():
    """Where a page server of this process answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    status = BookieStatus("bookie-1", 1, 1, [], 0, 0, 0)
    server = web.WebServer("127.0.0.1", port, {"/metrics": metrics_page(lambda call: call(), lambda: status)})
    yield "127.0.0.1", port
    server.close()


@contextlib.contextmanager
def silent(address):
    with socket.create_connection(address, timeout=60) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(b"GET /met")
        yield one


def is_ended(connection):
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def serving():
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def test_only_so_many_requests_have_a_thread_at_once(pages, monkeypatch):
    """Each connection had a thread."""
    monkeypatch.setattr(web, "_CONNECTION_SECONDS_MAX", 3600.0)
    with contextlib.ExitStack() as stack:
        for count in range(1, 9):
            stack.enter_context(silent(pages))
            await_that(lambda count=count: len(serving()) == count)
        for _ in range(20):
            assert is_ended(stack.enter_context(silent(pages)))
        assert len(serving()) == 8
    await_that(lambda: not serving())
    with urllib.request.urlopen(f"http://127.0.0.1:{pages[1]}/metrics", timeout=60) as answer:
        assert b'bookspark_bookie_ledgers{bookie_id="bookie-1"} 0.0' in answer.read()


def test_who_sends_nothing_keeps_prometheus_from_nothing_for_long(pages, monkeypatch):
    """Each connection had a thread for as long as it liked."""
    monkeypatch.setattr(web, "_CONNECTION_SECONDS_MAX", 0.2)
    with silent(pages) as one:
        assert is_ended(one)
    await_that(lambda: not serving())
