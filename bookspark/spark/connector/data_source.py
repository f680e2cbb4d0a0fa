"""``format("bookspark")`` for Spark: a sink and a source, for streams and batches.

    df.writeStream.format("bookspark").option("log", "orders").option("checkpointLocation", …).start()
    df.write.format("bookspark").option("log", "orders").mode("append").save()
    spark.readStream.format("bookspark").option("log", "orders").load()
    spark.read.format("bookspark").option("log", "orders").load()         # value (or its columns), position, ledger_id, entry_id
    spark.read.format("bookspark").option("logPattern", "orders-.*").load()   # the same, and log
    spark.read.format("bookspark").option("ledger", 42).load()            # ledger_id, entry_id, …, payload
    spark.read.format("bookspark").option("table", "fragments").load()    # system tables
    CREATE TEMPORARY VIEW orders USING bookspark OPTIONS (log 'orders')   -- in SQL

Spark finds the format by itself where Bookspark is installed (``pyspark_bookspark``). The cluster is the option ``zookeeper``,
else the one that the session was made with (``register``), else the one that the environment variable ``BOOKSPARK_ZOOKEEPER`` of
the driver names.

Law: the driver's side checks everything that can be checked before the first task runs; see ``spark.options``, ``sink`` and
``source``.

A DataFrame keeps the log's end of its first action, because Spark keeps its plan; so does a view, and the static side of a join
with a stream. ``load()`` again, or ``bookspark.spark.log_frame``, sees the rows that came since.

A batch write is all or nothing. A batch write that runs again writes its rows again, also inside ``foreachBatch``, where Spark
replays a micro-batch whose end it did not see. ``writeStream.format("bookspark")`` writes each row once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.types import StructType

from bookspark.errors import ConfigurationError
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.spark.connector.several_logs import LogsReader, LogsStreamReader, schema_of_logs
from bookspark.spark.connector.sink import LogBatchWriter, LogStreamWriter, prepare
from bookspark.spark.connector.source import EntryReader, EntryStreamReader, TableReader, schema_of
from bookspark.spark.idle_closing import closed_if_it_fails
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.process_client import ZOOKEEPER_CONF

# -- Writes from other Python threads: the thread gets the DataFrame's session before Spark looks for the format.
#
# For a write, Spark 4.2 looks a Python data source up in the session that is active in the calling thread, and a thread that
# Python started has none: a write failed with "bookspark.DefaultSource" (class not found). Reads and SQL activate their session
# themselves, and so does ``createDataFrame``. The same is done here before ``save``, ``start`` and ``toTable``, whatever the
# format is.


_done = False


def activate_before_writes() -> None:
    """Make writes of this process activate their session first. Later calls do nothing."""
    global _done
    if not _done:
        _done = True
        for kind, name in ((DataFrameWriter, "save"), (DataStreamWriter, "start"), (DataStreamWriter, "toTable")):
            setattr(kind, name, _activating(getattr(kind, name)))


def _activating(write: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(write)
    def activated(writer: Any, *arguments: Any, **options: Any) -> Any:
        spark = writer._spark
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        return write(writer, *arguments, **options)

    return activated


# --


ZOOKEEPER_VARIABLE = "BOOKSPARK_ZOOKEEPER"
"""The environment variable that names the cluster, as for the command ``bookspark``."""
_REGISTRY_LOGGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"


class BookSparkDataSource(DataSource):
    """The format. Spark makes a new instance for each plan, in Python workers beside the driver's JVM."""

    zookeeper: ClassVar[str | None] = None
    """The session's cluster. A Python data source can't see its session, so ``register`` puts the address into a subclass."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "bookspark"

    def schema(self) -> StructType:
        """The columns of a read that has no schema of its own. Raises what ``schema_of`` and
        ``schema_of_logs`` list."""
        return _schema(SourceOptions.parse(self.options, self._cluster()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``. Raises ConfigurationError if an option or a column can't be read."""
        options, known = self._source()
        options = options.for_batch()
        if options.table is not None:
            _check_names(schema, known)
            return TableReader(options)
        reader = LogsReader if options.several else EntryReader
        return reader(options, known, _chosen(schema, known))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``. Raises ConfigurationError if an option or a column can't be read as a stream."""
        options, known = self._source()
        reader = LogsStreamReader if options.several else EntryStreamReader
        return reader(options.for_stream(), known, _chosen(schema, known))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``. Creates the log if there is none. Raises ConfigurationError, and what ``prepare`` lists."""
        return LogBatchWriter(self._sink(schema, overwrite, SinkOptions.for_batch)[0])

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``. Creates the log if there is none. Raises ConfigurationError, and what ``prepare`` lists."""
        return LogStreamWriter(*self._sink(schema, overwrite, SinkOptions.for_stream))

    @closed_if_it_fails()
    def _source(self) -> tuple[SourceOptions, StructType]:
        """What to read, and all columns that it has."""
        options = SourceOptions.parse(self.options, self._cluster())
        return options, _schema(options)

    @closed_if_it_fails()
    def _sink(
        self, schema: StructType, overwrite: bool, checked: Callable[[SinkOptions], SinkOptions]
    ) -> tuple[SinkOptions, LogRecord]:
        options = checked(SinkOptions.parse(self.options, self._cluster()))
        if overwrite:
            raise ConfigurationError(
                f"log {options.log.name!r} can only be appended to: use mode 'append' (streams: outputMode 'append')"
            )
        return options, prepare(options, schema)

    def _cluster(self) -> str | None:
        """The cluster of reads and writes that have no option ``zookeeper``."""
        return self.zookeeper or os.environ.get(ZOOKEEPER_VARIABLE)


def _schema(options: SourceOptions) -> StructType:
    return schema_of_logs(options) if options.several else schema_of(options)


def _chosen(schema: StructType, known: StructType) -> list[str]:
    """The names of the columns to read: all, or fewer if the user gave a schema."""
    types = {field.name: field.dataType for field in known}
    for field in schema:
        if types.get(field.name) != field.dataType:
            raise ConfigurationError(
                f"there is no column {field.name!r} of type {field.dataType.simpleString()}; the columns are "
                f"{known.simpleString()}: leave the schema out, or name some of them"
            )
    return list(schema.names)


def _check_names(schema: StructType, known: StructType) -> None:
    if schema.names != known.names:
        raise ConfigurationError(f"the columns are {known.names}, not {schema.names}; leave the schema out and select")


def register(spark: SparkSession, zookeeper: str) -> None:
    """Make ``zookeeper`` (``host:port[,host:port…][/chroot]``) the cluster of reads and writes in ``spark`` that have no such
    option, and let other Python threads write too.

    It replaces the class that Spark found by itself. Spark then starts workers with the application's Python
    (``PYSPARK_PYTHON``); a class that it found by itself runs with the driver's Python on executors too (seen in 4.2).
    """
    # Spark would warn that a data source was replaced, which is what this is for.
    log_errors_only(spark, _REGISTRY_LOGGER)
    activate_before_writes()
    spark.conf.set(ZOOKEEPER_CONF, zookeeper)
    spark.dataSource.register(type("BookSparkDataSource", (BookSparkDataSource,), {"zookeeper": zookeeper}))


def log_errors_only(spark: SparkSession, logger: str) -> None:
    """Keep warnings of ``logger``, a class of Spark's, out of the driver's log from now on."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)
