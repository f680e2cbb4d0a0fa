"""Removes the rows of a lane beyond the log's retention, with their ledgers.

Law: the lane's record marks rows as truncated before any of their ledgers is deleted, so a reader gets a gap and never misses
rows that the log still has. Each step may be repeated, or run twice at the same time:

1. The record's first position moves to the end of the last expired commit (``protocol.logs.retention``).
2. Data ledgers without other rows are deleted: closed ledgers whose last entry an expired commit names. Tasks of a query fill
   their ledgers batch after batch, so no later commit can name an entry of such a ledger, even in a live epoch.
3. Commit ledgers without other commits leave the chain and are deleted. The last commit ledger stays.

Until step 3 the chain names the expired commits, so after a crash the next run finds the ledgers of step 2 again. A ledger whose
last entry no commit names (a task failed) is left to ``collect_orphans``, after its epoch.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError
from bookspark.logs.chain.commit_ledgers import newest_header, open_commit_ledger, read_header, with_chain
from bookspark.logs.chain.reader import commits
from bookspark.logs.chain.registry import Lane, LogRegistry, check_password
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_record import CommitLedger, LogRecord
from bookspark.store.decisions.seam import decided
from bookspark.support.arguments import Password, checked

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

log = logging.getLogger(__name__)


@checked
def truncate_expired(bookkeeper: BookKeeper, name: Lane, password: Password = b"") -> list[int]:
    """Remove the expired rows of log ``name``, or of one of its lanes. Writers do so for their lanes; idle lanes need this call.

    Returns the ids of the deleted ledgers. Leaves offloaded lanes alone. A second call finishes an interrupted one. Raises
    NoSuchLogError, UnauthorizedAccessError (wrong password), MetadataStoreError, and ReadError if commits can't be read.
    """
    registry = LogRegistry(bookkeeper.metadata)
    lanes = registry.lanes_of(name)
    check_password(registry.get(lanes[0]), password)
    of_lanes = (truncate_expired_of_lane(bookkeeper, lane, password) for lane in lanes)
    return [ledger for deleted in of_lanes for ledger in deleted]


def link_ends(bookkeeper: BookKeeper, record: LogRecord, password: bytes, row: int) -> dict[CommitLedger, int]:
    """End row of each ledger of the chain that ends at ``row`` or before; without the chain's last ledger."""
    ends = {}
    for link, following in pairwise(record.commit_ledgers):
        end = read_header(open_commit_ledger(bookkeeper, following, password)).position.rows
        if end > row:
            break
        ends[link] = end
    return ends


def truncate_expired_of_lane(bookkeeper: BookKeeper, lane: LaneId, password: bytes) -> list[int]:
    """``truncate_expired`` for one lane."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(lane)
    retention = registry.retention(record)
    if retention.forever:
        return []
    if record.offload is not None:
        log.info("log %s: it is offloaded, so its retention is not kept", lane)
        return []
    now_ms = bookkeeper.metadata.clock.now_ms() if retention.retention_ms else 0
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
        # An offload that began meanwhile reads these rows.
        return newest if newest.offload is not None else decided(LogRecord.truncated, newest, row, {})

    if registry.update(lane, forward).first_position < row:
        return []
    deleted = _delete(bookkeeper, _complete(bookkeeper, last_entries))
    newest = registry.get(lane)
    _, ends = with_chain(bookkeeper, newest, lambda newest: link_ends(bookkeeper, newest, password, row))
    dropped: list[CommitLedger] = []

    def shorter(newest: LogRecord) -> LogRecord:
        changed = decided(LogRecord.truncated, newest, row, ends)
        dropped[:] = newest.commit_ledgers[: len(newest.commit_ledgers) - len(changed.commit_ledgers)]
        return changed

    registry.update(lane, shorter)
    return deleted + _delete(bookkeeper, [link.ledger_id for link in dropped])


def _complete(bookkeeper: BookKeeper, last_entries: dict[int, int]) -> list[int]:
    """The ledgers that end with the given entry. Open and deleted ledgers are not included."""
    unreadable: dict[int, str] = {}
    ledgers = [metadata for metadata, _ in bookkeeper.metadata.read_ledgers(sorted(last_entries), unreadable)]
    for ledger_id, why in unreadable.items():
        log.warning("ledger %d is not deleted, because its record can't be read: %s", ledger_id, why)
    return [one.ledger_id for one in ledgers if one.last_entry_id == last_entries[one.ledger_id]]


def _delete(bookkeeper: BookKeeper, ledger_ids: Iterable[int]) -> list[int]:
    deleted = []
    for ledger_id in ledger_ids:
        with suppress(NoSuchLedgerError):
            bookkeeper.delete_ledger(ledger_id)
            deleted.append(ledger_id)
    return deleted
