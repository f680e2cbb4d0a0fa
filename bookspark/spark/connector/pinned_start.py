"""Where a stream that begins at ``latest`` began, kept until Spark itself remembers how far the query is.

Law: between the moment a query first asked for the end of the log and the end of its first micro-batch, the start stays the
same, however often the query dies and however far the log has grown. Spark asks for the initial offset again as long as
no micro-batch is done, and would begin at the new end: what came in between would be lost.

The record is ``/bookspark/starts/<subscription>@<log>``, the offset as JSON.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from bookspark.errors import MetadataVersionError
from bookspark.spark.connector.connector_options import SourceOptions
from bookspark.spark.connector.feeds import Offset
from bookspark.spark.process_client import client

KIND = "starts"


class PinnedStart:
    """The start of the query that reads ``options.log`` as ``options.subscription``."""

    def __init__(self, options: SourceOptions) -> None:
        self._zookeeper = options.zookeeper
        self._name = f"{options.subscription}@{options.log}"

    def pin(self, offset: Offset) -> Offset:
        """The start that was pinned before, or else ``offset``, which is from now on. A pin in a log that was deleted, and
        made anew since, is replaced."""
        store = client(self._zookeeper).metadata
        while True:
            found = store.read_record(KIND, self._name)
            if found is not None:
                pinned = msgspec.json.decode(found.value, type=Offset)
                if pinned.get("log") == offset.get("log"):
                    return pinned
            with suppress(MetadataVersionError):  # then there is another one by now
                version = None if found is None else found.version
                store.write_record(KIND, self._name, msgspec.json.encode(offset), version)
                return offset

    def unpin(self) -> None:
        """A micro-batch is done: from now on Spark's own checkpoint says where to go on."""
        client(self._zookeeper).metadata.delete_record(KIND, self._name)
