"""``format("bookspark")`` for Spark: a sink and a source, for streams and batches.

    df.writeStream.format("bookspark").option("log", "orders").option("checkpointLocation", …).start()
    df.write.format("bookspark").option("log", "orders").mode("append").save()
    spark.readStream.format("bookspark").option("log", "orders").load()
    spark.read.format("bookspark").option("log", "orders").load()         # value, position, ledger_id, entry_id
    spark.read.format("bookspark").option("ledger", 42).load()            # ledger_id, entry_id, …, payload
    spark.read.format("bookspark").option("table", "fragments").load()    # system tables

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

from bookspark.protocol.errors import ConfigurationError
from bookspark.spark.options import SinkOptions, SourceOptions
from bookspark.spark.sink import LogBatchWriter, LogStreamWriter, check_input, prepare
from bookspark.spark.source import EntryReader, EntryStreamReader, TableReader, schema_of

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
        options = self._source(schema).for_batch()
        return TableReader(options) if options.table is not None else EntryReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EntryStreamReader(self._source(schema).for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return LogBatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return LogStreamWriter(self._sink(schema, overwrite))

    def _source(self, schema: StructType) -> SourceOptions:
        options = SourceOptions.parse(self.options, self.zookeeper)
        expected = schema_of(options)
        if schema.names != expected.names:
            raise ConfigurationError(
                f"the columns are {expected.names}, not {schema.names}; leave the schema out and select"
            )
        return options

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        options = SinkOptions.parse(self.options, self.zookeeper)
        if overwrite:
            raise ConfigurationError(
                f"log {options.log!r} can only be appended to: use mode 'append' (streams: outputMode 'append')"
            )
        check_input(schema)
        prepare(options)
        return options


def register(spark: SparkSession, zookeeper: str | None = None) -> None:
    """Make ``format("bookspark")`` known in ``spark``.

    Where reads and writes give no option ``zookeeper``, the cluster is ``zookeeper``, or what the session has in
    ``spark.bookspark.zookeeper``.
    """
    from bookspark.spark.session import ZOOKEEPER_CONF

    address = zookeeper or spark.conf.get(ZOOKEEPER_CONF, None)
    spark.dataSource.register(type("BookSparkDataSource", (BookSparkDataSource,), {"zookeeper": address}))
