"""What waits is bounded, in bytes and in time: slow and hung bookies, closes that can't be done, clients that end early."""

from __future__ import annotations

import resource
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from tests.awaiting import SECONDS_MAX

pytestmark = pytest.mark.usefixtures("everyone_is_back")

MIB = 1 << 20


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_hung_bookie_beside_an_ack_quorum_does_not_let_the_client_grow(cluster):
    """BookKeeper's BP-51: what is acknowledged without it went on waiting for it in memory."""
    limit = 8 * MIB
    client = cluster.bookkeeper(bookie_stall_seconds=4.0, bytes_in_flight_max=limit, sync_bytes=limit // 2)
    ledger = client.create_ledger()
    ledger.append(b"0")
    cluster.bookies[0].suspend()
    before, highest = resident_bytes(), 0
    payload = bytes(256 << 10)
    for _ in range(10):
        for future in [ledger.append_async(payload) for _ in range(40)]:
            future.result(SECONDS_MAX)
        highest = max(highest, resident_bytes() - before)
    assert highest < 50 * MIB, "100 MiB were appended"
    cluster.bookies[0].resume()
    ledger.close()
    assert client.open_ledger(ledger.ledger_id).length == 1 + 400 * len(payload)


def test_appends_wait_for_a_bookie_that_is_behind_and_go_on_when_it_is_cut_off(cluster, monkeypatch):
    client = cluster.bookkeeper(bookie_stall_seconds=1000)
    ledger = client.create_ledger()
    ledger.append(b"0")
    behind = threading.Event()
    asked = threading.Event()
    behind.set()

    def any_is_behind(bookie_ids):
        asked.set()
        return behind.is_set()

    monkeypatch.setattr(client.context.runtime.connections, "any_is_behind", any_is_behind)
    future = ledger.append_async(b"1")
    assert asked.wait(SECONDS_MAX)
    assert not future.done()
    behind.clear()
    assert future.result(SECONDS_MAX) == 1
    ledger.close()


def test_a_close_that_fails_tells_which_ids_were_not_confirmed(cluster):
    client = cluster.bookkeeper(answer_timeout_seconds=600.0, add_timeout_seconds=600.0)
    ledger = client.create_ledger()
    ledger.append(b"0")
    for bookie in cluster.bookies[:2]:
        bookie.suspend()
    futures = [ledger.append_async(b"%d" % i) for i in range(1, 4)]
    began = time.monotonic()
    with pytest.raises(errors.AddTimeoutError) as caught:
        ledger.close(timeout=0.5)
    assert time.monotonic() - began < 300, "it is the time of the close that counts, and not that of an append"
    assert caught.value.unconfirmed == range(1, 4)
    assert all(isinstance(future.exception(1), errors.AddTimeoutError) for future in futures)
    for bookie in cluster.bookies[:2]:
        bookie.resume()
    assert client.open_ledger(ledger.ledger_id).last_add_confirmed in range(4)


def test_a_close_that_does_not_wait_returns_at_once(cluster):
    client = cluster.bookkeeper(answer_timeout_seconds=30.0)
    ledger = client.create_ledger()
    for bookie in cluster.bookies[:2]:
        bookie.suspend()
    ledger.append_async(b"0")
    with pytest.raises(errors.AddTimeoutError) as caught:
        ledger.close(wait=False)
    assert caught.value.unconfirmed == range(1)


def test_nobody_waits_for_ever_on_a_client_that_was_closed(cluster):
    """Appends that were under way, those that come later, and closes: each ends with an error that says so."""
    client = cluster.bookkeeper(answer_timeout_seconds=30.0)
    ledger, idle, closed = (client.create_ledger() for _ in range(3))
    closed.close()
    for bookie in cluster.bookies[:2]:
        bookie.suspend()
    future = ledger.append_async(b"0")
    client.close()
    with pytest.raises(errors.LedgerClosedError, match="the client was closed"):
        future.result(SECONDS_MAX)
    with pytest.raises(errors.LedgerClosedError, match="the client was closed"):
        idle.append(b"0")
    for each, unconfirmed in ((ledger, range(1)), (idle, range(0))):
        with pytest.raises(errors.LedgerClosedError, match="the client was closed before the ledger") as caught:
            each.close()
        assert caught.value.unconfirmed == unconfirmed
    closed.close()
    for bookie in cluster.bookies[:2]:
        bookie.resume()
    assert cluster.bookkeeper().open_ledger(ledger.ledger_id).last_add_confirmed in (-1, 0)


def test_connections_do_not_take_the_descriptors_that_a_bookies_files_need(new_chroot):
    """A thousand clients were as good as a failed disk: no log could be begun, and its directory was retired until a restart."""
    with (
        LocalCluster(bookies=1, entry_log_bytes_max=1 << 16, zookeeper=new_chroot()) as cluster,
        ExitStack() as connected,
    ):
        bookie, client = cluster.bookies[0], cluster.bookkeeper()
        ledger = client.create_ledger(1, 1, 1)
        ledger.append(b"0")
        resource.prlimit(bookie.pid, resource.RLIMIT_NOFILE, (100, 100))
        host, _, port = bookie.address.rpartition(":")
        for _ in range(200):
            connected.enter_context(socket.create_connection((host, int(port)), 60))
        for _ in range(4):
            ledger.append(bytes(1 << 16))
        ledger.close()
        with cluster.bookkeeper() as late:
            assert late.bookie_status(bookie.bookie_id).ledgers == 1, "the silent ones make room"
        assert not client.bookie_status(bookie.bookie_id).read_only
        connected.close()
        assert cluster.bookkeeper().open_ledger(ledger.ledger_id).last_add_confirmed == 4


def test_a_bookie_may_open_as_many_files_as_the_system_lets_it(new_chroot):
    """By default a process begins with a small part of that, and each client takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    try:
        with LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster:
            assert resource.prlimit(cluster.bookies[0].pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
