"""Log deletions interrupted at each step: the next deletion removes the rest and touches nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from bookspark.logs import Committer, LogAddress, LogRegistry, LogRun, delete_log
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.registry import BLOCKS, ENDED, RECORDS, POSITIONS
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import lane_name
from bookspark.protocol.logs.log_record import NoSuchLogError
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.spark.memory_bookkeeper import MemoryBookKeeper

OTHERS = "orders.new", "order"


class _KilledError(Exception):
    """The deleting process was killed."""


def write_log(bookkeeper: Any, name: str) -> None:
    """A log of four lanes; lane 2 has ended."""
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure(name, {}, b"")
    for number in range(4):
        if number:
            LaneIndex(bookkeeper.metadata, LogRegistry(bookkeeper.metadata).lane(name)).begin(NewLane(f"service:{number}"))
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
    bookkeeper.metadata.write_record(POSITIONS, f"group@{name}", b"{}", None)


def left(bookkeeper: Any, name: str) -> list[str]:
    """Records and ledger labels that remain of the log."""
    store = bookkeeper.metadata
    records = [f"{kind}/{one}" for kind in (RECORDS, ENDED, BLOCKS, POSITIONS) for one in store.list_records(kind)]
    labels = [metadata.custom_metadata["bookspark.log"].decode() for metadata, _ in every_ledger(bookkeeper)]
    return [one for one in (*records, *labels) if name in one.replace("@", "/").split("/")]


def every_ledger(bookkeeper: Any) -> list[Any]:
    return list(bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {}))


def test_interrupted_deletion_is_completed_by_the_next_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once lane records were gone, no deletion removed their ledgers; without the log's record, a deletion removed
    nothing."""
    steps = 0
    while True:
        bookkeeper: Any = MemoryBookKeeper()
        for name in ("orders", *OTHERS):
            write_log(bookkeeper, name)
        others = [left(bookkeeper, name) for name in OTHERS]
        count = [steps]

        def killed(original: Any) -> Any:
            def step(*arguments: Any) -> Any:
                if count[0] == 0:  # noqa: B023
                    raise _KilledError
                count[0] -= 1  # noqa: B023
                return original(*arguments)

            return step

        with monkeypatch.context() as patched:
            patched.setattr(MemoryStore, "delete_record", killed(MemoryStore.delete_record))
            patched.setattr(MemoryBookKeeper, "delete_ledger", killed(MemoryBookKeeper.delete_ledger))
            try:
                delete_log(bookkeeper, "orders", b"")
            except _KilledError:
                pass
            else:
                break
        assert left(bookkeeper, "orders")
        delete_log(bookkeeper, "orders", b"")
        assert left(bookkeeper, "orders") == []
        assert [left(bookkeeper, name) for name in OTHERS] == others
        with pytest.raises(NoSuchLogError):
            delete_log(bookkeeper, "orders", b"")
        steps += 1
    assert steps >= 4 + 4


def test_log_created_again_during_its_deletion_keeps_its_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    bookkeeper: Any = MemoryBookKeeper()
    write_log(bookkeeper, "orders")
    registry = LogRegistry(bookkeeper.metadata)
    registry.delete("orders")
    find = LogRegistry.find

    def then_made_anew(self: LogRegistry, name: str) -> Any:
        found = find(self, name)
        if found is None:
            monkeypatch.setattr(LogRegistry, "find", find)
            for one in registry.lane_names():
                registry.delete(one)
            write_log(bookkeeper.other(), "orders")
        return found

    monkeypatch.setattr(LogRegistry, "find", then_made_anew)
    monkeypatch.setattr(MemoryStore, "write_record", _over_positions(MemoryStore.write_record))
    before = set(bookkeeper.list_ledgers())
    assert set(delete_log(bookkeeper, "orders", b"")) <= before
    assert registry.lanes_of("orders") == ["orders", "orders@1", "orders@2", "orders@3"]
    assert len(bookkeeper.list_ledgers()) >= 8


def _over_positions(write: Any) -> Any:
    def write_record(self: MemoryStore, kind: str, name: str, value: bytes, version: int | None) -> Any:
        return 0 if kind == POSITIONS else write(self, kind, name, value, version)

    return write_record
