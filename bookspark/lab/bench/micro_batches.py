"""``bookspark bench micro-batches``: the cost of small Spark work with Bookspark, beside the same work in one piece.

Law: compared cases run by turns in one session on one cluster, after a warm-up of each. A figure is the median of all rounds.

======================  =======================================================================================================
``commits 1500``        the rows of a log of 1,500 commits, ten rows each, are counted, hashed and streamed (``availableNow``);
``commits 1``           the same rows of a log that has them in one commit. Two tasks wrote each commit
``trigger noop``        a trigger of a query of one row a micro-batch, whose sink takes it and does nothing
``trigger sink``        the same with the sink of Bookspark
``trigger source``      a trigger of a query from a log, one row each, whose sink does nothing
======================  =======================================================================================================

The limit is a Python sink and source that do nothing (``bare_source``): Spark hands a micro-batch to three Python processes
one after the other, unlike with its built-in sinks. A trigger's time is ``triggerExecution`` in Spark's progress; triggers
follow each other without a pause.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bookspark.lab.bench.bare_source import BareSource
from bookspark.lab.bench.processes import family_cpu_seconds
from bookspark.local import LocalCluster
from bookspark.logs import Committer, DataWriter, LogAddress, LogOptions, LogRegistry, LogRun, RollPolicy, create_log
from bookspark.logs.rows.data_ledgers import DataLedger
from bookspark.logs.rows.encodings import Payloads
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.spark.session import session
from bookspark.store.client import BookKeeper

COMMITS, ROWS_EACH, TRIGGERS = 1500, 10, 60
_ROW_BYTES, _TASKS, _BOOKIES = 100, 2, 3
_WARM_UP_TRIGGERS = 10
_SECONDS_MAX = 600.0

Line = dict[str, Any]


def measure(rounds: int, scale: float, directory: Path | None) -> Iterator[Line]:
    """The lines of all cases, one of each in a round. ``scale`` multiplies commits and triggers. ``directory``: a folder on
    the disk to measure."""
    commits, triggers = max(2, int(COMMITS * scale)), max(5, int(TRIGGERS * scale))
    with (
        tempfile.TemporaryDirectory(prefix="bench-micro-", dir=directory) as place,
        LocalCluster(_BOOKIES, Path(place, "bookies")) as cluster,
    ):
        with cluster.bookkeeper() as bookkeeper:
            for name, count, each in (("many", commits, ROWS_EACH), ("one", 1, commits * ROWS_EACH)):
                write_log(bookkeeper, name, count, each)
            # A row for each trigger, including those of the warm-up and those that Spark prepares ahead.
            write_log(bookkeeper, "rows", triggers + 4 * _WARM_UP_TRIGGERS, 1)
        spark = session("bench", master="local[2]", zookeeper=cluster.zookeeper)
        spark.dataSource.register(BareSource)
        try:
            spark.sparkContext.setLogLevel("OFF")
            home = Path(place)
            shapes = {"many": commits, "one": 1}
            for number in range(rounds + 1):
                # The first round is the warm-up.
                lines = list(_small_commits(spark, shapes, commits * ROWS_EACH, home / f"commits{number}"))
                lines += _triggers(spark, triggers if number else _WARM_UP_TRIGGERS, home / f"triggers{number}")
                for line in lines if number else ():
                    yield {"system": "bookspark", **line, "round": number - 1, "load": os.getloadavg()[0]}
        finally:
            spark.stop()


def write_log(bookkeeper: BookKeeper, name: str, commits: int, rows_each: int) -> None:
    """Write a log with ``commits`` commits of rows from two tasks, like the micro-batches of a query."""
    create_log(bookkeeper, name)
    record = LogRegistry(bookkeeper.metadata).claim(name, "run", "query:bench")
    run = LogRun.of(LogAddress(bookkeeper.zookeeper, name), record)
    tasks = [DataLedger(bookkeeper, run, LogOptions(), RollPolicy()) for _ in range(min(_TASKS, rows_each))]
    share = pyarrow.array([os.urandom(_ROW_BYTES) for _ in range(rows_each // len(tasks))], pyarrow.binary())
    with closing(Committer(bookkeeper, run)) as committer:
        for number in range(commits):
            ranges: list[EntryRange] = []
            for task in tasks:
                writer = DataWriter(task)
                writer.append(Payloads(share))
                ranges += writer.finish()
            committer.commit(
                Commit("query:bench", number, run.run, run.epoch, tuple(ranges), time.time_ns() // 1_000_000)
            )
    for task in tasks:
        task.close()


def _small_commits(spark: SparkSession, shapes: dict[str, int], rows: int, home: Path) -> Iterator[Line]:
    for name, commits in shapes.items():

        def log(name: str = name) -> DataFrame:
            return spark.read.format("bookspark").option("log", name).load()

        def count(log: Callable[[], DataFrame] = log) -> int:
            return int(log().count())

        def hashes(log: Callable[[], DataFrame] = log) -> int:
            return int(log().agg(F.sum(F.expr("abs(xxhash64(value)) % 1000")), F.count("value")).first()[1])

        def stream(name: str = name) -> int:
            source = spark.readStream.format("bookspark").option("log", name).load()
            query = source.writeStream.format("noop").option("checkpointLocation", str(home / name))
            started = query.trigger(availableNow=True).start()
            if not started.awaitTermination(_SECONDS_MAX):
                started.stop()
                raise RuntimeError("a query did not end")
            return sum(progress.numInputRows for progress in started.recentProgress)

        for how, read in (("count", count), ("hash", hashes), ("stream", stream)):
            began, used = time.monotonic(), family_cpu_seconds()
            found = read()
            figures = {"seconds": time.monotonic() - began, "cpu_seconds": family_cpu_seconds() - used}
            assert found == rows, f"{found} rows of {rows} came"
            # The label of the full run, also in a short run, so that the table can look it up.
            yield {
                "label": f"commits {COMMITS if commits > 1 else 1} {how}",
                "rows": rows,
                "commits": commits,
                **figures,
            }


def _triggers(spark: SparkSession, triggers: int, home: Path) -> list[Line]:
    options = {"rowsPerBatch": "1", "numPartitions": "1"}
    generated = spark.readStream.format("rate-micro-batch").options(**options).load()
    rows = generated.select(F.col("value").cast("string").cast("binary").alias("value"))
    log = spark.readStream.format("bookspark").option("log", "rows").option("maxOffsetsPerTrigger", 1).load()
    queries = {
        ("bookspark", "noop"): rows.writeStream.format("noop"),
        ("limit", "sink"): rows.writeStream.format("bare"),
        ("bookspark", "sink"): rows.writeStream.format("bookspark").option("log", f"sink-{home.name}"),
        ("limit", "source"): spark.readStream.format("bare").load().writeStream.format("noop"),
        ("bookspark", "source"): log.writeStream.format("noop"),
    }
    return [
        {
            "system": system,
            "label": f"trigger {name}",
            **_trigger(query.option("checkpointLocation", str(home / f"{system}-{name}")), triggers),
        }
        for (system, name), query in queries.items()
    ]


def _trigger(writer: DataStreamWriter, triggers: int) -> Line:
    """The median and the 99th percentile of a trigger, in ms, and processor time of Spark and servers for a trigger."""
    query = writer.start()
    try:
        deadline = time.monotonic() + _SECONDS_MAX
        used, at = 0.0, -1
        while True:
            last = query.lastProgress
            done = -1 if last is None else last.batchId
            if at < 0 <= done - _WARM_UP_TRIGGERS + 1:
                used, at = family_cpu_seconds(), done
            if at >= 0 and done >= at + triggers:
                break
            if not query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"triggers are missing: {query.exception() or 'they take too long'}")
            time.sleep(0.02)
        used = (family_cpu_seconds() - used) / (done - at)
        took = [
            float(one.durationMs["triggerExecution"])
            for one in query.recentProgress
            if at < one.batchId <= at + triggers
        ]
    finally:
        query.stop()
    took.sort()
    return {"p50_ms": median(took), "p99_ms": took[len(took) * 99 // 100], "cpu_ms": used * 1e3, "triggers": len(took)}
