"""The figures of "Tweaking the BookKeeper protocol - Guaranteeing write quorum" over real bookies and a controlled wire.

The same figures over the bare machines are in ``tests/scenarios``; figure 3 is in ``test_guaranteed_protections``.
"""

from __future__ import annotations

import contextlib
import threading
from random import Random

import pytest

from bookspark import errors
from bookspark.protocol.ledger.actions import ChooseBookies
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.store.wire.header import Flag, Kind
from bookspark.testing import FaultyCluster
from tests.awaiting import await_that
from tests.system.cluster.copies import cut_power, replication_factors, start_all
from tests.system.cluster.story import SECONDS, Story


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with FaultyCluster(bookies=5, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture(autouse=True)
def healed(cluster):
    yield
    cluster.wire.heal()
    start_all(*cluster.bookies)


@pytest.fixture(scope="module")
def auditor(cluster):
    """A client that no rule affects."""
    return cluster.bookkeeper(client_name="auditor")


@pytest.fixture
def story(cluster):
    stories = []

    def begin(replication="guaranteed", **options):
        stories.append(Story(cluster, replication, **options))
        return stories[-1]

    yield begin
    for one in stories:
        one.client.close()


class TestFigures1And2:
    """The plain protocol: a series of ensemble changes leaves multiple entries at AQ."""

    def test_figure_2_top_entries_0_and_2_are_left_at_aq(self, story, auditor):
        told = story("best_effort")
        told.fails_on_the_next("b3")
        told.append()
        await_that(lambda: replication_factors(auditor, told.ledger.metadata, 2) == [2, 3])
        told.fails_on_the_next("b4")
        told.append()
        assert told.fragments == [(0, ("b1", "b2", "b3")), (1, ("b1", "b2", "b4")), (3, ("b1", "b2", "b5"))]
        await_that(lambda: replication_factors(auditor, told.ledger.metadata, 4) == [2, 3, 2, 3])
        told.ledger.close()

    def test_figure_2_bottom_all_entries_left_at_aq_is_also_a_legal_state(self, story, auditor):
        told = story("best_effort")
        for position in (2, 0, 2, 1):
            told.fails_on_the_next(told.ensemble[position])
            told.wire.heal()
        told.ledger.close()
        assert told.ledger.metadata.last_entry_id == 3
        assert replication_factors(auditor, told.ledger.metadata, 4) == [2, 2, 2, 2]


def test_figure_4_entries_from_the_first_below_wq_move_into_the_next_fragment(story, auditor):
    """The paper: "the above leaves entries 0 and 2 at WQ instead of AQ like in fig 1"."""
    told = story()
    told.fails_on_the_next("b3")
    told.append()
    told.fully_replicated(1)
    told.fails_on_the_next("b4")
    told.append()
    told.fully_replicated(3)
    assert told.fragments == [(0, ("b1", "b2", "b4")), (2, ("b1", "b2", "b5"))]
    assert replication_factors(auditor, told.ledger.metadata, 4) == [3, 3, 3, 3]
    told.ledger.close()


def test_figure_5_changes_of_pinned_bookies_are_postponed_until_e0_is_at_wq(story, auditor):
    told = story()
    with told.loses("b3"):
        told.append()
        to_b4 = told.parks_all_but("b1", "b2", "b3")
        told.cut("b3")
        await_that(lambda: told.ensemble == ("b1", "b2", "b4"))
    told.loses("b1", "b2")
    later = [told.ledger.append_async(b"e%d" % entry) for entry in (1, 2)]
    told.cut("b1", "b2")
    assert told.ensemble == ("b1", "b2", "b4"), "b1 and b2 are pinned by e0"
    to_b5 = told.parks_all_but("b1", "b2", "b3", "b4")
    told.cut("b4")
    await_that(lambda: told.ensemble == ("b1", "b2", "b5"))
    to_b5.wait()
    told.wire.drop(Kind.ADD, client="writer", where=lambda message: message.bookie != told.id_of("b5"))
    to_b4.lose()
    changes = told.changes()
    to_b5.release(1)
    fragments = told.named(await_that(lambda: next((made for made in changes if len(made) == 2), None)))
    assert fragments[0] == (0, ("b1", "b2", "b5"))
    assert fragments[1][0] == 1
    assert {"b1", "b2"}.isdisjoint(fragments[1][1]), "e0 is at WQ"
    told.client.close()
    to_b5.lose()
    told.wire.heal()
    assert all(isinstance(future.exception(), errors.BookKeeperError) for future in later if future.done())
    reader = auditor.open_ledger(told.ledger.ledger_id)
    assert [entry.payload for entry in reader.read()] == [b"e0"], "only e0 got committed, the rest did not reach AQ"
    assert replication_factors(auditor, reader.metadata, 1) == [3]


class TestTweak1:
    """Ensemble changes."""

    @pytest.mark.parametrize(("replication", "withheld"), [("best_effort", True), ("guaranteed", False)])
    def test_adds_complete_during_an_ensemble_change_only_with_guaranteed_replication(
        self, story, replication, withheld
    ):
        told = story(replication)
        told.append()
        from_store, asked, go_on = told.client.context.answer_from_store, threading.Event(), threading.Event()

        def held_up(ledger_id, action):
            if isinstance(action, ChooseBookies):
                asked.set()
                assert go_on.wait(SECONDS)
            return from_store(ledger_id, action)

        told.client.context.answer_from_store = held_up
        acks = told.wire.delay(0.0, Kind.ADD, client="writer", response=True)
        with told.loses("b3"):
            told.cut("b3")
            e1 = told.ledger.append_async(b"e1")
            assert asked.wait(SECONDS)
            acks.wait(2)
            e2 = told.ledger.append_async(b"e2")
            acks.wait(4)
        if withheld:
            with pytest.raises(TimeoutError):
                e2.result(0.3)
        else:
            assert (e1.result(SECONDS), e2.result(SECONDS)) == (1, 2)
        go_on.set()
        assert e2.result(SECONDS) == 2
        told.ledger.close()

    def test_entries_below_wq_are_kept_for_a_returning_bookie(self, story):
        """Without spares no change is possible; appends are acknowledged all the same."""
        told = story()
        told.append()
        told.fully_replicated(0)
        told.without_spares()
        told.cut("b3")
        for _ in range(5):
            told.append()
        assert told.ledger.last_add_fully_replicated == 0
        told.wire.heal()
        told.fully_replicated(5)
        assert told.fragments == [(0, ("b1", "b2", "b3"))]
        told.ledger.close()

    def test_bytes_below_wq_are_bounded(self, story):
        told = story(bytes_in_flight_max=1 << 20, sync_bytes=1 << 19, add_timeout_seconds=4.0)
        told.append()
        told.fully_replicated(0)
        told.without_spares()
        told.cut("b3")
        for _ in range(6):
            told.ledger.append(bytes(100_000))
        with pytest.raises(errors.AddTimeoutError, match="600000 bytes wait for their 3 copies; bring back"):
            told.append()
        told.wire.heal()
        # The returning bookie must first get the missed entries, which may take longer than a call may.
        await_that(lambda: [told.append()], despite=errors.AddTimeoutError)
        told.ledger.close()


class TestTweak2:
    """Closing ledgers: "only complete a close once there are no remaining pending add ops"."""

    def five_at_aq(self, told):
        """Five entries acknowledged by two bookies, without a third copy."""
        with told.loses("b3"):
            told.append()
            told.cut("b3")
        for _ in range(4):
            told.append()

    def test_close_keeps_trying_until_a_spare_bookie_starts(self, story, auditor, cluster):
        told = story()
        spares = [b for b in cluster.bookies if b.bookie_id not in told.ledger.metadata.last_fragment.ensemble]
        for bookie in spares:
            bookie.stop()
        self.five_at_aq(told)
        closing = threading.Thread(target=told.ledger.close)
        closing.start()
        closing.join(0.5)
        assert closing.is_alive()
        spares[0].start()
        closing.join(SECONDS)
        assert not closing.is_alive()
        assert told.ledger.metadata.state is LedgerState.CLOSED
        assert replication_factors(auditor, told.ledger.metadata, 5) == [3] * 5

    def test_close_that_times_out_leaves_the_ledger_open_for_recovery(self, story, auditor):
        told = story()
        told.without_spares()
        self.five_at_aq(told)
        with pytest.raises(
            errors.AddTimeoutError, match=r"all appends were acknowledged, but entries 0\.\.4 .*open it"
        ):
            told.ledger.close(timeout=0.2)
        assert auditor.get_ledger_metadata(told.ledger.ledger_id).state is LedgerState.OPEN
        told.wire.heal()
        reader = auditor.open_ledger(told.ledger.ledger_id)
        assert reader.last_add_confirmed == 4
        assert replication_factors(auditor, reader.metadata, 5) == [3] * 5

    def test_best_effort_close_leaves_entries_at_aq(self, story, auditor):
        told = story("best_effort")
        told.loses("b3")
        told.append()
        told.ledger.close()
        assert replication_factors(auditor, told.ledger.metadata, 1) == [2]


class TestTweak3:
    """Recovering ledgers: begin after the LAFR (last add fully replicated), and close once all entries are at WQ."""

    def test_lafr_survives_a_power_cut_and_recovery_reads_only_after_it(self, story, cluster):
        told = story()
        for entry in range(10):
            told.append()
            told.fully_replicated(entry)
        told.client.close()
        ensemble = told.ledger.metadata.last_fragment.ensemble
        cut_power(*(bookie for bookie in cluster.bookies if bookie.bookie_id in ensemble))
        recoverer = cluster.bookkeeper(client_name="recoverer")
        reads = told.wire.delay(0.0, Kind.READ, client="recoverer", flags=Flag.FENCE)
        assert recoverer.open_ledger(told.ledger.ledger_id).last_add_confirmed == 9
        assert min(message.request.first_entry_id for message in reads.seen) == 9, "with e9 they heard that e8 is at WQ"

    def test_recovery_brings_confirmed_entries_to_wq(self, story, auditor):
        told = story()
        told.loses("b3")
        for _ in range(5):
            told.append()
        told.client.close()
        reader = auditor.open_ledger(told.ledger.ledger_id)
        assert reader.last_add_confirmed == 4
        assert replication_factors(auditor, reader.metadata, 5) == [3] * 5

    def test_recovery_without_enough_bookies_fails_and_can_be_retried(self, story, cluster):
        told = story()
        told.loses("b3")
        for _ in range(5):
            told.append()
        told.client.close()
        away = [b for b in cluster.bookies if b.bookie_id not in (told.id_of("b1"), told.id_of("b2"))]
        for bookie in away:
            bookie.stop()
        client = cluster.bookkeeper()
        with pytest.raises(errors.LedgerRecoveryError):
            client.open_ledger(told.ledger.ledger_id)
        assert client.get_ledger_metadata(told.ledger.ledger_id).state is LedgerState.IN_RECOVERY
        away[0].start()
        reader = client.open_ledger(told.ledger.ledger_id)
        assert reader.last_add_confirmed == 4
        assert replication_factors(client, reader.metadata, 5) == [3] * 5


def test_copies_of_a_guaranteed_ledger_match_metadata_under_random_failures(story, auditor, cluster):
    """Bookies are killed and cut off at random. At each moment each entry up to the LAFR, and each entry of all fragments but
    the last, is at WQ. A moment at which a bookie can't be asked is skipped."""
    told, random = story(), Random(9)
    stop, found, blows = threading.Event(), [], ["kill", "cut"] * 4
    random.shuffle(blows)

    def look():
        while not stop.is_set():
            replicated, metadata = told.ledger.last_add_fully_replicated, told.ledger.metadata
            whole = max(replicated + 1, metadata.last_fragment.first_entry_id)
            with contextlib.suppress(errors.ReadError):
                found.append((whole, replication_factors(auditor, metadata, whole)))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for blow in blows:
            told.ledger.append_batch([b"%d" % i for i in range(50)])
            hit = random.choice(told.ensemble)
            if blow == "kill":
                cluster.bookie(told.id_of(hit)).kill()
            else:
                told.cut(hit)
            for _ in range(20):
                told.append()
            told.wire.heal()
            start_all(*cluster.bookies)
    finally:
        stop.set()
        looking.join(SECONDS)
    told.ledger.close()
    assert all(factors == [3] * whole for whole, factors in found)
    assert max(whole for whole, _ in found) > 0
    assert replication_factors(auditor, told.ledger.metadata, 560) == [3] * 560
