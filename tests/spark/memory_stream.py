"""The driver's side of a stream over a feed that is in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from bookspark.spark.connector.query_place import QueryPlace
from bookspark.spark.connector.source import EntryStreamReader
from bookspark.spark.options.source_options import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bookspark.spark.connector.feeds import Feed


def memory_stream(feed: Feed, options: Mapping[str, str] | None = None) -> EntryStreamReader:
    """Reads ``feed``, and tells no cluster how far it is, as there is none. ``options`` are those of the data source; without
    any, it waits for nothing."""
    given = {"log": "orders", "zookeeper": "nowhere", "pollTimeoutMs": "0"} if options is None else options
    reader = EntryStreamReader(SourceOptions.parse(given), StructType(), ())
    reader.__dict__["_feed"] = feed
    reader._place = QueryPlace(reader._place._client, log=None)
    return reader
