"""Published data-loss bugs of BookKeeper, message by message, on real bookies (``tests/scenarios`` has the machines alone)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bookspark import errors
from bookspark.protocol.ledger.ledger_metadata import Fragment
from bookspark.store.wire.header import Flag, Kind
from tests.awaiting import SECONDS_MAX

pytestmark = pytest.mark.cluster(bookies=5, gc_wait_time_seconds=0.3)


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


@pytest.fixture
def writer(cluster):
    """A writer that sends no explicit LAC, so that bookies know only the LAC in its entries. Its adds may be parked for long."""
    options = {"explicit_lac_interval_seconds": 3600.0, "answer_timeout_seconds": 60.0, "add_timeout_seconds": 600.0}
    with cluster.bookkeeper(client_name="writer", **options) as client:
        yield client


@pytest.fixture
def recoverer(cluster):
    with cluster.bookkeeper(client_name="recoverer", answer_timeout_seconds=60.0) as client:
        yield client


def test_2614_add_that_arrives_after_the_recovery_read_is_refused(cluster, writer, recoverer):
    """https://github.com/apache/bookkeeper/issues/2614: without the fence flag on recovery reads, b3 would take e0 in step 9."""
    wire = cluster.wire
    ledger = writer.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    b1, b2, b3 = ledger.metadata.last_fragment.ensemble
    # 1. The writer sends e0 to b1, b2 and b3; the messages to b1 and b3 are slow. 2. b2 stores it, its ack is slow.
    add_to_b1 = wire.park(Kind.ADD, client="writer", bookie=b1)
    add_to_b3 = wire.park(Kind.ADD, client="writer", bookie=b3)
    ack_of_b2 = wire.park(Kind.ADD, client="writer", bookie=b2, response=True)
    e0 = ledger.append_async(b"e0")
    for park in (add_to_b1, add_to_b3, ack_of_b2):
        park.wait()
    # 3. A recoverer marks the ledger IN_RECOVERY. 4. It fences b1 and b2, a coverage; the message to b3 is slow.
    fence_of_b3 = wire.park(Kind.READ_LAC, client="recoverer", bookie=b3)
    # 5. It reads e0; the request to b2 is slow. 6. b1 denies it. 7. So does b3, where e0 has not arrived.
    read_of_b2 = wire.park(Kind.READ, client="recoverer", bookie=b2)
    # 8. Two of three deny it: no ack quorum can have it. The ledger is closed as empty.
    assert recoverer.open_ledger(ledger.ledger_id).last_add_confirmed == -1
    assert fence_of_b3.parked and read_of_b2.parked
    # 9. The writer's e0 arrives at b3. 10. b2's ack arrives.
    add_to_b3.release()
    ack_of_b2.release()
    assert isinstance(e0.exception(60), errors.LedgerFencedError)
    assert ledger.last_add_confirmed == -1


def test_2615_recovery_reads_and_writes_only_the_last_fragment(cluster, writer, recoverer):
    """https://github.com/apache/bookkeeper/issues/2615: the new ensemble has no LAC. A recovery that starts at e0 would write
    old entries to it, and its failure would change an ensemble of the past."""
    ledger = writer.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    ledger.append_batch([b"%d" % i for i in range(10)])
    # e10 reaches neither bookie, both are replaced, and it does not reach the new ones either.
    old = ledger.metadata.last_fragment.ensemble
    parks = [cluster.wire.park(Kind.ADD, client="writer", entry_id=10)]
    cuts = [cluster.wire.cut(bookie, client="writer") for bookie in old]
    ledger.append_async(b"10")
    while len({message.bookie for message in parks[0].seen} - set(old)) < 2:
        parks[0].wait(len(parks[0].seen) + 1)
    assert [fragment.first_entry_id for fragment in ledger.metadata.fragments] == [0, 10]
    recovery_reads = cluster.wire.delay(0.0, Kind.READ, client="recoverer", flags=Flag.FENCE)
    write_backs = cluster.wire.delay(0.0, Kind.ADD, client="recoverer")
    reader = recoverer.open_ledger(ledger.ledger_id)
    assert {message.request.first_entry_id for message in recovery_reads.seen} == {10}
    assert not write_backs.seen
    assert [entry.payload for entry in reader.read()] == [b"%d" % i for i in range(10)]
    for cut in cuts:
        cut.mend()


def test_2615_ensemble_changes_of_an_aborted_recovery_are_never_stored(cluster, writer, recoverer):
    """A recoverer replaced b2 and b3 by two bookies that deny e1, and another recoverer believed those."""
    ledger = writer.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    futures = [ledger.append_async(b"e0"), ledger.append_async(b"e1")]
    assert [future.result(SECONDS_MAX) for future in futures] == [0, 1]
    before = ledger.metadata.fragments
    b1, b2, b3 = before[0].ensemble
    dying = cluster.bookkeeper(client_name="dying", answer_timeout_seconds=2.0)
    refused = [cluster.wire.drop(Kind.ADD, client="dying", bookie=bookie) for bookie in (b2, b3)]
    acks = cluster.wire.park(
        Kind.ADD, client="dying", response=True, where=lambda message: message.bookie not in (b1, b2, b3)
    )
    with ThreadPoolExecutor(1) as pool:
        recovery = pool.submit(dying.open_ledger, ledger.ledger_id)
        while len({message.bookie for message in acks.seen}) < 2:
            acks.wait(len(acks.seen) + 1)
        assert recoverer.get_ledger_metadata(ledger.ledger_id).fragments == before
        dying.close()
        assert recovery.exception(60) is not None
    assert all(rule.seen for rule in refused)
    cluster.wire.heal()
    reader = recoverer.open_ledger(ledger.ledger_id)
    assert [entry.payload for entry in reader.read()] == [b"e0", b"e1"]
    assert reader.metadata.fragments == (Fragment(0, (b1, b2, b3)),)


@pytest.mark.parametrize("meanwhile", ["nothing", "a restart of every bookie", "its collection"])
def test_4462_late_add_does_not_recreate_a_fenced_and_deleted_ledger(cluster, writer, recoverer, meanwhile):
    """https://github.com/apache/bookkeeper/pull/4462: the writer's first add arrives after the ledger was opened and deleted."""
    ledger = writer.create_ledger()
    ensemble = ledger.metadata.last_fragment.ensemble
    late = cluster.wire.park(Kind.ADD, client="writer")
    fences = cluster.wire.delay(0.0, Kind.READ_LAC, client="recoverer", response=True, flags=Flag.FENCE)
    append = ledger.append_async(b"0")
    late.wait(3)
    assert recoverer.open_ledger(ledger.ledger_id).last_add_confirmed == -1
    fences.wait(3)  # A recovery continues with two fenced bookies; the third would still take the add.
    recoverer.delete_ledger(ledger.ledger_id)
    if meanwhile == "a restart of every bookie":
        for bookie in cluster.bookies:
            bookie.kill()
            bookie.start()
    elif meanwhile == "its collection":
        for bookie_id in ensemble:
            recoverer.collect_now(bookie_id)
    late.release()
    assert isinstance(append.exception(60), errors.LedgerFencedError | errors.NoSuchLedgerError)
    with pytest.raises(errors.BookKeeperError):
        ledger.append(b"1")
    for bookie_id in ensemble:
        assert recoverer.list_ranges(bookie_id, ledger.ledger_id).num_rows == 0
