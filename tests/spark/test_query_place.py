"""A streaming query that reads a log publishes its name and progress; its lag is known while it runs and when it does not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry
from bookspark.logs.readers import lag
from bookspark.logs.readers.lag import ReaderLag, readers_of
from bookspark.protocol.logs.reader_record import STALE_MS, ReaderKind, ReaderState
from bookspark.spark.connector.data_source import register
from bookspark.spark.connector.query_place import _name_in
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that
from tests.spark.test_stream_source import write

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: SparkSession, cluster: LocalCluster) -> None:
    register(spark, cluster.zookeeper)


@pytest.fixture(scope="module")
def bookkeeper(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


@pytest.mark.acceptance
def test_query_is_named_and_its_lag_is_known_while_it_runs_and_afterwards(
    spark: SparkSession, tmp_path: Path, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, name = f"log-{uuid.uuid4().hex[:8]}", f"sums_{uuid.uuid4().hex[:8]}"

    def start(**trigger: object) -> StreamingQuery:
        rows = spark.readStream.format("bookspark").option("log", log).load()
        writer = rows.writeStream.format("noop").queryName(name).option("checkpointLocation", str(tmp_path))
        return writer.trigger(**(trigger or {"processingTime": "1 second"})).start()  # type: ignore[arg-type]

    def reader(where: Callable[[ReaderLag], object]) -> ReaderLag:
        def found() -> ReaderLag | None:
            return next((one for one in readers_of(bookkeeper, log) if where(one)), None)

        result = await_that(found, what=lambda: readers_of(bookkeeper, log))
        assert result is not None
        return result

    write(spark, log, 0, 9)
    query = start()
    try:
        seen = reader(lambda one: one.reader and one.lag_rows == 0)
        assert (seen.kind, seen.reader, seen.name, seen.title) == (ReaderKind.SPARK, query.id, name, name)
        assert (seen.state, seen.lanes, seen.lag_seconds) == (ReaderState.LIVE, {0: 10}, 0)
        write(spark, log, 10, 29)
        reader(lambda one: one.lanes == {0: 30} and one.lag_rows == 0)
    finally:
        query.stop()
    write(spark, log, 30, 34)
    last = reader(lambda one: True)
    # Its driver reports nothing more, and its lag is known.
    assert (last.lag_rows, last.lanes) == (5, {0: 30}) and last.lag_seconds is not None
    with monkeypatch.context() as later:
        later.setattr(lag, "learn_time", lambda _: last.heard_ms + STALE_MS + 1)
        assert [(one.title, one.state, one.lag_rows) for one in readers_of(bookkeeper, log)] == [
            (name, ReaderState.STALE, 5)
        ]
    query = start(availableNow=True)
    assert query.awaitTermination(600)
    # The last position of a query that ends by itself is published: the driver reports nothing later. A task may still be
    # reporting.
    assert {0: 35} in [one.lanes for one in readers_of(bookkeeper, log)]
    # A single reader, of the latest run: it deletes the earlier record after it has written its own.
    again = reader(lambda one: one.reader and one.lag_rows == 0)
    assert again.key != last.key and again.since_ms > last.since_ms
    await_that(lambda: [one.key for one in readers_of(bookkeeper, log)] == [again.key])


def test_scheduled_query_that_ended_by_itself_is_closed_and_no_alarm(
    spark: SparkSession, tmp_path: Path, cluster: LocalCluster, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shown as stale, and fired BooksparkReaderGone before its next run."""
    log, name = f"log-{uuid.uuid4().hex[:8]}", f"nightly_{uuid.uuid4().hex[:8]}"

    def run() -> None:
        rows = spark.readStream.format("bookspark").option("log", log).load()
        writer = rows.writeStream.format("noop").queryName(name).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(600)

    def seen() -> list[tuple[str, ReaderState, int | None, bool]]:
        return [(one.title, one.state, one.lag_rows, one.gone) for one in readers_of(bookkeeper, log)]

    write(spark, log, 0, 9)
    run()
    # The task that adds the query's name may still be at it.
    await_that(lambda: seen() == [(name, ReaderState.CLOSED, 0, False)], what=seen)
    run()
    assert seen() == [(name, ReaderState.CLOSED, 0, False)], "a run without rows leaves no record without a name"
    write(spark, log, 10, 14)
    heard = readers_of(bookkeeper, log)[0].heard_ms
    monkeypatch.setattr(lag, "learn_time", lambda _: heard + 3 * STALE_MS)
    assert seen() == [(name, ReaderState.CLOSED, 5, False)]
    figures, _ = lag.lag_figures(bookkeeper, LogRegistry(bookkeeper.metadata).lanes_of(log)[0].lane(0), b"")
    assert figures["bookspark_log_reader_gone"] == {("spark", name): 0.0}


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("sums<br/>id = q1<br/>runId = r", "sums"),
        ("sums\nid = q1\nrunId = r\nbatch = 3", "sums"),
        ("\nid = q1\nrunId = r", ""),
        ("id = q1<br/>runId = r", ""),
        ("what a user wrote", ""),
        ("", ""),
    ],
)
def test_query_name_is_parsed_from_the_description_of_its_jobs(description: str, name: str) -> None:
    assert _name_in(description, "q1") == name
