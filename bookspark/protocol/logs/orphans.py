"""Which ledgers of a log can never become part of it.

Law: judged by epoch, never by age. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_LABEL, LogRecord


def epoch_of(labels: Mapping[str, bytes]) -> int:
    """The epoch that a ledger's labels say, 0 without such a label. A label that is no number is somebody else's. Its ledger
    counts as one of an epoch to come, so it is nobody's orphan."""
    found = labels.get(EPOCH_LABEL, b"0")
    return int(found) if found.isdigit() and len(found) < 19 else 1 << 62


def is_orphan(record: LogRecord, ledger_id: int, labels: Mapping[str, bytes], referenced: Collection[int]) -> bool:
    """Was the ledger made for the log, and can it never become part of it? Judged by epoch, never by age.

    ``labels`` is the ledger's custom metadata. ``referenced`` are the data ledgers that *all* commits of the log's chain name,
    read after ``record``. A ledger of an epoch whose writer may still commit is never an orphan.
    """
    if labels.get(LOG_LABEL) != record.name.encode() or not record.ended(epoch_of(labels)):
        return False
    return ledger_id not in referenced and all(ledger_id != link.ledger_id for link in record.commit_ledgers)
