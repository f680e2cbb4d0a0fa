"""The start of a stream that begins at ``latest``, kept until Spark itself remembers how far the query is.

Law: from the moment a query first asks for the end of the log until its first micro-batch is done, its start stays the same,
however often the query dies and however far the log grows. While no micro-batch is done, Spark asks for the initial offset again
at each start. The end of the log would be a later one by then, and the rows in between would be lost.

The record is ``/bookspark/starts/<subscription>@<log>``, the offset as JSON.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from bookspark.errors import MetadataVersionError
from bookspark.logs.chain.registry import STARTS
from bookspark.logs.feeds.log_feed import Offset
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.process_client import client
from bookspark.store.metadata.records.documents import proven, read_struct


class PinnedStart:
    """The start of the query that reads ``options.log`` as ``options.subscription``."""

    def __init__(self, options: SourceOptions) -> None:
        self._zookeeper = options.zookeeper
        self._name = f"{options.subscription}@{options.log}"

    def pin(self, offset: Offset) -> Offset:
        """The start that was pinned before; if there is none, ``offset``, which is pinned now.

        A pin of a log that was deleted and created again since is replaced. Raises MetadataStoreError.
        """
        store = client(self._zookeeper).metadata
        while True:
            found = store.read_record(STARTS, self._name)
            document = proven(offset, msgspec.json.encode, msgspec.json.decode, f"start {self._name!r}")
            if found is not None:
                pinned = read_struct(found.value, Offset, f"start {self._name!r}")
                if pinned.get("log") == offset.get("log"):
                    return pinned
            # If another process was first, look at its pin.
            with suppress(MetadataVersionError):
                version = None if found is None else found.version
                store.write_record(STARTS, self._name, document, version)
                return offset

    def unpin(self) -> None:
        """Delete the pin. A micro-batch is done, so Spark's own checkpoint has the place to go on from. Raises
        MetadataStoreError."""
        client(self._zookeeper).metadata.delete_record(STARTS, self._name)
