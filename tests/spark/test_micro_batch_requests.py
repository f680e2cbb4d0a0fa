"""Requests of a micro-batch to ZooKeeper and the bookies: each costs a round trip, and a trigger waits for all."""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructType

from bookspark.local import LocalCluster
from bookspark.logs.chain import committer
from bookspark.logs.rows import data_ledgers
from bookspark.spark import process_client
from bookspark.spark.connector import sink
from bookspark.spark.connector.data_source import BookSparkDataSource
from bookspark.spark.connector.query_place import QueryPlace
from bookspark.spark.connector.source import EntryStreamReader, schema_of
from bookspark.spark.options.source_options import SourceOptions
from bookspark.store.client.network.connections import Connections
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.header import Kind

_STORE = ("read_ledger", "read_ledgers", "write_ledger", "create_ledger", "watch_ledger", "bookies")
_RECORDS = ("read_record", "write_record", "watch_record", "list_records", "delete_record")
_CONTROL = b"BSPK"


class Asked:
    """Requests, counted by the step that sent them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step = ""
        self.counts: Counter[tuple[str, str]] = Counter()
        for name in (*_STORE, *_RECORDS):
            monkeypatch.setattr(ZooKeeperStore, name, self._counted(name, getattr(ZooKeeperStore, name)))
        send = Connections.send_to_all

        def send_to_all(connections: Connections, bookies: Any, request_id: int, frame: Any, *others: Any) -> None:
            start = bytes(memoryview(frame)[:128])
            kind = start[10] if start.startswith(_CONTROL) else start[HEADER_OFFSET + 2]
            self.counts[self.step, Kind(kind).name] += len(list(bookies))
            send(connections, bookies, request_id, frame, *others)

        monkeypatch.setattr(Connections, "send_to_all", send_to_all)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.counts[self.step, name] += 1
            return call(*given, **named)

        return counted

    def of(self, step: str) -> dict[str, int]:
        return {what: count for (one, what), count in self.counts.items() if one == step and count}


class MicroBatches:
    """A query from a log and a query into it, driven step by step as Spark drives them."""

    def __init__(self, zookeeper: str, asked: Asked, properties: dict[str, str]) -> None:
        self._log, self._asked, self._properties, self._number = f"log-{uuid.uuid4().hex[:8]}", asked, properties, 0
        # There is no Spark, so no checkpoint.
        options = {"zookeeper": zookeeper, "log": self._log, "compareCheckpoint": "false"}
        self._source = BookSparkDataSource(options)
        self._properties |= {"sql.streaming.queryId": str(uuid.uuid4()), "spark.jobGroup.id": str(uuid.uuid4())}
        self.write()
        self._options = SourceOptions.parse({"zookeeper": zookeeper, "log": self._log, "polltimeoutms": "50"})
        self._schema = schema_of(self._options)
        self._reader = EntryStreamReader(self._options, self._schema, self._schema.names)
        self._at = self._reader.initialOffset()

    def write(self) -> None:
        self._properties["streaming.sql.batchId"] = str(self._number)
        self._asked.step = "plan"
        writer = self._source.streamWriter(StructType().add("value", BinaryType()), False)
        writer = pickle.loads(pickle.dumps(writer))
        self._asked.step = "write"
        message = writer.write(iter([pyarrow.record_batch({"value": pyarrow.array([b"row"], pyarrow.binary())})]))
        self._asked.step = "commit"
        writer.commit([message], self._number)
        self._asked.step = ""
        self._number += 1

    def read(self) -> list[bytes]:
        self._asked.step = "latest"
        end = self._reader.latestOffset(self._at, ReadAllAvailable())
        found: list[bytes] = []
        if end != self._at:
            self._asked.step = "partitions"
            plan = self._reader.partitions(self._at, end)
            self._asked.step = "read"
            task = pickle.loads(pickle.dumps(self._reader))
            found = [row for part in plan for batch in task.read(part) for row in batch.column("value").to_pylist()]
            self._asked.step = "done"
            self._reader.commit(end)
        self._asked.step, self._at = "", end
        return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    # Progress reports of readers go out now and then, beside the micro-batches.
    monkeypatch.setattr(QueryPlace, "tell", lambda self, offset: None)
    monkeypatch.setattr(committer.Committer, "tend", lambda self, thoroughly: None)
    return Asked(monkeypatch)


@pytest.fixture
def batches(cluster: LocalCluster, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Iterator[MicroBatches]:
    properties: dict[str, str] = {}
    context = SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setattr(sink, "idle_closer", lambda: SimpleNamespace(in_use=nullcontext))
    monkeypatch.setattr(committer, "_committers", {})
    monkeypatch.setattr(data_ledgers, "_open", {})
    process_client.kept_client.cache_clear()
    made = MicroBatches(cluster.zookeeper, asked, properties)
    # The first micro-batches make ledgers and open them.
    made.write()
    assert made.read() == [b"row"] * 2
    yield made
    process_client.client(cluster.zookeeper).close()
    process_client.kept_client.cache_clear()


def least(rounds: list[dict[tuple[str, str], int]], step: str) -> dict[str, int]:
    """Requests that a step sent in each round; those that background threads send now and then on a busy machine are left out."""
    kinds = {what for counts in rounds for one, what in counts if one == step}
    found = {what: min(counts.get((step, what), 0) for counts in rounds) for what in kinds}
    return {what: count for what, count in found.items() if count}


def test_micro_batch_of_a_single_row_sends_no_needless_request(batches: MicroBatches, asked: Asked) -> None:
    """Each micro-batch read the log's record four times and the commits twice, counting the request for the last commit. The
    task and the commit waited until bookies had information that readers of a log do not need, or need only later."""
    rounds = []
    for _ in range(5):
        asked.counts.clear()
        batches.write()
        assert batches.read() == [b"row"]
        rounds.append(dict(asked.counts))
    assert least(rounds, "plan") == {"read_record": 2}, "the log's name, and its record"
    assert least(rounds, "write") == {"ADD": 3}
    assert least(rounds, "commit") == {"ADD": 3, "WRITE_LAC": 3}
    latest = least(rounds, "latest")
    # If the row was not reported at once, the reader waited for it, and got it with one more request to each bookie.
    assert latest.pop("READ_LAC") in (3, 6)
    assert latest.pop("READ", 0) <= 1
    assert latest == {"read_ledger": 1}
    assert least(rounds, "partitions") == {}
    assert least(rounds, "read") == {"READ": 1}
    assert least(rounds, "done") == {}


def test_empty_micro_batch_looks_once_and_waits_once(batches: MicroBatches, asked: Asked) -> None:
    """After a wait without news every bookie was asked once more."""
    rounds = []
    for _ in range(5):
        asked.counts.clear()
        assert batches.read() == []
        rounds.append(dict(asked.counts))
    latest = least(rounds, "latest")
    # The wait is one request to each bookie; it is left out where the next trigger would be late.
    assert latest.pop("READ_LAC") in (3, 6)
    assert latest == {"read_ledger": 1}


def test_commits_made_between_triggers_are_all_planned(batches: MicroBatches, asked: Asked) -> None:
    for _ in range(5):
        batches.write()
    asked.counts.clear()
    rows = batches.read()
    while len(rows) < 5:
        rows += batches.read()
    assert (rows, asked.of("partitions")) == ([b"row"] * 5, {})
