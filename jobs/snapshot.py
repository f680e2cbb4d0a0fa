"""Write snapshots of a cluster's system tables to Delta, once or every few minutes.

spark-submit $(bookspark job snapshot) --zookeeper HOST:PORT --path DIRECTORY [--every MINUTES] [--keep N] [--checksums]
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Annotated

import typer

from bookspark.errors import BookKeeperError
from bookspark.spark import snapshots
from bookspark.spark.session import delta_session
from bookspark.spark.short_jobs import run_job
from bookspark.spark.snapshots.retention import remove_files, write_every
from bookspark.support.password_option import Password

_LOOK_SECONDS = 0.5


def main(
    zookeeper: Annotated[str, typer.Option(help="The cluster: host:port[,host:port…][/chroot].")],
    path: Annotated[str, typer.Option(help="Folder of the Delta tables, made if missing.")],
    password: Password = "",
    every: Annotated[
        float | None,
        typer.Option(help="Interval of further snapshots, in minutes. Default: a single snapshot.", min=0.0),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(help="Keep this many newest snapshots. Default: all.", min=1),
    ] = None,
    checksums: Annotated[bool, typer.Option(help="Read every copy, to find copies that differ.")] = False,
) -> None:
    """Write a snapshot, or with --every a sequence until SIGTERM or SIGINT."""
    stopped, parent = threading.Event(), os.getppid()

    def ended(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not stopped.wait(min(_LOOK_SECONDS, max(0.0, until - time.monotonic()))) and time.monotonic() < until:
            if os.getppid() != parent:
                raise BookKeeperError("spark-submit was ended, and Spark with it")
        return stopped.is_set()

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
        # After the start of Spark, which sets handlers of its own.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        write_every(60 * every, take, ended)
    spark.stop()


if __name__ == "__main__":
    run_job("snapshot", main)
