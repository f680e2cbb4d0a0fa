"""One client for each process and cluster, for code that Spark runs in its Python workers.

Law: a worker connects once, and stays connected while Spark reuses it. A forked worker never uses its parent's connections (the
client sees to that). The client has the options of the settings file that the worker's environment variable ``BOOKSPARK_CONFIG``
names. Code that runs in the user's own process makes its own client and closes it.

Spark's daemon collects all garbage of a worker after each of its tasks, if it will use the worker again: a walk over every object
of every module that is loaded, which took 60 ms of a core beside 7 for the task itself. So a worker hands what it has loaded to
``gc.freeze``, and no collection looks at that again.

The session knows the cluster too: its setting ZOOKEEPER_CONF is that of reads and writes that have no option ``zookeeper``.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

ZOOKEEPER_CONF = "spark.bookspark.zookeeper"
"""Spark's setting with the cluster of reads and writes that have no option ``zookeeper``."""
_REUSED = "SPARK_REUSE_WORKER"
"""The environment variable that tells a worker that Spark will use it again."""
_frozen_modules = 0
"""How many modules were loaded when the collector was last spared."""


def client(zookeeper: str) -> BookKeeper:
    """This process's client of the cluster at ``zookeeper``. It is never closed; it ends with the worker.

    Raises MetadataStoreError if ZooKeeper does not answer, ConfigurationError if the settings file is wrong.
    """
    made = kept_client(zookeeper)
    spare_the_collector()
    return made


def spare_the_collector() -> None:
    """In a worker that Spark will use again: freeze all objects, if modules were loaded since the last time, as pyarrow loads
    pandas with a task's first array."""
    global _frozen_modules
    if _REUSED in os.environ and len(sys.modules) > _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


@cache
def kept_client(zookeeper: str) -> BookKeeper:
    """What ``client`` returns, and nothing more."""
    from bookspark.store.client import BookKeeper
    from bookspark.store.decisions.recorder import record_into
    from bookspark.store.settings import of_environment

    options = of_environment("client")
    record_into(str(options.get("record_decisions", "")), "spark")
    return BookKeeper(zookeeper, **options)
