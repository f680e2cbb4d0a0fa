"""Failures of BookKeeper's clients: stuck threads, hanging reads, leaked memory (docs/befell.md)."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest

from bookspark.errors import NotEnoughBookiesError, ReadError
from bookspark.protocol.ledger.actions import (
    ChooseBookies,
    Deliver,
    Finish,
    NoBookies,
    ReadAnswered,
    ReadIsLate,
    SendRead,
)
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.store.client.network.bookie_connection import BookieConnection
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.client.reading.read_handle import read_range
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from bookspark.store.wire.header import NO_KEY, Kind, Status
from tests.awaiting import await_that
from tests.protocol.ledgers import LOST, OK, metadata
from tests.store.client.fake_bookie import SECONDS
from tests.store.client.test_ledger_driver import BOOKIES, DriverBench
from tests.store.client.test_requests import DIGEST, ended, frame, ids


@pytest.fixture
def bench():
    made = DriverBench()
    yield made
    made.close()


@pytest.fixture
def steps(monkeypatch):
    """Threads in which events reached a writer. Fails if an event arrives inside another."""
    threads, inside = [], []
    step = LedgerWriter.step

    def noting(self, event):
        assert not inside, f"{event} came in the middle of {inside}"
        inside.append(event)
        threads.append(threading.get_ident())
        try:
            return step(self, event)
        finally:
            inside.pop()

    monkeypatch.setattr(LedgerWriter, "step", noting)
    return threads


def test_4557_broken_connection_blocks_no_append(bench, steps):
    """BookKeeper #4557: the failure of a broken connection was handled in the connection's thread, and completed appends there
    while the ledger's thread did the same. Both took from one queue: an append was skipped, and all behind it waited for ever.

    Here one thread handles all events of a ledger in order, whichever thread appends."""
    bookies = {bookie_id: bench.bookie(bookie_id) for bookie_id in BOOKIES}
    bench.open()
    driver = bench.driver()
    appenders = [threading.Thread(target=bench.append, args=(driver, *[b"x"] * 50)) for _ in range(4)]
    for number, thread in enumerate(appenders):
        thread.start()
        if number == 1:
            bookies["b3"].end()
    for thread in appenders:
        thread.join(SECONDS)
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 199, SECONDS)
    assert driver.acknowledged.error is None
    assert len(set(steps)) == 1 and threading.get_ident() not in steps


def test_4457_bookie_without_an_address_causes_no_deadlock(bench, steps):
    """BookKeeper #4457 and #4467: a bookie had no address any more. Sending to it failed at once, in the middle of a resend that
    held the lock of an append; handling the failure wanted the lock of the ledger, whose holder in another thread wanted the
    append's lock.

    Here no locks can be taken in two orders, and a failure is a separate event, never inside another."""
    bench.bookie("b2")
    asked = []

    def nobody_else(metadata, action):
        asked.append(action)
        assert isinstance(action, ChooseBookies)
        return NoBookies(NotEnoughBookiesError("there are no others"))

    bench.open(bytes_in_flight_max=4 << 20)
    driver = bench.driver(quorums=(3, 3, 1), answer_from_store=nobody_else)
    bench.append(driver, *[bytes(600 << 10)] * 8)
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 7, SECONDS)
    assert asked and len(set(steps)) == 1


class Replicas:
    """An I/O loop and its connections in one: each bookie has prepared answers to reads."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    def submit(self, function, *arguments):
        function(*arguments)

    def next_request_id(self):
        return 1

    def send(self, bookie_id, request_id, sent, on_answer, timeout_seconds=None, on_batch=None, body=b""):
        self.asked.append(bookie_id)
        answer = self.answers[bookie_id].pop(0)
        on_answer(answer._replace(batches=tuple(map(on_batch, answer.batches))))


def read_over(**answers):
    """Read entries 0 to 9 of a ledger on b1, b2 and b3; returns the delivered ids and the asked bookies."""
    wire = Replicas(**answers)
    requests = LedgerRequests(wire, wire, 1, NO_KEY, DIGEST, 1.0)
    options = SimpleNamespace(answer_timeout_seconds=1.0, connect_timeout_seconds=1.0, speculative_read_delay_ms=0)
    machine = RangeRead(metadata(), 0, 9)
    delivered = [i for part in read_range(machine, requests, lambda: None, options) for i in ids(part.entries)]
    return delivered, wire.asked


def test_4789_batch_is_used_up_to_its_bad_entry_and_the_next_replica_continues():
    """BookKeeper #4789: an answer with many entries counted as complete before their digests were checked. When one was bad,
    the next replica was asked, but its answer was ignored because the read was complete: the read hung."""
    rotten = ended(frame(*range(5)), frame(5, good=False), frame(6, 7, 8, 9), last=9, value=10)
    sound = ended(frame(5, 6, 7), frame(8, 9), last=9, value=5)
    delivered, asked = read_over(b1=[rotten], b3=[sound], b2=[sound])
    assert delivered == list(range(10))
    assert asked[0] == "b1" and len(asked) == 2


def test_4789_read_without_any_sound_copy_fails_with_the_reason():
    rotten = ended(frame(*range(10), good=False), last=9, value=10)
    with pytest.raises(ReadError, match="digest") as caught:
        read_over(b1=[rotten], b2=[rotten], b3=[rotten])
    assert all(bookie in str(caught.value) for bookie in BOOKIES)


def test_4788_late_error_after_a_complete_read_changes_nothing():
    """BookKeeper #4788: a read completed by another replica returned its replica list to a pool. Afterwards it noted slow
    replicas, and late errors looked up their replica, both in a list that belonged to another read by then.

    Here such lists are immutable tuples, and an ended machine accepts no event."""
    read = RangeRead(metadata(), 0, 9)
    (first,) = read.start()
    (second,) = read.step(ReadIsLate(0))
    assert isinstance(first, SendRead) and isinstance(second, SendRead) and first.bookie != second.bookie
    assert read.step(ReadAnswered(second.bookie, 0, 9, OK, "entries")) == [Deliver(0, 9, "entries"), Finish()]
    assert read.step(ReadAnswered(first.bookie, 0, -1, LOST)) == []
    assert read.step(ReadIsLate(0)) == []


def test_4713_explicit_lac_leaks_no_memory(bench):
    """BookKeeper #4713: each explicit LAC kept the buffer that it had sent. (#4609: each connection made pools that were never
    freed. #4513: a readability check kept every entry that it had read.)"""
    bookies = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    for bookie in bookies:
        bookie.statuses[Kind.WRITE_LAC] = Status.OK
    bench.open(explicit_lac_interval_seconds=0.0)
    driver = bench.driver()
    bench.append(driver, b"0")
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 0, SECONDS)

    def tell(times):
        for _ in range(times):
            answers = []
            bench.in_loop(driver.tell_lac, lambda bookie, answer: answers.append(bookie), lambda: None)  # noqa: B023
            await_that(lambda: len(answers) == len(BOOKIES))  # noqa: B023
        for bookie in bookies:
            while not bookie.headers.empty():
                bookie.headers.get()
        gc.collect()
        return len(gc.get_objects())

    tell(5)
    before = tell(1)
    assert tell(100) < before + 100


def test_4609_ended_connections_and_closed_ledgers_are_freed(bench):
    others = [each for each in gc.get_objects() if isinstance(each, BookieConnection | LedgerDriver)]
    bookies = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    bench.open()
    driver = bench.driver()
    bench.append(driver, b"0")
    acknowledged = driver.acknowledged
    assert acknowledged.wait(lambda: acknowledged.value == 0, SECONDS)
    kept = [weakref.ref(bench.connection(bookie_id)) for bookie_id in BOOKIES]
    bench.in_loop(driver.end)
    bench.in_loop(driver._leave)
    kept.append(weakref.ref(driver))
    for bookie in bookies:
        bookie.end()
    del driver
    await_that(lambda: not gc.collect() and all(each() is None for each in kept), what="nobody holds them")
    left = [each for each in gc.get_objects() if isinstance(each, BookieConnection | LedgerDriver)]
    assert all(any(each is other for other in others) for each in left)
