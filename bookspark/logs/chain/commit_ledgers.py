"""A commit ledger: its header, which sums up all commits before it, and its commits.

Law: a ledger in a chain has its header and first commit, whatever last add confirmed (LAC) the bookies report: both were
acknowledged before the chain named it. No function here fences.

Source: docs/decisions/logs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bookspark.errors import NoSuchEntryError, NoSuchLedgerError
from bookspark.logs.chain.codec import decode_commit, decode_header
from bookspark.logs.chain.registry import Lane, LogRegistry
from bookspark.protocol.logs.commits import START, Commit, CommitHeader, Position
from bookspark.protocol.logs.lanes import after_of, lane_id
from bookspark.protocol.logs.log_record import CommitLedger, LogRecord
from bookspark.support.arguments import Password, checked

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.client.reading.read_handle import ReadHandle

Found = TypeVar("Found")

HEADER_ENTRY = 0
"""The entry that sums up all commits before the ledger."""
FIRST_COMMIT = HEADER_ENTRY + 1


class _Placed(NamedTuple):
    before: Position
    """Batches, rows and bytes of the lane before the commit."""
    commit: Commit


class PlacedCommit(_Placed):
    """A commit and its place in the lane."""

    @cached_property
    def after(self) -> Position:
        """Batches, rows and bytes of the lane up to and including the commit."""
        return self.before.followed_by(self.commit)


@checked
def header_of(bookkeeper: BookKeeper, record: LogRecord, password: Password) -> CommitHeader:
    """Sum of all commits of the lane. Reads only the last ledger of the chain.

    Raises UnauthorizedAccessError (wrong password), NoSuchLedgerError if the chain changed after ``record`` was read, and
    ReadError if too few bookies answer.
    """
    if not record.commit_ledgers:
        return header_before(bookkeeper, record, password)
    handle = open_commit_ledger(bookkeeper, record.commit_ledgers[-1], password)
    header = read_header(handle)
    for placed in read_commits(handle):
        header = header.followed_by(placed.commit)
    return header


def header_before(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> CommitHeader:
    """Initial header of a lane without commits: empty, or the commits of its writer's earlier lane. Raises the errors of
    ``newest_header``."""
    registry, lane = LogRegistry(bookkeeper.metadata), lane_id(record)
    ended = record.ended_rows is not None or not lane.number
    after = record.after if ended else after_of(registry.get(lane.lane(0)), lane.number)
    if not after:
        return CommitHeader()
    # That lane has commits (``LaneIndex``), so this goes no further back.
    _, header = newest_header(bookkeeper, lane.lane(after), password)
    return CommitHeader(0, START, header.last_batches, header.fingerprints, header.time_ms)


@checked
def newest_header(bookkeeper: BookKeeper, name: Lane, password: Password) -> tuple[LogRecord, CommitHeader]:
    """The lane's record and the sum of its commits, as far as readers see them.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), NoSuchLedgerError and NoSuchEntryError if the last commit
    ledger is lost, and ReadError if too few bookies answer.
    """
    record = LogRegistry(bookkeeper.metadata).get(name)
    return with_chain(bookkeeper, record, lambda record: header_of(bookkeeper, record, password))


def with_chain(
    bookkeeper: BookKeeper, record: LogRecord, read: Callable[[LogRecord], Found]
) -> tuple[LogRecord, Found]:
    """The lane's record and the result of ``read`` for it; repeats if the chain was compacted or truncated meanwhile. ``record``:
    a fresh copy."""
    registry, lane = LogRegistry(bookkeeper.metadata), lane_id(record)
    while True:
        try:
            return record, read(record)
        except (NoSuchLedgerError, NoSuchEntryError):
            newest = registry.get(lane)
            if newest.commit_ledgers == record.commit_ledgers:
                raise
            record = newest


def open_commit_ledger(bookkeeper: BookKeeper, link: CommitLedger, password: bytes) -> ReadHandle:
    return bookkeeper.open_ledger_no_recovery(link.ledger_id, password=password, confirmed=FIRST_COMMIT)


def read_header(handle: ReadHandle) -> CommitHeader:
    (entry,) = handle.read(HEADER_ENTRY, HEADER_ENTRY)
    return decode_header(entry.payload, handle.ledger_id)


def read_beginning(handle: ReadHandle) -> tuple[CommitHeader, Commit]:
    """The header of a commit ledger and its first commit, in one read."""
    header, first = handle.read(HEADER_ENTRY, FIRST_COMMIT)
    return decode_header(header.payload, handle.ledger_id), decode_commit(first.payload, handle.ledger_id, FIRST_COMMIT)


def read_commits(handle: ReadHandle) -> Iterator[PlacedCommit]:
    """The confirmed commits of a commit ledger."""
    before = read_header(handle).position
    for entry in handle.read(FIRST_COMMIT, handle.read_last_add_confirmed()):
        placed = PlacedCommit(before, decode_commit(entry.payload, handle.ledger_id, entry.entry_id))
        before = placed.after
        yield placed
