"""The I/O thread without its thread: who wakes it, what runs in which order, and what becomes of it after its end."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import SimpleNamespace

import pytest

from bookspark.client.network import io_loop
from bookspark.client.network.io_loop import IoLoop
from bookspark.client.writing.hold_ups import HoldUps
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


# -- hold-ups


class Patience:
    def __init__(self, spent=()):
        self.spent, self.noted = spent, []

    def spend(self, bookies, now):
        self.noted.append((sorted(bookies), now))

    def is_spent(self, bookie):
        return bookie in self.spent


def holding(spent=(), acks=(), heard_at=None, needed=False, pending=True, ack_quorum=2):
    """Hold-ups of a ledger whose entry 5, on b1, b2 and b3, is the oldest."""
    told, quarantined, patience = [], [], Patience(spent)
    add = SimpleNamespace(bookies=("b1", "b2", "b3"), acks=set(acks))
    writer = SimpleNamespace(
        cursors=SimpleNamespace(pending={5: add} if pending else {}),
        metadata=SimpleNamespace(ack_quorum=ack_quorum, ledger_id=1),
    )
    connections = SimpleNamespace(
        patience=patience,
        quietest_first=lambda bookies: tuple(sorted(bookies)),
        quarantine=lambda bookie, why: quarantined.append(bookie),
    )
    kept = SimpleNamespace(oldest_under_way=lambda: (5, heard_at))
    made = HoldUps(writer, connections, kept, told.append)
    made._needs = lambda behind: needed
    return made, told, quarantined, patience


@pytest.mark.parametrize(
    ("behind", "needed", "spent", "waits", "spends"),
    [
        ((), False, (), False, False),
        ((), True, (), False, False),
        (("b1",), True, ("b1",), True, False),
        (("b1",), False, (), True, True),
        (("b1",), False, ("b1",), False, True),
        (("b1", "b2"), False, ("b1",), True, True),
        (("b1", "b2"), False, ("b1", "b2"), False, True),
    ],
)
def test_appends_wait_for_who_is_behind_while_patience_lasts_and_for_whom_they_need(
    behind, needed, spent, waits, spends
):
    made, told, _, patience = holding(spent, needed=needed)
    assert made.waits_for(behind) is waits
    assert [bookies for bookies, _ in patience.noted] == [sorted(behind)] * spends and told == []


@pytest.mark.parametrize(
    ("acks", "heard_at", "pending", "slow"),
    [
        (("b1",), 99.0, True, ["b2", "b3"]),
        (("b1",), 99.6, True, []),
        (("b1",), None, True, []),
        (("b1", "b2"), 99.0, True, []),
        ((), 99.0, True, ["b1", "b2", "b3"]),
        (("b1",), 99.0, False, []),
    ],
)
def test_who_lacks_the_oldest_entry_for_a_while_after_another_had_it_is_slow(acks, heard_at, pending, slow):
    made, told, _, patience = holding((), acks, heard_at, pending=pending)
    made.look(100.0, ())
    assert patience.noted == ([(slow, 100.0)] if slow else []) and told == []


@pytest.mark.parametrize("needed", [True, False])
def test_who_is_slow_for_too_long_is_told_each_time_and_avoided_and_warned_of_once(needed, caplog):
    made, told, quarantined, patience = holding(("b2", "b4"), ("b1",), 99.0, needed=needed)
    for _ in range(2):
        made.look(100.0, ("b4",))
    slow = ["b2", "b3"] if needed else ["b2", "b3", "b4"]
    spent = ("b2",) if needed else ("b2", "b4")
    assert patience.noted == [(slow, 100.0)] * 2
    assert [event.bookies for event in told] == [spent] * 2 and quarantined == list(spent)
    assert caplog.text.count("much slower") == len(spent)
