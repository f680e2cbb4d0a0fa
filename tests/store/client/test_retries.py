"""A refused add is sent again after a pause; the test controls the timers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import FINAL_REASONS, Negative, Positive, Unknown, UnknownReason
from bookspark.store.client.network.bookie_connection import ACKNOWLEDGED
from bookspark.store.client.network.connections import Answer, Patience
from bookspark.store.client.network.traffic import ClientTraffic
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from tests.store.client.unsent import unsent_context

BUSY = Answer(Unknown(UnknownReason.TOO_MANY_REQUESTS))


class Timers(asyncio.SelectorEventLoop):
    """An event loop that only records delayed calls."""

    def __init__(self):
        super().__init__()
        self.later = []

    def call_later(self, delay, callback, *arguments, context=None):
        self.later.append((delay, callback, arguments))

    def pass_time(self):
        """Make all delayed calls; returns their delays."""

        async def call(due):
            for _, callback, arguments in due:
                callback(*arguments)

        due, self.later = self.later, []
        self.run_until_complete(call(due))
        return [delay for delay, _, _ in due]


class Ledger:
    """A driver with an unacknowledged add to b1 and b2. ``sent``: the bookies of later adds, in order."""

    def __init__(self, timers):
        self.timers, self.sent, self.at_once, self.adds = timers, [], None, {}
        context = unsent_context()
        context.runtime.connections = SimpleNamespace(
            patience=Patience(60.0),
            any_is_behind=lambda bookies: False,
            away=lambda bookies: [],
            next_request_id=lambda: 1,
            send_to_all=self._send,
            traffic=ClientTraffic(),
        )
        context.runtime.threads = SimpleNamespace(post=lambda *call: None)
        self.driver = LedgerDriver(context, LedgerMetadata(1, 2, 2, 2, (Fragment(0, ("b1", "b2")),)), 0, b"")
        self.driver.outgoing.put([b"x"])
        self.in_loop(self.driver.pump)
        self.sent.clear()

    def _send(self, bookies, request_id, frame, request):
        for bookie in bookies:
            self.sent.append(bookie)
            self.adds[bookie] = request
            if self.at_once is not None:
                request.tell(bookie, self.at_once)

    def in_loop(self, function, *arguments):
        async def call():
            function(*arguments)

        self.timers.run_until_complete(call())

    def answer(self, bookie, answer=BUSY):
        self.in_loop(self.adds[bookie].tell, bookie, answer)


@pytest.fixture
def timers():
    loop = Timers()
    yield loop
    loop.close()


@pytest.fixture
def ledger(timers):
    return Ledger(timers)


def test_repeated_refusals_lengthen_the_pause_up_to_a_limit(ledger, timers):
    pauses = []
    for _ in range(8):
        ledger.answer("b1")
        pauses += timers.pass_time()
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2]
    assert ledger.sent == ["b1"] * 8


def test_acknowledgement_resets_the_pause(ledger, timers):
    for bookie in ("b1", "b2", "b1", "b2"):
        ledger.answer(bookie)
        timers.pass_time()
    ledger.answer("b1", ACKNOWLEDGED)
    ledger.answer("b1")
    ledger.answer("b2")
    assert timers.pass_time() == [0.1, 0.4]


def test_many_refusals_cause_a_single_retry_per_bookie(ledger, timers):
    for bookie in ("b1", "b1", "b2", "b1"):
        ledger.answer(bookie)
    assert timers.pass_time() == [0.1, 0.1]
    assert ledger.sent == ["b1", "b2"]
    ledger.answer("b1")
    assert timers.pass_time() == [0.2]


def test_retry_refused_synchronously_is_retried_again(ledger, timers):
    """A connection that was cut meanwhile answers before the send call returns."""
    ledger.at_once = BUSY
    ledger.answer("b1")
    assert [timers.pass_time() for _ in range(3)] == [[0.1], [0.2], [0.4]]


@pytest.mark.parametrize("response", [Positive(), Negative(), *(Unknown(reason) for reason in FINAL_REASONS)])
def test_final_answers_cause_no_retry(response, ledger, timers):
    ledger.answer("b1", Answer(response))
    assert timers.later == []
