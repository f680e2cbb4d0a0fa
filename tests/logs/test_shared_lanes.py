"""Readers that share their group's lanes: no row is missing, and rows repeat only where a reader ended before it
saved."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import islice
from random import Random
from typing import Any

import pytest

from bookspark.errors import ConfigurationError
from bookspark.local import LocalCluster
from bookspark.logs import Log, LogAddress, LogRegistry, create_log, row_reader
from bookspark.logs.chain.registry import POSITIONS
from bookspark.logs.lane_ending import end_lane
from bookspark.logs.producer import Producer
from bookspark.logs.row_reader import LogRow, RowReader
from bookspark.protocol.logs.lanes import LaneId, ended_before, rows_before
from bookspark.store.metadata.records.documents import read_struct
from tests.awaiting import SECONDS_MAX, await_that
from tests.logs.test_producer_faults import Cluster
from tests.spark.memory_bookkeeper import MemoryBookKeeper
from tests.stories import seeds

SEEDS = seeds(10)
STEPS = 60
LOG, GROUP = "orders", "audit"
Row = tuple[int, int]


class Member:
    """A reader with a session of its own."""

    def __init__(self, story: Story, start: str = "earliest") -> None:
        self.client: Any = MemoryBookKeeper(story.memory.metadata.another(), story.memory.entries)
        self.client.zookeeper = "memory"
        self.reader = RowReader(self.client, LogAddress("memory", LOG), start, GROUP, share=True)
        self.held: list[LogRow] = []
        """Rows that it has read but not saved."""

    @property
    def unsaved(self) -> list[Row]:
        return [(row.lane, row.position) for row in self.held]


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.memory: Any = Cluster().memory
        self.producers: dict[str, Producer] = {}
        self.appended: set[Row] = set()
        self.read: Counter[Row] = Counter()
        self.may_come_again: set[Row] = set()
        self.members: list[Member] = []
        self.gone: list[Member] = []

    def run(self) -> None:
        kinds = {
            self.append: 10, self.join: 2, self.read_some: 14, self.save: 8, self.close: 1, self.die: 1, self.lose_session: 1,
            self.end: 1,
        }  # fmt: skip
        for _ in range(STEPS):
            [step] = self.random.choices(list(kinds), list(kinds.values()))
            step()
            self.check()

    # -- steps

    def append(self) -> None:
        name = f"service-{self.random.randrange(6)}"
        if name not in self.producers:
            self.producers[name] = Producer(self.memory, LogAddress("memory", LOG), name)
        producer = self.producers[name]
        for _ in range(self.random.randint(1, 6)):
            self.appended.add((producer.lane, producer.append(b"row").position))

    def join(self) -> None:
        if len(self.members) < 4:
            self.members.append(Member(self))

    def read_some(self) -> None:
        for member in self.chosen():
            count = self.random.choice([1, 3, 1000])
            # A loop fetches rows ahead.
            rows = member.reader.read(count) if self.random.random() < 0.5 else list(islice(member.reader, count))
            self.read.update((row.lane, row.position) for row in rows)
            member.held += rows

    def save(self) -> None:
        for member in self.chosen():
            row = self.random.choice(member.held) if member.held and self.random.random() < 0.5 else None
            member.reader.commit(row)
            member.held = [
                held for held in member.held if row and held.lane == row.lane and held.position > row.position
            ]

    def close(self) -> None:
        for member in self.chosen():
            member.reader.close()
            self.has_gone(member)

    def die(self) -> None:
        for member in self.chosen():
            member.client.metadata.close()
            self.has_gone(member)

    def lose_session(self) -> None:
        """The reader lives on, and others may take its lanes before it notices."""
        for member in self.chosen():
            world, store = self.memory.metadata._world, member.client.metadata
            with world.lock:
                for key in [key for key, owner in world.ephemerals.items() if owner is store]:
                    world.remove(key)
            self.may_come_again.update(member.unsaved)

    def end(self) -> None:
        """End a lane; a service that goes on gets a new lane."""
        if self.producers:
            producer = self.producers.pop(self.random.choice(sorted(self.producers)))
            producer.close()
            if self.random.random() < 0.7:
                end_lane(self.memory, f"{LOG}@{producer.lane}")

    # -- inside

    def chosen(self) -> list[Member]:
        return [self.random.choice(self.members)] if self.members else []

    def has_gone(self, member: Member) -> None:
        self.may_come_again.update(member.unsaved)
        self.members.remove(member)
        self.gone.append(member)

    def check(self) -> None:
        twice = {row for row, count in self.read.items() if count > 1}
        assert twice <= self.may_come_again, "a row came twice although nobody ended before it was saved"
        for lane, rows in self.saved().items():
            assert all((lane, position) in self.read for position in range(rows)), (
                "what was saved is behind unread rows"
            )

    def saved(self) -> dict[int, int]:
        log_id = LogRegistry(self.memory.metadata).get(LOG).log_id
        found = self.memory.metadata.read_record(POSITIONS, f"{GROUP}@{log_id}")
        if found is None:
            return {}
        offset = read_struct(found.value, dict[str, int], "position")
        registry = LogRegistry(self.memory.metadata)
        ended = registry.ended_lanes(registry.get(LOG))[: ended_before(offset)]
        rows = {lane: registry.get(f"{LOG}@{lane}").ended_rows or 0 for lane in ended}
        return {**rows_before(offset), **rows}

    def settle(self) -> None:
        """Read and save all remaining rows until the lanes are shared out evenly. The store reports lanes and readers
        to each other a moment later."""
        self.join()

        def has_settled() -> bool:
            for member in self.members:
                self.read.update((row.lane, row.position) for row in member.reader.read())
                member.reader.commit()
                member.held = []
            self.check()
            parts = [member.reader.lanes for member in self.members]
            saved = {(lane, n) for lane, rows in self.saved().items() for n in range(rows)}
            one_reader_each = sum(map(len, parts)) == len(frozenset().union(*parts))
            evenly = max(map(len, parts)) - min(map(len, parts)) <= 1
            return set(self.read) == self.appended == saved and one_reader_each and evenly

        await_that(
            has_settled, what=lambda: f"{self.appended - set(self.read)} to be read, and {self.saved()} to be all"
        )
        for member in self.members:
            member.reader.close()


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look for lanes at each read."""
    monkeypatch.setattr(row_reader, "LOOK_SECONDS", 0.0)


@pytest.mark.usefixtures("looking")
@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_is_missing_or_repeated_without_a_cause(seed: int) -> None:
    story = Story(seed)
    story.run()
    story.settle()


@pytest.mark.usefixtures("looking")
def test_group_begins_where_its_first_reader_began() -> None:
    """The second reader begins at the end of the log as well, but takes over lanes from the first reader's start."""
    story = Story(0)
    story.append()
    [producer] = story.producers.values()
    members = []
    for _ in range(2):
        members.append(Member(story, "latest"))
        producer.append(b"new")
    first, second = members
    assert second.reader.read() == []
    first.reader.close()
    assert [row.value for row in second.reader.read()] == [b"new", b"new"]
    second.reader.close()


@pytest.mark.usefixtures("looking")
def test_reader_that_lost_its_lane_does_not_rewind_the_groups_offset() -> None:
    """Unaware of the loss, it saves an offset before that of the lane's new reader."""
    story = Story(0)
    story.append()
    story.join()
    story.members[0].reader.read(1)
    story.lose_session()
    late, other = story.members[0].reader, Member(story).reader
    assert len(other.read()) == len(story.appended) > 1
    other.commit()
    saved = story.saved()
    late.commit()
    assert story.saved() == saved == {0: 0, 1: len(story.appended)}
    late.close()
    other.close()


@pytest.mark.usefixtures("looking")
def test_garbage_collected_reader_releases_its_lanes() -> None:
    story = Story(0)
    story.append()
    for _ in range(2):
        story.join()
    dropped, left = story.members.pop(0), story.members[0]
    assert len(dropped.reader.lanes) == 1 and not left.reader.lanes
    del dropped.reader

    def read() -> list[LogRow]:
        # Exceptions raised and caught on the way may keep the reader alive until the collector runs.
        gc.collect()
        return left.reader.read()

    rows = await_that(read)
    assert {(row.lane, row.position) for row in rows} == story.appended
    left.reader.close()


def test_sharing_without_a_group_is_refused() -> None:
    log = Log(Cluster().memory, LogAddress("memory", LOG), LaneId(0, 0, LOG))
    with pytest.raises(ConfigurationError, match="give its name"):
        log.reader(share=True)


# -- on real bookies

_READS = """
import json, sys
from bookspark import BookKeeper
from bookspark.logs import open_log
# A session that is not lost while the process lives, on a machine that is busy.
with BookKeeper(sys.argv[1], metadata_session_timeout_seconds=20) as bookkeeper:
    reader = open_log(bookkeeper, sys.argv[2]).reader(group="audit", share=True)
    while True:
        rows = reader.read(20, timeout=1.0)
        print(json.dumps(["read", [(row.lane, row.position) for row in rows]]), flush=True)
        reader.commit()
        print(json.dumps(["saved", sorted(reader.lanes)]), flush=True)
"""


class ReaderProcess:
    """A process that reads as a member of the group, and its reports."""

    def __init__(self, cluster: LocalCluster) -> None:
        arguments = [sys.executable, "-c", _READS, cluster.zookeeper, LOG]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        self.read: list[Row] = []
        self.unsaved: list[Row] = []
        self.lanes: list[int] = []
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, told = json.loads(line)
            if what == "read":
                self.unsaved = [(lane, position) for lane, position in told]
                self.read += self.unsaved
            else:
                self.unsaved, self.lanes = [], told

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(SECONDS_MAX)
        self.thread.join(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.acceptance
def test_killed_reader_process_leaves_its_lanes_to_the_other_process(
    new_chroot: Callable[[], str],
) -> None:
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, LOG)
        producers = [log.producer(f"service-{number}") for number in range(4)]
        appended: set[Row] = set()

        def append(count: int) -> None:
            for _ in range(count):
                for producer in producers:
                    appended.add((producer.lane, producer.append(b"row").position))

        append(10)
        readers = [ReaderProcess(cluster) for _ in range(2)]
        try:
            await_that(lambda: all(len(one.lanes) == 2 for one in readers), what=lambda: [one.lanes for one in readers])
            append(10)
            killed, left = readers
            killed.end(signal.SIGKILL)
            append(10)
            await_that(lambda: len(left.lanes) == 4, what=lambda: left.lanes)
            append(10)
            await_that(lambda: appended <= {row for one in readers for row in one.read})
        finally:
            for one in readers:
                one.end(signal.SIGKILL)
            for producer in producers:
                producer.close()
        counts = Counter(row for one in readers for row in one.read)
        assert set(counts) == appended
        assert {row for row, count in counts.items() if count > 1} <= set(killed.unsaved)
        for one in readers:
            for lane in {lane for lane, _ in one.read}:
                positions = [position for of, position in one.read if of == lane]
                assert positions == sorted(positions), "a lane's rows come in their order"
