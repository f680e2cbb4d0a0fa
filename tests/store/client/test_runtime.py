"""The client's periodic work for all its open ledgers."""

from __future__ import annotations

import queue
from collections import Counter
from typing import Any

import pytest

from bookspark.errors import BookKeeperError
from bookspark.store.client.client_config import client_config
from bookspark.store.client.runtime.runtime import Runtime
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration

SECONDS = 60.0


class Idle:
    """A writer that sends its LAC (last-add-confirmed) whenever it can; without ``owes_lac`` it rests until woken."""

    owes_lac = True

    def __init__(self, told: queue.SimpleQueue[Any]) -> None:
        self._told = told

    def tick(self, now: float) -> bool:
        if not self.owes_lac:
            self._told.put((now, self))
        return False

    def is_quiet(self, now: float) -> bool:
        return True

    def tell_idle_lac(self, now: float) -> bool:
        self._told.put((now, self))
        return True

    def bookies_changed(self) -> None:
        self._told.put("bookies changed")


class Broken(Idle):
    """A writer whose method ``call`` raises."""

    ledger_id = 7

    def __init__(self, told: queue.SimpleQueue[Any], call: str) -> None:
        super().__init__(told)
        self._call = call

    def tick(self, now: float) -> bool:
        return self._called("tick")

    def tell_idle_lac(self, now: float) -> bool:
        return self._called("tell_idle_lac")

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


def test_many_idle_writers_send_their_lacs_in_turn_and_few_per_tick(runtime):
    told = queue.SimpleQueue()
    writers = [Idle(told) for _ in range(40)]
    runtime.io.submit(lambda: [runtime._add(writer) for writer in writers])  # between two ticks
    heard = [told.get(timeout=SECONDS) for _ in range(160)]
    for writer in writers:
        runtime.remove_writer(writer)
    assert max(Counter(now for now, _ in heard).values()) == 16
    times = Counter(writer for _, writer in heard)
    assert len(times) == 40 and max(times.values()) <= min(times.values()) + 1


def test_resting_writer_gets_no_ticks_until_woken(runtime):
    told, others = queue.SimpleQueue(), queue.SimpleQueue()
    writer, other = Idle(told), Idle(others)
    writer.owes_lac = False
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


def test_writers_that_only_owe_their_lac_are_not_checked_in_each_tick(runtime):
    """Of ten thousand ledgers written in turn, nearly all only owe their LAC. Checking them was most of the I/O thread's work."""
    looks, told = [], queue.SimpleQueue()

    class Counted(Idle):
        def tick(self, now):
            looks.append(self)
            return super().tick(now)

        def is_quiet(self, now):
            looks.append(self)
            return super().is_quiet(now)

    writers = [Counted(told) for _ in range(1000)]
    runtime.io.submit(lambda: [runtime._add(writer) for writer in writers])
    heard = [told.get(timeout=SECONDS) for _ in range(160)]
    runtime.io.submit(lambda: [runtime._forget(writer) for writer in writers])
    ticks = len({now for now, _ in heard})
    assert len(looks) <= len(writers) + 48 * (ticks + 1)


def test_busy_writer_sends_its_lac_when_it_is_quiet(runtime):
    told, busy = queue.SimpleQueue(), queue.SimpleQueue()
    writers = [Idle(told) for _ in range(3)]
    writers[1].is_quiet = lambda now: not busy.empty()
    runtime.io.submit(lambda: [runtime._add(writer) for writer in writers])
    assert told.get(timeout=SECONDS)[1] is writers[0]
    busy.put("quiet")
    assert {told.get(timeout=SECONDS)[1] for _ in range(6)} == {*writers}
    for writer in writers:
        runtime.remove_writer(writer)


@pytest.mark.parametrize("call", ["tick", "tell_idle_lac"])
def test_writer_with_a_failing_tick_is_ended_and_other_writers_keep_ticking(runtime, caplog, call):
    errors, told = queue.SimpleQueue(), queue.SimpleQueue()
    runtime.add_writer(Broken(errors, call))
    error = errors.get(timeout=SECONDS)
    assert "ledger 7: the client ran into a defect (ZeroDivisionError('a defect'))" in str(error)
    assert "ledger 7: its writer failed" in caplog.text
    idle = Idle(told)
    runtime.add_writer(idle)
    told.get(timeout=SECONDS)
    runtime.remove_writer(idle)
    assert errors.empty()


def test_writer_that_fails_on_changed_bookies_does_not_stop_other_writers(runtime):
    errors, told = queue.SimpleQueue(), queue.SimpleQueue()
    broken, other = Broken(errors, "bookies_changed"), Idle(told)
    runtime.io.submit(lambda: [runtime._add(writer) for writer in (broken, other)])
    runtime.store.register_bookie(BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7))
    assert "ledger 7: the client ran into a defect" in str(errors.get(timeout=SECONDS))
    while told.get(timeout=SECONDS) != "bookies changed":
        pass
    runtime.remove_writer(other)


def test_writer_added_after_the_close_is_ended_at_once():
    """A ledger created while another thread closed the client had no deadlines: its first append waited forever."""
    made, errors = Runtime(MemoryStore, client_config()), queue.SimpleQueue()
    made.close()
    made.add_writer(Broken(errors, "tick"))
    assert "the client was closed before the ledger" in str(errors.get(timeout=SECONDS))
