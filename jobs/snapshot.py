"""spark-submit entry point: write snapshots of a cluster's system tables to Delta, once or every so many minutes.

spark-submit jobs/snapshot.py --zookeeper HOST:PORT --path DIRECTORY [--every MINUTES] [--keep N] [--checksums]
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Annotated

import typer

from bookspark.cli.spark import plain_reason
from bookspark.errors import BookKeeperError
from bookspark.spark import snapshots
from bookspark.spark.session import SPARK_ERRORS, delta_session
from bookspark.spark.snapshots.retention import remove_files, write_every

_LOOK_SECONDS = 0.5


def main(
    zookeeper: Annotated[str, typer.Option(help="host:port[,host:port…][/chroot] of the cluster")],
    path: Annotated[str, typer.Option(help="where the Delta tables are, or shall be")],
    password: Annotated[str, typer.Option(help="opens logs and open ledgers that have one")] = "",
    every: Annotated[float | None, typer.Option(help="go on, with one snapshot every so many minutes", min=0.0)] = None,
    keep: Annotated[int | None, typer.Option(help="give up all but the newest so many", min=1)] = None,
    checksums: Annotated[bool, typer.Option(help="read every copy of every entry, to find those that differ")] = False,
) -> None:
    """Write one snapshot, or one after the other until SIGTERM or SIGINT."""
    stopped, parent = threading.Event(), os.getppid()

    def ended(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not stopped.wait(min(_LOOK_SECONDS, max(0.0, until - time.monotonic()))) and time.monotonic() < until:
            if os.getppid() != parent:
                sys.exit("bookspark snapshot: spark-submit was ended, and Spark with it")
        return stopped.is_set()

    try:
        spark = delta_session("bookspark snapshot", zookeeper=zookeeper)

        def take() -> None:
            snapshot = snapshots.write(spark, zookeeper, path, password, checksums=checksums, keep=keep)
            if keep is not None:
                remove_files(spark, path)
            line = f"snapshot {snapshot.snapshot_id} is version {snapshot.version} of the tables under {path}"
            print(line, flush=True)

        if every is None:
            take()
        else:
            for number in (signal.SIGTERM, signal.SIGINT):  # after Spark has set a handler of its own
                signal.signal(number, lambda *_: stopped.set())
            write_every(60 * every, take, ended)
        spark.stop()
    except (BookKeeperError, *SPARK_ERRORS) as error:
        sys.exit(f"bookspark snapshot: {plain_reason(error)}")


if __name__ == "__main__":
    typer.run(main)
