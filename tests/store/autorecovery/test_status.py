"""The status of autorecovery: remaining ledgers, bytes and time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.underreplication_task import Mark, Reason, Task
from bookspark.store.autorecovery.status import autorecovery_status, bytes_to_copy, task_statuses
from bookspark.store.metadata.autorecovery.underreplication_tasks import Progress
from bookspark.store.metadata.memory.memory_store import MemoryStore

CLOSED = LedgerMetadata(
    1, 3, 3, 2, (Fragment(0, ("a", "b", "c")), Fragment(30, ("a", "b", "d"))), LedgerState.CLOSED, 99, 1000
)


def task(**bookies: Reason) -> Task:
    return Task(1, bookies)


def test_bytes_to_copy_cover_only_copies_that_move_to_other_bookies() -> None:
    assert bytes_to_copy(CLOSED, task(c=Reason.LOST)) == 300
    assert bytes_to_copy(CLOSED, task(d=Reason.MISPLACED)) == 700
    assert bytes_to_copy(CLOSED, task(a=Reason.LOST, c=Reason.LOST)) == 1300
    assert bytes_to_copy(CLOSED, task(a=Reason.LACKS, x=Reason.LOST)) == 0


def test_bytes_to_copy_of_a_striped_ledger_are_the_share_of_the_bookie() -> None:
    striped = replace(CLOSED, write_quorum=2, ack_quorum=2, fragments=CLOSED.fragments[:1])
    assert bytes_to_copy(striped, task(a=Reason.LOST)) == pytest.approx(1000 * 2 / 3, abs=1)


def test_bytes_to_copy_are_0_for_an_open_or_empty_ledger() -> None:
    assert bytes_to_copy(replace(CLOSED, state=LedgerState.OPEN), task(a=Reason.LOST)) == 0
    assert bytes_to_copy(replace(CLOSED, last_entry_id=-1, length=0), task(a=Reason.LOST)) == 0


def test_time_left_follows_the_progress_of_the_workers() -> None:
    store = MemoryStore()
    tasks = store.underreplication
    idle = autorecovery_status(store)
    assert (idle.ledgers, idle.bytes_left, idle.seconds_left, idle.auditor, idle.enabled) == (0, 0, None, None, True)
    assert store.auditors.elect("auditor-1") is not None
    assert autorecovery_status(store).seconds_left == 0.0, "now somebody looks"
    store.create_ledger(CLOSED)
    tasks.mark([Mark(1, {"a": Reason.LOST}, "a lost")])
    assert autorecovery_status(store).seconds_left is None, "nobody knows yet"
    tasks.publish_progress("worker-1", Progress(seconds=10.0, ledgers=1, bytes=400))
    tasks.publish_progress("worker-2", Progress(seconds=1.0, ledgers=1, bytes=10))
    found = autorecovery_status(store)
    assert (found.bytes_left, found.bytes_per_second, found.seconds_left) == (1000, 50.0, 20.0)
    taken = tasks.take(1, "worker-1")
    assert taken is not None and autorecovery_status(store).being_repaired == 1
    tasks.failed(taken, "no bookie", 100.0)
    (told,) = task_statuses(store, {})
    assert (told.ledger_id, told.error, told.attempts, told.holder) == (1, "no bookie", 1, None)
    assert told.next_attempt_seconds > 0 and autorecovery_status(store).failed == 1
    store.close()
