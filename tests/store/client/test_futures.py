"""Futures of appends: results, callbacks, and use with ``concurrent.futures`` and asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
import threading
import traceback

import pytest

from bookspark.errors import BookKeeperError, LedgerClosedError, LedgerFencedError
from bookspark.store.client.writing.futures import AppendFuture, SyncFuture, Watermark


def test_error_raised_repeatedly_keeps_no_frames_of_earlier_callers():
    """Each frame in the traceback keeps its locals alive: a caller that retried kept every payload."""
    watermark = Watermark()
    watermark.fail(LedgerFencedError("fenced"))
    lengths = set()
    for _ in range(10):
        with pytest.raises(LedgerFencedError) as caught:
            AppendFuture(watermark, 1).result()
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_callback_reads_its_result_and_cannot_wait_for_another_append(timeout):
    def refuse():
        raise BookKeeperError("it must not wait here")

    watermark, told = Watermark(refuse), []
    futures = [AppendFuture(watermark, entry_id) for entry_id in range(2)]
    for future in futures:
        future.add_done_callback(lambda done: told.append(done.exception(timeout)))
    watermark.advance(0)
    with pytest.raises(BookKeeperError, match="must not wait"):
        futures[1].exception(timeout)
    error = LedgerClosedError("the end")
    watermark.fail(error)
    assert told == [None, error]


# -- use by ``concurrent.futures`` and asyncio


def futures_of(count):
    watermark = Watermark()
    return watermark, [AppendFuture(watermark, entry_id) for entry_id in range(count)]


@pytest.mark.parametrize("return_when", [concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED])
def test_wait_sees_appends_acknowledged_before_and_during_it(return_when):
    watermark, futures = futures_of(3)
    watermark.advance(0)
    others = futures[1:] if return_when == concurrent.futures.FIRST_COMPLETED else futures
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(concurrent.futures.wait, others, 60, return_when)
        watermark.advance(1)
        if return_when == concurrent.futures.ALL_COMPLETED:
            assert futures[2] in concurrent.futures.wait(others, 0).not_done
            watermark.advance(2)
        done, not_done = waiting.result(60)
    assert futures[1] in done
    assert not_done == (set() if return_when == concurrent.futures.ALL_COMPLETED else {futures[2]})


def test_wait_for_the_first_exception_ends_at_the_error_of_the_ledger():
    watermark, futures = futures_of(2)
    own = concurrent.futures.Future()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(concurrent.futures.wait, [*futures, own], 60, concurrent.futures.FIRST_EXCEPTION)
        watermark.fail(LedgerFencedError("fenced"))
        done, not_done = waiting.result(60)
    assert (done, not_done) == (set(futures), {own})


def test_as_completed_yields_appends_as_they_are_acknowledged():
    watermark, futures = futures_of(3)
    seen = []
    for future in concurrent.futures.as_completed(futures, 60) if watermark.advance(0) is None else ():
        seen.append(future.result())
        watermark.advance(len(seen))
    assert seen == [0, 1, 2]


def test_an_append_is_a_future_of_concurrent_futures_that_can_not_be_cancelled():
    watermark, (future,) = futures_of(1)
    assert isinstance(future, concurrent.futures.Future)
    assert (future.done(), future.running(), future.cancel(), future.cancelled()) == (False, True, False, False)
    assert repr(future) == "<AppendFuture: entry 0 is not acknowledged yet>"
    watermark.advance(0)
    assert (future.done(), future.running(), future.result()) == (True, False, 0)
    assert repr(future) == "<AppendFuture: entry 0 is acknowledged>"
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(future)


def test_unwatched_futures_have_no_lock():
    """A lock and a condition per append were the largest cost of the client."""
    watermark, futures = futures_of(2)
    watermark.advance(1)
    assert [future.result() for future in futures] == [0, 1]
    assert all(vars(future) == {} for future in futures)


def test_an_append_can_be_awaited_from_any_event_loop():
    watermark, futures = futures_of(4)

    async def wait_for_all():
        began.set()
        return [
            await futures[0],
            *await asyncio.gather(*futures[:2]),
            await asyncio.wrap_future(futures[2]),
            await asyncio.wait_for(futures[3], 60),
        ]

    for _ in range(2):
        began = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            told = threads.submit(asyncio.run, wait_for_all())
            assert began.wait(60)
            for entry_id in range(4):
                watermark.advance(max(entry_id, watermark.value))
            assert told.result(60) == [0, 0, 1, 2, 3]


def test_awaited_append_raises_its_error():
    watermark, futures = futures_of(2)
    sync = SyncFuture(watermark, 0)
    watermark.advance(0)
    watermark.fail(LedgerFencedError("fenced"))

    async def outcomes():
        return await asyncio.gather(sync, *futures, return_exceptions=True)

    assert asyncio.run(outcomes()) == [0, 0, watermark.error]


def test_cancelled_wait_does_not_cancel_the_append():
    watermark, (future,) = futures_of(1)

    async def too_late():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.001)

    asyncio.run(too_late())
    assert not future.done()
    watermark.advance(0)
    assert future.result() == 0
