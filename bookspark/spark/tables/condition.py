"""System tables of the condition that bookies and autorecovery are in: disks, damage that is known, and when it was looked for.

Law: as in ``table``. That nobody looked for damage is not the same as that there is none: ``checked_at`` is null then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookspark.spark.tables.table import FLAG, LONG, TEXT, TIME, Rows, SystemTable, each_bookie, once, time

if TYPE_CHECKING:
    from bookspark.client import BookKeeper


def _disk_rows(bookkeeper: BookKeeper, bookie_id: str, password: bytes) -> Rows:
    status = bookkeeper.bookie_status(bookie_id)
    checked = time(status.scrub_finished_ms) if status.scrub_finished_ms else None
    for path in sorted({*status.directories, *status.failed_directories}):
        why = status.failed_directories.get(path) or status.full_directories.get(path)
        state = "failed" if path in status.failed_directories else "full" if why else "writable"
        yield bookie_id, path, state, why, checked, status.lacking_ledgers


def _autorecovery_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata.underreplication
    yield store.enabled(), len(store.list_tasks())


DISKS = SystemTable(
    "disks",
    "One row per directory of a bookie that is up.",
    (
        ("bookie_id", TEXT, "The bookie"),
        ("directory", TEXT, "The directory, on the bookie's host"),
        ("state", TEXT, "writable; full: it does not take every add; failed: its contents are not held"),
        ("reason", TEXT, "Reason if not writable, else null"),
        ("checked_at", TIME, "End of the bookie's last whole scrub; null: none yet"),
        ("lacking_ledgers", LONG, "Ledgers with lost entries of the bookie, in any directory, that are not all back"),
    ),
    each_bookie,
    _disk_rows,
)

AUTORECOVERY = SystemTable(
    "autorecovery",
    "One row: whether lost copies are replaced by themselves.",
    (
        ("enabled", FLAG, "false after bookspark autorecovery disable"),
        ("tasks", LONG, "Ledgers waiting for a repair"),
    ),
    once,
    _autorecovery_rows,
)
