"""The client's I/O thread runs what any thread submits, once and in order."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict

from bookspark.store.client.network.io_loop import IoLoop


def test_nothing_that_threads_submit_at_once_is_lost_or_out_of_order() -> None:
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


def test_what_fails_does_not_keep_the_rest_from_running() -> None:
    io = IoLoop("test")
    held, done = threading.Event(), threading.Event()
    io.submit(held.wait, 60)  # so that the others are one group
    io.submit(lambda: 1 / 0)
    io.submit(done.set)
    held.set()
    assert done.wait(60)
    io.stop()


def test_an_exit_in_the_loop_does_not_end_it() -> None:
    io = IoLoop("test")
    io.loop.call_soon_threadsafe(sys.exit, "in the I/O thread")
    done = threading.Event()
    io.loop.call_soon_threadsafe(done.set)
    assert done.wait(60)
    io.stop()


def test_after_its_end_it_takes_what_is_submitted_and_does_nothing() -> None:
    io = IoLoop("test")
    io.stop()
    for _ in range(3):
        io.submit(lambda: 1 / 0)


def test_what_is_to_run_later_runs_at_once_when_the_loop_has_ended() -> None:
    """A machine whose metadata could not be read, as the client was being closed, was told so by an error in the log."""
    io = IoLoop("test")
    ran, done = [], threading.Event()
    io.submit_later(0.01, lambda: (ran.append("later"), done.set()))
    assert done.wait(60)
    io.stop()
    io.submit_later(60, ran.append, "ended")
    assert ran == ["later", "ended"]
