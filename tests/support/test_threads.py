"""Threads that no exception ends, and waits that a signal handler may interrupt and repeat."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bookspark
from bookspark.errors import BookKeeperError
from bookspark.support.threads import (
    BackOff,
    Latch,
    Repeated,
    Threads,
    Waiters,
    check_may_ask_store,
    check_may_wait,
    mark_own_thread,
)
from tests.awaiting import await_that, time_passes

SECONDS = 60.0
_PACKAGE = str(Path(bookspark.__file__).parent)
_LOOK_SECONDS = 0.001


def _calls_the_package(thread: int) -> bool:
    """Whether the thread with this id is in a function of the package, or in a call from such a function."""
    frame = sys._current_frames().get(thread)
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame is not None


@contextmanager
def interrupted_by(handler: Callable[..., Any], after: float = 0.05, every: float = 0.0) -> Iterator[None]:
    """Let ``handler`` interrupt this thread, which must be the main thread, in a call of the package: once, or again
    ``every`` so many seconds after it returned.

    On a busy machine the call may begin later than ``after``; an exception raised by the handler before would end the
    whole run of tests.
    """

    # No timer of the process: pytest's own deadline uses it. And no ``Event``: its ``set`` takes a lock.
    begun: queue.SimpleQueue[bool] = queue.SimpleQueue()
    returned: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def interrupt(*arguments: Any) -> None:
        handler(*arguments)
        returned.put(True)

    def send() -> None:
        pause = after
        begun.get()
        while True:
            with contextlib.suppress(queue.Empty):
                returned.get(timeout=pause)
                return
            if not _calls_the_package(interrupted):
                pause = _LOOK_SECONDS
                continue
            os.kill(os.getpid(), signal.SIGUSR1)
            if not every or not returned.get(timeout=SECONDS):
                return
            pause = every

    interrupted = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        begun.put(True)
        yield
    finally:
        returned.put(False)
        thread.join(SECONDS)
        signal.signal(signal.SIGUSR1, before)


def test_interrupt_waits_until_a_call_of_the_package_runs() -> None:
    latch, seen = Latch(), list[bool]()
    calls = False

    def handler(*_: object) -> None:
        seen.append(calls)
        latch.set()

    with interrupted_by(handler, 0.001):
        time_passes(0.1)
        calls = True
        assert latch.wait(SECONDS)
    assert seen == [True]


def test_signal_handler_may_wait_for_the_latch_whose_wait_it_interrupts() -> None:
    latch, seen = Latch(), []

    def handler(*_: object) -> None:
        threading.Timer(0.05, latch.set).start()
        seen.append(latch.wait(SECONDS))

    with interrupted_by(handler):
        assert latch.wait(SECONDS)
    assert seen == [True]


def test_wake_during_a_signal_handler_is_not_lost() -> None:
    """The condition is checked, the handler runs, the wake comes, and only then the wait begins."""
    latch = Latch()

    def looked_at() -> bool:
        found = latch.is_set()
        latch.set()  # like a handler that waits until another thread has set the latch
        return found

    assert latch._waiters.wait(looked_at, SECONDS)


def test_interrupted_wait_leaves_no_waiter_behind() -> None:
    latch = Latch()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with interrupted_by(interrupt), pytest.raises(KeyboardInterrupt):
        latch.wait(SECONDS)
    assert not latch._waiters
    latch.set()
    assert latch.wait(0)


def test_wait_ends_at_its_deadline_or_when_the_condition_holds() -> None:
    waiters = Waiters()
    assert not waiters.wait(lambda: False, 0.01)
    assert waiters.wait(lambda: True, 0)
    latch = Latch()
    threading.Timer(0.01, latch.set).start()
    assert latch.wait() and latch.wait(float("inf"))
    latch.clear()
    assert not latch.wait(0)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException]
)
def test_thread_goes_on_whatever_a_callback_raises(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    threads, done = Threads(1, "test"), threading.Event()

    def fail() -> None:
        raise error("from a callback")

    threads.post(fail)
    failed = threads.submit(fail)
    threads.post(done.set)
    assert done.wait(SECONDS)
    assert isinstance(failed.exception(SECONDS), error)
    assert threads.submit(lambda: 7).result(SECONDS) == 7
    threads.stop()
    assert "failed" in caplog.text


def test_stopped_threads_run_posted_calls_in_the_callers_thread() -> None:
    threads, seen = Threads(2, "test"), []
    threads.stop()
    threads.stop()
    threads.post(seen.append, 1)
    assert seen == [1]
    assert threads.submit(lambda: 2).result(0) == 2


def test_thread_that_stops_its_threads_does_not_wait_for_itself() -> None:
    threads, done = Threads(2, "test"), threading.Event()
    threads.post(lambda: (threads.stop(), done.set()))
    assert done.wait(SECONDS / 10)


def test_threads_are_started_for_calls_that_would_wait() -> None:
    def running() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("some-")}

    threads, go_on = Threads(3, "some"), threading.Event()
    assert threads.submit(lambda: 7).result(SECONDS) == 7
    assert running() == {"some-0"}
    calls = [threads.submit(go_on.wait, SECONDS) for _ in range(5)]
    assert running() == {"some-0", "some-1", "some-2"}
    go_on.set()
    assert all(call.result(SECONDS) for call in calls)
    threads.stop()
    assert not running()


def test_calls_wait_if_no_more_threads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads, go_on = Threads(3, "test"), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        calls = [threads.submit(go_on.wait, SECONDS) for _ in range(3)]
    go_on.set()
    assert all(call.result(SECONDS) for call in calls)
    threads.stop()


def test_thread_that_must_not_wait_is_refused_at_once() -> None:
    def refused(asks_store: bool) -> list[object]:
        mark_own_thread("a test's", asks_store=asks_store)
        found: list[object] = []
        for check in (check_may_wait, check_may_ask_store):
            with contextlib.suppress(BookKeeperError):
                check()
                continue
            found.append(check)
        return found

    threads = Threads(1, "test")
    assert threads.submit(refused, True).result(SECONDS) == [check_may_wait]
    assert threads.submit(refused, False).result(SECONDS) == [check_may_wait, check_may_ask_store]
    threads.stop()
    check_may_wait()
    check_may_ask_store()


class TestRepeated:
    """A repeated turn: its pauses, its errors and its end."""

    def test_error_does_not_end_the_thread_and_pauses_grow_until_a_turn_succeeds(self, caplog):
        outcomes = [BookKeeperError("no answer"), ValueError("a defect"), 0.0, ZeroDivisionError(), None]
        pauses, left = [], iter(outcomes)

        class Noted(BackOff):
            def next(self):
                pauses.append(super().next())
                return 0.0

        def turn():
            outcome = next(left)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        repeated = Repeated("work", turn, Noted(1.0, 60.0))
        assert not repeated.ended
        repeated.start()
        await_that(lambda: repeated.ended)
        assert pauses == [1.0, 2.0, 1.0]
        assert "work goes on later: no answer" in caplog.text
        assert "ValueError: a defect" in caplog.text

    def test_stop_ends_a_pause_and_runs_the_end(self):
        ended = []
        repeated = Repeated("work", lambda: math.inf, BackOff(1.0, 1.0), end=lambda: ended.append(True))
        repeated.start()
        assert repeated.stop(SECONDS)
        assert ended == [True] and repeated.ended

    def test_wake_during_a_turn_calls_it_once_more(self):
        turns = []

        def turn():
            turns.append(len(turns))
            if len(turns) == 1:
                repeated.wake()
            return math.inf

        repeated = Repeated("work", turn, BackOff(1.0, 1.0))
        repeated.start()
        await_that(lambda: len(turns) == 2)
        assert repeated.stop(SECONDS)

    def test_thread_that_was_never_started_stops_at_once(self):
        assert Repeated("work", lambda: None, BackOff(1.0, 1.0)).stop()


def test_latch_calls_its_listeners_when_it_is_set_or_at_once():
    latch, heard = Latch(), list[str]()
    with latch.calling(lambda: heard.append("one")):
        latch.set()
    latch.set()
    with latch.calling(lambda: heard.append("two")):
        pass
    assert heard == ["one", "two"]


def test_back_off_doubles_up_to_its_most_and_begins_anew():
    pauses = BackOff(0.1, 0.5)
    assert [pauses.next() for _ in range(4)] == [0.1, 0.2, 0.4, 0.5]
    pauses.reset()
    assert pauses.next() == 0.1


def test_drawn_pauses_are_below_the_doubled_ones():
    pauses = BackOff(0.1, 0.5, drawn=lambda low, high: (low + high) / 2)
    assert [pauses.next() for _ in range(4)] == [0.05, 0.1, 0.2, 0.25]
