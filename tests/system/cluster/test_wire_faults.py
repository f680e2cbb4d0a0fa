"""Faults that a test can inject into the wire of a ``FaultyCluster``."""

from __future__ import annotations

import pytest

from bookspark import errors
from bookspark.store.wire.header import Flag, Kind
from tests.awaiting import SECONDS_MAX


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


@pytest.fixture
def writer(cluster):
    with cluster.bookkeeper(
        client_name="writer", answer_timeout_seconds=SECONDS_MAX, add_timeout_seconds=600.0
    ) as client:
        yield client


def held(client, bookie, ledger):
    """Entries of a ledger that a bookie holds."""
    rows = client.list_ranges(bookie.bookie_id, ledger.ledger_id).to_pylist()
    return {i for row in rows for i in range(row["first_entry_id"], row["last_entry_id"] + 1)}


def test_wire_without_rules_delivers_every_message(writer, cluster):
    ledger = writer.create_ledger()
    payloads = [b"%d" % i * 1000 for i in range(5000)]
    ledger.append_batch(payloads)
    ledger.append(bytes(3 << 20))
    ledger.close()
    assert [entry.payload for entry in writer.open_ledger(ledger.ledger_id).read(0, 4999)] == payloads


def test_parked_request_waits_until_it_is_released(writer, cluster):
    ledger = writer.create_ledger(ack_quorum=3)
    third = cluster.bookies[2]
    park = cluster.wire.park(Kind.ADD, bookie=third.bookie_id, client="writer")
    future = ledger.append_async(b"0")
    message = park.wait()[0]
    assert (message.request.ledger_id, message.request.first_entry_id) == (ledger.ledger_id, 0)
    assert not future.done()
    assert held(writer, third, ledger) == set(), "other requests overtake it"
    park.release()
    assert future.result(SECONDS_MAX) == 0
    assert ledger.append(b"1") == 1


def test_parked_response_is_matched_by_its_request(writer, cluster):
    ledger = writer.create_ledger(ack_quorum=3)
    third = cluster.bookies[2]
    with cluster.wire.park(
        Kind.ADD, bookie=third.bookie_id, response=True, ledger_id=ledger.ledger_id, without=Flag.RECOVERY
    ) as park:
        future = ledger.append_async(b"0")
        park.wait()
        assert held(writer, third, ledger) == {0}
        assert not future.done()
    assert future.result(SECONDS_MAX) == 0, "the end of the with statement lets it go"


def test_dropped_request_is_never_answered(cluster):
    with cluster.bookkeeper(
        client_name="impatient", answer_timeout_seconds=1.0, connect_timeout_seconds=30.0
    ) as client:
        ledger = client.create_ledger(ack_quorum=3)
        lost = cluster.wire.drop(Kind.ADD, client="impatient", bookie=cluster.bookies[0].bookie_id)
        with pytest.raises((errors.AddTimeoutError, errors.NotEnoughBookiesError)):
            ledger.append(b"0")
        assert lost.seen


def test_rule_with_a_count_applies_to_that_many_messages(writer, cluster):
    ledger = writer.create_ledger(ack_quorum=3)
    slow = cluster.wire.delay(0.2, Kind.ADD, ledger_id=ledger.ledger_id, count=3)
    assert [ledger.append(b"%d" % i) for i in range(3)] == [0, 1, 2]
    assert len(slow.seen) == 3


def test_first_appends_over_new_connections_are_sent_once(cluster):
    """They were sent twice: when the connection was made, and again because the bookie was "back"."""
    adds = cluster.wire.delay(0.0, Kind.ADD, client="newcomer")
    client = cluster.bookkeeper(
        client_name="newcomer", answer_timeout_seconds=SECONDS_MAX, connect_timeout_seconds=SECONDS_MAX
    )
    ledger = client.create_ledger(ack_quorum=3)
    for future in [ledger.append_async(b"%d" % i) for i in range(20)]:
        future.result(SECONDS_MAX)
    sent = [(message.bookie, message.request.first_entry_id) for message in adds.seen]
    assert len(sent) == len(set(sent))
    ledger.close()
    client.close()


def test_duplicated_add_stores_a_single_entry(writer, cluster):
    ledger = writer.create_ledger(ack_quorum=3)
    twice = cluster.wire.duplicate(Kind.ADD, ledger_id=ledger.ledger_id)
    payloads = [b"%d" % i for i in range(100)]
    for payload in payloads:
        ledger.append(payload)
    assert len(twice.seen) >= 3
    ledger.close()
    assert [entry.payload for entry in writer.open_ledger(ledger.ledger_id).read()] == payloads


def test_cut_link_affects_only_its_client(writer, cluster):
    other = cluster.bookkeeper(client_name="other")
    bookie = cluster.bookies[1].bookie_id
    assert other.bookie_status(bookie).bookie_id == bookie
    with cluster.wire.cut(bookie, client="other"):
        with pytest.raises(errors.ReadError):
            other.bookie_status(bookie)
        assert writer.bookie_status(bookie).bookie_id == bookie
    assert other.bookie_status(bookie).bookie_id == bookie


def test_adds_of_a_closed_client_can_arrive_late(cluster):
    """As after a crash of a writer whose last packets are still in the network."""
    client = cluster.bookkeeper(client_name="dying")
    ledger = client.create_ledger()
    park = cluster.wire.park(Kind.ADD, client="dying")
    ledger.append_async(b"0")
    while len({message.bookie for message in park.seen}) < 3:
        park.wait(len(park.seen) + 1)
    client.close()
    park.release()
    witness = cluster.bookkeeper()
    for bookie in cluster.bookies:
        while held(witness, bookie, ledger) != {0}:
            pass


def test_restarted_bookie_is_reachable_behind_its_proxy(writer, cluster):
    bookie = cluster.bookies[0]
    before = bookie.address
    assert writer.bookie_status(bookie.bookie_id).pid == bookie.pid
    bookie.kill()
    bookie.start()
    assert bookie.address != before
    assert writer.bookie_status(bookie.bookie_id).pid == bookie.pid


def test_rule_that_no_message_can_match_is_refused(cluster):
    bookie = cluster.bookies[0]
    for rule in (
        lambda: cluster.wire.drop("ADDS"),
        lambda: cluster.wire.park(Kind.ADD, bookie=bookie),
        lambda: cluster.wire.cut(bookie),
    ):
        with pytest.raises(errors.InvalidArgumentError, match="can't be used"):
            rule()
    with pytest.raises(errors.BookieError, match=bookie.bookie_id):
        cluster.bookie("nobody")
