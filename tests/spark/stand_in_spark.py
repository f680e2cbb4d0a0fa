"""A stand-in for Spark's streaming: it keeps a Spark checkpoint of files and drives the real sink over in-memory
ledgers."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow
import pytest

from bookspark.errors import BookKeeperError
from bookspark.logs import LogRegistry, commits, delete_log, truncate_log
from bookspark.logs.chain import committer
from bookspark.logs.rows import data_ledgers
from bookspark.spark.connector import sink
from bookspark.spark.options.sink_options import SinkOptions
from tests.spark.checkpoint_matrix import Query, numbers
from tests.spark.memory_bookkeeper import MemoryBookKeeper

_TASKS = 2


class StandInSpark:
    """Runs queries, also concurrently, each in an application of its own. ``monkeypatch`` puts its parts in place of
    Spark's in the sink."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bookkeeper = MemoryBookKeeper()
        self.version, self.source = "v1", "0"
        """The form of the plans, and the folder of the source's lists."""
        self.location: Callable[[Path], str] = str
        """The given location of a Spark checkpoint."""
        self.session: dict[str, str] = {}
        """Settings of the session, which Spark tells to the tasks."""
        self._clock = count(1)
        self._properties: dict[str, str] = {}
        self._monkeypatch = monkeypatch
        # Properties of the tasks of each query's run, by the query's Spark checkpoint.
        self._runs: dict[Path, dict[str, str]] = {}
        # Process state of each query.
        self._processes: dict[tuple[Path, str], Any] = defaultdict(dict)
        context = SimpleNamespace(getLocalProperty=self._properties.get)
        monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        monkeypatch.setattr(sink, "client", lambda zookeeper: self.bookkeeper)
        monkeypatch.setattr(sink, "idle_closer", lambda: SimpleNamespace(in_use=nullcontext))
        # The cleanup that a query does beside its micro-batches has tests of its own.
        monkeypatch.setattr("bookspark.logs.chain.committer.Committer.tend", lambda self, thoroughly: None)

    def run(self, query: Query) -> str | None:
        try:
            self._run(query)
        except BookKeeperError as error:
            return str(error)
        return None

    def _run(self, query: Query) -> None:
        self.begin_run(query)
        while self.step(query, 1 if query.one_file_a_batch else None):
            pass

    def step(self, query: Query, files_max: int | None = None) -> bool:
        """Run a micro-batch of at most ``files_max`` new files. Return whether there was one to run."""
        checkpoint = query.checkpoint
        planned = numbers(checkpoint / "offsets")
        last = planned[-1] if planned else -1
        if planned and last not in numbers(checkpoint / "commits"):
            self._micro_batch(query, last)
            return True
        number = self.plan_next(query, files_max)
        if number is None:
            return False
        self._micro_batch(query, number)
        return True

    def plan_next(self, query: Query, files_max: int | None = None) -> int | None:
        """Plan a micro-batch of at most ``files_max`` new files. Return its number, or None if there are none."""
        checkpoint = query.checkpoint
        taken = self._unseen(query)[:files_max]
        if not taken:
            return None
        last = max(numbers(checkpoint / "offsets"), default=-1) + 1
        listed = [{"path": path, "timestamp": changed, "batchId": last} for path, changed in taken]
        (checkpoint / "sources" / self.source / str(last)).write_text("\n".join(["v1", *map(json.dumps, listed)]))
        self._plan(query, last, {"logOffset": last})
        return last

    def _plan(self, query: Query, number: int, offset: dict[str, int]) -> None:
        key = f"{self.source}:" if self.version == "v2" else ""
        plan = [self.version, json.dumps({"batchTimestampMs": next(self._clock)}), key + json.dumps(offset)]
        (query.checkpoint / "offsets" / str(number)).write_text("\n".join(plan))

    def begin_run(self, query: Query) -> None:
        """Begin a new run of the query: tasks get its properties from now on."""
        for part in ("offsets", "commits", f"sources/{self.source}"):
            (query.checkpoint / part).mkdir(parents=True, exist_ok=True)
        metadata = query.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        query_id = json.loads(metadata.read_text())["id"]
        self._runs[query.checkpoint] = {"sql.streaming.queryId": query_id, "spark.jobGroup.id": str(uuid.uuid4())}

    def _enter_process(self, query: Query) -> None:
        key = query.checkpoint
        for holder, name in ((sink, "_checked_runs"), (sink, "_committed_runs")):
            self._monkeypatch.setattr(holder, name, self._processes.setdefault((key, name), set()))
        for holder, name in ((committer, "_committers"), (data_ledgers, "_open")):
            self._monkeypatch.setattr(holder, name, self._processes[key, name])

    def _unseen(self, query: Query) -> list[tuple[str, int]]:
        lists = (query.checkpoint / "sources" / self.source).glob("[0-9]*")
        seen = {json.loads(line)["path"] for path in lists for line in path.read_text().splitlines()[1:]}
        files = [(path.as_uri(), path.stat().st_mtime_ns // 1_000_000) for path in sorted(query.input.iterdir())]
        return [file for file in files if file[0] not in seen]

    def _micro_batch(self, query: Query, number: int) -> None:
        self.write(query, number, self.lines_of(query, number))
        (query.checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def lines_of(self, query: Query, number: int) -> list[str]:
        """The rows of a micro-batch."""
        listed = (query.checkpoint / "sources" / self.source / str(number)).read_text().splitlines()[1:]
        paths = [Path(unquote(json.loads(line)["path"].removeprefix("file://"))) for line in listed]
        return [line for path in paths for line in path.read_text().splitlines()]

    def write(self, query: Query, number: int, lines: list[str]) -> None:
        """Write a micro-batch as Spark does: a new writer, tasks, and its commit."""
        writer = self.planned(query, number)
        parts = [lines[task::_TASKS] for task in range(_TASKS)]
        writer.commit([writer.write(_batches(part)) for part in parts], number)

    def planned(self, query: Query, number: int) -> sink.LogStreamWriter:
        """A new writer for a micro-batch, whose tasks can begin. A batch without a plan gets one without files."""
        if not (query.checkpoint / "offsets" / str(number)).exists():
            self._plan(query, number, {"batch": number})
        given = {"zookeeper": "memory", "log": query.log, "checkpointlocation": self.location(query.checkpoint)}
        given |= query.options
        options = SinkOptions.parse(given)
        planned = LogRegistry(self.bookkeeper.metadata).ensure(query.log, dict(options.chosen), b"")
        self._enter_process(query)
        self._properties.clear()
        self._properties |= {**self.session, **self._runs[query.checkpoint], "streaming.sql.batchId": str(number)}
        return sink.LogStreamWriter(options, planned)

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
        """Leave the log as an offload does: the record names the table with the rows, and the rows' ledgers are
        deleted."""
        rows = len(self.rows(log))
        registry = LogRegistry(self.bookkeeper.metadata)
        registry.update(log, lambda record: record.offload_begun("table", rows))
        registry.update(log, lambda record: record.offload_done("table", rows, 0))
        for ledger_id in {
            item.ledger_id for placed in commits(self.bookkeeper, log, b"") for item in placed.commit.ranges
        }:
            self.bookkeeper.delete_ledger(ledger_id)

    def delete(self, log: str) -> None:
        delete_log(self.bookkeeper, log, b"")


def _batches(lines: list[str]) -> Iterator[pyarrow.RecordBatch]:
    for first in range(0, len(lines), 3):
        yield pyarrow.record_batch({"value": lines[first : first + 3]})
