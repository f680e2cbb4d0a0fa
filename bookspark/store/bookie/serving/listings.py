"""Lists for those who look into a bookie while it serves: its logs, and its ledgers in limbo.

Law: nothing is changed, and nothing is read from a disk. A log is listed from its first entry until its file is removed.
"""

from __future__ import annotations

from bookspark.store.bookie.disk.rewritten_log import RewrittenLog
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.messages import EntryLogFacts, EntryLogs, Limbo

ROWS_MAX = 1 << 11
"""Rows of one answer, which is made on the loop: some milliseconds."""


def entry_logs(storage: Storage, start: int) -> tuple[EntryLogs, int]:
    """The logs from number ``start`` on, at most 2,048, and the number to go on with, −1 at the end. Logs of a directory that
    failed are among them."""
    logs = storage.holdings.logs
    numbers = sorted(number for number in logs if number >= start)
    found = []
    for number in numbers[:ROWS_MAX]:
        directory, stored = logs[number]
        sealed = directory in storage.holdings.live and directory.is_sealed(stored)
        rewritten = isinstance(stored, RewrittenLog)
        found.append(EntryLogFacts(number, stored.path, stored.end, stored.synced, sealed, rewritten))
    return EntryLogs(found), numbers[ROWS_MAX] if len(numbers) > ROWS_MAX else -1


def limbo(storage: Storage, ledger_id: int, limit: int) -> tuple[Limbo, int]:
    """The ledgers in limbo from ``ledger_id`` on, at most ``limit`` and 2,048, and the ledger to go on with, −1 at the end."""
    limit = min(limit or ROWS_MAX, ROWS_MAX)
    found = storage.lossy_boots.limbo(ledger_id, limit + 1)
    return Limbo(found[:limit]), found[limit][0] if len(found) > limit else -1
