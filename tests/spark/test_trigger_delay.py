"""Options ``minOffsetsPerTrigger`` and ``maxTriggerDelay``: when a micro-batch waits for more rows, over an in-memory log."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from bookspark.local import LocalCluster
from bookspark.logs.feeds.log_feed import Offset
from bookspark.spark.connector.data_source import register
from bookspark.spark.connector.query_place import QueryPlace
from bookspark.spark.connector.trigger_delay import TriggerDelay
from tests.spark.memory_stream import memory_stream
from tests.spark.test_feeds import ROWS, Log
from tests.spark.test_stream_source import Follower, write
from tests.stories import seeds

LEAST, DELAY = 25, 60.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Stream:
    """A query over ``log`` with a clock of its own."""

    def __init__(self, log: Log, **options: str) -> None:
        given = {"log": "orders", "zookeeper": "z", "pollTimeoutMs": "0", "minOffsetsPerTrigger": str(LEAST)}
        self.clock = Clock()
        self.reader = memory_stream(log.feed(), {**given, **options})
        self.reader._delay = TriggerDelay(LEAST, DELAY, self.clock)
        self.at = self.reader.initialOffset()

    def trigger(self, limit: ReadLimit | None = None) -> int:
        """The number of rows of the next micro-batch."""
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        rows = self.rows(self.at, end)
        self.at = end
        return rows

    def rows(self, start: Offset, end: Offset) -> int:
        return end["position"] - start["position"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(QueryPlace, "tell", lambda self, offset: None)
    monkeypatch.setattr(QueryPlace, "done", lambda self: None)
    return Log()


def test_micro_batch_except_the_first_waits_for_enough_rows(log: Log) -> None:
    log.commit()
    stream = Stream(log)
    assert stream.reader.getDefaultReadLimit() == ReadMinRows(LEAST)
    assert stream.trigger() == ROWS, "the first one since the start"
    log.commit(2)
    assert stream.trigger() == 0
    log.commit()
    assert stream.trigger() == 3 * ROWS


def test_micro_batch_waits_no_longer_than_the_delay_since_its_predecessor(log: Log) -> None:
    stream = Stream(log)
    log.commit()
    assert stream.trigger() == ROWS
    log.commit()
    stream.clock.now += DELAY - 1
    assert stream.trigger() == 0
    stream.clock.now += 1
    assert stream.trigger() == ROWS
    log.commit()
    assert stream.trigger() == 0, "the delay counts anew"
    stream.clock.now += 2 * DELAY
    assert stream.trigger() == ROWS
    stream.clock.now += 2 * DELAY
    assert stream.trigger() == 0, "without rows there is no micro-batch"
    log.commit()
    assert stream.trigger() == ROWS, "the delay is over since the last one"


def test_final_trigger_of_a_query_takes_all_rows(log: Log) -> None:
    log.commit()
    stream = Stream(log)
    stream.trigger()
    log.commit()
    assert stream.trigger() == 0
    assert stream.trigger(ReadAllAvailable()) == ROWS, "once"
    log.commit()
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.trigger() == ROWS


def test_minimum_and_maximum_rows_of_a_trigger_combine(log: Log) -> None:
    log.commit(6)
    stream = Stream(log, maxOffsetsPerTrigger="40")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(40)
    assert [stream.trigger(), stream.trigger()] == [40, 0]
    log.commit()
    assert stream.trigger() == 30


@pytest.mark.parametrize("seed", seeds(10))
def test_no_row_waits_beyond_the_delay_or_repeats_over_restarts(log: Log, seed: int) -> None:
    """Commits, triggers, passing time and restarts come in orders drawn by seed."""
    draw = Random(seed)
    stream, written, last = Stream(log), 0, float("-inf")
    taken = 0
    for _ in range(120):
        match draw.choice(("commit", "trigger", "trigger", "time", "restart")):
            case "commit":
                log.commit()
                written += ROWS
            case "time":
                stream.clock.now += draw.choice((1.0, DELAY / 2, DELAY))
            case "restart" if draw.random() < 0.3:
                now, at = stream.clock.now, stream.at
                stream = Stream(log)
                stream.at, stream.clock.now, last = at, now, float("-inf")
            case "trigger":
                waiting, now = written - taken, stream.clock.now
                due = waiting >= LEAST or (waiting > 0 and now - last >= DELAY)
                assert stream.trigger() == (waiting if due else 0)
                taken += waiting if due else 0
                last = now if due else last
    assert stream.at["position"] == taken


@pytest.mark.acceptance
@pytest.mark.spark
def test_spark_applies_the_minimum_and_available_now_takes_waiting_rows(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    register(spark, cluster.zookeeper)
    write(spark, "trigger-delay", 0, 9)
    follower = Follower(spark, tmp_path, log="trigger-delay", minOffsetsPerTrigger=15, maxTriggerDelay="1h")
    query = follower.start(processingTime="1 second")
    try:
        follower.await_numbers(query, list(range(10)))
        write(spark, "trigger-delay", 10, 19)
        query.processAllAvailable()
        assert follower.numbers() == list(range(10)), "ten rows wait"
        write(spark, "trigger-delay", 20, 24)
        follower.await_numbers(query, list(range(25)))
    finally:
        query.stop()
    write(spark, "trigger-delay", 25, 29)
    follower.run()
    assert follower.numbers() == list(range(30)), "availableNow takes what is there"
