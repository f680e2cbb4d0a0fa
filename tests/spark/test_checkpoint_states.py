"""The sink against Spark checkpoints in every state, without Spark (with it:
tests/system/acceptance/test_checkpoint_matrix.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.logs import LogRegistry, commits
from tests.spark.checkpoint_matrix import CASES, NEW, forget, play, written
from tests.spark.stand_in_spark import StandInSpark


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    return StandInSpark(monkeypatch)


@pytest.mark.parametrize(("checkpoint", "log"), CASES)
def test_each_case_ends_exactly_once_or_in_a_refusal_that_names_the_remedy(
    engine: StandInSpark, tmp_path: Path, checkpoint: str, log: str
) -> None:
    play(engine, tmp_path, checkpoint, log)


def test_there_are_forty_cases() -> None:
    assert len(CASES) == 40


def test_checkpoint_set_back_by_a_batch_continues_if_the_batch_plan_is_unchanged(
    engine: StandInSpark, tmp_path: Path
) -> None:
    query = written(engine, tmp_path, "orders")
    before = engine.rows("orders")
    forget(query.checkpoint, 1, "offsets", "commits", "sources/*")
    assert engine.run(query) is None and engine.rows("orders") == before
    query.add(NEW)
    assert engine.run(query) is None and engine.rows("orders") == [*before, *NEW]


def test_replay_with_other_random_values_writes_nothing(engine: StandInSpark, tmp_path: Path) -> None:
    query = written(engine, tmp_path, "orders")
    before = engine.rows("orders")
    engine.begin_run(query)
    engine.write(query, 6, ["drawn anew"])
    assert engine.rows("orders") == before


def test_replay_of_random_values_without_a_comparison_is_refused_until_accepted(
    engine: StandInSpark, tmp_path: Path
) -> None:
    query = written(engine, tmp_path, "orders")
    before = engine.rows("orders")
    engine.begin_run(query)
    query.options |= {"checkpointlocation": "hdfs://host/checkpoint", "compareCheckpoint": "false"}
    with pytest.raises(Exception, match="set the sink's option acceptReplay to 6"):
        engine.write(query, 6, ["drawn anew", "and again"])
    query.options["acceptReplay"] = "6"
    engine.write(query, 6, ["drawn anew", "and again"])
    assert engine.rows("orders") == before
    engine.write(query, 7, NEW)
    assert engine.rows("orders") == [*before, *NEW], "the option says nothing of later batches"


def test_replay_of_reordered_rows_without_a_comparison_writes_nothing(engine: StandInSpark, tmp_path: Path) -> None:
    query = written(engine, tmp_path, "orders")
    lines = [f"row {number}" for number in range(20)]
    query.options |= {"checkpointlocation": "hdfs://host/checkpoint", "compareCheckpoint": "false"}
    engine.write(query, 7, lines)
    before = engine.rows("orders")
    for _ in range(2):
        engine.write(query, 7, lines[::-1])
        engine.begin_run(query)
    assert engine.rows("orders") == before


def test_empty_batch_takes_no_number_of_a_batch_with_rows(engine: StandInSpark, tmp_path: Path) -> None:
    """Otherwise the rows of that number would come again under the next number."""
    query = written(engine, tmp_path, "orders")
    plan = query.checkpoint / "offsets/6"
    kept = plan.read_bytes()
    plan.unlink()
    engine.begin_run(query)
    for number in (5, 6):
        with pytest.raises(Exception, match=f"batch {number} of query .* is not written"):
            engine.write(query, number, [])
    plan.write_bytes(kept)
    engine.write(query, 7, [])
    engine.write(query, 8, NEW)
    assert engine.rows("orders")[-2:] == NEW


def test_refused_query_does_not_become_the_owner_and_writes_no_ledger(engine: StandInSpark, tmp_path: Path) -> None:
    query = written(engine, tmp_path / "one", "orders")
    registry = LogRegistry(engine.bookkeeper.metadata)
    before, ledgers = registry.get("orders"), engine.bookkeeper.list_ledgers()
    forget(query.checkpoint, 1, "offsets", "commits", "sources/*")
    query.add(NEW)
    assert "is not written" in (engine.run(query) or "")
    forget(query.checkpoint, 3, "offsets", "commits", "sources/*")
    assert "is not written" in (engine.run(query) or "")
    (query.checkpoint / "metadata").unlink()
    assert "is new to it" in (engine.run(query) or "")
    assert (registry.get("orders"), engine.bookkeeper.list_ledgers()) == (before, ledgers)


def test_query_with_option_follows_continues_the_log_of_its_predecessor(engine: StandInSpark, tmp_path: Path) -> None:
    query = written(engine, tmp_path / "one", "orders")
    before, former = engine.rows("orders"), LogRegistry(engine.bookkeeper.metadata).get("orders").owner_query
    following = written(engine, tmp_path / "two", "elsewhere")
    following.log = "orders"
    following.options["follows"] = former
    following.add(NEW)
    assert engine.run(following) is None and engine.rows("orders") == [*before, *NEW]
    query.add(["too late"])
    assert "is new to it" in (engine.run(query) or "")
    assert [placed.commit.batch for placed in commits(engine.bookkeeper, "orders", b"")] == [*range(7), 7]
