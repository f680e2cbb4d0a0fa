"""Measures the cost of ended lanes for a reader. The number of rounds is that of lanes, 10,000 by default.

ZooKeeper is real, with the records of production code; ledgers are in memory, because only records could grow. At a
hundredth of the lanes and at the end it prints the cost of a reader at the end of the log (its offset, the records read
for its start and for its next row, seconds, memory), the cost of a reader from the beginning, and the size of the log's
record. It fails if an offset, or the number of records read at the end, is greater with all lanes than with a hundredth of
them.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bookspark.errors import MetadataStoreError
from bookspark.logs import LogAddress, LogRegistry, Producer, RowReader
from bookspark.logs.chain.lane_index import LaneIndex
from bookspark.logs.chain.registry import RECORDS
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.ended_lanes import ending, full_block, kept_of, lane_ended, out_of_index
from bookspark.protocol.logs.lanes import lane_id, lane_name, new_lane, service_writer, with_lane
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore, begin_cluster
from tests.soak._command import main
from tests.spark.memory_bookkeeper import MemoryBookKeeper

LOG = "orders"
_REAL, _THREADS = 10, 8


class Lanes:
    """A log and its ended lanes."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.bookkeeper: Any = MemoryBookKeeper(store)  # type: ignore[arg-type]
        self.bookkeeper.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
        self.bookkeeper.zookeeper = "memory"
        self._store, self._ended = store, 0
        LogRegistry(store).create(LOG, LogOptions(), b"")
        self._living = self._producer("living")
        self._living.append(b"first")

    def end_until(self, count: int) -> None:
        """Raise the number of ended lanes to ``count``: some by the ender, the others by its steps, with records written
        concurrently."""
        real = min(_REAL, count - self._ended)
        for number in range(self._ended, self._ended + real):
            producer = self._producer(f"day-{number}")
            producer.append(b"a row")
            producer.close()
            end_lane(self.bookkeeper, lane_name(LOG, producer.lane))
        registry, now_ms = LogRegistry(self._store), time.time_ns() // 1_000_000
        record = registry.get(LOG)
        index = LaneIndex(self._store, lane_id(record))
        with ThreadPoolExecutor(_THREADS) as threads:
            written = []
            for number in range(self._ended + real, count):
                lane = record.lanes_made + 1
                made = ending(new_lane(record, lane), "ender")
                made = lane_ended(made, "ender", made.epoch, rows=0, time_ms=now_ms, after=0)
                written.append(threads.submit(insisted, partial(index._put, made)))
                record = with_lane(record, lane, service_writer(f"day-{number}"), "", 0, "")
                entry = next(one for one in record.lanes if one.number == lane)
                written += [threads.submit(insisted, partial(index._keep, kept)) for kept in kept_of(entry, "")]
                block = full_block(record)
                if block is not None:
                    insisted(partial(index._put_block, *block))
                record = out_of_index(record, lane)
            for one in written:
                one.result()
        registry.update(LOG, lambda _: record)
        self._ended = count

    def at_the_end(self) -> dict[str, float]:
        """The cost of a reader that starts at the end and reads one more row."""
        found = dict[str, float]()
        gc.collect()
        tracemalloc.start()
        with reads(self._store) as counts, timed(found, "start at the end, s"):
            reader = RowReader(self.bookkeeper, LogAddress("memory", LOG), "latest", "")
        found["records read for it"] = counts.total()
        found["bytes of its offset"] = len(json.dumps(reader.offset))
        self._living.append(b"one more")
        with reads(self._store) as counts, timed(found, "its next row, s"):
            (row,) = reader.read(timeout=60.0)
        assert row.value == b"one more"
        found["records read for its next row"] = counts.total()
        gc.collect()
        found["bytes that it keeps"], found["bytes at most"] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        reader.close()
        return found

    def from_the_beginning(self) -> dict[str, float]:
        """The cost of a reader that reads everything."""
        found = dict[str, float]()
        with (
            reads(self._store) as counts,
            timed(found, "from the beginning, s"),
            RowReader(self.bookkeeper, LogAddress("memory", LOG), "earliest", "") as reader,
        ):
            found["its rows"] = len(list(reader))
            found["bytes of its offset behind them"] = len(json.dumps(reader.offset))
        found["questions from the beginning"] = counts.total()
        return found

    def record_bytes(self) -> int:
        found = self._store.read_record(RECORDS, lane_id(LogRegistry(self._store).get(LOG)).key)
        assert found is not None
        return len(found.value)

    def _producer(self, name: str) -> Producer:
        return Producer(self.bookkeeper, LogAddress("memory", LOG), name)


def insisted(step: Callable[[], object]) -> None:
    """Repeat the step until ZooKeeper answers; a repeated step changes nothing."""
    while True:
        with suppress(MetadataStoreError):
            step()
            return


@contextmanager
def reads(store: ZooKeeperStore) -> Iterator[Counter[str]]:
    """Count reads of records and ledgers within the block."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(store, name)

        def call(*arguments: Any) -> Any:
            counts[name] += 1
            return original(*arguments)

        return call

    names = ("read_record", "read_records", "read_ledger", "list_records")
    with mock.patch.multiple(store, **{name: counted(name) for name in names}):
        yield counts


@contextmanager
def timed(found: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    found[name] = round(time.perf_counter() - began, 4)


def run(rounds: int) -> Mapping[str, object]:
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="bookspark-lanes-") as folder, EmbeddedZooKeeper(Path(folder)) as zookeeper:
        begin_cluster(zookeeper.connection_string)
        store = ZooKeeperStore(zookeeper.connection_string)
        try:
            lanes, ends = Lanes(store), list[dict[str, float]]()
            for count in (max(1, rounds // 100), rounds):
                began = time.perf_counter()
                lanes.end_until(count)
                print(f"{count} lanes ended, {time.perf_counter() - began:.0f} s", flush=True)
                # The first reader imports modules and connects.
                lanes.at_the_end()
                ends.append(lanes.at_the_end() | {"bytes of the log's record": lanes.record_bytes()})
                print(json.dumps(ends[-1]), flush=True)
                found[f"{count} lanes"] = ends[-1] | lanes.from_the_beginning()
                print(json.dumps(found[f"{count} lanes"]), flush=True)
        finally:
            store.close()
    few, many = ends
    for name in ("records read for it", "records read for its next row"):
        assert many[name] <= few[name] + 2, (
            f"{name}: {few[name]} with {rounds // 100} lanes, {many[name]} with {rounds}"
        )
    assert many["bytes of its offset"] <= few["bytes of its offset"] + 10
    return found


if __name__ == "__main__":
    main(__doc__, run, 10_000)
