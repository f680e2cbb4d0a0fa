"""``format("bookspark")`` for Spark: a sink and a source, for streams and batches.

    df.writeStream.format("bookspark").option("log", "orders").option("checkpointLocation", …).start()
    df.write.format("bookspark").option("log", "orders").mode("append").save()
    spark.readStream.format("bookspark").option("log", "orders").load()
    spark.read.format("bookspark").option("log", "orders").load()         # value (or its columns), position, ledger_id, entry_id
    spark.read.format("bookspark").option("ledger", 42).load()            # ledger_id, entry_id, …, payload
    spark.read.format("bookspark").option("table", "fragments").load()    # system tables
    CREATE TEMPORARY VIEW orders USING bookspark OPTIONS (log 'orders')   -- in SQL

A batch write is all or nothing, and one that is made again is another write: also in ``foreachBatch``, where Spark replays a
micro-batch that it did not see end. ``writeStream.format("bookspark")`` is what writes each row once.

Law: the driver's side checks everything that can be checked before the first task runs; see ``options``, ``sink`` and
``source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from bookspark.errors import ConfigurationError
from bookspark.spark.connector.connector_options import SinkOptions, SourceOptions
from bookspark.spark.connector.sink import LogBatchWriter, LogStreamWriter, prepare
from bookspark.spark.connector.source import EntryReader, EntryStreamReader, TableReader, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BookSparkDataSource(DataSource):
    """The entry point that Spark makes anew, in its Python workers, for each plan."""

    zookeeper: ClassVar[str | None] = None
    """The session's cluster. A Python data source sees no session, so ``register`` puts it into the class."""

    @classmethod
    def name(cls) -> str:
        return "bookspark"

    def schema(self) -> StructType:
        return schema_of(SourceOptions.parse(self.options, self.zookeeper))

    def reader(self, schema: StructType) -> DataSourceReader:
        options, known = self._source()
        options = options.for_batch()
        if options.table is not None:
            _check_names(schema, known)
            return TableReader(options)
        return EntryReader(options, known, _chosen(schema, known))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options, known = self._source()
        return EntryStreamReader(options.for_stream(), known, _chosen(schema, known))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return LogBatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return LogStreamWriter(self._sink(schema, overwrite))

    def _source(self) -> tuple[SourceOptions, StructType]:
        """What is to be read, and all columns that it has."""
        options = SourceOptions.parse(self.options, self.zookeeper)
        return options, schema_of(options)

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options, self.zookeeper)
        if overwrite:
            raise ConfigurationError(
                f"log {options.log!r} can only be appended to: use mode 'append' (streams: outputMode 'append')"
            )
        prepare(options, schema)
        return options


def _chosen(schema: StructType, known: StructType) -> list[str]:
    """The names of the columns to be read: all, or fewer if the user gave a schema."""
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


def register(spark: SparkSession, zookeeper: str | None = None) -> None:
    """Make ``format("bookspark")`` known in ``spark``.

    Where reads and writes give no option ``zookeeper``, the cluster is ``zookeeper``, or what the session has in
    ``spark.bookspark.zookeeper``.
    """
    from bookspark.spark.session import ZOOKEEPER_CONF

    address = zookeeper or spark.conf.get(ZOOKEEPER_CONF, None)
    spark.dataSource.register(type("BookSparkDataSource", (BookSparkDataSource,), {"zookeeper": address}))
