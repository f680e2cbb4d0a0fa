"""A reader of a log against a model, under random appends, ends of lanes, truncations, seeks and commits.

Law: the rows of a lane come in order from the reader's place, each once, and only truncated rows are in gaps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import ConfigurationError, DataLossError
from bookspark.logs import LogAddress, LogRegistry, Producer, RowReader, producer, producer_ledgers, truncate_log
from bookspark.logs.chain import committer
from bookspark.logs.feeds.gaps import Gap, GapKind
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.lane_ending import end_lane
from bookspark.logs.readers import registration
from bookspark.logs.row_reader import LogRow
from bookspark.protocol.logs import ended_lanes
from bookspark.store.metadata.store_clock import StoreClock
from tests.awaiting import await_that
from tests.spark.memory_bookkeeper import MemoryBookKeeper
from tests.stories import seeds

ORDERS, STEPS = LogAddress("memory", "orders"), 80
Place = dict[int, int]
"""The next row of each lane; a lane without one is at its beginning."""


class Story:
    """A log, one reader of a group at a time, and what the reader has to see."""

    def __init__(self, random: Random) -> None:
        self.random, self.now_ms = random, 1_700_000_000_000
        self.client: Any = MemoryBookKeeper()
        self.client.zookeeper = "memory"
        self.client.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
        LogRegistry(self.client.metadata).ensure("orders", {}, b"")
        self.rows: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        """Value and time of each row, by lane."""
        self.first: Place = defaultdict(int)
        """First row of each lane that is not truncated."""
        self.ended, self.producers = 0, dict[str, Producer]()
        self.saved: Place | None = None
        self.seen: list[tuple[dict[str, int], Place]] = []
        """Offsets of readers, for ``seek``."""
        self.begin()

    def step(self) -> None:
        often = [self.append, self.read] * 5 + [self.iterate, self.commit, self.plan] * 3
        seldom = [
            self.end,
            self.truncate,
            self.begin,
            self.gaps,
            self.commit_row,
            self.see,
            self.seek,
            self.seek_to_time,
        ]
        self.learn_lanes()
        self.random.choice([*often, *seldom, *seldom])()

    # -- the log

    def append(self) -> None:
        name = self.random.choice("abc")
        if name not in self.producers or self.random.random() < 0.1:
            self.producers[name] = Producer(self.client, ORDERS, name)
        lane = self.rows[self.producers[name].lane]
        for number in range(len(lane), len(lane) + self.random.choice([1, 3, 8])):
            self.now_ms += self.random.choice([0, 0, 1, 5])
            value = f"{name}{number}".encode()
            assert self.producers[name].append(value) == (self.producers[name].lane, number)
            lane.append((value, self.now_ms))

    def end(self) -> None:
        if self.producers:
            ended = self.producers.pop(self.random.choice(sorted(self.producers)))
            end_lane(self.client, f"orders@{ended.lane}")
            self.ended += 1

    def truncate(self) -> None:
        if self.rows:
            lane = self.random.choice(sorted(self.rows))
            self.first[lane] = self.random.randint(self.first[lane], len(self.rows[lane]))
            truncate_log(self.client, f"orders@{lane}", self.first[lane], b"")

    # -- the reader

    def begin(self) -> None:
        self.reader = RowReader(self.client, ORDERS, "earliest", "group")
        self.at = dict(self.first if self.saved is None else self.saved)
        self.moved(self.at)

    def moved(self, place: Place) -> None:
        self.at, self.since = dict(place), dict(place)
        self.returned: dict[int, LogRow] = {}
        self.iterator: Iterator[LogRow] | None = None

    def learn_lanes(self) -> None:
        """Let the reader hear of the lanes, which another thread tells it."""
        feed = self.reader._feed

        def knows() -> bool:
            feed._look_for_lanes()
            return feed._record.lanes_made >= max(self.rows, default=0) and feed._record.ended_count == self.ended

        await_that(knows)

    @property
    def has_lost(self) -> bool:
        return any(self.at.get(lane, 0) < first for lane, first in self.first.items())

    def got(self, item: LogRow | Gap | None) -> None:
        if item is None:
            assert self.has_lost or all(self.at.get(lane, 0) == len(rows) for lane, rows in self.rows.items())
        elif isinstance(item, Gap):
            assert (item.kind, item.first) == (GapKind.TRUNCATED, self.at.get(item.lane, 0))
            assert item.last < self.first[item.lane]
            self.at[item.lane] = item.last + 1
        else:
            assert item.position == self.at.get(item.lane, 0)
            assert (item.value, item.time_ms) == self.rows[item.lane][item.position]
            self.at[item.lane], self.returned[item.lane] = item.position + 1, item

    def read(self) -> None:
        try:
            rows = self.reader.read(self.random.choice([1, 2, 5, 100]))
        except DataLossError:
            assert self.has_lost
            self.gaps()
        else:
            for row in rows or [None]:
                self.got(row)

    def gaps(self) -> None:
        for item in self.reader.read_with_gaps(self.random.choice([1, 2, 100])) or [None]:
            self.got(item)

    def iterate(self) -> None:
        self.iterator = self.iterator or iter(self.reader)
        for _ in range(self.random.choice([1, 2, 7])):
            try:
                row = next(self.iterator, None)
            except DataLossError:
                assert self.has_lost
                row = None
            self.got(row)
            if row is None:
                self.iterator = None
                return

    def commit(self) -> None:
        self.reader.commit()
        self.saved, self.since = dict(self.at), dict(self.at)

    def commit_row(self) -> None:
        if self.returned:
            lane = self.random.choice(sorted(self.returned))
            since, end = self.since.get(lane, 0), self.at.get(lane, 0)
            row = self.returned[lane]._replace(position=self.random.randint(max(0, since - 2), end))
            if since <= row.position + 1 <= end:
                self.reader.commit(row)
                self.saved = {**self.at, lane: row.position + 1}
                self.since = dict(self.saved)
            else:
                with pytest.raises(ConfigurationError):
                    self.reader.commit(row)

    def see(self) -> None:
        self.seen.append((self.reader.offset, dict(self.at)))

    def seek(self) -> None:
        if self.seen:
            offset, place = self.random.choice(self.seen)
            self.reader.seek(offset)
            self.moved(place)

    def seek_to_time(self) -> None:
        times = [time_ms for rows in self.rows.values() for _, time_ms in rows]
        wanted = self.random.choice(times or [self.now_ms]) + self.random.choice([-(10**9), -1, 0, 0, 1])
        self.reader.seek_to_time(datetime.fromtimestamp(wanted / 1000, UTC))
        rows_of = {lane: sum(time_ms < wanted for _, time_ms in rows) for lane, rows in self.rows.items()}
        self.moved({lane: max(first, self.first[lane]) for lane, first in rows_of.items()})

    def plan(self) -> None:
        """Rows between any two places, planned by one feed."""
        feed = LogFeed(self.client, "orders", b"", fail_on_data_loss=False)
        assert feed.all_rows(feed.newest()).items() >= {lane: len(rows) for lane, rows in self.rows.items()}.items()
        for _ in range(3):
            end = {lane: self.random.randint(0, len(rows)) for lane, rows in self.rows.items()}
            start = {lane: self.random.randint(0, last) for lane, last in end.items()}
            planned: dict[int, list[int]] = defaultdict(list)
            for piece, _ in feed.pieces(*(feed.at_rows(place, feed.earliest()) for place in (start, end))):
                planned[piece.lane] += range(piece.position, piece.position + piece.rows)
            for lane, last in end.items():
                assert planned[lane] == [*range(max(start[lane], self.first[lane]), last)]


@pytest.mark.parametrize("seed", seeds(10))
def test_reader_of_a_log_has_the_rows_that_a_model_has(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a seek back, rows were called truncated."""
    random = Random(seed)
    monkeypatch.setattr(registration, "_teller", lambda: SimpleNamespace(add=lambda one: None, wake=lambda: None))
    monkeypatch.setattr(registration, "_LAST_SECONDS_MAX", 0.0)
    monkeypatch.setattr(Producer, "_tend", lambda one: None)
    monkeypatch.setattr(ended_lanes, "BLOCK", random.choice([1, 2, 1000]))
    monkeypatch.setattr(committer, "COMMITS_PER_LEDGER_MAX", random.choice([1, 2, 1000]))
    monkeypatch.setattr(producer_ledgers, "LEDGER_BYTES_MAX", random.choice([1, 60, 1 << 30]))
    monkeypatch.setattr("bookspark.logs.row_reader.READ_BYTES_MAX", random.choice([10, 60, 8 << 20]))
    monkeypatch.setattr("bookspark.logs.row_reader._ROWS_AHEAD_MAX", random.choice([1, 3, 10_000]))
    monkeypatch.setattr("bookspark.logs.chain.reader.COMMITS_AT_ONCE", random.choice([1, 2, 8]))
    story: Story | None = None

    def now(unit: int) -> Callable[..., int]:
        return lambda *arguments: (1_700_000_000_000 if story is None else story.now_ms) * unit

    for module in (producer, producer_ledgers):
        monkeypatch.setattr(module, "monotonic_ns", now(1_000_000))
    for name, time_of in (("ahead_ns", lambda clock: 0), ("known_ms", now(1)), ("now_ms", now(1))):
        monkeypatch.setattr(StoreClock, name, time_of)
    story = Story(random)
    for _ in range(STEPS):
        story.step()
