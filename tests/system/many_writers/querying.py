"""A Spark driver; its arguments are FOLDER, ZOOKEEPER, LOG, NAME, MASTER, LIFE and the jobs, each of them one of

====================  ===========================================================================================
``q-…``               a query from ``FOLDER/input/<job>`` into the log
``batches``           a batch append begins each second, even if earlier ones still run: ``BATCH_WRITERS`` take turns, each with
                      a ``txnAppId`` of its own; repeated until it succeeds
``copy``              a query from the log into the log ``copy``
====================  ===========================================================================================

It prints ``jvm <pid>``, then ``ready`` once each of its queries into the log has done a micro-batch. Once there is a file
``FOLDER/finish`` its writers take in the rest, and it creates a file ``FOLDER/<name>.written``; ``copy`` continues until there
is a file ``FOLDER/all-is-written``. Then it ends. A query that ends by an error is started again, which is printed.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookspark.spark.session import session
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES, plain_reason
from tests.awaiting import time_passes
from tests.system.many_writers.journal import Journal, lines, lives

ROOT = Path(__file__).resolve().parents[3]
BATCH_ROWS = 20
BATCH_WRITERS = 6
"""Batch *n* belongs to writer *n* modulo this. A writer whose batch is still running when its next one is due skips that
turn."""
TRIGGER = "1 second"
_LOOK_SECONDS, _BATCH_SECONDS, _AGAIN_SECONDS = 0.1, 1.0, 0.5


def spark_of(master: str, zookeeper: str) -> SparkSession:
    conf = SMALL_TABLES | {
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "640m",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "640m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.deploy.maxExecutorRetries": "-1",
        # On a busy machine heartbeats are late, and a driver that has given itself up hangs.
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
    }
    spark = session("many-writers", master=master, zookeeper=zookeeper, **conf)
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Driver:
    """One life of a driver."""

    def __init__(self, folder: Path, spark: SparkSession, log: str, life: str, jobs: list[str]) -> None:
        self._folder, self._spark, self._log, self._life = folder, spark, log, life
        self._batches = self._batch_writers() if "batches" in jobs else []
        self._queries = {job: self._start(job) for job in jobs if job != "batches"}
        self._told = False

    def run(self, written: Path) -> None:
        for writer in self._batches:
            writer.start()
        self._go_on_until("finish")
        for writer in self._batches:
            writer.join()
        self._finish([job for job in self._queries if job != "copy"])
        written.touch()
        if "copy" in self._queries:
            self._go_on_until("all-is-written")
            self._finish(["copy"])

    def _go_on_until(self, file: str) -> None:
        while not (self._folder / file).exists():
            for job, query in self._queries.items():
                if not query.isActive:
                    self._start_again(job)
            # A stream of a log waits for a Python process, for which Spark waits ten seconds: a busy machine needs several
            # tries.
            writers = [query for job, query in self._queries.items() if job != "copy"] or list(self._queries.values())
            if not self._told and all(query.lastProgress is not None for query in writers):
                self._told = True
                print("ready", flush=True)
            time_passes(_LOOK_SECONDS)

    def _finish(self, jobs: list[str]) -> None:
        for job in jobs:
            while True:
                try:
                    self._queries[job].processAllAvailable()
                    break
                except PySparkException:
                    self._start_again(job)
            self._queries.pop(job).stop()

    def _start_again(self, job: str) -> None:
        print("ended", job, plain_reason(self._queries[job].exception()), flush=True)
        self._queries[job] = self._start(job)

    def _start(self, job: str) -> Any:
        while True:
            try:
                return self._begin(job)
            except PySparkException as error:
                print("again", job, plain_reason(error), flush=True)
                time_passes(_AGAIN_SECONDS)

    def _begin(self, job: str) -> Any:
        reader = self._spark.readStream
        if job == "copy":
            frame = reader.format("bookspark").option("log", self._log).load().select("value")
        else:
            frame = reader.option("maxFilesPerTrigger", 1).text(str(self._folder / "input" / job))
        writer = frame.writeStream.format("bookspark").option("log", "copy" if job == "copy" else self._log)
        checkpoint = str(self._folder / "checkpoints" / job)
        return writer.queryName(job).option("checkpointLocation", checkpoint).trigger(processingTime=TRIGGER).start()

    def _batch_writers(self) -> list[threading.Thread]:
        done = [
            int(line.words[0]) for path in lives(self._folder, "batches") for line in lines(path) if line.what == "ok"
        ]
        journal, begun = Journal(self._folder / f"batches.{self._life}.journal"), time.monotonic()

        def thread(writer: int) -> threading.Thread:
            version = (
                max((number // BATCH_WRITERS for number in done if number % BATCH_WRITERS == writer), default=-1) + 1
            )
            due = begun + writer * _BATCH_SECONDS
            return threading.Thread(target=self._append_batches, args=(journal, writer, version, due))

        return [thread(writer) for writer in range(BATCH_WRITERS)]

    def _append_batches(self, journal: Journal, writer: int, version: int, due: float) -> None:
        # A batch that a killed life has begun may be in the log, so it is finished in any case.
        failed = True
        while failed or not (self._folder / "finish").exists():
            number = version * BATCH_WRITERS + writer
            time_passes(max(0.0, due - time.monotonic()))
            journal.write("call", number)
            try:
                self._append(number, writer, version)
            except PySparkException as error:
                journal.write("failed", number)
                print("again batches", plain_reason(error), flush=True)
                time_passes(_AGAIN_SECONDS)
                failed = True
                continue
            journal.write("ok", number)
            failed = False
            version += 1
            turn = BATCH_WRITERS * _BATCH_SECONDS
            due += turn * max(1, math.ceil((time.monotonic() - due) / turn))

    def _append(self, number: int, writer: int, version: int) -> None:
        first = number * BATCH_ROWS
        rows = self._spark.range(first, first + BATCH_ROWS, 1, 1).selectExpr("concat('batches ', id) AS value")
        given = {"log": self._log, "txnAppId": f"batches-{writer}", "txnVersion": version}
        rows.write.format("bookspark").options(**given).mode("append").save()


def main(folder: str, zookeeper: str, log: str, name: str, master: str, life: str, *jobs: str) -> None:
    spark = spark_of(master, zookeeper)
    jvm: Any = spark.sparkContext._jvm
    print("jvm", jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    Driver(Path(folder), spark, log, life, list(jobs)).run(Path(folder) / f"{name}.written")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
