"""What tells a micro-batch: the sum over its rows, Spark's plan of it, and the files that it reads."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from random import Random

import pyarrow
import pytest

from bookspark.spark.connector.file_sources import SourceRenamedError, check_sources
from bookspark.spark.connector.fingerprints import SUMS, Plan, plan_of, sum_of

ROWS = 200
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
}


def total(batches: list[pyarrow.RecordBatch]) -> int:
    return sum(map(sum_of, batches)) % SUMS


@pytest.mark.parametrize("column", COLUMNS)
def test_a_sum_is_of_the_values_and_of_nothing_else(column: str) -> None:
    rows = pyarrow.record_batch({column: COLUMNS[column]})
    order = list(range(ROWS))
    Random(7).shuffle(order)
    mixed = rows.take(pyarrow.array(order))
    assert total([mixed[first : first + 9] for first in range(0, ROWS, 9)]) == sum_of(rows)
    changed = [*range(1, ROWS), 1]
    assert sum_of(rows.take(pyarrow.array(changed))) != sum_of(rows), "one row was left out, another one came twice"


def test_columns_do_not_take_the_place_of_one_another() -> None:
    one, other = COLUMNS["numbers"], COLUMNS["small"].cast(pyarrow.int64())
    assert sum_of(pyarrow.record_batch({"a": one, "b": other})) != sum_of(pyarrow.record_batch({"a": other, "b": one}))


def test_a_plan_is_read_from_a_path_or_a_local_uri_and_no_other_place(tmp_path: Path) -> None:
    (tmp_path / "a b" / "offsets").mkdir(parents=True)
    (tmp_path / "a b" / "offsets" / "3").write_text('v1\n{"batchTimestampMs":1}\n{"logOffset":3}')
    plan = plan_of(str(tmp_path / "a b"), 3)
    assert plan.whole and plan.offsets
    assert plan_of((tmp_path / "a b").as_uri(), 3) == plan
    assert plan_of(f"file:{tmp_path}/a%20b", 3) == plan
    for place in ("", "hdfs://host/a", f"s3a://bucket{tmp_path}", str(tmp_path / "none")):
        assert plan_of(place, 3) == Plan()
    (tmp_path / "a b" / "offsets" / "3").write_text('v1\n{"batchTimestampMs":2}\n{"logOffset":3}')
    later = plan_of(str(tmp_path / "a b"), 3)
    assert later.offsets == plan.offsets and later.whole != plan.whole


def listed(checkpoint: Path, name: str, *files: tuple[Path, int, int]) -> None:
    folder = checkpoint / "sources" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'{{"path":"{path.as_uri()}","timestamp":{time},"batchId":{batch}}}' for path, time, batch in files]
    (folder / name).write_text("\n".join(["v1", *lines]))


def test_a_file_of_a_renamed_folder_is_told_from_a_new_one_of_the_same_name(tmp_path: Path) -> None:
    checkpoint, former, now = tmp_path / "checkpoint", tmp_path / "former", tmp_path / "now"
    now.mkdir()
    (now / "a.txt").touch()
    listed(checkpoint, "0.compact", (former / "a.txt", 1000, 0))
    listed(checkpoint, "1", (now / "a.txt", 1000, 1))
    listed(checkpoint, "2", (now / "a.txt", 2000, 2))
    with pytest.raises(SourceRenamedError, match=r"log 'orders': batch 1.*now/a.txt was read before as .*former/a.txt"):
        check_sources(str(checkpoint), 1, "orders")
    check_sources(str(checkpoint), 2, "orders")
    former.mkdir()
    (former / "a.txt").touch()
    check_sources(str(checkpoint), 1, "orders")  # two folders that have files of one name


def test_sources_of_other_kinds_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "sources" / "0").mkdir(parents=True)
    (tmp_path / "sources" / "0" / "0").write_text('v1\n{"topic":{"0":5}}')
    check_sources(str(tmp_path), 0, "orders")
    check_sources("hdfs://host/checkpoint", 0, "orders")
