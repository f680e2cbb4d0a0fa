"""Lists for those who look into a bookie while it serves: its logs, and its ledgers in limbo.

Law: nothing is changed, and nothing is read from a disk. A log is listed from its first entry until its file is removed.
"""

from __future__ import annotations

from bookspark.bookie.disk.rewritten_log import RewrittenLog
from bookspark.bookie.storage import Storage
from bookspark.wire.messages import EntryLogFacts, EntryLogs, Limbo

LIMBO_ROWS_MAX = 1 << 16


def entry_logs(storage: Storage) -> EntryLogs:
    """Every log, by number. Logs of a directory that failed are among them, because what they hold is still in the index."""
    sealed = {stored.number for directory in storage.live for stored in directory.sealed}
    return EntryLogs(
        [
            EntryLogFacts(
                number, stored.path, stored.end, stored.synced, number in sealed, isinstance(stored, RewrittenLog)
            )
            for number, stored in storage.logs.items()
        ]
    )


def limbo(storage: Storage, ledger_id: int, limit: int) -> tuple[Limbo, int]:
    """The ledgers in limbo from ``ledger_id`` on, at most ``limit`` (0: 65,536), and the ledger to go on with, −1 at the end."""
    limit = min(limit or LIMBO_ROWS_MAX, LIMBO_ROWS_MAX)
    found = sorted(item for item in storage.lossy_boots.limbo().items() if item[0] >= ledger_id)
    return Limbo(found[:limit]), found[limit][0] if len(found) > limit else -1
