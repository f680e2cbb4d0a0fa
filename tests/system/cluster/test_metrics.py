"""Prometheus metrics of a bookie."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookspark.local import LocalCluster
from bookspark.servers.daemon.metrics import metrics_page
from bookspark.support.metrics import web
from bookspark.support.metrics.tables import BOOKIE, ZOOKEEPER
from tests.awaiting import SECONDS_MAX, await_that
from tests.ports import free_port


def test_bookie_metrics_match_its_requests_and_documentation(new_chroot):
    port = free_port()
    with LocalCluster(bookies=1, metrics_port=port, zookeeper=new_chroot()) as cluster:
        bookkeeper = cluster.bookkeeper()
        ledger = bookkeeper.create_ledger(1, 1, 1)
        for _ in range(3):
            ledger.append(b"entry")
        assert len(list(bookkeeper.open_ledger(ledger.ledger_id).read())) == 3
        bookie_id = cluster.bookies[0].bookie_id
        families = scraped(port)
        samples = [sample for family in families for sample in family.samples]
        told = {sample.name: sample for sample in samples}
        assert {sample.labels["bookie_id"] for sample in samples} == {bookie_id}
        assert {family_name(family) for family in families} == {one.name for one in (*BOOKIE, *ZOOKEEPER)}
        assert {family_name(family): family.documentation for family in families} == {
            one.name: one.help for one in (*BOOKIE, *ZOOKEEPER)
        }
        for name in ("added_entries_total", "add_seconds_count", "group_adds_sum"):
            assert told[f"bookspark_bookie_{name}"].value == 3, name
        for name in ("added_bytes_total", "read_bytes_total", "group_bytes_sum", "sync_seconds_sum", "connections"):
            assert told[f"bookspark_bookie_{name}"].value > 0, name
        assert told["bookspark_bookie_read_seconds_count"].value >= 1
        assert told["bookspark_bookie_read_entries_total"].value >= 3, "the recovery reads as well"
        assert told["bookspark_bookie_fences_total"].value == 1, "the writer was shut out by the reader"
        assert told["bookspark_zookeeper_connected"].value == 1
        assert told["bookspark_zookeeper_call_seconds_count"].value > 0
        answered = {(one.labels["kind"], one.labels["status"]): one.value for one in samples if "kind" in one.labels}
        assert answered["add", "ok"] >= 3 and answered["hello", "ok"] >= 1
        status = bookkeeper.bookie_status(bookie_id)
        assert told["bookspark_bookie_ledgers"].value == status.ledgers == 1
        assert told["bookspark_bookie_log_bytes"].value == status.log_bytes > 0
        assert told["bookspark_bookie_read_only"].value == 0
        assert status.metrics_address == f"127.0.0.1:{port}"
        second = cluster.add_bookie(metrics_port=port).bookie_id
        told_of_second = bookkeeper.bookie_status(second).metrics_address
        second_port = int(told_of_second.rpartition(":")[2])
        assert port < second_port <= port + 63, "one setting is good for several bookies of a host"
        assert {one.labels["bookie_id"] for family in scraped(second_port) for one in family.samples} == {second}


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS_MAX) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def family_name(family):
    return f"{family.name}_total" if family.type == "counter" else family.name


@pytest.fixture
def pages():
    """Address of a running page server in this process."""
    port = free_port()
    page = metrics_page(lambda call: call(), lambda: ("bookie-1", {"bookspark_bookie_ledgers": 0}), dict)
    server = web.WebServer("127.0.0.1", port, {"/metrics": page})
    yield "127.0.0.1", port
    server.close()


@contextlib.contextmanager
def silent(address):
    with socket.create_connection(address, timeout=SECONDS_MAX) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(b"GET /met")
        yield one


def is_ended(connection):
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def serving():
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def test_metrics_server_runs_at_most_8_requests_of_an_address_at_once(pages, monkeypatch):
    """Once each connection had a thread."""
    monkeypatch.setattr(web, "_CONNECTION_SECONDS_MAX", 3600.0)
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(silent(pages)) for _ in range(28)]
        for one in made[:20]:
            assert is_ended(one)
        await_that(lambda: len(serving()) == 8)
    await_that(lambda: not serving())
    with urllib.request.urlopen(f"http://127.0.0.1:{pages[1]}/metrics", timeout=SECONDS_MAX) as answer:
        assert b'bookspark_bookie_ledgers{bookie_id="bookie-1"} 0.0' in answer.read()


def test_silent_connection_to_the_metrics_server_is_closed(pages, monkeypatch):
    """A silent connection kept its thread without limit."""
    monkeypatch.setattr(web, "_CONNECTION_SECONDS_MAX", 0.2)
    with silent(pages) as one:
        assert is_ended(one)
    await_that(lambda: not serving())
