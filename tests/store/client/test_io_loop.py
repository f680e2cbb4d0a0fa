"""The client's I/O thread runs submitted calls of any thread once and in order."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict

from bookspark.store.client.network.io_loop import IoLoop


def test_calls_submitted_by_many_threads_run_once_and_in_order() -> None:
    io = IoLoop("test")
    seen: dict[int, list[int]] = defaultdict(list)

    def submit(thread: int) -> None:
        for number in range(5_000):
            io.submit(lambda number=number: seen[thread].append(number))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done = threading.Event()
    io.submit(done.set)
    assert done.wait(60)
    io.stop()
    assert seen == {thread: list(range(5_000)) for thread in range(4)}


def test_failing_call_does_not_stop_later_calls() -> None:
    io = IoLoop("test")
    held, done = threading.Event(), threading.Event()
    io.submit(held.wait, 60)  # so that the loop takes the other calls as a group
    io.submit(lambda: 1 / 0)
    io.submit(done.set)
    held.set()
    assert done.wait(60)
    io.stop()


def test_system_exit_in_a_call_does_not_end_the_io_loop() -> None:
    io = IoLoop("test")
    io.loop.call_soon_threadsafe(sys.exit, "in the I/O thread")
    done = threading.Event()
    io.loop.call_soon_threadsafe(done.set)
    assert done.wait(60)
    io.stop()


def test_stopped_io_loop_accepts_calls_and_runs_none() -> None:
    io = IoLoop("test")
    io.stop()
    for _ in range(3):
        io.submit(lambda: 1 / 0)


def test_delayed_call_runs_at_once_if_the_io_loop_has_ended() -> None:
    """If a client closed while a ledger's metadata could not be read, the ledger's retry only logged an error."""
    io = IoLoop("test")
    ran, done = [], threading.Event()
    io.submit_later(0.01, lambda: (ran.append("later"), done.set()))
    assert done.wait(60)
    io.stop()
    io.submit_later(60, ran.append, "ended")
    assert ran == ["later", "ended"]
