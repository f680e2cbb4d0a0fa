"""Interrupted appends of a producer: no row is lost or reported twice, and the producer goes on."""

from __future__ import annotations

import itertools
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import Log, Producer, RowPosition, create_log, producer_ledgers
from bookspark.logs import appended as appended_module
from bookspark.logs import producer as producer_module
from bookspark.store.client.writing import ledger_handle
from tests.awaiting import await_that
from tests.interrupting import interrupted


@pytest.fixture
def log(cluster: LocalCluster) -> Iterator[Log]:
    with cluster.bookkeeper() as bookkeeper:
        yield create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}")


def test_row_repeated_after_an_interrupt_is_done_only_once_acknowledged(cluster: LocalCluster, log: Log) -> None:
    """After the append to the ledger, the producer still took the preceding, acknowledged row for its newest row. And
    a row that was taken but not handed to the I/O thread was never sent unless another row was: its repetition
    waited for ever."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    numbers, taken = itertools.count(), 0
    with log.producer("service") as producer:
        producer.append(b"0", sequence=next(numbers))
        handle, appender = producer._ledgers.at.handle, producer._ledgers.at.appender
        assert handle is not None and appender is not None
        awake = handle._context.runtime._awake
        # Modules that an append calls. (In the append itself an interrupt would not be like a signal: a raise after a
        # ``try`` is outside it.)
        for module in (producer_ledgers, ledger_handle, appended_module):
            for point in itertools.count(1):
                # Until the driver is woken again, the I/O thread does not look at it.
                await_that(lambda: handle._driver not in awake)
                number, before = next(numbers), appender.driver.next_entry_id
                for bookie in cluster.bookies[:2]:
                    bookie.suspend()
                with interrupted(point, interrupt, module) as reached, suppress(KeyboardInterrupt):
                    producer.append_async(b"%d" % number, sequence=number)
                taken += bool(reached) and appender.driver.next_entry_id > before
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
def test_interrupt_at_any_point_leaves_the_producers_lock_free(
    log: Log, append: Callable[[Producer], object], waits: bool
) -> None:
    """Just after its acquisition the lock stayed taken, and other threads raised that an append waits
    (AddTimeoutError)."""

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
        for module in (producer_module,):
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


def test_callback_that_exits_withholds_no_outcome_of_a_row(log: Log) -> None:
    told: list[object] = []
    with log.producer("service") as producer:
        futures = [producer.append_async(b"%d" % number) for number in range(100)]
        for future in futures:
            future.add_done_callback(lambda _: sys.exit("of a callback"))
            future.add_done_callback(told.append)
        assert [future.result(60) for future in futures] == [RowPosition(1, number) for number in range(100)]
        await_that(lambda: len(told) == len(futures))
        assert producer.append(b"later") == RowPosition(1, 100)
