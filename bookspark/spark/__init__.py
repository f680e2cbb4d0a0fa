"""Bookspark in Spark: bookies on executors, ``format("bookspark")``, logs, snapshots and audits.

==================  ======================================================
``session``         a Spark session with Delta and the cluster
``bookies``         bookies and autorecovery on executors
``connector``       ``format("bookspark")``: a sink and a source
``options``         options of ``format("bookspark")``
``where``           predicates of reads, applied in tasks and in plans
``frames``          ``log_frame``: a DataFrame with a log's current rows
``rows``            rows of logs as Spark rows
``offload``         old rows of logs in Delta tables
``tables``          system tables: the cluster's state as rows
``snapshots``       the system tables as Delta tables
``audit``           queries over a snapshot, and the integrity check
``process_client``  a client for each Python worker of Spark
``worker_daemon``   Spark's daemon of these workers
``memory_limit``    workers under ``spark.executor.pyspark.memory``
``idle_closing``    closes idle handles of workers
``short_jobs``      Spark settings for jobs of seconds
==================  ======================================================

::

    from bookspark.spark import log_frame, session

    spark = session("orders", master="local[2]", zookeeper="127.0.0.1:2181")
    rows = spark.sql("SELECT 'an order' AS value")
    rows.write.format("bookspark").option("log", "orders").mode("append").save()
    log_frame(spark, "orders").show()

Spark keeps the plan of a DataFrame, so a DataFrame of a log keeps the log's end of its first action. Call ``log_frame`` for each
query over the newest rows.

The name ``session`` is the function; other names of its module are imported ``from bookspark.spark.session``. The other public
names are loaded at first use: commands and Spark's Python workers need few of them, and a client loads slowly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bookspark.support.extras import extra_needed

if TYPE_CHECKING:
    from bookspark.spark.bookies.bookie_service import BookieService
    from bookspark.spark.frames import log_frame

with extra_needed("bookspark.spark"):
    from bookspark.spark.session import session

__all__ = ["BookieService", "log_frame", "session"]


_HOME = {"BookieService": "bookspark.spark.bookies.bookie_service", "log_frame": "bookspark.spark.frames"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        with extra_needed("bookspark.spark"):
            return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
