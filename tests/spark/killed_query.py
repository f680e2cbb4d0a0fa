"""A driver to be killed: ``python -m tests.spark.killed_query FOLDER ZOOKEEPER LOG MASTER``, from ``FOLDER/input``
into LOG.

It prints the pid of its JVM, then the id of each finished micro-batch, one a line. Once the file ``FOLDER/finish``
exists, it processes the remaining input and ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from bookspark.spark.session import session
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES
from tests.awaiting import time_passes
from tests.spark.faulty_sink import BLOWS, DRIVER, FaultySink

ROOT = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 0.05


def main(folder: Path, zookeeper: str, log: str, master: str) -> None:
    conf = SMALL_TABLES | {
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "640m",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "640m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        f"spark.executorEnv.{BLOWS}": os.environ[BLOWS],
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.25",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    spark = session("killed", master=master, zookeeper=zookeeper, **conf)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(type("BookSparkDataSource", (FaultySink,), {"zookeeper": zookeeper}))
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (Path(os.environ[BLOWS]) / DRIVER).write_text(str(jvm))
    print("jvm", jvm, flush=True)
    query = query_of(spark, folder, log).start()
    told = -1
    while query.isActive and not (folder / "finish").exists():
        progress = query.lastProgress
        if progress is not None and progress.batchId > told:
            told = progress.batchId
            print("batch", told, flush=True)
        time_passes(_LOOK_SECONDS)
    query.processAllAvailable()
    query.stop()
    spark.stop()


def query_of(spark: SparkSession, folder: Path, log: str) -> DataStreamWriter:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "input")).repartition(3)
    writer = lines.writeStream.format("bookspark").option("log", log)
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
