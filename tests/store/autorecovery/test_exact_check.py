"""The exact check over bookies with scripted answers and metadata in memory."""

from __future__ import annotations

import pytest

from bookspark.errors import MetadataStoreError, NoSuchLedgerError
from bookspark.protocol.repair.underreplication_task import Reason
from tests.store.autorecovery.kit import Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    for ledger_id in (1, 2):
        made.close_ledger(ledger_id)
    return made


def test_bookies_with_all_entries_are_asked_once_and_not_marked(cluster: Cluster) -> None:
    report = cluster.check()
    assert (report.ledgers, report.marked, report.skipped) == (2, 0, {}) and cluster.found() == {}
    assert cluster.asked == [("a", None), ("b", None), ("c", None)], "nobody is asked twice without a reason"


def test_ranges_in_pieces_and_out_of_order_count_as_complete(cluster: Cluster) -> None:
    cluster.held["a"] = [(2, 5, 9), (1, 9, 9), (1, 0, 3), (1, 2, 8), (2, 0, 4)]
    assert cluster.check().marked == 0


def test_check_marks_a_single_missing_entry(cluster: Cluster) -> None:
    cluster.held["b"] = [(1, 0, 4), (1, 6, 9), (2, 0, 9)]
    assert cluster.check().marked == 1
    assert cluster.found() == {1: ({"b": Reason.LACKS}, "b lacks 5")}


def test_copies_arriving_before_the_second_pass_are_not_marked(cluster: Cluster) -> None:
    cluster.held["b"] = [(1, 0, 4), (2, 0, 9)]

    def arrive() -> None:
        cluster.held["b"] = [(1, 0, 7), (2, 0, 9)]

    cluster.check(meanwhile=arrive)
    assert cluster.found() == {1: ({"b": Reason.LACKS}, "b lacks 8..9")}
    cluster.held["b"] = [(1, 0, 9)]
    cluster.metadata.underreplication.done(cluster.metadata.underreplication.take(1, "x"))  # type: ignore[arg-type]

    def arrive_too() -> None:
        cluster.held["b"] = [(1, 0, 9), (2, 0, 9)]

    assert cluster.check(meanwhile=arrive_too).marked == 0 and cluster.found() == {}


def test_ledger_deleted_during_the_check_is_not_marked(cluster: Cluster) -> None:
    cluster.held["b"] = [(2, 0, 9)]
    assert cluster.check(meanwhile=lambda: cluster.metadata.delete_ledger(1)).marked == 0
    with pytest.raises(NoSuchLedgerError):
        cluster.get_ledger_metadata(1)


def test_bookie_replaced_during_the_check_is_not_marked(cluster: Cluster) -> None:
    cluster.held["b"] = [(2, 0, 9)]

    def replace() -> None:
        metadata, version = cluster.metadata.read_ledger(1)
        cluster.metadata.write_ledger(metadata.re_replicated(0, {"b": "d"}), version)

    assert cluster.check(meanwhile=replace).marked == 0


def test_bookie_without_an_answer_is_skipped_and_not_marked(cluster: Cluster) -> None:
    cluster.held["a"], cluster.held["b"] = [], [(1, 0, 9)]
    cluster.silent = {"a"}
    report = cluster.check()
    assert report.skipped == {"a": "bookie a did not answer"} and set(cluster.found()) == {2}


def test_misplaced_bookies_are_marked_as_misplaced(cluster: Cluster) -> None:
    cluster.unwanted = ("c",)
    assert cluster.check().marked == 2
    assert cluster.found()[1] == ({"c": Reason.MISPLACED}, "c misplaced")


def test_bookie_that_heals_itself_is_skipped(cluster: Cluster) -> None:
    cluster.held["a"] = []
    cluster.healing = {"a"}
    assert cluster.check().skipped == {"a": "is healing itself"} and cluster.found() == {}


def test_bookie_is_checked_again_once_its_healing_has_seen_all_ledgers(cluster: Cluster) -> None:
    cluster.held["a"] = [(2, 0, 9)]
    cluster.healing = cluster.saw_all = {"a"}
    assert cluster.check().skipped == {} and set(cluster.found()) == {1}


def test_away_bookie_is_skipped_and_lost_and_unknown_bookies_are_marked(cluster: Cluster) -> None:
    cluster.metadata.unregister_bookie("a")
    cluster.close_ledger(3, ("b", "c", "gone"))
    assert cluster.check().skipped == {"a": "is away"}
    assert set(cluster.found()) == {3}, "one that has neither registration nor cookie does not come back"
    assert cluster.check(lost=("a",)).skipped == {}
    assert {i: bookies for i, (bookies, _) in cluster.found().items()} == {
        1: {"a": Reason.LOST},
        2: {"a": Reason.LOST},
        3: {"gone": Reason.LOST},
    }


def test_check_marks_nothing_if_the_ledgers_cannot_be_listed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.held["a"] = []

    def partial() -> list[int]:
        raise MetadataStoreError("listing the ledgers: no answer")

    monkeypatch.setattr(cluster.metadata, "list_ledgers", partial)
    with pytest.raises(MetadataStoreError):
        cluster.check()
    assert cluster.found() == {}
