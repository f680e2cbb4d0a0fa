"""Back-pressure through a writer's handle: appends wait for room or for their turn, go on, or say for what they waited."""

from __future__ import annotations

import pytest

from bookspark.errors import AddTimeoutError, ConfigurationError
from bookspark.store.client.client_config import client_config
from bookspark.store.wire.header import Kind
from tests.store.client.fake_bookie import SECONDS, held, silence

KIB = 1024


@pytest.fixture
def trio(cluster):
    return cluster.start("b1", "b2", "b3")


def test_appends_wait_while_too_much_is_kept_and_go_on_when_it_is_acknowledged(cluster, trio):
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
def test_an_append_that_gets_no_room_in_time_says_what_is_missing(cluster, trio, missing):
    ledger_type, replication, kind, silent, words = MISSING[missing]
    for bookie in trio[:silent]:
        bookie.answers[kind] = silence
    # An append waits for room twice this time, and appends without progress fail after it.
    client = cluster.client(bytes_in_flight_max=4 * KIB, sync_bytes=2 * KIB, add_timeout_seconds=3.0)
    ledger = client.create_ledger(3, 3, 2, ledger_type=ledger_type, replication=replication)
    future = ledger.append_async(bytes(5 * KIB))
    if missing != "an acknowledgement":
        assert future.result(SECONDS) == 0
        with pytest.raises(AddTimeoutError, match=f"4096 bytes wait for {words}"):
            ledger.append_async(b"1")
    else:
        with pytest.raises(AddTimeoutError, match="not acknowledged in time"):
            ledger.append_async(b"1")
    assert ledger.last_add_pushed == 0


def test_an_append_that_gets_no_turn_in_time_names_the_limits(cluster, trio):
    client = cluster.client(appends_per_second_max=1, append_bytes_per_second_max=1000, add_timeout_seconds=0.5)
    ledger = client.create_ledger()
    ledger.append_batch_async([b"x"] * 60)
    with pytest.raises(AddTimeoutError, match="limits are 1 entries and 1000 bytes a second"):
        ledger.append_async(b"1")
    assert ledger.last_add_pushed == 59


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frame_bytes": 2000, "bookie_bytes_queued_max": 1999}, "has to be at least frame_bytes .2000."),
        ({"sync_bytes": 1001, "bytes_in_flight_max": 2000}, "at most half of bytes_in_flight_max"),
    ],
)
def test_options_that_contradict_each_other_are_refused_and_the_nearest_good_ones_are_taken(options, words):
    with pytest.raises(ConfigurationError, match=words):
        client_config(**options)
    name = next(iter(options))
    assert client_config(**options | {name: options[name] - 1})
