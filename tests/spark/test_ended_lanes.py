"""Ended lanes: the real ender, sink, committer and feeds over in-memory ledgers, in orders drawn by seed, with crashes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookspark.errors import BookKeeperError, ConfigurationError, MetadataStoreError
from bookspark.logs import collect_orphans, newest_header, truncate_log
from bookspark.logs.chain import committer, lane_choice
from bookspark.logs.feeds.log_feed import Limit, Offset
from bookspark.logs.feeds.times import Times
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs import ended_lanes
from bookspark.protocol.logs.lanes import ended_before
from bookspark.protocol.logs.log_record import LogTakenOverError
from bookspark.spark.connector import sink
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.spark.stand_in_spark import StandInSpark, _batches
from tests.spark.test_lanes import STEPS, Story, Writer, engine, feed, query_of, read, registry, values  # noqa: F401
from tests.stories import seeds

SEEDS = seeds(12)


class _KilledError(MetadataStoreError):
    """The writing process was killed."""


@contextmanager
def killed_at(write: int, behind: bool) -> Iterator[None]:
    """Kill the process at the ``write``-th record write meanwhile: after the write if ``behind``, else before it."""
    left, original = [write], MemoryStore.write_record

    def write_record(self: MemoryStore, *arguments: Any) -> int:
        left[0] -= 1
        if left[0] < 0 or (left[0] == 0 and not behind):
            raise _KilledError("killed here")
        version = original(self, *arguments)
        if left[0] == 0:
            raise _KilledError("killed here")
        return version

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryStore, "write_record", write_record)
        yield


class EndingStory(Story):
    """A story in which lanes end, whether or not their writers live, and enders are killed at each step."""

    def play(self) -> None:
        moves = (self.write,) * 6 + (self.append,) * 2 + (self.read,) * 4 + (self.replay, self.restart, self.compact)
        for _ in range(STEPS):
            self.random.choice((*moves, self.truncate, self.collect, self.reader_dies, *(self.end,) * 4))()
        self.check()

    def write(self) -> None:
        writer = self.random.choice(self.writers)
        writer.number += 1
        writer.last = self.rows(f"{writer.query.folder.name}-{writer.number}")
        writer.written += sorted(writer.last, key=lambda line: writer.last.index(line) % 2)
        self.insist(writer)

    def replay(self) -> None:
        writer = self.random.choice(self.writers)
        if writer.number >= 0:
            self.engine.begin_run(writer.query)
            self.insist(writer)

    def insist(self, writer: Writer) -> None:
        """Do as Spark does: the query ends and is restarted, and its batch is replayed."""
        try:
            self.engine.write(writer.query, writer.number, writer.last)
        except LogTakenOverError:
            self.engine.begin_run(writer.query)
            self.engine.write(writer.query, writer.number, writer.last)

    def end(self) -> None:
        bookkeeper: Any = self.engine.bookkeeper
        lane = self.random.choice(self.lanes() or [None])
        with (
            suppress(ConfigurationError, _KilledError),
            killed_at(self.random.randint(1, 12), self.random.random() < 0.5),
        ):
            if lane is not None:
                end_lane(bookkeeper, str(lane))

    def place_of(self, lane: int, end: Offset) -> int:
        found = registry(self.engine)
        ended = found.ended_lanes(found.get("orders"))[: ended_before(end)]
        return ended.index(lane) - len(ended) if lane in ended else lane

    def check(self) -> None:
        lanes = {lane.number: lane for lane in self.lanes()}
        ends = {n: newest_header(self.engine.bookkeeper, lane, b"")[1].position.rows for n, lane in lanes.items()}
        # The header of a lane without a commit has the last batch of the lane before it, and no rows.
        reader = feed(self.engine, fail=False) if lanes else None
        while reader is not None and (self.at is None or reader.spans(self.at, reader.newest())):
            self.read()
        if reader is None:
            return
        read_rows: dict[int, list[str | None]] = {
            n: [self.seen.get(n, {}).get(row) for row in range(rows)] for n, rows in ends.items()
        }
        for lane, rows in read_rows.items():
            assert all(value is not None or row < self.truncated.get(lane, 0) for row, value in enumerate(rows)), lane
        wanted = [lines for lines in (*(writer.written for writer in self.writers), self.appended) if lines]
        for lines in wanted:
            who = lines[0].rpartition("-")[0]
            mine = [
                rows for _, rows in sorted(read_rows.items()) if any(v and v.rpartition("-")[0] == who for v in rows)
            ]
            given = [value for rows in mine for value in rows]
            # Truncated rows were not seen; only their number is known.
            places = {line: at for at, line in enumerate(lines)}
            seen = [places[value] for value in given if value is not None]
            assert seen == sorted(set(seen)), f"{who}: {given} of {lines}"
        assert sum(ends.values()) == sum(map(len, wanted)), (ends, wanted)


def test_lanes_that_end_in_any_order_keep_each_row_once_and_read_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(committer, "CHAIN_MAX", 3)
    monkeypatch.setattr(ended_lanes, "BLOCK", 3)
    for seed in SEEDS:
        try:
            EndingStory(StandInSpark(monkeypatch), tmp_path / str(seed), seed).play()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_query_with_an_ended_lane_is_known_by_its_name_and_checkpoint_location(
    engine: StandInSpark,  # noqa: F811
    tmp_path: Path,
) -> None:
    bookkeeper: Any = engine.bookkeeper
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    two = query_of(engine, tmp_path / "two")
    engine.write(two, 0, ["two 0"])
    followed = registry(engine).get("orders").lanes[0].writers[0].removeprefix("query:")
    assert end_lane(bookkeeper, "orders@1") == 1
    # Its checkpoint was deleted: it would write all of its rows again.
    identity = (two.checkpoint / "metadata").read_text()
    (two.checkpoint / "metadata").unlink()
    engine.begin_run(two)
    with pytest.raises(Exception, match="its Spark checkpoint was deleted or is another query's"):
        engine.write(two, 0, ["two 0"])
    (two.checkpoint / "metadata").write_text(identity)
    engine.begin_run(two)
    engine.write(two, 0, ["two 0"])
    engine.write(two, 1, ["two 1"])
    assert read(engine) == ["two 0", "one", "two 1"]
    assert end_lane(bookkeeper, "orders@2") == 1
    three = query_of(engine, tmp_path / "three", follows=followed)
    engine.write(three, 0, ["three"])
    assert read(engine, "orders@3") == ["three"] and registry(engine).get("orders").lanes[0].after == 2
    engine.begin_run(two)
    with pytest.raises(Exception, match="is new to it"):
        engine.write(two, 2, ["too late"])
    engine.begin_run(three)
    del three.options["follows"]
    engine.write(three, 1, ["more"])
    assert read(engine) == ["two 0", "two 1", "one", "three", "more"]


def test_offsets_in_ended_lanes_are_chosen_by_row_and_by_time(engine: StandInSpark, tmp_path: Path) -> None:  # noqa: F811
    bookkeeper: Any = engine.bookkeeper
    for who in ("one", "two", "three", "four"):
        engine.write(query_of(engine, tmp_path / who), 0, [f"{who} {row}" for row in range(3)])
    for lane in (2, 1):
        end_lane(bookkeeper, f"orders@{lane}")
    reader = feed(engine)
    newest = reader.newest()
    assert newest == {"position": 3, "log": newest["log"], "3": 3, "ended": 2}
    place = reader.at_rows({1: 2, 3: 1}, newest)
    assert place == {"position": 3, "log": newest["log"], "1": 2, "3": 1, "ended": 1}
    assert values(engine, reader.pieces(place, newest)) == ["two 1", "four 2", "four 1"]
    with pytest.raises(ConfigurationError, match="has no lane 9"):
        reader.at_rows({9: 1}, newest)
    with pytest.raises(ConfigurationError, match="has 4 lanes"):
        reader.at(1)
    assert reader.at_times(Times(1), newest) == reader.earliest()
    assert reader.at_times(Times(1 << 50), reader.earliest()) == newest
    truncate_log(bookkeeper, "orders@2", 3, b"")
    truncate_log(bookkeeper, "orders@1", 1, b"")
    assert feed(engine).earliest() == {"position": 0, "log": newest["log"], "1": 1, "3": 0, "ended": 1}


def test_ended_lane_without_unread_rows_takes_no_share_of_a_limit(engine: StandInSpark, tmp_path: Path) -> None:  # noqa: F811
    bookkeeper: Any = engine.bookkeeper
    for who in ("one", "two"):
        engine.write(query_of(engine, tmp_path / who), 0, [f"{who} {row}" for row in range(3)])
    place = feed(engine).newest()
    end_lane(bookkeeper, "orders@1")
    engine.write(query_of(engine, tmp_path / "three"), 0, ["three 0", "three 1"])
    reader = feed(engine)
    assert reader.limited(place, reader.newest(), Limit(rows=1)) == {
        "position": 3,
        "log": place["log"],
        "2": 1,
        "ended": 1,
    }


def test_follower_killed_before_its_index_entry_is_known_after_its_lane_ended(
    engine: StandInSpark,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It got a lane that knew nothing of it, and its last batch came twice."""
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    engine.write(query_of(engine, tmp_path / "two"), 0, ["two"])
    followed = registry(engine).get("orders").lanes[0].writers[0].removeprefix("query:")
    three = query_of(engine, tmp_path / "three", follows=followed)
    with monkeypatch.context() as patched:
        patched.setattr(lane_choice, "note_writer", lambda *_: None)
        patched.setattr(sink, "note_writer", lambda *_: None)
        engine.write(three, 0, ["three"])
    bookkeeper: Any = engine.bookkeeper
    end_lane(bookkeeper, "orders@1")
    engine.begin_run(three)
    del three.options["follows"]
    engine.write(three, 0, ["three"])
    engine.write(three, 1, ["more"])
    assert read(engine) == ["two", "three", "one", "more"]


def enders_that_crash(monkeypatch: pytest.MonkeyPatch, bookkeeper: Any, lane: str, count: int) -> None:
    """``count`` enders that own the lane and die before they end it."""

    def killed(*_: Any) -> None:
        raise _KilledError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr("bookspark.logs.lane_ending.ProducerLedgers", killed)
        for _ in range(count):
            with pytest.raises(_KilledError):
                end_lane(bookkeeper, lane)


@pytest.mark.parametrize("batch", [0, 1], ids=["first batch of the query", "second batch of the run"])
@pytest.mark.parametrize("crashed", [0, 3], ids=["ended at once", "three enders crashed before"])
def test_task_of_a_run_whose_lane_ended_during_its_micro_batch_is_refused(
    engine: StandInSpark,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    crashed: int,
) -> None:
    """The other task got a new lane. Both tasks' ledgers were committed in the first lane, and the ledgers of the other lane were
    deleted as orphans: acknowledged rows were lost."""
    bookkeeper: Any = engine.bookkeeper
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    two, before = query_of(engine, tmp_path / "two"), [f"two {number}" for number in range(batch)]
    for number, line in enumerate(before):
        engine.write(two, number, [line])
    writer = engine.planned(two, batch)
    done = writer.write(_batches(["a", "b"]))
    enders_that_crash(monkeypatch, bookkeeper, "orders@1", crashed)
    assert end_lane(bookkeeper, "orders@1") == batch
    for late in (writer, engine.planned(two, batch)):
        with pytest.raises(LogTakenOverError, match=r"lane 'orders@1' was ended"):
            late.write(_batches(["c"]))
    with pytest.raises(LogTakenOverError, match=r"lane 'orders@1' was ended"):
        writer.commit([done], batch)
    assert read(engine) == [*before, "one"]
    engine.begin_run(two)
    for _ in range(2):
        engine.write(two, batch, ["a", "c", "b"])
    collect_orphans(bookkeeper, "orders", b"")
    assert sorted(read(engine)) == sorted([*before, "one", "a", "b", "c"])
    assert read(engine, "orders@2") == ["a", "b", "c"] if batch == 0 else True


@pytest.mark.parametrize("streaming", [True, False], ids=["micro-batch", "batch write"])
@pytest.mark.parametrize("other", ["lane", "log", "epoch"])
def test_commit_of_tasks_that_wrote_to_two_places_is_refused(
    engine: StandInSpark,  # noqa: F811
    tmp_path: Path,
    streaming: bool,
    other: str,
) -> None:
    one = query_of(engine, tmp_path / "one")
    engine.write(one, 0, ["one"])
    writer: Any = engine.planned(one, 1)
    if not streaming:
        options = SinkOptions.parse({"zookeeper": "memory", "log": "orders"})
        writer = sink.LogBatchWriter(options, registry(engine).get("orders"))
    told: Any = [writer.write(_batches([line])) for line in "ab"]
    match other:
        case "lane":
            strayed = replace(told[1], lane=told[1].lane.lane(7))
        case "log":
            strayed = replace(told[1], lane=told[1].lane._replace(log=told[1].lane.log + 1))
        case _:
            strayed = replace(told[1], epoch=told[1].epoch + 1)
    arguments = [1] if streaming else []
    for messages in ([told[0], strayed], [strayed, told[0]]):
        with pytest.raises(BookKeeperError, match="is not committed: its tasks wrote to different places"):
            writer.commit(messages, *arguments)
    assert read(engine) == ["one"]
    writer.commit(told, *arguments)
    assert read(engine) == ["one", "a", "b"]
