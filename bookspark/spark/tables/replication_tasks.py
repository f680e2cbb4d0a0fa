"""The system table ``underreplication``: what autorecovery has to do, and who does it.

Law: a task that was done since the listing is left out. A task stays in the table until it is done, also while a worker does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookspark.spark.tables.table import LONG, TEXT, TIME, Rows, SystemTable, once, time

if TYPE_CHECKING:
    from bookspark.client import BookKeeper


def _rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata.underreplication
    ledger_ids, holders = store.list_tasks(), store.holders()
    unreadable: dict[int, str] = {}
    for task in store.tasks(ledger_ids, unreadable):
        waits_until = time(task.not_before_ms) if task.not_before_ms else None
        for bookie_id, reason in sorted(task.bookies.items()):
            yield (
                task.ledger_id, bookie_id, reason.value, task.detail, time(task.marked_at_ms), task.marks,
                task.attempts, task.error or None, waits_until, holders.get(task.ledger_id),
            )  # fmt: skip
    for ledger_id, why in unreadable.items():
        yield ledger_id, None, None, why, None, None, None, "this task can't be decoded", None, holders.get(ledger_id)


UNDERREPLICATION = SystemTable(
    "underreplication",
    "One row per ledger for autorecovery to repair and bookie that is the reason.",
    (
        ("ledger_id", LONG, "The ledger"),
        ("bookie_id", TEXT, "The bookie"),
        (
            "reason",
            TEXT,
            "lost: replace the bookie; lacks: copy to it what it lacks; misplaced: move its copies",
        ),
        ("detail", TEXT, "Explanation"),
        ("marked_at", TIME, "Time of the first report"),
        ("marks", LONG, "Number of reports"),
        ("attempts", LONG, "Number of failed repairs"),
        ("error", TEXT, "Reason of the last failure; null: none"),
        ("not_before", TIME, "Earliest next repair; null: now"),
        ("holder", TEXT, "Worker at the repair; null: none"),
    ),
    once,
    _rows,
)
