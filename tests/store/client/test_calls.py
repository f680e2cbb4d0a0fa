"""Calls in a thread: their results, and their end when the client closes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import threading

import pytest

from bookspark import BookKeeper
from bookspark.errors import BookKeeperError
from bookspark.store.client.runtime import calls as module
from bookspark.store.client.runtime.calls import AwaitableFuture, Calls, in_thread
from tests.awaiting import await_that


@pytest.fixture
def calls():
    made = Calls()
    yield made
    made.close()


class Owner:
    def __init__(self, calls):
        self._calls = calls

    def double(self, number, *, plus=0):
        """Twice."""
        return 2 * number + plus

    double_async = in_thread(double)


class Heir(Owner):
    def double(self, number, *, plus=0):
        return -super().double(number, plus=plus)


def test_async_version_returns_the_calls_result_and_uses_a_subclass_override(calls):
    assert Owner(calls).double_async(2, plus=1).result(60) == 5
    assert Heir(calls).double_async(2).result(60) == -4
    assert Owner.double_async.__name__ == "double_async"
    assert "Begin ``double``" in Owner.double_async.__doc__


def test_started_call_can_be_awaited_or_waited_for(calls):
    async def of_coroutine():
        return await asyncio.gather(*(calls.begin(pow, 2, k) for k in range(3)))

    assert asyncio.run(of_coroutine()) == [1, 2, 4]
    futures = [calls.begin(pow, 2, k) for k in range(3)]
    assert {future.result() for future in concurrent.futures.wait(futures, 60).done} == {1, 2, 4}


def test_future_raises_the_error_of_its_call(calls):
    with pytest.raises(ZeroDivisionError):
        calls.begin(divmod, 1, 0).result(60)


def test_closed_client_fails_calls_that_wait_for_a_thread(monkeypatch):
    monkeypatch.setattr(module, "_THREADS_MAX", 1)
    calls, begun, goes_on = Calls(), threading.Event(), threading.Event()
    runs = calls.begin(lambda: begun.set() or goes_on.wait(60))
    waits, cancelled = calls.begin(pow, 2, 2), calls.begin(pow, 2, 2)
    assert begun.wait(60) and cancelled.cancel()
    calls.close()
    goes_on.set()
    assert runs.result(60) is True
    with pytest.raises(BookKeeperError, match="the client was closed"):
        waits.result(60)
    with pytest.raises(BookKeeperError, match="no call can be begun any more"):
        calls.begin(pow, 2, 2)


def test_garbage_collected_client_leaves_no_threads():
    client = BookKeeper("127.0.0.1:1")
    threads = client.context.calls._threads._threads
    del client
    gc.collect()
    await_that(lambda: not any(thread.is_alive() for thread in threads))


def test_callback_that_exits_does_not_lose_the_futures_result(calls):
    """``concurrent.futures`` lets a callback's SystemExit through, into the thread that sets the result."""
    may_go_on, told = threading.Event(), []
    future = calls.begin(may_go_on.wait, 60)
    future.add_done_callback(lambda _: sys.exit("of a callback"))
    future.add_done_callback(told.append)
    may_go_on.set()
    assert future.result(60) is True
    await_that(lambda: told == [future])
    made = AwaitableFuture()
    made.add_done_callback(lambda _: sys.exit("of a callback"))
    made.set_result(1)
    with pytest.raises(SystemExit):
        # The future is done: the callback runs in this call, and its exit is the caller's.
        made.add_done_callback(lambda _: sys.exit(0))
