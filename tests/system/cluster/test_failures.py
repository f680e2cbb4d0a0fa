"""Ledgers while bookies are killed, suspended and restarted, within the guarantee of an ack quorum."""

from __future__ import annotations

import os
import threading
import time

import pytest

from bookspark import errors
from tests.awaiting import SECONDS_MAX

pytestmark = pytest.mark.usefixtures("everyone_is_back")


def read_all(bookkeeper, ledger_id):
    return [entry.payload for entry in bookkeeper.open_ledger(ledger_id).read()]


def test_acknowledged_entries_survive_kill_9_of_every_bookie(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger()
    futures = [ledger.append_async(b"%d" % i) for i in range(3000)]
    futures[1000].result(SECONDS_MAX)
    acknowledged = ledger.last_add_confirmed
    for bookie in cluster.bookies:
        bookie.kill()
    for bookie in cluster.bookies:
        bookie.start()
    payloads = read_all(bookkeeper, ledger.ledger_id)
    assert len(payloads) > acknowledged
    assert payloads == [b"%d" % i for i in range(len(payloads))]


def test_acknowledged_entries_survive_a_power_cut_of_every_bookie(bookkeeper, cluster):
    """Acks follow the sync, so cutting each log back to its synced length loses nothing."""
    ledger = bookkeeper.create_ledger(ack_quorum=3)
    futures = [ledger.append_async(b"%d" % i) for i in range(3000)]
    futures[1000].result(SECONDS_MAX)
    acknowledged = ledger.last_add_confirmed
    for bookie in cluster.bookies:
        bookie.kill()
        bookie.lose_unsynced()
    for bookie in cluster.bookies:
        bookie.start()
    payloads = read_all(bookkeeper, ledger.ledger_id)
    assert payloads[: acknowledged + 1] == [b"%d" % i for i in range(acknowledged + 1)]


def test_every_entry_that_a_killed_bookie_acked_is_readable_from_it(bookkeeper, cluster):
    bookie = cluster.bookies[0]
    identity = bookie.bookie_id
    ledger = bookkeeper.create_ledger(ack_quorum=3)  # so that each acknowledgement includes this bookie's
    ledger.append_batch([b"%d" % i for i in range(5000)])
    bookie.kill()
    bookie.start()
    assert bookie.bookie_id == identity
    held = set()
    for row in bookkeeper.list_ranges(identity, ledger.ledger_id).to_pylist():
        held.update(range(row["first_entry_id"], row["last_entry_id"] + 1))
    assert held == set(range(5000))
    others = cluster.bookies[1:]
    for other in others:
        other.kill()
    payloads = [
        entry.payload for entry in bookkeeper.open_ledger_no_recovery(ledger.ledger_id).read_unconfirmed(0, 4999)
    ]
    assert payloads == [b"%d" % i for i in range(5000)]
    for other in others:
        other.start()


def append_until_held(bookkeeper, ledger, bookie):
    """Append until ``bookie`` holds an entry, which shows that the writer has reached it again. Returns the last entry id."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        last = ledger.append(b"with")
        if last in bookkeeper.list_ranges(bookie.bookie_id, ledger.ledger_id)["last_entry_id"].to_pylist():
            return last
    raise AssertionError(f"the writer does not find {bookie.bookie_id} again")


def test_writer_continues_without_a_bookie_and_uses_it_again_when_back(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger()
    ledger.append(b"before")
    cluster.bookies[1].kill()
    assert ledger.append(b"without") == 1
    cluster.bookies[1].start()
    assert ledger.append_batch([b"with"] * 100) == range(2, 102)
    last = append_until_held(bookkeeper, ledger, cluster.bookies[1])
    cluster.bookies[0].kill()
    assert ledger.append(b"by the one that was away") == last + 1
    ledger.close()
    assert read_all(bookkeeper, ledger.ledger_id) == [
        b"before",
        b"without",
        *[b"with"] * (last - 1),
        b"by the one that was away",
    ]


def test_ledger_without_ack_quorum_or_spares_is_closed_at_last_confirmed_entry(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger()
    ledger.append(b"0")
    dead = cluster.bookies[:2]
    for bookie in dead:
        bookie.kill()
    with pytest.raises(errors.NotEnoughBookiesError, match="start more bookies") as caught:
        ledger.append(b"1")
    assert any(bookie.bookie_id in str(caught.value) for bookie in dead)
    with pytest.raises(errors.NotEnoughBookiesError):
        ledger.close()
    metadata = bookkeeper.get_ledger_metadata(ledger.ledger_id)
    assert (metadata.closed, metadata.last_entry_id, metadata.length) == (True, 0, 1)


def test_hung_appends_fail_at_the_deadline_and_name_the_silent_bookies(cluster):
    client = cluster.bookkeeper(add_timeout_seconds=4.0, answer_timeout_seconds=30.0)
    ledger = client.create_ledger()
    ledger.append(b"0")
    hung = cluster.bookies[:2]
    for bookie in hung:
        bookie.suspend()
    with pytest.raises(errors.AddTimeoutError, match=r"entries 1\.\.1 ") as caught:
        ledger.append(b"1")
    assert all(bookie.bookie_id in str(caught.value) for bookie in hung)
    with pytest.raises(errors.AddTimeoutError):
        ledger.close(timeout=1.0)
    for bookie in hung:
        bookie.resume()
    assert read_all(client, ledger.ledger_id)[0] == b"0"


def test_a_suspended_bookie_delays_no_append_and_no_recovery(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger()
    ledger.append(b"0")
    cluster.bookies[2].suspend()
    assert ledger.append(b"1") == 1
    other = cluster.bookkeeper()
    assert read_all(other, ledger.ledger_id) == [b"0", b"1"]


def test_the_fence_holds_after_all_bookies_restarted(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger()
    ledger.append(b"0")
    assert read_all(bookkeeper, ledger.ledger_id) == [b"0"]
    for bookie in cluster.bookies:
        bookie.kill()
    for bookie in cluster.bookies:
        bookie.start()
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"1")


def test_recovery_without_enough_bookies_fails_and_can_be_retried(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger()
    ledger.append(b"0")
    for bookie in cluster.bookies[:2]:
        bookie.kill()
    with pytest.raises(errors.LedgerRecoveryError, match="try again"):
        bookkeeper.open_ledger(ledger.ledger_id)
    cluster.bookies[0].start()
    assert read_all(bookkeeper, ledger.ledger_id) == [b"0"]


def test_recovery_writes_back_to_an_ack_quorum(bookkeeper, cluster):
    quiet = cluster.bookkeeper(explicit_lac_interval_seconds=3600)  # so that recovery must look for the end itself
    ledger = quiet.create_ledger(ack_quorum=2)
    cluster.bookies[0].kill()
    ledger.append_batch([b"%d" % i for i in range(100)])
    cluster.bookies[0].start()
    cluster.bookies[1].kill()
    assert read_all(bookkeeper, ledger.ledger_id) == [b"%d" % i for i in range(100)]
    cluster.bookies[2].kill()
    held = bookkeeper.list_ranges(cluster.bookies[0].bookie_id, ledger.ledger_id)
    assert held["last_entry_id"].to_pylist()[-1:] == [99], "the bookie that was away has the tail now"


def test_inherited_handle_is_read_only_in_a_forked_process(bookkeeper):
    """Spark forks its Python workers: there a client opens connections of its own (docs/architecture.md)."""
    ledger = bookkeeper.create_ledger()
    ledger.append_batch([b"a", b"b"])
    ledger.flush_last_add_confirmed()
    reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = b",".join(entry.payload for entry in reader.read())
            try:
                ledger.append(b"c")
            except errors.LedgerClosedError:
                told += b" refused"
            own = bookkeeper.create_ledger()
            told += b" %d" % own.append(b"mine")
            os.write(write_end, told)
        finally:
            os._exit(0)
    os.close(write_end)
    done = threading.Event()
    threading.Thread(target=lambda: (os.waitpid(child, 0), done.set())).start()
    assert done.wait(SECONDS_MAX)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"a,b refused 0"
    assert ledger.append(b"c") == 2
    ledger.close()
