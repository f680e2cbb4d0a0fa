"""Two live copies of a Spark checkpoint: in any order of their batches, each row is in the log once or a query is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random

import pytest

from bookspark.errors import BookKeeperError
from bookspark.logs import LogRegistry
from tests.spark.checkpoint_matrix import Query, numbers, written
from tests.spark.stand_in_spark import StandInSpark
from tests.stories import seeds

REFUSED = (
    r"Of two runs of a query stop one, then start the other again from its checkpoint|"
    r"two queries have copies of one\. Give the query"
)
SEEDS = seeds(8)
STEPS = 25


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    return StandInSpark(monkeypatch)


class Copy(Query):
    """A query that continues from a copy of another query's Spark checkpoint, over the same files."""

    @classmethod
    def of(cls, query: Query, folder: Path) -> Copy:
        copy = cls(folder, query.log, dict(query.options))
        copy.source = query.input
        shutil.copytree(query.checkpoint, copy.checkpoint)
        return copy

    source: Path

    @property
    def input(self) -> Path:
        return self.source


def copies(engine: StandInSpark, folder: Path) -> tuple[Query, Copy]:
    query = written(engine, folder / "one", "orders")
    copy = Copy.of(query, folder / "two")
    for each in (query, copy):
        engine.begin_run(each)
    return query, copy


def step(engine: StandInSpark, query: Query, files_max: int | None = None) -> str | None:
    """Run a micro-batch. If it fails, start the query again and return the error's text."""
    try:
        engine.step(query, files_max)
    except BookKeeperError as error:
        engine.begin_run(query)
        return str(error)
    return None


def lines(query: Query) -> list[str]:
    """The rows of the query's input."""
    return [line for path in sorted(query.input.iterdir()) for line in path.read_text().splitlines()]


def lines_done(engine: StandInSpark, query: Query) -> set[str]:
    """Rows that the query takes to be in the log, by its Spark checkpoint."""
    done = set(numbers(query.checkpoint / "commits"))
    return {line for number in done for line in engine.lines_of(query, number)}


def test_copies_in_any_order_write_each_row_once_or_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for seed in SEEDS:
        engine, random = StandInSpark(monkeypatch), Random(seed)
        both = copies(engine, tmp_path / str(seed))
        for _ in range(STEPS):
            if random.random() < 0.4:
                number = len(list(both[0].input.iterdir()))
                both[0].add([f"file {number} row {row}" for row in range(random.choice((0, 0, 1, 3)))])
            moved = random.choice(both)
            failure = step(engine, moved, random.choice((1, None)))
            assert failure is None or re.search(REFUSED, failure), f"seed {seed}: {failure}"
            rows = engine.rows("orders")
            assert len(rows) == len(set(rows)), f"seed {seed}: rows are twice in the log: {rows}"
            for query in both:
                assert lines_done(engine, query) <= set(rows), f"seed {seed}: rows are not in the log"


def test_copy_that_saw_an_empty_batch_does_not_repeat_the_other_copys_rows(
    engine: StandInSpark, tmp_path: Path
) -> None:
    """An empty batch is not in the log. So the log had the other copy's batch of that number, and the first copy compared none
    of its batches with it."""
    query, copy = copies(engine, tmp_path)
    query.add([])
    assert step(engine, copy) is None
    query.add(["new"])
    assert step(engine, query) is None and engine.rows("orders")[-1] == "new"
    before = engine.rows("orders")
    for _ in range(2):
        failure = step(engine, copy)
        assert failure is not None and "which is not the batch 7 in its checkpoint" in failure
        assert re.search(REFUSED, failure)
        assert engine.rows("orders") == before
    query.add(["newer"])
    assert step(engine, query) is None and engine.rows("orders") == [*before, "newer"], "the other one goes on"


def test_copy_that_wrote_to_a_deleted_log_is_compared_with_the_log_made_anew(
    engine: StandInSpark, tmp_path: Path
) -> None:
    """It was not, because its run had committed a batch to a log of this name; bookies did not confirm the other copy's commit
    yet when its tasks looked."""
    query, copy = copies(engine, tmp_path)
    for row in ("x", "y"):
        query.add([row])
        assert step(engine, query) is None
    engine.delete("orders")
    query.add(["z"])
    assert step(engine, copy, 1) is None and step(engine, copy) is None
    assert engine.rows("orders") == ["x", "y", "z"]
    newest = LogRegistry(engine.bookkeeper.metadata).get("orders").commit_ledgers[-1].ledger_id
    engine.bookkeeper.untold.add(newest)
    failure = step(engine, query)
    engine.bookkeeper.untold.clear()
    assert failure is not None and "the log has a batch 8 of it with 2 rows" in failure and re.search(REFUSED, failure)
    assert engine.rows("orders") == ["x", "y", "z"]


def test_accept_replay_lets_a_copys_next_batch_be_written_as_new(engine: StandInSpark, tmp_path: Path) -> None:
    query, copy = copies(engine, tmp_path)
    query.add([])
    assert step(engine, copy) is None
    query.add(["new"])
    assert step(engine, query) is None
    copy.options["acceptReplay"] = "7"
    assert step(engine, copy) is None and engine.rows("orders")[-2:] == ["new", "new"]


def test_copies_with_the_same_batches_take_turns_until_a_copy_is_refused(engine: StandInSpark, tmp_path: Path) -> None:
    query, copy = copies(engine, tmp_path)
    for number in range(3):
        query.add([f"new {number}"])
        assert step(engine, query) is None and step(engine, copy) is None
    assert engine.rows("orders")[-3:] == [f"new {number}" for number in range(3)]
    query.add(["new 3"])
    assert step(engine, copy) is None, "it takes the log over"
    assert step(engine, query) is None, "it finds its batch in the log"
    query.add(["new 4"])
    assert "another run took over" in (step(engine, query) or "")
    assert step(engine, copy) is None and step(engine, query) is None
    assert engine.rows("orders") == lines(query)
