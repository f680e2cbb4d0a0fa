"""System tables of logs: their records, the entries of their commits, and their unreadable rows.

Law: the commits alone define the content of a log. A log with another password than the given, or with a lost commit ledger, has
only its record, and ``readable`` is false. A log whose record can't be decoded has only its name. A log deleted since the listing
is left out; ``log_commits`` may lack a log that ``logs`` has.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError, NoSuchEntryError, NoSuchLedgerError, UnauthorizedAccessError
from bookspark.logs import LogReader, LogRegistry, PlacedCommit, check_password
from bookspark.logs.chain.codec import LogFormatError
from bookspark.logs.chain.reader import AT_THE_END
from bookspark.logs.feeds.gaps import gaps_of_lane
from bookspark.protocol.logs.commits import EntryRange, Position
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_record import LogRecord, NoSuchLogError
from bookspark.spark.tables.table import FLAG, INT, LONG, LONGS, TEXT, TIME, Rows, SystemTable, once, time

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

log = logging.getLogger(__name__)


# -- The table ``gaps``: unreadable rows of logs
#
# Law: a gap is the result of a read now (``logs.feeds.gaps``); gaps are not stored, so all rows of the logs are read. Logs with
# another password than the given have no gaps here; table ``logs`` shows which logs those are.


def _lanes(bookkeeper: BookKeeper) -> list[LaneId]:
    return LogRegistry(bookkeeper.metadata).all_lanes()


def _gap_rows(bookkeeper: BookKeeper, lane: LaneId, password: bytes) -> Rows:
    try:
        for gap in gaps_of_lane(bookkeeper, lane, password):
            yield str(lane), gap.lane, gap.first, gap.last, gap.rows, gap.kind.value
    except (NoSuchLogError, UnauthorizedAccessError):
        # The log was deleted since the listing, or has another password.
        return


GAPS = SystemTable(
    "gaps",
    "One row per run of rows of a log that can't be read. This reads all rows of the logs.",
    (
        ("log", TEXT, "Name of the log or lane (orders@1)"),
        ("lane", LONG, "Number of the lane"),
        ("first", LONG, "First position in the lane"),
        ("last", LONG, "Last position in the lane"),
        ("rows", LONG, "Number of rows"),
        ("kind", TEXT, "truncated, lost or not_yet_known"),
    ),
    _lanes,
    _gap_rows,
)


# -- Logs and commits


_READABLE = 8


def _readable(record: LogRecord, password: bytes) -> bool:
    try:
        check_password(record, password)
    except BookKeeperError:
        return False
    return True


def _log_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    registry = LogRegistry(bookkeeper.metadata)
    for lane in registry.all_lanes():
        name = str(lane)
        try:
            state = _found(bookkeeper, lane, password)
        except LogFormatError as error:
            log.warning("%s", error)
            yield name, *[None] * (_READABLE - 1), False, *[None] * (len(LOGS.columns) - _READABLE - 2), lane.log
            continue
        if state is None:
            continue
        record, position = state
        yield (
            name,
            record.oldest_live_epoch,
            record.owner or None,
            [link.ledger_id for link in record.commit_ledgers],
            _decided(record),
            *(position or (None, None, None)),
            position is not None,
            record.options.ensemble_size,
            record.options.write_quorum,
            record.options.ack_quorum,
            record.options.digest_type.value,
            None if record.offload is None else record.offload.table,
            None if record.offload is None else record.offload.position,
            record.first_position,
            time(record.ctime_ms),
            lane.log,
        )


def _decided(record: LogRecord) -> int | None:
    """The epoch before which all commits are decided."""
    if not record.commit_ledgers:
        return None
    oldest = record.oldest_live_epoch
    return oldest if record.recovered else min(record.commit_ledgers[-1].epoch, oldest - 1)


def _found(bookkeeper: BookKeeper, lane: LaneId, password: bytes) -> tuple[LogRecord, Position | None] | None:
    """The log's record, and the log's end if ``password`` is the log's and its commits are there. None if the log was deleted
    since the listing."""
    record = LogRegistry(bookkeeper.metadata).find(lane)
    if record is None:
        return None
    if not _readable(record, password):
        return record, None
    try:
        reader = LogReader(bookkeeper, lane, password, AT_THE_END)
        return reader.record, _end(reader)
    except NoSuchLogError:
        return None
    except (NoSuchLedgerError, NoSuchEntryError) as error:
        # The reader has checked: the log's record still names that ledger.
        log.warning("log %s: its commits can't be read: %s", lane, error)
        return record, None


def _end(reader: LogReader) -> Position:
    """The lane's end, without the rows of the ledger that its newest commit opened, if that was deleted."""
    try:
        return reader.end()
    except NoSuchLedgerError:
        if not _opened_is_deleted(reader):
            raise
        return reader.position


def _opened_is_deleted(reader: LogReader) -> bool:
    """Whether the ledger that the newest commit opened was deleted. (The reader must have read the commits.)"""
    try:
        _ = reader.open_rows
    except NoSuchLedgerError:
        return True
    return False


def _commit_rows(bookkeeper: BookKeeper, lane: LaneId, password: bytes) -> Rows:
    name = str(lane)
    try:
        record = LogRegistry(bookkeeper.metadata).find(lane)
    except LogFormatError as error:
        log.warning("%s", error)
        return
    if record is None or not _readable(record, password):
        return
    try:
        reader = LogReader(bookkeeper, lane, password)
        for placed in reader.commits():
            yield from _ranges(name, placed, placed.before.rows, placed.commit.ranges)
        if _opened_is_deleted(reader):
            assert reader.opened is not None
            # The log's number of rows is unknown.
            yield from _ranges(name, placed, reader.position.rows, (EntryRange(reader.opened, 0, -1, 0, 0),))
            return
        opened = reader.open_rows
        if opened is not None and opened.look():
            yield from _ranges(name, placed, reader.position.rows, (opened.range_of(opened.rows),))
    except NoSuchLogError:
        return
    except (NoSuchLedgerError, NoSuchEntryError) as error:
        log.warning("log %s: its commits can't be read on: %s", name, error)


def _ranges(name: str, placed: PlacedCommit, position: int, ranges: Iterable[EntryRange]) -> Rows:
    before, commit = placed
    for item in ranges:
        yield (
            name, before.batches, commit.query, commit.batch, commit.run, commit.epoch, time(commit.time_ms),
            position, item.ledger_id, item.first_entry_id, item.last_entry_id, item.rows, item.size,
        )  # fmt: skip
        position += item.rows


LOGS = SystemTable(
    "logs",
    "One row per log, and per lane of it beside lane 0: its record.",
    (
        ("log", TEXT, "Name of the log or lane (orders@1)"),
        ("epoch", LONG, "Lowest epoch that may still commit"),
        ("owner", TEXT, "Run of the owning streaming query"),
        ("commit_ledgers", LONGS, "Ids of its commit ledgers, in order"),
        (
            "committed_epoch",
            LONG,
            "Epoch before which all commits are decided",
        ),
        ("batches", LONG, "Committed batches"),
        ("rows", LONG, "Committed rows"),
        ("bytes", LONG, "Committed bytes of payload"),
        (
            "readable",
            FLAG,
            "Is the password right, and are all commits there?",
        ),
        ("ensemble_size", INT, "Ensemble size"),
        ("write_quorum", INT, "Copies of each entry"),
        ("ack_quorum", INT, "Copies that acknowledge an entry"),
        ("digest_type", TEXT, "Digest type"),
        ("offloaded_to", TEXT, "Delta table of its offloaded rows"),
        ("offloaded_rows", LONG, "Position before which rows are in that table"),
        ("first_position", LONG, "Position of the first row"),
        ("created_at", TIME, "Time of creation"),
        ("log_id", LONG, "Id of its log"),
    ),
    once,
    _log_rows,
)

LOG_COMMITS = SystemTable(
    "log_commits",
    "One row per range of entries in a commit of a log, or of a ledger that it opened.",
    (
        ("log", TEXT, "Name of the log or lane (orders@1)"),
        ("commit", LONG, "Number of the commit in its lane, from 0"),
        ("query_id", TEXT, "Id of the streaming query or batch write"),
        ("batch_id", LONG, "Micro-batch of the query"),
        ("run_id", TEXT, "Committing run"),
        ("epoch", LONG, "Epoch of the commit"),
        ("committed_at", TIME, "Time of the commit"),
        ("position", LONG, "Position of the first row in its lane"),
        ("ledger_id", LONG, "Data ledger"),
        ("first_entry_id", LONG, "First entry"),
        ("last_entry_id", LONG, "Last entry"),
        ("rows", LONG, "Rows"),
        ("bytes", LONG, "Bytes of payload"),
    ),
    _lanes,
    _commit_rows,
)
