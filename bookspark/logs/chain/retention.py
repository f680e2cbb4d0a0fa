"""Removes the rows of a lane that the log's retention lets go, with the ledgers that held them.

Law: the lane's record says that rows are truncated before any ledger of them is deleted, so readers are told of a gap and never
find rows missing that the log still has. The steps, of which each changes nothing if it is done twice or by two at once:

1. The record's first position goes to the end of the last commit that may go (``protocol.logs.retention``).
2. Data ledgers are deleted that hold nothing else: closed, and their last entry named by a commit that went. The tasks of a query
   fill their ledgers batch after batch, so no later commit can name an entry of such a ledger, also while its epoch stands.
3. Commit ledgers that hold nothing else leave the chain, and are deleted. The last one stays.

Until step 3 the chain names the commits that went. So whoever comes after a crash finds the ledgers of step 2 again. A ledger
whose last entry no commit names (a task failed) is left to ``collect_orphans``, once its epoch is over.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError
from bookspark.logs.chain.commit_ledgers import newest_header, open_commit_ledger, read_header, with_chain
from bookspark.logs.chain.reader import commits
from bookspark.logs.chain.registry import LaneName, LogRegistry, check_password
from bookspark.protocol.logs.log_record import CommitLedger, LogRecord
from bookspark.store.decisions.seam import decided
from bookspark.support.arguments import Password, checked

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

log = logging.getLogger(__name__)


@checked
def truncate_expired(bookkeeper: BookKeeper, name: LaneName, password: Password = b"") -> list[int]:
    """Remove the rows of log ``name``, or of one lane of it, that its retention lets go now. Writers do it for their lanes; lanes
    that nobody writes need it.

    Returns the ids of the deleted ledgers. Lanes that are offloaded stay as they are. Raises NoSuchLogError,
    UnauthorizedAccessError (wrong password), MetadataStoreError, and ReadError if commits can't be read. Done again it goes on.
    """
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(name)
    check_password(record, password)
    if registry.retention(record).forever:
        return []
    now_ms = time.time_ns() // 1_000_000
    return [ledger for lane in registry.lanes_of(name) for ledger in _truncated(bookkeeper, lane, password, now_ms)]


def link_ends(bookkeeper: BookKeeper, record: LogRecord, password: bytes, row: int) -> dict[CommitLedger, int]:
    """The row after the last one of each ledger of the chain that ends at ``row`` or before; not of the last one."""
    ends = {}
    for link, following in pairwise(record.commit_ledgers):
        end = read_header(open_commit_ledger(bookkeeper, following, password)).position.rows
        if end > row:
            break
        ends[link] = end
    return ends


def _truncated(bookkeeper: BookKeeper, lane: str, password: bytes, now_ms: int) -> list[int]:
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(lane)
    retention = registry.retention(record)
    if record.offload is not None:
        log.info("log %s: it is offloaded, so its retention is not kept", lane)
        return []
    size = newest_header(bookkeeper, lane, password)[1].position.size if retention.retention_bytes else 0
    row, last_entries = record.first_position, dict[int, int]()
    for placed in commits(bookkeeper, lane, password):
        gone = placed.after.rows <= row
        if not gone and not retention.expired(placed.commit, placed.after, size, now_ms):
            break
        row = max(row, placed.after.rows)
        for item in placed.commit.ranges:
            last_entries[item.ledger_id] = max(item.last_entry_id, last_entries.get(item.ledger_id, -1))

    def forward(newest: LogRecord) -> LogRecord:
        # An offload that was begun meanwhile reads these rows.
        return (
            newest
            if newest.offload is not None or newest.ctime_ms != record.ctime_ms
            else decided(LogRecord.truncated, newest, row, {})
        )

    if registry.update(lane, forward).first_position < row:
        return []
    deleted = _delete(bookkeeper, _complete(bookkeeper, last_entries))
    _, ends = with_chain(bookkeeper, lane, lambda newest: link_ends(bookkeeper, newest, password, row))
    dropped: list[CommitLedger] = []

    def shorter(newest: LogRecord) -> LogRecord:
        changed = decided(LogRecord.truncated, newest, row, ends) if newest.ctime_ms == record.ctime_ms else newest
        dropped[:] = newest.commit_ledgers[: len(newest.commit_ledgers) - len(changed.commit_ledgers)]
        return changed

    registry.update(lane, shorter)
    return deleted + _delete(bookkeeper, [link.ledger_id for link in dropped])


def _complete(bookkeeper: BookKeeper, last_entries: dict[int, int]) -> list[int]:
    """The ledgers that end with this entry; of one that is not closed nobody knows. Those that are gone are left out."""
    unreadable: dict[int, str] = {}
    found = [metadata for metadata, _ in bookkeeper.metadata.read_ledgers(sorted(last_entries), unreadable)]
    for ledger_id, why in unreadable.items():
        log.warning("ledger %d is not deleted, because its record can't be read: %s", ledger_id, why)
    return [one.ledger_id for one in found if one.last_entry_id == last_entries[one.ledger_id]]


def _delete(bookkeeper: BookKeeper, ledger_ids: Iterable[int]) -> list[int]:
    deleted = []
    for ledger_id in ledger_ids:
        with suppress(NoSuchLedgerError):
            bookkeeper.delete_ledger(ledger_id)
            deleted.append(ledger_id)
    return deleted
