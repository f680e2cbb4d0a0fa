"""Readers that follow a ledger while it is written and its bookies fail."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest

from bookspark.local import LocalCluster
from tests.awaiting import SECONDS_MAX, time_passes

pytestmark = pytest.mark.cluster(bookies=6)
_SECONDS_MAX = SECONDS_MAX


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


def test_long_polls_return_every_entry_while_the_ledger_is_written(cluster):
    """Prints the time from an entry's acknowledgement until the reader has it. The last entry needs no append after it."""
    count = 200
    writer, reader = cluster.bookkeeper(), cluster.bookkeeper()
    ledger = writer.create_ledger()
    tail = reader.open_ledger_no_recovery(ledger.ledger_id)
    acknowledged: dict[int, float] = {}

    def write():
        for i in range(count):
            ledger.append(b"%d" % i)
            acknowledged[i] = time.monotonic()
            time_passes(0.005)

    writing = threading.Thread(target=write)
    writing.start()
    seen: dict[int, float] = {}
    for i in range(count):
        lac, entry = tail.read_last_add_confirmed_and_entry(i, timeout=_SECONDS_MAX)
        seen[i] = time.monotonic()
        assert lac >= i and entry is not None and entry.payload == b"%d" % i
    writing.join(_SECONDS_MAX)
    latencies = sorted(1000 * (seen[i] - acknowledged[i]) for i in range(count))
    p50, p99 = latencies[count // 2], latencies[count * 99 // 100]
    print(f"tailing: an entry is read {p50:.1f} ms after its ack (p50), {p99:.1f} ms (p99)")
    assert tail.last_add_confirmed == count - 1
    writer.close()
    reader.close()


@pytest.mark.parametrize("lost", list(combinations(range(3), 2)))
def test_ledger_stays_readable_after_the_loss_of_any_two_of_three_replicas(cluster, lost):
    client = cluster.bookkeeper()
    ledger = client.create_ledger(ack_quorum=3)
    payloads = [b"%d" % i for i in range(200)]
    ledger.append_batch(payloads)
    ledger.flush_last_add_confirmed()
    tail = client.open_ledger_no_recovery(ledger.ledger_id)
    ledger.close()
    for position in lost:
        cluster.bookie(ledger.metadata.last_fragment.ensemble[position]).kill()
    for reader in (tail, client.open_ledger(ledger.ledger_id)):
        assert [entry.payload for entry in reader.read()] == payloads
    client.close()


def test_long_polls_beyond_the_connection_limit_wait_for_their_turn(new_chroot):
    """10 of 60 long polls ended with an error. Adds of the same client must succeed meanwhile."""
    with LocalCluster(bookies=3, zookeeper=new_chroot(), requests_in_flight_max=10) as cluster:
        writer, client = cluster.bookkeeper(), cluster.bookkeeper()
        ledgers = [writer.create_ledger() for _ in range(30)]
        tails = [client.open_ledger_no_recovery(ledger.ledger_id) for ledger in ledgers]
        with ThreadPoolExecutor(len(tails)) as threads:
            told = [threads.submit(tail.read_last_add_confirmed_and_entry, 0, _SECONDS_MAX) for tail in tails]
            time_passes(1.0)
            assert not [tail for tail in told if tail.done()]
            client.create_ledger().append(b"of the client that follows")
            for ledger in ledgers:
                ledger.append(b"came")
                ledger.flush_last_add_confirmed()
            assert [tail.result(_SECONDS_MAX)[1].payload for tail in told] == [b"came"] * len(tails)
