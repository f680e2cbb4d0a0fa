"""One client for each process and cluster, for code that Spark runs in its Python workers.

Law: a worker connects once, and stays connected while Spark reuses it. A forked worker never uses its parent's connections (the
client sees to that). The client has the options of the settings file that the worker's environment variable ``BOOKSPARK_CONFIG``
names. Code that runs in the user's own process makes its own client and closes it.

The session knows the cluster too: its setting ZOOKEEPER_CONF is that of reads and writes that have no option ``zookeeper``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookspark.client import BookKeeper

ZOOKEEPER_CONF = "spark.bookspark.zookeeper"
"""Spark's setting with the cluster of reads and writes that have no option ``zookeeper``."""


@cache
def client(zookeeper: str) -> BookKeeper:
    """This process's client of the cluster at ``zookeeper``. It is never closed; it ends with the worker.

    Raises MetadataStoreError if ZooKeeper does not answer, ConfigurationError if the settings file is wrong.
    """
    from bookspark.client import BookKeeper
    from bookspark.daemon.settings import of_environment
    from bookspark.decisions.recorder import record_into

    options = of_environment("client")
    record_into(str(options.get("record_decisions", "")), "spark")
    return BookKeeper(zookeeper, **options)
