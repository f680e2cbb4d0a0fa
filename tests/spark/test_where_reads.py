"""Option ``where`` over in-memory ledgers: the matching rows, few entries read, and offsets as without it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from bookspark.errors import ConfigurationError, DataLossError
from bookspark.logs import LogRegistry, truncate_log
from bookspark.logs.chain.reader import LogReader
from bookspark.logs.feeds.log_feed import Limit
from bookspark.logs.rows.statistics import parsed
from bookspark.protocol.logs.log_options import LogOptions, RowFormat
from bookspark.spark.connector import feeds, several_logs, source
from bookspark.spark.connector.query_place import QueryPlace
from bookspark.spark.connector.several_logs import LogsReader, LogsStreamReader, schema_of_logs
from bookspark.spark.connector.sink import LogBatchWriter, check_statistics
from bookspark.spark.connector.source import EntryReader, EntryStreamReader, schema_of
from bookspark.spark.offload.opened_ledgers import handles_of_process
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.rows import rows
from tests.spark.stand_in_spark import StandInSpark

COLUMNS = StructType().add("id", "long").add("part", "long").add("name", "string")
COMMITS, ROWS_OF_COMMIT = 4, 1000
ROWS = COMMITS * ROWS_OF_COMMIT
IN_MEMORY = {"zookeeper": "memory"}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    """An in-memory cluster with small entries."""
    engine = StandInSpark(monkeypatch)
    for module in (several_logs, source, feeds):
        monkeypatch.setattr(module, "client", lambda zookeeper: engine.bookkeeper)
    monkeypatch.setattr(several_logs, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(QueryPlace, "tell", lambda self, offset: None)
    monkeypatch.setattr(QueryPlace, "stranger", None)
    monkeypatch.setattr(rows, "ENTRY_BYTES", 1 << 10)
    return engine


def write(
    engine: StandInSpark, log: str, rows: Iterable[dict[str, Any]], columns: StructType = COLUMNS, **options: str
) -> None:
    """A batch write of two tasks."""
    chosen = {"row_format": RowFormat.ARROW} if columns.names != ["value"] else {}
    planned = LogRegistry(engine.bookkeeper.metadata).ensure(log, chosen, b"", columns.json() if chosen else "")
    writer = LogBatchWriter(SinkOptions.parse({"log": log, **IN_MEMORY, **options}), planned)
    there = list(rows)
    tasks = [there[: len(there) // 3], there[len(there) // 3 :]]
    writer.commit([writer.write(iter([batch(task)])) for task in tasks])


def batch(rows: list[dict[str, Any]]) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pylist(rows)


def row(number: int) -> dict[str, Any]:
    return {"id": number, "part": None if number % 5 == 0 else number % 7, "name": f"n{number:05}"}


@pytest.fixture
def log(engine: StandInSpark) -> str:
    for commit in range(COMMITS):
        write(engine, "needles", map(row, range(commit * ROWS_OF_COMMIT, (commit + 1) * ROWS_OF_COMMIT)))
    return "needles"


def options_of(**options: str) -> SourceOptions:
    return SourceOptions.parse({**IN_MEMORY, **options})


def read(names: list[str] | None = None, **options: str) -> tuple[list[dict[str, Any]], int]:
    """Rows of a batch read, and the number of rows taken from ledgers."""
    given = options_of(**options).for_batch()
    schema = schema_of_logs(given) if given.several else schema_of(given)
    reader = (LogsReader if given.several else EntryReader)(given, schema, names or schema.names)
    parts: Any = reader.partitions()
    planned = [piece for part in parts for piece in (part.ranges if given.several else part).pieces]
    found = [one for part in parts for rows in reader.read(part) for one in rows.to_pylist()]
    return found, sum(piece.rows for piece in planned)


@pytest.mark.parametrize(
    ("where", "wanted", "read_max"),
    [
        ("id = 3141", lambda one: one["id"] == 3141, 400),
        ("id IN (3, 3141) OR id < 0", lambda one: one["id"] in (3, 3141), 800),
        (
            "part IS NULL AND id BETWEEN 1990 AND 2010",
            lambda one: one["part"] is None and 1990 <= one["id"] <= 2010,
            800,
        ),
        ("NOT (id < 3990 OR part = 3)", lambda one: one["id"] >= 3990 and one["part"] not in (3, None), 400),
        ("name LIKE 'n0314_'", lambda one: one["name"].startswith("n0314"), 400),
        ("position >= 3900 AND part <> 2", lambda one: one["id"] >= 3900 and one["part"] not in (2, None), 400),
        ("id = -1", lambda one: False, 0),
        ("part = 3", lambda one: one["part"] == 3, ROWS),
        ("id > 5 OR NULL", lambda one: one["id"] > 5, ROWS),
    ],
)
def test_filtered_read_has_the_matching_rows_and_reads_few_others(
    log: str, where: str, wanted: Callable[[dict[str, Any]], bool], read_max: int
) -> None:
    everything, _ = read(log=log)
    assert [one["position"] for one in everything] == list(range(ROWS))
    found, rows_read = read(log=log, where=where)
    assert found == [one for one in everything if wanted(one)]
    assert rows_read <= read_max
    some, _ = read(["position"], log=log, where=where)
    assert some == [{"position": one["position"]} for one in found], "columns of the predicate alone do not come"


def test_stream_reader_in_a_task_gives_the_wanted_columns_only(log: str) -> None:
    given = options_of(log=log, where="id = 3141").for_stream()
    reader = EntryStreamReader(given, schema_of(given), ["name"])
    (part,) = reader.partitions(reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    copied: EntryStreamReader = pickle.loads(pickle.dumps(reader))
    assert [row for rows in copied.read(part) for row in rows.to_pylist()] == [{"name": "n03141"}]


def test_replayed_plan_is_the_same_and_offsets_count_all_rows(log: str) -> None:
    given = options_of(log=log, where="id IN (7, 1500, 3999)").for_stream()
    schema = schema_of(given)
    reader = EntryStreamReader(given, schema, schema.names)
    start, end = reader.initialOffset(), reader._feed.newest()
    assert end["position"] == ROWS
    middle = reader._feed.limited(start, end, Limit(rows=1501))
    assert middle["position"] == 1501, "a limit counts rows of the log, not those that come"

    def rows(one: EntryStreamReader, first: dict[str, int], last: dict[str, int]) -> tuple[list[int], list[Any]]:
        parts: Any = one.partitions(first, last)
        return [found["id"] for part in parts for some in one.read(part) for found in some.to_pylist()], [
            part.pieces for part in parts
        ]

    first = rows(reader, start, middle)
    assert first[0] == [7, 1500]
    assert rows(reader, middle, end)[0] == [3999]
    again = EntryStreamReader(given, schema, schema.names)
    assert rows(again, start, middle) == first, "a replay begins with the plan"
    assert rows(reader, {**start, "position": 1501}, {**end, "position": 3900})[0] == []


def test_rows_without_statistics_are_read(engine: StandInSpark) -> None:
    write(engine, "silent", map(row, range(1000)), statistics="none")
    write(engine, "silent", map(row, range(1000, 2000)), statistics="name")
    told = [
        None if (known := parsed(one.commit.statistics, one.commit.rows)) is None else known.columns
        for one in LogReader(engine.bookkeeper, "silent", b"").commits()
    ]
    assert told == [None, ("name",)]
    found, rows_read = read(log="silent", where="id IN (77, 1777)")
    assert ([one["id"] for one in found], rows_read) == ([77, 1777], 2000)
    assert read(log="silent", where="name = 'x'") == ([], 1000)
    assert read(log="silent", where="position >= 1000 AND name = 'x'") == ([], 0)


def test_statistics_of_other_rows_are_ignored(engine: StandInSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that cuts commits in two and knows no statistics would leave such statistics."""
    monkeypatch.setattr("bookspark.spark.connector.sink.joined", lambda parts, size: '[["id"],[3,[0,1,0]]]')
    write(engine, "strange", map(row, range(10)))
    assert [one["id"] for one in read(log="strange", where="id = 7")[0]] == [7]


def test_single_values_are_filtered_by_value_position_time_and_lane(engine: StandInSpark) -> None:
    values = StructType().add("value", "string")
    for _ in range(2):
        write(engine, "values", [{"value": str(number)} for number in range(100)], values)
    found, rows_read = read(log="values", where="value = X'3432' AND position >= 100")
    assert ([(one["value"], one["position"]) for one in found], rows_read) == ([(b"42", 142)], 100)
    early = "timestamp < TIMESTAMP'2000-01-01 00:00:00Z'"
    assert read(log="values", includeTimestamp="true", where=early) == ([], 0)
    assert len(read(log="values", includeTimestamp="true", where=f"NOT {early}")[0]) == 200
    found, _ = read(
        ["position"], log="values", includeTimestamp="true", includeLane="true", where=f"lane = 0 AND NOT {early}"
    )
    assert [one["position"] for one in found] == list(range(200)), "in their order, and no column too many"
    assert read(log="values", includeLane="true", where="lane = 1") == ([], 0)


def test_several_logs_are_filtered_together_with_missing_columns_as_null(engine: StandInSpark) -> None:
    one_column = StructType().add("id", "long")
    write(engine, "several-a", map(row, range(1000)))
    write(engine, "several-b", [{"id": number} for number in range(1000)], one_column)

    def found(where: str) -> tuple[list[tuple[str, int]], int]:
        rows, rows_read = read(logPattern="several-.*", mergeSchema="true", where=where)
        return [(one["log"], one["id"]) for one in rows], rows_read

    assert found("name = 'n00004'")[0] == [("several-a", 4)]
    assert found("name = 'n00004'")[1] < 400
    assert found("id = 4 AND part IS NULL")[0] == [("several-b", 4)]
    assert found("log = 'several-b' AND id IN (1, 2)")[0] == [("several-b", 1), ("several-b", 2)]
    assert found("log = 'several-c'") == ([], 0)
    assert found("name = 'n00004' OR log <=> 'several-b' AND id = 0")[0] == [("several-a", 4), ("several-b", 0)]
    only, _ = read(["id"], logPattern="several-.*", mergeSchema="true", where="name = 'n00004'")
    assert only == [{"id": 4}]


def test_stream_of_several_logs_skips_logs_that_cannot_match(engine: StandInSpark) -> None:
    for name in ("several-a", "several-b"):
        write(engine, name, map(row, range(1000)))
    given = options_of(
        logs="several-a,several-b", where="id = 999 AND log = 'several-b'", pollTimeoutMs="0"
    ).for_stream()
    schema = schema_of_logs(given)
    reader = LogsStreamReader(given, schema, schema.names)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [end[name]["position"] for name in ("several-a", "several-b")] == [1000, 1000]
    parts: Any = reader.partitions(start, end)
    assert {part.log for part in parts} == {"several-b"}
    found = [(one["log"], one["id"]) for part in parts for rows in reader.read(part) for one in rows.to_pylist()]
    assert found == [("several-b", 999)]


def test_where_does_not_hide_truncated_rows(engine: StandInSpark) -> None:
    for start in (0, 100):
        write(engine, "cut", map(row, range(start, start + 100)))
    truncate_log(engine.bookkeeper, "cut", 100, b"")
    with pytest.raises(DataLossError, match="rows 0 to 99 were truncated"):
        read(log="cut", startingOffsets="0", where="id = 150")
    found, _ = read(log="cut", where="id = 150")
    assert [one["id"] for one in found] == [150]


def test_ledger_without_matching_rows_is_not_opened(engine: StandInSpark, log: str) -> None:
    first = next(iter(LogReader(engine.bookkeeper, log, b"").commits())).commit
    for ledger_id in {item.ledger_id for item in first.ranges}:
        engine.bookkeeper.delete_ledger(ledger_id)
    found, _ = read(log=log, where=f"id >= {ROWS - 1}")
    assert [one["id"] for one in found] == [ROWS - 1]
    handles_of_process.cache_clear()  # a process that kept its handle might still read it
    with pytest.raises(DataLossError, match="was deleted"):
        read(log=log, where="id = 7")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"ledger": "1"}, "option where is for reading logs, not a ledger"),
        ({"table": "ledgers"}, "option where is for reading logs, not a table"),
        (
            {"log": "needles", "where": "nobody = 1"},
            "no column is called 'nobody'; the columns are id, part, name, position",
        ),
        (
            {"log": "needles", "where": "abs(id) = 1"},
            "the function 'abs' at character 1 is not supported; supported are",
        ),
        ({"log": "needles", "where": "id = '1'"}, "comparing 'id', of type bigint, with a string"),
        ({"log": "needles", "where": "timestamp IS NULL"}, "no column is called 'timestamp'"),
    ],
)
def test_invalid_filters_are_refused_before_any_read(log: str, options: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(**{"where": "id = 1", **options})
    assert what in str(error.value)


def test_statistics_option_accepts_only_columns_of_the_log() -> None:
    arrow = LogOptions(row_format=RowFormat.ARROW, columns=COLUMNS.json())
    check_statistics(("id", "name"), "needles", arrow)
    check_statistics((), "needles", LogOptions())
    with pytest.raises(
        ConfigurationError, match="names column 'nobody', and log 'needles' has the columns id, part, name"
    ):
        check_statistics(("nobody",), "needles", arrow)
    with pytest.raises(ConfigurationError, match="which has no statistics"):
        check_statistics(("value",), "needles", LogOptions())
    for text in ("", "a,,b", "a,a"):
        with pytest.raises(ConfigurationError, match="option statistics"):
            SinkOptions.parse({"log": "a", "zookeeper": "memory", "statistics": text})
    assert SinkOptions.parse({"log": "a", "zookeeper": "memory", "statistics": "b , none"}).statistics == ("b", "none")
