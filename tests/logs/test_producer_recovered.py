"""A producer goes on after another client recovered its open ledger: each row once, in order, under its sequence number."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    LedgerRecoveryError,
    MetadataStoreError,
    NotEnoughBookiesError,
)
from bookspark.local import LocalCluster
from bookspark.logs import Log, LogRegistry, LogRow, Producer, RowPosition, commits
from bookspark.logs.chain.stamps import Stamped, stamp_of
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.log_options import Compression
from bookspark.protocol.logs.log_record import LogTakenOverError
from bookspark.store.client import BookKeeper
from tests.awaiting import SECONDS_MAX, await_that
from tests.logs.test_producer_faults import Cluster
from tests.operations.cli.conftest import Run, bookspark  # noqa: F401

SECONDS = SECONDS_MAX


@pytest.fixture(scope="module")
def operator(cluster: LocalCluster) -> Iterator[BookKeeper]:
    """Another client, which recovers ledgers."""
    with cluster.bookkeeper() as bookkeeper:
        yield bookkeeper


def open_ledger_of(bookkeeper: Any, lane: str) -> int | None:
    return [placed.commit.open_ledger for placed in commits(bookkeeper, lane, b"")][-1]


def stamps(bookkeeper: Any, lane: str) -> list[Stamped]:
    """The committed rows of a lane, in order, as the ledgers hold them."""
    return [
        stamp_of(entry.payload, "here")
        for placed in commits(bookkeeper, lane, b"")
        for one in placed.commit.ranges
        for entry in bookkeeper.open_ledger(one.ledger_id).read(one.first_entry_id, one.last_entry_id)
    ]


@contextmanager
def recovering(recover: Callable[[], object], least: int, pause_seconds: float = 0.01) -> Iterator[Callable[[], bool]]:
    """Call ``recover`` repeatedly meanwhile. Yields a function: was it called ``least`` times?"""
    stopped, calls, failures = threading.Event(), itertools.count(1), []
    called = [0]

    def again_and_again() -> None:
        try:
            while not stopped.wait(pause_seconds):
                recover()
                called[0] = next(calls)
        except BaseException as error:
            failures.append(error)
            called[0] = least

    thread = threading.Thread(target=again_and_again)
    thread.start()
    try:
        yield lambda: called[0] >= least
    finally:
        stopped.set()
        thread.join(SECONDS)
    assert not failures and called[0] >= least


class Rows:
    """Rows that threads append in every way, and the positions that they got."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.values: dict[int, bytes] = {}

    def append(self, thread: int, enough: Callable[[], bool]) -> list[int]:
        """Returns the positions of the thread's rows, in the order of their appends."""
        producer, futures, number = self._producer, list[tuple[list[bytes], Future[Any]]](), 0
        while not enough():
            for _ in range(50):
                values = [b"%d/%d" % (thread, number)]
                futures.append((values, producer.append_async(values[0])))
                number += 1
            values = [b"%d/%d/%d" % (thread, number, nth) for nth in range(20)]
            futures.append((values, producer.append_batch_async(values)))
            position = producer.append(b"alone %d/%d" % (thread, number))
            futures.append(([b"alone %d/%d" % (thread, number)], done(position)))
        positions = []
        for values, future in futures:
            found = future.result(SECONDS)
            places = [found.position] if isinstance(found, RowPosition) else list(found)
            positions += places
            for place, value in zip(places, values, strict=True):
                assert place not in self.values, f"position {place} twice"
                self.values[place] = value
        return positions


def done(result: object) -> Future[Any]:
    future = Future[Any]()
    future.set_result(result)
    return future


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_rows_of_many_threads_are_there_once_and_in_order_although_each_open_ledger_is_recovered(
    bookkeeper: BookKeeper, operator: BookKeeper, log: Log, compression: Compression
) -> None:
    LogRegistry(bookkeeper.metadata).alter(log.name, compression=compression)
    with log.producer("service") as producer, ThreadPoolExecutor(4) as threads:
        producer.append(b"first")
        lane = f"{log.name}@{producer.lane}"
        rows, recovered = Rows(producer), set[int]()

        def recover() -> None:
            ledger = open_ledger_of(operator, lane)
            assert ledger is not None
            operator.open_ledger(ledger)
            recovered.add(ledger)

        with recovering(recover, 30) as enough, log.reader() as live:
            appending = [threads.submit(rows.append, thread, enough) for thread in range(4)]
            read = list[LogRow]()
            await_that(lambda: read.extend(live.read(timeout=0.1)) or enough())
            positions = [future.result(SECONDS) for future in appending]
            await_that(lambda: read.extend(live.read(timeout=0.1)) or len(read) == 1 + len(rows.values))
        assert [(row.position, row.value) for row in read] == [(0, b"first"), *sorted(rows.values.items())]
        assert len(recovered) > 5
        assert all(found == sorted(found) for found in positions)
        count = 1 + len(rows.values)
        assert (producer.position, producer.last_sequence) == (count, count - 1)
    with log.reader() as reader:
        found = [(row.position, row.value) for row in reader]
    assert found == [(0, b"first"), *sorted(rows.values.items())]
    kept = stamps(bookkeeper, lane)
    assert [row.sequence for row in kept] == list(range(count))
    assert [row.time_ms for row in kept] == sorted(row.time_ms for row in kept)


def test_sequence_numbers_and_expected_positions_hold_across_recoveries(
    bookkeeper: BookKeeper, operator: BookKeeper, log: Log
) -> None:
    with log.producer("service") as producer:
        lane, numbers = f"{log.name}@{producer.lane}", itertools.count(0, 7)
        producer.append(b"0", sequence=next(numbers), expect=0)

        def recover() -> None:
            operator.open_ledger(open_ledger_of(operator, lane) or 0)

        position = 1
        with recovering(recover, 20) as enough:
            while not enough():
                number = next(numbers)
                row = producer.append_async(b"%d" % number, sequence=number, expect=position)
                again = producer.append_async(b"%d" % number, sequence=number)
                elsewhere = producer.append_async(b"elsewhere", expect=position)
                assert row.result(SECONDS) == RowPosition(1, position)
                assert again.result(SECONDS) is None
                assert "the next one is" in str(elsewhere.exception(SECONDS))
                position += 1
        assert (producer.position, producer.last_sequence) == (position, 7 * (position - 1))
    kept = stamps(bookkeeper, lane)
    assert [(row.sequence, row.value) for row in kept] == [(7 * n, b"%d" % (7 * n)) for n in range(position)]


def test_idle_producer_goes_on_after_an_operator_recovered_its_ledger(
    cluster: LocalCluster,
    bookkeeper: BookKeeper,
    log: Log,
    bookspark: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
    with log.producer("service") as producer:
        lane = f"{log.name}@{producer.lane}"
        for number in range(4):
            assert producer.append(b"%d" % number, sequence=number) == RowPosition(1, number)
            assert bookspark("ledger", "recover", str(open_ledger_of(bookkeeper, lane))).status == 0
            assert not producer.closed
        # The close notices the last recovery.
    with log.reader() as reader:
        assert [row.value for row in reader] == [b"0", b"1", b"2", b"3"]
    with log.producer("service") as successor:
        assert (successor.position, successor.last_sequence) == (4, 3)


@pytest.mark.parametrize("in_flight", [False, True], ids=["at rest", "in flight"])
def test_taken_over_producer_names_the_run_that_took_over(
    cluster: LocalCluster, bookkeeper: BookKeeper, log: Log, in_flight: bool
) -> None:
    first = log.producer("billing-7")
    first.append(b"0")
    futures = []
    if in_flight:
        for bookie in cluster.bookies[:2]:
            bookie.suspend()
        futures = [first.append_async(b"in flight") for _ in range(3)]
        threading.Timer(0.3, lambda: [bookie.resume() for bookie in cluster.bookies[:2]]).start()
    second = log.producer("billing-7")
    record = LogRegistry(bookkeeper.metadata).get(f"{log.name}@{first.lane}")
    words = f"another producer of this name was made: run {record.owner} of 'billing-7' owns the lane in epoch 2, run "
    with pytest.raises(LogTakenOverError, match=words):
        first.append(b"too late")
    for future in futures:
        # Those that the take-over kept may be acknowledged or not.
        assert future.exception(SECONDS) is None or words in str(future.exception(SECONDS))
    assert first.closed
    second.append(b"1")
    first.close()
    second.close()


def test_producer_of_an_ended_lane_blames_no_other_producer(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("billing") as producer:
        producer.append(b"0")
        end_lane(bookkeeper, f"{log.name}@{producer.lane}")
        with pytest.raises(LogTakenOverError, match=rf"^lane '{log.name}@1' was ended \(bookspark log end\)"):
            producer.append(b"1")


# -- over in-memory ledgers


class Cut(NamedTuple):
    """A data ledger is recovered after this many rows: acknowledged ones, and kept ones without acknowledgement."""

    acknowledged: int
    kept: int


def recover_at(cluster: Cluster, cuts: Sequence[Cut]) -> None:
    """Recover the first data ledgers of the log, in the order of their first rows, at their cuts."""
    memory, rows = cluster.memory, dict[int, int]()

    def before(ledger: int) -> None:
        memory.before_append.append(before)
        memory.delay_answers = False
        if memory.get_ledger_metadata(ledger).custom_metadata["bookspark.role"] != b"data":
            return
        rows[ledger] = rows.get(ledger, -1) + 1
        if len(rows) <= len(cuts):
            cut = cuts[len(rows) - 1]
            memory.delay_answers = rows[ledger] >= cut.acknowledged
            if rows[ledger] == cut.acknowledged + cut.kept:
                memory.open_ledger(ledger)

    memory.before_append.append(before)


def cuts(rows: int) -> list[Cut]:
    """Each way to cut a ledger of so many rows."""
    return [Cut(end - kept, kept) for end in range(rows + 1) for kept in range(end + 1)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_batch_cut_anywhere_by_two_recoveries_keeps_its_rows_together(size: int) -> None:
    for first, second in itertools.product(cuts(size), cuts(size + 1)):
        cluster = Cluster()
        recover_at(cluster, [Cut(1 + first.acknowledged, first.kept), second])
        producer = cluster.producer()
        producer.append(b"before", sequence=5)
        batch = producer.append_batch_async([b"%d" % number for number in range(size)])
        later = producer.append_async(b"later", sequence=100)
        last = producer.append_async(b"last", expect=2 + size)
        producer.close(SECONDS)
        assert batch.result(SECONDS) == range(1, 1 + size), (first, second)
        assert later.result(SECONDS) == RowPosition(1, 1 + size)
        assert last.result(SECONDS) == RowPosition(1, 2 + size)
        assert (producer.position, producer.last_sequence) == (3 + size, 101)
        expected = [(5, b"before"), *((6 + n, b"%d" % n) for n in range(size)), (100, b"later"), (101, b"last")]
        assert [(row.sequence, row.value) for row in stamps(cluster.memory, "orders@1")] == expected, (first, second)
        assert cluster.rows() == [value for _, value in expected]


def test_moved_rows_get_a_ledger_of_their_compression() -> None:
    cluster = Cluster()
    memory = cluster.memory

    def recover(ledger: int) -> None:
        cluster.alter(compression=Compression.ZSTD)
        memory.open_ledger(ledger)

    with cluster.producer() as producer:
        producer.append(b"plain 0")
        memory.before_append.append(recover)
        assert producer.append_batch([b"plain 1", b"plain 2"]) == range(1, 3)
        await_that(lambda: producer.append(b"compressed") and producer._ledgers.encode is not None)
    opened = [placed.commit.open_ledger for placed in commits(memory, "orders@1", b"")]
    labels = [
        memory.get_ledger_metadata(one).custom_metadata["bookspark.encoding"] for one in opened if one is not None
    ]
    assert labels == [b"stamped", b"stamped", b"stamped_zstd"]
    assert cluster.rows()[:3] == [b"plain 0", b"plain 1", b"plain 2"]


def test_producer_whose_every_ledger_is_recovered_before_a_row_ends_in_time() -> None:
    cluster = Cluster(add_timeout_seconds=0.1)
    producer = cluster.producer()
    producer.append(b"0")
    recover_at(cluster, [Cut(0, 0)] * 100_000)
    began = time.monotonic()
    row = producer.append_async(b"1")
    with pytest.raises(AddTimeoutError, match="recovered each open ledger before it had a row"):
        row.result(SECONDS)
    assert 0.2 <= time.monotonic() - began < SECONDS
    assert producer.closed
    with pytest.raises(AddTimeoutError):
        producer.append(b"2")
    producer.close()
    assert cluster.rows() == [b"0"]


@pytest.mark.parametrize("fails", [False, True], ids=["appended at last", "failed at last"])
def test_row_that_moves_through_hundreds_of_recovered_ledgers_gets_its_outcome(fails: bool) -> None:
    """Each watermark called that of the ledger before: from about 250 ledgers on a RecursionError ended that thread, and
    nobody completed the row's future."""
    cluster, ledgers = Cluster(), 600
    producer = cluster.producer()
    producer.append(b"0")
    recover_at(cluster, [Cut(0, 0)] * ledgers)
    if fails:
        memory, create = cluster.memory, cluster.memory.create_ledger

        def create_ledger(**options: Any) -> Any:
            nonlocal ledgers
            ledgers -= 1
            if ledgers < 50:
                raise NotEnoughBookiesError("too few")
            return create(**options)

        memory.create_ledger = create_ledger
    row = producer.append_async(b"1")
    if fails:
        assert isinstance(row.exception(SECONDS), NotEnoughBookiesError)
    else:
        assert row.result(SECONDS) == RowPosition(1, 1)
        assert producer.append(b"2") == RowPosition(1, 2)
    producer.close()
    assert cluster.rows() == ([b"0"] if fails else [b"0", b"1", b"2"])


def test_producer_whose_next_ledger_has_no_bookies_reports_that_to_each_append(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    producer = cluster.producer()
    producer.append(b"0")
    recover_at(cluster, [Cut(0, 0)])

    def create_ledger(**options: Any) -> Any:
        raise NotEnoughBookiesError("too few")

    monkeypatch.setattr(cluster.memory, "create_ledger", create_ledger)
    row = producer.append_async(b"1")
    assert isinstance(row.exception(SECONDS), NotEnoughBookiesError)
    for _ in range(2):
        with pytest.raises(NotEnoughBookiesError):
            producer.append(b"2")
    producer.close()
    assert cluster.rows() == [b"0"]


@pytest.mark.parametrize("failure", [MetadataStoreError, LedgerRecoveryError])
def test_rows_fail_with_the_error_of_the_recovery(
    failure: type[BookKeeperError], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    producer = cluster.producer()
    producer.append(b"0")
    recover_at(cluster, [Cut(0, 0)])
    opened = cluster.memory.open_ledger

    def open_ledger(ledger: int, password: bytes = b"") -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise failure("no answer")
        return opened(ledger, password)

    monkeypatch.setattr(cluster.memory, "open_ledger", open_ledger)
    row = producer.append_async(b"1")
    with pytest.raises(failure, match="no answer"):
        row.result(SECONDS)
    with pytest.raises(failure):
        producer.append(b"2")
    assert producer.closed
    producer.close()
    assert cluster.rows() == [b"0"]


def test_recovery_without_an_acknowledged_row_ends_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later rows would get positions that acknowledged rows had."""
    cluster = Cluster()
    producer = cluster.producer()
    producer.append_batch([b"0", b"1"])
    ledger = open_ledger_of(cluster.memory, "orders@1")
    assert ledger is not None
    cluster.memory.entries[ledger].pop()
    cluster.memory.open_ledger(ledger)
    with pytest.raises(LedgerRecoveryError, match="entry 1 was acknowledged: bookies lost it"):
        producer.append(b"2")
    producer.close()
