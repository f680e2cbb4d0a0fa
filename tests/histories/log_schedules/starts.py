"""Streaming queries that start at the end of the log: the real ``EntryStreamReader``, called like Spark calls it.

Spark asks for the initial offset until the first micro-batch has finished; then its checkpoint has the query's place. A run may
stand still within its first micro-batch while its query goes on in another run, with its checkpoint or with a new one.

Law: all runs with the query's last checkpoint begin at one place, and the query reads each row from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from bookspark.errors import ReadError
from bookspark.logs.feeds.log_feed import LogFeed, Offset
from bookspark.spark.connector import feeds, source
from bookspark.spark.connector.source import EntryStreamReader
from bookspark.spark.options.source_options import SourceOptions
from tests.histories.log_schedules.actors import LOG, Stage


class Checkpoint:
    """What is durable of a query at Spark."""

    def __init__(self) -> None:
        self.start: Offset | None = None
        """The place at which the first run began."""
        self.ends: list[Offset] = []
        """The end of each planned micro-batch."""
        self.committed = 0
        """The number of finished micro-batches."""


class Starts:
    """The queries of a schedule."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clients: dict[object, Any] = {}
        """The client of each process."""
        self._checkpoints: dict[str, Checkpoint] = {}

    def query(self, name: str, runs: int) -> None:
        """Some runs of a query; a slow run may be taken for dead. Its checkpoint may be deleted in between."""
        checkpoint = self._checkpoints[name] = Checkpoint()
        for _ in range(runs):
            if self._stage.random.random() < 0.2:
                checkpoint = self._checkpoints[name] = Checkpoint()
            self._stage.runs += 1
            process = object()
            run = partial(self._stage.with_errors, partial(self._run, name, checkpoint, process))
            actor = self._stage.turns.begin(f"{name}-run{self._stage.runs}", run, process)
            for _ in range(self._stage.random.choice([20, 100, 400])):
                if actor.ended:
                    break
                self._stage.turns.step("waits for its run")

    def at_the_end(self, ends: dict[int, int]) -> None:
        """After all writing each query reads the rest. ``ends``: the number of rows of each lane."""
        for name, checkpoint in self._checkpoints.items():
            batches = -1
            while checkpoint.start is None or batches < checkpoint.committed:
                batches = checkpoint.committed
                self._run(name, checkpoint, None)
            assert checkpoint.start is not None
            done = place(checkpoint.ends[-1] if checkpoint.ends else checkpoint.start)
            rows = LogFeed(self._client("memory"), LOG, b"", fail_on_data_loss=False).all_rows(done)
            assert all(rows[lane] >= count for lane, count in ends.items()), f"{name} is at {rows} of {ends}"

    def stand_ins(self) -> list[Any]:
        """Replacements for the client of a process and the report of a query's place."""
        return [
            mock.patch.object(source, "client", self._client),
            mock.patch.object(feeds, "client", self._client),
            mock.patch.object(source, "QueryPlace", _Untold),
        ]

    def _client(self, zookeeper: str) -> Any:
        actor = self._stage.turns.current
        process = None if actor is None else actor.process
        if process not in self._clients:
            self._clients[process] = self._stage.client(process)
        return self._clients[process]

    def _run(self, name: str, checkpoint: Checkpoint, process: object) -> None:
        """A run until its process dies, another run is ahead of it, or it has polled often enough."""
        given = {"log": LOG, "startingOffsets": "latest", "subscription": name, "pollTimeoutMs": "0"}
        options = SourceOptions.parse(given | {"failOnDataLoss": "false"}, "memory")
        reader = EntryStreamReader(options, StructType(), ())
        # Python 3.11 makes a cached property under a lock of all readers, which would stop the schedule.
        reader.__dict__["_feed"] = feeds.feed(options)
        start = None
        for _ in range(self._stage.random.randrange(1, 8)):
            with suppress(ReadError):
                start = self._micro_batch(reader, name, checkpoint, start)
                if start is None:
                    break
        reader.stop()

    def _micro_batch(
        self, reader: EntryStreamReader, name: str, checkpoint: Checkpoint, start: Offset | None
    ) -> Offset | None:
        """Finish a micro-batch, or find no rows. Returns the place of the next one, None if another run of the checkpoint went
        on."""
        client, number = self._client("memory"), checkpoint.committed
        if start is None and number:
            start = checkpoint.ends[number - 1]
        elif start is None:
            start = reader.initialOffset()
            client.step(f"{name} starts at {start}")
            if checkpoint.committed:
                return None
            if checkpoint.start is None:
                checkpoint.start = start
            if self._checkpoints[name] is not checkpoint:
                # It asked later than the runs with the next checkpoint: two queries have one subscription.
                self._checkpoints[name].start = None
                return None
            assert place(start) == place(checkpoint.start), (
                f"{name} starts at {start}, and an earlier run began at {checkpoint.start}"
            )
        if len(checkpoint.ends) > number:
            end = checkpoint.ends[number]
        else:
            end = reader.latestOffset(start, ReadAllAvailable())
            if end == start:
                return start
            client.step(f"{name} plans micro-batch {number} up to {end}")
            if len(checkpoint.ends) != number:
                return None
            checkpoint.ends.append(end)
        reader.partitions(start, end)
        self._stage.read(client, reader._feed, place(start), place(end))  # type: ignore[arg-type]
        client.step(f"{name} finishes micro-batch {number}")
        if checkpoint.committed != number:
            return None
        checkpoint.committed += 1
        reader.commit(end)
        return end


def place(offset: Offset) -> Offset:
    """``offset`` without the owner of a pin."""
    return {key: rows for key, rows in offset.items() if key != source.PIN}


class _Untold:
    """Replaces the report of a query's place, which runs a thread of its own."""

    stranger = None

    def __init__(self, client: Callable[[], Any], key: Callable[[], str] | None) -> None:
        pass

    def tell(self, offset: Offset) -> None:
        pass

    def done(self) -> None:
        pass
