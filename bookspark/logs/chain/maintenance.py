"""Cleaning up after a log: data ledgers left open, orphans, truncated rows, whole logs.

Law: an orphan is a ledger that was created for the log and is not part of it. It is recognised by its epoch, never by its age:
nobody may commit in that epoch any more, and all commits of it can be read (see ``is_orphan``). The log's record says what is
part of the log, and it is changed before any ledger is deleted. If deleting fails or never happens, readers see the same rows.
Ledgers are listed before the record is read by which they are judged, so none of them is of a later log of the same name, whose
epochs begin anew.
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
from bookspark.logs.chain.registry import LaneName, LogName, LogRegistry, check_one_lane, check_password
from bookspark.logs.chain.retention import link_ends
from bookspark.protocol.logs.lanes import MARK, lane_of
from bookspark.protocol.logs.log_record import LOG_LABEL, LogRecord
from bookspark.protocol.logs.orphans import epoch_of, is_orphan
from bookspark.store.decisions.seam import decided
from bookspark.store.metadata.records.names import LedgerId
from bookspark.support.arguments import BytesOrNone, Password, WaitSeconds, checked

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

log = logging.getLogger(__name__)

RECENT_EPOCHS = 64
"""How far back ``collect_recent_orphans`` looks. Batch writes call it every sixteenth epoch, so later calls
make up for one that failed."""

THOROUGH_SECONDS_MAX = 60.0
"""How long ``collect_recent_orphans`` recovers ledgers that earlier epochs left open; meanwhile the run commits its batches."""


@checked
def recover_ledgers(
    bookkeeper: BookKeeper, ledger_ids: Iterable[LedgerId], password: Password, seconds_max: WaitSeconds = 10.0
) -> list[int]:
    """Recover each of the ledgers that is not closed, so that its end is decided.

    Begins no recovery after ``seconds_max`` seconds. A recovery that fails is logged. Returns the ids of those recovered.
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
def collect_orphans(bookkeeper: BookKeeper, name: LaneName, password: Password) -> list[int]:
    """Fence, then delete every ledger that was created for the log in an epoch that is over and is not, or no longer, part of it.

    ``name``: of a log, with all of its lanes, or of a lane. Reads the metadata of all ledgers of the cluster, so it takes long
    where there are many. Returns the ids of the deleted ledgers. Raises NoSuchLogError, UnauthorizedAccessError (wrong password),
    MetadataStoreError, and ReadError if commits can't be read.
    """
    registry, ledgers = LogRegistry(bookkeeper.metadata), bookkeeper.list_ledgers()
    lanes: dict[bytes, tuple[LogRecord, set[int]]] = {}
    for lane in registry.lanes_of(name):
        record = registry.get(lane)
        check_password(record, password)
        referenced = {
            item.ledger_id
            for placed in commits(bookkeeper, lane, password)
            for item in placed.commit.ranges
            if placed.after.rows > record.first_position
        }
        lanes[record.name.encode()] = record, referenced

    def orphan(ledger_id: int, labels: Mapping[str, bytes]) -> bool:
        found = lanes.get(labels.get(LOG_LABEL, b""))
        return found is not None and decided(is_orphan, found[0], ledger_id, labels, found[1])

    return _delete(bookkeeper, password, ledgers, orphan)


@checked
def collect_recent_orphans(bookkeeper: BookKeeper, name: LaneName, password: Password) -> list[int]:
    """Do what ``collect_orphans`` does for the last RECENT_EPOCHS epochs, with a look at new ledgers only. For the log's writers.

    Data ledgers of epochs that are over, are part of the log and still open are recovered: their writers may not have done so.
    Ledgers whose rows were truncated while their epoch stood are not part of the log any more, and are deleted. Returns the ids
    of the deleted ledgers. Raises NoSuchLogError, MetadataStoreError, and ReadError if commits can't be read.

    Most ledgers of an epoch have higher ids than the commit ledgers that the chain had before. ``collect_orphans`` finds what is
    missed: beside batch writes and copies that compaction made, that is not exact.
    """
    ledgers = bookkeeper.list_ledgers()
    record = LogRegistry(bookkeeper.metadata).get(name)
    since = record.newest_epoch - RECENT_EPOCHS
    earlier = takewhile(lambda link: link.epoch < since, record.commit_ledgers)
    after = max((link.ledger_id for link in earlier), default=-1)
    # A data ledger is named in commits of its own epoch only, and no commit ledger has a commit of a higher epoch than its own.
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
        (ledger_id for ledger_id in ledgers if ledger_id > after),
        lambda ledger_id, labels: (
            epoch_of(labels) >= since and decided(is_orphan, record, ledger_id, labels, referenced)
        ),
    )


@checked
def truncate_log(bookkeeper: BookKeeper, name: LaneName, row: BytesOrNone, password: Password) -> list[int]:
    """Give up the rows before row ``row`` of the lane ``name``, and delete the ledgers that only those rows needed.

    Ledgers of epochs that are not over stay, because their writers may still commit entries of them. Returns the ids of the
    deleted ledgers. Raises ConfigurationError if the lane has fewer rows than that, or if the log has several lanes and ``name``
    names none; NoSuchLogError; UnauthorizedAccessError (wrong password); MetadataStoreError; ReadError if commits can't be read.
    """
    registry = LogRegistry(bookkeeper.metadata)
    check_one_lane(registry, name, "truncated")
    reader = LogReader(bookkeeper, name, password, row)
    rows = reader.newest()
    if row > rows:
        raise ConfigurationError(f"log {name!r} has {rows} rows; it can be truncated up to row {rows}, not {row}")
    ends = link_ends(bookkeeper, reader.record, password, row)
    registry.update(name, lambda record: decided(LogRecord.truncated, record, row, ends))
    return collect_orphans(bookkeeper, name, password)


@checked
def delete_log(bookkeeper: BookKeeper, name: LogName, password: Password) -> list[int]:
    """Delete a log with all its ledgers. Returns the ids of the deleted ledgers.

    A micro-batch that is being written fails, or its rows are deleted with the log. If its query goes on, the next micro-batch
    creates the log again, empty and with ledgers of its own, which are not deleted. A deletion that broke off is gone on with,
    also if the log's record is gone: its ledgers are there with its label. Raises NoSuchLogError, UnauthorizedAccessError (wrong
    password) and MetadataStoreError.
    """
    registry = LogRegistry(bookkeeper.metadata)
    ledgers = set(bookkeeper.list_ledgers())
    record = registry.find(name)
    # The records are deleted first: a reader that plans from now on finds no log, instead of a log with holes. The log's own is
    # the last one, so a deletion that breaks off can be begun again. Only those of the log that was found: another deletion may
    # have come first, and the log been made anew since.
    if record is not None:
        check_password(record, password)
        registry.forget(record)
        for lane in sorted((one for one in registry.lane_names() if lane_of(one)[0] == name), reverse=True):
            registry.delete(lane, record.ctime_ms)
    left = registry.delete_left(name)
    created_meanwhile = bookkeeper.list_ledgers()
    # If there is a log of this name again, these may be its ledgers.
    if registry.find(name) is None:
        ledgers.update(created_meanwhile)

    # By the log that the label begins with: of a deletion that broke off, records of lanes may be gone.
    def of_the_log(_: int, labels: Mapping[str, bytes]) -> bool:
        return labels.get(LOG_LABEL, b"").partition(MARK.encode())[0] == name.encode()

    deleted = _delete(bookkeeper, password, sorted(ledgers), of_the_log)
    if record is None and not left and not deleted:
        registry.get(name)
    return deleted


def _delete(
    bookkeeper: BookKeeper,
    password: bytes,
    ledger_ids: Iterable[int],
    chosen: Callable[[int, Mapping[str, bytes]], bool],
) -> list[int]:
    """Fence, then delete each of these ledgers that is ``chosen`` by its id and custom metadata. Returns the ids of the deleted
    ledgers.

    A ledger that can't be fenced is deleted all the same, because nobody would find it later. A ledger with another password is
    not the log's, and stays.
    """
    deleted = []
    unreadable: dict[int, str] = {}
    for metadata, _ in bookkeeper.metadata.read_ledgers(ledger_ids, unreadable):
        ledger_id = metadata.ledger_id
        if not chosen(ledger_id, metadata.custom_metadata):
            continue
        try:
            try:
                # Its writer may still live. After fencing it knows that it lost the ledger, and does not suspect the bookies.
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
