"""The format in a session without any preparation: Spark discovers it, on the driver and in every worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES

ROOT = Path(__file__).resolve().parents[3]

APPLICATION = """
import sys
from pyspark.sql import SparkSession

folder, zookeeper, log, copy = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
assert not any(name.split(".")[0] == "bookspark" for name in sys.modules), "the application did not use it itself"
spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("bookspark").option("log", log).mode("append").save()
stream = spark.readStream.format("bookspark").option("log", log).load().select("value")
writer = stream.writeStream.format("bookspark").option("log", copy).option("checkpointLocation", folder + "/checkpoint")
assert writer.trigger(availableNow=True).start().awaitTermination(1200)
spark.sql(f"CREATE TEMPORARY VIEW rows USING bookspark OPTIONS (log '{copy}', zookeeper '{zookeeper}')")
print("rows:", sorted(int(row.value) for row in spark.sql("SELECT CAST(value AS STRING) AS value FROM rows").collect()))
"""


def test_session_that_does_not_use_the_format_imports_no_bookspark_module() -> None:
    """Spark imports the module when it searches for data sources."""
    code = "import sys, pyspark_bookspark; assert 'bookspark' not in sys.modules; print(pyspark_bookspark.DefaultSource.name())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stdout == "bookspark\n", done.stderr


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_plain_session_reads_and_writes_the_format(tmp_path: Path, cluster: LocalCluster) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    conf = {
        "spark.master": "local-cluster[1,2,640]",
        **SMALL_TABLES,
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.executor.memory": "640m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    given = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "BOOKSPARK_ZOOKEEPER": cluster.zookeeper,
    }
    logs = [f"{name}-{tmp_path.name}" for name in ("rows", "copy")]
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), *given, tmp_path / "application.py", tmp_path, cluster.zookeeper, *logs],
        capture_output=True, text=True, timeout=1500, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"rows: {list(range(10))}" in done.stdout.splitlines()
