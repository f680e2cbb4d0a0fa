"""Interrupts in the middle of a handle's calls: nothing is held, lost or given twice."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import suppress

import pytest

from bookspark.errors import BookKeeperError, LedgerClosedError
from bookspark.store import client
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.client.writing.futures import AppendFuture, Watermark
from bookspark.store.client.writing.ledger_handle import LedgerHandle, LedgerHandleAdv
from bookspark.support.threads import mark_own_thread
from tests.interrupting import interrupted
from tests.store.client.unsent import unsent_context
from tests.store.metadata.kit import ledger
from tests.test_threads import interrupted_by

SECONDS = 60.0


def append_for_ever(handle):
    while True:
        handle.append_async(b"x")


@pytest.fixture
def handle():
    """A handle whose appends are not sent: nobody takes what it submits."""
    made = LedgerHandle(unsent_context(), ledger(1), 0, b"")
    yield made
    made._driver.ended.set()


def test_an_append_that_is_interrupted_before_it_is_sent_is_sent_with_the_next_one(handle):
    """It left a mark behind that it would be sent, and no later append was."""
    submitted = []

    def interrupt(call):
        submitted.append(call)
        if len(submitted) == 1:
            raise KeyboardInterrupt

    handle._io.submit_once = interrupt
    with pytest.raises(KeyboardInterrupt):
        handle.append_async(b"0")
    assert handle.append_async(b"1").entry_id == 1
    assert len(submitted) == 2


def test_a_close_that_is_interrupted_leaves_the_appends_their_deadline(handle):
    """The client watched the ledger no more: who waited for an append without an answer would have waited for ever."""
    submitted = []
    handle._io.submit = lambda function, *arguments: submitted.append(function)

    def interrupt(*_):
        raise KeyboardInterrupt

    with interrupted_by(interrupt), pytest.raises(KeyboardInterrupt):
        handle.close()
    assert submitted == [handle._driver.pump]


def test_an_interrupt_amid_an_append_with_a_given_id_ends_the_ledger(handle, monkeypatch):
    """The next entry would have gone out under the id of the one that was interrupted."""
    submitted = []
    handle._io.submit = lambda function, *arguments: submitted.append(function)
    adv = LedgerHandleAdv(handle._context, ledger(2), 0, b"")
    step = adv._ids.step

    def interrupted(event):
        step(event)
        raise KeyboardInterrupt

    monkeypatch.setattr(adv._ids, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adv.append_at_async(0, b"0")
    monkeypatch.undo()
    with pytest.raises(LedgerClosedError):
        adv.append_at_async(1, b"1")
    assert not adv._driver.outgoing
    assert submitted[-1] == adv._driver.abandon
    adv._driver.ended.set()


def test_an_interrupted_wait_for_an_append_can_be_repeated():
    watermark = Watermark()

    def interrupt(*_):
        raise KeyboardInterrupt

    for wait in (AppendFuture.result, lambda future: future.result(SECONDS)):
        with interrupted_by(interrupt), pytest.raises(KeyboardInterrupt):
            wait(AppendFuture(watermark, 0))
    threading.Timer(0.02, watermark.advance, [0]).start()
    assert AppendFuture(watermark, 0).result() == 0


@pytest.mark.parametrize(
    "advance", [lambda watermark: watermark.advance(5), lambda watermark: setattr(watermark, "value", 5)]
)
def test_each_callback_is_called_once_though_it_is_registered_as_the_append_is_done(advance):
    """Who registers and who advances both find it due: the one advances, wholly or in part, just as the other has registered."""

    class Racing(deque):
        def append(self, item):
            super().append(item)
            advance(watermark)

    watermark, called = Watermark(), []
    watermark._new = Racing()
    watermark.call_when(5, lambda: called.append(5))
    assert called == [5]
    watermark.advance(6)
    assert called == [5]


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_nothing_that_is_raised_ends_the_io_loop(error):
    io, done = IoLoop("test"), threading.Event()

    def fail():
        raise error

    io.submit(fail)
    io.submit(io.loop.call_later, 0.0, fail)  # asyncio lets this end the loop
    io.submit(io.loop.call_later, 0.02, done.set)
    assert done.wait(SECONDS)
    io.stop()
    assert not io._thread.is_alive()


def test_an_append_with_a_given_id_that_need_not_wait_may_come_from_a_callback(handle):
    adv, done = LedgerHandleAdv(handle._context, ledger(2), 0, b""), []

    def call_back():
        mark_own_thread("callbacks")
        done.append(adv.append_at_async(1, b"x"))

    thread = threading.Thread(target=call_back)
    thread.start()
    thread.join(SECONDS)
    assert len(done) == 1
    adv._driver.ended.set()


@pytest.mark.parametrize("count", [1, 3])
def test_an_interrupt_at_any_point_of_an_append_leaves_it_whole_or_not_made(local_cluster, count):
    """On real bookies: every later append has the id that its handle returned, and none waits for ever."""

    def interrupt():
        raise KeyboardInterrupt

    made = 0
    with local_cluster.bookkeeper() as bookkeeper:
        for point in itertools.count(1):
            handle = bookkeeper.create_ledger()
            with interrupted(point, interrupt, client, raises=True) as reached, suppress(KeyboardInterrupt):
                handle.append_async(b"mine") if count == 1 else handle.append_batch_async([b"mine"] * count)
            after = handle.append(b"after")
            assert after in (0, count), reached
            made += after == count
            handle.close()
            with bookkeeper.open_ledger(handle.ledger_id) as reader:
                assert [entry.payload for entry in reader.read()] == [b"mine"] * after + [b"after"], reached
            if not reached:
                break
    assert 1 < made < point - 1


def test_an_append_under_an_id_in_a_handler_that_interrupts_another_one_is_refused(handle, monkeypatch):
    """Python runs the handler in the middle of the change: what it guards is half done."""
    adv, refused = LedgerHandleAdv(handle._context, ledger(2), 0, b""), []
    step = adv._ids.step

    def with_handler(event):
        monkeypatch.undo()
        with pytest.raises(BookKeeperError, match="set a flag there"):
            adv.append_at_async(1, b"of the handler")
        refused.append(event)
        return step(event)

    monkeypatch.setattr(adv._ids, "step", with_handler)
    assert adv.append_at_async(0, b"0").entry_id == 0
    assert refused
    assert adv.append_at_async(1, b"1").entry_id == 1
    adv._driver.ended.set()
