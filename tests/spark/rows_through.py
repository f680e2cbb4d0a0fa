"""Many rows from a log through a query into another log and back: the rows are the same, and little memory is used.

Law: multisets of rows are compared by their count, their bytes and the sum of all rows' 64-bit hashes; no Python
worker of Spark's ever takes more than ``WORKER_BYTES_MAX`` of memory (the kernel's peak value of each worker)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bookspark.spark.connector.data_source import register

WORKER_BYTES_MAX = 512 << 20
ROW_BYTES = 100
_LOOK_SECONDS = 0.2
_QUERY_SECONDS_MAX = 4 * 3600


def rows_through(spark: SparkSession, zookeeper: str, rows: int, folder: Path) -> Mapping[str, float]:
    """Make ``rows`` rows of ``ROW_BYTES``, write them to a log, stream them into a second log and read them. Return
    the measurements."""
    register(spark, zookeeper)
    first, second = (f"rows-{uuid.uuid4().hex[:8]}" for _ in range(2))
    made = spark.range(rows).selectExpr(f"rpad(concat(id, ' ', hex(xxhash64(id))), {ROW_BYTES}, 'x') AS value")
    seen: dict[str, float] = {"rows": rows}
    with _peaks(spark) as peaks:
        began = time.monotonic()
        made.write.format("bookspark").option("log", first).mode("append").save()
        seen["write seconds"] = round(time.monotonic() - began, 1)
        began = time.monotonic()
        stream = spark.readStream.format("bookspark").options(log=first, maxOffsetsPerTrigger=max(rows // 5, 1)).load()
        writer = stream.select("value").writeStream.format("bookspark").option("log", second)
        query = writer.option("checkpointLocation", str(folder / second)).trigger(availableNow=True).start()
        assert query.awaitTermination(_QUERY_SECONDS_MAX)
        seen["stream seconds"] = round(time.monotonic() - began, 1)
        began = time.monotonic()
        found = _digest(spark.read.format("bookspark").option("log", second).load())
        seen["read seconds"] = round(time.monotonic() - began, 1)
    assert found == _digest(made), "the rows that came back are not those that went in"
    seen["peak worker MB"] = max(peaks.values()) >> 20
    seen["workers"] = len(peaks)
    assert max(peaks.values()) < WORKER_BYTES_MAX, peaks
    return seen


def _digest(rows: DataFrame) -> tuple[object, ...]:
    value = "CAST(value AS BINARY)"
    return tuple(
        rows.selectExpr("count(*)", f"sum(length({value}))", f"sum(CAST(xxhash64({value}) AS DECIMAL(38)))").first()
        or ()
    )


@contextmanager
def _peaks(spark: SparkSession) -> Iterator[dict[int, int]]:
    """Peak memory of each Python worker of this Spark while the block runs, by pid."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    peaks: dict[int, int] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            for pid, peak in _python_workers(jvm):
                peaks[pid] = max(peak, peaks.get(pid, 0))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield peaks
    finally:
        over.set()
        watching.join()


def _python_workers(jvm: int) -> Iterator[tuple[int, int]]:
    """(pid, peak resident bytes) of the JVM's descendants. A process just forked still runs the JVM's program and has
    the JVM's memory, so it is left out."""
    parents: dict[int, int] = {}
    highest: dict[int, int] = {}
    program = Path(f"/proc/{jvm}/exe").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "exe").readlink() == program:
                continue
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            parents[int(process.name)] = int(status["PPid"])
            highest[int(process.name)] = int(status["VmHWM"].split()[0]) << 10
        except (OSError, KeyError, ValueError):
            continue
    for pid in highest:
        above = parents.get(pid, 0)
        while above not in (0, 1, jvm):
            above = parents.get(above, 0)
        if above == jvm:
            yield pid, highest[pid]
