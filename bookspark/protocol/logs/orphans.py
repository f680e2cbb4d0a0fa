"""Orphans: ledgers made for a log that can never become part of it.

Law: judged by epoch, never by age. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_ID_LABEL, LOG_LABEL, LogRecord


def epoch_of(labels: Mapping[str, bytes]) -> int:
    """The epoch in a ledger's labels, 0 without such a label. A label that is no number is foreign: its ledger counts as one of a
    future epoch, so it is no orphan."""
    found = labels.get(EPOCH_LABEL, b"0")
    return int(found) if found.isdigit() and len(found) < 19 else 1 << 62


def is_of(record: LogRecord, labels: Mapping[str, bytes]) -> bool:
    """Was the ledger with these labels made for the lane?"""
    log = str(record.log_id).encode(), record.name.encode()
    return (labels.get(LOG_ID_LABEL), labels.get(LOG_LABEL)) == log


def is_orphan(record: LogRecord, ledger_id: int, labels: Mapping[str, bytes], referenced: Collection[int]) -> bool:
    """Was the ledger made for the log without any chance to become part of it?

    ``labels``: the ledger's custom metadata. ``referenced``: the data ledgers in *all* commits of the log's chain, read after
    ``record``. A ledger of an epoch whose writer may still commit is never an orphan.
    """
    if not is_of(record, labels) or not record.ended(epoch_of(labels)):
        return False
    return ledger_id not in referenced and all(ledger_id != link.ledger_id for link in record.commit_ledgers)
