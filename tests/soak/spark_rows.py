"""Rows of 100 B from a log through a query into another log and back: the same multiset, in Python workers below 512 MB."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from bookspark.local import LocalCluster
from bookspark.spark.session import session
from tests.soak._command import main
from tests.spark.rows_through import rows_through


def run(rounds: int) -> Mapping[str, float]:
    """Copy so many rows."""
    with LocalCluster(bookies=3) as cluster, tempfile.TemporaryDirectory(prefix="bookspark-rows-") as folder:
        spark = session("rows", master="local[2]", zookeeper=cluster.zookeeper)
        try:
            return rows_through(spark, cluster.zookeeper, rounds, Path(folder))
        finally:
            spark.stop()


if __name__ == "__main__":
    main(__doc__, run, 10_000_000)
