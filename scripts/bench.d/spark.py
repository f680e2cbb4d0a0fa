"""``scripts/bench spark``: rows through Spark into Bookspark, Delta and Kafka and back, in turns, and the table of it.

Law: never two systems at once, but for the Spark that drives each. A figure is the median over the rounds; each round
warms its system up with few rows first. Rows come from a Parquet file that was read once before. All lines are kept in
``spark-results.jsonl``.

Cases: rows/s of a batch write and of a batch read (their bytes summed up) at 100 B and 1 KiB, with the processor time that Spark
and servers took together, which tells more than rows/s where the machine has other work; latency from the moment when a row's
file is there to when a second query has it, with a first query in between, both with a trigger of one second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from kafka import kafka_jars
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from services import family_cpu_seconds
from spark_systems import SYSTEMS, System

from bookspark.spark.session import session

ROOT = Path(__file__).resolve().parents[2]
BYTES = {100: 100_000_000, 1024: 400_000_000}
"""Row size → bytes of a round."""
QUICK = 0.01
LATENCY_FILES = 100
_BETWEEN_FILES_SECONDS = 0.35
_WAIT_SECONDS_MAX = 600.0
_WARM_UP_ROWS = 1000
_CORES = 2

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench spark", description="Bookspark beside Delta and Kafka, in Spark."
    )
    parser.add_argument("--quick", action="store_true", help="one round, few rows: to see that everything works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the usual number of rows")
    parser.add_argument("--system", action="append", choices=list(SYSTEMS), help="only these; may be repeated")
    parser.add_argument("--directory", type=Path, help="a folder on the disk to be measured")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and so the servers are, too
    rounds, scale = (1, QUICK) if arguments.quick else (arguments.rounds, arguments.scale)
    cache = ROOT / ".cache" / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    broker_jars, connector = kafka_jars(cache)
    lines: list[Line] = []
    with (
        open(cache / "spark-results.jsonl", "w") as results,
        tempfile.TemporaryDirectory(prefix="bench-spark-", dir=arguments.directory or cache) as directory,
    ):
        home = Path(directory)
        with spark_session(connector) as spark:
            for size, total in BYTES.items():
                make_rows(spark, home, size, int(total * scale) // size)
        for number in range(rounds):
            for name in arguments.system or SYSTEMS:
                # A Spark of its own, so that no Python worker has a client of a system that is gone; the JVM stays, and is warm.
                with SYSTEMS[name](home, broker_jars) as system, spark_session(connector) as spark:
                    inputs = {size: spark.read.parquet(str(home / f"rows{size}")) for size in BYTES}
                    for line in measure(spark, system, inputs, home / f"{name}{number}", scale):
                        line |= {"system": name, "round": number, "load": os.getloadavg()[0]}
                        print(json.dumps(line), flush=True)
                        print(json.dumps(line), file=results, flush=True)
                        lines.append(line)
    print(table(lines), end="")


@contextmanager
def spark_session(connector: Sequence[Path]) -> Iterator[SparkSession]:
    jars = ",".join(map(str, connector))
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": "2g",
        "spark.python.authenticate.socketTimeout": f"{_WAIT_SECONDS_MAX:.0f}s",  # 15 s are too short for a machine that is full
    }
    spark = session("bench", master=f"local[{_CORES}]", **settings)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def make_rows(spark: SparkSession, home: Path, size: int, count: int) -> None:
    """``count`` rows of ``size`` bytes that don't compress well, in a Parquet file a core."""
    words = [F.hex(F.xxhash64("id", F.lit(word))) for word in range(-(-size // 16))]
    rows = spark.range(0, count, 1, 2).select(F.rpad(F.concat(*words), size, "0").alias("value"))
    rows.write.parquet(str(home / f"rows{size}"))
    assert _sum_of(spark.read.parquet(str(home / f"rows{size}"))) == count * size


def measure(
    spark: SparkSession, system: System, inputs: dict[int, DataFrame], folder: Path, scale: float
) -> Iterator[Line]:
    few = next(iter(inputs.values())).limit(_WARM_UP_ROWS).repartition(_CORES)
    system.write(few, "warm-up")
    _sum_of(system.read(spark, "warm-up"))
    for size, rows in inputs.items():
        name, count = f"rows-{size}", rows.count()
        clock = Clock(count)
        system.write(rows, name)
        yield {"case": f"write {size} B", **clock.figures()}
        clock = Clock(count)
        found = _sum_of(system.read(spark, name))
        yield {"case": f"read {size} B", **clock.figures()}
        assert found == count * size, f"{found} bytes came back, not {count * size}"
    latencies = latency(spark, system, folder, max(10, int(LATENCY_FILES * min(scale, 1))))
    percentiles = quantiles(latencies, n=100)
    yield {"case": "latency", "p50_seconds": median(latencies), "p99_seconds": percentiles[98], "files": len(latencies)}


class Clock:
    """What ``rows`` rows took since it was made."""

    def __init__(self, rows: int) -> None:
        self._rows, self._began, self._used = rows, time.monotonic(), family_cpu_seconds()

    def figures(self) -> dict[str, float]:
        seconds, used = time.monotonic() - self._began, family_cpu_seconds() - self._used
        return {"rows_per_second": self._rows / seconds, "cpu_seconds_per_million_rows": used / self._rows * 1e6}


def _sum_of(rows: DataFrame) -> int:
    return int(rows.agg(F.sum(F.length(F.col("value").cast("binary")))).first()[0])  # type: ignore[index]


def latency(spark: SparkSession, system: System, folder: Path, files: int) -> list[float]:
    """Seconds from each file to its row in the second query, the first few files left out."""
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
    first = first.option("checkpointLocation", str(folder / "first")).trigger(processingTime="1 second")
    queries = [first.start()]
    try:
        for number in range(files + warm_up):
            if number == 1:
                # There is something to be read now, also where reading needs it to be.
                _wait(lambda: any(progress.numInputRows for progress in queries[0].recentProgress), queries)
                second = system.stream(spark, "latency").writeStream.foreachBatch(take)
                second = second.option("checkpointLocation", str(folder / "second")).trigger(processingTime="1 second")
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


def table(lines: list[Line]) -> str:
    """A Markdown table: each figure of each system, and how many times better Bookspark is than each of the others."""
    names = list(dict.fromkeys(line["system"] for line in lines))
    others = [name for name in names if name != "bookspark"] if "bookspark" in names else []
    heads = ["case", *names, *(f"against {name}" for name in others)]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    figures = [
        (case, figure)
        for case in dict.fromkeys(line["case"] for line in lines)
        for figure in ("rows_per_second", "cpu_seconds_per_million_rows", "p50_seconds", "p99_seconds")
        if any(line["case"] == case and figure in line for line in lines)
    ]
    for case, figure in figures:
        found = {
            name: median(line[figure] for line in lines if (line["system"], line["case"]) == (name, case))
            for name in names
        }
        cells = [
            f"{case}, {figure.replace('_', ' ')}",
            *(f"{value:,.0f}" if value > 100 else f"{value:.2f}" for value in found.values()),
        ]
        for name in others:
            theirs, ours = found[name], found["bookspark"]
            cells.append(f"{ours / theirs if figure == 'rows_per_second' else theirs / ours:.2f}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
