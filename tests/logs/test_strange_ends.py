"""Entries of somebody else at the end of a producer's open ledger: he knows the log's password, by default b""."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import InvalidRowError, NoSuchEntryError, ReadError
from bookspark.logs import Log, LogAddress, LogReader, LogRegistry, LogRow, Producer
from bookspark.logs.chain.stamps import TIME_MS_MAX, stamped
from bookspark.logs.lane_ending import end_idle_lanes
from bookspark.store.client import BookKeeper
from tests.logs.strange_rows import add_to_open_ledger
from tests.logs.test_gaps import DamagedBookKeeper

STRANGE = {
    "short": b"x",
    "flags": stamped(1_000, 7, b"")[:16] + b"\xff",
    "time": stamped(TIME_MS_MAX + 1, 7, b"late"),
    "highest number": stamped(1_000, (1 << 63) - 1, b"highest"),
    "negative number": stamped(1_000, -9, b"negative"),
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("count", [1, 5])
def test_entry_that_is_no_row_keeps_no_producer_from_its_lane(
    bookkeeper: BookKeeper, log: Log, strange: bytes, count: int
) -> None:
    """It did for ever: each takeover of the name ended with InvalidRowError."""
    left = log.producer("p")
    for number in range(3):
        left.append(b"row %d" % number, sequence=10 * number)
    for number in range(3, 3 + count):
        add_to_open_ledger(bookkeeper, number, strange, log.name)
    with log.producer("p") as producer:
        assert producer.last_sequence == 20, "of the last row"
        assert producer.append(b"a repeated row", sequence=20) is None
        producer.append(b"new")
    with log.reader() as reader, pytest.raises(InvalidRowError):
        list(reader)
    rows = list[bytes]()
    with log.reader() as reader:
        while found := reader.read_with_gaps():
            rows += [one.value for one in found if isinstance(one, LogRow)]
    assert rows == [b"row 0", b"row 1", b"row 2", b"new"]


@pytest.mark.parametrize("damage", ["denied", "silent"])
def test_unreadable_entry_before_the_last_row_keeps_no_producer_from_its_lane(damage: str) -> None:
    """It did for ever, even once its loss was accepted: behind strange entries, several are read at a time."""
    memory = DamagedBookKeeper()
    client: Any = memory
    client.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
    LogRegistry(memory.metadata).ensure("orders", {}, b"")
    address = LogAddress("memory", "orders")
    left = Producer(client, address, "p")
    for number in range(6):
        left.append(b"row", sequence=10 * number)
    reader = LogReader(client, "orders@1", b"")
    assert list(reader.commits()) and reader.open_rows is not None
    ledger = reader.open_rows.ledger_id
    memory.entries[ledger] += [b"x"] * 3
    damaged = getattr(memory, damage)
    damaged.add((ledger, 5))
    with pytest.raises((NoSuchEntryError, ReadError)):
        Producer(client, address, "p")
    damaged.clear()
    damaged.add((ledger, 4))
    with Producer(client, address, "p") as producer:
        assert producer.last_sequence == 50


def test_lane_whose_newest_entry_is_no_row_can_end(bookkeeper: BookKeeper, log: Log) -> None:
    left = log.producer(f"p-{uuid.uuid4().hex[:8]}")
    left.append(b"row")
    add_to_open_ledger(bookkeeper, 1, b"x", log.name)
    assert end_idle_lanes(bookkeeper, log.name, idle_days=1.0) == []
    assert len(end_idle_lanes(bookkeeper, log.name, idle_days=0.0)) == 1
