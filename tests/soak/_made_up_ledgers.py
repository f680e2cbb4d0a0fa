"""A stand-in for a ZooKeeper with very many ledgers: ledger ids and metadata are made up, everything else is in the real
ZooKeeper.

Law: a ledger's metadata depends on its id alone, in every process. It is decoded from the bytes that the client writes, as
metadata from ZooKeeper is; only the network, kazoo and ZooKeeper's memory (1.3 GB per million ledgers) are avoided.

``MADE_UP`` in the environment is the number of ledgers, from the id FIRST on. A process that imports this module has
clients with the stand-in; each Python worker of Spark imports it too, because it defines the data source that ``use``
registers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import permutations
from typing import TYPE_CHECKING, Any

from bookspark.spark.connector.data_source import BookSparkDataSource
from bookspark.spark.connector.source import TableReader
from bookspark.store.client import bookkeeper
from bookspark.store.metadata.records.codec import encode_ledger, readable_ledger
from bookspark.store.metadata.records.ledger_spans import IDS_PER_SPAN, LedgerSpan
from bookspark.store.metadata.records.versioned import Versioned, VersionedLedger
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.soak.console_scale import FIRST, metadata_of
from tests.soak.snapshot_scale import MADE_UP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

_CREATED_AT_MS = 1_790_000_000_000
# An odd number (Knuth's), so that neighbouring ids have different ensembles.
_SPREAD = 2_654_435_761


class MadeUpStore(ZooKeeperStore):
    """The real store except for its ledgers, which are made up and can't be changed."""

    @cached_property
    def _last(self) -> int:
        return FIRST + int(os.environ[MADE_UP]) - 1

    @cached_property
    def _documents(self) -> list[tuple[bytes, bytes]]:
        """For each pair of ensembles the metadata of a ledger with one fragment, and with two."""
        ensembles = list(permutations(sorted(self.bookies()), 3))
        pairs = [(first, second) for first in ensembles for second in ensembles]
        few, more = (
            [encode_ledger(metadata_of(ledger_id, *pair, _CREATED_AT_MS)) for pair in pairs] for ledger_id in (1, 0)
        )
        return list(zip(few, more, strict=True))

    def last_ledger_id(self) -> int:
        return self._last

    def ledger_spans(self) -> list[LedgerSpan]:
        firsts = range(FIRST - FIRST % IDS_PER_SPAN, self._last + 1, IDS_PER_SPAN)
        return [LedgerSpan(one, min(self._last + 1, one + IDS_PER_SPAN) - max(FIRST, one)) for one in firsts]

    def list_ledgers_between(self, first: int, last: int) -> Iterator[int]:
        return iter(range(max(first, FIRST), min(last, self._last) + 1))

    def read_ledgers(self, ledger_ids: Iterable[int], unreadable: dict[int, str]) -> Iterator[VersionedLedger]:
        documents = self._documents
        for ledger_id in ledger_ids:
            document = documents[ledger_id * _SPREAD % len(documents)][ledger_id % 10 == 0]
            if (found := readable_ledger(ledger_id, document, unreadable)) is not None:
                yield Versioned(found, 0)


class _Reader(TableReader):
    """Makes Spark's workers import this module."""


class _MadeUpDataSource(BookSparkDataSource):
    def reader(self, schema: StructType) -> DataSourceReader:
        options, _ = self._source()
        return _Reader(options.for_batch())


def use(spark: SparkSession) -> None:
    """Make ``spark`` read the made-up ledgers."""
    spark.dataSource.register(_MadeUpDataSource)


# Typed as Any, because an assignment to a module's class does not type-check.
_of_clients: Any = bookkeeper
_of_clients.ZooKeeperStore = MadeUpStore
