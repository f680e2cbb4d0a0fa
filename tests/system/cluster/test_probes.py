"""Health and readiness probes of a bookie, and the web server that serves them."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack

import pytest

from bookspark.errors import BookieError, MetadataStoreError
from bookspark.servers.daemon import bookie_process as module
from bookspark.servers.daemon.bookie_process import Probes
from bookspark.servers.daemon.lease_server import SERVING, STOPPING
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.support.metrics.web import Page, WebServer
from tests.awaiting import SECONDS_MAX
from tests.ports import free_port


def at_once(function, *arguments):
    function(*arguments)


class Asked:
    """Probes of a bookie whose state a test sets."""

    def __init__(self):
        self.phase = "opening storage"
        self.dead: list[str] = []
        self.registered = ""
        self.probes = Probes(lambda: self.phase)

    def serve(self, post=at_once):
        self.probes.serves(post, lambda: self.dead, lambda: self.registered)
        self.phase = SERVING


def test_booting_bookie_is_healthy_and_not_ready():
    asked = Asked()
    assert asked.probes.health() == Page(200, b"healthy: opening storage\n")
    assert asked.probes.ready() == Page(503, b"not serving: opening storage\n")


def test_serving_bookie_is_ready_only_while_registered():
    asked = Asked()
    asked.serve()
    assert (asked.probes.health().status, asked.probes.ready()) == (200, Page(200, b"ready\n"))
    asked.registered = "bookie-1 is not registered"
    assert asked.probes.ready() == Page(503, b"bookie-1 is not registered\n")
    assert asked.probes.health().status == 200, "a start would not help"


def test_bookie_with_silent_metadata_store_is_healthy_and_not_ready():
    asked = Asked()

    def silent():
        raise MetadataStoreError("no answer")

    asked.probes.serves(at_once, list, silent)
    asked.phase = SERVING
    assert asked.probes.ready().status == 503 and b"no answer" in asked.probes.ready().content
    assert asked.probes.health().status == 200


def test_bookie_is_unhealthy_when_a_commit_thread_has_ended():
    asked = Asked()
    asked.serve()
    asked.dead = ["/data/a"]
    assert asked.probes.health() == Page(503, b"the commit thread of /data/a has ended\n")
    # The thread ends as part of a stop.
    asked.phase = STOPPING
    assert asked.probes.health().status == 200
    assert asked.probes.ready() == Page(503, b"not serving: stopping\n")


def test_bookie_is_unhealthy_when_its_request_loop_does_not_answer(monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS_MAX", 0.01)
    asked = Asked()
    asked.serve(post=lambda *_: None)
    assert asked.probes.health() == Page(503, b"the loop of requests gives no answer within 0.01 s\n")

    def closed(*_):
        raise RuntimeError("Event loop is closed")

    asked.serve(post=closed)
    assert b"the loop of requests has ended" in asked.probes.health().content


@pytest.fixture
def served():
    """The port of a running server."""
    going_on = threading.Event()

    def slow():
        going_on.wait(60)
        return Page(200, b"late")

    def broken():
        raise ValueError("no figures")

    port = free_port()
    server = WebServer("127.0.0.1", port, {"/good": lambda: Page(200, b"good"), "/slow": slow, "/broken": broken})
    yield port
    going_on.set()
    server.close()


def get(port, path, **headers):
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=SECONDS_MAX) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_slow_page_and_silent_peer_do_not_block_other_requests(served):
    with socket.create_connection(("127.0.0.1", served)), socket.create_connection(("127.0.0.1", served)) as asking:
        asking.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert get(served, "/good?a=b") == (200, b"good")


def test_unknown_page_is_404_and_failing_page_is_503(served):
    assert get(served, "/bad") == (404, b"there is /good, /slow, /broken\n")
    assert get(served, "/broken") == (503, b"ValueError: no figures\n")


def test_error_for_a_port_in_use_names_the_option(served):
    with pytest.raises(BookieError, match="metrics_port"):
        WebServer("127.0.0.1", served, {})


def test_server_takes_the_next_free_port_if_allowed_several_tries(served, caplog):
    server = WebServer("127.0.0.1", served, {"/good": lambda: Page(200, b"next")}, tries=64)
    try:
        assert served < server.port < served + 64
        assert get(server.port, "/good") == (200, b"next")
        assert f"port {served} is in use" in caplog.text
    finally:
        server.close()


def test_bookie_answers_requests_for_its_advertised_name_and_refuses_other_names():
    config = BookieConfig(
        directories=("/data",), zookeeper="-", metrics_port=-1, advertised_address="bookie-1.example:3181"
    )
    with ExitStack() as stack:
        port, _ = module._answer_http(config, Asked().probes, stack)
        assert get(port, "/health", Host="bookie-1.example")[0] == 200
        assert get(port, "/health", Host=f"bookie-1.example:{port}")[0] == 200
        assert get(port, "/health", Host="bookie-2.example")[0] == 421
