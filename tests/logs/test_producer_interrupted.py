"""Signal handlers that interrupt an append use the same producer: they are served or refused, and the producer goes on."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from bookspark.errors import BookKeeperError, LedgerClosedError
from bookspark.local import LocalCluster
from bookspark.logs import Log, Producer, RowPosition, create_log, producer_ledgers
from bookspark.logs import appended as appended_module
from bookspark.logs import producer as producer_module
from bookspark.store.client.writing import sole_appender
from tests.awaiting import await_that
from tests.interrupting import interrupted


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster:
        yield cluster


@pytest.fixture
def log(cluster: LocalCluster) -> Iterator[Log]:
    with cluster.bookkeeper() as bookkeeper:
        yield create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}")


@contextmanager
def signals(handler: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call ``handler`` in the main thread every so often."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def append_for_ever(producer: Producer) -> None:
    while True:
        producer.append(b"row")


@pytest.mark.parametrize("waits", [False, True], ids=["begins", "waits"])
def test_an_append_in_a_handler_is_served_or_refused_and_the_producer_goes_on(log: Log, waits: bool) -> None:
    told = {"appended": 0, "refused": 0}

    def handler() -> None:
        try:
            (producer.append if waits else producer.append_async)(b"of a handler")
            told["appended"] += 1
        except BookKeeperError:
            told["refused"] += 1

    with log.producer("service") as producer, signals(handler, 0.05 if waits else 0.001):
        # From the first append on, which may have to open a ledger.
        appended = 0
        while told["appended"] + told["refused"] < 20:
            producer.append(b"row")
            appended += 1
    with log.reader() as reader:
        values = [row.value for row in reader]
    assert values.count(b"row") == appended and values.count(b"of a handler") == told["appended"]


def test_a_close_in_a_handler_ends_appends_with_a_word(log: Log) -> None:
    closed: list[Producer] = []

    def handler() -> None:
        if not closed:
            closed.append(producer)
            producer.close()

    producer = log.producer("service")
    with signals(handler, 0.2), pytest.raises(BookKeeperError, match="closed"):
        append_for_ever(producer)
    with log.producer("service") as after:
        after.append(b"after")


@pytest.mark.parametrize(
    ("opens", "append"),
    [(True, lambda to: to.append_batch([b"row"])), (False, lambda to: to.append(b"row"))],
    ids=["first append", "later append"],
)
def test_a_handler_at_any_point_of_an_append_closes_the_producer_with_a_word(
    log: Log, opens: bool, append: Callable[[Producer], object]
) -> None:
    """Between the look whether the producer goes on and the append itself, this was an AssertionError."""
    refused = appended = 0
    for module in (producer_module, sole_appender):
        for point in itertools.count(1):
            producer = log.producer("service")
            if not opens:
                producer.append(b"row")
                appended += 1
            with interrupted(point, producer.close, module) as reached, suppress(LedgerClosedError):
                refused += 1
                append(producer)
                refused -= 1
                appended += 1
            producer.close()
            assert producer.closed
            if not reached:
                break
    assert refused > 5
    with log.reader() as reader:
        # What was not refused is there, and nothing else.
        assert len(list(reader)) == appended


def test_a_handler_at_any_point_of_an_append_appends_in_order_of_time_or_is_refused(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, appended, refused = itertools.count(4 * 10**18, 10**9), 0, 0
    monkeypatch.setattr(producer_module, "time_ns", lambda: next(clock))
    with log.producer("service") as producer:
        producer.append(b"row")

        def handler() -> None:
            nonlocal appended, refused
            try:
                producer.append_async(b"of a handler")
                appended += 1
            except BookKeeperError:
                refused += 1

        begun = 0
        for module in (producer_module, sole_appender):
            for point in itertools.count(1):
                begun += 1
                with interrupted(point, handler, module) as reached:
                    producer.append(b"row")
                if not reached:
                    break
    with log.reader() as reader:
        times = [row.time_ms for row in reader]
    assert times == sorted(times) and len(times) == 1 + begun + appended
    assert appended > 5 and refused > 5


def test_after_an_interrupt_at_any_point_a_repeated_row_is_told_as_done_only_once_it_is_acknowledged(
    cluster: LocalCluster, log: Log
) -> None:
    """Behind the append to the ledger, the producer still took the row before it for its newest one, which was acknowledged. And
    a row that was taken and not handed to the I/O thread was never sent, if nothing else was: its repetition waited for ever."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    numbers, taken = itertools.count(), 0
    with log.producer("service") as producer:
        producer.append(b"0", sequence=next(numbers))
        handle, appender = producer._ledgers.at.handle, producer._ledgers.at.appender
        assert handle is not None and appender is not None
        awake = handle._context.runtime._awake
        # What an append calls. (In the append itself this is not as a signal would be: a raise behind a ``try`` is not in it.)
        for module in (producer_ledgers, sole_appender, appended_module):
            for point in itertools.count(1):
                # While nothing wakes it, nobody looks what it has.
                await_that(lambda: handle._driver not in awake)
                number, before = next(numbers), appender.shared.next_entry_id
                for bookie in cluster.bookies[:2]:
                    bookie.suspend()
                with interrupted(point, interrupt, module) as reached, suppress(KeyboardInterrupt):
                    producer.append_async(b"%d" % number, sequence=number)
                taken += bool(reached) and appender.shared.next_entry_id > before
                again = producer.append_async(b"%d" % number, sequence=number)
                assert not again.done(), f"at {reached}"
                for bookie in cluster.bookies[:2]:
                    bookie.resume()
                again.result(60)
                assert producer.last_sequence == number
                if not reached:
                    break
    assert taken > 1
    with log.reader() as reader:
        assert [row.value for row in reader] == [b"%d" % number for number in range(next(numbers))]


APPENDS: dict[str, Callable[[Producer], object]] = {
    "a row": lambda producer: producer.append_async(b"row"),
    "a batch": lambda producer: producer.append_batch_async([b"row", b"row"]),
    "a repeated row": lambda producer: producer.append_async(b"row", sequence=0),
    "a row elsewhere": lambda producer: producer.append_async(b"row", expect=1 << 40),
    "a question": lambda producer: producer.last_sequence,
}


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after another thread"])
def test_an_interrupt_at_any_point_leaves_the_turn_to_nobody(
    log: Log, append: Callable[[Producer], object], waits: bool
) -> None:
    """Just after the lock was taken it stayed taken, and other threads were told that an append waits (AddTimeoutError)."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    def is_free() -> bool:
        found = producer._lock.acquire(False)
        if found:
            producer._lock.release()
        return bool(found)

    interrupts = 0
    with log.producer("service") as producer, ThreadPoolExecutor(1) as threads:
        producer.append(b"row")
        for module in (producer_module, producer):
            for point in itertools.count(1):
                held, later = threading.Event(), threading.Event()

                def hold(held: threading.Event = held, later: threading.Event = later) -> None:
                    with producer._lock:
                        held.set()
                        later.wait(60)

                holding = threads.submit(hold) if waits else None
                if holding is not None:
                    held.wait(60)
                    threading.Timer(0.001, later.set).start()
                with interrupted(point, interrupt, module, raises=True) as reached, suppress(KeyboardInterrupt):
                    append(producer)
                if holding is not None:
                    later.set()
                    holding.result(60)
                interrupts += bool(reached)
                assert threads.submit(is_free).result(60), f"at {reached}"
                if not reached:
                    break
        assert interrupts > 3
        assert threads.submit(producer.append, b"row").result(60) is not None


def test_a_callback_that_exits_robs_no_row_of_its_outcome(log: Log) -> None:
    told: list[object] = []
    with log.producer("service") as producer:
        futures = [producer.append_async(b"%d" % number) for number in range(100)]
        for future in futures:
            future.add_done_callback(lambda _: sys.exit("of a callback"))
            future.add_done_callback(told.append)
        assert [future.result(60) for future in futures] == [RowPosition(1, number) for number in range(100)]
        await_that(lambda: len(told) == len(futures))
        assert producer.append(b"later") == RowPosition(1, 100)
