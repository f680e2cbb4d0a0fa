"""A producer over ledgers in memory: answers that are lost, owners that change, and rows that wait."""

from __future__ import annotations

import threading
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import AddTimeoutError, BookKeeperError
from bookspark.logs import LogAddress, LogRegistry, commits, producer
from bookspark.logs.producer import Producer
from bookspark.protocol.logs.log_record import LogOptions, LogTakenOverError
from tests.spark.memory_bookkeeper import MemoryBookKeeper

SECONDS = 60
SEEDS, ROWS = 25, 60


class Cluster:
    def __init__(self, add_timeout_seconds: float = SECONDS) -> None:
        self.memory: Any = MemoryBookKeeper()
        self.memory.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=add_timeout_seconds))
        LogRegistry(self.memory.metadata).create("orders", LogOptions(), b"")

    def producer(self) -> Producer:
        return Producer(self.memory, LogAddress("memory", "orders"), "service")

    def rows(self) -> list[bytes]:
        return [
            self.memory.entries[one.ledger_id][entry]
            for placed in commits(self.memory, "orders@1", b"")
            for one in placed.commit.ranges
            for entry in range(one.first_entry_id, one.last_entry_id + 1)
        ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_row_is_there_once_whatever_answers_are_lost_and_whoever_takes_over(seed: int) -> None:
    random, cluster = Random(seed), Cluster()
    memory = cluster.memory

    def perhaps_lost(ledger_id: int) -> None:
        if random.random() < 0.2:
            memory.lose_answers = random.choice([1, 1, 2, 12])
        memory.before_append.append(perhaps_lost)

    memory.before_append.append(perhaps_lost)
    current, earlier = cluster.producer(), []
    told: dict[int, int] = {}
    while current.last_sequence < ROWS - 1:
        number = current.last_sequence + 1
        try:
            if random.random() < 0.1:
                raise BookKeeperError("it is started anew")
            position = current.append(str(number).encode(), sequence=number)
            assert position is not None
            told[number] = position.position
        except BookKeeperError:
            earlier.append(current)
            memory.lose_answers = 0
            current = cluster.producer()
        if earlier and random.random() < 0.2:
            with pytest.raises(BookKeeperError):
                random.choice(earlier).append(b"of a zombie", sequence=ROWS)
    assert cluster.rows() == [str(number).encode() for number in range(ROWS)]
    assert all(number == position for number, position in told.items())
    for one in (current, *earlier):
        one.close(SECONDS)


def test_an_append_waits_while_too_many_bytes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "WAITING_BYTES_MAX", 10)
    cluster, goes_on = Cluster(add_timeout_seconds=0.05), threading.Event()
    one = cluster.producer()
    cluster.memory.before_append.append(lambda ledger_id: goes_on.wait(SECONDS))
    first = one.append_async(b"x" * 20)
    with pytest.raises(AddTimeoutError, match="20 bytes of rows have waited"):
        one.append_async(b"later")
    goes_on.set()
    assert first.result(SECONDS) == (1, 0)
    assert one.append_async(b"later").result(SECONDS) == (1, 1)
    one.close(SECONDS)


def test_an_error_ends_the_producer_and_all_rows_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, goes_on = Cluster(), threading.Event()
    one = cluster.producer()
    cluster.memory.before_append.append(lambda ledger_id: goes_on.wait(SECONDS))
    futures = [one.append_async(str(number).encode()) for number in range(10)]
    LogRegistry(cluster.memory.metadata).claim("orders@1", "another run", "service:service")
    goes_on.set()
    for future in futures:
        with pytest.raises(LogTakenOverError):
            future.result(SECONDS)
    with pytest.raises(LogTakenOverError):
        one.append_async(b"later").result(SECONDS)
    assert cluster.rows() == []
    one.close(SECONDS)
