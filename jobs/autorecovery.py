"""Run an auditor and replication workers on the executors until SIGTERM or SIGINT.

    spark-submit $(bookspark job autorecovery) --zookeeper HOST:PORT [--processes N]

Options come from the table ``[autorecovery]`` of the file in ``spark.executorEnv.BOOKSPARK_CONFIG``. ``bookspark autorecovery
status`` shows the progress.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Annotated

import typer

from bookspark.spark.bookies.autorecovery_service import AutorecoveryService
from bookspark.spark.session import session
from bookspark.spark.short_jobs import run_job

_LOOK_SECONDS = 0.5


def main(
    zookeeper: Annotated[str, typer.Option(help="The cluster: host:port[,host:port…][/chroot].")],
    processes: Annotated[
        int, typer.Option(help="Processes, each in a task slot. 0: one for each executor.", min=0)
    ] = 0,
) -> None:
    """Run an auditor and replication workers on the executors until SIGTERM or SIGINT."""
    stopped, parent = threading.Event(), os.getppid()
    spark = session("bookspark autorecovery", zookeeper=zookeeper)
    # After the start of Spark, which sets handlers of its own.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    service = AutorecoveryService(spark, zookeeper, processes)
    service.start()
    while not stopped.wait(_LOOK_SECONDS):
        if os.getppid() != parent:
            # spark-submit was ended instead of this process. Spark ended with it, so nothing is left to stop.
            return
    service.stop()
    spark.stop()


if __name__ == "__main__":
    run_job("autorecovery", main)
