"""Bookspark in Spark: bookies on executors, ``format("bookspark")``, logs, snapshots and audits.

==================  ==================================================================
``session``         a Spark session with what Bookspark needs
``bookies``         bookies and autorecovery on executors
``connector``       ``format("bookspark")``: a sink and a source
``options``         the options of ``format("bookspark")``
``where``           the predicates of reads, applied in tasks and in plans
``frames``          ``log_frame``: a DataFrame with the rows that a log has now
``rows``            rows of logs as Spark has them
``offload``         old rows of logs in Delta tables
``tables``          system tables: the cluster's state as rows
``snapshots``       the system tables as Delta tables
``audit``           queries over a snapshot, and the integrity check
``process_client``  one client for each of Spark's Python workers
``worker_daemon``   Spark's daemon of these workers, without a traceback for each that has done enough
``idle_closing``    closes what a worker keeps open and does not use
``short_jobs``      settings of Spark for jobs that take seconds
==================  ==================================================================

::

    from bookspark.spark import log_frame, session

    spark = session("orders", master="local[2]", zookeeper="127.0.0.1:2181")
    rows = spark.sql("SELECT 'an order' AS value")
    rows.write.format("bookspark").option("log", "orders").mode("append").save()
    log_frame(spark, "orders").show()

A DataFrame of a log keeps the log's end of its first action, because Spark keeps its plan; so does a view, and the static side of
a join with a stream. ``log_frame(spark, log)`` loads anew: call it for each query that is to see the newest rows.

The name ``session`` is the function. Other names of its module are imported ``from bookspark.spark.session``. The names beside it
are loaded when they are first used. Commands import this package for other things, and a client takes longer to load than they
run. A query has several Python processes of Spark that read or write, and none of them needs what runs bookies.
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
"""Public name → the module that defines it."""


def __getattr__(name: str) -> Any:
    if name in _HOME:
        with extra_needed("bookspark.spark"):
            return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
