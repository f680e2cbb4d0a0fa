"""Bookspark in Spark: bookies on executors, ``format("bookspark")``, logs, snapshots and audits.

==================  ==================================================================
``session``         a Spark session with what Bookspark needs
``bookies``         bookies and autorecovery on executors
``connector``       ``format("bookspark")``: a sink and a source
``logs``            logs: named, unbounded sequences of rows
``tables``          system tables: the cluster's state as rows
``snapshots``       the system tables as Delta tables
``audit``           queries over a snapshot, and the integrity check
``process_client``  one client for each of Spark's Python workers
``short_jobs``      settings of Spark for jobs that take seconds
==================  ==================================================================

::

    from bookspark.spark import session

    spark = session("orders", master="local[2]", zookeeper="127.0.0.1:2181")
    rows = spark.sql("SELECT 'an order' AS value")
    rows.write.format("bookspark").option("log", "orders").mode("append").save()
    spark.read.format("bookspark").option("log", "orders").load().show()

The name ``session`` is the function. Other names of its module are imported ``from bookspark.spark.session``.
"""

from __future__ import annotations

from bookspark.extras import extra_needed

with extra_needed("bookspark.spark"):
    from bookspark.spark.bookies.bookie_service import BookieService
    from bookspark.spark.session import session

__all__ = ["BookieService", "session"]
