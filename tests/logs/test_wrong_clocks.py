"""Logs on hosts whose clock is wrong: rows, retention, ends and lags follow the cluster's time."""

from __future__ import annotations

import time

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import Log, LogRegistry, open_log, producer_ledgers, truncate_expired
from bookspark.logs.lane_ending import end_idle_lanes
from bookspark.logs.readers.lag import readers_of
from bookspark.protocol.logs.reader_record import ReaderState
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that
from tests.clocks import DAY_MS, show_time, wrong_clock

HOUR_MS = DAY_MS // 24
wrong = pytest.mark.parametrize("days", [400, -400])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def append(cluster: LocalCluster, log: Log, days: int, *values: bytes) -> None:
    """Append rows on another host, whose clock is ``days`` ahead."""
    with wrong_clock(days), cluster.bookkeeper() as there, open_log(there, log.name).producer("service") as producer:
        producer.append(values[0])
        producer.append_batch(list(values))


@wrong
def test_rows_have_the_clusters_time_whatever_the_clock_of_their_writer(
    cluster: LocalCluster, log: Log, days: int
) -> None:
    append(cluster, log, days, b"there", b"again")
    append(cluster, log, 0, b"here")
    with log.reader() as reader:
        times = [row.time_ms for row in reader]
    assert times == sorted(times) and all(abs(each - now_ms()) < HOUR_MS for each in times)


@wrong
def test_retention_removes_rows_by_the_clusters_time(
    cluster: LocalCluster, bookkeeper: BookKeeper, log: Log, days: int
) -> None:
    LogRegistry(bookkeeper.metadata).alter(log.name, retention_ms=DAY_MS)
    append(cluster, log, days, b"there")
    append(cluster, log, 0, b"here")
    for remover in (days, 0):
        with wrong_clock(remover), cluster.bookkeeper() as there:
            assert truncate_expired(there, log.name) == []
    with log.reader() as reader:
        assert [row.value for row in reader] == [b"there", b"there", b"here", b"here"]
    with pytest.MonkeyPatch.context() as later:
        later_ms = now_ms() + 2 * DAY_MS
        show_time(later, lambda: later_ms)
        assert truncate_expired(bookkeeper, log.name)
    with log.reader() as reader:
        assert list(reader) == []


def test_lane_whose_times_lie_ahead_stands_still_and_its_ledgers_are_closed_by_age(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper's own clock was wrong for a moment."""
    ahead_ms = now_ms() + 400 * DAY_MS
    with pytest.MonkeyPatch.context() as then:
        show_time(then, lambda: ahead_ms)
        with log.producer("service") as producer:
            producer.append(b"0")
    monkeypatch.setattr(producer_ledgers, "LEDGER_MS_MAX", 1)
    with log.producer("service") as producer:
        opened = set[int]()

        def two_ledgers() -> bool:
            producer.append(b"more")
            at = producer._ledgers.at.handle
            assert at is not None
            opened.add(at.ledger_id)
            return len(opened) > 1

        await_that(two_ledgers)
    with log.reader() as reader:
        times = [row.time_ms for row in reader]
    assert set(times) == {ahead_ms}


@wrong
def test_no_clock_decides_which_lanes_are_idle(
    cluster: LocalCluster, bookkeeper: BookKeeper, log: Log, days: int
) -> None:
    append(cluster, log, days, b"there")
    with wrong_clock(days), cluster.bookkeeper() as there:
        assert end_idle_lanes(there, log.name, idle_days=1.0) == []
    with pytest.MonkeyPatch.context() as later:
        later_ms = now_ms() + 2 * DAY_MS
        show_time(later, lambda: later_ms)
        assert end_idle_lanes(bookkeeper, log.name, idle_days=1.0) == [f"{log.name}@1"]


@wrong
def test_who_looks_with_a_wrong_clock_sees_living_readers_and_their_lag(
    cluster: LocalCluster, log: Log, days: int
) -> None:
    append(cluster, log, 0, b"0")
    with log.reader(group="audit") as reader, wrong_clock(days), cluster.bookkeeper() as there:
        reader.read(rows_max=1)
        reader.commit()
        [found] = await_that(lambda: readers_of(there, log.name))
        assert found.state is ReaderState.LIVE and found.lag_seconds is not None and 0 <= found.lag_seconds < 3600
