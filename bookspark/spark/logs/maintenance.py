"""Cleaning up after a log: data ledgers that their writers left open, orphans, truncated rows, the whole log.

Law: an orphan is judged by epoch, once the owner has recovered all commits before its own (see ``is_orphan``), never by
age. What is part of a log is said by its record, which is changed before any ledger is deleted; if the deleting fails or is
never done, readers see the same rows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from bookspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LedgerRecoveryError,
    NoSuchLedgerError,
    UnauthorizedAccessError,
)
from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_LABEL, is_orphan
from bookspark.spark.logs.reader import LogReader, commits, open_commit_ledger, read_commits, read_header
from bookspark.spark.logs.registry import LogRegistry, check_password

if TYPE_CHECKING:
    from bookspark.client import BookKeeper

log = logging.getLogger(__name__)

RECENT_EPOCHS = 64
"""Batch writes look after orphans every sixteenth time: so a collection that fails is made up for by the next ones."""

THOROUGH_SECONDS_MAX = 60.0
"""For the ledgers that earlier epochs left open, beside the commits of the one that stands."""


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
    """Fence, then delete every ledger that was made for the log in an earlier epoch and is no part of it (any more).

    Reads the metadata of all ledgers: for maintenance, not for each batch. Returns the ids deleted.
    """
    record = LogRegistry(bookkeeper.metadata).get(name)
    check_password(record, password)
    referenced = {
        item.ledger_id
        for placed in commits(bookkeeper, name, password)
        for item in placed.commit.ranges
        if placed.after.rows > record.first_position
    }
    return _delete(
        bookkeeper,
        password,
        bookkeeper.list_ledgers(),
        lambda ledger_id, labels: is_orphan(record, ledger_id, labels, referenced),
    )


def collect_recent_orphans(bookkeeper: BookKeeper, name: str, password: bytes) -> list[int]:
    """The same for the ``RECENT_EPOCHS`` before the one that stands, for its owner, with a look at new ledgers only. Data ledgers
    of those epochs that are part of the log are recovered, if they are open still: their owners may not have come to it. Those of
    rows that were truncated while their epoch stood are no part of it any more.

    The ledgers of an epoch have higher ids than the commit ledgers of all epochs before it: the log was claimed in between.
    (Copies that compaction made are higher than they should be; what is missed because of them ``collect_orphans`` finds.)
    """
    record = LogRegistry(bookkeeper.metadata).get(name)
    since = record.epoch - RECENT_EPOCHS
    after = max((link.ledger_id for link in record.commit_ledgers if link.epoch < since), default=-1)
    referenced = {
        item.ledger_id
        for link in record.commit_ledgers
        if since <= link.epoch < record.epoch
        for placed in read_commits(open_commit_ledger(bookkeeper, link, password))
        if placed.after.rows > record.first_position
        for item in placed.commit.ranges
    }
    recover_ledgers(bookkeeper, sorted(referenced, reverse=True), password, THOROUGH_SECONDS_MAX)
    return _delete(
        bookkeeper,
        password,
        (ledger_id for ledger_id in bookkeeper.list_ledgers() if ledger_id > after),
        lambda ledger_id, labels: (
            int(labels.get(EPOCH_LABEL, b"0")) >= since and is_orphan(record, ledger_id, labels, referenced)
        ),
    )


def truncate_log(bookkeeper: BookKeeper, name: str, row: int, password: bytes) -> list[int]:
    """Give up the rows before ``row``, and delete the ledgers that only they needed. Returns the ids deleted.

    Ledgers of the epoch that stands stay until the next one: their writer may be about to commit entries of them. Raises
    ConfigurationError if the log is not that long.
    """
    registry = LogRegistry(bookkeeper.metadata)
    end = LogReader(bookkeeper, name, password, row)
    deque(end.commits(), maxlen=0)
    if row > end.position.rows:
        raise ConfigurationError(
            f"log {name!r} has {end.position.rows} rows; it can be truncated up to row {end.position.rows}, not {row}"
        )
    chain = end.record.commit_ledgers
    ends = {
        link: read_header(open_commit_ledger(bookkeeper, following, password)).position.rows
        for link, following in pairwise(chain)
    }
    registry.update(name, lambda record: record.truncated(row, ends))
    return collect_orphans(bookkeeper, name, password)


def delete_log(bookkeeper: BookKeeper, name: str, password: bytes) -> list[int]:
    """Delete a log with all its ledgers. Returns their ids.

    A micro-batch that is under way fails, or is deleted with the log; the next one of a query that goes on makes the log anew,
    empty and with ledgers of its own, which stay.
    """
    registry = LogRegistry(bookkeeper.metadata)
    check_password(registry.get(name), password)
    ledgers = set(bookkeeper.list_ledgers())
    # The record first: a reader that plans from now on finds no log, instead of one with holes.
    registry.delete(name)
    made_meanwhile = bookkeeper.list_ledgers()
    if registry.find(name) is None:  # else they may be the new log's
        ledgers.update(made_meanwhile)
    return _delete(bookkeeper, password, sorted(ledgers), lambda _, labels: labels.get(LOG_LABEL) == name.encode())


def _delete(
    bookkeeper: BookKeeper,
    password: bytes,
    ledger_ids: Iterable[int],
    chosen: Callable[[int, Mapping[str, bytes]], bool],
) -> list[int]:
    """Fence, then delete each ledger of these that is ``chosen`` by its id and custom metadata. One that can't be fenced is
    deleted all the same: nobody would find it later. One of another password is not the log's, and stays."""
    deleted = []
    for ledger_id in ledger_ids:
        try:
            if chosen(ledger_id, bookkeeper.get_ledger_metadata(ledger_id).custom_metadata):
                try:
                    # Fenced first, so that its writer, if it still lives, does not take the loss for a failing cluster.
                    bookkeeper.open_ledger(ledger_id, password=password).close()
                except LedgerRecoveryError as error:
                    log.info("ledger %d is deleted without having been fenced: %s", ledger_id, error)
                bookkeeper.delete_ledger(ledger_id)
                deleted.append(ledger_id)
        except NoSuchLedgerError:
            continue
        except UnauthorizedAccessError as error:
            log.warning("ledger %d says that it was made for the log, and is not deleted: %s", ledger_id, error)
    return deleted
