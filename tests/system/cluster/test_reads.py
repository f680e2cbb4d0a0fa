"""Reads over real bookies: the choice of replicas, hung replicas, and handles that outlive their bookies."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.client.network.mailbox import Mailbox
from tests.awaiting import SECONDS_MAX

pytestmark = pytest.mark.usefixtures("everyone_is_back")

DELAY_MS = 150
HUNG_SECONDS = 60.0
"""Seconds until a request to a hung bookie fails: a faster read did not wait for it."""


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with LocalCluster(bookies=6, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture(scope="module")
def patient(cluster):
    """A client that a hung bookie would block for long without speculation."""
    return cluster.bookkeeper(answer_timeout_seconds=HUNG_SECONDS, speculative_read_delay_ms=DELAY_MS)


@contextmanager
def without_speculation(client):
    """On a busy machine any replica may take longer than the delay, and another replica would be asked too."""
    context, before = client.context, client.context.config
    context.config = msgspec.structs.replace(before, speculative_read_delay_ms=0)
    try:
        yield
    finally:
        context.config = before


def ledger_of(client, count=100, **options):
    """A closed ledger of ``count`` entries, on all three bookies."""
    ledger = client.create_ledger(**{"ack_quorum": 3} | options)
    ledger.append_batch([b"%d" % i for i in range(count)])
    ledger.close()
    return ledger


def ids(entries):
    return [entry.entry_id for entry in entries]


def bookie(cluster, bookie_id):
    return next(bookie for bookie in cluster.bookies if bookie.bookie_id == bookie_id)


def ensemble_of(cluster, ledger):
    return [bookie(cluster, bookie_id) for bookie_id in ledger.metadata.last_fragment.ensemble]


class Asked:
    """The bookies that a client's reads are sent to, in order."""

    def __init__(self, client, monkeypatch):
        self.bookies = []
        connections = client.context.runtime.connections
        send = connections.send

        def noting(bookie_id, request_id, frame, *rest):
            if frame[:4] == b"BSPK" and frame[10] == 3:  # kind READ
                self.bookies.append(bookie_id)
            send(bookie_id, request_id, frame, *rest)

        monkeypatch.setattr(connections, "send", noting)


# -- choice of replicas


def test_hung_replica_delays_the_first_read_only_by_the_speculative_delay(patient, cluster, monkeypatch):
    ledger = ledger_of(patient)
    asked = Asked(patient, monkeypatch)
    reader = patient.open_ledger(ledger.ledger_id)
    with without_speculation(patient):
        assert ids(reader.read(0, 0)) == [0]
    (first,) = asked.bookies
    bookie(cluster, first).suspend()
    began = time.monotonic()
    assert ids(reader.read()) == list(range(100))
    assert DELAY_MS / 1000 <= time.monotonic() - began < HUNG_SECONDS
    asked.bookies.clear()
    with without_speculation(patient):
        for _ in range(5):
            assert ids(reader.read()) == list(range(100))
    assert first not in asked.bookies, "the handle goes on with the replica that delivered"


def test_read_without_speculation_asks_the_next_replica_after_a_failure(cluster, monkeypatch):
    client = cluster.bookkeeper(answer_timeout_seconds=3.0, speculative_read_delay_ms=0)
    ledger = ledger_of(client)
    asked = Asked(client, monkeypatch)
    reader = client.open_ledger(ledger.ledger_id)
    assert ids(reader.read(0, 0)) == [0]
    bookie(cluster, asked.bookies[0]).suspend()
    assert ids(reader.read(0, 0)) == [0]
    assert len(set(asked.bookies)) == 2
    asked.bookies.clear()
    assert ids(client.open_ledger(ledger.ledger_id).read(0, 0)) == [0]
    assert len(asked.bookies) == 1, "a handle that knows nothing of it does not ask one in quarantine first"


def test_striped_read_does_not_wait_for_a_hung_replica(patient, cluster):
    ledger = ledger_of(patient, 30, ensemble_size=4, write_quorum=2, ack_quorum=2)
    reader = patient.open_ledger(ledger.ledger_id)
    ensemble_of(cluster, ledger)[1].suspend()
    began = time.monotonic()
    assert ids(reader.read()) == list(range(30))
    assert time.monotonic() - began < HUNG_SECONDS


@pytest.mark.parametrize(("e", "wq", "requests"), [(4, 2, 3), (3, 2, 3), (6, 2, 5), (5, 4, 3), (4, 1, 4)])
def test_a_striped_ledger_is_read_in_a_few_round_trips(cluster, monkeypatch, e, wq, requests):
    client = cluster.bookkeeper(answer_timeout_seconds=HUNG_SECONDS, speculative_read_delay_ms=0)
    ledger = ledger_of(client, 500, ensemble_size=e, write_quorum=wq, ack_quorum=wq)
    asked = Asked(client, monkeypatch)
    reader = client.open_ledger(ledger.ledger_id)
    assert [(entry.entry_id, entry.payload) for entry in reader.read()] == [(i, b"%d" % i) for i in range(500)]
    assert len(asked.bookies) <= requests
    assert reader.read_batches(3, 400).read_all()["entry_id"].to_pylist() == list(range(3, 401))
    client.close()


def test_a_striped_ledger_of_several_fragments_and_answers_is_read_whole(cluster):
    client = cluster.bookkeeper()
    ledger = client.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2)
    payloads = [b"%d" % i + bytes(40_000) for i in range(300)]  # a response holds some 50
    ledger.append_batch(payloads[:150])
    ensemble_of(cluster, ledger)[2].kill()
    ledger.append_batch(payloads[150:])
    ledger.close()
    assert len(ledger.metadata.fragments) == 2
    assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == payloads


def test_reads_stick_to_one_replica_unless_sticky_reads_is_off(cluster, monkeypatch):
    for sticky, bookies in ((True, 1), (False, 3)):
        client = cluster.bookkeeper(sticky_reads=sticky, speculative_read_delay_ms=0)
        ledger = client.create_ledger(ack_quorum=3)
        ledger.append_batch([bytes(1_400_000)] * 6)  # a response holds one or two
        ledger.close()
        asked = Asked(client, monkeypatch)
        assert ids(client.open_ledger(ledger.ledger_id).read()) == list(range(6))
        assert len(asked.bookies) >= 3
        assert len(set(asked.bookies)) == bookies


def test_replica_on_this_host_is_read_first_if_configured(cluster, monkeypatch):
    client = cluster.bookkeeper(read_own_host_first=True, speculative_read_delay_ms=0)
    ledger = ledger_of(client)
    near = ledger.metadata.last_fragment.ensemble[1]
    assert len(client.context.runtime.bookies_on_this_host()) == len(cluster.bookies)
    monkeypatch.setattr(type(client.context.runtime), "bookies_on_this_host", lambda _: frozenset({near}))
    asked = Asked(client, monkeypatch)
    for rotation in range(3):
        client.context._read_rotation = rotation
        assert ids(client.open_ledger(ledger.ledger_id).read()) == list(range(100))
    assert set(asked.bookies) == {near}


def test_a_read_survives_the_loss_of_all_replicas_but_one(patient, cluster):
    ledger = ledger_of(patient)
    reader = patient.open_ledger(ledger.ledger_id)
    for each in ensemble_of(cluster, ledger)[1:]:
        each.kill()
    assert ids(reader.read()) == list(range(100))
    assert reader.read_batches().read_all()["entry_id"].to_pylist() == list(range(100))
    assert ids(reader.read_unconfirmed(40, 60)) == list(range(40, 61))


def test_unconfirmed_reads_and_lac_do_not_wait_for_a_hung_replica(patient, cluster):
    ledger = patient.create_ledger()
    ledger.append_batch([b"%d" % i for i in range(10)])
    reader = patient.open_ledger_no_recovery(ledger.ledger_id)
    ensemble_of(cluster, ledger)[0].suspend()
    began = time.monotonic()
    assert ids(reader.read_unconfirmed(0, 9)) == list(range(10))
    ledger.flush_last_add_confirmed()
    assert reader.read_last_add_confirmed() == 9
    assert time.monotonic() - began < HUNG_SECONDS


def test_hung_bookie_delays_lac_read_at_ack_quorum_1_by_speculative_delay_only(patient, cluster):
    """A coverage would need the responses of all three bookies."""
    ledger = patient.create_ledger(ack_quorum=1)
    reader = patient.open_ledger_no_recovery(ledger.ledger_id)
    ledger.append(b"0")
    ledger.flush_last_add_confirmed()
    ensemble_of(cluster, ledger)[1].suspend()
    began = time.monotonic()
    assert reader.read_last_add_confirmed() == 0
    assert DELAY_MS / 1000 <= time.monotonic() - began < HUNG_SECONDS


def test_long_poll_returns_a_short_entry_without_a_separate_read(patient, monkeypatch):
    ledger = patient.create_ledger(ack_quorum=3)
    reader = patient.open_ledger_no_recovery(ledger.ledger_id)
    asked = Asked(patient, monkeypatch)
    for i, payload in enumerate((b"short", bytes(100_000))):
        appended = threading.Timer(0.1, ledger.append, [payload])
        appended.start()
        lac, entry = reader.read_last_add_confirmed_and_entry(i, timeout=SECONDS_MAX)
        assert (lac, entry.entry_id, entry.payload) == (i, i, payload)
        appended.join()
        assert bool(asked.bookies) == bool(i), "a long one is read, as every bookie would send it"
    ledger.close()


def test_read_error_names_every_bookie_that_did_not_answer(cluster):
    client = cluster.bookkeeper(answer_timeout_seconds=3.0, speculative_read_delay_ms=50)
    ledger = ledger_of(client)
    reader = client.open_ledger(ledger.ledger_id)
    for each in ensemble_of(cluster, ledger):
        each.suspend()
    with pytest.raises(errors.ReadError, match="no answer in time") as caught:
        list(reader.read())
    assert all(each.bookie_id in str(caught.value) for each in ensemble_of(cluster, ledger))


def test_abandoned_reads_do_not_disturb_a_later_read(patient):
    ledger = patient.create_ledger()
    ledger.append_batch([bytes(700_000)] * 10)
    ledger.close()
    reader = patient.open_ledger(ledger.ledger_id)
    for _ in range(3):
        entries = reader.read()
        assert next(entries).entry_id == 0
        entries.close()
    assert ids(reader.read()) == list(range(10))


# -- handles that outlive their bookies


def copy_to(client, ledger_id, swap):
    """Do as re-replication does: copy a closed ledger's entries from each key of ``swap`` to its value, then change the
    metadata."""
    found = client.metadata.read_ledger(ledger_id)
    metadata = found.value
    requests = client.context.requests(metadata, b"")
    (fragment,) = metadata.fragments
    mailbox = Mailbox(20.0)
    batches, first = [], 0
    while first <= metadata.last_entry_id:
        requests.read(act.SendRead(fragment.ensemble[0], first, metadata.last_entry_id), mailbox.put)
        answered = mailbox.take()
        batches += answered.entries
        first = answered.last + 1
    last = metadata.last_entry_id
    requests.recovery_add(act.SendAdd(tuple(swap.values()), 0, last, last, batches), mailbox.put)
    assert all(isinstance(mailbox.take().response, Positive) for _ in swap)
    client.metadata.write_ledger(metadata.re_replicated(0, swap), found.version)


def test_handle_of_a_closed_ledger_outlives_all_its_original_bookies(cluster):
    client = cluster.bookkeeper()
    ledger = ledger_of(client)
    reader = client.open_ledger(ledger.ledger_id)
    assert ids(reader.read()) == list(range(100))
    old = ensemble_of(cluster, ledger)
    others = [each for each in cluster.bookies if each not in old]
    copy_to(client, ledger.ledger_id, {a.bookie_id: b.bookie_id for a, b in zip(old, others, strict=True)})
    for each in old:
        each.kill()
    assert ids(reader.read()) == list(range(100))
    assert set(reader.metadata.last_fragment.ensemble) == {each.bookie_id for each in others}


def test_a_tailing_handle_follows_the_writer_over_three_ensemble_changes(cluster):
    """Every original bookie is replaced; the handle learns it through its watch and continues."""
    client = cluster.bookkeeper()
    ledger = client.create_ledger(ack_quorum=2)
    ledger.append(b"0")
    reader = client.open_ledger_no_recovery(ledger.ledger_id)
    old = ensemble_of(cluster, ledger)
    count = 1
    for each in old:
        each.kill()
        deadline = time.monotonic() + SECONDS_MAX
        while each.bookie_id in ledger.metadata.last_fragment.ensemble:
            assert time.monotonic() < deadline
            count = ledger.append(b"%d" % count) + 1
    assert not set(ledger.metadata.last_fragment.ensemble) & {each.bookie_id for each in old}
    waiting = threading.Timer(0.3, ledger.append, [b"%d" % count])
    waiting.start()
    lac, entry = reader.read_last_add_confirmed_and_entry(count, timeout=SECONDS_MAX)
    assert (lac >= count, entry.payload) == (True, b"%d" % count)
    waiting.join()
    assert not set(reader.metadata.last_fragment.ensemble) & {each.bookie_id for each in old}
    assert ids(reader.read(count - 1, count)) == [count - 1, count]
    ledger.close()


def test_running_long_poll_moves_to_the_new_ensemble(cluster):
    client = cluster.bookkeeper()
    ledger = client.create_ledger(ack_quorum=3)
    ledger.append(b"0")
    reader = client.open_ledger_no_recovery(ledger.ledger_id)
    answer = []
    poll = threading.Thread(
        target=lambda: answer.append(reader.read_last_add_confirmed_and_entry(4, timeout=SECONDS_MAX))
    )
    poll.start()
    for i, each in enumerate(ensemble_of(cluster, ledger)):
        each.kill()
        assert ledger.append(b"%d" % (i + 1)) == i + 1
    assert ledger.append(b"4") == 4
    poll.join(SECONDS_MAX)
    assert [(lac, entry.payload) for lac, entry in answer] == [(4, b"4")]


def test_idle_handle_notices_the_close_through_its_watch(patient):
    ledger = patient.create_ledger()
    ledger.append(b"0")
    reader = patient.open_ledger_no_recovery(ledger.ledger_id)
    changed = threading.Event()
    told = reader._metadata_changed
    listeners = patient.context.runtime.ledger_watches._listeners[ledger.ledger_id]
    assert [listener() for listener in listeners] == [told]
    listening = type("Listening", (), {"changed": lambda self, found: changed.set()})()
    patient.context.runtime.ledger_watches.listen(ledger.ledger_id, listening.changed)
    ledger.close()
    assert changed.wait(SECONDS_MAX)
    assert reader.metadata.closed
    assert reader.last_add_confirmed == 0
    assert ledger.ledger_id not in patient.context.runtime.ledger_watches._listeners, (
        "a closed ledger is watched no more"
    )


def test_polls_of_several_handles_share_one_watch(patient, monkeypatch):
    watches = []
    watch = patient.metadata.watch_ledger
    monkeypatch.setattr(patient.metadata, "watch_ledger", lambda *a: (watches.append(a[0]), watch(*a)))
    ledger = patient.create_ledger()
    readers = [patient.open_ledger_no_recovery(ledger.ledger_id) for _ in range(3)]
    for reader in readers * 2:
        assert reader.read_last_add_confirmed_and_entry(0, timeout=0.02) == (-1, None)
    assert watches == [ledger.ledger_id]
    ledger.close()


def test_deletion_of_the_ledger_ends_a_long_poll(patient):
    ledger = patient.create_ledger()
    reader = patient.open_ledger_no_recovery(ledger.ledger_id)
    threading.Timer(0.2, patient.delete_ledger, [ledger.ledger_id]).start()
    with pytest.raises(errors.NoSuchLedgerError):
        reader.read_last_add_confirmed_and_entry(0, timeout=SECONDS_MAX)


def test_entry_of_open_ledger_is_reported_absent_only_after_reloading_metadata(patient, monkeypatch):
    ledger = patient.create_ledger()
    ledger.append(b"0")
    reader = patient.open_ledger_no_recovery(ledger.ledger_id)
    with pytest.raises(errors.NoSuchEntryError):
        list(reader.read_unconfirmed(1, 1))

    def gone(ledger_id):
        raise errors.MetadataStoreError("no answer from ZooKeeper")

    monkeypatch.setattr(patient.metadata, "read_ledger", gone)
    with pytest.raises(errors.ReadError, match="no answer from ZooKeeper"):
        list(reader.read_unconfirmed(1, 1))
    monkeypatch.undo()
    ledger.close()


def test_inherited_handle_tails_in_a_forked_process_with_its_own_watch(patient):
    ledger = patient.create_ledger()
    ledger.append(b"0")
    reader = patient.open_ledger_no_recovery(ledger.ledger_id)
    read_end, write_end = os.pipe()
    reader._learning.acquire()  # as another thread may hold it at the moment of a fork
    child = os.fork()
    if child == 0:
        signal.alarm(int(SECONDS_MAX))  # ends a child that hangs, and the test with it
        try:
            lac, entry = reader.read_last_add_confirmed_and_entry(0, timeout=SECONDS_MAX)
            os.write(write_end, b"%d %s;" % (lac, entry.payload))
            lac, entry = reader.read_last_add_confirmed_and_entry(1, timeout=SECONDS_MAX)
            os.write(write_end, b"%d %s" % (lac, str(entry).encode()))
        finally:
            os._exit(0)
    reader._learning.release()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read(4) == b"0 0;"
        ledger.close()
        assert pipe.read() == b"0 None", "the child's own watch told it of the close"
    os.waitpid(child, 0)
