"""A client for each process and cluster, for code in Spark's Python workers.

Law: a worker connects once, and stays connected while Spark reuses it. A forked worker never uses its parent's connections (the
client ensures that). The client has the options of the worker's settings file (``BOOKSPARK_CONFIG``). Code in the user's own
process makes its own client and closes it.

Spark's daemon runs a full garbage collection after each task of a reused worker: 60 ms of a core over all loaded modules, beside
7 ms for the task. So a worker passes its loaded objects to ``gc.freeze``, and later collections skip them.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from bookspark.spark.memory_limit import named_limit, spare_addresses

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

ZOOKEEPER_CONF = "spark.bookspark.zookeeper"
"""The cluster of reads and writes without option ``zookeeper``."""
_REUSED = "SPARK_REUSE_WORKER"
"""Environment variable that marks a worker that Spark will reuse."""
_frozen_modules = 0


def client(zookeeper: str) -> BookKeeper:
    """This process's client of the cluster at ``zookeeper``. It is never closed; it ends with the worker.

    Raises MetadataStoreError if ZooKeeper does not answer, ConfigurationError if the settings file is wrong, WorkerMemoryError.
    """
    made = kept_client(zookeeper)
    spare_the_collector()
    return made


def spare_the_collector() -> None:
    """Freeze all objects of a worker that Spark will reuse, if modules were loaded since the last call: pyarrow loads pandas with
    a task's first array."""
    global _frozen_modules
    if _REUSED in os.environ and len(sys.modules) > _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


@cache
@named_limit()
def kept_client(zookeeper: str) -> BookKeeper:
    """The client, without the freeze."""
    spare_addresses()
    from bookspark.store.client import BookKeeper
    from bookspark.store.decisions.recorder import record_into
    from bookspark.store.settings import of_environment

    options = of_environment("client")
    record_into(str(options.get("record_decisions", "")), "spark")
    return BookKeeper(zookeeper, **options)
