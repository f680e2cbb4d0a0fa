"""BP-14, "Relax Durability", over real bookies that sync only when a test lets a SYNC request pass.

The rules one by one, over the bare machines, are in ``tests/scenarios``.
"""

from __future__ import annotations

import pytest

from bookspark import DigestType, errors
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.store.wire.header import Kind
from bookspark.testing import FaultyCluster
from tests.awaiting import SECONDS_MAX
from tests.system.cluster.copies import cut_power, replication_factors, start_all

SECONDS = SECONDS_MAX


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with FaultyCluster(
        bookies=4, background_sync_interval_ms=3_600_000, background_sync_bytes=1 << 30, zookeeper=new_chroot()
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def healed(cluster):
    yield
    cluster.wire.heal()
    start_all(*cluster.bookies)


@pytest.fixture
def client(cluster):
    with cluster.bookkeeper(client_name="writer", answer_timeout_seconds=SECONDS, add_timeout_seconds=600.0) as client:
        yield client


@pytest.fixture(scope="module")
def other(cluster):
    """Another client, which no rule affects, and which gives bookies as much time as a loaded machine may take."""
    return cluster.bookkeeper(client_name="other", answer_timeout_seconds=SECONDS, connect_timeout_seconds=SECONDS)


def volatile(client, **options):
    return client.create_ledger(ledger_type="VD_JOURNAL", **options)


def bookie_of(cluster, bookie_id):
    return next(bookie for bookie in cluster.bookies if bookie.bookie_id == bookie_id)


def ensemble_of(cluster, ledger):
    return [bookie_of(cluster, bookie_id) for bookie_id in ledger.metadata.last_fragment.ensemble]


def payloads(reader, *range_):
    return [entry.payload for entry in reader.read(*range_)]


def numbers(stop, start=0):
    return [b"%d" % i for i in range(start, stop)]


class TestLac:
    @pytest.mark.parametrize(("ack_quorum", "lac"), [(1, 3), (2, 2), (3, 1)])
    def test_lac_of_bookies_synced_up_to_1_2_3_by_ack_quorum(self, client, cluster, ack_quorum, lac):
        ledger = volatile(client, ack_quorum=ack_quorum)
        a, b, c = ledger.metadata.last_fragment.ensemble
        parks = {name: cluster.wire.park(Kind.SYNC, client="writer", bookie=name) for name in (a, b, c)}
        ledger.append_batch(numbers(2))
        synced = ledger.sync_async()
        for entry, name in enumerate((a, b, c), start=1):
            parks[name].wait()
            with cluster.wire.delay(0.0, Kind.SYNC, bookie=name, response=True) as answers:
                parks[name].release(1)
                answers.wait()
            if entry < 3:
                ledger.append(b"%d" % (entry + 1))
        synced.result(SECONDS)
        # The responses are on their way; a round trip to each bookie ends after them.
        for name in (a, b, c):
            client.bookie_status(name)
        assert (ledger.last_add_pushed, ledger.last_add_synced, ledger.last_add_confirmed) == (3, lac, lac)

    def test_sync_that_began_before_an_add_never_covers_it(self, client, cluster):
        ledger = volatile(client)
        ledger.append(b"0")
        with cluster.wire.park(Kind.SYNC, client="writer", response=True) as done:
            synced = ledger.sync_async()
            done.wait(3)
            ledger.append(b"1")
        assert synced.result(SECONDS) == 0
        for bookie_id in ledger.metadata.last_fragment.ensemble:
            client.bookie_status(bookie_id)
        assert ledger.last_add_confirmed == 0
        assert ledger.sync() == 1

    def test_acknowledged_entry_is_not_confirmed_before_its_sync(self, client, cluster, other):
        ledger = volatile(client)
        with cluster.wire.park(Kind.SYNC, client="writer") as parked:
            ledger.append_batch(numbers(10))
            synced = ledger.sync_async()
            parked.wait(3)
            with pytest.raises(TimeoutError):
                synced.result(0.1)
            assert (ledger.last_add_confirmed, ledger.last_add_pushed) == (-1, 9)
            reader = other.open_ledger_no_recovery(ledger.ledger_id)
            with pytest.raises(errors.ReadError, match="beyond the last confirmed one"):
                reader.read(0, 9)
            unconfirmed = [entry.payload for entry in reader.read_unconfirmed(0, ledger.last_add_pushed)]
            assert unconfirmed == numbers(10)
            persistent = client.create_ledger()
            assert persistent.append_batch(numbers(100)) == range(100), (
                "PD adds on the same bookies wait for no VD sync"
            )
        assert synced.result(SECONDS) == 9


class TestSync:
    def test_sync_covers_appends_still_in_flight(self, client):
        ledger = volatile(client)
        futures = [ledger.append_async(payload) for payload in numbers(5000)]
        assert ledger.sync() == 4999
        assert all(future.done() for future in futures)

    def test_sync_without_unsynced_entries_returns_the_last_synced_id(self, client):
        ledger = volatile(client)
        assert ledger.sync() == -1
        ledger.append(b"0")
        assert [ledger.sync(), ledger.sync()] == [0, 0]

    def test_sync_of_a_pd_ledger_waits_for_the_acknowledgements(self, client):
        ledger = client.create_ledger()
        futures = [ledger.append_async(payload) for payload in numbers(100)]
        assert ledger.sync() == 99
        assert futures[-1].done()

    def test_writer_syncs_by_itself_after_sync_bytes(self, cluster):
        with cluster.bookkeeper(sync_bytes=1 << 18, bytes_in_flight_max=1 << 19) as client:
            ledger = volatile(client)
            for _ in range(40):
                ledger.append_batch([bytes(100_000)] * 2)
            assert ledger.last_add_confirmed > 70
            ledger.close()

    def test_writer_syncs_by_itself_after_sync_interval_seconds(self, cluster):
        with cluster.bookkeeper(sync_interval_seconds=0.05) as client:
            ledger = volatile(client)
            ledger.append_batch(numbers(10))
            reader = client.open_ledger_no_recovery(ledger.ledger_id)
            confirmed, entry = reader.read_last_add_confirmed_and_entry(9, timeout=SECONDS)
            assert (confirmed, entry.payload) == (9, b"9"), "nobody asked for a sync"

    def test_fenced_writer_confirms_no_further_entries(self, client, other):
        ledger = volatile(client)
        ledger.append_batch(numbers(10))
        reader = other.open_ledger(ledger.ledger_id)
        assert payloads(reader) == numbers(10)
        with pytest.raises(errors.LedgerFencedError):
            ledger.sync()
        assert ledger.last_add_confirmed == -1


class TestClose:
    def test_close_syncs_so_all_entries_survive_a_power_cut(self, client, cluster, other):
        ledger = volatile(client)
        ledger.append_batch(numbers(10))
        ledger.close()
        assert (ledger.metadata.last_entry_id, ledger.last_add_synced) == (9, 9)
        cut_power(*ensemble_of(cluster, ledger))
        assert payloads(other.open_ledger(ledger.ledger_id)) == numbers(10)

    def test_close_that_cannot_sync_in_time_leaves_the_ledger_open(self, client, cluster, other):
        ledger = volatile(client)
        ledger.append_batch(numbers(10))
        cluster.wire.park(Kind.SYNC, client="writer")
        with pytest.raises(errors.AddTimeoutError, match=r"entries 0\.\.9 are not yet synced on 2 bookies .*open it"):
            ledger.close(timeout=0.2)
        cluster.wire.heal()
        assert other.get_ledger_metadata(ledger.ledger_id).state is LedgerState.OPEN
        assert payloads(other.open_ledger(ledger.ledger_id)) == numbers(10)


class TestPowerCuts:
    def test_synced_entries_survive_a_power_cut_of_every_bookie(self, client, cluster, other):
        ledger = volatile(client)
        ledger.append_batch(numbers(10))
        ledger.sync()
        ledger.append_batch(numbers(20, 10))
        ensemble = ensemble_of(cluster, ledger)
        client.close()
        cut_power(*ensemble)
        found = payloads(other.open_ledger(ledger.ledger_id))
        assert len(found) >= 10
        assert found == numbers(len(found)), "and of what was not, perhaps a part"

    def test_running_writer_resends_entries_lost_in_power_cuts(self, client, cluster, other):
        """Every bookie loses the entries in turn. Its acks become void, because its incarnation has changed."""
        ledger = volatile(client)
        ledger.append_batch(numbers(10))
        for bookie in ensemble_of(cluster, ledger):
            cut_power(bookie)
        assert ledger.sync(SECONDS) == 9
        cut_power(*ensemble_of(cluster, ledger))
        ledger.close()
        assert payloads(other.open_ledger(ledger.ledger_id)) == numbers(10)

    @pytest.mark.parametrize("write_quorum", [3, 2])
    def test_ensemble_change_copies_acknowledged_unsynced_entries(self, client, cluster, other, write_quorum):
        """Future work in the paper, here striped and not."""
        ledger = volatile(client, write_quorum=write_quorum, ack_quorum=write_quorum)
        for payload in numbers(10):
            ledger.append(payload)
        ledger.sync()
        for payload in numbers(20, 10):
            ledger.append(payload)
        lost = ensemble_of(cluster, ledger)[0]
        cut_power(lost, start=False)
        assert ledger.append(b"20") == 20
        assert ledger.sync(SECONDS) == 20
        change = ledger.metadata.last_fragment
        assert (change.first_entry_id, lost.bookie_id in change.ensemble) == (10, False)
        cut_power(*ensemble_of(cluster, ledger))
        lost.start()
        assert min(replication_factors(other, ledger.metadata, 21)[10:]) >= ledger.metadata.ack_quorum
        ledger.close()
        assert payloads(other.open_ledger(ledger.ledger_id)) == numbers(21)

    def test_writer_without_bookies_leaves_the_ledger_open_for_recovery(self, cluster, other):
        """A soak test detected it: the writer itself closed the ledger at its last synced entry, and cut off entries that
        bookies held."""
        client = cluster.bookkeeper(client_name="deserted", answer_timeout_seconds=SECONDS)
        ledger = volatile(client)
        ledger.append_batch(numbers(10))
        for bookie in cluster.bookies:
            if bookie is not ensemble_of(cluster, ledger)[0]:
                cluster.wire.cut(bookie.bookie_id, client="deserted")
        with pytest.raises(errors.NotEnoughBookiesError, match=r"left open: entries up to 9 were acknowledged"):
            ledger.append(b"10")
        client.close()
        assert payloads(other.open_ledger(ledger.ledger_id))[:10] == numbers(10)

    def test_entry_on_a_new_bookie_counts_only_after_its_sync(self, client, cluster):
        ledger = volatile(client, ack_quorum=3)
        ledger.append_batch(numbers(10))
        ensemble = ensemble_of(cluster, ledger)
        members = {bookie.bookie_id for bookie in ensemble}
        to_new = cluster.wire.park(Kind.ADD, client="writer", where=lambda message: message.bookie not in members)
        cut_power(ensemble[0], start=False)
        synced = ledger.sync_async()
        to_new.wait()
        with pytest.raises(TimeoutError):
            synced.result(0.3)
        assert ledger.last_add_confirmed == -1
        to_new.release()
        assert synced.result(SECONDS) == 9
        ledger.close()


@pytest.mark.parametrize("digest_type", [kind for kind in DigestType if not kind.bookkeepers])
@pytest.mark.parametrize("replication", ["best_effort", "guaranteed"])
@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (4, 2, 1)])
def test_vd_ledger_works_with_every_digest_striping_and_replication(
    client, cluster, other, quorums, replication, digest_type
):
    e, wq, aq = quorums
    ledger = volatile(
        client, ensemble_size=e, write_quorum=wq, ack_quorum=aq, replication=replication, digest_type=digest_type,
        password=b"secret",
    )  # fmt: skip
    ledger.append_batch(numbers(20))
    assert ledger.sync() == 19
    ledger.append(b"20")
    ledger.close()
    reader = other.open_ledger(ledger.ledger_id, password=b"secret")
    assert payloads(reader) == numbers(21)
    if replication == "guaranteed":
        assert ledger.last_add_fully_replicated == 20
        assert replication_factors(other, reader.metadata, 21) == [wq] * 21


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (
                {"replication": "guarenteed"},
                "replication 'guarenteed' can't be used; choose one of best_effort, guaranteed",
            ),
            ({"ledger_type": "VD"}, "ledger_type 'VD' can't be used; choose one of PD_JOURNAL, VD_JOURNAL"),
            ({"write_quorum": 1, "ack_quorum": 1, "replication": "guaranteed"}, "choose a write_quorum of 2 or more"),
            ({"ensemble_size": 2000, "ledger_type": "VD_JOURNAL"}, "choose a smaller ensemble_size, or PD_JOURNAL"),
        ],
    )
    def test_create_refuses_inconsistent_options_with_the_reason(self, client, options, why):
        before = client.list_ledgers()
        with pytest.raises(errors.ConfigurationError, match=why):
            client.create_ledger(**options)
        assert client.list_ledgers() == before


def test_ledger_syncs_early_if_bytes_in_flight_max_is_below_sync_bytes(cluster):
    with cluster.bookkeeper(sync_bytes=1 << 30, bytes_in_flight_max=1 << 18) as client, volatile(client) as ledger:
        for _ in range(100):
            ledger.append_async(bytes(1 << 14))
        assert ledger.sync() == 99
