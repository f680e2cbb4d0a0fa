"""A stand-in for Spark's streaming: it keeps a Spark checkpoint of files, and drives the real sink over ledgers in memory."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest

from bookspark.errors import BookKeeperError
from bookspark.spark.connector import sink
from bookspark.spark.connector.connector_options import SinkOptions
from bookspark.spark.logs import LogRegistry, commits, delete_log, truncate_log
from tests.spark.checkpoint_matrix import Query, numbers
from tests.spark.memory_bookkeeper import MemoryBookKeeper

_TASKS = 2


class StandInSpark:
    """Runs queries one after the other. ``monkeypatch`` puts its parts where the sink looks for Spark's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bookkeeper = MemoryBookKeeper()
        self._clock = count(1)
        self._properties: dict[str, str] = {}
        context = SimpleNamespace(getLocalProperty=self._properties.get)
        monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        monkeypatch.setattr(sink, "client", lambda zookeeper: self.bookkeeper)
        monkeypatch.setattr(sink, "idle_closer", lambda: SimpleNamespace(in_use=nullcontext))
        monkeypatch.setattr(sink, "_checked_runs", set())
        # What a query cleans up beside its micro-batches has tests of its own.
        monkeypatch.setattr("bookspark.spark.logs.committer.Committer.tend", lambda committer, thoroughly: None)

    def run(self, query: Query) -> str | None:
        try:
            self._run(query)
        except BookKeeperError as error:
            return str(error)
        return None

    def _run(self, query: Query) -> None:
        checkpoint = query.checkpoint
        for part in ("offsets", "commits", "sources/0"):
            (checkpoint / part).mkdir(parents=True, exist_ok=True)
        self.begin_run(query)
        planned = numbers(checkpoint / "offsets")
        last = planned[-1] if planned else -1
        if last not in numbers(checkpoint / "commits") and planned:
            self._micro_batch(query, last)
        while new := self._unseen(query):
            last += 1
            taken = new[: 1 if query.one_file_a_batch else None]
            listed = [{"path": path, "timestamp": changed, "batchId": last} for path, changed in taken]
            (checkpoint / "sources/0" / str(last)).write_text("\n".join(["v1", *map(json.dumps, listed)]))
            plan = ["v1", json.dumps({"batchTimestampMs": next(self._clock)}), json.dumps({"logOffset": last})]
            (checkpoint / "offsets" / str(last)).write_text("\n".join(plan))
            self._micro_batch(query, last)

    def begin_run(self, query: Query) -> None:
        """What tasks are told from now on is of a new run of the query."""
        metadata = query.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        query_id = json.loads(metadata.read_text())["id"]
        self._properties |= {"sql.streaming.queryId": query_id, "spark.jobGroup.id": str(uuid.uuid4())}

    def _unseen(self, query: Query) -> list[tuple[str, int]]:
        lists = (query.checkpoint / "sources/0").glob("[0-9]*")
        seen = {json.loads(line)["path"] for path in lists for line in path.read_text().splitlines()[1:]}
        files = [(path.as_uri(), path.stat().st_mtime_ns // 1_000_000) for path in sorted(query.input.iterdir())]
        return [file for file in files if file[0] not in seen]

    def _micro_batch(self, query: Query, number: int) -> None:
        listed = (query.checkpoint / "sources/0" / str(number)).read_text().splitlines()[1:]
        paths = [Path(json.loads(line)["path"].removeprefix("file://")) for line in listed]
        lines = [line for path in paths for line in path.read_text().splitlines()]
        self.write(query, number, lines)
        (query.checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def write(self, query: Query, number: int, lines: list[str]) -> None:
        """Write a micro-batch as Spark does: a new writer, tasks, and its commit."""
        given = {"zookeeper": "memory", "log": query.log, "checkpointlocation": str(query.checkpoint), **query.options}
        options = SinkOptions.parse(given)
        LogRegistry(self.bookkeeper.metadata).ensure(query.log, dict(options.chosen), b"")
        self._properties["streaming.sql.batchId"] = str(number)
        writer = sink.LogStreamWriter(options)
        parts = [lines[task::_TASKS] for task in range(_TASKS)]
        writer.commit([writer.write(_batches(part)) for part in parts], number)

    def rows(self, log: str) -> list[str]:
        record = LogRegistry(self.bookkeeper.metadata).find(log)
        return [] if record is None else self._values(log)[record.first_position :]

    def _values(self, log: str) -> list[str]:
        ranges = [item for placed in commits(self.bookkeeper, log, b"") for item in placed.commit.ranges]
        entries = self.bookkeeper.entries
        return [
            entries[item.ledger_id][entry].decode()
            for item in ranges
            for entry in range(item.first_entry_id, item.last_entry_id + 1)
        ]

    def truncate(self, log: str, row: int) -> None:
        truncate_log(self.bookkeeper, log, row, b"")

    def offload(self, log: str) -> None:
        """As an offload leaves it: the record says which table has the rows, and the ledgers of the rows are deleted."""
        rows = len(self.rows(log))
        registry = LogRegistry(self.bookkeeper.metadata)
        registry.update(log, lambda record: record.offload_begun("table", rows))
        registry.update(log, lambda record: record.offload_done(rows, 0))
        for ledger_id in {
            item.ledger_id for placed in commits(self.bookkeeper, log, b"") for item in placed.commit.ranges
        }:
            self.bookkeeper.delete_ledger(ledger_id)

    def delete(self, log: str) -> None:
        delete_log(self.bookkeeper, log, b"")


def _batches(lines: list[str]) -> Iterator[pyarrow.RecordBatch]:
    for first in range(0, len(lines), 3):
        yield pyarrow.record_batch({"value": lines[first : first + 3]})
