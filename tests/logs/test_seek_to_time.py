"""Seeking a reader to a time: it matches a scan of all rows while the log grows, and needs few requests in a known
log."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import Log, Producer, create_log, delete_log, producer_ledgers, truncate_log
from bookspark.logs.chain import commit_times
from bookspark.logs.chain.registry import RECORDS
from bookspark.logs.lane_ending import end_lane
from bookspark.logs.row_reader import RowReader
from bookspark.protocol.logs.lanes import lane_name
from bookspark.protocol.logs.log_record import LogRecreatedError
from bookspark.store.client import BookKeeper
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.clocks import show_time
from tests.stories import seeds

BEGUN_MS = 1_700_000_000_000


@pytest.fixture
def bookkeeper(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cluster's time in ms."""
    shown = [BEGUN_MS]
    show_time(monkeypatch, lambda: shown[0])
    return shown


def go_to(reader: RowReader, time_ms: int) -> dict[int, int]:
    """Seek to the time; return the reader's row in each lane, ended lanes included."""
    reader.seek_to_time(datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms))
    return reader._feed.all_rows(reader.offset)


def times_of(log: Log) -> dict[int, list[int]]:
    """Times of all present rows, by lane."""
    found: dict[int, list[int]] = defaultdict(list)
    with log.reader() as reader:
        for row in reader:
            found[row.lane].append(row.time_ms)
    return found


@contextmanager
def requests_counted() -> Iterator[Counter[str]]:
    """Count the requests of readers meanwhile."""
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patched:

        def count(owner: type, name: str, what: str) -> None:
            original = getattr(owner, name)

            def counted(self: object, *arguments: Any) -> Any:
                # Not counted: a background thread that publishes the reader's position from time to time, and
                # requests for the records of no lanes.
                if threading.current_thread().name != "bookspark-tell-readers":
                    counts[what] += what != "records" or (arguments[0] == RECORDS and bool(arguments[1]))
                return original(self, *arguments)

            patched.setattr(owner, name, counted)

        count(ReadHandle, "_entries", "reads")
        count(ReadHandle, "read_last_add_confirmed", "looks")
        count(ZooKeeperStore, "read_ledger", "ledgers")
        count(ZooKeeperStore, "read_record", "records")
        count(ZooKeeperStore, "read_records", "records")
        yield counts


@pytest.mark.parametrize("seed", seeds(1))
def test_seek_to_time_matches_a_scan_of_all_rows(
    bookkeeper: BookKeeper, log: Log, clock: list[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With taken-over producers, ended lanes, settled ledgers, truncated rows and jumping clocks."""
    random = Random(seed)
    monkeypatch.setattr(producer_ledgers, "LEDGER_MS_MAX", 20_000)
    monkeypatch.setattr(commit_times, "_POINTS_MAX", [5, 50, 1 << 16][seed % 3])
    monkeypatch.setattr(commit_times, "_DATA_LEDGERS_MAX", [2, 64][seed % 2])
    producers: dict[str, Producer] = {}
    gone: Counter[int] = Counter()
    ended = 0
    with log.reader() as reader:
        for _ in range(12):
            for _ in range(random.randrange(6)):
                clock[0] += random.choice([0, 1, 40, 3000, 30_000, -20_000])
                name = random.choice("abc")
                if name not in producers or random.random() < 0.1:
                    producers[name] = log.producer(name)
                producers[name].append_batch([b"row"] * random.randint(1, 40))
            if producers and random.random() < 0.25:
                ended += 1
                producer = producers.pop(random.choice(list(producers)))
                end_lane(bookkeeper, lane_name(log.name, producer.lane))
            times = times_of(log)
            if times and random.random() < 0.25:
                lane = random.choice(list(times))
                row = gone[lane] + random.randrange(len(times[lane]))
                truncate_log(bookkeeper, lane_name(log.name, lane), row, b"")
                times[lane], gone[lane] = times[lane][row - gone[lane] :], row
            every = [time_ms for lane in times.values() for time_ms in lane]
            if random.random() < 0.2:
                reader.close()
                reader = log.reader()
            for time_ms in (
                0,
                clock[0] + 1,
                *(random.choice(every) + random.randint(-1, 1) for _ in range(5 * bool(every))),
            ):
                found = go_to(reader, time_ms)
                for lane, known in times.items():
                    assert found.get(lane, 0) == gone[lane] + bisect_left(known, time_ms)
    for producer in producers.values():
        producer.close()
    assert sum(gone.values()) and ended


@pytest.mark.parametrize("settled", [False, True], ids=["open", "settled"])
def test_seek_in_a_known_log_costs_its_record_and_a_read(
    log: Log, clock: list[int], settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search opened ledgers, requested the row count and read the newest commit again."""
    random, times = Random(3), list[int]()
    monkeypatch.setattr(producer_ledgers, "LEDGER_MS_MAX", 1 << 50)
    with log.producer("service") as producer:
        for _ in range(1000):
            clock[0] += random.randrange(10)
            times.append(clock[0])
            producer.append_async(b"row")
        producer.append(b"the last one")
        if settled:
            producer.close()
        wanted = [random.choice(times) for _ in range(60)]
        with log.reader() as reader:
            go_to(reader, times[-1])
            for time_ms in wanted:
                assert go_to(reader, time_ms)[1] == bisect_left(times, time_ms)
            with requests_counted() as counts:
                for time_ms in wanted[:30]:
                    assert go_to(reader, time_ms)[1] == bisect_left(times, time_ms)
                for _ in range(30):
                    go_to(reader, random.choice(times))
    # The records of all lanes are one request.
    assert counts["records"] <= 60 and counts["ledgers"] == counts["looks"] == 0
    assert counts["reads"] <= 60


def test_seek_in_an_ended_lane_costs_the_records_and_a_read(bookkeeper: BookKeeper, log: Log, clock: list[int]) -> None:
    """Each search made a new reader of the lane."""
    for name in "ab":
        with log.producer(name) as producer:
            for _ in range(500):
                clock[0] += 10
                producer.append_async(b"row")
            producer.append(b"the last one")
            end_lane(bookkeeper, lane_name(log.name, producer.lane))
    times, random = times_of(log)[2], Random(3)
    with log.reader() as reader:
        for _ in range(30):
            go_to(reader, random.choice(times))
        with requests_counted() as counts:
            for time_ms in random.choices(times, k=50):
                assert go_to(reader, time_ms)[2] == bisect_left(times, time_ms)
        assert counts["ledgers"] == counts["looks"] == 0
        assert counts["records"] <= 50 and counts["reads"] <= 50
        truncate_log(bookkeeper, lane_name(log.name, 2), 200, b"")
        assert go_to(reader, times[100])[2] == 200 and go_to(reader, times[300])[2] == bisect_left(times, times[300])


def test_seek_in_an_ended_lane_raises_after_the_log_is_created_again(
    bookkeeper: BookKeeper, log: Log, clock: list[int]
) -> None:
    def ended_lane(log: Log) -> None:
        with log.producer("a") as producer:
            producer.append_batch([b"row"] * 10)
            end_lane(bookkeeper, lane_name(log.name, producer.lane))

    ended_lane(log)
    with log.reader() as reader:
        assert go_to(reader, clock[0]).get(1, 0) == 0
        delete_log(bookkeeper, log.name, b"")
        ended_lane(create_log(bookkeeper, log.name))
        with pytest.raises(LogRecreatedError):
            go_to(reader, clock[0])


@pytest.mark.parametrize("rolled", [False, True])
def test_new_reader_locates_a_time_in_an_open_ledger_with_a_single_look(
    log: Log, clock: list[int], rolled: bool
) -> None:
    """It asked the bookies of the commit ledger, asked those of the open ledger three times, and read the last row
    twice."""
    with log.producer("service") as producer:
        for number in range(200):
            clock[0] += 10
            if number == 150 and rolled:
                producer._open_next()
            producer.append(b"row")
        for back, found in ((300, 170), (-1, 200)):
            with log.reader() as reader, requests_counted() as counts:
                assert go_to(reader, clock[0] - back)[1] == found - (back > 0)
            # Lane 0 has no commits.
            assert counts["looks"] == 1 and counts["reads"] <= (5 if rolled else 3), counts


def test_seek_past_all_known_rows_searches_the_newest_rows(log: Log, clock: list[int]) -> None:
    with log.producer("service") as producer, log.reader() as reader:
        for number in range(20):
            clock[0] += 1000
            producer.append(b"row")
            assert go_to(reader, clock[0])[1] == number
            assert go_to(reader, clock[0] + 1)[1] == number + 1
