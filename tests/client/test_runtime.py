"""What the client does for all its open ledgers now and then."""

from __future__ import annotations

import queue
from collections import Counter
from typing import Any

import pytest

from bookspark.client.config import client_config
from bookspark.client.runtime import Runtime
from bookspark.metadata.memory import MemoryStore
from bookspark.protocol.errors import BookKeeperError

SECONDS = 60.0


class Idle:
    """A writer that would tell its LAC at each tick."""

    def __init__(self, told: queue.SimpleQueue[Any]) -> None:
        self._told = told

    def tick(self, now: float, *, may_tell: bool) -> bool:
        if may_tell:
            self._told.put((now, self))
        return may_tell


class Broken(Idle):
    """One whose tick raises."""

    ledger_id = 7

    def tick(self, now: float, *, may_tell: bool) -> bool:
        raise ZeroDivisionError("a defect")

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
    runtime.io.submit(lambda: runtime._writers.update(dict.fromkeys(writers)))  # between two ticks
    heard = [told.get(timeout=SECONDS) for _ in range(160)]
    for writer in writers:
        runtime.remove_writer(writer)
    assert max(Counter(now for now, _ in heard).values()) == 16
    times = Counter(writer for _, writer in heard)
    assert len(times) == 40 and max(times.values()) <= min(times.values()) + 1


def test_a_writer_whose_tick_fails_is_ended_and_does_not_end_the_deadlines_of_the_others(runtime, caplog):
    errors, told = queue.SimpleQueue(), queue.SimpleQueue()
    runtime.add_writer(Broken(errors))
    error = errors.get(timeout=SECONDS)
    assert "ledger 7: the client ran into a defect (ZeroDivisionError('a defect'))" in str(error)
    assert "ledger 7: its writer failed" in caplog.text
    idle = Idle(told)
    runtime.add_writer(idle)
    told.get(timeout=SECONDS)
    runtime.remove_writer(idle)
    assert errors.empty()
