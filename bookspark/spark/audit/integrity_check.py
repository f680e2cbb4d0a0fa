"""The integrity check: joins metadata with all bookies' indexes, and marks lacking copies as tasks for autorecovery.

Law: the check marks ledgers and repairs nothing. A task is a hint: its worker asks the bookie again, so an old snapshot costs
only a look. Only entries missing on bookies that are up are marked; the loss of a bookie that is down is for autorecovery's
auditor to state, after its delay.

BookKeeper's ``AuditorTask`` reads a sample of entries; this check joins lists of all entries, as a Spark job. Autorecovery's
auditor does the same in one process, for clusters with shorter lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.spark import snapshots
from bookspark.spark.audit.runner import question
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.settings import of_environment
from bookspark.support.arguments import BytesOrNone, Name, checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Marked(NamedTuple):
    ledgers: int
    copies: int
    """Lacking copies of entries in these ledgers."""


@checked
def mark_lacking(
    spark: SparkSession, path: Name, zookeeper: ConnectionString, version: BytesOrNone | None = None
) -> Marked:
    """Mark every ledger with lacking copies for repair, by a snapshot under ``path``.

    ``spark``: a session with Delta. ``zookeeper``: the cluster in which to mark. ``version``: that of the snapshot; None: the
    newest. Raises ConfigurationError if there is no such snapshot, MetadataStoreError, and Spark's errors.
    """
    counts = {"ledgers": 0, "copies": 0}

    def marks() -> Iterator[Mark]:
        for row in answer.toLocalIterator():
            counts["ledgers"] += 1
            counts["copies"] += row.copies
            lacking = f"{row.copies} copies of entries {row.first_entry_id} to {row.last_entry_id}"
            yield Mark(
                row.ledger_id, dict.fromkeys(row.bookies, Reason.LACKS), f"integrity check: {lacking} are missing"
            )

    tables = snapshots.tables(spark, path, version)
    with (
        BookKeeper(zookeeper, **of_environment("client")) as bookkeeper,
        question(spark, tables, "lacking") as answer,
    ):
        bookkeeper.metadata.underreplication.mark(marks())
    return Marked(**counts)
