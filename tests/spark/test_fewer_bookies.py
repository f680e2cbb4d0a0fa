"""A streaming query over three bookies, one of which dies and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register
from tests.awaiting import await_that
from tests.spark.test_sink_and_source import Ingest, values_of

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, zookeeper=new_chroot(), zookeeper_session_timeout_seconds=4.0) as cluster:
        yield cluster


def test_micro_batches_go_on_with_two_of_three_bookies_and_each_row_comes_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    register(spark, cluster.zookeeper)
    ingest = Ingest(spark, tmp_path, "rows")
    added: list[str] = []
    with cluster.bookkeeper() as bookkeeper:

        def sizes() -> list[int]:
            found = [bookkeeper.get_ledger_metadata(one) for one in bookkeeper.list_ledgers()]
            return [one.ensemble_size for one in found if one.custom_metadata.get("bookspark.role") == b"data"]

        def micro_batch() -> None:
            added.extend([str(len(added) + i) for i in range(10)])
            ingest.add(*added[-10:])
            query.processAllAvailable()

        query = ingest.start(processingTime="0 seconds")
        try:
            micro_batch()
            cluster.bookies[0].kill()
            await_that(lambda: len(bookkeeper.metadata.bookies()) == 2)
            micro_batch()
            query.stop()
            # The next run makes its own ledgers, over the two bookies.
            query = ingest.start(processingTime="0 seconds")
            micro_batch()
            micro_batch()
            assert sizes()[-1] == 2
            cluster.bookies[0].start()

            def goes_on_in_a_whole_ledger() -> bool:
                micro_batch()
                return sizes()[-1] == 3

            await_that(goes_on_in_a_whole_ledger)
        finally:
            query.stop()
    assert sorted(map(int, values_of(spark, "rows"))) == list(range(len(added)))
