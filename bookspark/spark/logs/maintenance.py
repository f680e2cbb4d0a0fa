"""What the owner of a log cleans up: data ledgers that their writers left open, and orphans.

Law: only the owner does this, and only after it has recovered all commits before its own epoch (see ``is_orphan``).
Nothing here decides what is part of the log; if it fails or is never run, readers see the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bookspark.protocol.errors import BookKeeperError, NoSuchLedgerError
from bookspark.protocol.log_record import is_orphan
from bookspark.spark.logs.reader import commits
from bookspark.spark.logs.registry import LogRegistry

if TYPE_CHECKING:
    from bookspark.client import BookKeeper

log = logging.getLogger(__name__)


def recover_ledgers(
    bookkeeper: BookKeeper, ledger_ids: Iterable[int], password: bytes, seconds_max: float = 10.0
) -> list[int]:
    """Recover each ledger that is not closed, so that its end is decided; stops after ``seconds_max``. Returns those done."""
    deadline = time.monotonic() + seconds_max
    done = []
    for ledger_id in ledger_ids:
        if time.monotonic() > deadline:
            break
        try:
            if not bookkeeper.get_ledger_metadata(ledger_id).closed:
                bookkeeper.open_ledger(ledger_id, password=password).close()
                done.append(ledger_id)
        except BookKeeperError as error:
            log.info("ledger %d stays open for a later recovery: %s", ledger_id, error)
    return done


def collect_orphans(bookkeeper: BookKeeper, name: str, password: bytes) -> list[int]:
    """Fence, then delete every ledger that was made for the log in an earlier epoch and never became part of it.

    Reads the metadata of all ledgers: for maintenance, not for each batch. Returns the ids deleted.
    """
    record = LogRegistry(bookkeeper.metadata).get(name)
    referenced = {item.ledger_id for commit in commits(bookkeeper, record, password) for item in commit.ranges}
    deleted = []
    for ledger_id in bookkeeper.list_ledgers():
        try:
            metadata = bookkeeper.get_ledger_metadata(ledger_id)
            if is_orphan(record, ledger_id, metadata.custom_metadata, referenced):
                # Fenced first, so that its writer, if it still lives, does not take the loss for a failing cluster.
                bookkeeper.open_ledger(ledger_id, password=password).close()
                bookkeeper.delete_ledger(ledger_id)
                deleted.append(ledger_id)
        except NoSuchLedgerError:
            continue
    return deleted
