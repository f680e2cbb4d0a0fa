"""Autorecovery on a host whose clock is wrong: what it keeps in the metadata store is right for other hosts, and later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery.auditor import Auditor
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.status import autorecovery_status, task_statuses
from bookspark.store.autorecovery.worker import ReplicationWorker
from bookspark.store.metadata.autorecovery.auditors import CheckReport
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.awaiting import await_that
from tests.clocks import DAY_MS, wrong_clock
from tests.store.autorecovery.kit import Cluster

HOUR_MS = DAY_MS // 24
Audit = Callable[[Cluster], Auditor]

wrong = pytest.mark.parametrize("days", [400, -400])


@pytest.fixture
def audit() -> Iterator[Audit]:
    """Starts an auditor, which checks once an hour and counts bookies as lost after an hour."""
    with ExitStack() as stack:

        def started(cluster: Cluster) -> Auditor:
            config = AutorecoveryConfig(
                lost_bookie_delay_seconds=3600.0, check_interval_hours=1.0, check_confirm_seconds=0.0, poll_seconds=0.05
            )
            running = Auditor(cluster, config, f"auditor-{id(cluster)}")  # type: ignore[arg-type]
            stack.callback(running.stop)
            running.start()
            return running

        yield started


@wrong
def test_repair_is_put_off_by_its_pause_and_no_longer(days: int) -> None:
    right = MemoryStore()
    right.underreplication.mark([Mark(7, {"a": Reason.LOST})])
    with wrong_clock(days):
        tasks = right.another().underreplication
        taken = tasks.take(7, "worker")
        assert taken is not None
        tasks.failed(taken, "no bookie", 3600.0)
        assert tasks.due_of([7]) == []
    [told] = task_statuses(right, {})
    assert 3500 < told.next_attempt_seconds <= 3600 and told.marked_seconds_ago < 3600
    assert right.underreplication.due_of([7]) == []


def test_wait_that_began_ahead_of_now_is_over() -> None:
    """The metadata store's own clock was wrong for a moment."""
    store = MemoryStore()
    store.underreplication.mark([Mark(7, {"a": Reason.LOST})])
    with pytest.MonkeyPatch.context() as patched:
        world = type(store._world)
        now_ms = store._world.now_ms()
        patched.setattr(world, "now_ms", lambda _: now_ms + 400 * DAY_MS)
        taken = store.underreplication.take(7, "worker")
        assert taken is not None
        store.underreplication.failed(taken, "no bookie", 3600.0)
        store.auditors.note_check(CheckReport(now_ms + 400 * DAY_MS, 1.0, 1, 0))
    assert store.underreplication.due_of([7]) == [7]
    assert task_statuses(store, {})[0].next_attempt_seconds == 0


@wrong
def test_next_check_comes_after_its_interval_whatever_the_clock_of_the_last_auditor(
    days: int, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    cluster.close_ledger(1)
    auditors = cluster.metadata.auditors
    with wrong_clock(days):
        first = audit(Cluster(cluster))
        report = await_that(auditors.last_check)
        assert first.stop()
    assert abs(report.finished_at_ms - cluster.metadata.clock.now_ms()) < HOUR_MS
    # It lies ahead, as BookKeeper's auditors and a metadata store with a wrong clock write it.
    auditors.note_check(msgspec.structs.replace(report, finished_at_ms=report.finished_at_ms + 400 * DAY_MS))
    audit(Cluster(cluster))
    await_that(lambda: abs(auditors.last_check().finished_at_ms - report.finished_at_ms) < HOUR_MS)


@wrong
def test_time_until_a_bookie_counts_as_lost_is_that_of_the_auditor(days: int, audit: Audit) -> None:
    cluster = Cluster()
    cluster.metadata.unregister_bookie("a")
    with wrong_clock(days):
        other = Cluster(cluster)
        audit(other)
        await_that(other.metadata.auditors.state)
    found = autorecovery_status(cluster.metadata).away
    assert found is not None and 3000 < found["a"] <= 3600


@wrong
def test_worker_tells_how_far_its_clock_is_off(days: int) -> None:
    cluster = Cluster()
    with wrong_clock(days):
        worker = ReplicationWorker(Cluster(cluster), AutorecoveryConfig(poll_seconds=0.05))  # type: ignore[arg-type]
        worker.start()
        try:
            told = await_that(cluster.metadata.underreplication.progress)
        finally:
            worker.stop()
    assert [round(one.clock_ahead_ms / DAY_MS) for one in told.values()] == [days]
