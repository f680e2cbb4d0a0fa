"""Parts of a client by themselves, over stand-ins for what is around them."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.network import io_loop
from bookspark.client.network.io_loop import IoLoop
from bookspark.client.reading import range_reading
from bookspark.client.runtime import room as room_module
from bookspark.client.runtime.client_context import ClientContext
from bookspark.client.runtime.room import ClientRoom, LedgerRoom
from bookspark.client.writing.futures import Watermark
from bookspark.client.writing.ledger_driver import LedgerDriver
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.client.writing.ledger_handle_adv import LedgerHandleAdv
from bookspark.errors import LedgerClosedError
from bookspark.protocol.ledger import actions as act
from bookspark.wire.columns import Heads
from bookspark.wire.header import NO_KEY
from tests.awaiting import await_that
from tests.client.unsent import unsent_context
from tests.metadata.kit import ledger

SECONDS = 60.0


@pytest.fixture
def handle():
    return LedgerHandle(unsent_context(), ledger(1), 0, b"")


# -- a writer's handle


def test_a_new_writer_has_its_bookies_connected_to():
    context, submitted = unsent_context(), []
    context.runtime.io.submit = lambda *call: submitted.append(call)
    handle = LedgerHandle(context, ledger(1), 0, b"")
    assert submitted == [(handle._driver.want_bookies,)]


@pytest.mark.parametrize(
    "call",
    [
        lambda handle: handle.append_async(b"0"),
        lambda handle: handle.append_batch_async([b"0"]),
        lambda handle: handle.sync_async(),
        lambda handle: handle.flush_last_add_confirmed(),
        lambda handle: handle.drain_async(),
    ],
    ids=["append", "append_batch", "sync", "flush", "drain"],
)
def test_in_a_forked_process_a_writer_refuses_what_is_for_its_own(handle, monkeypatch, call):
    monkeypatch.setattr(handle, "_pid", -1)
    with pytest.raises(LedgerClosedError, match="created by process -1"):
        call(handle)
    assert (handle._shared.next_entry_id, bool(handle._shared.outgoing)) == (0, False)


@pytest.mark.parametrize(
    "append",
    [
        lambda handle: handle.append_async(b"12345"),
        lambda handle: handle.append_batch_async([b"123", b"45"]),
        lambda handle: handle.sole_appender().append(b"12345"),
        lambda handle: handle.sole_appender().append_all([b"123", b"45"], Heads((), 0)),
    ],
    ids=["append", "append_batch", "a sole append", "several sole appends"],
)
def test_what_is_put_for_the_io_thread_has_its_id_and_is_counted_before(handle, append):
    """That thread may take it at once: it would send entries without ids, and give back room that was not taken."""
    seen = []
    put = handle._shared.outgoing.put
    handle._shared.outgoing.put = lambda items: (
        seen.append((handle._shared.next_entry_id > 0, handle._room.appended)),
        put(items),
    )
    append(handle)
    assert seen == [(True, 5)]


def test_a_close_of_a_ledger_with_a_gap_ends_it_before_those_that_wait_are_woken(monkeypatch):
    """Between the two, an append found the ledger open whose ids were given out no more."""
    handle, closed = LedgerHandleAdv(unsent_context(), ledger(1), 0, b""), []
    monkeypatch.setattr(Watermark, "wake", lambda self: closed.append(handle.closed))
    monkeypatch.setattr(LedgerHandle, "close", lambda self, wait, timeout: None)
    handle.close()
    assert closed == [True]


# -- a writer's driver


@pytest.mark.parametrize("why", ["awaited", "by_time", "missing", "dropped", "outgoing", "held_back", None])
def test_a_writer_is_ticked_as_long_as_it_waits_for_anything(why):
    driver = SimpleNamespace(
        _progress_at=0.0,
        _just_now_seconds=1.0,
        _only_waits=lambda: True,
        _is_awaited=lambda: why == "awaited",
        _is_synced_by_time=lambda: why == "by_time",
        _dropped=why == "dropped",
        shared=SimpleNamespace(missing=0 if why == "missing" else None, outgoing=[b"0"] * (why == "outgoing")),
        _requests=SimpleNamespace(held_back=[1] * (why == "held_back")),
    )
    assert LedgerDriver.tick(driver, 0.0) is (why is not None)


@pytest.mark.parametrize(("outgoing", "closing"), [(False, False), (True, False), (False, True)])
def test_an_acknowledgement_lets_what_waits_go_on_and_a_close_too(outgoing, closing):
    pumped, kept = [], []
    shared = SimpleNamespace(outgoing=[b"0"] * outgoing, closing=closing, acknowledged=Watermark())
    driver = SimpleNamespace(
        shared=shared, kept=SimpleNamespace(acknowledged=kept.append), pump=lambda: pumped.append(1)
    )
    LedgerDriver._acknowledged(driver, 4)
    LedgerDriver._acknowledged(driver, 3)
    assert (len(pumped), kept, shared.acknowledged.value) == (2 * (outgoing or closing), [4, 3], 4)


# -- those who wait


def test_who_waits_for_something_else_than_a_watermark_is_woken_for_it():
    watermark, came, looked = Watermark(), threading.Event(), threading.Event()

    def condition():
        try:
            return came.is_set()
        finally:
            looked.set()

    ended = []
    thread = threading.Thread(target=lambda: ended.append(watermark.wait(condition, SECONDS)), daemon=True)
    thread.start()
    assert looked.wait(SECONDS)
    # The second look may come before he sleeps: what comes after it wakes him.
    await_that(lambda: bool(watermark._waiters), what="who waits is registered")
    came.set()
    watermark.wake()
    thread.join(SECONDS / 2)
    assert ended == [True]


def test_who_is_woken_and_finds_no_room_waits_for_the_rest_of_his_time(monkeypatch):
    waits = []

    class Woken:
        def set(self):
            """Nobody sleeps."""

        def wait(self, seconds):
            assert len(waits) < 3, "it goes on when the time is over"
            waits.append(seconds)
            return len(waits) == 1

    monkeypatch.setattr(room_module, "Latch", Woken)
    room = LedgerRoom(ClientRoom(100), 100)
    room.appended = 200
    assert not room.wait(SECONDS)
    assert len(waits) == 2 and waits[1] <= waits[0] <= SECONDS


# -- the I/O thread


def test_what_is_submitted_once_runs_once_however_often_it_is_asked_for_meanwhile():
    io, ran = IoLoop("test"), []
    held, done = threading.Event(), threading.Event()

    def once():
        ran.append("once")

    try:
        io.submit(held.wait, SECONDS)
        for _ in range(3):
            io.submit_once(once)
        io.submit(done.set)
        held.set()
        assert done.wait(SECONDS)
    finally:
        held.set()
        io.stop()
    assert ran == ["once"]


def test_a_task_that_does_not_let_itself_be_cancelled_does_not_keep_the_io_thread_from_its_end(monkeypatch):
    monkeypatch.setattr(io_loop, "_CANCEL_SECONDS", 0.01)
    io, began = IoLoop("test"), threading.Event()

    async def stays():
        began.set()
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                continue

    tasks = []
    io.submit(lambda: tasks.append(io.loop.create_task(stays())))
    assert began.wait(SECONDS)
    io.stop()
    assert not io._thread.is_alive()
    tasks[0]._log_destroy_pending = False


# -- reads


def test_a_bookie_that_does_not_answer_a_read_in_time_is_late(monkeypatch):
    class Clock:
        """Its time is over as soon as it allows no more than a minute."""

        def __init__(self, seconds):
            self.allowed = seconds

        def allow(self, seconds):
            self.allowed = seconds

        def take(self):
            return act.DeadlinePassed() if self.allowed < delay_max else act.MetadataFailed(LedgerClosedError(""))

    class Machine:
        next_entry_id = 7

        def __init__(self):
            self.events = []

        def start(self):
            return []

        def step(self, event):
            self.events.append(event)
            return [act.Finish()]

    config = ClientConfig()
    delay_max = config.speculative_read_delay_ms / 1000 + 0.001
    monkeypatch.setattr(range_reading, "Mailbox", Clock)
    machine = Machine()
    assert list(range_reading.read_range(machine, None, None, config)) == []
    assert machine.events == [act.ReadIsLate(7)]


@pytest.mark.parametrize("master_key", [b"", b"k" * 16])
def test_a_ledger_without_a_master_key_is_asked_for_with_none_as_bookies_know_it(master_key):
    context = SimpleNamespace(runtime=SimpleNamespace(io=None, connections=None), config=ClientConfig())
    metadata = SimpleNamespace(ledger_id=1, digest_type=ledger(1).digest_type, master_key=master_key)
    for password in (None, b"pw"):
        assert ClientContext.requests(context, metadata, password)._master_key == (master_key or NO_KEY)
