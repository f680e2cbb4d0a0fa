"""The decommission of a bookie, with a test in the role of the workers."""

from __future__ import annotations

import pytest

from bookspark.errors import BookieError, EntriesNotCopiedError
from bookspark.protocol.repair.underreplication_task import Missed
from bookspark.store.autorecovery import decommission as module
from bookspark.store.autorecovery.decommission import decommission
from tests.store.autorecovery.kit import Cluster

LOST = Missed(4, 5, False, ("a",), {"a": "not reachable", "b": "I/O error", "c": "no such entry"})
AWAY = Missed(7, 7, False, ("a", "c"), {"a": "not reachable", "b": "I/O error", "c": "not reachable"})


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    made = Cluster()
    for ledger_id in (1, 2):
        made.close_ledger(ledger_id)
    made.metadata.unregister_bookie("a")
    return made


def worker(cluster: Cluster, missed: dict[int, tuple[Missed, ...]]):
    """Repairs every ledger, except those with missed entries."""

    def work(_):
        tasks = cluster.metadata.underreplication
        for ledger_id in tasks.list_tasks():
            taken = tasks.take(ledger_id, "w")
            assert taken is not None
            if ledger_id in missed:
                tasks.failed(taken, "could not be read", 0.0, missed[ledger_id])
            else:
                metadata, version = cluster.metadata.read_ledger(ledger_id)
                cluster.metadata.write_ledger(metadata.re_replicated(0, {"a": "d"}), version)
                tasks.done(taken)

    return work


def test_decommission_ends_and_names_the_entries_without_a_readable_copy(cluster: Cluster) -> None:
    """The decommission waited for its whole timeout, a day by default, and named only the ledger."""
    with pytest.raises(
        EntriesNotCopiedError, match=r"1 of 2 ledgers still name a, .*ledger 1: entries 4\.\.5 \(a: not"
    ):
        decommission(cluster, "a", timeout_seconds=3600.0, progress=worker(cluster, {1: (LOST,)}))  # type: ignore[arg-type]
    assert "a" in cluster.metadata.list_cookies(), "it may have them still"
    assert "d" in cluster.get_ledger_metadata(2).last_fragment.ensemble


def test_decommission_waits_for_entries_that_a_down_bookie_may_hold(cluster: Cluster) -> None:
    with pytest.raises(BookieError, match="Call this again to go on"):
        decommission(cluster, "a", timeout_seconds=0.05, progress=worker(cluster, {1: (LOST, AWAY)}))  # type: ignore[arg-type]


def test_decommission_ignores_failed_repair_attempts_before_its_start(cluster: Cluster) -> None:
    from bookspark.protocol.repair.underreplication_task import Mark, Reason

    cluster.metadata.delete_ledger(2)
    tasks = cluster.metadata.underreplication
    tasks.mark([Mark(1, {"a": Reason.LOST})])
    worker(cluster, {1: (LOST,)})(None)
    with pytest.raises(BookieError, match="Call this again to go on"):
        decommission(cluster, "a", timeout_seconds=0.05)  # type: ignore[arg-type]
