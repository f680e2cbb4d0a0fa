"""Bookspark in Spark: bookies on executors, ``format("bookspark")``, logs, snapshots and audits.

==================  =============================================================================
``session``         a Spark session with Delta and the cluster of ``format("bookspark")``
``bookies``         bookies and autorecovery on executors
``connector``       ``format("bookspark")``: a sink and a source
``options``         the options of ``format("bookspark")``
``where``           the predicates of reads, applied in tasks and in plans
``frames``          ``log_frame``: a DataFrame with the current rows of a log
``rows``            rows of logs as Spark rows
``offload``         old rows of logs in Delta tables
``tables``          system tables: the cluster's state as rows
``snapshots``       the system tables as Delta tables
``audit``           queries over a snapshot, and the integrity check
``process_client``  one client for each Python worker of Spark
``worker_daemon``   Spark's daemon of these workers, quiet about workers that hang up
``idle_closing``    closes handles that a worker keeps open and no longer uses
``short_jobs``      Spark settings for jobs of seconds
==================  =============================================================================

::

    from bookspark.spark import log_frame, session

    spark = session("orders", master="local[2]", zookeeper="127.0.0.1:2181")
    rows = spark.sql("SELECT 'an order' AS value")
    rows.write.format("bookspark").option("log", "orders").mode("append").save()
    log_frame(spark, "orders").show()

Spark keeps the plan of a DataFrame. So a DataFrame of a log keeps the log's end of its first action; so does a view, and the
static side of a join with a stream. Call ``log_frame(spark, log)`` for each query over the newest rows.

The name ``session`` is the function. Other names of its module are imported ``from bookspark.spark.session``. The other public
names are loaded at first use, because a client takes longer to load than some commands run, and Spark's Python workers need no
code of bookies.
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
