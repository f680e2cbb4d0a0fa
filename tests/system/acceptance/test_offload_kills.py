"""An offload that is killed with its Spark; ``tests/spark/test_offload.py`` ends one at each step."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookspark.local import LocalCluster
from bookspark.spark.connector.data_source import register
from bookspark.spark.process_client import client, kept_client
from tests.spark.killed_offload import WRITTEN
from tests.spark.test_offload import ROOT, Log, numbers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_next_offload_completes_an_offload_killed_after_writing_its_rows(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    register(spark, cluster.zookeeper)
    with cluster.bookkeeper() as bookkeeper:
        log = Log(spark, cluster, bookkeeper, tmp_path)
        log.write()
        command = [sys.executable, "-m", "tests.spark.killed_offload", log.zookeeper, log.name, log.table, WRITTEN]
        killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert log.read() == numbers(100)
        done = log.offload(delete_after_seconds=0.0)
        assert (done.rows, done.position, len(done.deleted)) == (100, 100, 2)
        assert log.in_table() == log.read() == numbers(100)
    client(cluster.zookeeper).close()
    kept_client.cache_clear()
