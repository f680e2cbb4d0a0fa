"""Acknowledgements during an ensemble change."""

from __future__ import annotations

import threading

import pytest

from bookspark import BookKeeper, errors
from bookspark.store.wire.header import Kind
from tests.awaiting import SECONDS_MAX

pytestmark = pytest.mark.cluster(bookies=6)
_SECONDS_MAX = SECONDS_MAX


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


class Gate:
    """Holds a client's writes of ledger metadata until opened."""

    def __init__(self, client: BookKeeper) -> None:
        self.reached = threading.Semaphore(0)
        self.writes = 0
        self._opened = threading.Semaphore(0)
        store = client.metadata
        write_ledger = store.write_ledger

        def gated(metadata, version):
            self.writes += 1
            self.reached.release()
            assert self._opened.acquire(timeout=_SECONDS_MAX)
            return write_ledger(metadata, version)

        store.write_ledger = gated

    def wait(self) -> None:
        assert self.reached.acquire(timeout=_SECONDS_MAX), "no metadata write came"

    def open(self, writes: int = 1) -> None:
        self._opened.release(writes)


@pytest.fixture
def writer(cluster):
    with cluster.bookkeeper(client_name="writer", answer_timeout_seconds=30.0, add_timeout_seconds=600.0) as client:
        yield client


def read_all(client, ledger_id):
    return [entry.payload for entry in client.open_ledger(ledger_id).read()]


def test_no_append_is_acknowledged_while_an_ensemble_change_is_in_flight(cluster, writer):
    """Two of three bookies hold the entry, an ack quorum, but the metadata does not name the new ensemble yet."""
    ledger = writer.create_ledger(ack_quorum=2)
    ledger.append(b"0")
    victim, *others = ledger.metadata.last_fragment.ensemble
    gate = Gate(writer)
    acks = cluster.wire.park(Kind.ADD, client="writer", response=True, entry_id=1)
    cluster.bookie(victim).kill()
    future = ledger.append_async(b"1")
    gate.wait()
    while not {message.bookie for message in acks.seen} >= set(others):
        acks.wait(len(acks.seen) + 1)
    acks.release()
    for bookie_id in others:
        assert writer.bookie_status(bookie_id).bookie_id == bookie_id  # a later response, so the acks have arrived
    assert not future.done()
    assert ledger.last_add_confirmed == 0
    gate.open()
    assert future.result(_SECONDS_MAX) == 1
    assert gate.writes == 1
    gate.open()
    ledger.close()
    assert read_all(writer, ledger.ledger_id) == [b"0", b"1"]


def test_second_bookie_failure_during_a_change_adds_one_metadata_write(cluster, writer):
    ledger = writer.create_ledger(ack_quorum=2)
    ledger.append(b"0")
    first, second, third = ledger.metadata.last_fragment.ensemble
    gate = Gate(writer)
    acks = cluster.wire.park(Kind.ADD, client="writer", response=True, entry_id=1)
    cluster.bookie(first).kill()
    future = ledger.append_async(b"1")
    gate.wait()
    while not {message.bookie for message in acks.seen} >= {second, third}:
        acks.wait(len(acks.seen) + 1)
    cluster.bookie(second).kill()
    with pytest.raises(errors.ReadError):
        writer.bookie_status(second)  # its failure has been noticed
    acks.release()
    assert writer.bookie_status(third).bookie_id == third  # a later response, so its ack has arrived
    assert not future.done()
    gate.open(2)
    assert future.result(_SECONDS_MAX) == 1
    assert gate.writes == 2
    found = writer.get_ledger_metadata(ledger.ledger_id)
    assert not {first, second} & set(found.last_fragment.ensemble)
    assert third in found.last_fragment.ensemble
    gate.open()
    ledger.close()
    assert read_all(writer, ledger.ledger_id) == [b"0", b"1"]


def test_late_ack_of_a_replaced_bookie_does_not_count(cluster):
    """The bookie is replaced while its ack is on the wire. The entry is then on only one of the bookies that the metadata
    names."""
    writer = cluster.bookkeeper(client_name="impatient", answer_timeout_seconds=3.0)
    ledger = writer.create_ledger(ack_quorum=2)
    ledger.append(b"0")
    replaced, kept, dropped = ledger.metadata.last_fragment.ensemble
    late = cluster.wire.park(Kind.ADD, client="impatient", bookie=replaced, response=True, ledger_id=ledger.ledger_id)
    lost = cluster.wire.drop(Kind.ADD, client="impatient", bookie=dropped, ledger_id=ledger.ledger_id)
    spares = {bookie.bookie_id for bookie in cluster.bookies} - {replaced, kept, dropped}
    to_spares = cluster.wire.park(Kind.ADD, client="impatient", where=lambda message: message.bookie in spares)
    future = ledger.append_async(b"1")
    while len({message.bookie for message in to_spares.seen}) < 2:
        to_spares.wait(len(to_spares.seen) + 1)
    assert lost.seen and late.parked
    late.release()
    assert writer.bookie_status(replaced).bookie_id == replaced  # a later response, so the ack has arrived
    assert not future.done()
    to_spares.release()
    assert future.result(_SECONDS_MAX) == 1
    writer.close()
