"""Interrupts during a handle's calls: no lock stays held, no entry is lost, no entry id is given twice."""

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
from tests.support.test_threads import interrupted_by

SECONDS = 60.0


def append_for_ever(handle):
    while True:
        handle.append_async(b"x")


@pytest.fixture
def handle():
    """A handle whose appends are never sent."""
    made = LedgerHandle(unsent_context(), ledger(1), 0, b"")
    yield made
    made._driver.ended.set()


def test_append_interrupted_before_sending_is_sent_with_the_next_append(handle):
    """The interrupt left the mark "to be sent" set, so no later append was sent."""
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


def test_interrupted_close_keeps_the_deadline_of_pending_appends(handle):
    """The client stopped checking the ledger's deadlines, so a wait for an unanswered append never ended."""
    submitted = []
    handle._io.submit = lambda function, *arguments: submitted.append(function)

    def interrupt(*_):
        raise KeyboardInterrupt

    with interrupted_by(interrupt), pytest.raises(KeyboardInterrupt):
        handle.close()
    assert submitted == [handle._driver.pump]


def test_interrupt_during_an_append_with_a_given_id_ends_the_ledger(handle, monkeypatch):
    """The next entry would have been sent with the id of the interrupted entry."""
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
def test_callback_registered_while_its_append_completes_is_called_once(advance):
    """Both the registering and the advancing thread see the callback as due: the watermark advances, wholly or in part, right
    after the registration."""

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
def test_exception_in_a_callback_does_not_end_the_io_loop(error):
    io, done = IoLoop("test"), threading.Event()

    def fail():
        raise error

    io.submit(fail)
    io.submit(io.loop.call_later, 0.0, fail)  # asyncio lets this end the loop
    io.submit(io.loop.call_later, 0.02, done.set)
    assert done.wait(SECONDS)
    io.stop()
    assert not io._thread.is_alive()


def test_append_with_a_given_id_can_come_from_a_callback(handle):
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
def test_append_interrupted_at_any_point_is_made_whole_or_not_at_all(local_cluster, count):
    """On real bookies: every later append gets the entry id that its handle returned, and no append waits forever."""

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


def test_append_in_a_signal_handler_amid_another_append_is_refused(handle, monkeypatch):
    """Python runs the handler in the middle of a change of guarded state."""
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
