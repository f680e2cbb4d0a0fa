"""The integrity check: metadata and all bookies' indexes tell exactly what each bookie lacks, and become tasks for autorecovery.

Law: the check marks ledgers, and repairs nothing. A task is a hint: the worker that takes it asks the bookie again, so a task
from an old snapshot costs no more than a look. The check marks entries that are missing on bookies that are up. Whether a bookie
that is down is lost is for autorecovery's auditor to say, after its delay.

BookKeeper's ``AuditorTask`` reads a sample of entries. This check joins lists of all entries, as a Spark job. Autorecovery's
auditor does the same exact check in one process; this one is for clusters whose lists are too long for that.
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
    """What the check marked."""

    ledgers: int
    """Ledgers that were marked for repair."""
    copies: int
    """Copies of entries that they lack, in all."""


@checked
def mark_lacking(
    spark: SparkSession, path: Name, zookeeper: ConnectionString, version: BytesOrNone | None = None
) -> Marked:
    """Mark for repair every ledger of which a bookie lacks entries, by a snapshot under ``path``. Returns how much was marked.

    ``spark``: a session with Delta. ``zookeeper``: the cluster in which to mark. ``version``: that of the snapshot; None: the
    newest. Raises ConfigurationError if there is no such snapshot, MetadataStoreError, and Spark's errors.
    """
    found = {"ledgers": 0, "copies": 0}

    def marks() -> Iterator[Mark]:
        for row in answer.toLocalIterator():
            found["ledgers"] += 1
            found["copies"] += row.copies
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
    return Marked(**found)
