"""The driver's side of a stream over an in-memory feed."""

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
    """A reader of ``feed`` that reports its progress to no cluster. ``options`` are those of the data source; without
    any, it never waits."""
    given = {"log": "orders", "zookeeper": "nowhere", "pollTimeoutMs": "0"} if options is None else options
    reader = EntryStreamReader(SourceOptions.parse(given), StructType(), ())
    reader.__dict__["_feed"] = feed
    client = reader._place._client
    reader._new_place = lambda: QueryPlace(client, None)  # type: ignore[method-assign]
    reader._place = reader._new_place()
    return reader
