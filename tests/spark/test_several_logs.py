"""Several logs in one read (options ``logs`` and ``logPattern``): stories drawn by seed, and a real session."""

from __future__ import annotations

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError, ConfigurationError, DataLossError, UnauthorizedAccessError
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, truncate_log
from bookspark.logs.feeds.log_feed import LogFeed, Offset
from bookspark.logs.readers.lag import readers_of
from bookspark.protocol.logs.log_options import LogOptions, RowFormat
from bookspark.spark.connector import feeds, several_logs, source
from bookspark.spark.connector.data_source import register
from bookspark.spark.connector.query_place import QueryPlace
from bookspark.spark.connector.several_logs import (
    LogsReader,
    LogsStreamReader,
    check_fits,
    merged_columns,
    schema_of_logs,
)
from bookspark.spark.options.source_options import SourceOptions
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.entry_batch import Entry
from tests.awaiting import await_that
from tests.spark.checkpoint_matrix import Query
from tests.spark.memory_bookkeeper import MemoryReader
from tests.spark.stand_in_spark import StandInSpark
from tests.spark.test_lanes import append, values
from tests.spark.test_stream_source import Follower, write
from tests.stories import seeds

SEEDS, STEPS = seeds(6), 80
IN_MEMORY = {"zookeeper": "memory", "pollTimeoutMs": "0"}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    engine = StandInSpark(monkeypatch)
    for module in (several_logs, source, feeds):
        monkeypatch.setattr(module, "client", lambda zookeeper: engine.bookkeeper)
    monkeypatch.setattr(several_logs, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(QueryPlace, "tell", lambda self, offset: None)
    monkeypatch.setattr(QueryPlace, "done", lambda self: None)
    return engine


class Writers:
    """Batch writes and queries that write logs. A line names its log, how often the log was created, its writer, and its
    number."""

    def __init__(self, engine: StandInSpark, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        # How often a log was created.
        self.made: dict[str, int] = {}
        self.there: set[str] = set()
        # Numbers of the lines, in their order in the log.
        self.written: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        self._queries: dict[tuple[str, int, str], tuple[Query, int]] = {}

    def make(self, log: str) -> None:
        registry = LogRegistry(self.engine.bookkeeper.metadata)
        registry.ensure(log, {}, b"")
        self.made[log] = self.made.get(log, 0) + 1
        # Later by the clock than the log before.
        registry.update(log, lambda record: replace(record, ctime_ms=record.ctime_ms + self.made[log]))
        self.there.add(log)

    def delete(self, log: str) -> None:
        self.engine.delete(log)
        self.there.discard(log)

    def write(self, log: str, writer: str, rows: int) -> None:
        if log not in self.there:
            self.make(log)
        key = log, self.made[log], writer
        first = len(self.written[key])
        numbers = range(first, first + rows)
        lines = [f"{log} {self.made[log]} {writer} {number}" for number in numbers]
        if writer == "batch":
            append(self.engine, lines, log)
        else:
            query, number = self._queries.get(key, (None, 0))
            if query is None:
                query = Query(self.folder / "-".join(map(str, key)), log, {})
                self.engine.begin_run(query)
            self.engine.write(query, number, lines)
            self._queries[key] = query, number + 1
        # Two tasks write the lines.
        self.written[key] += [*numbers[::2], *numbers[1::2]]


class Reading:
    """A query as Spark drives it: each offset is stored before its micro-batch is planned, and the sink has each batch once."""

    def __init__(self, engine: StandInSpark, **options: str) -> None:
        self.engine, self.options = engine, {**IN_MEMORY, **options}
        self.offsets: list[str] = []
        self.done = 0
        self.sink: dict[int, list[str]] = {}
        self.restart()

    def restart(self) -> None:
        options = SourceOptions.parse(self.options).for_stream()
        schema = schema_of_logs(options)
        self.reader = LogsStreamReader(options, schema, schema.names)

    def trigger(self, limit: ReadLimit | None = None, dies: bool = False) -> bool:
        """Run or replay a micro-batch; return whether there was one. ``dies``: after it is planned and written."""
        start = json.loads(self.offsets[self.done - 1]) if self.done else self.reader.initialOffset()
        if len(self.offsets) == self.done:
            end = json.dumps(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))
            if end == json.dumps(start):
                return False
            self.offsets.append(end)
        parts: Any = self.reader.partitions(start, json.loads(self.offsets[self.done]))
        rows: list[str] = []
        for part in parts:
            found = values(self.engine, [(piece, 0) for piece in part.ranges.pieces])
            assert all(row.startswith(f"{part.log} ") for row in found), "rows are of their log"
            rows += found
        assert self.sink.setdefault(self.done, rows) == rows, "a micro-batch that is replayed has the same rows"
        if not dies:
            self.reader.commit(json.loads(self.offsets[self.done]))
            self.done += 1
        return True

    def available_now(self) -> None:
        self.reader.prepareForTriggerAvailableNow()
        for _ in range(1000):
            if not self.trigger():
                return
        raise AssertionError("it does not end")

    def rows(self) -> list[str]:
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    def by_writer(self) -> dict[tuple[str, int, str], list[int]]:
        found: dict[tuple[str, int, str], list[int]] = defaultdict(list)
        for row in self.rows():
            log, made, writer, number = row.split()
            found[log, int(made), writer].append(int(number))
        return found


LIMITS: list[dict[str, str]] = [{}, {"maxOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "60"}]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_is_read_once_in_order_over_restarts_and_new_logs(
    engine: StandInSpark, tmp_path: Path, seed: int
) -> None:
    draw = Random(seed)
    writers = Writers(engine, tmp_path)
    writers.write("orders-a", "batch", 2)
    writers.write("other", "batch", 5)
    reading = Reading(engine, logPattern="orders-[a-f]", **draw.choice(LIMITS))
    for _ in range(STEPS):
        match draw.choice(("write", "write", "write", "trigger", "trigger", "die", "restart", "now")):
            case "write":
                log = draw.choice(["orders-a", "orders-b", "orders-c", f"orders-{draw.choice('def')}", "orders-x"])
                writers.write(log, draw.choice(["batch", "q1", "q2"]), draw.randint(1, 6))
            case "trigger":
                reading.trigger()
            case "die":
                reading.trigger(dies=True)
                reading.restart()
            case "restart":
                reading.restart()
            case "now":
                if draw.random() < 0.3:
                    reading.available_now()
                    reading.restart()
    reading.restart()
    reading.available_now()
    reading.restart()
    reading.available_now()  # a log that was discovered in the first turn
    read = reading.by_writer()
    assert read == {key: rows for key, rows in writers.written.items() if key[0][-1] in "abcdef" and key[0] != "other"}


@pytest.mark.parametrize("seed", SEEDS)
def test_logs_created_again_lose_no_row_of_other_logs_and_repeat_no_row(
    engine: StandInSpark, tmp_path: Path, seed: int
) -> None:
    draw = Random(1000 + seed)
    writers = Writers(engine, tmp_path)
    for log in "abc":
        writers.write(log, "batch", 2)
    reading = Reading(engine, logPattern="[a-e]", failOnDataLoss="false", **draw.choice(LIMITS))
    for _ in range(STEPS):
        match draw.choice(("write", "write", "write", "trigger", "trigger", "restart", "delete")):
            case "write":
                writers.write(draw.choice("abcde"), draw.choice(["batch", "q1"]), draw.randint(1, 6))
            case "trigger":
                reading.trigger()
            case "restart":
                reading.restart()
            case "delete" if draw.random() < 0.4 and len(writers.there) > 2:
                writers.delete(draw.choice(sorted(writers.there - {"a"})))
    for _ in range(2):
        reading.restart()
        reading.available_now()
    read = reading.by_writer()
    for (log, made, writer), rows in writers.written.items():
        found = read.pop((log, made, writer), [])
        assert found == rows[: len(found)], "in order, from the first one, each once"
        if log in writers.there and made == writers.made[log]:
            assert len(found) == len(rows)
    assert not read


def test_deleted_log_fails_the_query_unless_data_loss_is_allowed(engine: StandInSpark, tmp_path: Path) -> None:
    writers = Writers(engine, tmp_path)
    for log in "ab":
        writers.write(log, "batch", 2)
    strict, lenient = Reading(engine, logs="a,b"), Reading(engine, logs="a,b", failOnDataLoss="false")
    for reading in (strict, lenient):
        reading.available_now()
        reading.reader._target = None
    writers.delete("b")
    writers.write("a", "batch", 1)
    with pytest.raises(DataLossError, match=r"log 'b' with id [0-9]+ was deleted since this query read it up to"):
        strict.trigger()
    lenient.trigger()
    assert lenient.rows()[-1] == "a 1 batch 2"
    assert not lenient.trigger()
    writers.write("b", "batch", 1)
    now = LogRegistry(engine.bookkeeper.metadata).get("b").log_id
    with pytest.raises(
        DataLossError, match=rf"log 'b' with id .* was deleted.*'b' is another log by now, with id {now}"
    ):
        strict.trigger()
    while lenient.trigger():
        pass
    assert lenient.rows()[-1] == "b 2 batch 0"


def test_log_created_again_under_available_now_is_read_to_its_own_end(engine: StandInSpark, tmp_path: Path) -> None:
    """Its offset had the rows of the deleted log, and failed each restart."""
    writers = Writers(engine, tmp_path)
    writers.write("a.x", "batch", 10)
    writers.write("a.y", "batch", 2)
    reading = Reading(engine, logPattern="a.*", failOnDataLoss="false")
    start = reading.reader.initialOffset()
    reading.reader.prepareForTriggerAvailableNow()
    reading.offsets, reading.done, reading.sink = [json.dumps(start)], 1, {0: []}
    writers.delete("a.x")
    writers.write("a.x", "batch", 3)
    new = LogRegistry(engine.bookkeeper.metadata).get("a.x").log_id
    # The old log's beginning and end, the new log's beginning, and its end.
    ends = []
    while reading.trigger():
        ends.append(json.loads(reading.offsets[-1])["a.x"])
        # The end is taken once.
        writers.write("a.x", "batch", 1)
    assert ends[-2]["log"] == new and ends[-2]["position"] == 0
    assert ends[-1]["log"] == new and 3 <= ends[-1]["position"] < len(writers.written["a.x", 2, "batch"])
    reading.restart()
    while reading.trigger():
        pass
    read = reading.by_writer()
    assert read == {key: rows for key, rows in writers.written.items() if key[:2] != ("a.x", 1)}


@pytest.mark.parametrize("again", [False, True])
def test_log_deleted_while_the_limit_is_shared_out_does_not_stop_the_others(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    writers = Writers(engine, tmp_path)
    for log in "abc":
        writers.write(log, "batch", 6)
    strict, lenient = (
        Reading(engine, logPattern="[abc]", maxOffsetsPerTrigger="4", failOnDataLoss=fail) for fail in ("true", "false")
    )
    share_out, left = several_logs.shared_out, ["b"]

    def delete_first(waiting: Any, most: int) -> Any:
        for log in left:
            writers.delete(log)
            if again:
                writers.write(log, "batch", 2)
        left.clear()
        return share_out(waiting, most)

    monkeypatch.setattr(several_logs, "shared_out", delete_first)
    assert lenient.trigger()
    while lenient.trigger():
        pass
    read = lenient.by_writer()
    kept = {key: rows for key, rows in writers.written.items() if key[:2] != ("b", 1)}
    assert read == kept
    left.append("c")
    with pytest.raises(DataLossError, match=r"log 'c' with id [0-9]+ was deleted since this query read it"):
        strict.trigger()


def test_log_deleted_while_the_start_is_asked_for_does_not_stop_the_others(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers, asked = Writers(engine, tmp_path), LogFeed.newest
    for log in "ab":
        writers.write(log, "batch", 6)

    def deleted_first(feed: LogFeed) -> Offset:
        monkeypatch.setattr(LogFeed, "newest", asked)
        writers.delete("a")
        return asked(feed)

    monkeypatch.setattr(LogFeed, "newest", deleted_first)
    reading = Reading(engine, logPattern="[ab]")
    assert list(reading.reader.initialOffset()) == ["b"]
    assert reading.trigger() and len(reading.rows()) == 6


def test_feeds_of_deleted_and_stopped_logs_leave_no_watch(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers, watch, kept = Writers(engine, tmp_path), MemoryStore.watch_record, set[object]()

    def counted(store: MemoryStore, *given: Any) -> Any:
        end, one = watch(store, *given), object()
        kept.add(one)
        return lambda: (kept.discard(one), end())

    monkeypatch.setattr(MemoryStore, "watch_record", counted)
    for log in "ab":
        writers.write(log, "batch", 6)
    reading = Reading(engine, logPattern="[ab]", failOnDataLoss="false")
    for _ in range(3):
        assert reading.trigger()
        assert LogsReader(reading.reader.options, reading.reader.schema, ()).partitions()
        writers.delete("a")
        writers.write("a", "batch", 6)
    assert len(kept) == 2
    reading.reader.stop()
    assert not kept


def test_lagging_zookeeper_server_repeats_no_row(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not know a log yet, or may know the earlier log of its name."""
    writers = Writers(engine, tmp_path)
    for log in "ab":
        writers.write(log, "batch", 3)
    reading = Reading(engine, logPattern="[ab]", failOnDataLoss="false")

    def go_on() -> None:
        reading.restart()
        reading.available_now()

    go_on()
    with monkeypatch.context() as behind:
        behind.setattr(several_logs, "logs_of", lambda options: ["a"])
        go_on()
    go_on()
    record = LogRegistry(engine.bookkeeper.metadata).get("b")
    for ctime_ms in (record.ctime_ms - 1, record.ctime_ms):
        LogRegistry(engine.bookkeeper.metadata).update("b", lambda found, at=ctime_ms: replace(found, ctime_ms=at))
        go_on()
    writers.write("b", "batch", 2)
    go_on()
    assert reading.by_writer() == writers.written


def test_discovered_log_keeps_its_start_over_a_restart(engine: StandInSpark, tmp_path: Path) -> None:
    """If its start were looked up at the replay, rows that expired meanwhile would be passed over silently."""
    writers = Writers(engine, tmp_path)
    writers.write("a", "batch", 1)
    reading = Reading(engine, logPattern="[ab]")
    reading.available_now()
    writers.write("b", "batch", 5)
    reading.restart()
    assert reading.trigger() and json.loads(reading.offsets[-1])["b"]["position"] == 0
    truncate_log(engine.bookkeeper, "b", 3, b"")  # type: ignore[arg-type]
    reading.restart()
    with pytest.raises(DataLossError, match="rows 0 to 2 were truncated"):
        reading.trigger()


def test_available_now_ends_where_the_logs_ended_at_its_start(engine: StandInSpark, tmp_path: Path) -> None:
    writers = Writers(engine, tmp_path)
    for log in "ab":
        writers.write(log, "batch", 3)
    reading = Reading(engine, logPattern="[abc]", maxOffsetsPerTrigger="4")
    reading.reader.prepareForTriggerAvailableNow()
    for log in "ac":
        writers.write(log, "batch", 3)
    for _ in range(2):
        assert reading.trigger()
    assert not reading.trigger()
    assert len(reading.rows()) == 6 and not any(row.startswith("c") for row in reading.rows())


def test_discovered_log_with_other_columns_fails_the_query_before_it_is_read(
    engine: StandInSpark, tmp_path: Path
) -> None:
    writers = Writers(engine, tmp_path)
    writers.write("a", "batch", 3)
    reading = Reading(engine, logPattern="[ab]")
    reading.available_now()
    reading.reader._target = None
    options = LogOptions(row_format=RowFormat.ARROW, columns=A.json())
    LogRegistry(engine.bookkeeper.metadata).create("b", options, b"")
    with pytest.raises(
        ConfigurationError, match="log 'b' was made since this query was started, and has a column 'id'"
    ):
        reading.trigger()


def test_log_with_another_password_is_left_out_of_a_pattern_with_a_warning(
    engine: StandInSpark, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made such a log ended the streams of others."""
    monkeypatch.setattr(several_logs, "_strangers", set())
    registry = LogRegistry(engine.bookkeeper.metadata)
    writers = Writers(engine, tmp_path)
    registry.create("strange-0", LogOptions(), b"theirs")
    with pytest.raises(ConfigurationError, match="no log with this password has a name that matches"):
        Reading(engine, logPattern="strange-.*")
    caplog.clear()
    for log in ("a", "c"):
        writers.write(f"strange-{log}", "batch", 3)
    reading = Reading(engine, logPattern="strange-.*")
    assert reading.trigger()
    # One is made while the query runs.
    registry.create("strange-b", LogOptions(), b"theirs")
    for log in ("a", "c", "d"):
        writers.write(f"strange-{log}", "batch", 2)
    while reading.trigger():
        pass
    reading.restart()
    writers.write("strange-a", "batch", 1)
    while reading.trigger():
        pass
    assert reading.by_writer() == writers.written
    parsed = SourceOptions.parse({**IN_MEMORY, "logPattern": "strange-.*"}).for_batch()
    schema = schema_of_logs(parsed)
    parts: Any = LogsReader(parsed, schema, schema.names).partitions()
    assert {part.log for part in parts} == {f"strange-{log}" for log in "acd"}
    said = [one.getMessage() for one in caplog.records if "has another password, and is not read" in one.getMessage()]
    assert [one.split()[1] for one in said] == ["'strange-b'"], "the other one was reported before"
    for names in ("strange-a,strange-b", "strange-b"):
        with pytest.raises(UnauthorizedAccessError):
            Reading(engine, logs=names)


def test_limit_is_shared_over_logs_in_proportion_to_their_unread_rows(engine: StandInSpark, tmp_path: Path) -> None:
    writers = Writers(engine, tmp_path)
    writers.write("a", "batch", 90)
    writers.write("b", "batch", 10)
    reading = Reading(engine, logs="a,b", maxOffsetsPerTrigger="10")
    reading.trigger()
    counts = [sum(row.startswith(log) for row in reading.sink[0]) for log in "ab"]
    assert counts == [9, 1]
    assert reading.trigger(ReadAllAvailable()) and len(reading.rows()) == 100


def test_limit_in_bytes_looks_at_the_rows_that_it_takes_and_not_at_the_backlog(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers, read, entries = Writers(engine, tmp_path), MemoryReader.read, Counter[str]()
    for _ in range(30):
        writers.write("a", "query", 9)
        writers.write("b", "query", 1)

    def counted(ledger: MemoryReader, first: int, last: int) -> Iterator[Entry]:
        for entry in read(ledger, first, last):
            entries[step] += 1
            yield entry

    monkeypatch.setattr(MemoryReader, "read", counted)
    reading, step = Reading(engine, logs="a,b", maxBytesPerTrigger="300"), "start"
    start = reading.reader.initialOffset()
    step = "plan"
    end = reading.reader.latestOffset(start, ReadMaxBytes(300))
    assert entries["plan"] < 20, "of 60 commits"
    step = "read"
    rows = {log: end[log]["position"] for log in "ab"}
    assert rows["a"] * 11 + rows["b"] * 11 <= 300 and rows["a"] > 5 * rows["b"] > 0, rows
    while reading.trigger():
        assert sum(map(len, reading.sink[reading.done - 1])) <= 300
    assert len(reading.rows()) == 300


def test_micro_batch_waits_for_enough_rows_over_all_logs(engine: StandInSpark, tmp_path: Path) -> None:
    writers = Writers(engine, tmp_path)
    for log in "ab":
        writers.write(log, "batch", 1)
    reading = Reading(engine, logPattern="[abc]", minOffsetsPerTrigger="6")
    assert reading.trigger(), "the first one"
    writers.write("a", "batch", 3)
    writers.write("b", "batch", 2)
    assert not reading.trigger()
    writers.write("c", "batch", 1)
    assert reading.trigger(), "a log that was found is noted at once"
    assert len(reading.rows()) >= 2
    while reading.trigger():
        pass
    writers.write("b", "batch", 6)
    assert reading.trigger()
    assert reading.by_writer() == writers.written


def test_start_and_end_apply_to_each_log(engine: StandInSpark, tmp_path: Path) -> None:
    writers = Writers(engine, tmp_path)
    for log in "abc":
        writers.write(log, "batch", 5)

    def batch(**options: str) -> list[str]:
        parsed = SourceOptions.parse({**IN_MEMORY, "logs": "a,b,c", **options}).for_batch()
        schema = schema_of_logs(parsed)
        parts: Any = LogsReader(parsed, schema, schema.names).partitions()
        found = [(p.log, piece.position, piece.position + piece.rows) for p in parts for piece in p.ranges.pieces]
        return [f"{log}{first}-{last}" for log, first, last in found]

    assert batch() == ["a0-5", "b0-5", "c0-5"]
    start, end = json.dumps({"a": 3, "b": {"0": 4}}), json.dumps({"c": 1, "a": "latest"})
    assert batch(startingOffsets=start, endingOffsets=end) == ["a3-5", "b4-5", "c0-1"]
    reading = Reading(engine, logs="a,b,c", startingOffsets=start)
    reading.trigger()
    # Each log has 0, 2, 4, 1, 3.
    assert list(reading.by_writer().values()) == [[1, 3], [3], [0, 2, 4, 1, 3]]
    with pytest.raises(BookKeeperError, match="log 'b' has 5 rows"):
        batch(startingOffsets=json.dumps({"b": 6}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"logs": "a,b", "log": "c"}, "not log and logs at once"),
        ({"logs": "a,b", "logPattern": "c"}, "not logs and logPattern at once"),
        ({"logs": "a,,b"}, "option logs 'a,,b' can't be used; choose names of logs"),
        ({"logs": "a,a"}, "can't be used; choose names of logs"),
        ({"logs": "a@1,b"}, "can't be used; choose names of logs"),
        ({"logPattern": "a("}, "choose a regular expression"),
        ({"logPattern": "[[a]"}, "choose a regular expression"),
        ({"logs": "a,b", "startingOffsets": "7"}, "a JSON object with a place for each log"),
        ({"logs": "a,b", "startingOffsets": '{"c": 7}'}, "names an offset or a time in log 'c', which is not read"),
        ({"logs": "a,b", "startingOffsets": "latest"}, "'latest' can't be used; choose 'earliest'"),
        ({"logs": "a,b", "subscription": "s"}, "subscription is for reading one log"),
        ({"log": "a", "mergeSchema": "true"}, "mergeSchema is for reading several logs"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SourceOptions.parse({**IN_MEMORY, **given}).for_stream()


def test_checkpoint_of_a_single_log_is_refused_for_several_logs(engine: StandInSpark, tmp_path: Path) -> None:
    Writers(engine, tmp_path).write("a", "batch", 5)
    reading = Reading(engine, logs="a")
    for offset in ({"position": 3, "log": 7}, {"7": 3}):
        with pytest.raises(ConfigurationError, match="a checkpointLocation of its own"):
            reading.reader.latestOffset(offset, ReadAllAvailable())  # type: ignore[arg-type]


ID = StructType().add("position", "long")
A = StructType().add("id", "long").add("name", "string")
B = StructType().add("id", "long").add("price", "double")


def columns(*schemas: StructType, merge: bool) -> list[str]:
    whole = {log: StructType([*schema, *ID]) for log, schema in zip("abc", schemas, strict=False)}
    return merged_columns(whole, 1, merge).names


def test_columns_of_several_logs_must_be_equal_or_are_merged_by_name() -> None:
    assert columns(A, A, merge=False) == ["id", "name", "position", "log"]
    assert columns(A, B, merge=True) == ["id", "name", "price", "position", "log"]
    with pytest.raises(ConfigurationError, match=r"log 'b' has no column 'name'.*log 'a' has.*mergeSchema"):
        columns(A, StructType().add("id", "long"), merge=False)
    with pytest.raises(ConfigurationError, match=r"log 'a' has no column 'price'.*log 'b' has"):
        columns(A, StructType([*A, *B.fields[1:]]), merge=False)
    other = StructType().add("id", "string")
    with pytest.raises(ConfigurationError, match=r"'id' is of type bigint in log 'a', and of type string in log 'c'"):
        columns(A, B, other, merge=True)
    with pytest.raises(ConfigurationError, match="log 'b' has a column 'log' of its own"):
        columns(A, StructType().add("Log", "string"), merge=True)
    known = merged_columns({"a": StructType([*A, *ID])}, 1, merge=False)
    check_fits("d", StructType([*A, *ID]), known, merge=False)
    check_fits("d", StructType([A["id"], *ID]), known, merge=True)
    for schema, message in ((StructType([A["id"], *ID]), "has no column 'name'"), (B, "start the query again")):
        with pytest.raises(ConfigurationError, match=message):
            check_fits("d", schema, known, merge=False)


@pytest.mark.acceptance
@pytest.mark.spark
def test_spark_query_reads_logs_by_pattern_over_restarts_and_reports_each_lag(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    register(spark, cluster.zookeeper)
    prefix = f"many-{uuid.uuid4().hex[:8]}"
    write(spark, f"{prefix}.a", 0, 9)
    write(spark, f"{prefix}.b", 10, 19)
    pattern = f"{prefix}\\..*"
    follower = Follower(spark, tmp_path, logPattern=pattern, maxOffsetsPerTrigger=7)
    query = follower.run()
    assert sum(progress.numInputRows for progress in query.recentProgress) == 20
    write(spark, f"{prefix}.c", 20, 29)
    write(spark, f"{prefix}.a", 30, 34)
    query = follower.run()
    assert follower.numbers() == list(range(35))
    with cluster.bookkeeper() as bookkeeper:

        def lags() -> list[tuple[str, int | None]]:
            return [(one.reader, one.lag_rows) for log in "abc" for one in readers_of(bookkeeper, f"{prefix}.{log}")]

        await_that(lambda: lags() == [(query.id, 0)] * 3, what=lags)


@pytest.mark.spark
def test_missing_columns_of_a_log_are_null_with_merge_schema(spark: SparkSession, cluster: LocalCluster) -> None:
    register(spark, cluster.zookeeper)
    prefix = f"merged-{uuid.uuid4().hex[:8]}"
    for log, sql in (("a", "SELECT 1 AS id, 'x' AS name"), ("b", "SELECT 2 AS id, array(0.5D) AS prices")):
        frame = spark.sql(sql).write.format("bookspark").options(log=f"{prefix}-{log}", rowFormat="arrow")
        frame.mode("append").save()
    read = spark.read.format("bookspark").option("logs", f"{prefix}-a, {prefix}-b")
    with pytest.raises(PySparkException, match="mergeSchema"):
        read.load()
    rows = read.option("mergeSchema", "true").option("includeLane", "true").load()
    assert rows.columns == ["id", "name", "prices", "position", "ledger_id", "entry_id", "lane", "log"]
    found = rows.orderBy("id").select("id", "name", "prices", "position", "lane", "log").collect()
    assert found == [Row(1, "x", None, 0, 0, f"{prefix}-a"), Row(2, None, [0.5], 0, 0, f"{prefix}-b")]
    assert rows.select("log").distinct().count() == 2
