"""Autorecovery on Spark's executors: one process of it per task, beside the bookies.

Law: the tasks are plain long ones, not barrier tasks: none depends on another, so Spark runs a lost one again elsewhere, and all
that is lost with it are locks, which end with its session. Which of them is the auditor is ZooKeeper's to say. A job that failed
for good is submitted again. A task takes a slot, and waits if there is none; it ends when the job is cancelled, and with its
executor.
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
    """``processes``: how many; 0: one per executor. ``options``: those of AutorecoveryConfig, above the settings file's."""

    def __init__(self, spark: SparkSession, zookeeper: str, processes: int = 0, **options: Any) -> None:
        """Raises ConfigurationError."""
        from bookspark.autorecovery.autorecovery_config import autorecovery_config

        autorecovery_config(**options)  # here, and not in each task
        self._context = spark.sparkContext
        self._processes = processes or _executors(self._context)
        self._body = partial(_recover, zookeeper, options)
        self._group = f"autorecovery-{uuid.uuid4().hex}"
        self._stopping = threading.Event()
        self._thread = InheritableThread(target=self._keep_submitted, name="autorecovery service", daemon=True)

    def start(self) -> None:
        """Submit the job; its tasks work once they have a slot."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel it."""
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


def _executors(context: Any) -> int:
    """How many there are, or, as they may still be starting, are to come."""
    conf = context.getConf()
    promised = slots_to_come(context.master, conf.get("spark.executor.instances"), conf.get("spark.executor.cores"))
    return (promised or slots_of(context)).executors


def _recover(zookeeper: str, options: dict[str, Any], _rows: Iterable[Any]) -> None:
    """The body of a task: works until Spark ends the process, or the process that this one belongs to has ended."""
    from bookspark.autorecovery.autorecovery_config import autorecovery_config
    from bookspark.autorecovery.process import Autorecovery
    from bookspark.client import BookKeeper
    from bookspark.daemon.settings import of_environment

    config = autorecovery_config(**of_environment("autorecovery") | options)
    parent, nobody_sets_it = os.getppid(), threading.Event()
    with Autorecovery(BookKeeper(zookeeper, **of_environment("client")), config):
        while os.getppid() == parent:
            nobody_sets_it.wait(_LOOK_SECONDS)
