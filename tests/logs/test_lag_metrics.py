"""Prometheus metrics of how far a log's readers are behind."""

from __future__ import annotations

import threading
import time
import uuid
from statistics import median

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookspark.local import LocalCluster
from bookspark.logs import Log, create_log, open_log
from bookspark.store.client import BookKeeper
from bookspark.support.metrics.tables import LOG_READERS
from tests.awaiting import SECONDS_MAX, await_that, time_passes
from tests.clocks import keep_steady

ROWS, SECONDS, GONE = (one.name for one in LOG_READERS)


@pytest.fixture
def log(bookkeeper: BookKeeper) -> Log:
    return create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}", b"secret")


def scrape(log: Log) -> dict[tuple[str, ...], float]:
    """Samples by name and by labels other than ``log``."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(log.metrics())
    families = list(text_string_to_metric_families(prometheus_client.generate_latest(registry).decode()))
    assert {one.name for one in families} == {one.name for one in LOG_READERS}
    samples = [sample for family in families for sample in family.samples]
    assert all(sample.labels["log"] == log.name for sample in samples)
    return {(one.name, one.labels["kind"], one.labels["reader"]): one.value for one in samples}


def test_lag_metrics_name_each_reader_and_outlive_readers(
    cluster: LocalCluster, bookkeeper: BookKeeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_steady(monkeypatch)
    assert scrape(log) == {}
    with log.producer("service") as producer:
        producer.append_batch([b"x"] * 10)
        with log.reader(group="audit") as audit, log.reader(group="audit") as behind, log.reader() as unnamed:
            audit.read()
            behind.read(rows_max=4)
            unnamed.read(rows_max=1)
            key = ("python", "audit")
            await_that(lambda: scrape(log).get((ROWS, *key)) == 6, what=lambda: scrape(log))
            told = scrape(log)
            assert {name for name, *_ in told} == {ROWS, SECONDS, GONE} and len(told) == 3, (
                "and no reader without a name"
            )
            assert told[GONE, *key] == 0 and 0 < told[SECONDS, *key] < 600
            audit.commit()
        with cluster.bookkeeper() as other:
            # The lag grows although no reader lives.
            producer.append(b"y")

            def lag() -> tuple[float, float]:
                told = scrape(open_log(other, log.name, b"secret"))
                return told[GONE, *key], told[ROWS, *key]

            await_that(lambda: lag() == (1, 1), what=lag)


def test_reported_lag_of_a_live_reader_is_at_most_two_seconds_old(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_steady(monkeypatch)
    stop = threading.Event()
    begun: list[float] = []
    # When the append of each row ended; the row's own time lies between begin and end.
    appended: list[float] = []
    # When each row was read.
    read: list[float] = []

    def write() -> None:
        with log.producer("service") as producer:
            while not stop.is_set():
                begun.append(time.time())
                producer.append(b"row")
                appended.append(time.time())
                time_passes(0.02)

    def follow() -> None:
        with log.reader(group="slow") as reader:
            while not stop.is_set():
                rows = reader.read(rows_max=2, timeout=1.0)
                read.extend([time.time()] * len(rows))
                time_passes(0.05)

    threads = [threading.Thread(target=work) for work in (write, follow)]
    for thread in threads:
        thread.start()
    stale: list[float] = []
    took: list[float] = []
    try:
        key = ("python", "slow")
        await_that(lambda: scrape(log).get((ROWS, *key), 0) > 0, what=lambda: scrape(log))
        for _ in range(10):
            before, rows_before = time.time(), len(appended)
            told = scrape(log)
            rows_after, after = len(appended) + 1, time.time()
            # The reported position: this many rows were read then.
            least, most = rows_before - told[ROWS, *key], rows_after - told[ROWS, *key]
            assert least <= len(read) + 2, "nothing is told as read that is not"
            if told[ROWS, *key]:
                # The first row unread then is as old as reported; row times are in ms.
                first, last = max(0, int(least)), int(most)
                assert begun[first] - 0.01 <= after - told[SECONDS, *key]
                assert before - told[SECONDS, *key] <= (appended[last] if last < len(appended) else after) + 0.01
            took.append(after - before)
            # The report is as old as the read of the following row.
            following = int(most)
            stale.append(max(0.0, before - read[following]) if following < len(read) else 0.0)
            time_passes(0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(SECONDS_MAX)
    # A machine that stalls now and then makes some reports older, and a slow machine all of them: a report needs
    # fewer requests than a scrape.
    assert median(stale) <= 2.0 + 5 * median(took), (stale, took)
    assert max(stale) > 0, "the reader reads beside the scrapes"
