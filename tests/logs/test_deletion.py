"""Log deletions interrupted at each step: the next deletion removes the rest and touches nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from random import Random
from typing import Any, cast
from unittest import mock

import pytest

from bookspark.logs import Committer, LogAddress, LogRegistry, LogRun, Producer, delete_log
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.registry import BLOCKS, ENDED, NAMES, POSITIONS, RECORDS
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import lane_id, lane_name
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import NoSuchLogError
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.histories.log_schedules.cluster import World
from tests.histories.log_schedules.turns import Turns
from tests.spark.memory_bookkeeper import MemoryBookKeeper

OTHERS = "orders.new", "order"


class _KilledError(Exception):
    """The deleting process was killed."""


def write_log(bookkeeper: Any, name: str) -> int:
    """A log of four lanes; lane 2 has ended. Returns its id."""
    registry = LogRegistry(bookkeeper.metadata)
    log = lane_id(registry.ensure(name, {}, b""))
    for number in range(4):
        if number:
            LaneIndex(bookkeeper.metadata, log).begin(NewLane(f"service:{number}"))
        lane = lane_name(name, number)
        run = LogRun.of(LogAddress("memory", lane), registry.claim(lane, "run", f"service:{number}"))
        ledger = run.create_ledger(bookkeeper, registry.get(lane).options, "data")
        ledger.append_batch([b"x"] * 3)
        ledger.close()
        committer = Committer(bookkeeper, run)
        ranges = (EntryRange(ledger.ledger_id, 0, 2, 3, 3),)
        committer.commit(Commit(f"service:{number}", 0, run.run, run.epoch, ranges, 1))
        committer.close()
    end_lane(bookkeeper, f"{name}@2")
    bookkeeper.metadata.write_record(POSITIONS, f"group@{log.key}", b"{}", None)
    return log.log


def left(bookkeeper: Any, name: str, log_id: int) -> list[str]:
    """Records and ledgers that remain of the log."""
    store = bookkeeper.metadata
    records = [f"{kind}/{one}" for kind in (RECORDS, ENDED, BLOCKS, POSITIONS) for one in store.list_records(kind)]
    ledgers = bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {})
    labels = [f"ledger/{one.custom_metadata['bookspark.log_id'].decode()}" for one, _ in ledgers]
    names = [f"{NAMES}/{one}" for one in store.list_records(NAMES) if one == name]
    return [*names, *(one for one in (*records, *labels) if str(log_id) in one.replace("@", "/").split("/"))]


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """A process that is killed before its ``step``-th deletion."""
    count = [step]

    def killed(original: Any) -> Any:
        def deletes(*arguments: Any) -> Any:
            if count[0] == 0:
                raise _KilledError
            count[0] -= 1
            return original(*arguments)

        return deletes

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryStore, "delete_record", killed(MemoryStore.delete_record))
        patched.setattr(MemoryBookKeeper, "delete_ledger", killed(MemoryBookKeeper.delete_ledger))
        yield


@pytest.mark.parametrize("again", [False, True], ids=["deleted again", "created again and deleted"])
def test_interrupted_deletion_is_completed_by_the_next_deletion(again: bool) -> None:
    """Once lane records were gone, no deletion removed their ledgers; without the log's record, a deletion removed
    nothing."""
    steps = 0
    while True:
        bookkeeper: Any = MemoryBookKeeper()
        ids = {name: write_log(bookkeeper, name) for name in ("orders", *OTHERS)}
        others = [left(bookkeeper, name, ids[name]) for name in OTHERS]
        try:
            with killed_at(steps):
                delete_log(bookkeeper, "orders", b"")
        except _KilledError:
            pass
        else:
            break
        assert left(bookkeeper, "orders", ids["orders"])
        if again and LogRegistry(bookkeeper.metadata).find("orders") is None:
            later = write_log(bookkeeper, "orders")
            whole = left(bookkeeper, "orders", later)
            assert later != ids["orders"] and len(whole) > 10
            delete_log(bookkeeper, "orders", b"")
            assert left(bookkeeper, "orders", later) == []
        else:
            delete_log(bookkeeper, "orders", b"")
        assert left(bookkeeper, "orders", ids["orders"]) == []
        assert [left(bookkeeper, name, ids[name]) for name in OTHERS] == others
        with pytest.raises(NoSuchLogError):
            delete_log(bookkeeper, "orders", b"")
        steps += 1
    assert steps >= 4 + 4


def begun_at(request: int, is_ended: bool, deletions: int) -> int | None:
    """Begin a producer of a log with one lane; before this request of it, another client deletes the log, and is killed behind so
    many of its requests. Returns the producer's last sequence number, or None if it made all its requests before."""
    world, address, requests = World(Turns(Random(0), 1)), LogAddress("memory", "orders"), count(1)
    LogRegistry(world.records).create("orders", LogOptions(), b"")
    earlier, beginning, deleting = (cast(Any, world.client(None)) for _ in range(3))
    before = Producer(earlier, address, "p")
    for number in range(3):
        before.append(b"x", sequence=number)
    if is_ended:
        end_lane(earlier, f"orders@{before.lane}")

    def may_be_killed() -> None:
        if next(left) == deletions:
            raise _KilledError

    def pauses() -> None:
        if next(requests) == request:
            with suppress(_KilledError):
                delete_log(deleting, "orders", b"")

    left, deleting.deletes = count(), "orders"
    deleting.before_each, beginning.before_each = may_be_killed, pauses
    last = Producer(beginning, address, "p").last_sequence
    return last if next(requests) > request else None


@pytest.mark.parametrize("is_ended", [False, True], ids=["lane with an open ledger", "ended lane"])
def test_producer_that_begins_while_its_log_is_deleted_knows_its_numbers_or_says_that_the_log_was_deleted(
    is_ended: bool,
) -> None:
    """Names of ended lanes went before the log's record: the producer began at 0 again. Later it named a missing ledger, whose
    rows nobody knows."""
    begun = refused = 0
    with mock.patch.object(Producer, "_tend"):
        for request in count(1):
            for deletions in (*range(4, 24, 2), 100):
                try:
                    last = begun_at(request, is_ended, deletions)
                except NoSuchLogError:
                    refused += 1
                    continue
                if last is None:
                    assert begun and refused
                    return
                assert last == 2
                begun += 1
