"""spark-submit entry point: an auditor and replication workers on the executors, until SIGTERM or SIGINT.

spark-submit jobs/autorecovery.py --zookeeper HOST:PORT [--processes N]

Options are those of the table [autorecovery] in the file that spark.executorEnv.BOOKSPARK_CONFIG names; how it goes is told by
`bookspark autorecovery status`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated

import typer

from bookspark.cli.spark import plain_reason
from bookspark.errors import BookKeeperError
from bookspark.spark.bookies.autorecovery_service import AutorecoveryService
from bookspark.spark.session import SPARK_ERRORS, session

_LOOK_SECONDS = 0.5


def main(
    zookeeper: Annotated[str, typer.Option(help="host:port[,host:port…][/chroot] of the cluster")],
    processes: Annotated[int, typer.Option(help="how many, each in a task slot; 0: one per executor", min=0)] = 0,
) -> None:
    """Keep them running."""
    stopped, parent = threading.Event(), os.getppid()
    try:
        spark = session("bookspark autorecovery", zookeeper=zookeeper)
        for number in (signal.SIGTERM, signal.SIGINT):  # after Spark has set a handler of its own
            signal.signal(number, lambda *_: stopped.set())
        service = AutorecoveryService(spark, zookeeper, processes)
        service.start()
        while not stopped.wait(_LOOK_SECONDS):
            if os.getppid() != parent:
                return  # spark-submit was ended instead of this process, and Spark with it: there is nothing left to stop
        service.stop()
        spark.stop()
    except (BookKeeperError, *SPARK_ERRORS) as error:
        sys.exit(f"bookspark autorecovery: {plain_reason(error)}")


if __name__ == "__main__":
    typer.run(main)
