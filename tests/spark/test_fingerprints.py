"""Fingerprints of a micro-batch: the sum over its rows, Spark's plan of it, and the files that it reads."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from random import Random

import pyarrow
import pytest

from bookspark.protocol.logs.commits import FILES
from bookspark.spark.connector.checkpoint import (
    SourceRenamedError,
    SparkCheckpoint,
)
from bookspark.spark.connector.sink import SUMS, sum_of
from bookspark.support.hadoop_paths import plain_place

ROWS = 200
NUMBERS = pyarrow.array(range(ROWS), pyarrow.int64())
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
COLUMNS = {
    "strings": pyarrow.array([str(n) if n % 7 else None for n in range(ROWS)]),
    "bytes": pyarrow.array([b"x" * (n % 5) for n in range(ROWS)]),
    "numbers": pyarrow.array([n if n % 3 else None for n in range(ROWS)]),
    "small": pyarrow.array([n % 100 for n in range(ROWS)], pyarrow.int8()),
    "floats": pyarrow.array([n / 7 for n in range(ROWS)]),
    "truth": pyarrow.array([n % 2 == 0 for n in range(ROWS)]),
    "times": pyarrow.array([NOW + datetime.timedelta(n) for n in range(ROWS)], pyarrow.timestamp("us", "UTC")),
    "days": pyarrow.array([NOW.date() + datetime.timedelta(n) for n in range(ROWS)]),
    "decimals": pyarrow.array([decimal.Decimal(n) for n in range(ROWS)], pyarrow.decimal128(12, 2)),
    "lists": pyarrow.array([[n, None] if n % 4 else None for n in range(ROWS)]),
    "structs": pyarrow.array([{"a": n, "b": str(n)} for n in range(ROWS)]),
    "maps": pyarrow.array([[("a", n)] for n in range(ROWS)], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    "times of day": NUMBERS.cast(pyarrow.time64("ns")),
    "intervals": NUMBERS.cast(pyarrow.duration("us")),
    "lists of structs": pyarrow.array([[{"a": [n]}] * (n % 3) + [{"a": [n, n]}, None] for n in range(ROWS)]),
    # Spark has values that Python can't represent.
    "far times": pyarrow.StructArray.from_arrays(
        [pyarrow.array([n << 54 for n in range(ROWS)]).view("timestamp[us]")], ["a"]
    ),
    "no UTF-8": pyarrow.StructArray.from_arrays(
        [pyarrow.array([b"\xff%d" % n for n in range(ROWS)]).view("string")], ["a"]
    ),
}


def at(folder: Path) -> SparkCheckpoint:
    return SparkCheckpoint(str(folder), "orders")


def total(batches: list[pyarrow.RecordBatch]) -> int:
    return sum(map(sum_of, batches)) % SUMS


@pytest.mark.parametrize("column", COLUMNS)
def test_sum_depends_on_values_but_not_on_order_or_batches(column: str) -> None:
    rows = pyarrow.record_batch({column: COLUMNS[column]})
    order = list(range(ROWS))
    Random(7).shuffle(order)
    mixed = rows.take(pyarrow.array(order))
    assert total([mixed[first : first + 9] for first in range(0, ROWS, 9)]) == sum_of(rows)
    changed = [*range(1, ROWS), 1]
    assert sum_of(rows.take(pyarrow.array(changed))) != sum_of(rows), "one row was left out, another one came twice"


def test_sum_changes_when_two_columns_are_swapped() -> None:
    one, other = COLUMNS["numbers"], COLUMNS["small"].cast(pyarrow.int64())
    assert sum_of(pyarrow.record_batch({"a": one, "b": other})) != sum_of(pyarrow.record_batch({"a": other, "b": one}))


def test_sum_changes_when_values_are_swapped_between_rows() -> None:
    """Otherwise a version of an application with the states of two rows swapped is dropped as a replay."""
    rows = pyarrow.record_batch({"id": [1, 2], "state": ["open", "paid"], "parts": [[1], [2]]})
    others = ({"state": ["paid", "open"]}, {"parts": [[2], [1]]}, {"state": ["open", None]}, {"parts": [[1, 2], []]})
    sums = [sum_of(pyarrow.record_batch({**rows.to_pydict(), **other})) for other in ({}, *others)]
    assert len(set(sums)) == len(sums) and sums[0] == sum_of(rows)


def test_sum_of_texts_is_the_same_in_large_arrays() -> None:
    """The session's setting ``spark.sql.execution.arrow.useLargeVarTypes`` may change between a batch and its replay."""
    texts = pyarrow.record_batch({"value": COLUMNS["strings"]})
    assert sum_of(texts) == sum_of(pyarrow.record_batch({"value": COLUMNS["strings"].cast(pyarrow.large_string())}))


def planned(checkpoint: Path, batch: int, *offsets: int | None) -> None:
    """Write Spark's plan of a batch: the offset that it reaches in each file source, None for nothing yet."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    lines = ["-" if offset is None else f'{{"logOffset":{offset}}}' for offset in offsets]
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", '{"batchTimestampMs":1}', *lines]))


def listed(checkpoint: Path, name: str, *files: tuple[Path, int, int], source: int = 0) -> None:
    folder = checkpoint / "sources" / str(source)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'{{"path":"{path.as_uri()}","timestamp":{time},"batchId":{batch}}}' for path, time, batch in files]
    (folder / name).write_text("\n".join(["v1", *lines]))


def test_file_of_a_renamed_folder_is_distinguished_from_a_new_file_of_its_name(tmp_path: Path) -> None:
    checkpoint, former, now = tmp_path / "checkpoint", tmp_path / "former", tmp_path / "now"
    now.mkdir()
    (now / "a.txt").touch()
    listed(checkpoint, "0.compact", (former / "a.txt", 1000, 0))
    listed(checkpoint, "1", (now / "a.txt", 1000, 1))
    listed(checkpoint, "2", (now / "a.txt", 2000, 2))
    for batch in range(3):
        planned(checkpoint, batch, batch)
    with pytest.raises(SourceRenamedError, match=r"log 'orders': batch 1.*now/a.txt was read before as .*former/a.txt"):
        at(checkpoint).check_sources(1)
    at(checkpoint).check_sources(2)
    former.mkdir()
    (former / "a.txt").touch()
    at(checkpoint).check_sources(1)  # two folders with files of the same name


def test_files_of_a_batch_follow_its_plan_and_not_its_number(tmp_path: Path) -> None:
    """The second source had no new files until batch 5, and reads a renamed folder there: its own offset 1."""
    checkpoint, former, now = tmp_path / "checkpoint", tmp_path / "former", tmp_path / "now"
    now.mkdir()
    for batch in range(5):
        planned(checkpoint, batch, batch, 0)
        listed(checkpoint, str(batch), (now / f"{batch}.txt", 1000, batch), source=0)
    planned(checkpoint, 5, 4, 1)
    listed(checkpoint, "0", (former / "a.txt", 1000, 0), source=1)
    listed(checkpoint, "1", (now / "a.txt", 1000, 1), source=1)
    for batch in range(5):
        at(checkpoint).check_sources(batch)  # batch 1 has not read the files listed under 1
    with pytest.raises(
        SourceRenamedError, match=r"batch 5.*now/a.txt was read before .*offsets/5 and \S*/sources/1/1, with"
    ):
        at(checkpoint).check_sources(5)
    (checkpoint / "offsets" / "4").unlink()
    with pytest.raises(SourceRenamedError):
        at(checkpoint).check_sources(5)  # without the preceding plan, the list that it read last


def test_batch_over_two_offsets_of_a_source_has_the_files_of_both(tmp_path: Path) -> None:
    """The query ended between the list of offset 1 and the plan of batch 1, and after its restart there were more files."""
    checkpoint, former, now = tmp_path / "checkpoint", tmp_path / "former", tmp_path / "now"
    planned(checkpoint, 0, 0)
    planned(checkpoint, 1, 2)
    listed(checkpoint, "0", (former / "a.txt", 1000, 0))
    listed(checkpoint, "1", (now / "b.txt", 1000, 1))
    listed(checkpoint, "2", (now / "c.txt", 1000, 2))
    plan = at(checkpoint).plan(1)
    listed(checkpoint, "1", (now / "d.txt", 1000, 1))
    assert at(checkpoint).plan(1).offsets != plan.offsets
    at(checkpoint).check_sources(1)
    listed(checkpoint, "1", (now / "a.txt", 1000, 1))
    with pytest.raises(SourceRenamedError, match=r"delete .*offsets/1 and \S*/sources/0/1, \S*/sources/0/2, with"):
        at(checkpoint).check_sources(1)


def test_dataframe_used_twice_does_not_shift_the_files_of_later_sources(tmp_path: Path) -> None:
    """``a.union(a).union(b)`` has three lines in a plan, and the folders ``sources/0`` and ``sources/1``. Line 1 was taken for
    ``b``. So a good query could be refused for a file that ``b`` had read long before, and the files of ``b``'s own line
    were not checked."""
    checkpoint, former, now = tmp_path / "checkpoint", tmp_path / "former", tmp_path / "now"
    now.mkdir()
    for number in range(3):
        listed(checkpoint, str(number), (now / f"{number}.txt", 1000, number), source=0)
    listed(checkpoint, "0", (former / "b.txt", 1000, 0), source=1)
    listed(checkpoint, "1", (now / "b.txt", 1000, 1), source=1)
    planned(checkpoint, 0, 0, 0, 0)
    planned(checkpoint, 1, 0, 0, 1)
    planned(checkpoint, 2, 1, 1, 1)
    planned(checkpoint, 3, 2, 2, 1)
    assert at(checkpoint).files_read(2) == {"0": range(1, 2), "1": range(2, 2)}
    with pytest.raises(SourceRenamedError, match=r"batch 1.*now/b.txt was read before as .*former/b.txt"):
        at(checkpoint).check_sources(1)
    for batch in (0, 2, 3):
        at(checkpoint).check_sources(batch)
    plan = at(checkpoint).plan(1)
    listed(checkpoint, "1", (now / "c.txt", 1000, 1), source=1)
    assert at(checkpoint).plan(1).offsets != plan.offsets


def test_dataframe_of_another_kind_used_twice_does_not_shift_later_files(tmp_path: Path) -> None:
    """``topic.union(topic).union(a).union(b)``: the file sources have lines 2 and 3, and folders 1 and 2."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('v1\n{"topic":{"0":5}}')
    for source in (1, 2):
        listed(tmp_path, "0", (tmp_path / "a.txt", 1000, 0), source=source)
    topic = '{"topic":{"0":7}}'
    lines = ["v1", '{"batchTimestampMs":1}', topic, topic, '{"logOffset":0}', '{"logOffset":0}']
    (tmp_path / "offsets" / "0").write_text("\n".join(lines))
    assert at(tmp_path).files_read(0) == {"1": range(1), "2": range(1)}


def test_indistinguishable_plan_lines_are_equally_far(tmp_path: Path) -> None:
    """If three lines are equal in every plan, any two of them may be the source that the query uses twice."""
    for source in (0, 1):
        listed(tmp_path, "0", (tmp_path / "a.txt", 1000, 0), source=source)
    planned(tmp_path, 0, 0, 0, 0)
    assert at(tmp_path).files_read(0) == {"0": range(1), "1": range(1)}
    plan = at(tmp_path).plan(0)
    planned(tmp_path, 1, 0, 0, 1)
    listed(tmp_path, "1", (tmp_path / "b.txt", 1000, 1), source=1)
    assert at(tmp_path).files_read(0) == {"0": range(1), "1": range(1)}, "a later plan tells them apart"
    assert at(tmp_path).plan(0) == plan and plan.offsets.startswith(FILES)


def test_sources_of_other_kinds_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('v1\n{"topic":{"0":5}}')
    at(tmp_path).check_sources(0)
    planned(tmp_path, 0, None)
    at(tmp_path).check_sources(0)
    assert at(tmp_path).plan(0).whole and not at(tmp_path).plan(0).offsets.startswith(FILES)


@pytest.mark.parametrize(
    ("place", "plain"),
    [
        ("/x/y/", "/x/y"),
        ("file:/x/y", "/x/y"),
        ("file:///x/y/", "/x/y"),
        ("file://localhost/x", "/x"),
        ("file:///Jane%20Doe/cp", "/Jane%20Doe/cp"),
        ("file:///Jane Doe/cp", "/Jane Doe/cp"),
        ("file:///run#1/cp?a=b", "/run#1/cp?a=b"),
        ("/x/a:b//c/./d/../e", "/x/a:b/c/e"),
        ("s3a://bucket/a%20b#c/", "s3a://bucket/a%20b#c"),
        ("", ""),
        ("hdfs://host/x/", "hdfs://host/x"),
        ("x/y/", "x/y"),
    ],
)
def test_checkpoint_location_has_a_canonical_spelling(place: str, plain: str) -> None:
    """A checkpoint that was deleted and spelled in another way was not recognised, and all rows of its query came twice."""
    assert plain_place(place) == plain
