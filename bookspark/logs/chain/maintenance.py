"""Cleaning up after a log: open data ledgers, orphans, truncated rows, whole logs.

Law: an orphan is a ledger that was created for the log and is not part of it. Its epoch decides, never its age: no writer may
commit in that epoch any more, and all its commits are readable (``is_orphan``). The log's record changes before any ledger is
deleted, so readers see the same rows if a deletion fails. Ledgers have the log's id, so none of a later log of the name is meant.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING

from bookspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LedgerRecoveryError,
    NoSuchLedgerError,
    UnauthorizedAccessError,
)
from bookspark.logs.chain.commit_ledgers import open_commit_ledger, read_commits
from bookspark.logs.chain.reader import LogReader, commits
from bookspark.logs.chain.registry import Lane, LogName, LogRegistry, check_password, only_lane
from bookspark.logs.chain.retention import link_ends
from bookspark.protocol.logs.lanes import MARK, LaneId
from bookspark.protocol.logs.log_record import LOG_ID_LABEL, LOG_LABEL, LogRecord
from bookspark.protocol.logs.orphans import epoch_of, is_of, is_orphan
from bookspark.store.decisions.seam import decided
from bookspark.store.metadata.records.names import LedgerId
from bookspark.support.arguments import BytesOrNone, Password, WaitSeconds, checked
from bookspark.support.plain_text import counted

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

log = logging.getLogger(__name__)

RECENT_EPOCHS = 64
"""Number of epochs that ``collect_recent_orphans`` covers. Batch writes call it every sixteenth epoch, so later calls repair a
failed call."""

THOROUGH_SECONDS_MAX = 60.0
"""Time limit for ``collect_recent_orphans`` to recover open ledgers; the run commits its batches meanwhile."""


@checked
def recover_ledgers(
    bookkeeper: BookKeeper, ledger_ids: Iterable[LedgerId], password: Password, seconds_max: WaitSeconds = 10.0
) -> list[int]:
    """Recover each open ledger, so that its end is decided. Returns the ids of the recovered ledgers.

    Begins no recovery after ``seconds_max`` seconds. Logs a failed recovery.
    """
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


@checked
def collect_orphans(bookkeeper: BookKeeper, name: Lane, password: Password) -> list[int]:
    """Fence and delete all orphans of the log. Returns the ids of the deleted ledgers.

    ``name``: of a log with all its lanes, or of a lane. Reads the metadata of all ledgers of the cluster. Raises NoSuchLogError,
    UnauthorizedAccessError (wrong password), MetadataStoreError, and ReadError if commits can't be read.
    """
    registry, lanes = LogRegistry(bookkeeper.metadata), list[tuple[LogRecord, set[int]]]()
    for lane in registry.lanes_of(name):
        record = registry.get(lane)
        check_password(record, password)
        referenced = {
            item.ledger_id
            for placed in commits(bookkeeper, lane, password)
            for item in placed.commit.ranges
            if placed.after.rows > record.first_position
        }
        lanes.append((record, referenced))

    def orphan(ledger_id: int, labels: Mapping[str, bytes]) -> bool:
        own = ((record, referenced) for record, referenced in lanes if is_of(record, labels))
        return any(decided(is_orphan, record, ledger_id, labels, referenced) for record, referenced in own)

    return _delete(bookkeeper, password, bookkeeper.list_ledgers(), orphan)


@checked
def collect_recent_orphans(bookkeeper: BookKeeper, name: Lane, password: Password) -> list[int]:
    """Like ``collect_orphans``, for the last RECENT_EPOCHS epochs and new ledgers only. For the log's writers.

    Also recovers open data ledgers of earlier epochs that are part of the log. Returns the ids of the deleted ledgers. Raises
    NoSuchLogError, MetadataStoreError, and ReadError if commits can't be read.

    Reads only ledgers with ids above those of the older commit ledgers. Beside batch writes and compaction that bound is inexact;
    ``collect_orphans`` finds the rest.
    """
    record = LogRegistry(bookkeeper.metadata).get(name)
    since = record.newest_epoch - RECENT_EPOCHS
    earlier = takewhile(lambda link: link.epoch < since, record.commit_ledgers)
    after = max((link.ledger_id for link in earlier), default=-1)
    # A data ledger appears only in commits of its own epoch, and a commit ledger has no commit of a higher epoch than its own.
    recent = [
        placed.commit
        for link in record.commit_ledgers
        if link.epoch >= since
        for placed in read_commits(open_commit_ledger(bookkeeper, link, password))
        if placed.after.rows > record.first_position
    ]
    referenced = {item.ledger_id for commit in recent for item in commit.ranges}
    over = {item.ledger_id for commit in recent if record.ended(commit.epoch) for item in commit.ranges}
    recover_ledgers(bookkeeper, sorted(over, reverse=True), password, THOROUGH_SECONDS_MAX)
    return _delete(
        bookkeeper,
        password,
        (ledger_id for ledger_id in bookkeeper.list_ledgers() if ledger_id > after),
        lambda ledger_id, labels: (
            epoch_of(labels) >= since and decided(is_orphan, record, ledger_id, labels, referenced)
        ),
    )


@checked
def truncate_log(bookkeeper: BookKeeper, name: Lane, row: BytesOrNone, password: Password) -> list[int]:
    """Drop the rows before row ``row`` of the lane ``name``, and delete the ledgers with no other rows. Returns their ids.

    Ledgers of live epochs stay: their writers may still commit entries of them. Raises ConfigurationError (the lane has fewer
    than ``row`` rows, or the log has several lanes and ``name`` names none), NoSuchLogError, UnauthorizedAccessError (wrong
    password), MetadataStoreError, and ReadError if commits can't be read.
    """
    registry = LogRegistry(bookkeeper.metadata)
    lane = name if isinstance(name, LaneId) else only_lane(registry, name, "truncated")
    reader = LogReader(bookkeeper, lane, password, row)
    rows = reader.newest()
    if row > rows:
        raise ConfigurationError(
            f"log '{name}' has {counted(rows, 'row')}; it can be truncated up to row {rows}, not {row}"
        )
    ends = link_ends(bookkeeper, reader.record, password, row)
    registry.update(reader.lane, lambda record: decided(LogRecord.truncated, record, row, ends))
    return collect_orphans(bookkeeper, reader.lane, password)


@checked
def delete_log(bookkeeper: BookKeeper, name: LogName | LaneId, password: Password) -> list[int]:
    """Delete a log with all its ledgers. Returns the ids of the deleted ledgers.

    A running micro-batch fails, or its rows are deleted too. If its query continues, the next micro-batch creates another log of
    the name, with new ledgers, which stay. A second call finishes an interrupted deletion: also deletes ledgers with the log's
    name whose log, by its id, is gone. Raises NoSuchLogError, UnauthorizedAccessError (wrong password) and MetadataStoreError.
    """
    registry = LogRegistry(bookkeeper.metadata)
    log, text = (name, name.name) if isinstance(name, LaneId) else (registry.lane(name), name)
    record = None if log is None else registry.find(log)
    if record is not None:
        check_password(record, password)
    # Records first: new readers see no log instead of a log with holes.
    if log is not None:
        registry.delete(log)
    exists: dict[bytes, bool] = {}

    def of_a_deleted_log(_: int, labels: Mapping[str, bytes]) -> bool:
        own, number = labels.get(LOG_LABEL, b"").partition(MARK.encode())[0], labels.get(LOG_ID_LABEL, b"")
        if own != text.encode() or not number.isdigit():
            return False
        if number not in exists:
            exists[number] = registry.exists(int(number))
        return not exists[number]

    # Listed after the deletion: a writer of the log may have created one until then.
    deleted = _delete(bookkeeper, password, bookkeeper.list_ledgers(), of_a_deleted_log)
    if not deleted and record is None and (log is None or log is name):
        registry.get(name)
    return deleted


def _delete(
    bookkeeper: BookKeeper,
    password: bytes,
    ledger_ids: Iterable[int],
    chosen: Callable[[int, Mapping[str, bytes]], bool],
) -> list[int]:
    """Fence and delete each ledger ``chosen`` by id and custom metadata. Returns the ids of the deleted ledgers.

    A ledger that can't be fenced is deleted too: no later call would find it. A ledger with another password is not the log's,
    and stays.
    """
    deleted = []
    unreadable: dict[int, str] = {}
    for metadata, _ in bookkeeper.metadata.read_ledgers(ledger_ids, unreadable):
        ledger_id = metadata.ledger_id
        if not chosen(ledger_id, metadata.custom_metadata):
            continue
        try:
            try:
                # After fencing, a live writer knows that it lost the ledger, and does not suspect the bookies.
                bookkeeper.open_ledger(ledger_id, password=password).close()
            except LedgerRecoveryError as error:
                log.info("ledger %d is deleted without having been fenced: %s", ledger_id, error)
            bookkeeper.delete_ledger(ledger_id)
            deleted.append(ledger_id)
        except NoSuchLedgerError:
            continue
        except UnauthorizedAccessError as error:
            log.warning("ledger %d has the log's label but another password, and is not deleted: %s", ledger_id, error)
    for ledger_id, why in unreadable.items():
        log.warning("ledger %d is not deleted, because nobody knows whether it is the log's: %s", ledger_id, why)
    return deleted
