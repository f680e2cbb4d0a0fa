"""The integrity check: metadata × all bookies' indexes → exactly what each bookie lacks → tasks for autorecovery.

Law: it marks, and repairs nothing. A task is a hint: the worker that takes it asks the bookie again, so one that came of
an old snapshot costs a look. What is marked is what a bookie that is up lacks; whether one that is down is lost is for
the auditor to say, after its delay.

BookKeeper's ``AuditorTask`` samples entries, by reading; this joins lists, of all entries, as a Spark job. The auditor's
own exact check does the same in one process; this one is for clusters whose lists are too long for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from bookspark.client import BookKeeper
from bookspark.daemon.settings import of_environment
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.spark import snapshots
from bookspark.spark.audit.runner import question

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Marked(NamedTuple):
    """How many ledgers were marked, and how many copies of entries they lack."""

    ledgers: int
    copies: int


def mark_lacking(spark: SparkSession, path: str, zookeeper: str, version: int | None = None) -> Marked:
    """Mark every ledger of which, by the newest snapshot under ``path`` or by that of ``version``, a bookie lacks entries.

    Raises ConfigurationError if there is no such snapshot.
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
