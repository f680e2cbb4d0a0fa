"""Signal handlers and interrupts in the middle of a handle's calls: nothing is held, lost or given twice."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest

from bookspark.errors import LedgerClosedError
from bookspark.store import client
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.client.runtime.rate_limit import RateLimit, Turns
from bookspark.store.client.writing.futures import AppendFuture, Watermark
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from bookspark.store.client.writing.ledger_handle_adv import LedgerHandleAdv
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
    made._shared.ended.set()


def test_appends_of_a_signal_handler_have_ids_of_their_own(handle):
    """With an ordinary lock the handler waited for ever for what it interrupted; with any other, two entries may get one id."""
    mine, of_handler = [], []

    def append(*_):
        payload = b"h%d" % len(of_handler)
        of_handler.append((handle.append_async(payload).entry_id, payload))

    with interrupted_by(append, 0.001, 0.0005):
        while len(of_handler) < 60:
            payload = b"m%d" % len(mine)
            mine.append((handle.append_async(payload).entry_id, payload))
    assert dict(mine + of_handler) == dict(enumerate(handle._shared.outgoing.waiting))


def test_what_a_signal_handler_closes_takes_no_more_from_whom_it_interrupted(handle):
    """An append that was let in before the close and put in after it would have waited for ever."""
    seen = []
    for _ in range(15):
        handle._shared.closing = False
        put = len(handle._shared.outgoing)

        def close(*_):
            handle._shared.closing = True  # as ``close`` does, under the lock
            with handle._lock:
                seen.append(len(handle._shared.outgoing))

        with interrupted_by(close, 0.001), pytest.raises(LedgerClosedError):
            append_for_ever(handle)
        assert len(handle._shared.outgoing) == seen[-1] >= put


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
    assert not adv._shared.outgoing
    assert submitted[-1] == adv._driver.abandon
    adv._shared.ended.set()


def test_a_watermark_tells_a_handler_and_whom_it_interrupted():
    watermark, told = Watermark(), []

    def handler(*_):
        threading.Timer(0.02, watermark.advance, [5]).start()
        told.append(AppendFuture(watermark, 5).result())
        told.append(watermark.wait(lambda: watermark.value >= 5, SECONDS))

    with interrupted_by(handler):
        assert AppendFuture(watermark, 1).result() == 1
    assert told == [5, True]


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


def test_a_signal_handler_may_submit_in_the_middle_of_a_submit():
    io, count, done = IoLoop("test"), [0], threading.Event()

    def handler(*_):
        held = threading.Event()
        io.submit(held.set)
        assert held.wait(SECONDS), "nobody woke the loop"
        count[0] += 1

    with interrupted_by(handler, 0.001, 0.001):
        while count[0] < 60:
            io.submit(int)
    io.submit(done.set)
    assert done.wait(SECONDS)
    io.stop()


def test_an_append_of_a_signal_handler_has_its_turn_before_the_one_that_it_interrupted():
    """It waited for the turn of that, until the end of its time."""
    limit, turns, told = RateLimit(1, 0), Turns(), []

    def handler(*_):
        told.append(limit.wait(turns, 1, 0, SECONDS))

    assert limit.wait(turns, 2, 0, SECONDS)
    with interrupted_by(handler):
        assert limit.wait(turns, 1, 0, SECONDS)
    assert told == [True]


def test_others_have_their_turn_while_a_handler_interrupts_the_one_whose_turn_is_next():
    """They waited for as long as the handler took."""
    limit, told = RateLimit(1, 0), []

    def handler(*_):
        with ThreadPoolExecutor(1) as other:
            told.append(other.submit(limit.wait, Turns(), 1, 0, SECONDS).result())

    assert limit.wait(Turns(), 2, 0, SECONDS)
    with interrupted_by(handler):
        assert limit.wait(Turns(), 1, 0, SECONDS)
    assert told == [True]


def test_an_interrupted_append_leaves_its_turn_to_others():
    """It stayed the next one for ever, and nobody else had a turn."""
    limit = RateLimit(1, 0)

    def interrupt(*_):
        raise KeyboardInterrupt

    assert limit.wait(Turns(), 2, 0, SECONDS)
    with interrupted_by(interrupt), pytest.raises(KeyboardInterrupt):
        limit.wait(Turns(), 1, 0, SECONDS)
    assert limit.wait(Turns(), 1, 0, SECONDS)


def test_entries_behind_a_gap_are_kept_by_the_client(handle):
    """They did not count, so n such handles kept n times half of what one ledger may."""
    client, adv = handle._context.runtime.room, LedgerHandleAdv(handle._context, ledger(2), 0, b"")
    adv.append_at_async(2, b"x" * 1000)
    adv.append_at_async(1, b"x" * 100)
    assert client.held - adv._room.granted == 1100
    adv.append_at_async(0, b"x" * 10)
    assert client.held == adv._room.granted
    assert adv._room.appended == 1110
    adv._shared.ended.set()


def test_an_append_with_a_given_id_that_need_not_wait_may_come_from_a_callback(handle):
    adv, done = LedgerHandleAdv(handle._context, ledger(2), 0, b""), []

    def call_back():
        mark_own_thread("callbacks")
        done.append(adv.append_at_async(1, b"x"))

    thread = threading.Thread(target=call_back)
    thread.start()
    thread.join(SECONDS)
    assert len(done) == 1
    adv._shared.ended.set()


@pytest.mark.parametrize("does", ["appends", "closes"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_handler_at_any_point_of_an_append_comes_before_it_or_after_it(local_cluster, count, does):
    """On real bookies: what each of the two was told is what the ledger has."""
    of_handler = b"of the handler"

    def interrupt(handle, futures):
        if does == "closes":
            handle.close()
        else:
            futures.append(handle.append_async(of_handler))

    with local_cluster.bookkeeper() as bookkeeper:
        for point in itertools.count(1):
            told, futures = {}, []
            handle = bookkeeper.create_ledger()
            handler = partial(interrupt, handle, futures)
            with interrupted(point, handler, client) as reached, suppress(LedgerClosedError):
                mine = [handle.append(b"mine")] if count == 1 else handle.append_batch([b"mine"] * count)
                told.update(dict.fromkeys(mine, b"mine"))
            told.update((future.result(SECONDS), of_handler) for future in futures)
            handle.close()
            with bookkeeper.open_ledger(handle.ledger_id) as reader:
                payloads = {entry.entry_id: entry.payload for entry in reader.read()}
            assert told.items() <= payloads.items(), reached
            assert len(futures) == list(payloads.values()).count(of_handler), reached
            if not reached:
                break
        assert point > 20
