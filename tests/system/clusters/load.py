"""A query that writes a log, and another application that reads it: ``python load.py write|read FOLDER``.

Both run until SIGTERM. A query that fails is started again from its Spark checkpoint, and its downtime is printed. The rows of
the source are 0, 1, 2, … without an end, so a lost or doubled row is detected. After each batch ``write: rows N`` prints the
number of rows that Spark reports as written, and ``read: rows N`` the number of the batch.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from bookspark.spark import session

LOG = "numbers"
ROWS_PER_SECOND = 20


def main(what: str, folder: Path, zookeeper: str) -> None:
    ended = threading.Event()
    spark = session(f"cluster test: {what}", master="local[2]", zookeeper=zookeeper)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    batch = -1
    down_since = 0.0
    while not ended.is_set():
        try:
            query = write(spark, folder) if what == "write" else read(spark, folder)
            while not ended.wait(0.5):
                if query.exception() is not None or not query.isActive:
                    raise RuntimeError(str(query.exception()))
                progress = query.lastProgress
                if progress and progress["numInputRows"] and progress["batchId"] != batch:
                    batch = progress["batchId"]
                    if down_since:
                        print(f"{what}: resumed after {time.monotonic() - down_since:.1f} s", flush=True)
                        down_since = 0.0
                    # The source's offsets are seconds.
                    end = int(progress["sources"][0]["endOffset"]) * ROWS_PER_SECOND if what == "write" else batch
                    print(f"{what}: rows {end}", flush=True)
            query.stop()
        except Exception as error:
            down_since = down_since or time.monotonic()
            print(f"{what}: failed: {' '.join(str(error).split())[:300]}", flush=True)
            ended.wait(2.0)
    spark.stop()


def write(spark: SparkSession, folder: Path) -> StreamingQuery:
    rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).option("numPartitions", 1).load()
    return (
        rows.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("bookspark")
        .option("log", LOG)
        .option("checkpointLocation", str(folder / "write"))
        .trigger(processingTime="1 second")
        .start()
    )


def read(spark: SparkSession, folder: Path) -> StreamingQuery:
    def keep(batch: DataFrame, number: int) -> None:
        numbers = [bytes(row.value).decode() for row in batch.select("value").collect()]
        place = folder / "rows" / str(number)
        place.parent.mkdir(exist_ok=True)
        place.with_suffix(".new").write_text("\n".join(numbers))
        place.with_suffix(".new").replace(place)

    rows = spark.readStream.format("bookspark").option("log", LOG).load()
    return (
        rows.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "read"))
        .trigger(processingTime="1 second")
        .start()
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
