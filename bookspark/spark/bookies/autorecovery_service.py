"""Autorecovery on Spark's executors: a process in each task, beside the bookies.

Law: the tasks are plain and independent, not barrier tasks, so Spark runs a lost task again elsewhere; its locks end with its
ZooKeeper session. ZooKeeper elects the auditor among the processes. A job that failed for good is submitted again. A task takes a
slot, or waits for a free slot. It ends with its executor, or when the job is cancelled.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Iterable
from functools import partial
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from bookspark.spark.bookies.slots import slots_of, slots_to_come

log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 10.0
_STOP_SECONDS = 30.0


class AutorecoveryService:
    """Auditors and replication workers, as a job of a Spark application."""

    def __init__(self, spark: SparkSession, zookeeper: str, processes: int = 0, **options: Any) -> None:
        """``spark``: the application's session. ``zookeeper``: the cluster. ``processes``: their number; 0: one for each
        promised executor or, without a promise, each present executor.

        ``options``: fields of AutorecoveryConfig; they win over the executors' settings file (``BOOKSPARK_CONFIG``). Raises
        ConfigurationError if an option is unknown or wrong.
        """
        from bookspark.store.autorecovery.autorecovery_config import autorecovery_config

        # Wrong options raise here, not in each task.
        autorecovery_config(**options)
        self._context = spark.sparkContext
        conf = self._context.getConf()
        promised = slots_to_come(
            self._context.master, conf.get("spark.executor.instances"), conf.get("spark.executor.cores")
        )
        self._processes = processes or (promised or slots_of(self._context)).executors
        self._body = partial(_recover, zookeeper, options)
        self._group = f"autorecovery-{uuid.uuid4().hex}"
        self._stopping = threading.Event()
        self._thread = InheritableThread(target=self._keep_submitted, name="autorecovery service", daemon=True)

    def start(self) -> None:
        """Submit the job and return at once. Its tasks wait for slots."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel the job and wait for its end, 30 s at most."""
        self._stopping.set()
        self._context.cancelJobGroup(self._group)
        self._thread.join(_STOP_SECONDS)

    def _keep_submitted(self) -> None:
        self._context.setJobGroup(self._group, "autorecovery", interruptOnCancel=True)
        while not self._stopping.is_set():
            try:
                self._context.parallelize(range(self._processes), self._processes).foreachPartition(self._body)
            except Exception as error:
                if not self._stopping.is_set():
                    log.warning("the autorecovery job is submitted again: %s", str(error).partition("\n")[0])
            self._stopping.wait(_RETRY_SECONDS)


def _recover(zookeeper: str, options: dict[str, Any], _rows: Iterable[Any]) -> None:
    """The body of a task: works until Spark ends this process or the parent process has ended."""
    from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
    from bookspark.store.autorecovery.process import Autorecovery
    from bookspark.store.client import BookKeeper
    from bookspark.store.settings import of_environment

    config = autorecovery_config(**of_environment("autorecovery") | options)
    parent, nobody_sets_it = os.getppid(), threading.Event()
    with Autorecovery(BookKeeper(zookeeper, **of_environment("client")), config):
        while os.getppid() == parent:
            nobody_sets_it.wait(_LOOK_SECONDS)
