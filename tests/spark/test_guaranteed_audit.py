"""Copies of closed ledgers by the audit query, over the live system tables: with guaranteed write quorum, and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, Replication
from bookspark.spark.audit.runner import run_over
from bookspark.spark.connector.data_source import register
from bookspark.testing import FaultyCluster
from tests.awaiting import await_that
from tests.cluster.copies import replication_factors
from tests.cluster.story import Story

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[FaultyCluster]:
    with FaultyCluster(bookies=5, zookeeper=new_chroot()) as cluster:
        yield cluster


def figure_2(cluster: FaultyCluster, replication: str, ledger_type: str = "PD_JOURNAL") -> Story:
    """e0 to e3: the third bookie fails on e0, and the one that came for it on e2."""
    told = Story(cluster, replication, ledger_type)
    for failing in ("b3", "b4"):
        told.fails_on_the_next(failing)
        told.append()
        told.ledger.sync()
        has_its_copies(told, told.ledger.last_add_pushed)
        cluster.wire.heal()
    return told


def has_its_copies(told: Story, entry: int) -> None:
    """Wait until the entry is where it was sent to, though it was acknowledged before."""
    with told.cluster.bookkeeper() as auditor:
        await_that(lambda: replication_factors(auditor, told.ledger.metadata, entry + 1)[entry] == 3)
    if told.ledger.metadata.replication is Replication.GUARANTEED:
        told.fully_replicated(entry)


def closed_by_its_writer(told: Story) -> LedgerMetadata:
    told.ledger.close()
    told.client.close()
    return told.ledger.metadata


def closed_by_a_recoverer(told: Story) -> LedgerMetadata:
    with told.loses("b1"):
        told.append()
        told.client.close()
    with told.cluster.bookkeeper() as recoverer:
        return recoverer.open_ledger(told.ledger.ledger_id).metadata


def test_each_entry_of_a_closed_guaranteed_ledger_has_all_its_copies(
    spark: SparkSession, cluster: FaultyCluster
) -> None:
    guaranteed = [
        closed_by_its_writer(figure_2(cluster, "guaranteed")),
        closed_by_a_recoverer(figure_2(cluster, "guaranteed", "VD_JOURNAL")),
    ]
    best_effort = closed_by_its_writer(figure_2(cluster, "best_effort"))
    assert all(len(metadata.fragments) > 1 for metadata in (*guaranteed, best_effort))
    register(spark, cluster.zookeeper)
    live = {
        name: spark.read.format("bookspark").option("table", name).load().cache()
        for name in ("ledgers", "fragments", "log_commits", "index_ranges")
    }

    def histogram(*ledgers: LedgerMetadata) -> list[tuple[int, ...]]:
        """Factor, then how many entries have it by prefix, by themselves and by suffix, then in how many ledgers."""
        ids = ", ".join(str(metadata.ledger_id) for metadata in ledgers)
        tables = {name: table.where(f"ledger_id IN ({ids})") for name, table in live.items()}
        (found,) = run_over(spark, tables, ["replication_factor_histogram"])
        return list(found.rows)

    entries = sum(metadata.last_entry_id + 1 for metadata in guaranteed)
    assert histogram(*guaranteed) == [(3, entries, entries, entries, len(guaranteed))]
    # e0 and e2 are left at AQ, and close does not mend that.
    assert histogram(best_effort) == [(2, 4, 2, 0, 1), (3, 0, 2, 4, 1)]
