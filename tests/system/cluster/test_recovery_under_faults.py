"""Fencing and recovery on real bookies while others hang, die or refuse, and messages are parked on the wire."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bookspark import errors
from bookspark.protocol.ledger.actions import SendAdd
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.client.network.mailbox import Mailbox
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.header import Flag, Header, Kind, Status
from tests.awaiting import SECONDS_MAX

pytestmark = pytest.mark.cluster(bookies=6)


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


@pytest.fixture
def writer(cluster):
    """A client that sends no explicit LAC, so that a recovery must look for the end itself. Its timeouts are long, so that no
    bookie is replaced because of a dropped message."""
    options = {"explicit_lac_interval_seconds": 3600.0, "answer_timeout_seconds": 60.0, "add_timeout_seconds": 600.0}
    with cluster.bookkeeper(client_name="writer", **options) as client:
        yield client


@pytest.fixture
def recoverer(cluster):
    with cluster.bookkeeper(client_name="recoverer", answer_timeout_seconds=60.0) as client:
        yield client


def payloads(count):
    return [b"%d" % i for i in range(count)]


def read_all(client, ledger_id):
    return [entry.payload for entry in client.open_ledger(ledger_id).read()]


def ensemble_of(cluster, ledger):
    return [cluster.bookie(bookie_id) for bookie_id in ledger.metadata.last_fragment.ensemble]


def append_until_it_fails(ledger, futures):
    for i in range(len(futures), 1_000_000):
        futures.append(ledger.append_async(b"%d" % i))
        if i % 50 == 0:
            futures[-1].result(SECONDS_MAX)


class TestFence:
    def test_recovery_with_a_hung_bookie_fences_the_old_writer(self, cluster, writer, recoverer):
        ledger = writer.create_ledger()
        ledger.append(b"0")
        hung = ensemble_of(cluster, ledger)[0]
        hung.suspend()
        assert read_all(recoverer, ledger.ledger_id) == [b"0"]
        with pytest.raises(errors.LedgerFencedError):
            ledger.append(b"1")
        hung.resume()
        assert read_all(recoverer, ledger.ledger_id) == [b"0"]

    def test_fence_survives_a_power_cut_of_all_bookies(self, cluster, writer, recoverer):
        ledger = writer.create_ledger()
        ledger.append(b"0")
        assert read_all(recoverer, ledger.ledger_id) == [b"0"]
        bookies = ensemble_of(cluster, ledger)
        for bookie in bookies:
            bookie.kill()
            bookie.lose_unsynced()
        for bookie in bookies:
            bookie.start()
        with pytest.raises(errors.LedgerFencedError):
            ledger.append(b"1")

    def test_wrong_password_and_open_without_recovery_do_not_fence(self, writer, recoverer):
        ledger = writer.create_ledger(password=b"secret")
        ledger.append(b"0")
        with pytest.raises(errors.UnauthorizedAccessError):
            recoverer.open_ledger(ledger.ledger_id, b"guess")
        recoverer.open_ledger_no_recovery(ledger.ledger_id, b"secret")
        assert ledger.append(b"1") == 1
        ledger.close()
        assert ledger.metadata.last_entry_id == 1


class TestRecovery:
    @pytest.mark.parametrize("count", [0, 1, 100])
    def test_recovery_restores_every_acknowledged_entry(self, writer, recoverer, count):
        ledger = writer.create_ledger()
        for payload in payloads(count):
            ledger.append_async(payload)
        if count:
            ledger.append_async(b"last").result(SECONDS_MAX)
        expected = payloads(count) + [b"last"] * bool(count)
        assert read_all(recoverer, ledger.ledger_id) == expected
        metadata = recoverer.get_ledger_metadata(ledger.ledger_id)
        assert (metadata.last_entry_id, metadata.length) == (len(expected) - 1, sum(map(len, expected)))

    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_recovery_succeeds_with_a_bookie_down_at_its_start(self, cluster, writer, recoverer, position):
        ledger = writer.create_ledger()
        ledger.append_batch(payloads(100))
        ensemble_of(cluster, ledger)[position].kill()
        assert read_all(recoverer, ledger.ledger_id) == payloads(100)

    def test_recovery_replaces_a_bookie_that_dies_during_write_back(self, cluster, writer, recoverer):
        ledger = writer.create_ledger(ack_quorum=3)
        ledger.append_batch(payloads(100))
        victim = ensemble_of(cluster, ledger)[1]
        park = cluster.wire.park(Kind.ADD, client="recoverer", bookie=victim.bookie_id, flags=Flag.RECOVERY)
        with ThreadPoolExecutor(1) as pool:
            recovery = pool.submit(read_all, recoverer, ledger.ledger_id)
            park.wait()
            assert not recovery.done(), "all three have to take what is written back"
            victim.kill()
            assert recovery.result(SECONDS_MAX) == payloads(100)
        assert victim.bookie_id not in recoverer.get_ledger_metadata(ledger.ledger_id).last_fragment.ensemble

    def test_recovery_keeps_an_entry_that_two_of_three_bookies_deny_at_aq_1(self, cluster, writer, recoverer):
        """At AQ 1 the third bookie may have acknowledged the entry alone, and here it did."""
        ledger = writer.create_ledger(ack_quorum=1)
        ledger.append_batch(payloads(10))
        without = {bookie.bookie_id for bookie in ensemble_of(cluster, ledger)[:2]}
        cluster.wire.drop(Kind.ADD, client="writer", where=lambda message: message.bookie in without)
        assert ledger.append(b"10") == 10
        read = cluster.wire.delay(0.0, Kind.READ, client="recoverer", response=True, flags=Flag.FENCE)
        assert read_all(recoverer, ledger.ledger_id) == payloads(11)
        denied = {m.bookie for m in read.seen if (m.header.status, m.header.last_entry_id) == (Status.NO_SUCH_ENTRY, 9)}
        assert without <= denied

    def test_recovery_replaces_two_bookies_that_reject_an_entry_in_the_closing_write(self, cluster, writer, recoverer):
        """The two bookies hold rotten copies of the entry, and refuse other content. Both are replaced in the one write that
        closes the ledger."""
        ledger = writer.create_ledger()
        ledger.append_batch(payloads(10))
        victims = [bookie.bookie_id for bookie in ensemble_of(cluster, ledger)[:2]]
        rotten = Entry(ledger.ledger_id, 10, 9, ledger.length + 2, b"??", bytes(4))
        batch = EntryBatch(encode_entries(Header(Kind.ADD, 0, ledger.ledger_id, 10, 10), [rotten]))
        mailbox = Mailbox(30.0)
        requests = recoverer.context.requests(ledger.metadata, b"")
        requests.recovery_add(SendAdd(tuple(victims), 10, 10, 9, [batch]), mailbox.put)
        assert [type(mailbox.take().response) for _ in victims] == [Positive, Positive]
        cluster.wire.drop(Kind.ADD, client="writer", where=lambda message: message.bookie in victims)
        acked = cluster.wire.delay(0.0, Kind.ADD, client="writer", response=True)
        ledger.append_async(b"10")
        acked.wait()
        before = recoverer.metadata.read_ledger(ledger.ledger_id).version
        added = cluster.wire.delay(0.0, Kind.ADD, client="recoverer", response=True, flags=Flag.RECOVERY)
        assert read_all(recoverer, ledger.ledger_id) == payloads(11)
        assert {m.bookie for m in added.seen if m.header.status == Status.CONFLICT} == set(victims)
        found = recoverer.metadata.read_ledger(ledger.ledger_id)
        assert not set(victims) & set(found.value.last_fragment.ensemble)
        assert found.version == before + 2, "IN_RECOVERY, then CLOSED"

    def test_recovery_replaces_two_bookies_that_die_at_an_entry_in_the_closing_write(self, cluster, writer, recoverer):
        """Both are replaced in the one write that closes the ledger (trap 2 of docs/decisions/traps.md)."""
        ledger = writer.create_ledger(ack_quorum=3)
        ledger.append_batch(payloads(10))
        before = recoverer.metadata.read_ledger(ledger.ledger_id).version
        victims = ensemble_of(cluster, ledger)[:2]
        parks = [
            cluster.wire.park(Kind.ADD, client="recoverer", bookie=victim.bookie_id, flags=Flag.RECOVERY)
            for victim in victims
        ]
        with ThreadPoolExecutor(1) as pool:
            recovery = pool.submit(read_all, recoverer, ledger.ledger_id)
            for park in parks:
                park.wait()
            for victim in victims:
                victim.kill()
            assert recovery.result(SECONDS_MAX) == payloads(10)
        found = recoverer.metadata.read_ledger(ledger.ledger_id)
        assert not {victim.bookie_id for victim in victims} & set(found.value.last_fragment.ensemble)
        assert found.version == before + 2, "IN_RECOVERY, then CLOSED"

    def test_recovery_that_fails_during_write_back_succeeds_later(self, cluster, writer, recoverer):
        ledger = writer.create_ledger(ensemble_size=6, write_quorum=6, ack_quorum=6)  # no spare is left
        ledger.append_batch(payloads(50))
        hasty = cluster.bookkeeper(client_name="hasty", answer_timeout_seconds=3.0, recovery_timeout_seconds=20.0)
        lost = cluster.wire.drop(
            Kind.ADD, client="hasty", bookie=ensemble_of(cluster, ledger)[3].bookie_id, flags=Flag.RECOVERY
        )
        with pytest.raises(errors.LedgerRecoveryError, match="try again"):
            hasty.open_ledger(ledger.ledger_id)
        assert lost.seen, "it got as far as to write back"
        assert not hasty.get_ledger_metadata(ledger.ledger_id).closed
        lost.remove()
        assert read_all(recoverer, ledger.ledger_id) == payloads(50)

    def test_ten_recoveries_during_appends_close_the_ledger_at_the_same_entry(self, cluster, writer):
        ledger = writer.create_ledger()
        futures = [ledger.append_async(b"%d" % i) for i in range(100)]
        clients = [cluster.bookkeeper() for _ in range(10)]
        with ThreadPoolExecutor(10) as pool:
            opened = [pool.submit(client.open_ledger, ledger.ledger_id) for client in clients]
            with pytest.raises(errors.LedgerFencedError):
                append_until_it_fails(ledger, futures)
            metadata = [future.result(SECONDS_MAX).metadata for future in opened]
        assert len({(one.last_entry_id, one.length) for one in metadata}) == 1
        acknowledged = sum(future.exception(SECONDS_MAX) is None for future in futures)
        expected = read_all(clients[0], ledger.ledger_id)
        assert len(expected) >= acknowledged
        assert expected == payloads(len(expected))
        for client in clients:
            client.close()

    def test_silent_bookie_does_not_delay_recovery(self, cluster, writer):
        """BookKeeper #1067. The recoverer would wait ten minutes for a response; recovery must not wait for a silent bookie."""
        recoverer = cluster.bookkeeper(client_name="patient", answer_timeout_seconds=2 * SECONDS_MAX)
        ledger = writer.create_ledger()
        ledger.append_batch(payloads(10))
        recoverer.bookie_status(cluster.bookies[0].bookie_id)
        silent = cluster.wire.drop(client="patient", bookie=ensemble_of(cluster, ledger)[2].bookie_id)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(read_all, recoverer, ledger.ledger_id).result(SECONDS_MAX) == payloads(10)
        assert silent.seen
