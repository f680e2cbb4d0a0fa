"""Spark checkpoints in each form that Spark 4.2 writes, at each spelling of a place: read, or the query is refused."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.protocol.logs.commits import FILES
from bookspark.spark.connector import checkpoint as checkpoints
from bookspark.spark.connector.checkpoint import SourceRenamedError, SparkCheckpoint, UnreadCheckpointError
from bookspark.spark.options.sink_options import SinkOptions
from tests.spark.checkpoint_matrix import CHECKPOINTS, LOGS, NEW, Query, numbers, play, written
from tests.spark.stand_in_spark import StandInSpark

ACCEPTED_BY = "set the sink's option compareCheckpoint to false"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    return StandInSpark(monkeypatch)


FORMS: dict[str, tuple[str, str, str, Callable[[Path], str]]] = {
    "v1 at file:///, with %20 and #": ("v1", "0", "Jane%20Doe#1", lambda path: f"file://{path}"),
    "v2 at file:/, with a space": ("v2", "0", "Jane Doe", lambda path: f"file:{path}"),
    "v2 with a name, at a URI of Python": ("v2", "files", "plain", Path.as_uri),
    "v2 with a name, at a path with [ and ?": ("v2", "files_2", "a [b]?", lambda path: f"{path}/"),
}
"""By form: version, source, folder and spelling."""
# Each change of a checkpoint in each form, and each form with each state of a log.
CASES = [
    (form, checkpoint, list(LOGS)[(row + column) % len(LOGS)])
    for (row, form), (column, checkpoint) in product(enumerate(FORMS), enumerate(CHECKPOINTS))
]


@pytest.mark.parametrize(("form", "checkpoint", "log"), CASES)
def test_each_form_ends_exactly_once_or_in_a_refusal_that_names_the_remedy(
    engine: StandInSpark, tmp_path: Path, form: str, checkpoint: str, log: str
) -> None:
    engine.version, engine.source, folder, engine.location = FORMS[form]
    play(engine, tmp_path / folder, checkpoint, log)


# -- Refused places and forms


def damaged(file: str, content: bytes | None) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        if content is None:
            (checkpoint / file).unlink()
        else:
            (checkpoint / file).write_bytes(content)

    return damage


def strange(file: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        (checkpoint / file).unlink()
        make(checkpoint / file)

    return damage


DEEP = b"[" * 100_000
FOREIGN = {
    "a pipe": strange("offsets/6", os.mkfifo),
    "a pipe for a list": strange("sources/0/6", os.mkfifo),
    "an endless device": strange("sources/0/6", lambda path: path.symlink_to("/dev/zero")),
    "deep JSON in a list": damaged("sources/0/6", b"v1\n" + DEEP),
    "a later version of plans": damaged("offsets/6", b'v3\n{}\nfiles:{"logOffset":6}'),
    "a plan without a version": damaged("offsets/6", b"\x00\x01"),
    "no plan between others": damaged("offsets/6", None),
    "a later version of lists": damaged("sources/0/6", b'v2\n{"path":"file:///a","timestamp":1,"batchId":6}'),
    "a damaged list": damaged("sources/0/6", b'v1\n{"path":"file:///a","timestamp":1,"batchId":6}\n{"pa'),
    "no list": damaged("sources/0/6", None),
    "no metadata": damaged("metadata", None),
    "damaged metadata": damaged("metadata", b"{}"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_checkpoint_of_an_unknown_form_is_refused_with_the_option_that_accepts_it(
    engine: StandInSpark, tmp_path: Path, kind: str
) -> None:
    query = written(engine, tmp_path, "orders")
    query.add(NEW)
    before, ledgers = engine.rows("orders"), engine.bookkeeper.list_ledgers()
    engine.begin_run(query)
    # Spark has planned the next batch, and its tasks have not begun.
    engine.plan_next(query)
    FOREIGN[kind](query.checkpoint)
    with pytest.raises(UnreadCheckpointError, match=ACCEPTED_BY):
        engine.write(query, 7, NEW)
    assert engine.rows("orders") == before
    query.options["compareCheckpoint"] = "false"
    engine.write(query, 7, NEW)
    assert engine.rows("orders") == [*before, *NEW]
    assert engine.bookkeeper.list_ledgers() != ledgers


@pytest.mark.parametrize("place", ["dbfs:{}", "wasbs://a@b{}", "/nowhere/checkpoint", "file://another-host{}"])
def test_place_that_cannot_be_read_is_refused_before_a_task_begins(
    engine: StandInSpark, tmp_path: Path, place: str
) -> None:
    query = written(engine, tmp_path, "orders")
    engine.begin_run(query)
    query.options["checkpointlocation"] = place.format(query.checkpoint)
    with pytest.raises(UnreadCheckpointError, match=ACCEPTED_BY):
        engine.planned(query, 7)


def test_location_of_another_query_s_checkpoint_is_refused(engine: StandInSpark, tmp_path: Path) -> None:
    """It may stand in option checkpointUrl."""
    query, other = written(engine, tmp_path, "orders"), tmp_path / "other"
    query.add(NEW)
    shutil.copytree(query.checkpoint, other)
    (other / "metadata").write_text('{"id":"another"}')
    query.options["checkpointUrl"] = other.as_uri()
    failure = engine.run(query)
    assert failure is not None and "it is of query" in failure and ACCEPTED_BY in failure
    query.options["checkpointUrl"] = query.checkpoint.as_uri()
    assert engine.run(query) is None and engine.rows("orders")[-2:] == NEW


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("s3a://bucket/cp", "s3://bucket/cp/", True),
        ("abfss://files@account/cp", "abfs://files@account/cp", True),
        ("hdfs://host:8020/cp", "hdfs://host/cp", True),
        ("hdfs://host:8021/cp", "hdfs://host/cp", False),
        ("s3a://bucket/cp", "s3a://another/cp", False),
    ],
)
def test_deleted_checkpoint_is_recognised_by_each_name_of_its_store(
    engine: StandInSpark, tmp_path: Path, before: str, after: str, is_same: bool
) -> None:
    engine.location = lambda path: before
    (tmp_path / "checkpoint").mkdir()
    query = Query(tmp_path, "orders", {"checkpointUrl": (tmp_path / "checkpoint").as_uri()})
    engine.begin_run(query)
    engine.write(query, 0, NEW)
    shutil.rmtree(query.checkpoint)
    engine.location = lambda path: after
    engine.begin_run(query)
    if is_same:
        with pytest.raises(BookKeeperError, match="its Spark checkpoint was deleted"):
            engine.write(query, 0, NEW)
    else:
        engine.write(query, 0, NEW)
    assert engine.rows("orders") == NEW, "lane 0"


def test_look_at_other_checkpoints_on_a_mount_that_does_not_answer_ends_in_a_refusal(
    engine: StandInSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(os.path, "samefile", lambda one, other: answers.wait(60))
    monkeypatch.setattr(checkpoints, "_REMOTE_SECONDS_MAX", 0.1)
    (tmp_path / "checkpoint").mkdir()
    query = Query(tmp_path, "orders", {"checkpointUrl": (tmp_path / "checkpoint").as_uri()})
    engine.begin_run(query)
    engine.write(query, 0, NEW)
    engine.location = lambda path: "/another/place"
    engine.begin_run(query)
    with pytest.raises(UnreadCheckpointError, match=f"other checkpoints can't be looked at.*{ACCEPTED_BY}"):
        engine.write(query, 1, NEW)
    answers.set()
    assert engine.rows("orders") == NEW


def test_stale_copy_that_a_url_names_is_refused(engine: StandInSpark, tmp_path: Path) -> None:
    query = written(engine, tmp_path, "orders")
    shutil.copytree(query.checkpoint, tmp_path / "stale")
    query.options["checkpointUrl"] = (tmp_path / "stale").as_uri()
    query.add(NEW)
    failure = engine.run(query)
    assert failure is not None and "offsets/7 is missing" in failure and ACCEPTED_BY in failure
    shutil.rmtree(tmp_path / "stale/offsets")
    failure = engine.run(query)
    assert failure is not None and "it has no plan of a micro-batch" in failure and ACCEPTED_BY in failure
    (tmp_path / "stale/offsets").mkdir()
    (tmp_path / "stale/offsets/8").write_text('v1\n{}\n{"rows":1}')
    failure = engine.run(query)
    assert failure is not None and "it has no offsets/7, the plan of the running" in failure and ACCEPTED_BY in failure
    assert not set(NEW) & set(engine.rows("orders"))


def test_checkpoint_that_the_session_and_the_query_s_name_place_is_compared(
    engine: StandInSpark, tmp_path: Path
) -> None:
    query = written(engine, tmp_path, "orders")
    query.add(NEW)
    engine.session["spark.sql.streaming.checkpointLocation"] = f"{query.checkpoint.parent}/"
    query.options |= {"checkpointlocation": "", "queryname": "another"}
    failure = engine.run(query)
    assert failure is not None and f"{query.checkpoint.parent}/another" in failure and ACCEPTED_BY in failure
    query.options["queryname"] = query.checkpoint.name
    assert engine.run(query) is None and engine.rows("orders")[-2:] == NEW


def test_query_whose_place_spark_draws_is_refused(engine: StandInSpark, tmp_path: Path) -> None:
    """With ``spark.sql.streaming.checkpointLocation`` and no name, each start of the query is a new one, and writes its rows
    again."""
    query = written(engine, tmp_path, "orders")
    engine.begin_run(query)
    query.options["checkpointlocation"] = ""
    with pytest.raises(
        UnreadCheckpointError, match=f"Give the query a checkpointLocation or a queryName.*{ACCEPTED_BY}"
    ):
        engine.write(query, 7, NEW)
    assert not set(NEW) & set(engine.rows("orders"))


def test_secret_in_a_url_is_in_no_error() -> None:
    with pytest.raises(UnreadCheckpointError) as caught:
        SparkCheckpoint("s3a://bucket/cp", "orders", "s4://me:secret@bucket/cp").check()
    assert "checkpointUrl" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["checkpointUrl", "compareCheckpoint"])
def test_batch_write_refuses_options_of_checkpoints(name: str) -> None:
    given = {"zookeeper": "memory", "log": "orders", name: "false"}
    with pytest.raises(ConfigurationError, match=f"option {name} is for streams"):
        SinkOptions.parse(given).for_batch()


# -- A DataFrame that a query uses twice, in v2


def plan(checkpoint: Path, batch: int, *lines: str) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v2", "{}", *lines]))


def lists(checkpoint: Path, source: str, *offsets: int) -> None:
    folder = checkpoint / "sources" / source
    folder.mkdir(parents=True, exist_ok=True)
    for offset in offsets:
        file = f'{{"path":"file:///{source}/{offset}","timestamp":1,"batchId":{offset}}}'
        (folder / str(offset)).write_text(f"v1\n{file}")


def test_lines_of_v2_after_a_dataframe_used_twice_are_matched_to_their_lists(tmp_path: Path) -> None:
    """``a.union(a).union(b)``: the lines have keys 1 and 2, the folders 0 and 1."""
    lists(tmp_path, "0", 0)
    lists(tmp_path, "1", 0)
    plan(tmp_path, 0, '2:{"logOffset":0}', '1:{"logOffset":0}')
    checkpoint = SparkCheckpoint(str(tmp_path), "orders")
    assert checkpoint.files_read(0) == {"0": range(1), "1": range(1)}
    lists(tmp_path, "0", 1)
    plan(tmp_path, 1, '1:{"logOffset":1}', '2:{"logOffset":0}')
    assert checkpoint.files_read(1) == {"0": range(1, 2), "1": range(1, 1)}
    lists(tmp_path, "1", 1)
    plan(tmp_path, 2, '1:{"logOffset":1}', '2:{"logOffset":1}')
    assert checkpoint.files_read(2) == {"0": range(1, 2), "1": range(1, 2)}, "either may have been the last to move"
    plan(tmp_path, 3, '1:{"logOffset":5}', '2:{"logOffset":6}')
    with pytest.raises(UnreadCheckpointError, match=ACCEPTED_BY):
        checkpoint.files_read(3)


def test_order_of_lines_in_v2_is_not_part_of_a_plan(tmp_path: Path) -> None:
    lists(tmp_path, "a", 0)
    lines = ['a:{"logOffset":0}', 'rate:{"offset":6,"timestamp":2000}', "c:-"]
    checkpoint = SparkCheckpoint(str(tmp_path), "orders")
    plan(tmp_path, 0, *lines)
    before = checkpoint.plan(0)
    plan(tmp_path, 0, *lines[::-1])
    assert checkpoint.plan(0).offsets == before.offsets and before.offsets.startswith(FILES)
    plan(tmp_path, 0, *lines[:1])
    assert checkpoint.plan(0).offsets != before.offsets


def test_files_of_a_deleted_list_come_from_a_later_compacted_one(tmp_path: Path) -> None:
    lists(tmp_path, "0", 0, 1, 9)
    plan(tmp_path, 0, '0:{"logOffset":0}')
    checkpoint = SparkCheckpoint(str(tmp_path), "orders")
    before = checkpoint.plan(0)
    folder = tmp_path / "sources" / "0"
    bodies = [(folder / name).read_text().splitlines()[1] for name in ("0", "1", "9")]
    (folder / "9.compact").write_text("\n".join(["v1", *bodies]))
    for name in ("0", "1", "9"):
        (folder / name).unlink()
    assert checkpoint.plan(0) == before


def test_renamed_source_in_a_large_list_is_found(tmp_path: Path) -> None:
    """A list of more than 16 MiB was not read."""
    now = tmp_path / "now"
    now.mkdir()
    (now / "a.txt").touch()
    checkpoint = tmp_path / "checkpoint"
    folder = checkpoint / "sources" / "files"
    folder.mkdir(parents=True)
    long = "x" * 1000
    lines = [f'{{"path":"file:///{long}/{n}","timestamp":1,"batchId":0}}' for n in range(17_000)]
    gone = f'{{"path":"{(tmp_path / "former/a.txt").as_uri()}","timestamp":1,"batchId":0}}'
    (folder / "0").write_text("\n".join(["v1", *lines, gone]))
    (folder / "1").write_text(f'v1\n{{"path":"{(now / "a.txt").as_uri()}","timestamp":1,"batchId":1}}')
    plan(checkpoint, 0, 'files:{"logOffset":0}')
    plan(checkpoint, 1, 'files:{"logOffset":1}')
    with pytest.raises(SourceRenamedError):
        SparkCheckpoint(str(checkpoint), "orders").check_sources(1)


def test_plans_of_a_query_are_read_in_each_form(engine: StandInSpark, tmp_path: Path) -> None:
    engine.version, engine.source = "v2", "files"
    query = written(engine, tmp_path, "orders")
    checkpoint = SparkCheckpoint(str(query.checkpoint), "orders")
    plans = [checkpoint.plan(number) for number in numbers(query.checkpoint / "offsets")]
    assert len({one.offsets for one in plans}) == len(plans) == 7
    assert all(one.offsets.startswith(FILES) for one in plans)
