"""Back-pressure through a writer's handle: appends wait for room, continue, or name the cause of a timeout."""

from __future__ import annotations

import pytest

from bookspark.errors import AddTimeoutError
from bookspark.store.wire.header import Kind
from tests.store.client.fake_bookie import SECONDS, held, silence

KIB = 1024


@pytest.fixture
def trio(cluster):
    return cluster.start("b1", "b2", "b3")


def test_appends_wait_for_room_and_continue_after_acknowledgements(cluster, trio):
    for bookie in trio:
        bookie.answers[Kind.ADD] = held
    ledger = cluster.client(bytes_in_flight_max=4 * KIB, sync_bytes=KIB).create_ledger()
    assert ledger.drain_async().done()
    first = ledger.append_async(bytes(5 * KIB))
    drained = ledger.drain_async()
    for bookie in trio:
        bookie.await_requests(Kind.ADD)
    assert not drained.done()
    for bookie in trio:
        bookie.release_all()
    drained.result(SECONDS)
    assert first.result(SECONDS) == 0
    assert ledger.append(b"1") == 1
    ledger.close()


MISSING = {
    "an acknowledgement": ("PD_JOURNAL", "best_effort", Kind.ADD, 3, "an acknowledgement; no bookie makes progress"),
    "a sync": ("VD_JOURNAL", "best_effort", Kind.SYNC, 3, "a sync; too few bookies make progress"),
    "copies": ("PD_JOURNAL", "guaranteed", Kind.ADD, 1, "their 3 copies; bring back the bookies of the ensemble"),
}


@pytest.mark.parametrize("missing", MISSING)
def test_append_that_gets_no_room_in_time_names_the_cause(cluster, trio, missing):
    ledger_type, replication, kind, silent, words = MISSING[missing]
    for bookie in trio[:silent]:
        bookie.answers[kind] = silence
    # An append waits for room twice as long, and appends without progress fail after this time.
    client = cluster.client(bytes_in_flight_max=4 * KIB, sync_bytes=2 * KIB, add_timeout_seconds=3.0)
    ledger = client.create_ledger(3, 3, 2, ledger_type=ledger_type, replication=replication)
    future = ledger.append_async(bytes(5 * KIB))
    if missing != "an acknowledgement":
        assert future.result(SECONDS) == 0
        with pytest.raises(AddTimeoutError, match=f"5120 bytes wait for {words}"):
            ledger.append_async(b"1")
    else:
        with pytest.raises(AddTimeoutError, match="not acknowledged in time"):
            ledger.append_async(b"1")
    assert ledger.last_add_pushed == 0
