"""Ensemble changes on real bookies, with spares."""

from __future__ import annotations

import threading
import time

import pytest

from bookspark.errors import BookKeeperError, InvalidArgumentError, RecordFullError
from bookspark.local import LocalCluster
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.store.metadata.records import ledger_room
from tests.awaiting import SECONDS_MAX, await_that

pytestmark = pytest.mark.usefixtures("everyone_is_back")


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with LocalCluster(bookies=5, zookeeper=new_chroot()) as running:
        yield running


def of_ensemble(cluster, ledger, position):
    """The bookie at this position of the ledger's last ensemble."""
    bookie_id = ledger.metadata.last_fragment.ensemble[position]
    return next(bookie for bookie in cluster.bookies if bookie.bookie_id == bookie_id)


def read_all(bookkeeper, ledger_id):
    return [entry.payload for entry in bookkeeper.open_ledger(ledger_id).read()]


def test_bookie_failure_costs_one_metadata_write_and_the_writer_continues(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger(ack_quorum=3)
    before = bookkeeper.metadata.read_ledger(ledger.ledger_id).version
    ledger.append_batch([b"%d" % i for i in range(100)])
    dead = of_ensemble(cluster, ledger, 1)
    dead.kill()
    futures = [ledger.append_async(b"%d" % i) for i in range(100, 1100)]
    assert futures[-1].result(SECONDS_MAX) == 1099
    found = bookkeeper.metadata.read_ledger(ledger.ledger_id)
    assert found.version == before + 1
    assert dead.bookie_id not in found.value.last_fragment.ensemble
    assert [fragment.first_entry_id for fragment in found.value.fragments] == [0, 100]
    ledger.close()
    assert read_all(bookkeeper, ledger.ledger_id) == [b"%d" % i for i in range(1100)]


def test_writer_continues_after_two_bookies_fail_at_once(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger(ack_quorum=2)
    ledger.append(b"0")
    for position in (0, 2):
        of_ensemble(cluster, ledger, position).kill()
    futures = [ledger.append_async(b"%d" % i) for i in range(1, 500)]
    assert futures[-1].result(SECONDS_MAX) == 499
    ledger.close()
    assert read_all(bookkeeper, ledger.ledger_id) == [b"%d" % i for i in range(500)]


def test_ensemble_change_merges_with_concurrent_re_replication(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger(ack_quorum=3)
    ledger.append_batch([b"%d" % i for i in range(100)])
    first = of_ensemble(cluster, ledger, 0)
    first.kill()
    assert ledger.append(b"100") == 100
    found = bookkeeper.metadata.read_ledger(ledger.ledger_id)
    before, last = found.value.fragments
    (spare,) = {bookie.bookie_id for bookie in cluster.bookies} - {*before.ensemble, *last.ensemble}
    bookkeeper.metadata.write_ledger(found.value.re_replicated(0, {first.bookie_id: spare}), found.version)
    of_ensemble(cluster, ledger, 1).kill()
    assert ledger.append(b"101") == 101
    fragments = bookkeeper.get_ledger_metadata(ledger.ledger_id).fragments
    assert fragments[0].ensemble == (spare, *before.ensemble[1:])
    assert [fragment.first_entry_id for fragment in fragments] == [0, 100, 101]
    assert ledger.metadata.fragments == fragments
    ledger.close()
    assert read_all(bookkeeper, ledger.ledger_id) == [b"%d" % i for i in range(102)]


def test_ledger_survives_the_failure_of_each_bookie_in_turn(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger(ack_quorum=3)
    expected = [b"first"]
    ledger.append(expected[0])
    for round_ in range(4):
        dead = of_ensemble(cluster, ledger, round_ % 3)
        dead.kill()
        for i in range(50):
            expected.append(b"%d %d" % (round_, i))
            ledger.append(expected[-1])
        dead.start()
    ledger.close()
    assert len(bookkeeper.get_ledger_metadata(ledger.ledger_id).fragments) == 5
    assert read_all(bookkeeper, ledger.ledger_id) == expected


def test_hung_bookie_is_replaced_after_the_answer_timeout(cluster):
    client = cluster.bookkeeper(answer_timeout_seconds=3.0)
    ledger = client.create_ledger(ack_quorum=3)
    ledger.append(b"0")
    hung = of_ensemble(cluster, ledger, 0)
    hung.suspend()
    assert ledger.append_async(b"1").result(SECONDS_MAX) == 1
    assert hung.bookie_id not in ledger.metadata.last_fragment.ensemble
    ledger.close()


def test_delayed_ensemble_change_waits_until_an_ack_quorum_needs_it(cluster):
    client = cluster.bookkeeper(delay_ensemble_change=True)
    ledger = client.create_ledger(ack_quorum=2)
    ledger.append(b"0")
    of_ensemble(cluster, ledger, 0).kill()
    assert ledger.append(b"1") == 1
    assert len(ledger.metadata.fragments) == 1
    of_ensemble(cluster, ledger, 1).kill()
    assert ledger.append_async(b"2").result(SECONDS_MAX) == 2
    assert len(ledger.metadata.fragments) == 2
    ledger.close()
    assert read_all(client, ledger.ledger_id) == [b"0", b"1", b"2"]


def test_ensemble_change_of_a_recovered_ledger_fences_the_writer(bookkeeper, cluster):
    from bookspark import errors

    ledger = bookkeeper.create_ledger(ack_quorum=3)
    ledger.append(b"0")
    assert read_all(bookkeeper, ledger.ledger_id) == [b"0"]
    of_ensemble(cluster, ledger, 0).kill()
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"1")


def test_spare_bookie_that_joins_later_is_used(bookkeeper, cluster):
    ledger = bookkeeper.create_ledger(ensemble_size=5, write_quorum=5, ack_quorum=4)
    ledger.append(b"0")
    dead = of_ensemble(cluster, ledger, 3)
    dead.kill()
    assert ledger.append(b"1") == 1
    spare = cluster.add_bookie()
    # The appends don't wait for the change, because an ack quorum of four exists without the spare.
    deadline, count = time.monotonic() + SECONDS_MAX, 2
    while spare.bookie_id not in ledger.metadata.last_fragment.ensemble:
        assert time.monotonic() < deadline
        assert ledger.append(b"%d" % count) == count
        count += 1
    ledger.close()
    assert read_all(bookkeeper, ledger.ledger_id) == [b"%d" % i for i in range(count)]


def test_recovery_replaces_a_killed_bookie(bookkeeper, cluster):
    """With an ack quorum of 3, write-backs need three bookies: recovery must take a spare."""
    quiet = cluster.bookkeeper(explicit_lac_interval_seconds=3600)
    ledger = quiet.create_ledger(ack_quorum=3)
    ledger.append_batch([b"%d" % i for i in range(100)])
    gone = of_ensemble(cluster, ledger, 0)
    gone.kill()
    reader = bookkeeper.open_ledger(ledger.ledger_id)
    assert [entry.payload for entry in reader.read()] == [b"%d" % i for i in range(100)]
    assert reader.metadata.closed
    assert gone.bookie_id not in reader.metadata.last_fragment.ensemble


def test_client_closed_during_an_ensemble_change_prints_no_stack_trace(cluster, monkeypatch, caplog):
    """After a kill and a close, a stack trace was printed for each of 1,500 ledgers, because a thread of the client must not
    wait for the close."""
    with cluster.bookkeeper() as own:
        ledger = own.create_ledger(ack_quorum=3)
        asked, closed, answer = threading.Event(), threading.Event(), own.context.answer_from_store

        def answer_late(*arguments):
            asked.set()
            assert closed.wait(SECONDS_MAX)
            return answer(*arguments)

        monkeypatch.setattr(own.context, "answer_from_store", answer_late)
        of_ensemble(cluster, ledger, 1).kill()
        pending = ledger.append_async(b"a")
        assert asked.wait(SECONDS_MAX)
        closing = threading.Thread(target=own.close)
        closing.start()
        await_that(lambda: own.context.closed)
        closed.set()
        closing.join(SECONDS_MAX)
    with pytest.raises(BookKeeperError, match="closed"):
        pending.result(SECONDS_MAX)
    assert [record.message for record in caplog.records if record.exc_info] == []


def test_ledger_whose_record_is_full_goes_on_and_is_closed_in_order(cluster, monkeypatch):
    """BookKeeper #611, fluss #4335: records that grew to ZooKeeper's limit could never be closed."""
    client = cluster.bookkeeper()
    with pytest.raises(InvalidArgumentError, match="custom_metadata has 749,694 bytes, and at most"):
        client.create_ledger(custom_metadata={"x": bytes(749_694)})
    ledger = client.create_ledger(2, 2, 1, custom_metadata={"x": b"a" * 1000})
    ledger.append(b"0")
    monkeypatch.setattr(ledger_room, "OPEN_BYTES_MAX", 2000)
    of_ensemble(cluster, ledger, 0).kill()
    assert [ledger.append(b"%d" % i) for i in range(1, 4)] == [1, 2, 3]
    assert len(ledger.metadata.fragments) == 1, "no room for another fragment"
    of_ensemble(cluster, ledger, 1).kill()
    with pytest.raises(RecordFullError, match=r"no room for another fragment.*go on in another one"):
        ledger.append(b"4")
    found = client.get_ledger_metadata(ledger.ledger_id)
    assert (found.state, found.last_entry_id) == (LedgerState.CLOSED, 3)
    monkeypatch.undo()
    other = client.create_ledger(2, 2, 1)
    assert other.append(b"0") == 0
    other.close()
