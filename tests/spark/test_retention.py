"""Retention by time and by bytes: the real engine over in-memory ledgers, with kills at each step and concurrent runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from bookspark.errors import ConfigurationError, DataLossError, MetadataStoreError
from bookspark.logs import LogRegistry, collect_orphans, commits, truncate_expired
from bookspark.logs.chain import committer
from bookspark.logs.chain import committer as committers
from bookspark.protocol.logs.lanes import LaneId, lane_id
from bookspark.protocol.logs.log_record import LogTakenOverError
from bookspark.protocol.logs.retention import Retention
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.clocks import keep_steady
from tests.spark.stand_in_spark import StandInSpark
from tests.spark.test_ended_lanes import EndingStory
from tests.spark.test_feeds import ROWS, Log, positions
from tests.stories import seeds

SEEDS = seeds(12)
# Bytes of each commit of ``Log``.
BYTES = 10 * ROWS
HOUR_MS = 3_600_000


class _KilledError(MetadataStoreError):
    """The changing process was killed."""


@contextmanager
def killed_at(change: int, behind: bool) -> Iterator[list[int]]:
    """Kill the process at the ``change``-th record write or ledger deletion meanwhile: after it if ``behind``, else before it.
    Yield how many changes are left."""
    left = [change]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: MemoryStore, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0 or (left[0] == 0 and not behind):
                raise _KilledError("killed here")
            result = original(self, *arguments)
            if left[0] == 0:
                raise _KilledError("killed here")
            return result

        return changed

    with pytest.MonkeyPatch.context() as patched:
        for name in ("write_record", "delete_ledger"):
            patched.setattr(MemoryStore, name, counted(getattr(MemoryStore, name)))
        yield left


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_steady(monkeypatch)


@pytest.fixture
def log() -> Log:
    return Log()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rolled(log: Log, count: int, time_ms: int = 0) -> list[int]:
    """Make commits, each with a closed data ledger of its own, and return the ledgers."""
    ledgers = []
    for _ in range(count):
        log.commit(time_ms=time_ms)
        ledgers.append(log.data.ledger_id)
        log.data.close()
        log.roll()
    return ledgers


def truncate(log: Log) -> list[int]:
    return truncate_expired(cast(Any, log.bookkeeper.other()), "orders")


def test_old_rows_expire_with_their_ledgers_while_their_writer_continues(log: Log) -> None:
    log.registry.alter("orders", retention_ms=2 * HOUR_MS)
    old = rolled(log, 3, now_ms() - 3 * HOUR_MS)
    young = rolled(log, 2, now_ms() - HOUR_MS)
    assert truncate(log) == old
    assert log.registry.get("orders").first_position == 3 * ROWS
    assert set(young) < set(log.bookkeeper.list_ledgers()) and not set(old) & set(log.bookkeeper.list_ledgers())
    log.commit()
    assert positions(log.feed(), 30, 60) == list(range(30, 60))
    with pytest.raises(DataLossError, match="rows 0 to 29 were truncated"):
        positions(log.feed(), 0, 60)
    assert truncate(log) == []


def test_rows_expire_while_enough_bytes_follow_them(log: Log) -> None:
    log.registry.alter("orders", retention_bytes=2 * BYTES + 1)
    ledgers = rolled(log, 6)
    assert truncate(log) == ledgers[:3]
    assert log.registry.get("orders").first_position == 3 * ROWS


def test_rows_stay_without_a_retention(log: Log) -> None:
    rolled(log, 3, 1)
    assert truncate(log) == []
    log.registry.alter("orders", retention_ms=1, retention_bytes=1)
    log.registry.alter("orders", retention_ms=0, retention_bytes=0)
    assert truncate(log) == [] and log.registry.get("orders").first_position == 0


def test_clock_skew_expires_no_row_early_or_behind_a_younger_row(log: Log) -> None:
    log.registry.alter("orders", retention_ms=HOUR_MS)
    rolled(log, 1, now_ms() - 2 * HOUR_MS)
    rolled(log, 1, now_ms() + 9 * HOUR_MS)
    # The writer's clock jumps back; times of a lane do not.
    rolled(log, 1, now_ms() - 2 * HOUR_MS)
    truncate(log)
    assert log.registry.get("orders").first_position == ROWS


def test_ledger_with_entries_that_may_still_be_committed_stays(log: Log) -> None:
    """It is open, or its last entries belong to a task whose batch is not committed yet."""
    log.registry.alter("orders", retention_bytes=1)
    log.commit(2)
    log.data.append(b"of the next batch")
    tail = log.data.ledger_id
    assert truncate(log) == []
    log.data.close()
    log.roll()
    rolled(log, 1)
    still_open = log.data
    log.commit(2)
    truncate(log)
    assert {tail, still_open.ledger_id} <= set(log.bookkeeper.list_ledgers())
    assert log.registry.get("orders").first_position == 4 * ROWS
    # The epoch is over, and the entries can no longer be committed.
    log.begin("b")
    log.commit(2)
    truncate(log)
    deleted = collect_orphans(cast(Any, log.bookkeeper), "orders", b"")
    assert {tail, still_open.ledger_id} <= set(deleted)


def test_last_commit_ledger_stays_and_the_log_continues_after_all_rows_expired(log: Log) -> None:
    log.registry.alter("orders", retention_ms=HOUR_MS)
    rolled(log, 2, 1)
    log.begin("b")
    rolled(log, 2, 1)
    chain = log.registry.get("orders").commit_ledgers
    assert chain[0].ledger_id in truncate(log)
    record = log.registry.get("orders")
    assert (record.commit_ledgers, record.first_position) == (chain[-1:], 40)
    log.commit()
    assert positions(log.feed(), 40, 50) == list(range(40, 50))


@pytest.mark.parametrize("behind", [True, False])
def test_truncation_killed_at_any_step_is_completed_by_the_next(behind: bool) -> None:
    change = 0
    while True:
        change += 1
        log = Log()
        ledgers = rolled(log, 2)
        log.begin("b")
        ledgers += rolled(log, 3)
        log.registry.alter("orders", retention_bytes=BYTES)
        with killed_at(change, behind) as left:
            with suppress(_KilledError):
                truncate(log)
            died = left[0] <= 0
        first = log.registry.get("orders").first_position
        assert first in (0, 4 * ROWS)
        assert positions(log.feed(), first, 50) == list(range(first, 50))
        there = set(log.bookkeeper.list_ledgers())
        assert set(ledgers) <= there or first, "the record says first what is gone"
        if first:
            # Expired rows stay gone, although more may be kept from now on.
            log.registry.alter("orders", retention_bytes=100 * BYTES)
        truncate(log)
        left_over = set(log.bookkeeper.list_ledgers()) & set(ledgers)
        assert left_over == {ledgers[-1]} and log.registry.get("orders").first_position == 40
        if not died:
            break
    assert change > 6


def test_two_concurrent_truncations_have_the_effect_of_a_single_truncation(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of one truncation, the other runs from beginning to end."""
    for step in range(1, 10):
        log = Log()
        ledgers = rolled(log, 2)
        log.begin("b")
        ledgers += rolled(log, 3)
        log.registry.alter("orders", retention_bytes=BYTES)
        left = [step]

        def beside(original: Callable[..., Any], left: list[int] = left, log: Log = log) -> Callable[..., Any]:
            def changed(self: MemoryStore, *arguments: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    truncate(log)
                return original(self, *arguments)

            return changed

        with monkeypatch.context() as patched:
            for name in ("write_record", "delete_ledger"):
                patched.setattr(MemoryStore, name, beside(getattr(MemoryStore, name)))
            truncate(log)
        assert set(log.bookkeeper.list_ledgers()) & set(ledgers) == {ledgers[-1]}
        assert positions(log.feed(), 40, 50) == list(range(40, 50))


def test_offloaded_log_refuses_a_retention_and_keeps_its_rows(log: Log) -> None:
    log.registry.alter("orders", retention_bytes=1)
    rolled(log, 3)
    log.registry.update("orders", lambda record: record.offload_begun("table", 20))
    with pytest.raises(ConfigurationError, match="either a retention or an offload"):
        log.registry.alter("orders", retention_bytes=5)
    assert truncate(log) == [] and log.registry.get("orders").first_position == 0
    log.registry.alter("orders", retention_bytes=0)


def test_offload_begun_during_a_truncation_keeps_its_rows(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.registry.alter("orders", retention_bytes=1)
    rolled(log, 3)
    original = LogRegistry.update

    def late(self: LogRegistry, name: str, transition: Any) -> Any:
        monkeypatch.undo()
        original(self, name, lambda record: record.offload_begun("table", 20))
        return original(self, name, transition)

    monkeypatch.setattr(LogRegistry, "update", late)
    assert truncate(log) == [] and log.registry.get("orders").first_position == 0


def test_writer_expires_rows_of_its_lane_at_intervals(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers = rolled(log, 3, 1)
    log.registry.alter("orders", retention_ms=HOUR_MS)
    log.committer.tend(thoroughly=False)
    assert log.registry.get("orders").first_position == 0
    log.committer.tend(thoroughly=True)
    assert log.registry.get("orders").first_position == 30 and not set(ledgers) & set(log.bookkeeper.list_ledgers())
    rolled(log, 1, 1)
    log.committer.tend(thoroughly=True)
    assert log.registry.get("orders").first_position == 30, "it is looked again before it is due"
    monkeypatch.setattr(committers, "RETENTION_SECONDS", 0.0)
    log.committer._retention_due = 0.0
    for _ in range(2):
        rolled(log, 1, 1)
        log.committer.tend(thoroughly=True)
    assert log.registry.get("orders").first_position == 60


def test_writer_of_lane_0_truncates_no_other_lane(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[LaneId] = []
    monkeypatch.setattr(committers, "truncate_expired_of_lane", lambda bookkeeper, lane, _: lanes.append(lane) or [])
    log.commit()
    log.committer.tend(thoroughly=True)
    assert lanes == [lane_id(log.registry.get("orders"))]


def test_retention_of_an_earlier_log_of_the_name_does_not_apply(log: Log) -> None:
    log.registry.alter("orders", retention_bytes=1)
    earlier = log.registry.get("orders")
    log.registry.delete(lane_id(earlier))
    record = log.registry.ensure("orders", {}, b"")
    assert log.registry.retention(record).forever and log.registry.retention(earlier).forever
    log.registry.alter("orders", retention_ms=7)
    assert log.registry.retention(record) == Retention(7, 0)


class RetainingStory(EndingStory):
    """A story in which a retention of bytes is set, changed, removed, and applied by runs that are killed at each step."""

    def compact(self) -> None:
        # The chain of an ended lane is not compacted.
        with suppress(LogTakenOverError):
            super().compact()

    def truncate(self) -> None:
        if not self.lanes():
            return
        bookkeeper: Any = self.engine.bookkeeper
        registry, bytes_kept = LogRegistry(bookkeeper.metadata), self.random.choice([0, 1, 30, 100])
        registry.alter("orders", retention_bytes=bytes_kept)
        with suppress(_KilledError), killed_at(self.random.randint(1, 12), self.random.random() < 0.5):
            truncate_expired(bookkeeper, "orders")
        for lane in self.lanes():
            number, first = lane.number, registry.get(lane).first_position
            if first > self.truncated.get(number, 0):
                placed = list(commits(bookkeeper, lane, b""))
                kept = sum(one.commit.size for one in placed if one.before.rows >= first)
                assert bytes_kept and kept >= min(bytes_kept, placed[-1].after.size)
                self.truncated[number] = first
        self.reader = None


def test_retention_in_any_order_expires_no_row_that_must_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(committer, "CHAIN_MAX", 3)
    for seed in SEEDS:
        try:
            RetainingStory(StandInSpark(monkeypatch), tmp_path / str(seed), seed).play()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
