"""Some of the forty cases of tests/spark/checkpoint_matrix.py on real Spark: each kind of ending, and each state of a log.
tests/spark/test_checkpoint_states.py has all of them, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookspark import BookKeeper, errors
from bookspark.local import LocalCluster
from bookspark.logs import delete_log, truncate_log
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.spark.connector.data_source import register
from bookspark.spark.idle_closing import IDLE_SECONDS
from bookspark.spark.process_client import kept_client
from tests.awaiting import SECONDS_MAX, await_that
from tests.spark.checkpoint_matrix import Query, play
from tests.spark.test_offload import Log

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
RUN_SECONDS_MAX = 900


_STARVED = "Python worker exited unexpectedly", "Python worker failed to connect back", "no answer in time"
"""Failures of a query on an overloaded machine. Second: Spark gives a process for a Python data source ten seconds to start.
Third: two of three bookies took five seconds for a fence, and no link was cut."""
_ATTEMPTS = 3

Result = TypeVar("Result")


def _again_if_starved(run: Callable[[], Result]) -> Result:
    """On a loaded machine, a Python worker of Spark ended in two whole runs. Its fault handler printed nothing, so it was
    probably killed by a signal. A cluster retries such a task, and Spark on one machine does not. Here the query is
    started again, and each of its rows must still be there once."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return run()
        except (PySparkException, Py4JJavaError) as error:
            if not any(one in str(error) for one in _STARVED):
                raise
    return run()


class RealSpark:
    def __init__(self, spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, folder: Path) -> None:
        self._spark, self._cluster, self._bookkeeper, self._folder = spark, cluster, bookkeeper, folder

    def run(self, query: Query) -> str | None:
        lines = self._spark.readStream
        if query.one_file_a_batch:
            lines = lines.option("maxFilesPerTrigger", 1)
        # By a pattern: with a named folder, Spark refuses files of another folder in the Spark checkpoint ("Wrong basePath").
        writer = lines.text(str(query.folder / "input*")).writeStream.format("bookspark").option("log", query.log)
        writer = writer.options(**query.options).option("checkpointLocation", str(query.checkpoint))

        def run() -> str | None:
            started = writer.trigger(availableNow=True).start()
            try:
                assert started.awaitTermination(RUN_SECONDS_MAX), "the query did not end"
            except PySparkException as error:
                if any(one in str(error) for one in _STARVED):
                    raise
                return str(error)
            return None

        return _again_if_starved(run)

    def rows(self, log: str) -> list[str]:
        rows = self._spark.read.format("bookspark").option("log", log).load()
        found = _again_if_starved(rows.selectExpr("position", "CAST(value AS STRING) AS value").collect)
        return [row.value for row in sorted(found, key=lambda row: row.position)]

    def truncate(self, log: str, row: int) -> None:
        truncate_log(self._bookkeeper, log, row, b"")

    def offload(self, log: str) -> None:
        offloaded = Log(self._spark, self._cluster, self._bookkeeper, self._folder / log)
        offloaded.name = log
        offloaded.offload(delete_after_seconds=0.0)

    def delete(self, log: str) -> None:
        delete_log(self._bookkeeper, log, b"")


@pytest.fixture(scope="module")
def bookkeeper(spark: SparkSession, cluster: LocalCluster) -> Iterator[BookKeeper]:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper
    kept_client.cache_clear()


def test_idle_workers_leave_no_ledger_of_a_query_open(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path: Path
) -> None:
    """Runs first: where a query is refused, Spark kills the workers of its other tasks, and their open ledgers stay open
    until a later writer of the log recovers them."""
    query = Query(tmp_path, "idles", one_file_a_batch=True)
    (tmp_path / "input").mkdir()
    for batch in range(4):
        query.add([f"row {batch}"])
    engine = RealSpark(spark, cluster, bookkeeper, tmp_path)
    assert engine.run(query) is None

    def left_open() -> list[object]:
        found = []
        for ledger_id in bookkeeper.list_ledgers():
            # A ledger that a committer deletes meanwhile is not left open.
            with suppress(errors.NoSuchLedgerError):
                found.append(bookkeeper.get_ledger_metadata(ledger_id))
        return [one for one in found if one.state is not LedgerState.CLOSED]

    await_that(lambda: not left_open(), IDLE_SECONDS + SECONDS_MAX, left_open)
    assert len(engine.rows(query.log)) == 4


CHOSEN = {
    "set back by 2": "as it is",
    "its own, killed between the log's commit and Spark's": "offloaded",
}
FOR_A_RELEASE = {
    "set back by 0": "truncated",
    "deleted": "as it is",
    "another query's": "deleted and made anew",
    "its own, with its source renamed": "as it is",
}


@pytest.mark.parametrize(
    ("checkpoint", "log"),
    [*CHOSEN.items(), *(pytest.param(*case, marks=pytest.mark.release) for case in FOR_A_RELEASE.items())],
)
def test_each_checkpoint_case_ends_exactly_once_or_in_a_refusal_with_the_remedy(
    spark: SparkSession, cluster: LocalCluster, bookkeeper: BookKeeper, tmp_path: Path, checkpoint: str, log: str
) -> None:
    print(play(RealSpark(spark, cluster, bookkeeper, tmp_path), tmp_path, checkpoint, log))
