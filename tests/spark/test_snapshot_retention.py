"""Retention of snapshots, without Spark: which snapshots are kept, which files go, and when the next snapshot is taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.spark import snapshots
from bookspark.spark.snapshots.retention import _dispensable, _older_than, write_every
from bookspark.support.snapshot_commits import LAST, Commit, kept

START = datetime(2026, 1, 1, tzinfo=UTC)
NOW = START + timedelta(hours=1)


def commit(n: int, oldest: int, table: str = LAST, version: int | None = None) -> Commit:
    return Commit(table, n if version is None else version, f"s{n}", f"s{oldest}", START + timedelta(minutes=n))


def test_newest_snapshot_determines_which_snapshots_are_kept() -> None:
    found = [commit(n, max(0, n - 2)) for n in range(6)]
    assert [snapshot.snapshot_id for snapshot in kept(found)] == ["s5", "s4", "s3"]
    assert [snapshot.snapshot_id for snapshot in kept([commit(n, 0) for n in range(3)])] == ["s2", "s1", "s0"]


def test_files_go_only_if_older_than_the_predecessor_of_the_oldest_kept_snapshot() -> None:
    """The limit was the commit of the oldest kept snapshot, whose files are written before it. After a week, when Delta's log
    had forgotten when they were replaced, only the rounding to whole hours kept them."""
    found = [commit(n, 0) for n in range(6)]
    assert _older_than(found[::-1], {"s3", "s4", "s5"}, NOW) == START + timedelta(minutes=2)
    assert _older_than(found, {"s0"}, NOW) is None, "nothing came before it"


def test_no_file_goes_while_a_snapshot_that_was_given_up_has_a_time_of_the_future() -> None:
    """A driver's clock was ahead for a moment: files of later snapshots, which are kept, are older."""
    found = [commit(n, 0) for n in range(6)]
    assert _older_than(found, {"s3", "s4", "s5"}, START + timedelta(minutes=1)) is None


def test_table_absent_from_some_snapshots_counts_by_its_first_kept_version() -> None:
    found = [commit(n, 0, "entry_checksums", version) for version, n in enumerate((0, 2, 5))]
    assert _older_than(found, {"s3", "s4", "s5"}, NOW) == START + timedelta(minutes=2)
    assert _older_than(found, {"s6"}, NOW) == START + timedelta(minutes=2), "the last one stands until it is replaced"


def delta_log(versions: int, *checkpoints: str) -> list[str]:
    names = [f"{version:020}.{kind}" for version in range(versions) for kind in ("json", "crc")]
    return [
        "_last_checkpoint",
        "_sidecars",
        *names,
        *(f"{name.partition('.')[0]:0>20}.{name.partition('.')[2]}" for name in checkpoints),
    ]


def test_delta_log_is_cut_before_the_checkpoint_that_the_oldest_kept_version_needs() -> None:
    names = delta_log(35, "10.checkpoint.parquet", "20.checkpoint.parquet", "30.checkpoint.parquet")
    gone = _dispensable(names, 29)
    assert gone[:2] == [f"{0:020}.crc", f"{0:020}.json"], "the oldest first"
    assert {*names} - {*gone} == {name for name in names if name[0] == "_" or int(name.split(".")[0]) >= 20}
    assert len(_dispensable(names, 30)) == 62 and _dispensable(names, 9) == []


def test_checkpoint_in_parts_counts_only_when_all_parts_exist() -> None:
    parts = [f"20.checkpoint.{part:010}.{3:010}.parquet" for part in (1, 2, 3)]
    assert len(_dispensable(delta_log(25, "10.checkpoint.parquet", *parts), 24)) == 41
    assert len(_dispensable(delta_log(25, "10.checkpoint.parquet", *parts[:2]), 24)) == 20
    assert len(_dispensable(delta_log(25, "10.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"), 24)) == 20


def test_interrupted_first_snapshot_is_reported_as_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookspark.spark.snapshots.snapshot.commits", lambda spark, path: [commit(0, 0, "ledgers")])
    with pytest.raises(ConfigurationError, match="no snapshot under there is whole; take one"):
        snapshots.tables(cast(SparkSession, SimpleNamespace()), "there")


assert issubclass(Py4JJavaError, Py4JError), "what a failed task comes as"


@pytest.mark.parametrize("error", [BookKeeperError("no bookies"), Py4JError("a task failed")])
def test_failed_snapshot_is_retried_when_the_next_is_due(error: Exception) -> None:
    now = [0.0]
    taken: list[float] = []
    waits: list[float] = []

    def ended(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return len(taken) == 5

    def take() -> None:
        taken.append(now[0])
        if len(taken) == 2:
            raise error
        if len(taken) == 3:
            now[0] += 25.0  # longer than the interval

    write_every(10.0, take, ended, lambda: now[0])
    assert taken == [0.0, 10.0, 20.0, 45.0, 55.0]
    assert waits == [10.0, 10.0, 0.0, 10.0, 10.0]
