"""Bookies that refuse, die or hang while a ledger is written: replacement, quarantine and repeated adds."""

from __future__ import annotations

import pytest

from bookspark.errors import LedgerFencedError, MetadataStoreError, NotEnoughBookiesError, ReadError
from bookspark.protocol.ledger.placement import PlacementRule
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.placement_rule import write_placement
from bookspark.store.wire.header import Kind, Status
from tests.awaiting import await_that
from tests.store.client.fake_bookie import SECONDS, FakeBookie, garbage, hang_up, held, silence


def ensemble(ledger):
    return set(ledger.metadata.last_fragment.ensemble)


def three_of(cluster, **options):
    """A ledger on b1, b2 and b3, created before other bookies exist."""
    cluster.start("b1", "b2", "b3")
    return cluster.client(**options).create_ledger(3, 3, 2)


REFUSALS = {
    "I/O error": Status.IO_ERROR,
    "read-only": Status.READ_ONLY,
    "bad request": Status.BAD_REQUEST,
    "conflict": Status.CONFLICT,
    "limbo": Status.LIMBO,
    "hang up": hang_up,
    "garbage": garbage,
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bookie_that_refuses_an_append_is_replaced_and_its_successor_gets_the_entry(cluster, refusal):
    ledger = three_of(cluster)
    ledger.append(b"0")
    (spare,) = cluster.start("b4")
    cluster.bookies["b2"].answers[Kind.ADD] = REFUSALS[refusal]
    with ledger:
        assert ledger.append(b"1") == 1
        await_that(lambda: ensemble(ledger) == {"b1", "b3", "b4"})
        assert ledger.append(b"2") == 2
        await_that(lambda: 2 in spare.entries[ledger.ledger_id])
    assert len(ledger.metadata.fragments) == 2
    first = ledger.metadata.last_fragment.first_entry_id
    assert sorted(spare.entries[ledger.ledger_id]) == list(range(first, 3))
    reader = cluster.client().open_ledger(ledger.ledger_id)
    assert [entry.payload for entry in reader.read()] == [b"0", b"1", b"2"]


def test_bookie_that_does_not_answer_in_time_is_replaced(cluster):
    ledger = three_of(cluster, answer_timeout_seconds=2.0)
    cluster.start("b4")
    cluster.bookies["b2"].answers[Kind.ADD] = silence
    with ledger:
        ledger.append(b"0")
        await_that(lambda: "b2" not in ensemble(ledger))


def test_bookie_that_left_before_an_append_is_replaced(cluster):
    """The bookie gets no request, so no failed answer reveals that it is gone."""
    ledger = three_of(cluster, quarantine_seconds=0.0)
    ledger.append(b"0")
    cluster.start("b4")
    cluster.bookies["b2"].end()
    with pytest.raises(ReadError):
        cluster.clients[0].bookie_status("b2")
    with ledger:
        assert ledger.append(b"1") == 1
        await_that(lambda: ensemble(ledger) == {"b1", "b3", "b4"})


def test_appends_continue_with_an_ack_quorum_until_a_spare_bookie_exists(cluster):
    ledger = three_of(cluster)
    cluster.bookies["b2"].answers[Kind.ADD] = Status.READ_ONLY
    with ledger:
        assert [ledger.append(b"%d" % i) for i in range(3)] == [0, 1, 2]
        assert ensemble(ledger) == {"b1", "b2", "b3"}
        cluster.start("b4")
        await_that(lambda: ensemble(ledger) == {"b1", "b3", "b4"})


def test_refused_append_is_sent_again_and_counts_when_accepted(cluster):
    """Without a spare bookie, the second copy can only come from the bookie that refused."""
    ledger = three_of(cluster)
    cluster.bookies["b1"].answers[Kind.ADD] = held
    cluster.bookies["b2"].answers_once[Kind.ADD] += [Status.TOO_MANY_REQUESTS, Status.TOO_MANY_REQUESTS]
    assert ledger.append_async(b"0").result(SECONDS) == 0
    assert cluster.bookies["b2"].added() == 3 * [(0, 0)]
    cluster.bookies["b1"].release_all()
    ledger.close()


@pytest.mark.parametrize(("refusal", "replaced"), [(Status.IO_ERROR, False), (Status.READ_ONLY, True)])
def test_delayed_ensemble_change_replaces_only_read_only_bookies_at_once(cluster, refusal, replaced):
    ledger = three_of(cluster, delay_ensemble_change=True)
    cluster.start("b4", "b5")
    cluster.bookies["b2"].answers_once[Kind.ADD].append(refusal)
    with ledger:
        ledger.append(b"0")
        if replaced:
            await_that(lambda: "b2" not in ensemble(ledger))
        else:
            cluster.bookies["b2"].await_requests(Kind.ADD)
            ledger.append(b"1")
            assert ensemble(ledger) == {"b1", "b2", "b3"}
            cluster.bookies["b2"].answers[Kind.ADD] = cluster.bookies["b3"].answers[Kind.ADD] = refusal
            assert ledger.append(b"2") == 2
            assert ensemble(ledger) == {"b1", "b4", "b5"}


def test_failed_bookie_is_chosen_only_if_no_other_suffices(cluster):
    cluster.start("b1", "b2", "b3", "b4")
    client = cluster.client(quarantine_seconds=1e6)
    bad = cluster.bookies["b4"]
    bad.answers[Kind.STATUS] = Status.IO_ERROR
    with pytest.raises(Exception, match="I/O error"):
        client.bookie_status("b4")
    for _ in range(20):
        with client.create_ledger(3, 3, 2) as ledger:
            assert ensemble(ledger) == {"b1", "b2", "b3"}
    with client.create_ledger(4, 4, 3) as ledger:
        assert ensemble(ledger) == {"b1", "b2", "b3", "b4"}
    with pytest.raises(NotEnoughBookiesError, match=r"b4 .in quarantine for .* s more: I/O error"):
        client.create_ledger(5, 5, 3)


def test_writer_of_a_recovered_ledger_is_fenced_by_the_metadata(cluster):
    """The ensemble change is a compare-and-set on the ledger's record, which shows that another client closed the ledger."""
    ledger = three_of(cluster)
    ledger.append(b"0")
    cluster.start("b4", "b5")
    for bookie in cluster.bookies.values():
        bookie.fences = False
    cluster.client().open_ledger(ledger.ledger_id)
    cluster.bookies["b2"].answers[Kind.ADD] = cluster.bookies["b3"].answers[Kind.ADD] = Status.IO_ERROR
    with pytest.raises(LedgerFencedError, match="closed at entry 0 by another client"):
        ledger.append(b"1")


class FailingStore(MemoryStore):
    """A store whose first ``failures`` writes of ledger records fail."""

    failures = 0

    def another(self):
        store = super().another()
        write, left = store.write_ledger, self

        def write_ledger(metadata, version):
            if left.failures:
                left.failures -= 1
                raise MetadataStoreError("no answer from ZooKeeper")
            return write(metadata, version)

        store.write_ledger = write_ledger
        return store


def test_ensemble_change_is_made_when_the_metadata_store_answers_again(cluster):
    cluster.store = FailingStore()
    ledger = three_of(cluster)
    cluster.start("b4")
    cluster.store.failures = 2
    cluster.bookies["b1"].answers[Kind.ADD] = cluster.bookies["b2"].answers[Kind.ADD] = hang_up
    cluster.bookies["b2"].answers_once[Kind.ADD].append(FakeBookie.as_a_bookie)
    with ledger:
        assert ledger.append(b"0") == 0
        await_that(lambda: ensemble(ledger) == {"b2", "b3", "b4"})
    assert cluster.store.failures == 0


# -- choosing bookies


def test_free_space_is_queried_once_and_a_bookie_without_answer_is_still_used(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    bookies[2].answers[Kind.STATUS] = Status.IO_ERROR
    client = cluster.client(placement_by_free_space=True, quarantine_seconds=0.0)
    for _ in range(2):
        with client.create_ledger(3, 3, 2) as ledger:
            assert ensemble(ledger) == {"b1", "b2", "b3"}
    assert [len(bookie.came(Kind.STATUS)) for bookie in bookies] == [1, 1, 1]


def test_misplaced_bookies_are_reported_only_for_closed_fragments(cluster):
    cluster.start("b1", "b2", rack="r1")
    cluster.start("b3", rack="r2")
    open_one, closed_one = (cluster.client().create_ledger(2, 2, 2) for _ in range(2))
    write_placement(cluster.store, PlacementRule("rack_aware", 2))
    client = cluster.client()
    ledgers = []
    for ledger in (open_one, closed_one):
        record = cluster.store.read_ledger(ledger.ledger_id)
        ledgers.append(record.value.with_ensemble(0, ("b1", "b2")))
    assert list(client.misplaced(ledgers)) == []
    ((ledger_id, leaving),) = client.misplaced([ledgers[0], ledgers[1].in_recovery().close_at(3, 10)])
    assert ledger_id == closed_one.ledger_id
    assert len(leaving) == 1
    for ledger in (open_one, closed_one):
        ledger.close()
