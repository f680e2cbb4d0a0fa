"""What the client does for all its open ledgers now and then."""

from __future__ import annotations

import queue
from collections import Counter

import pytest

from bookspark.client.config import client_config
from bookspark.client.runtime import Runtime
from bookspark.metadata.memory import MemoryStore

SECONDS = 60.0


class Idle:
    """A writer that would tell its LAC at each tick."""

    def __init__(self, told: queue.SimpleQueue[tuple[float, Idle]]) -> None:
        self._told = told

    def tick(self, now: float, *, may_tell: bool) -> bool:
        if may_tell:
            self._told.put((now, self))
        return may_tell


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
