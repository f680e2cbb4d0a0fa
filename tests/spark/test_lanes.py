"""Many writers of a log: the real sink, committer, feeds and cleanup over in-memory ledgers, in orders drawn by seed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError, ConfigurationError, DataLossError, MetadataStoreError, ReadError
from bookspark.logs import (
    LogAddress,
    LogRegistry,
    LogRun,
    collect_orphans,
    delete_log,
    newest_header,
    truncate_log,
)
from bookspark.logs.chain import committer, lane_choice
from bookspark.logs.chain.lane_choice import StreamingQuery, begun_batch_write, claimed, lane_for_query
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.feeds.log_feed import Limit, LogFeed, Offset
from bookspark.logs.rows.splits import SizedPiece
from bookspark.protocol.logs.lanes import BATCH_WRITES, LaneId, lane_id, writer_of
from bookspark.protocol.logs.log_record import LogChangedError, LogRecord, LogRecreatedError, LogTakenOverError
from bookspark.protocol.logs.replays import CheckpointRewoundError
from bookspark.spark.connector import sink, source
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from tests.awaiting import await_that
from tests.spark.checkpoint_matrix import Query
from tests.spark.stand_in_spark import StandInSpark, _batches
from tests.stories import seeds

SEEDS, STEPS = seeds(10), 60
ORDERS = LogAddress("memory", "orders")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    return StandInSpark(monkeypatch)


def append(engine: StandInSpark, lines: list[str], log: str = "orders") -> None:
    """Append lines by a batch write."""
    options = SinkOptions.parse({"zookeeper": "memory", "log": log})
    writer = sink.LogBatchWriter(options, LogRegistry(engine.bookkeeper.metadata).ensure(log, {}, b""))
    writer.commit([writer.write(_batches(lines[task::2])) for task in range(2)])


def query_of(engine: StandInSpark, folder: Path, **options: str) -> Query:
    query = Query(folder, "orders", dict(options))
    engine.begin_run(query)
    return query


def values(engine: StandInSpark, pieces: list[SizedPiece]) -> list[str]:
    entries = engine.bookkeeper.entries
    for piece, _ in pieces:
        # The stand-in keeps the entries of a deleted ledger, but not its metadata.
        engine.bookkeeper.get_ledger_metadata(piece.ledger_id)
    return [
        entries[piece.ledger_id][entry].decode()
        for piece, _ in pieces
        for entry in range(piece.first_entry_id, piece.last_entry_id + 1)
    ]


def feed(engine: StandInSpark, name: str = "orders", fail: bool = True) -> LogFeed:
    other: Any = engine.bookkeeper.other()
    return LogFeed(other, name, b"", fail)


def read(engine: StandInSpark, name: str = "orders") -> list[str]:
    found = feed(engine, name)
    return values(engine, found.pieces(found.earliest(), found.newest()))


def rows_up_to(engine: StandInSpark, name: str, row: int) -> int:
    """The number of rows planned by a batch read that ends before ``row``."""
    options = SourceOptions.parse({"zookeeper": "memory", "log": name, "endingOffsets": str(row)})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(source, "feed", lambda options: feed(engine, name))
        parts: Any = source.EntryReader(options, StructType(), ()).partitions()
    return sum(piece.rows for part in parts for piece in part.pieces)


def registry(engine: StandInSpark) -> LogRegistry:
    return LogRegistry(engine.bookkeeper.metadata)


def index_of(engine: StandInSpark) -> LaneIndex:
    return LaneIndex(engine.bookkeeper.metadata, lane_id(registry(engine).get("orders")))


# -- scenarios in a fixed order


def test_second_query_and_batch_writes_get_their_own_lanes_and_end_no_writer(
    engine: StandInSpark, tmp_path: Path
) -> None:
    one, two = query_of(engine, tmp_path / "one"), query_of(engine, tmp_path / "two")
    for number in range(3):
        engine.write(one, number, [f"one {number}"])
        engine.write(two, number, [f"two {number}"])
        append(engine, [f"append {number}"])
    assert read(engine) == [f"{who} {number}" for who in ("one", "two", "append") for number in range(3)]
    assert [read(engine, f"orders@{lane}")[0] for lane in range(3)] == ["one 0", "two 0", "append 0"]
    record = registry(engine).get("orders")
    # No writer fenced another writer's commit ledger, so each query has a single commit ledger.
    assert len(record.commit_ledgers) == len(registry(engine).get("orders@1").commit_ledgers) == 1
    assert [lane.writers[-1] for lane in record.lanes][1:] == [BATCH_WRITES]
    assert registry(engine).names() == ["orders"]
    assert list(map(str, registry(engine).lanes_of("orders"))) == ["orders", "orders@1", "orders@2"]


def test_batch_writes_share_lane_0_of_a_log_without_a_query(engine: StandInSpark, tmp_path: Path) -> None:
    append(engine, ["a"])
    append(engine, ["b"])
    assert registry(engine).get("orders").lanes == ()
    engine.write(query_of(engine, tmp_path / "one"), 0, ["c"])
    append(engine, ["d"])
    assert (read(engine, "orders@0"), read(engine, "orders@1")) == (["a", "b", "d"], ["c"])


def test_follower_continues_in_the_lane_of_the_followed_query_which_is_refused(
    engine: StandInSpark, tmp_path: Path
) -> None:
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    two = query_of(engine, tmp_path / "two")
    engine.write(two, 0, ["two"])
    followed = registry(engine).get("orders").lanes[0].writers[0].removeprefix("query:")
    three = query_of(engine, tmp_path / "three", follows=followed)
    engine.write(three, 0, ["three"])
    assert read(engine) == ["one", "two", "three"] and read(engine, "orders@1") == ["two", "three"]
    engine.begin_run(two)
    with pytest.raises(Exception, match="is new to it"):
        engine.write(two, 1, ["too late"])
    engine.begin_run(three)
    del three.options["follows"]
    engine.write(three, 1, ["more"])
    assert read(engine, "orders@1") == ["two", "three", "more"]


def test_query_with_a_deleted_spark_checkpoint_is_refused_in_its_lane(engine: StandInSpark, tmp_path: Path) -> None:
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    two = query_of(engine, tmp_path / "two")
    engine.write(two, 0, ["two"])
    (two.checkpoint / "metadata").unlink()
    engine.begin_run(two)
    with pytest.raises(Exception, match="its Spark checkpoint was deleted or is another query's"):
        engine.write(two, 0, ["two"])
    assert read(engine) == ["one", "two"] and registry(engine).get("orders").lanes_made == 1


def test_two_first_queries_at_once_get_two_lanes(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = query_of(engine, tmp_path / "one"), query_of(engine, tmp_path / "two")
    looked: list[Query] = [two]

    def newest(*arguments: Any) -> Any:
        found = newest_header(*arguments)
        if looked:
            engine.write(looked.pop(), 0, ["two"])
            engine.begin_run(one)
            engine._enter_process(one)
            engine._properties |= engine._runs[one.checkpoint]
        return found

    monkeypatch.setattr(sink, "newest_header", newest)
    engine.write(one, 0, ["one"])
    assert read(engine) == ["two", "one"] and registry(engine).get("orders").lanes_made == 1


def test_first_query_and_first_batch_write_at_once_get_two_lanes(engine: StandInSpark, tmp_path: Path) -> None:
    bookkeeper: Any = engine.bookkeeper
    registry(engine).ensure("orders", {}, b"")
    query, log = StreamingQuery("q1"), lane_id(registry(engine).get("orders"))
    assert lane_for_query(bookkeeper, log, b"", query) == log
    record, header = newest_header(bookkeeper, log, b"")
    assert begun_batch_write(bookkeeper, log, "w").name == "orders"
    with pytest.raises(LogChangedError):
        claimed(bookkeeper, record, "run", query, header)
    assert lane_for_query(bookkeeper, log, b"", query) == log.lane(1)


def test_lanes_made_at_once_get_distinct_numbers_and_a_single_lane_per_writer(
    engine: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = registry(engine)
    found.ensure("orders", {}, b"")
    put, others = LaneIndex._put, [writer_of("q3"), writer_of("q2")]

    def interrupted(self: LaneIndex, made: LogRecord) -> None:
        put(self, made)
        if others:
            index_of(engine).begin(NewLane(others.pop()))

    monkeypatch.setattr(LaneIndex, "_put", interrupted)
    assert index_of(engine).begin(NewLane(writer_of("q1"))).number == 3
    assert index_of(engine).begin(NewLane(writer_of("q2"))).number == 2
    numbers = {lane.writers[0]: lane.number for lane in found.get("orders").lanes}
    assert numbers == {"query:q3": 1, "query:q2": 2, "query:q1": 3}


def test_lanes_left_by_an_interrupted_deletion_do_no_harm_to_a_later_log_of_the_name(
    engine: StandInSpark, tmp_path: Path
) -> None:
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    engine.write(query_of(engine, tmp_path / "two"), 0, ["two"])
    # The log's own record goes first, and then the deletion was killed.
    old, store = registry(engine).get("orders"), engine.bookkeeper.metadata
    store.delete_record("log_records", str(old.log_id))
    assert store.list_records("log_records") == [f"{old.log_id}@1"]
    assert registry(engine).find("orders") is None and registry(engine).all_lanes() == []
    engine.write(query_of(engine, tmp_path / "three"), 0, ["three"])
    engine.write(query_of(engine, tmp_path / "four"), 0, ["four"])
    assert read(engine) == ["three", "four"]
    new = registry(engine).get("orders").log_id
    assert new != old.log_id
    assert sorted(store.list_records("log_records")) == [str(new), f"{new}@1"], "and the creation has cleaned up"


@pytest.mark.parametrize("after", [False, True], ids=["before it wrote the lane", "after it"])
def test_late_lane_maker_changes_nothing_in_a_later_log_of_the_name(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """A lane's record was emptied, and its committed rows could no longer be read."""
    found = registry(engine)
    old = found.ensure("orders", {}, b"")
    put = LaneIndex._put

    def stalled(self: LaneIndex, made: LogRecord) -> None:
        if after:
            put(self, made)
        monkeypatch.setattr(LaneIndex, "_put", put)
        delete_log(engine.bookkeeper, "orders", b"")
        for who in ("one", "two"):
            engine.write(query_of(engine, tmp_path / who), 0, [who])
        if not after:
            put(self, made)

    monkeypatch.setattr(LaneIndex, "_put", stalled)
    index = index_of(engine)
    with pytest.raises(LogRecreatedError, match=f"with id {old.log_id} was deleted.* another log by now"):
        index.begin(NewLane(writer_of("late")))
    assert read(engine) == ["one", "two"]
    assert [lane.number for lane in found.lanes_of("orders")] == [0, 1]


def test_query_planned_for_a_log_that_is_another_by_now_writes_nothing(engine: StandInSpark, tmp_path: Path) -> None:
    """Its rows were meant for the log that was there when it was planned."""
    one = query_of(engine, tmp_path / "one")
    engine.write(one, 0, ["one"])
    options = SinkOptions.parse({"zookeeper": "memory", "log": "orders", "checkpointlocation": str(one.checkpoint)})
    planned = registry(engine).get("orders")
    stream, batch = sink.LogStreamWriter(options, planned), sink.LogBatchWriter(options, planned)
    told = batch.write(_batches(["row"]))
    delete_log(engine.bookkeeper, "orders", b"")
    now = registry(engine).ensure("orders", {}, b"")
    engine.begin_run(one)
    engine._properties |= {**engine._runs[one.checkpoint], "streaming.sql.batchId": "1"}
    both_ids = f"with id {planned.log_id} was deleted.* with id {now.log_id}"
    with pytest.raises(LogRecreatedError, match=both_ids):
        stream.write(_batches(["row"]))
    with pytest.raises(LogRecreatedError, match=both_ids):
        sink.LogBatchWriter(options, planned)
    with pytest.raises(BookKeeperError, match="not committed"):
        batch.commit([told])
    assert read(engine) == []


def test_follower_killed_after_its_claim_keeps_the_followed_lane(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index did not name the follower. Restarted without ``follows`` it got a second lane, and its last batch came twice."""
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    engine.write(query_of(engine, tmp_path / "two"), 0, ["two"])
    followed = registry(engine).get("orders").lanes[0].writers[0].removeprefix("query:")
    three = query_of(engine, tmp_path / "three", follows=followed)
    note = lane_choice.note_writer

    def killed(*arguments: Any) -> None:
        monkeypatch.setattr(lane_choice, "note_writer", note)
        raise OSError("killed here")

    monkeypatch.setattr(lane_choice, "note_writer", killed)
    with pytest.raises(Exception, match="killed here"):
        engine.write(three, 0, ["three"])
    engine.write(three, 0, ["three"])
    engine.begin_run(three)
    del three.options["follows"]
    engine.write(three, 0, ["three"])
    engine.write(three, 1, ["more"])
    assert read(engine) == ["one", "two", "three", "more"] and registry(engine).get("orders").lanes_made == 1


def test_offset_in_a_lane_is_refused_in_another_lane(engine: StandInSpark, tmp_path: Path) -> None:
    for who, rows in (("one", 5), ("two", 3), ("three", 2)):
        engine.write(query_of(engine, tmp_path / who), 0, [f"{who} {row}" for row in range(rows)])
    log = registry(engine).get("orders").log_id
    ends = {name: feed(engine, name).newest() for name in ("orders@0", "orders@1", "orders@2")}
    assert ends["orders@0"] == {"position": 5, "log": log}
    assert ends["orders@1"] == {"position": 0, "log": log, "1": 3}
    for name, end in ends.items():
        for other in ends:
            reader = feed(engine, other)
            if name == other:
                reader.check(end)
            else:
                with pytest.raises(ConfigurationError, match="an offset of another source"):
                    reader.check(end)
    everything = feed(engine)
    everything.check(ends["orders@1"])
    rest = values(engine, everything.pieces(ends["orders@1"], everything.newest()))
    assert sorted(rest) == [f"{who} {row}" for who, rows in (("one", 5), ("three", 2)) for row in range(rows)]
    assert feed(engine, "orders@1").at(2) == {"position": 0, "log": log, "1": 2}


def test_log_is_deleted_with_all_its_lanes_and_no_other_log(engine: StandInSpark, tmp_path: Path) -> None:
    for log in ("orders", "orders2"):
        for who in ("one", "two"):
            query = Query(tmp_path / log / who, log)
            engine.begin_run(query)
            engine.write(query, 0, [who])
    delete_log(engine.bookkeeper, "orders", b"")
    assert list(map(str, registry(engine).all_lanes())) == ["orders2", "orders2@1"]
    labels = {
        engine.bookkeeper.get_ledger_metadata(ledger).custom_metadata["bookspark.log"]
        for ledger in engine.bookkeeper.list_ledgers()
    }
    assert labels == {b"orders2", b"orders2@1"}


def test_row_number_is_accepted_for_a_lane_but_refused_for_several_lanes(engine: StandInSpark, tmp_path: Path) -> None:
    for who in ("one", "two"):
        engine.write(query_of(engine, tmp_path / who), 0, [f"{who} {row}" for row in range(4)])
    with pytest.raises(ConfigurationError, match=r"log 'orders' has 2 lanes, .* orders@0"):
        truncate_log(engine.bookkeeper, "orders", 2, b"")
    with pytest.raises(ConfigurationError, match=r"log 'orders' has 2 lanes, .* orders@0"):
        feed(engine).at(2, "startingOffsets")
    assert rows_up_to(engine, "orders@1", 3) == 3
    with pytest.raises(ReadError, match=r"'orders@1' has 4 rows .* endingOffsets 5"):
        rows_up_to(engine, "orders@1", 5)
    truncate_log(engine.bookkeeper, "orders@1", 2, b"")
    assert (len(read(engine, "orders@0")), len(read(engine, "orders@1")), len(read(engine))) == (4, 2, 6)


def test_stream_reads_a_lane_made_while_it_runs(engine: StandInSpark, tmp_path: Path) -> None:
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    reader = feed(engine)
    start = reader.newest()
    assert start == {"position": 1, "log": start["log"]}
    engine.write(query_of(engine, tmp_path / "two"), 0, ["two"])
    end = {**start, "1": 1}
    await_that(lambda: reader.newest() == end, what="the reader has not met the lane")
    assert values(engine, reader.pieces(start, end)) == ["two"]


def test_rows_of_a_new_lane_truncated_before_a_stream_saw_it_are_data_loss(
    engine: StandInSpark, tmp_path: Path
) -> None:
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    start = feed(engine).newest()
    engine.write(query_of(engine, tmp_path / "two"), 0, ["two 0", "two 1", "two 2"])
    truncate_log(engine.bookkeeper, "orders@1", 2, b"")
    reader = feed(engine)
    with pytest.raises(DataLossError, match="log 'orders@1': rows 0 to 1 were truncated"):
        reader.pieces(start, reader.newest())


def test_values_are_decompressed_with_the_dictionary_of_their_own_lane(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for lane, who in enumerate(("one", "two")):
        engine.write(query_of(engine, tmp_path / who), 0, [who])
        registry(engine).update(f"orders@{lane}", lambda record, who=who: record.with_dictionary(who.encode()))  # type: ignore[misc]
    monkeypatch.setattr(source, "client", lambda zookeeper: engine.bookkeeper)
    monkeypatch.setattr(source, "row_decoder", lambda metadata, columns, dictionary: dictionary())
    options = SourceOptions.parse({"zookeeper": "memory", "log": "orders"})
    partitions = source.EntryPartitions(options, source.schema_of(options), ["value"])
    reader = feed(engine)
    ledgers = [piece.ledger_id for piece, _ in reader.pieces(reader.earliest(), reader.newest())]
    assert [partitions._decoder(engine.bookkeeper.get_ledger_metadata(one)) for one in ledgers] == [b"one", b"two"]


def test_limit_is_shared_over_lanes_in_proportion_to_their_rows(engine: StandInSpark, tmp_path: Path) -> None:
    for who, rows in (("one", 90), ("two", 10)):
        engine.write(query_of(engine, tmp_path / who), 0, [f"{who} {row}" for row in range(rows)])
    reader = feed(engine)
    start, end = reader.earliest(), reader.newest()
    limited = reader.limited(start, end, Limit(rows=20))
    assert limited == {"position": 18, "log": start["log"], "1": 2}
    limited = reader.limited(start, end, Limit(size=1))
    assert limited == {"position": 1, "log": start["log"], "1": 0}


def test_combined_row_and_byte_limits_let_a_row_through(engine: StandInSpark, tmp_path: Path) -> None:
    """The only row went to the lane with the most rows, the only byte to the lane with the most bytes."""
    engine.write(query_of(engine, tmp_path / "one"), 0, ["row"] * 5)
    engine.write(query_of(engine, tmp_path / "two"), 0, ["a longer row" * 9])
    reader = feed(engine)
    start = reader.earliest()
    assert reader.limited(start, reader.newest(), Limit(rows=1, size=1)) == {**start, "position": 1, "1": 0}


def test_lanes_truncated_to_their_ends_are_passed_under_a_byte_limit(engine: StandInSpark, tmp_path: Path) -> None:
    """They had no size and so no share of the limit, and the stream stood before them for ever."""
    for who in ("one", "two", "three"):
        engine.write(query_of(engine, tmp_path / who), 0, [f"{who} {row}" for row in range(3)])
    reader = feed(engine, fail=False)
    start = reader.earliest()
    for lane in ("orders@1", "orders@2"):
        truncate_log(engine.bookkeeper, lane, 3, b"")
    reader = feed(engine, fail=False)
    place = {**start, "position": 3}
    for _ in range(2):
        place = reader.limited(place, reader.newest(), Limit(size=1))
    assert place == reader.newest()
    both = feed(engine).limited(start, {**start, "position": 3}, Limit(rows=2, size=1))
    assert both["position"] == 1


def test_reader_continues_without_the_metadata_store_where_bookies_suffice(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.write(query_of(engine, tmp_path / "one"), 0, ["one"])
    reader = feed(engine)
    before = reader.newest()
    engine.write(query_of(engine, tmp_path / "two"), 0, ["two"])
    get, away = LogRegistry.get, MetadataStoreError("away")
    monkeypatch.setattr(LogRegistry, "get", lambda *_: (_ for _ in ()).throw(away))
    assert reader.newest() == before
    monkeypatch.setattr(LogRegistry, "get", get)
    await_that(lambda: values(engine, reader.pieces(before, reader.newest())) == ["two"])


# -- scenarios in random order


@dataclass
class Writer:
    query: Query
    number: int = -1
    written: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    # Properties of the tasks of earlier runs.
    earlier: list[dict[str, str]] = field(default_factory=list)


class Story:
    """Queries, batch writes, cleanup and readers of a log, in an order drawn by seed."""

    def __init__(self, engine: StandInSpark, folder: Path, seed: int) -> None:
        self.engine, self.random = engine, Random(seed)
        self.writers = [Writer(query_of(engine, folder / str(n))) for n in range(self.random.randint(1, 4))]
        self.appended: list[str] = []
        self.truncated: dict[int, int] = {}
        self.reader: LogFeed | None = None
        self.at: Offset | None = None
        # Values that the reader returned, by lane and position.
        self.seen: dict[int, dict[int, str]] = {}

    def play(self) -> None:
        moves = (self.write,) * 6 + (self.append,) * 2 + (self.read,) * 4 + (self.replay, self.restart, self.zombie)
        for _ in range(STEPS):
            self.random.choice((*moves, self.compact, self.truncate, self.collect, self.reader_dies))()
        self.check()

    def rows(self, name: str) -> list[str]:
        return [f"{name} {row}" for row in range(self.random.randint(1, 4))]

    def write(self) -> None:
        writer = self.random.choice(self.writers)
        writer.number += 1
        writer.last = self.rows(f"{writer.query.folder.name}-{writer.number}")
        self.engine.write(writer.query, writer.number, writer.last)
        writer.written += sorted(writer.last, key=lambda line: writer.last.index(line) % 2)

    def append(self) -> None:
        lines = self.rows(f"append-{len(self.appended)}")
        append(self.engine, lines)
        self.appended += [*lines[::2], *lines[1::2]]

    def restart(self) -> None:
        writer = self.random.choice(self.writers)
        writer.earlier.append(self.engine._runs[writer.query.checkpoint])
        self.engine.begin_run(writer.query)

    def replay(self) -> None:
        """Restart a query whose driver died before Spark recorded the micro-batch as done."""
        writer = self.random.choice(self.writers)
        if writer.number >= 0:
            writer.earlier.append(self.engine._runs[writer.query.checkpoint])
            self.engine.begin_run(writer.query)
            self.engine.write(writer.query, writer.number, writer.last)

    def zombie(self) -> None:
        """Let a run that was believed dead write after another run of its query has written."""
        writer = self.random.choice(self.writers)
        self.replay_of(writer)
        if not writer.earlier or writer.number < 0:
            return
        standing = self.engine._runs[writer.query.checkpoint]
        self.engine._runs[writer.query.checkpoint] = writer.earlier[-1]
        try:
            self.engine.write(writer.query, writer.number + 1, ["never"])
        except (LogTakenOverError, CheckpointRewoundError):
            pass
        else:
            # A run that had never claimed the lane can't be recognised as an earlier run.
            writer.number += 1
            writer.last = ["never"]
            writer.written.append("never")
        self.engine._runs[writer.query.checkpoint] = standing
        self.engine.begin_run(writer.query)

    def replay_of(self, writer: Writer) -> None:
        if writer.number >= 0:
            self.engine.write(writer.query, writer.number, writer.last)

    def lanes(self) -> list[LaneId]:
        found = registry(self.engine)
        return found.lanes_of("orders") if found.find("orders") else []

    def compact(self) -> None:
        for lane in self.lanes():
            record = registry(self.engine).get(lane)
            if record.owner:
                run = LogRun.of(ORDERS, record)
                committer.compact_chain(self.engine.bookkeeper, run)

    def truncate(self) -> None:
        for lane in self.lanes()[:1] if self.random.random() < 0.5 else self.lanes()[-1:]:
            end = newest_header(self.engine.bookkeeper, lane, b"")[1].position.rows
            row = self.random.randint(0, end // 2)
            truncate_log(self.engine.bookkeeper, f"orders@{lane.number}", row, b"")
            self.truncated[lane.number] = max(row, self.truncated.get(lane.number, 0))
        # A running reader may plan rows truncated since, and its tasks would raise.
        self.reader = None

    def collect(self) -> None:
        if self.lanes():
            collect_orphans(self.engine.bookkeeper, "orders", b"")

    def reader_dies(self) -> None:
        self.reader = None

    def read(self) -> None:
        if not self.lanes():
            return
        if self.reader is None:
            self.reader = feed(self.engine, fail=False)
        # The offset as Spark's checkpoint keeps it.
        start = self.at = json.loads(json.dumps(self.at or self.reader.earliest()))
        end = self.reader.newest()
        if self.random.random() < 0.5:
            end = self.reader.limited(start, end, Limit(rows=self.random.randint(1, 9)))
        pieces = self.reader.pieces(start, end)
        again = feed(self.engine, fail=False)
        again.check(start)
        assert again.pieces(start, end) == pieces, "a replayed plan is the same plan"
        order = [(self.place_of(piece.lane, end), piece.position) for piece, _ in pieces]
        assert order == sorted(order)
        for piece, size in pieces:
            lane = self.seen.setdefault(piece.lane, {})
            for row, value in enumerate(values(self.engine, [(piece, size)])):
                assert piece.position + row not in lane, "read twice"
                lane[piece.position + row] = value
        self.at = end

    def place_of(self, lane: int, end: Offset) -> int:
        """The place of a lane in the union up to ``end``."""
        return lane

    def check(self) -> None:
        """Read the remaining rows, and compare each lane with the rows of its writer."""
        ends = {lane.number: newest_header(self.engine.bookkeeper, lane, b"")[1].position.rows for lane in self.lanes()}
        while self.at is None or {0: self.at["position"]} | {n: self.at.get(str(n), 0) for n in ends if n} != ends:
            self.read()
        wanted = [lines for lines in (*(writer.written for writer in self.writers), self.appended) if lines]
        assert sum(ends.values()) == sum(map(len, wanted)), (ends, wanted)
        for lane, rows in ends.items():
            seen = self.seen.get(lane, {})
            missing = [row for row in range(rows) if row not in seen]
            assert all(row < self.truncated.get(lane, 0) for row in missing), f"lane {lane}: {missing} were not read"
            same = [lines for lines in wanted if len(lines) == rows and all(lines[row] == seen[row] for row in seen)]
            assert same or not rows, f"lane {lane} of {rows} rows is not what one writer wrote, in order: {seen}"


def test_actions_in_any_order_keep_each_row_once_in_order_and_read_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(committer, "CHAIN_MAX", 3)
    for seed in SEEDS:
        try:
            Story(StandInSpark(monkeypatch), tmp_path / str(seed), seed).play()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
