"""The driver of one snapshot and its audits (``snapshot_scale``): ``python -m tests.soak._snapshot_driver ZOOKEEPER
PATH``.

Prints a JSON object. Memory is the greatest of all samples, in MiB resident; for Python, that of the largest process. The
heap in use is the rest after collections free nothing more (``_heap_left``).

With ``MADE_UP`` in the environment the ledgers are made up.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

from bookspark.spark import snapshots
from bookspark.spark.audit import runner
from bookspark.spark.session import session
from tests.awaiting import stays
from tests.soak.snapshot_scale import MADE_UP

_SECONDS_BETWEEN_SAMPLES = 0.5
_SECONDS_BETWEEN_COLLECTIONS, _SAME, _COLLECTIONS_MAX = 1.0, 3, 30
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_OF_LEDGERS = ("ledger_ids", "ledgers", "fragments", "accepted_losses", "index_ranges")


class _Watched:
    """Watches this process and its children until ``end``."""

    def __init__(self) -> None:
        self.peaks = {"driver": 0, "executor": 0, "python": 0}
        self._seconds: dict[tuple[int, float], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def seconds(self) -> float:
        """Processor time of all these processes so far, ended ones included."""
        self._look()
        return sum(self._seconds.values())

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_SAMPLES):
            self._look()

    def _look(self) -> None:
        this = psutil.Process()
        for one in (this, *this.children(recursive=True)):
            try:
                command = one.cmdline()
                # A process just forked by a JVM has another name, but the JVM's command and memory.
                if command and command[0].endswith("java"):
                    kind = "executor" if _EXECUTOR in command else "driver"
                    self.peaks[kind] = max(self.peaks[kind], one.memory_info().rss >> 20)
                elif command and "python" in command[0]:
                    self.peaks["python"] = max(self.peaks["python"], one.memory_info().rss >> 20)
                times = one.cpu_times()
                self._seconds[one.pid, one.create_time()] = times.user + times.system
            except psutil.Error:
                pass


def _run(zookeeper: str, path: str) -> dict[str, Any]:
    watched = _Watched()
    conf = {"spark.driver.memory": "4g", "spark.executor.memory": "4g"}
    spark = session("scale", master="local-cluster[1,2,4096]", zookeeper=zookeeper, **conf)
    spark.sparkContext.setLogLevel("OFF")
    if MADE_UP in os.environ:
        # Importing this module makes the ledgers made up.
        from tests.soak import _made_up_ledgers

        _made_up_ledgers.use(spark)
    told: dict[str, Any] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        began, busy = time.monotonic(), watched.seconds()
        parts[:] = []
        yield
        ended = time.monotonic()
        moments = [at for _, at in parts] + [ended]
        told[name] = {
            "seconds": round(ended - began, 1),
            "processor_seconds": round(watched.seconds() - busy, 1),
            "each": {one: round(end - start, 1) for (one, start), end in zip(parts, moments[1:], strict=True)},
        }
        print(name, told[name], file=sys.stderr, flush=True)

    parts: list[tuple[str, float]] = []

    def begins(part: str, number: int, count: int) -> None:
        parts.append((part, time.monotonic()))

    with timed("snapshot"):
        snapshots.write(spark, zookeeper, path, begins=begins)
    tables = snapshots.tables(spark, path)
    with timed("made_up_index"):
        tables["index_ranges"] = _made_up_index(spark, tables["fragments"], f"{path}-index")
    queries = [name for name in runner.names() if runner.NEEDS.get(name, "ledgers") in tables]
    with timed("audits"):
        findings = runner.run_over(spark, tables, queries, begins=begins)
    first, heap = _heap_left(spark)
    watched.end()
    java: Any = spark.sparkContext._jsc
    executors = java.sc().statusStore().executorList(False)
    shuffled = sum(executors.apply(n).totalShuffleWrite() for n in range(executors.size()))
    files = {
        table: len(spark.read.format("delta").load(snapshots.location(path, table)).inputFiles())
        for table in _OF_LEDGERS
    }
    rows = tables["ledgers"].count()
    spark.stop()
    return {
        "ledgers": rows,
        **told,
        "driver_mib": watched.peaks["driver"],
        "driver_heap_mib": heap,
        "driver_heap_after_one_collection_mib": first,
        "executor_mib": watched.peaks["executor"],
        "python_mib": watched.peaks["python"],
        "shuffled_mib": shuffled >> 20,
        "files": files,
        "findings": {one.name: one.total for one in findings},
    }


def _heap_left(spark: SparkSession) -> tuple[int, int]:
    """MiB of the driver's heap in use after one collection, and after further collections free nothing more.

    One collection is not enough: it only discovers unused broadcasts. Spark then drops their blocks in a thread of its
    own, without an event to wait for, and the next collection frees them.
    """
    jvm: Any = spark.sparkContext._jvm
    runtime = jvm.Runtime.getRuntime()
    found: list[int] = []
    while len(found) < _COLLECTIONS_MAX and (len(found) <= _SAME or min(found[:-_SAME]) > min(found[-_SAME:])):
        if found:
            stays(lambda: not spark.sparkContext._jsc.sc().isStopped(), _SECONDS_BETWEEN_COLLECTIONS)
        jvm.System.gc()
        found.append((runtime.totalMemory() - runtime.freeMemory()) >> 20)
    return found[0], min(found)


def _made_up_index(spark: SparkSession, fragments: DataFrame, path: str) -> DataFrame:
    """The expected index of the bookies if each holds its entries, except the beginnings of every thousandth ledger."""
    rows = fragments.selectExpr(
        "EXPLODE(ensemble) AS bookie_id",
        "ledger_id",
        "first_entry_id",
        "last_entry_id",
        "ledger_id DIV 5000 AS entry_log",
        "1000 * (ledger_id % 5000) AS position",
        "100000L AS bytes",
    )
    rows.where("ledger_id % 1000 <> 0 OR first_entry_id > 0").write.parquet(path)
    return spark.read.parquet(path)


if __name__ == "__main__":
    print("\n" + json.dumps(_run(*sys.argv[1:])), flush=True)
