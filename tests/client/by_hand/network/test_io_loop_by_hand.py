"""The I/O thread without its thread: who wakes it, what runs in which order, and what becomes of it after its end."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import SimpleNamespace

import pytest

from bookspark.client.network import io_loop
from bookspark.client.network.io_loop import IoLoop
from bookspark.errors import BookKeeperError
from bookspark.threads import in_own_thread, mark_own_thread

SECONDS = 60.0


class Loop:
    """A loop that notes what it is to do; ``error`` is raised where it is woken."""

    def __init__(self, error=None, closed=False):
        self.soon, self.later, self.stopped, self.error, self.closed = [], [], 0, error, closed

    def call_soon_threadsafe(self, call):
        self.soon.append(call)
        if self.error:
            raise self.error

    def call_later(self, seconds, call, *arguments):
        self.later.append((seconds, call, arguments))

    def is_closed(self):
        return self.closed

    def stop(self):
        self.stopped += 1


def unstarted(**options):
    io = IoLoop.__new__(IoLoop)
    vars(io).update(
        loop=Loop(**options), _submitted=deque(), _submitted_once={}, _woken=False, _ends=False, _ended=False,
        _thread=SimpleNamespace(ident=-1, is_alive=lambda: True),
    )  # fmt: skip
    return io


def test_the_loop_is_woken_once_and_again_after_it_has_looked():
    io, ran = unstarted(), []
    io.submit(ran.append, 1)
    io.submit_once(lambda: ran.append("once"))
    io.submit(ran.append, 2)
    assert io.loop.soon == [io._run_submitted] and ran == []
    io._run_submitted()
    assert ran == [1, 2, "once"]
    io.submit_once(lambda: ran.append("once"))
    assert len(io.loop.soon) == 2
    io._run_submitted()
    io._run_submitted()
    assert ran == [1, 2, "once", "once"]


def test_what_is_submitted_while_others_run_comes_in_the_next_turn_and_wakes_the_loop():
    io, ran = unstarted(), []
    io.submit(lambda: (io.submit(ran.append, "next"), ran.append("first")))

    def once():
        ran.append("once")
        if len(ran) < 4:
            io.submit_once(once)

    io.submit_once(once)
    io._run_submitted()
    assert ran == ["first", "once"] and len(io.loop.soon) == 2
    io._run_submitted()
    assert ran == ["first", "once", "next", "once"]


def test_what_fails_keeps_no_other_from_running(caplog):
    io, ran = unstarted(), []

    def broken():
        raise SystemExit("a defect")

    io.submit(broken)
    io.submit_once(broken)
    io.submit(ran.append, 1)
    io.submit_once(lambda: ran.append(2))
    io._run_submitted()
    assert ran == [1, 2] and caplog.text.count("failed") >= 2


@pytest.mark.parametrize(
    ("error", "closed", "raised"), [(KeyboardInterrupt(), False, True), (RuntimeError(), True, False)]
)
def test_a_wake_that_is_interrupted_is_made_by_the_next_caller(error, closed, raised):
    io = unstarted(error=error, closed=closed)
    if raised:
        with pytest.raises(KeyboardInterrupt):
            io.submit(print)
    else:
        io.submit(print)
    io.loop.error = None
    io.submit(print)
    assert len(io.loop.soon) == 2 and len(io._submitted) == 2


def test_after_its_end_what_is_submitted_runs_here_and_now():
    io, ran = unstarted(), []
    io._ended = True
    io.submit(ran.append, 1)
    io.submit_once(lambda: ran.append(2))
    io._woken = True
    io.submit_once(lambda: ran.append(3))
    io.submit_later(60.0, ran.append, 4)
    assert ran == [1, 2, 3, 4] and io.loop.soon == io.loop.later == []

    class Emptied(deque):
        def __len__(self):
            return 3

    io._submitted = Emptied([(ran.append, (5,))])
    io._run_submitted()  # another thread takes as well
    assert ran[4:] == [5]


def test_what_is_to_run_later_waits_in_the_loop():
    io = unstarted()
    io.submit_later(7.0, print, 1, 2)
    assert io.loop.later == []
    io._run_submitted()
    assert io.loop.later == [(7.0, print, (1, 2))]


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("here", [True, False])
def test_the_end_is_waited_for_by_whom_it_does_not_wait_for(alive, here):
    io, joined = unstarted(), []
    io._thread = SimpleNamespace(
        ident=threading.get_ident() if here else -1, is_alive=lambda: alive, join=lambda timeout: joined.append(timeout)
    )
    assert io.here is here
    io.stop()
    assert [call[0] for call in io._submitted] == [io._end] * alive and joined == [10.0] * (alive and not here)
    io._end()
    assert io._ends and io.loop.stopped == 1


# -- with its thread


def test_the_thread_is_marked_as_the_clients_own_runs_its_loop_and_closes_it():
    io, seen, done = IoLoop("of the test"), [], threading.Event()
    assert io._thread.daemon and io._thread.name == "of the test" and not io.here
    assert io.loop.slow_callback_duration == 5.0

    def look():
        seen.append((in_own_thread(), io.here, asyncio.get_event_loop_policy().get_event_loop() is io.loop))
        done.set()

    io.submit(look)
    assert done.wait(SECONDS)
    io.stop()
    assert seen == [(True, True, True)] and io.loop.is_closed() and not io._thread.is_alive()
    ran = []
    io.submit(ran.append, 1)
    assert ran == [1]


def test_a_coroutine_is_run_in_the_loop_and_waited_for():
    io = IoLoop("test")

    async def told():
        return threading.get_ident() == io._thread.ident

    async def broken():
        raise ZeroDivisionError

    async def never():
        await asyncio.get_running_loop().create_future()

    assert io.call(told()) is True
    with pytest.raises(ZeroDivisionError):
        io.call(broken())
    with pytest.raises(TimeoutError):
        io.call(never(), 0.01)
    mark_own_thread("of the test")
    coroutine = told()
    try:
        with pytest.raises(BookKeeperError, match="of the test"):
            io.call(coroutine)
    finally:
        mark_own_thread("")
        coroutine.close()
    ended = []

    async def ends():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(1)

    began = threading.Event()
    kept = []
    io.submit(lambda: (kept.append(io.loop.create_task(ends())), io.loop.call_soon(began.set)))
    assert began.wait(SECONDS)
    io.stop()
    assert ended == [1], "tasks end with the loop"
    with pytest.raises(BookKeeperError, match="this client was closed"):
        io.call(told())


def test_what_was_submitted_as_the_loop_ended_is_done(monkeypatch):
    io, ran = unstarted(), []

    class Ending(Loop):
        def run_forever(self):
            io._ends = True
            io._submitted.append((lambda: ran.append(io._ended), ()))
            raise SystemExit("of a callback")

        def close(self):
            ran.append("closed")

    io.loop, io._thread = Ending(), SimpleNamespace(name="test")
    monkeypatch.setattr(io_loop.asyncio, "all_tasks", lambda loop: set())
    monkeypatch.setattr(io_loop.asyncio, "set_event_loop", lambda loop: ran.append(loop))
    try:
        io._run()
    finally:
        mark_own_thread("")
    assert ran == [io.loop, "closed", True]
