"""Makes ``format("bookspark")`` known in every Spark session, without a call that registers it.

Spark imports each top-level module whose name begins with ``pyspark_`` when a session first looks for Python data sources, and
registers the class ``DefaultSource`` of it. Law: importing this module costs next to nothing, as sessions that never use the
format import it too. So it imports nothing of Bookspark before the format is used.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Stands for ``bookspark.spark.connector.data_source.BookSparkDataSource``, and becomes one when Spark makes an instance."""

    def __new__(cls, options: MutableMapping[str, str]) -> DataSource:
        from bookspark.spark.connector.data_source import BookSparkDataSource

        return BookSparkDataSource(options)

    @classmethod
    def name(cls) -> str:
        return "bookspark"
