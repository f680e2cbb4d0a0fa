"""Makes ``format("bookspark")`` known in every Spark session without a call to register it.

At the first search for Python data sources, a session imports each top-level module named ``pyspark_*`` and registers its class
``DefaultSource``.

Law: this import costs next to nothing, because sessions that never use the format import it too. So nothing of Bookspark is
imported before the format is used, but in Spark's workers the few lines that let them end silently.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

if "SPARK_REUSE_WORKER" in os.environ:
    from bookspark.spark.worker_daemon import end_silently

    end_silently()


class DefaultSource(DataSource):
    """Stands for ``bookspark.spark.connector.data_source.BookSparkDataSource``: its constructor returns an instance of that."""

    def __new__(cls, options: MutableMapping[str, str]) -> DataSource:
        from bookspark.spark.connector.data_source import BookSparkDataSource

        return BookSparkDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "bookspark"
