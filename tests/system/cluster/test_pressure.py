"""Bounds in bytes and in time: slow and hung bookies, closes that fail, clients closed early."""

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


def test_client_memory_is_bounded_beside_a_hung_bookie(cluster):
    """BookKeeper's BP-51: acknowledged entries stayed in memory, waiting for the hung bookie."""
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


def test_appends_wait_for_a_slow_bookie_and_continue_once_it_is_cut_off(cluster, monkeypatch):
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


def test_error_of_a_failed_close_has_the_unconfirmed_ids(cluster):
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


def test_close_without_waiting_fails_at_once_with_the_unconfirmed_ids(cluster):
    client = cluster.bookkeeper(answer_timeout_seconds=30.0)
    ledger = client.create_ledger()
    for bookie in cluster.bookies[:2]:
        bookie.suspend()
    ledger.append_async(b"0")
    with pytest.raises(errors.AddTimeoutError) as caught:
        ledger.close(wait=False)
    assert caught.value.unconfirmed == range(1)


def test_appends_and_closes_of_a_closed_client_fail_with_its_reason(cluster):
    """Running appends, later appends and closes each end with an error that gives the reason."""
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


def test_connections_leave_descriptors_for_a_bookies_files(new_chroot):
    """A thousand clients had the effect of a failed disk: no log could be created, and its directory was retired until a
    restart."""
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


def test_bookie_raises_its_open_file_limit_to_the_hard_limit(new_chroot):
    """A process starts with a small part of the hard limit, and each client takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
    try:
        with LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster:
            assert resource.prlimit(cluster.bookies[0].pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
