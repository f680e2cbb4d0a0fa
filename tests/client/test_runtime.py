"""What the client does for all its open ledgers now and then."""

from __future__ import annotations

import queue
from collections import Counter
from typing import Any

import pytest

from bookspark.client.client_config import client_config
from bookspark.client.runtime.runtime import Runtime
from bookspark.errors import BookKeeperError
from bookspark.metadata.memory.memory_store import MemoryStore
from bookspark.metadata.records.bookie_registration import BookieRegistration

SECONDS = 60.0


class Idle:
    """A writer that would tell its LAC at each tick."""

    at_rest = False

    def __init__(self, told: queue.SimpleQueue[Any]) -> None:
        self._told = told

    def tick(self, now: float, *, may_tell: bool) -> bool:
        if may_tell:
            self._told.put((now, self))
        return may_tell

    def bookies_changed(self) -> None:
        self._told.put("bookies changed")


class Broken(Idle):
    """One whose ``call`` raises."""

    ledger_id = 7

    def __init__(self, told: queue.SimpleQueue[Any], call: str) -> None:
        super().__init__(told)
        self._call = call

    def tick(self, now: float, *, may_tell: bool) -> bool:
        return self._called("tick")

    def bookies_changed(self) -> None:
        self._called("bookies_changed")

    def _called(self, call: str) -> bool:
        if call == self._call:
            raise ZeroDivisionError("a defect")
        return False

    def abandon(self, error: BookKeeperError) -> None:
        self._told.put(error)


@pytest.fixture
def runtime():
    made = Runtime(MemoryStore, client_config())
    yield made
    made.close()


def test_many_idle_writers_tell_their_lac_in_turn_and_a_few_at_a_time(runtime):
    told = queue.SimpleQueue()
    writers = [Idle(told) for _ in range(40)]
    runtime.io.submit(lambda: [runtime._add(writer) for writer in writers])  # between two ticks
    heard = [told.get(timeout=SECONDS) for _ in range(160)]
    for writer in writers:
        runtime.remove_writer(writer)
    assert max(Counter(now for now, _ in heard).values()) == 16
    times = Counter(writer for _, writer in heard)
    assert len(times) == 40 and max(times.values()) <= min(times.values()) + 1


def test_a_writer_at_rest_is_not_looked_at_until_it_is_woken(runtime):
    told, others = queue.SimpleQueue(), queue.SimpleQueue()
    writer, other = Idle(told), Idle(others)
    writer.at_rest = True
    runtime.add_writer(writer)
    runtime.add_writer(other)
    first = told.get(timeout=SECONDS)
    ticks = [others.get(timeout=SECONDS) for _ in range(4)]
    assert told.empty() and ticks[0][0] == first[0]
    runtime.io.submit(runtime.wake, writer)
    told.get(timeout=SECONDS)
    runtime.remove_writer(writer)
    runtime.io.submit(runtime.wake, writer)  # too late
    ticks = [others.get(timeout=SECONDS) for _ in range(4)]
    runtime.remove_writer(other)
    assert told.empty()


def test_a_writer_whose_tick_fails_is_ended_and_does_not_end_the_deadlines_of_the_others(runtime, caplog):
    errors, told = queue.SimpleQueue(), queue.SimpleQueue()
    runtime.add_writer(Broken(errors, "tick"))
    error = errors.get(timeout=SECONDS)
    assert "ledger 7: the client ran into a defect (ZeroDivisionError('a defect'))" in str(error)
    assert "ledger 7: its writer failed" in caplog.text
    idle = Idle(told)
    runtime.add_writer(idle)
    told.get(timeout=SECONDS)
    runtime.remove_writer(idle)
    assert errors.empty()


def test_a_writer_that_fails_as_bookies_change_does_not_keep_the_others_from_hearing_of_it(runtime):
    errors, told = queue.SimpleQueue(), queue.SimpleQueue()
    broken, other = Broken(errors, "bookies_changed"), Idle(told)
    runtime.io.submit(lambda: [runtime._add(writer) for writer in (broken, other)])
    runtime.store.register_bookie(BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7))
    assert "ledger 7: the client ran into a defect" in str(errors.get(timeout=SECONDS))
    while told.get(timeout=SECONDS) != "bookies changed":
        pass
    runtime.remove_writer(other)


def test_a_writer_that_comes_after_the_close_is_ended_at_once():
    """A ledger that was created as another thread closed the client had no deadlines: its first append waited for ever."""
    made, errors = Runtime(MemoryStore, client_config()), queue.SimpleQueue()
    made.close()
    made.add_writer(Broken(errors, "tick"))
    assert "the client was closed before the ledger" in str(errors.get(timeout=SECONDS))
