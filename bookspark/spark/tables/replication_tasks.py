"""The system table ``underreplication``: what autorecovery has to do, and who does it.

Law: a task that was done since the listing is left out. A task stays in the table until it is done, also while a worker does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookspark.spark.tables.table import LONG, TEXT, TIME, Rows, SystemTable, once, time

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper


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
    "One row per ledger that autorecovery has to repair and bookie that is the reason.",
    (
        ("ledger_id", LONG, "The ledger"),
        ("bookie_id", TEXT, "The bookie"),
        (
            "reason",
            TEXT,
            "lost: the bookie is to be replaced; lacks: it gets what it lacks; misplaced: its copies are moved",
        ),
        ("detail", TEXT, "What was found, in words"),
        ("marked_at", TIME, "When the ledger was first reported"),
        ("marks", LONG, "How often the ledger was reported"),
        ("attempts", LONG, "How many repairs failed"),
        ("error", TEXT, "Why the last repair failed; null: none failed"),
        ("not_before", TIME, "When the next repair may begin; null: now"),
        ("holder", TEXT, "Worker that repairs the ledger now; null: none"),
    ),
    once,
    _rows,
)
