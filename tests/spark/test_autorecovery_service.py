"""Autorecovery run by Spark tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from bookspark import BookKeeper
from bookspark.errors import ConfigurationError
from bookspark.local import LocalCluster
from bookspark.spark.bookies.autorecovery_service import AutorecoveryService
from tests.awaiting import await_that

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]


@pytest.fixture
def bookkeeper(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with cluster.bookkeeper() as client:
        yield client


def test_spark_tasks_restore_the_copies_of_a_lost_bookie(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper
) -> None:
    ledger = bookkeeper.create_ledger()
    ledger.append(b"kept")
    ledger.close()
    lost = ledger.metadata.last_fragment.ensemble[0]
    auditors, tasks = bookkeeper.metadata.auditors, bookkeeper.metadata.underreplication
    service = AutorecoveryService(spark, cluster.zookeeper, lost_bookie_delay_seconds=0, poll_seconds=1)
    service.start()
    try:
        await_that(auditors.state)
        next(bookie for bookie in cluster.bookies if bookie.bookie_id == lost).stop()
        await_that(lambda: lost not in bookkeeper.get_ledger_metadata(ledger.ledger_id).last_fragment.ensemble)
        await_that(tasks.progress)
    finally:
        service.stop()
    await_that(lambda: auditors.auditor() is None)
    assert [entry.payload for entry in bookkeeper.open_ledger(ledger.ledger_id).read()] == [b"kept"]


def test_misspelt_options_are_refused_on_the_driver(spark: SparkSession, cluster: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match="grace_seconds"):
        AutorecoveryService(spark, cluster.zookeeper, grace_second=1)
