"""How often a bookie that refused is asked again. The timers are in the test's hands."""

from __future__ import annotations

import asyncio

import pytest

from bookspark.protocol.ledger.responses import FINAL_REASONS, Negative, Positive, Unknown, UnknownReason
from bookspark.store.client.writing.ledger_driver import Retries

BUSY = Unknown(UnknownReason.TOO_MANY_REQUESTS)


class Timers(asyncio.SelectorEventLoop):
    """A loop that only notes what it is to do later."""

    def __init__(self):
        super().__init__()
        self.later = []

    def call_later(self, delay, callback, *arguments, context=None):
        self.later.append((delay, callback, arguments))

    def pass_time(self):
        """Do all of it; returns the pauses."""
        due, self.later = self.later, []
        for _, callback, arguments in due:
            callback(*arguments)
        return [delay for delay, _, _ in due]


@pytest.fixture
def timers():
    loop = Timers()
    yield loop
    loop.close()


@pytest.fixture
def retries(timers):
    return Retried(timers)


class Retried:
    def __init__(self, timers):
        self.timers, self.asked = timers, []
        self.retries = Retries(self.asked.append)

    def refuse(self, bookie, response=BUSY):
        self.in_loop(self.retries.refused, bookie, response)

    def in_loop(self, function, *arguments):
        async def call():
            return function(*arguments)

        return self.timers.run_until_complete(call())


def test_a_bookie_that_goes_on_refusing_is_asked_less_and_less_often(retries, timers):
    pauses = []
    for _ in range(8):
        retries.refuse("b1")
        pauses += timers.pass_time()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2]
    assert retries.asked == ["b1"] * 8


def test_a_bookie_that_took_something_is_asked_soon_again(retries, timers):
    for bookie in ("b1", "b2", "b1", "b2"):
        retries.refuse(bookie)
        timers.pass_time()
    retries.retries.took("b1")
    retries.refuse("b1")
    retries.refuse("b2")
    assert timers.pass_time() == [0.1, 0.4]


def test_many_refusals_are_one_question(retries, timers):
    for bookie in ("b1", "b1", "b2", "b1"):
        retries.refuse(bookie)
    assert timers.pass_time() == [0.1, 0.1]
    assert retries.asked == ["b1", "b2"]
    retries.refuse("b1")
    assert timers.pass_time() == [0.2]


def test_a_bookie_that_refuses_again_at_once_is_asked_again(timers):
    """What is sent to a connection that was cut meanwhile is answered before the call returns."""
    retried = Retried(timers)
    retried.retries = Retries(lambda bookie: retried.retries.refused(bookie, BUSY))
    retried.refuse("b1")
    assert [retried.in_loop(timers.pass_time) for _ in range(3)] == [[0.1], [0.2], [0.4]]


@pytest.mark.parametrize("response", [Positive(), Negative(), *(Unknown(reason) for reason in FINAL_REASONS)])
def test_after_some_answers_a_bookie_is_not_asked_again(response, retries, timers):
    retries.refuse("b1", response)
    assert timers.later == []
