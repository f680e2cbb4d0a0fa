"""``python -m tests.spark_classes``: an archive of the classes that a short Spark session with Delta loads, for the tests'
JVMs.

With it, a JVM starts a session and writes a first Delta table in about half of the processor time. Law: the archive
changes nothing else. The JVM checks that the archive is of its own version and class path, and continues without it if not
or if there is none. ``scripts/test`` makes it once for an environment.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")
_MADE_WITH = Path(sys.prefix, "setup-done")
_SECONDS_MAX = 600.0


def use() -> None:
    """Let the Spark drivers of this process and its children use the archive, if it exists."""
    if ARCHIVE.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable"


def make() -> None:
    """Make the archive again if the environment is newer. Raises subprocess.TimeoutExpired if the JVM does not end."""
    if ARCHIVE.exists() and (not _MADE_WITH.exists() or _MADE_WITH.stat().st_mtime <= ARCHIVE.stat().st_mtime):
        return
    from pyspark import SparkContext

    from bookspark.spark.session import session
    from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        made = Path(folder, ARCHIVE.name)
        options = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        spark = session("classes", master="local[2]", **SMALL_TABLES, **{"spark.driver.extraJavaOptions": options})
        table = str(Path(folder, "table"))
        for _ in range(2):
            rows = spark.range(10).selectExpr("id", "CAST(id AS STRING) AS text")
            rows.write.format("delta").mode("append").save(table)
        spark.read.format("delta").load(table).createOrReplaceTempView("rows")
        spark.sql("SELECT a.text, COUNT(*) FROM rows a JOIN rows b USING (id) GROUP BY a.text ORDER BY 1").collect()
        stream = (
            spark.readStream.format("delta").load(table).mapInArrow(lambda batches: batches, "id BIGINT, text STRING")
        )
        written = stream.writeStream.format("noop").trigger(availableNow=True)
        written.option("checkpointLocation", str(Path(folder, "checkpoint"))).start().awaitTermination(_SECONDS_MAX)
        # The JVM ends, and writes the archive, once its input is closed.
        jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        jvm.stdin.close()
        jvm.wait(_SECONDS_MAX)
        made.replace(ARCHIVE)


if __name__ == "__main__":
    try:
        make()
    except Exception as error:
        # After any failure, the tests only take longer.
        print(f"Spark's JVMs start without an archive of their classes: {error}")
