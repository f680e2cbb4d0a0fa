"""Ended lanes on real bookies: producers go on in new lanes, readers pass ended lanes, and deletion leaves nothing
behind."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import ConfigurationError
from bookspark.local import LocalCluster
from bookspark.logs import (
    Log,
    LogAddress,
    LogRegistry,
    Producer,
    RowReader,
    create_log,
    delete_log,
    lane_ending,
    producer_ledgers,
)
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.registry import BLOCKS, ENDED, RECORDS
from bookspark.logs.feeds import log_feed
from bookspark.logs.feeds.log_feed import Limit, LogFeed
from bookspark.logs.lane_ending import end_idle_lanes, end_lane
from bookspark.logs.readers.lag import readers_of
from bookspark.protocol.logs import ended_lanes
from bookspark.protocol.logs.lanes import LaneId, lane_id, service_writer
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import LogTakenOverError
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import SECONDS_MAX, await_that
from tests.clocks import DAY_MS, show_time, wrong_clock
from tests.operations.cli.conftest import Run, bookspark  # noqa: F401
from tests.spark.memory_bookkeeper import MemoryBookKeeper


def values(log: Log) -> list[bytes]:
    with log.reader() as reader:
        return [row.value for row in reader]


def test_producer_of_an_ended_lane_continues_in_a_new_lane(bookkeeper: BookKeeper, log: Log) -> None:
    """Its sequence numbers continue too, so a repeated row is not appended twice."""
    with log.producer("billing") as first:
        first.append(b"a", sequence=4)
        lane = first.lane
        # The producer is alive, and its newest row is in an open ledger.
        assert end_lane(bookkeeper, f"{log.name}@{lane}") == 1
        with pytest.raises(LogTakenOverError):
            first.append(b"lost")
    with log.producer("billing") as second:
        assert (second.lane, second.last_sequence, second.position) == (lane + 1, 4, 0)
        assert second.append(b"a", sequence=4) is None
        second.append(b"b", sequence=5)
    assert values(log) == [b"a", b"b"]
    with log.producer("other") as other:
        assert other.lane == lane + 2 and other.last_sequence == -1


def test_lane_ended_before_its_first_commit_keeps_its_predecessors_sequence(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("billing") as producer:
        producer.append(b"a", sequence=4)
        lane = producer.lane
    for number in range(lane, lane + 3):
        end_lane(bookkeeper, f"{log.name}@{number}")
        index = LaneIndex(bookkeeper.metadata, lane_id(LogRegistry(bookkeeper.metadata).get(log.name)))
        assert index.begin(NewLane(service_writer("billing"))).number == number + 1
    with log.producer("billing") as producer:
        assert (producer.lane, producer.last_sequence) == (lane + 3, 4)


class _KilledError(Exception):
    pass


def killed(*_: Any) -> None:
    raise _KilledError


def test_producer_completes_an_interrupted_lane_ending(
    bookkeeper: BookKeeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer("billing") as producer:
        producer.append(b"a")
        lane = producer.lane
    with monkeypatch.context() as patched:
        patched.setattr(LaneIndex, "_keep", killed)
        with pytest.raises(_KilledError):
            end_lane(bookkeeper, f"{log.name}@{lane}")
    registry = LogRegistry(bookkeeper.metadata)
    assert registry.get(f"{log.name}@{lane}").ended_rows == 1 and registry.get(log.name).ended_count == 0
    with log.producer("billing") as producer:
        assert (producer.lane, producer.last_sequence) == (lane + 1, 0)
        producer.append(b"b")
    assert registry.get(log.name).ended_lanes == (lane,) and values(log) == [b"a", b"b"]


def test_live_reader_saved_offset_and_lag_continue_past_ended_lanes(bookkeeper: BookKeeper, log: Log) -> None:
    producers = [log.producer(str(number)) for number in range(4)]
    with log.reader(group="live") as live, log.reader(group="late") as late:
        for producer in producers:
            producer.append_batch([b"%d" % producer.lane] * 5)
        assert len(live.read()) == 20
        late.read(rows_max=8)
        place = late.offset
        for producer in producers[:3]:
            end_lane(bookkeeper, f"{log.name}@{producer.lane}")
        producers[3].append(b"more")
        found: list[bytes] = []
        await_that(lambda: found.extend(row.value for row in live.read(timeout=1.0)) or found == [b"more"])
        await_that(lambda: live.read(timeout=0.1) == [] and live.offset.get("ended") == 3)
        assert "1" not in live.offset
        await_that(
            lambda: {one.title: one.lag_rows for one in readers_of(bookkeeper, log.name)} == {"late": 13, "live": 0}
        )
        late.seek(place)
        rest = [row for batch in iter(lambda: late.read(rows_max=3), []) for row in batch]
        assert len(rest) == 13 and late.offset == live.offset
    with log.reader() as again:
        assert len(list(again)) == 21 and again.offset == live.offset
    for producer in producers[:3]:
        with pytest.raises(LogTakenOverError):
            producer.append(b"x")
    producers[3].close()


def test_row_limit_takes_ended_lanes_in_turn(bookkeeper: BookKeeper, log: Log) -> None:
    for number in range(3):
        with log.producer(str(number)) as producer:
            producer.append_batch([b"x"] * 4)
        if number < 2:
            end_lane(bookkeeper, f"{log.name}@{number + 1}")
    feed = LogFeed(bookkeeper, log.name, b"", True)
    place, ends = feed.earliest(), []
    while feed.spans(place, feed.newest()):
        place = feed.limited(place, feed.newest(), Limit(rows=3))
        ends.append({key: value for key, value in place.items() if key not in ("log", "position")})
    assert ends == [
        {"1": 3, "3": 0},
        {"2": 2, "3": 0, "ended": 1},
        {"3": 0, "ended": 2},
        {"3": 3, "ended": 2},
        {"3": 4, "ended": 2},
    ]


def test_offset_holds_many_ended_lanes_as_a_count(
    bookkeeper: BookKeeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of ended lanes are read only by readers that need them."""
    monkeypatch.setattr(ended_lanes, "BLOCK", 3)
    for number in range(8):
        with log.producer(str(number)) as producer:
            producer.append(b"%d" % number)
        end_lane(bookkeeper, f"{log.name}@{producer.lane}")
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(log.name)
    assert (record.lanes, record.ended_lanes) == ((), (7, 8))
    assert registry.ended_lanes(record) == list(range(1, 9)) and registry.ended_lanes(record, 5) == [6, 7, 8]
    assert values(log) == [b"%d" % number for number in range(8)]
    with log.reader(start="latest") as reader:
        assert reader.offset == {"position": 0, "log": log.id, "ended": 8}
        reads: list[str] = []
        read = ZooKeeperStore.read_record

        def counted(self: ZooKeeperStore, kind: str, name: str) -> Any:
            reads.append(f"{kind} {name}")
            return read(self, kind, name)

        monkeypatch.setattr(ZooKeeperStore, "read_record", counted)
        with log.producer("late") as producer:
            producer.append(b"late")
            reads.clear()
            assert [row.value for row in reader.read(timeout=SECONDS_MAX)] == [b"late"]
    ended = [f"logs {log.name}@{number}" for number in range(1, 9)]
    assert not [one for one in reads if one in ended or one.startswith(BLOCKS)]


class Memory:
    """A log over in-memory ledgers that counts reads of lane records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bookkeeper: Any = MemoryBookKeeper()
        self.bookkeeper.zookeeper = "memory"
        self.bookkeeper.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
        self.log_id = LogRegistry(self.bookkeeper.metadata).create("orders", LogOptions(), b"").log_id
        self.reads: Counter[str] = Counter()
        read = MemoryStore.read_record

        def counted(store: MemoryStore, kind: str, name: str) -> Any:
            self.reads[name] += 1
            return read(store, kind, name)

        monkeypatch.setattr(MemoryStore, "read_record", counted)
        # The number of records in each bulk read.
        self.together: list[int] = []
        read_many = MemoryStore.read_records

        def counted_together(store: MemoryStore, kind: str, names: Sequence[str]) -> Any:
            self.together.append(len(names))
            return read_many(store, kind, names)

        monkeypatch.setattr(MemoryStore, "read_records", counted_together)

    def end_a_lane(self, name: str) -> None:
        producer = Producer(self.bookkeeper, LogAddress("memory", "orders"), name)
        producer.append(name.encode())
        producer.close()
        end_lane(self.bookkeeper, f"orders@{producer.lane}")

    def reader(self) -> RowReader:
        return RowReader(self.bookkeeper, LogAddress("memory", "orders"), "earliest", "")


def test_live_reader_keeps_few_of_the_ended_lanes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_feed, "_ENDED_KEPT", 3)
    memory, found, at_once = Memory(monkeypatch), list[bytes](), 1
    with memory.reader() as reader:
        for number in range(20):
            before = len(found)
            memory.end_a_lane(str(number))
            while rows := reader.read():
                found += [row.value for row in rows]
            # Each lane has one row. Several lanes may arrive at once, as the store reports changes a moment later.
            at_once = max(at_once, len(found) - before)
            assert len(reader._feed._ended) <= 3 + 2 * at_once
        while len(found) < 20 and (rows := reader.read(timeout=SECONDS_MAX)):
            found += [row.value for row in rows]
    assert found == [b"%d" % number for number in range(20)]


def test_two_concurrent_endings_of_a_lane_both_return_its_row_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second ending took over the ended lane and failed as if a writer had taken it."""
    bookkeeper: Any = Memory(monkeypatch).bookkeeper
    Producer(bookkeeper, LogAddress("memory", "orders"), "one").append(b"a")
    heard, update = list[int](), LogRegistry.update

    def later(registry: LogRegistry, *arguments: Any) -> Any:
        monkeypatch.setattr(LogRegistry, "update", update)
        heard.append(end_lane(bookkeeper, "orders@1"))
        return registry.update(*arguments)

    monkeypatch.setattr(LogRegistry, "update", later)
    heard.append(end_lane(bookkeeper, "orders@1"))
    record = LogRegistry(bookkeeper.metadata).get("orders@1")
    assert heard == [1, 1] == [record.ended_rows, record.epoch - 1]


def test_reader_from_earliest_reads_ended_lane_records_in_a_single_request(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch)
    for number in range(10):
        memory.end_a_lane(str(number))
    memory.reads.clear()
    with memory.reader() as reader:
        assert {memory.reads[f"{memory.log_id}@{number}"] for number in range(1, 11)} == {1}
        assert memory.together == [10], "all by one question: a round trip for each would take minutes for very many"
        assert len(list(reader)) == 10


def test_seek_to_time_reads_ended_lane_records_in_a_single_request(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch)
    for number in range(10):
        memory.end_a_lane(str(number))
    with memory.reader() as reader:
        for time, asked in ((datetime.now(UTC) + timedelta(days=1), 0), (datetime.fromtimestamp(1, UTC), 10)):
            memory.together.clear()
            memory.reads.clear()
            reader.seek_to_time(time)
            # The live lane, and the ended lanes unless they are known to have ended before the time.
            assert memory.together == [1 + asked]
            assert sum(memory.reads[f"{memory.log_id}@{number}"] for number in range(1, 11)) == asked
        assert len(list(reader)) == 10


def test_log_end_ends_given_and_idle_lanes_but_never_lane_0(
    cluster: LocalCluster,
    bookkeeper: BookKeeper,
    log: Log,
    bookspark: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
    with log.producer("one") as one, log.producer("two") as two:
        one.append(b"a")
        two.append(b"b")
        assert end_idle_lanes(bookkeeper, log.name) == []
        assert bookspark("log", "end", f"{log.name}@1").text == f"log {log.name}@1: 1 lane ended: {log.name}@1\n"
        two.append(b"c")
        shown = json.loads(bookspark("log", "describe", log.name, "--json").out)
        assert shown["lanes"] == [
            f"{log.name}: 0 rows, batch",
            f"{log.name}@1: 1 row, ended",
            f"{log.name}@2: 2 rows, service:two",
        ]
        assert bookspark("log", "read", log.name).out == b"a\nb\nc\n"
        with pytest.raises(LogTakenOverError):
            one.append(b"never")
    assert json.loads(bookspark("log", "end", log.name, "--idle-days", "0", "--json").out) == [f"{log.name}@2"]
    refused = bookspark("log", "end", f"{log.name}@0")
    assert refused.status == 2 and "lane 0 never ends" in refused.err
    with pytest.raises(ConfigurationError, match="has no lane 7"):
        end_lane(bookkeeper, f"{log.name}@7")


@pytest.mark.parametrize("ahead", [30, -30])
def test_lane_that_was_taken_just_now_is_not_idle_whatever_the_clocks_of_hosts_say(
    bookkeeper: BookKeeper, ahead: int
) -> None:
    """A lane without rows, or with rows of a clock that was behind, ended under the hands of its new owner."""
    log = create_log(bookkeeper, f"clocks{ahead}")
    with log.producer("empty") as empty, log.producer("written") as written:
        with wrong_clock(-30), log.producer("behind") as behind:
            behind.append(b"long ago")
        written.append(b"now")
        with log.producer("behind") as behind:
            with wrong_clock(ahead):
                assert end_idle_lanes(bookkeeper, log.name) == []
            for owner in (empty, written, behind):
                owner.append(b"more")
            lanes = [f"{log.name}@{owner.lane}" for owner in (empty, written, behind)]
            with wrong_clock(ahead):
                # The caller's clock would say that all lanes are too old, or that none is old enough.
                assert sorted(end_idle_lanes(bookkeeper, log.name, idle_days=0)) == lanes


def test_lane_ends_only_if_neither_its_record_nor_its_rows_are_newer_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A row in an open ledger changes no record.
    monkeypatch.setattr(producer_ledgers, "LEDGER_MS_MAX", 30 * 86_400_000)
    days, now_ns = [-8], time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + days[0] * DAY_MS * 1_000_000)
    show_time(monkeypatch, lambda: time.time_ns() // 1_000_000)
    memory = Memory(monkeypatch)
    bookkeeper = memory.bookkeeper
    made = {
        name: Producer(bookkeeper, LogAddress("memory", "orders"), name)
        for name in ("empty", "old", "taken again", "written again", "taken meanwhile")
    }
    for name in ("old", "taken again", "written again"):
        made[name].append(b"old")
    for name in ("empty", "old", "taken again"):
        made[name].close()
    days[0] = 0
    again = Producer(bookkeeper, LogAddress("memory", "orders"), "taken again")
    made["written again"].append(b"new")
    assert end_idle_lanes(bookkeeper, "orders", idle_days=9) == []
    look, last = lane_ending._newest_ms, list[Producer]()

    def looked(bookkeeper: BookKeeper, lane: LaneId, password: bytes) -> Any:
        found = look(bookkeeper, lane, password)
        if lane.number == made["taken meanwhile"].lane:
            last.append(Producer(bookkeeper, LogAddress("memory", "orders"), "taken meanwhile"))
        return found

    monkeypatch.setattr(lane_ending, "_newest_ms", looked)
    assert end_idle_lanes(bookkeeper, "orders") == [f"orders@{made[name].lane}" for name in ("empty", "old")]
    for living in (again, made["written again"], *last):
        living.append(b"more")
        living.close()


def test_lanes_that_ended_without_a_row_cost_neither_their_writer_nor_a_reader_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer whose last 138 lanes had ended empty could not be made any more: RecursionError."""
    memory, cycles = Memory(monkeypatch), 1_500
    address = LogAddress("memory", "orders")
    with Producer(memory.bookkeeper, address, "billing") as first:
        first.append(b"row", sequence=7)
    end_lane(memory.bookkeeper, "orders@1")
    requests = list[int]()
    for number in range(2, cycles + 2):
        memory.reads.clear()
        with Producer(memory.bookkeeper, address, "billing") as empty:
            assert (empty.lane, empty.last_sequence) == (number, 7)
        assert end_lane(memory.bookkeeper, f"orders@{number}") == 0
        requests.append(memory.reads.total())
    assert requests[1] == requests[900] == requests[-1] - 1, "no more, but for the block of ended lanes"
    with Producer(memory.bookkeeper, address, "billing") as last:
        assert last.append(b"repeated", sequence=7) is None, "it is in the log"
        last.append(b"next", sequence=8)
    registry = LogRegistry(memory.bookkeeper.metadata)
    assert [lane.after for lane in registry.get("orders").lanes] == [1]
    with memory.reader() as reader:
        assert [row.value for row in reader] == [b"row", b"next"]
        assert reader.offset == {"position": 0, "log": memory.log_id, str(cycles + 2): 1, "ended": cycles + 1}


def test_deleted_log_leaves_nothing_of_its_ended_lanes(
    bookkeeper: BookKeeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_lanes, "BLOCK", 1)
    for number in range(3):
        with log.producer(str(number)) as producer:
            producer.append(b"x")
        end_lane(bookkeeper, f"{log.name}@{number + 1}")
    other = create_log(bookkeeper, f"{log.name}.other")
    with other.producer("0") as producer:
        pass
    end_lane(bookkeeper, f"{other.name}@1")
    delete_log(bookkeeper, log.name, b"")
    left = [one for kind in (ENDED, BLOCKS, RECORDS) for one in bookkeeper.metadata.list_records(kind)]
    of = {one.partition("@")[0] for one in left}
    assert str(other.id) in of and str(log.id) not in of
    with create_log(bookkeeper, log.name).producer("0") as producer:
        assert (producer.lane, producer.last_sequence) == (1, -1)


def test_new_log_ignores_ended_lanes_of_an_earlier_log_of_its_name(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("0") as producer:
        producer.append(b"x")
    end_lane(bookkeeper, f"{log.name}@1")
    registry = LogRegistry(bookkeeper.metadata)
    # An interrupted deletion leaves the rest of the records.
    bookkeeper.metadata.delete_record(RECORDS, str(log.id))
    assert registry.find(log.name) is None
    again = create_log(bookkeeper, log.name)
    with again.producer("1") as producer:
        producer.append(b"y")
    end_lane(bookkeeper, f"{log.name}@1")
    with again.producer("0") as producer:
        assert (producer.lane, producer.last_sequence) == (2, -1)
