"""A client's runtime without its threads: which writers it looks after, what it lists, and how it is made."""

from __future__ import annotations

import math
import os
import queue
import socket
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.runtime import runtime as runtime_module
from bookspark.client.runtime.runtime import Runtime
from bookspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LedgerClosedError,
)
from bookspark.metadata.records.bookie_registration import BookieRegistration
from bookspark.threads import check_may_ask_store, check_may_wait


def bookies(*names, **fields):
    return {name: BookieRegistration(name, "here:1", 1, **fields) for name in names}


class Writer:
    def __init__(self, calls, **fields):
        self.calls, self.ledger_id, self.owes_lac, self.quiet, self.more, self.tells = (
            calls,
            7,
            False,
            True,
            False,
            True,
        )
        vars(self).update(fields)

    def __repr__(self):
        return f"w{self.ledger_id}"

    def tick(self, now):
        self.calls.append(("tick", self.ledger_id))
        return self.more

    def is_quiet(self, now):
        return self.quiet

    def tell_idle_lac(self, now):
        self.calls.append(("tell", self.ledger_id))
        return self.tells

    def abandon(self, error):
        self.calls.append(("abandon", self.ledger_id, type(error)))


@pytest.fixture
def looked_after(monkeypatch):
    """A runtime without threads: what is submitted is done at once."""
    monkeypatch.setattr(runtime_module, "DeadlineTimer", lambda *timer: runtime.timers.append(timer))
    runtime = Runtime.__new__(Runtime)
    vars(runtime).update(
        _writers={}, _awake={}, _owing={}, _closed=False, _changes=0, _listed=None, timers=[],
        io=SimpleNamespace(submit=lambda function, *arguments: function(*arguments)),
    )  # fmt: skip
    return runtime


@pytest.mark.parametrize(("more", "owes", "woken"), list(product([True, False], repeat=3)))
def test_a_writer_is_looked_at_until_it_rests_and_then_asked_for_its_lac_if_it_owes_one(
    looked_after, more, owes, woken
):
    calls, runtime = [], looked_after
    writer = Writer(calls, more=more, owes_lac=owes, quiet=False)
    runtime.add_writer(writer)
    if woken:
        writer.tick = lambda now: bool(runtime._forget(writer)) or more  # as it ended in its tick
    runtime._tick()
    assert list(runtime._awake) == [writer] * (more and not woken)
    assert list(runtime._owing) == [writer] * (owes and not more and not woken)
    assert runtime.timers == [(0.05, runtime._tick)] and runtime.writers == (not woken)


def test_a_writer_that_rests_again_is_the_last_to_be_asked(looked_after):
    calls, runtime = [], looked_after
    writers = [Writer(calls, ledger_id=n, owes_lac=True, quiet=False) for n in range(3)]
    for writer in writers:
        runtime.add_writer(writer)
    runtime._tick()
    runtime.wake(writers[0])
    runtime._tick()
    assert list(runtime._owing) == [writers[1], writers[2], writers[0]]


def test_at_each_tick_a_few_tell_their_lac_those_that_rested_longest(looked_after):
    calls, runtime = [], looked_after
    writers = [Writer(calls, ledger_id=n, tells=n % 3 > 0) for n in range(40)]
    for writer in writers:
        runtime._writers[writer] = runtime._owing[writer] = None
    runtime._awake[writers[1]] = None
    runtime._tell_lacs(0.0)
    told = [n for _, n in calls]
    # Those that told nothing, and the one that is awake, take no turn.
    assert told == [n for n in range(40) if n != 1][: len(told)] and sum(n % 3 > 0 for n in told) == 16
    assert list(runtime._owing) == [writer for writer in writers if writer.ledger_id > told[-1]]
    assert set(runtime._awake) == {writers[1], *(writers[n] for n in told)}
    del calls[:]
    writers[told[-1] + 2].quiet = False
    runtime._tell_lacs(0.0)
    assert [n for _, n in calls] == [told[-1] + 1] and next(iter(runtime._owing)).quiet is False


@pytest.mark.parametrize("how", ["tick", "is_quiet", "tell_idle_lac", "bookies_changed"])
def test_a_writer_that_fails_is_ended_and_forgotten_and_the_others_looked_after(looked_after, how, caplog):
    calls, runtime = [], looked_after

    def broken(*_):
        raise SystemExit("a defect")

    bad, good = Writer(calls, ledger_id=1, owes_lac=True), Writer(calls, ledger_id=2, owes_lac=True)
    setattr(bad, how, broken)
    for writer in (bad, good):
        writer.__dict__.setdefault("bookies_changed", lambda writer=writer: calls.append(("changed", writer.ledger_id)))
        runtime._add(writer)
    runtime._bookies_changed() if how == "bookies_changed" else runtime._tick()
    assert ("abandon", 1, BookKeeperError) in calls and bad not in {
        **runtime._writers,
        **runtime._awake,
        **runtime._owing,
    }
    assert ("changed" if how == "bookies_changed" else "tell" if how != "tick" else "tick", 2) in calls
    assert "ledger 1: its writer failed" in caplog.text and good in runtime._writers


def test_writers_of_a_client_that_is_closed_are_ended_each_and_no_new_ones_begun(looked_after, caplog):
    calls, runtime = [], looked_after

    def broken(error):
        raise SystemExit("a defect")

    for writer in (Writer(calls, ledger_id=1, abandon=broken), Writer(calls, ledger_id=2)):
        runtime.add_writer(writer)
    runtime._fail_writers()
    assert calls == [("abandon", 2, LedgerClosedError)] and "ledger 1: its writer could not be ended" in caplog.text
    late = Writer(calls, ledger_id=3)
    runtime.add_writer(late)
    assert calls[-1] == ("abandon", 3, LedgerClosedError) and late not in runtime._writers
    runtime.wake(late)
    assert late not in runtime._awake


# -- listings


def test_a_listing_serves_until_it_is_too_old_or_bookies_changed(looked_after, monkeypatch):
    runtime, now, listed = looked_after, [100.0], []
    monkeypatch.setattr(runtime_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    runtime.store = SimpleNamespace(bookies=lambda: listed.append(1) or {"n": len(listed)})
    assert runtime.bookies(5.0) == {"n": 1} == runtime.bookies(5.0)
    now[0] += 4.9
    assert runtime.bookies(5.0) == {"n": 1}
    assert runtime.bookies() == {"n": 2}
    now[0] += 5.0
    assert runtime.bookies(5.0) == {"n": 3}
    runtime._bookies_changed()
    assert runtime.bookies(math.inf) == {"n": 4} == runtime.bookies(math.inf)

    def changes_meanwhile():
        runtime._changes += 1
        return {"n": 9}

    runtime.store.bookies = changes_meanwhile
    runtime.bookies()
    assert runtime._listed.changes == runtime._changes - 1, "it may be older than the change"


def test_bookies_of_this_host_are_known_from_any_listing(looked_after):
    runtime = looked_after
    found = bookies("b1", host=socket.gethostname()) | bookies("b2", host="elsewhere")
    asked = []
    runtime.bookies = lambda seconds: asked.append(seconds) or found
    assert runtime.bookies_on_this_host() == {"b1"} and asked == [math.inf]


def test_a_runtime_is_made_wholly_or_not_at_all(monkeypatch):
    closed = []
    store = SimpleNamespace(close=lambda: closed.append("store"), watch_bookies=lambda changed: 1 / 0)
    made = []
    threads = runtime_module.Threads
    monkeypatch.setattr(runtime_module, "Threads", lambda *what: made.append(threads(*what)) or made[-1])
    with pytest.raises(ZeroDivisionError):
        Runtime(lambda: store, ClientConfig())
    assert closed == ["store"]
    with pytest.raises(ConfigurationError):
        Runtime(lambda: 1 / 0, ClientConfig(tls_ca="/nowhere"))
    with pytest.raises(ZeroDivisionError):
        Runtime(lambda: 1 / 0, ClientConfig())
    assert len(made) == 4 and not any(thread.is_alive() for each in made for thread in each._threads)


def test_a_runtime_has_what_its_client_shares_and_ends_all_of_it_in_order(monkeypatch):
    order, watched, loops, found = [], [], [], queue.SimpleQueue()

    class Loop(runtime_module.IoLoop):
        def __init__(self, name):
            super().__init__(name)
            loops.append(self)

        def stop(self):
            order.append("loop")
            super().stop()

    monkeypatch.setattr(runtime_module, "IoLoop", Loop)
    store = SimpleNamespace(close=lambda: order.append("store"), watch_bookies=watched.append)
    config = ClientConfig(client_bytes_in_flight_max=1 << 30, appends_per_second_max=7)
    runtime = Runtime(lambda: store, config)
    assert (runtime.pid, runtime.store, runtime.room.bytes_max) == (os.getpid(), store, 1 << 30)
    assert (runtime.rate_limit.limits, runtime.ledger_watches._store, runtime._closed) == (True, store, False)
    assert (runtime.connections._store, runtime.free_space._connections) == (store, runtime.connections)
    close = runtime.connections.close

    async def closing():
        order.append("connections")
        await close()

    runtime.connections.close = closing

    def look():
        for check in (check_may_ask_store, check_may_wait):
            try:
                check()
            except BookKeeperError:
                found.put("refused")
            else:
                found.put("may")

    # Its threads for the store may wait for the store, and for nothing else; those for callbacks may do all.
    for threads, told in ((runtime.threads, ["may", "refused"]), (runtime.callbacks, ["may", "may"])):
        threads.post(look)
        assert [found.get(timeout=60) for _ in range(2)] == told
    (changed,) = watched
    changed()
    runtime.io.submit(lambda: found.put(runtime._changes))
    assert found.get(timeout=60) == 1
    runtime.close()
    assert order == ["connections", "loop", "store"]
    assert not any(thread.is_alive() for each in (runtime.threads, runtime.callbacks) for thread in each._threads)
    runtime.close()
    assert len(order) == 3


def test_a_runtime_whose_connections_can_not_be_made_leaves_no_thread_behind(monkeypatch):
    loops, closed = [], []
    loop = runtime_module.IoLoop
    monkeypatch.setattr(runtime_module, "IoLoop", lambda name: loops.append(loop(name)) or loops[-1])
    monkeypatch.setattr(runtime_module, "Connections", lambda *what: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Runtime(lambda: SimpleNamespace(close=lambda: closed.append(1)), ClientConfig())
    assert closed == [1] and not loops[0]._thread.is_alive()
