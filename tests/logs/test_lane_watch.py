"""Waiting for rows in any of several lanes: empty lanes are asked rarely, and no lane is asked twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.local import LocalCluster
from bookspark.logs import Committer, LogAddress, LogRegistry, LogRow, LogRun, create_log
from bookspark.logs.feeds import log_feed
from bookspark.logs.feeds.log_feed import LaneWatch, LogFeed
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.store.client.reading import read_handle
from tests.awaiting import SECONDS_MAX, await_that
from tests.logs.test_producer_faults import Cluster


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(log_feed.time, "monotonic", lambda: self.now)


class Lane:
    """A lane whose bookies answer at once; ``there`` is its row count."""

    def __init__(self, number: int, clock: Clock, asked: Counter[int], *, tells: bool = True) -> None:
        self.rows = self.there = 0
        self.has_news, self.tells_news = False, tells
        self._number, self._clock, self._asked = number, clock, asked

    def newest(self) -> int:
        self._asked[self._number] += not self.has_news
        self.has_news, self.rows = False, self.there
        return self.rows

    def wait(self, seconds: float) -> bool:
        if self.there > self.rows:
            self.has_news = self.tells_news
            return True
        self._clock.now += seconds
        return False


class Lanes:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 3, **options: bool) -> None:
        self.asked: Counter[int] = Counter()
        self.clock = Clock(monkeypatch)
        self.all: Any = {number: Lane(number, self.clock, self.asked, **options) for number in range(count)}
        self.watch, self.changes = LaneWatch(0), False

    def wait(self, seconds: float = 10.0) -> bool:
        return self.watch.wait(self.all, seconds, lambda: self.changes)

    def add(self, number: int, rows: int = 1) -> None:
        self.all[number].there += rows


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Lanes:
    return Lanes(monkeypatch)


def test_rows_of_a_busy_lane_arrive_without_a_look_at_other_lanes_each(lanes: Lanes) -> None:
    """A reader that followed a log looked at all lanes before and after each row; its slowest rows waited for three
    rounds."""
    lanes.add(1)
    lanes.watch.look(lanes.all)
    lanes.wait(5.0)
    assert not lanes.watch.news(lanes.all)
    lanes.asked.clear()
    began = lanes.clock.now
    for number in range(2, 102):
        lanes.clock.now += 0.01
        lanes.add(1)
        assert lanes.watch.looked_just_now or lanes.clock.now > began
        lanes.wait()
        assert lanes.watch.news(lanes.all) and lanes.all[1].rows == number
    assert lanes.asked[1] == 0, "its bookies told of the rows"
    # One second passed; looks are a quarter of a second apart.
    assert lanes.asked[0] == lanes.asked[2] <= 5


def test_empty_lanes_are_looked_at_less_and_less_often(lanes: Lanes) -> None:
    lanes.watch.look(lanes.all)
    lanes.asked.clear()
    lanes.wait(0.3)
    # After 10, 30, 70, 150 and 310 ms.
    assert lanes.asked[1] == lanes.asked[2] == 4 and not lanes.asked[0]
    lanes.wait(10.0)
    assert lanes.asked[1] <= 4 + 41 and not lanes.watch.news(lanes.all)


def test_rows_of_another_lane_are_reported_without_a_request_and_awaited_afterwards(lanes: Lanes) -> None:
    lanes.watch.look(lanes.all)
    lanes.wait(5.0)
    lanes.add(2)
    began = lanes.clock.now
    lanes.wait()
    assert lanes.clock.now - began <= 0.25
    lanes.asked.clear()
    assert lanes.watch.news(lanes.all) and lanes.all[2].rows == 1
    assert not lanes.watch.news(lanes.all), "once"
    lanes.add(2)
    lanes.wait()
    assert lanes.watch.news(lanes.all) and lanes.all[2].rows == 2 and not lanes.asked.total()


def test_rows_of_a_lane_that_reports_no_news_are_seen_after_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes(monkeypatch, tells=False)
    lanes.watch.look(lanes.all)
    lanes.add(0)
    lanes.wait()
    assert lanes.watch.news(lanes.all) and lanes.all[0].rows == 1


def test_watch_notices_changed_and_removed_lanes(lanes: Lanes) -> None:
    lanes.watch.look(lanes.all)
    lanes.changes = True
    began = lanes.clock.now
    lanes.wait()
    assert lanes.clock.now - began <= 0.25 and not lanes.watch.news(lanes.all)
    del lanes.all[0]
    lanes.changes = False
    lanes.add(2)
    lanes.wait()
    assert lanes.watch.news(lanes.all) and lanes.all[2].rows == 1


@pytest.mark.parametrize("count", [1, 3])
def test_wait_returns_whether_there_may_be_more_rows(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A read after a wait without news asks no bookie, so a new lane counts as news too."""
    lanes = Lanes(monkeypatch, count)
    lanes.watch.look(lanes.all)
    assert not lanes.wait()
    lanes.add(0)
    assert lanes.wait()
    lanes.watch.look(lanes.all)
    assert not lanes.wait()
    lanes.changes = True
    assert lanes.wait()


def test_change_of_the_lanes_ends_the_wait_for_the_liveliest_lane(lanes: Lanes) -> None:
    """Such a wait ends early, and would be begun again and again."""
    lanes.add(1)
    lanes.watch.look(lanes.all)
    lanes.wait()
    lanes.watch.news(lanes.all)
    lanes.asked.clear()
    assert lanes.watch.looked_just_now
    lanes.changes = True
    began = lanes.clock.now
    assert lanes.wait() and lanes.clock.now - began <= 0.25
    assert lanes.asked.total() <= 6


def test_look_for_lanes_that_fails_is_repeated_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that the store did not tell the changed lanes would ask it without a pause."""
    memory = Cluster().memory
    feed, clock, asked = LogFeed(memory, "orders", b"", True), SimpleNamespace(now=100.0), list[float]()
    monkeypatch.setattr(log_feed, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def wait(lanes: Any, seconds: float, changed: Callable[[], bool]) -> bool:
        if not changed():
            clock.now += seconds
        return changed()

    def refused(*arguments: Any) -> None:
        asked.append(clock.now)
        raise MetadataStoreError("nobody answers")

    monkeypatch.setattr(feed._watch, "wait", wait)
    assert feed._record_changed is not None
    feed._record_changed.set()
    assert feed.wait(40.0)
    with monkeypatch.context() as refusing:
        refusing.setattr(memory.metadata, "watch_record", refused)
        until = clock.now + 40
        while clock.now < until:
            feed.newest()
            feed.wait(until - clock.now)
    assert len(asked) < 12 and asked[1] - asked[0] == 0.25
    clock.now += 10
    feed.newest()
    assert not feed._record_changed.is_set()


# -- on real bookies


def test_waiting_reader_gets_the_first_row_of_a_new_lane_at_once(
    new_chroot: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came 23 s late: the reader waited for the only lane until its long poll was over."""
    monkeypatch.setattr(read_handle, "HOLD_SECONDS_MAX", SECONDS_MAX)
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as bookkeeper:
        log, registry = create_log(bookkeeper, "orders"), LogRegistry(bookkeeper.metadata)
        run = LogRun.of(LogAddress(cluster.zookeeper, "orders"), registry.claim("orders", "run", "query"))
        data = run.create_ledger(bookkeeper, registry.get("orders").options, "data")
        data.append(b"of a query")
        ranges = (EntryRange(data.ledger_id, 0, 0, 1, 10),)
        Committer(bookkeeper, run).commit(Commit("query", 0, "run", run.epoch, ranges, 1))
        rows: list[LogRow] = []
        with log.reader() as reader:
            assert [row.value for row in reader.read()] == [b"of a query"]
            waiting = threading.Thread(target=lambda: rows.extend(reader.read(timeout=SECONDS_MAX)))
            waiting.start()
            head = reader._feed._lanes[0]._head
            await_that(lambda: head._handle is not None and head._handle._polls)
            began = time.monotonic()
            with log.producer("billing") as producer:
                producer.append(b"of a service")
                waiting.join(SECONDS_MAX)
        assert [row.value for row in rows] == [b"of a service"]
        assert time.monotonic() - began < SECONDS_MAX / 3
