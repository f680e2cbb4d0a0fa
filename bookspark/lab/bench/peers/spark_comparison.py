"""``bookspark bench peers spark``: rows through Spark into Bookspark, Delta and Kafka and back, in turns, and the table of it.

Law: two systems never run at once, except for the Spark that drives each. A figure is the median over the rounds. Each
round warms its system up with few rows first. Rows come from a Parquet file that was already read once. All lines are kept
in ``spark-results.jsonl``.

Cases, at 100 B and 1 KiB a row: rows a second of a batch write, of a batch read (a sum of bytes) and of a query that copies
all rows from one log, table or topic to another (``availableNow``). The processor time of Spark and servers together says
more on a busy machine. A Python data source that does nothing takes the same rows as Bookspark (``limits``). Latency: from
the arrival of a row's file through a first query to a second, both with a micro-batch as soon as there is input.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from bookspark.lab.bench.bare_source import BareSource
from bookspark.lab.bench.kept_results import Results
from bookspark.lab.bench.peers.kafka_peer import kafka_jars
from bookspark.lab.bench.peers.spark_systems import SYSTEMS, System
from bookspark.lab.bench.processes import family_cpu_seconds
from bookspark.spark.session import SPARK_ERRORS, session

BYTES = {100: 100_000_000, 1024: 400_000_000}
"""Row size in bytes → bytes of a round."""
LATENCY_FILES = 40
_BETWEEN_FILES_SECONDS = 0.35
_WAIT_SECONDS_MAX = 600.0
_WARM_UP_ROWS = 1000
_CORES = 2
_BARE_BATCH_BYTES = 512 << 10
"""About the size of the Arrow batches from Bookspark's source."""

Line = dict[str, Any]


def compare(
    cache: Path, directory: Path | None, systems: Sequence[str], rounds: int, scale: float
) -> tuple[str, list[str]]:
    """Measure ``systems`` (names in ``SYSTEMS``). Each line goes to standard output and to ``spark-results.jsonl`` in
    ``cache``, the folder of the jars too. ``directory``: a folder on the disk to measure (default: ``cache``). Returns the
    table, with the changes since the last run, and the failures: the rest of a failed turn is not in the table."""
    broker_jars, connector = kafka_jars(cache)
    with (
        open(cache / "spark-results.jsonl", "w") as file,
        tempfile.TemporaryDirectory(prefix="bench-spark-", dir=directory or cache) as place,
    ):
        home, results = Path(place), Results(file)
        with spark_session(connector) as spark:
            for size, total in BYTES.items():
                make_rows(spark, home, size, int(total * scale) // size)
        for number in range(rounds):
            for name in systems:
                lines = ({"system": name, **line} for line in turn(name, home, number, broker_jars, connector, scale))
                results.add_turn(lines, name, (RuntimeError, *SPARK_ERRORS), round=number)
    return results.table(cache, "spark", scale), results.failures


def turn(
    name: str, home: Path, number: int, broker_jars: Path, connector: Sequence[Path], scale: float
) -> Iterator[Line]:
    """The lines of a system in a round."""
    # Each system has its own Spark session: no Python worker keeps a client of a stopped system. The JVM stays, and is warm.
    with SYSTEMS[name](home, broker_jars) as system, spark_session(connector) as spark:
        inputs = {size: spark.read.parquet(str(home / f"rows{size}")) for size in BYTES}
        yield from measure(spark, system, inputs, home / f"{name}{number}", scale)
        if name == "bookspark":
            yield from limits(spark, system, inputs)


@contextmanager
def spark_session(connector: Sequence[Path]) -> Iterator[SparkSession]:
    """A session on this host with the jars ``connector``."""
    jars = ",".join(map(str, connector))
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": "2g",
        # The default, 15 s, is too short on a machine with other load.
        "spark.python.authenticate.socketTimeout": f"{_WAIT_SECONDS_MAX:.0f}s",
    }
    spark = session("bench", master=f"local[{_CORES}]", **settings)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def make_rows(spark: SparkSession, home: Path, size: int, count: int) -> None:
    """Write ``count`` rows of ``size`` bytes that don't compress well, in one Parquet file for each core."""
    words = [F.hex(F.xxhash64("id", F.lit(word))) for word in range(-(-size // 16))]
    rows = spark.range(0, count, 1, 2).select(F.rpad(F.concat(*words), size, "0").alias("value"))
    rows.write.parquet(str(home / f"rows{size}"))
    assert _sum_of(spark.read.parquet(str(home / f"rows{size}"))) == count * size


def measure(
    spark: SparkSession, system: System, inputs: dict[int, DataFrame], folder: Path, scale: float
) -> Iterator[Line]:
    """The lines of a system in a round."""
    few = next(iter(inputs.values())).limit(_WARM_UP_ROWS).repartition(_CORES)
    system.write(few, "warm-up")
    _sum_of(system.read(spark, "warm-up"))
    copy(spark, system, "warm-up", folder / "warm-up")
    for size, rows in inputs.items():
        name, count = f"rows-{size}", rows.count()
        clock = Clock(count)
        system.write(rows, name)
        yield {"case": f"write {size} B", **clock.figures()}
        clock = Clock(count)
        found = _sum_of(system.read(spark, name))
        yield {"case": f"read {size} B", **clock.figures()}
        assert found == count * size, f"{found} bytes came back, not {count * size}"
        clock = Clock(count)
        copy(spark, system, name, folder / name)
        yield {"case": f"copy {size} B", **clock.figures()}
        found = _sum_of(system.read(spark, f"{name}-copy"))
        assert found == count * size, f"{found} bytes were copied, not {count * size}"
    latencies = latency(spark, system, folder, max(10, int(LATENCY_FILES * min(scale, 1))))
    percentiles = quantiles(latencies, n=100)
    yield {"case": "latency", "p50_seconds": median(latencies), "p99_seconds": percentiles[98], "files": len(latencies)}


def limits(spark: SparkSession, system: System, inputs: dict[int, DataFrame]) -> Iterator[Line]:
    """The lines of a Python data source that does nothing, with the same rows and number of tasks as ``system``."""
    spark.dataSource.register(BareSource)
    next(iter(inputs.values())).limit(_WARM_UP_ROWS).repartition(_CORES).write.format("bare").mode("append").save()
    for size, rows in inputs.items():
        count, tasks = rows.count(), system.read(spark, f"rows-{size}").rdd.getNumPartitions()
        shape = {"rows": count, "partitions": tasks, "rowBytes": size, "batchRows": _BARE_BATCH_BYTES // size}
        # Each worker makes its batch at the first use.
        for is_warm_up in (True, False):
            clock = Clock(count)
            found = _sum_of(spark.read.format("bare").options(**shape).load())
            assert found == count * size, f"{found} bytes came back, not {count * size}"
            if not is_warm_up:
                yield {"system": "limit", "case": f"read {size} B", **clock.figures()}
        clock = Clock(count)
        rows.write.format("bare").mode("append").save()
        yield {"system": "limit", "case": f"write {size} B", **clock.figures()}


def copy(spark: SparkSession, system: System, name: str, checkpoint: Path) -> None:
    """Copy all rows to ``NAME-copy``, each once, by a query that ends."""
    query = system.writer(system.stream(spark, name), f"{name}-copy").trigger(availableNow=True)
    started = query.option("checkpointLocation", str(checkpoint)).start()
    if not started.awaitTermination(int(_WAIT_SECONDS_MAX)):
        started.stop()
        raise RuntimeError(f"the copy of {name} takes too long")


class Clock:
    """Measures the time since its creation, for ``rows`` rows."""

    def __init__(self, rows: int) -> None:
        self._rows, self._began, self._used = rows, time.monotonic(), family_cpu_seconds()

    def figures(self) -> dict[str, float]:
        """Rows a second, and processor seconds of Spark and servers for a million rows."""
        seconds, used = time.monotonic() - self._began, family_cpu_seconds() - self._used
        return {
            "rows": self._rows,
            "rows_per_second": self._rows / seconds,
            "cpu_seconds_per_million_rows": used / self._rows * 1e6,
        }


def _sum_of(rows: DataFrame) -> int:
    return int(rows.agg(F.sum(F.length(F.col("value").cast("binary")))).first()[0])


def latency(spark: SparkSession, system: System, folder: Path, files: int) -> list[float]:
    """Seconds from each file to its row in the second query, without the first few files."""
    source = folder / "input"
    source.mkdir(parents=True)
    arrived: dict[int, int] = {}
    warm_up = 5

    def take(rows: DataFrame, batch: int) -> None:
        found = [
            int(bytes(row.value) if isinstance(row.value, bytearray | bytes) else row.value) for row in rows.collect()
        ]
        now = time.time_ns()
        arrived.update((sent, now) for sent in found)

    first = system.writer(spark.readStream.text(str(source)), "latency")
    first = first.option("checkpointLocation", str(folder / "first"))
    queries = [first.start()]
    try:
        for number in range(files + warm_up):
            if number == 1:
                # The second query starts after the first row: some systems can't read an empty stream.
                _wait(lambda: any(progress.numInputRows for progress in queries[0].recentProgress), queries)
                second = system.stream(spark, "latency").writeStream.foreachBatch(take)
                second = second.option("checkpointLocation", str(folder / "second"))
                queries.append(second.start())
            hidden = source / f".{number}"
            hidden.write_text(f"{time.time_ns()}\n")
            hidden.rename(source / f"{number}.txt")
            time.sleep(_BETWEEN_FILES_SECONDS)
        _wait(lambda: len(arrived) == files + warm_up, queries)
    finally:
        for query in queries:
            query.stop()
    return [(arrived[sent] - sent) / 1e9 for sent in sorted(arrived)[warm_up:]]


def _wait(done: Callable[[], bool], queries: Sequence[StreamingQuery]) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while not done():
        ended = [query for query in queries if not query.isActive]
        if ended or time.monotonic() > deadline:
            raise RuntimeError(f"rows are missing: {ended[0].exception() if ended else 'they take too long'}")
        time.sleep(0.1)
