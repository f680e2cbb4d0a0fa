"""spark-submit entry point: write one snapshot of a cluster's system tables to Delta.

spark-submit jobs/snapshot.py --zookeeper HOST:PORT --path DIRECTORY
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from pyspark.errors import PySparkException

from bookspark.cli.spark import plain_reason
from bookspark.protocol.errors import BookKeeperError
from bookspark.spark import snapshots
from bookspark.spark.session import session


def main(
    zookeeper: Annotated[str, typer.Option(help="host:port[,host:port…][/chroot] of the cluster")],
    path: Annotated[str, typer.Option(help="where the Delta tables are, or shall be")],
    password: Annotated[str, typer.Option(help="opens logs and open ledgers that have one")] = "",
) -> None:
    """Write one snapshot."""
    try:
        spark = session("bookspark snapshot", zookeeper=zookeeper)
        snapshot = snapshots.write(spark, zookeeper, path, password)
        print(f"snapshot {snapshot.snapshot_id} is version {snapshot.version} of the tables under {path}")
        spark.stop()
    except (BookKeeperError, PySparkException) as error:
        sys.exit(f"bookspark snapshot: {plain_reason(error)}")


if __name__ == "__main__":
    typer.run(main)
