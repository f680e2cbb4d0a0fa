"""``format("bookspark")`` for Spark: a sink and a source, for streams and batches.

    df.writeStream.format("bookspark").option("log", "orders").option("checkpointLocation", …).start()
    df.write.format("bookspark").option("log", "orders").mode("append").save()
    spark.readStream.format("bookspark").option("log", "orders").load()
    spark.read.format("bookspark").option("log", "orders").load()         # value (or its columns), position, ledger_id, entry_id
    spark.read.format("bookspark").option("logPattern", "orders-.*").load()   # the same, and log
    spark.read.format("bookspark").option("ledger", 42).load()            # ledger_id, entry_id, …, payload
    spark.read.format("bookspark").option("table", "fragments").load()    # system tables
    CREATE TEMPORARY VIEW orders USING bookspark OPTIONS (log 'orders')   -- in SQL

Spark finds the format by itself where Bookspark is installed (``pyspark_bookspark``). The cluster comes from option
``zookeeper``, else from the session's setting ``spark.bookspark.zookeeper`` as it is at that moment (``follow_sessions``), else
from the driver's environment variable ``BOOKSPARK_ZOOKEEPER``.

Law: the driver's side makes all possible checks before the first task runs; see ``spark.options``, ``sink`` and ``source``. Spark
4.2 asks for ``schema`` without saying whether a batch or a stream is to be read, and makes a stream's reader in its query. So a
read that suits no stream (a system table, ``endingOffsets``) is refused there, before the first micro-batch, not by ``load``.

A DataFrame keeps the log's end of its first action, because Spark keeps its plan; ``bookspark.spark.log_frame`` sees later rows.

A batch write is all or nothing, and writes its rows again when repeated, also inside ``foreachBatch``, where Spark replays a
micro-batch whose end it did not see. ``writeStream.format("bookspark")`` writes each row once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter
from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.spark.connector.several_logs import LogsReader, LogsStreamReader, schema_of_logs
from bookspark.spark.connector.sink import LogBatchWriter, LogStreamWriter, prepare
from bookspark.spark.connector.source import EntryReader, EntryStreamReader, TableReader, schema_of
from bookspark.spark.connector.worker_ends import RefusedStream, ends_in_order, in_a_sources_process
from bookspark.spark.memory_limit import prepare_workers
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.process_client import ZOOKEEPER_CONF

# -- The session of a read or write
#
# Spark 4.2 shows a Python data source neither its session nor that session's settings, and a session made by ``newSession`` has
# none of the data sources registered in another. So reads, SQL and writes of this process first make the format of their own
# session that of the session's cluster, whenever its setting is no longer the registered one.


_REGISTERED = "spark.bookspark.registered"
"""The setting with the cluster that the format has in the session. ``cloneSession`` copies both."""
_done = False


def follow_sessions() -> None:
    """Make reads and writes of this process follow their session: its setting ``spark.bookspark.zookeeper``, which ``newSession``
    hands on. Later calls do nothing.

    Spark 4.2 looks up a Python data source for a write in the calling thread's active session. Threads started by Python have
    none, so writes failed with "bookspark.DefaultSource" (class not found). ``save``, ``start`` and ``toTable`` now activate it,
    for every format, as reads, SQL and ``createDataFrame`` do.
    """
    global _done
    if not _done:
        _done = True
        for kind, name in (
            (DataFrameReader, "load"),
            (DataStreamReader, "load"),
            (SparkSession, "sql"),
            (DataFrameWriter, "save"),
            (DataStreamWriter, "start"),
            (DataStreamWriter, "toTable"),
        ):
            setattr(kind, name, _following(getattr(kind, name)))
        SparkSession.newSession = _handing_on(SparkSession.newSession)


def _following(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def followed(caller: Any, *arguments: Any, **options: Any) -> Any:
        spark = caller if isinstance(caller, SparkSession) else caller._spark
        cluster = spark.conf.get(ZOOKEEPER_CONF, None)
        if cluster != spark.conf.get(_REGISTERED, None):
            _register(spark, cluster)
        if isinstance(caller, DataFrameWriter | DataStreamWriter):
            SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        return call(caller, *arguments, **options)

    return followed


def _handing_on(new_session: Callable[[SparkSession], SparkSession]) -> Callable[[SparkSession], SparkSession]:
    @wraps(new_session)
    def handed_on(spark: SparkSession) -> SparkSession:
        new, cluster = new_session(spark), spark.conf.get(ZOOKEEPER_CONF, None)
        # Spark's own new session has the settings with which the application started.
        if cluster is not None:
            new.conf.set(ZOOKEEPER_CONF, cluster)
        return new

    return handed_on


def _register(spark: SparkSession, cluster: str | None) -> None:
    # Silence Spark's warning about a replaced data source, which is intended here.
    log_errors_only(spark, _REGISTRY_LOGGER)
    prepare_workers(spark.sparkContext)
    spark.dataSource.register(type("BookSparkDataSource", (BookSparkDataSource,), {"zookeeper": cluster}))
    if cluster is None:
        spark.conf.unset(_REGISTERED)
    else:
        spark.conf.set(_REGISTERED, cluster)


# -- The format


ZOOKEEPER_VARIABLE = "BOOKSPARK_ZOOKEEPER"
_REGISTRY_LOGGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"


@ends_in_order
class BookSparkDataSource(DataSource):
    """The format. Spark makes a new instance for each plan, in Python workers beside the driver's JVM."""

    zookeeper: ClassVar[str | None] = None
    """The session's cluster. A Python data source can't see its session, so a subclass with the address is registered."""

    @classmethod
    def name(cls) -> str:
        return "bookspark"

    def schema(self) -> StructType:
        """The columns of a read without its own schema. Raises ConfigurationError, NoSuchLogError, UnauthorizedAccessError and
        MetadataStoreError."""
        return _schema(SourceOptions.parse(self.options, self._cluster()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``. Raises the errors of ``schema``; ConfigurationError also for wrong options and columns."""
        options, known = self._source()
        options = options.for_batch()
        if options.table is not None and schema.names != known.names:
            raise ConfigurationError(
                f"the columns are {known.names}, not {schema.names}; leave the schema out and select"
            )
        chosen = _chosen(schema, known)
        if options.table is not None:
            return TableReader(options)
        reader = LogsReader if options.several else EntryReader
        return reader(options, known, chosen)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``. Raises the errors of ``schema``; ConfigurationError also for options and columns that do not
        suit a stream."""
        try:
            options, known = self._source()
            reader = LogsStreamReader if options.several else EntryStreamReader
            return reader(options.for_stream(), known, _chosen(schema, known))
        except BookKeeperError as error:
            if in_a_sources_process():
                return RefusedStream(error)
            raise

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``. Creates a missing log. Raises ConfigurationError, UnauthorizedAccessError (wrong password),
        NotEnoughBookiesError and MetadataStoreError."""
        return LogBatchWriter(*self._sink(schema, overwrite, SinkOptions.for_batch))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``. Creates a missing log. Raises ConfigurationError, UnauthorizedAccessError (wrong password),
        NotEnoughBookiesError and MetadataStoreError."""
        return LogStreamWriter(*self._sink(schema, overwrite, SinkOptions.for_stream))

    def _source(self) -> tuple[SourceOptions, StructType]:
        options = SourceOptions.parse(self.options, self._cluster())
        return options, _schema(options)

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
        return self.zookeeper or os.environ.get(ZOOKEEPER_VARIABLE)


def _schema(options: SourceOptions) -> StructType:
    return schema_of_logs(options) if options.several else schema_of(options)


def _chosen(schema: StructType, known: StructType) -> list[str]:
    """Names of the columns to read: all, or fewer if the user gave a schema. (Spark believes its NOT NULL, and answers IS NULL
    without a read.)"""
    fields = {field.name: field for field in known}
    for field in schema:
        there = fields.get(field.name)
        if there is None or there.dataType != field.dataType:
            raise ConfigurationError(
                f"there is no column {field.name!r} of type {field.dataType.simpleString()}; the columns are "
                f"{known.simpleString()}: leave the schema out, or name some of them"
            )
        if there.nullable and not field.nullable:
            raise ConfigurationError(
                f"column {field.name!r} may have nulls: leave NOT NULL out of the schema, and filter the DataFrame"
            )
        if schema.names.count(field.name) > 1:
            raise ConfigurationError(f"column {field.name!r} is in the schema twice: name it once, and select it twice")
    return list(schema.names)


def register(spark: SparkSession, zookeeper: str) -> None:
    """Make ``zookeeper`` (``host:port[,host:port…][/chroot]``) the cluster of reads and writes in ``spark`` without that option,
    and let other Python threads write too.

    It replaces Spark's automatic registration, with which executors run the driver's Python instead of the application's
    (``PYSPARK_PYTHON``; seen in 4.2).
    """
    follow_sessions()
    spark.conf.set(ZOOKEEPER_CONF, zookeeper)
    _register(spark, zookeeper)


def log_errors_only(spark: SparkSession, logger: str) -> None:
    """Keep warnings of ``logger``, a class of Spark, out of the driver's log from now on."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.ERROR)
