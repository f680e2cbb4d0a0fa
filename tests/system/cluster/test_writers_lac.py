"""The LAC (last add confirmed) of a writer's handle, on real bookies that know an older one."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from bookspark import LedgerType
from bookspark.errors import LedgerFencedError

SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def quiet(cluster):
    """A client that sends no explicit LAC by itself."""
    with cluster.bookkeeper(explicit_lac_interval_seconds=3600) as client:
        yield client


@pytest.fixture
def ledger(quiet):
    with quiet.create_ledger() as handle:
        yield handle


def test_every_method_of_a_writer_returns_the_same_lac(quiet, ledger):
    """last_add_confirmed returned 5, and read_last_add_confirmed() 4, the value that the bookies had received with the last
    entry."""
    for i in range(6):
        ledger.append(b"%d" % i)
    assert ledger.read_last_add_confirmed() == ledger.last_add_confirmed == ledger.last_add_synced == 5
    lac, entry = ledger.read_last_add_confirmed_and_entry(5, timeout=0.0)
    assert (lac, entry.payload) == (5, b"5")
    assert ledger.read_last_add_confirmed_and_entry(6, timeout=0.1) == (5, None)
    assert [entry.payload for entry in ledger.read()] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    reader = quiet.open_ledger_no_recovery(ledger.ledger_id)
    assert reader.read_last_add_confirmed() == 4, "what bookies know is another thing"


def test_writers_lac_is_the_same_in_a_forked_process(ledger):
    """In a fork the bookies are asked, and the entries confirmed before the fork count."""
    for i in range(6):
        ledger.append(b"%d" % i)
    ledger._pid, own = 0, ledger._pid
    assert ledger.read_last_add_confirmed() == ledger.last_add_confirmed == 5
    assert ledger.read_last_add_confirmed_and_entry(5, timeout=0.0)[0] == 5
    ledger._pid = own


def test_lac_of_a_vd_ledger_covers_synced_entries_only(quiet):
    with quiet.create_ledger(ledger_type=LedgerType.VD_JOURNAL) as ledger:
        ledger.append(b"0")
        ledger.append(b"1")
        assert ledger.read_last_add_confirmed() == ledger.last_add_confirmed
        assert ledger.sync() == 1
        assert ledger.read_last_add_confirmed() == ledger.last_add_confirmed == 1


def test_long_poll_at_the_writer_returns_the_entry_when_acknowledged(ledger):
    """The bookies would have received the LAC an hour later."""
    threading.Timer(0.2, ledger.append, [b"0"]).start()
    lac, entry = ledger.read_last_add_confirmed_and_entry(0, timeout=SECONDS_MAX)
    assert (lac, entry.payload) == (0, b"0")


def test_close_ends_a_long_poll_beyond_the_last_entry(ledger):
    ledger.append(b"0")
    threading.Timer(0.2, ledger.close).start()
    began = time.monotonic()
    assert ledger.read_last_add_confirmed_and_entry(1, timeout=10 * SECONDS_MAX) == (0, None)
    assert time.monotonic() - began < 5 * SECONDS_MAX, "it did not wait out its time"
    assert (ledger.read_last_add_confirmed(), ledger.length) == (0, 1)


def test_callback_of_an_append_can_wait_for_the_next_entry(ledger):
    answers = queue.SimpleQueue()

    def callback(future):
        answers.put("called")
        answers.put(ledger.read_last_add_confirmed_and_entry(1, timeout=SECONDS_MAX))

    ledger.append_async(b"0").add_done_callback(callback)
    assert answers.get(timeout=SECONDS_MAX) == "called"
    assert ledger.append(b"1") == 1
    lac, entry = answers.get(timeout=SECONDS_MAX)
    assert (lac, entry.payload) == (1, b"1")


@pytest.fixture
def failed(quiet):
    """A writer that ended after entry 1 was sent and before it was acknowledged."""
    ledger = quiet.create_ledger()
    ledger.append(b"zero")

    def send_and_end():
        ledger._driver.pump()
        ledger._driver.abandon(LedgerFencedError("fenced, as the test says"))

    with ledger._context.runtime.room.lock:  # as ``append_async`` does, except that the test runs the pump
        ledger._driver.next_entry_id += 1
        ledger._driver.appended += 3
        ledger._driver.outgoing.put([b"one"])
    ledger._io.submit(send_and_end)
    assert ledger._driver.ended.wait(SECONDS_MAX)
    return ledger


def test_failed_writer_takes_the_lac_of_a_recovery_by_another_client(quiet, failed):
    assert failed.last_add_confirmed == 0
    recovered = quiet.open_ledger(failed.ledger_id)
    assert recovered.last_add_confirmed == 1
    assert failed.read_last_add_confirmed() == failed.last_add_confirmed == 1
    assert failed.metadata == recovered.metadata
    assert failed.length == recovered.length == 7
    assert [entry.payload for entry in failed.read()] == [b"zero", b"one"]
    with pytest.raises(LedgerFencedError, match="as the test says"):
        failed.close()


@pytest.mark.parametrize("kept", [0, 1])
def test_long_poll_at_a_writer_ends_when_another_client_closes_the_ledger(quiet, bookkeeper, kept):
    """An idle writer does not notice that it was fenced: the poll waited until its timeout."""
    ledger = quiet.create_ledger()
    for _ in range(kept):
        ledger.append(b"0")
    threading.Timer(0.2, bookkeeper.open_ledger, [ledger.ledger_id]).start()
    began = time.monotonic()
    assert ledger.read_last_add_confirmed_and_entry(kept, timeout=10 * SECONDS_MAX) == (kept - 1, None)
    assert time.monotonic() - began < 5 * SECONDS_MAX, "it did not wait out its time"
    assert ledger.metadata.closed


def test_long_poll_at_a_failed_writer_returns_the_recovered_entry(quiet, failed):
    threading.Timer(0.2, quiet.open_ledger, [failed.ledger_id]).start()
    lac, entry = failed.read_last_add_confirmed_and_entry(1, timeout=SECONDS_MAX)
    assert (lac, entry.payload) == (1, b"one")


def test_flush_of_the_lac_reads_metadata_when_closed_and_raises_when_failed(quiet, ledger, failed):
    ledger.append(b"0")
    ledger.close()
    assert ledger.flush_last_add_confirmed() == 0, "the metadata tells it"
    with pytest.raises(LedgerFencedError, match="as the test says"):
        failed.flush_last_add_confirmed()
