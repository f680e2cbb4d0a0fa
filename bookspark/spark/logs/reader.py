"""Reading a log's commits: what is part of it, in order, from any row on, and as it grows.

Law: readers follow commit ledgers only, and never fence: entries of failed, speculative or zombie attempts lie in data
ledgers too and are never seen. A range named by a commit is confirmed up to its last entry, whatever LAC a reader has
heard; so is the header of a ledger that the chain names, and so is a commit of rows that an offset counts: the newest LAC may be
known to one bookie only, so who heard it once need not hear it again. A ledger of the chain is left for the next one only once
it is closed and read to its end. A chain that is compacted or truncated under a reader does not disturb it: where it stands is
how many commits it has behind it, and the ledger that has the next one is looked for. A log of the same name that was made later
is another log, and never read on in.

Source: docs/decisions/logs.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import DataLossError, NoSuchEntryError, NoSuchLedgerError
from bookspark.protocol.logs.commits import Commit, CommitHeader, Position
from bookspark.protocol.logs.log_record import CommitLedger, LogRecord
from bookspark.spark.logs.codec import decode_commit, decode_header
from bookspark.spark.logs.registry import KIND, LogRegistry, check_password

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

HEADER_ENTRY = 0


class PlacedCommit(NamedTuple):
    """A commit, and how much of the log lies before it."""

    before: Position
    commit: Commit

    @property
    def after(self) -> Position:
        return self.before.followed_by(self.commit)


class LogReader:
    """Follows a log from the commit on that holds row ``position``. Reads no more of the chain than that needs.

    Raises NoSuchLogError and UnauthorizedAccessError when it is made, ReadError where bookies can't be read, and DataLossError
    once the log was deleted and made anew.
    """

    def __init__(self, bookkeeper: BookKeeper, name: str, password: bytes, position: int = 0) -> None:
        self._bookkeeper, self._name, self._password = bookkeeper, name, password
        self._registry = LogRegistry(bookkeeper.metadata)
        self.record: LogRecord = self._registry.get(name)
        """As it was last read."""
        check_password(self.record, password)
        self.position = Position()
        """How much of the log lies before the next commit."""
        self._link: CommitLedger | None = None
        self._handle: ReadHandle | None = None
        self._next_entry = HEADER_ENTRY + 1
        self._record_changed: threading.Event | None = None
        self._seek(lambda before: before.rows <= position)

    def commits(self, known_rows: int = 0) -> Iterator[PlacedCommit]:
        """What was committed since the last call, in order; the first call begins where the reader was made for. ``known_rows``:
        so many rows are committed for certain; they come although no bookie that answers tells of them."""
        while True:
            try:
                if self._handle is None and not self._next_link():
                    return
                assert self._handle is not None
                closed = self._handle.metadata.closed
                yield from self._confirmed(self._handle, known_rows)
            except (NoSuchLedgerError, NoSuchEntryError):
                self._read_record()
                if self._link in self.record.commit_ledgers:
                    raise
                self._handle = None  # deleted after its commits had been put into another one
                continue
            if not closed and not self._handle.metadata.closed:
                return
            if closed:  # and was so before its LAC was read: this was all of it
                self._handle = None

    def _confirmed(self, handle: ReadHandle, known_rows: int) -> Iterator[PlacedCommit]:
        """What the ledger has from where the reader stands."""
        last = handle.read_last_add_confirmed()
        while True:
            while self._next_entry <= last:
                for entry in handle.read(self._next_entry, last):
                    placed = PlacedCommit(self.position, decode_commit(entry.payload, handle.ledger_id, entry.entry_id))
                    self.position, self._next_entry = placed.after, entry.entry_id + 1
                    yield placed
            if handle.metadata.closed or self.position.rows >= known_rows:
                return
            # There is one more, and a ledger that is not closed is the chain's last: the commit is here.
            last = self._next_entry
            handle.confirm(last)

    def wait(self, seconds: float) -> None:
        """Return once there may be more to read, or after ``seconds``. The bookies hold the answer until then."""
        if self._handle is not None:
            self._handle.read_last_add_confirmed_and_entry(self._next_entry, timeout=seconds)
            return
        if self._record_changed is None:
            self._record_changed = threading.Event()
            self._bookkeeper.metadata.watch_record(KIND, self._name, self._record_changed.set)
            if self._registry.get(self._name).commit_ledgers[-1:] not in ((), (self._link,)):
                return
        if self._record_changed.wait(seconds):
            self._record_changed = None

    # -- inside

    def _seek(self, behind: Callable[[Position], bool]) -> None:
        """Stand behind the header of the last ledger of the chain of which that is true, or of the first one."""
        chain = list(self.record.commit_ledgers)
        while chain:
            try:
                self._enter(chain.pop())
            except (NoSuchLedgerError, NoSuchEntryError):
                self._read_record()
                if self._link in self.record.commit_ledgers:
                    raise
                chain = list(self.record.commit_ledgers)  # compacted or truncated meanwhile
                continue
            if behind(self.position):
                return

    def _enter(self, link: CommitLedger) -> None:
        self._link, self._handle = link, None
        handle = open_commit_ledger(self._bookkeeper, link, self._password)
        self.position = read_header(handle).position
        self._handle, self._next_entry = handle, HEADER_ENTRY + 1

    def _read_record(self) -> None:
        record = self._registry.get(self._name)
        if record.ctime_ms != self.record.ctime_ms:
            raise made_anew(self._name, self.position.rows)
        self.record = record

    def _next_link(self) -> bool:
        """Stand in the ledger that has the next commit; False if there is none yet."""
        self._read_record()
        chain = self.record.commit_ledgers
        if self._link is not None and self._link not in chain:
            reached = self.position
            self._seek(lambda position: position.batches <= reached.batches)
            if self.position.batches <= reached.batches:
                self._next_entry += reached.batches - self.position.batches
                self.position = reached
            return True
        following = 0 if self._link is None else chain.index(self._link) + 1
        if following < len(chain):
            self._enter(chain[following])
        return following < len(chain)


def made_anew(name: str, row: int) -> DataLossError:
    """The error of a reader that stands at ``row`` of a log that is there no more."""
    return DataLossError(
        f"log {name!r} was deleted and made anew since this query read it up to row {row}; start the query with a new checkpoint "
        "to read the new log"
    )


def commits(bookkeeper: BookKeeper, name: str, password: bytes, position: int = 0) -> Iterator[PlacedCommit]:
    """All that is committed now, from the commit on that holds row ``position`` or, for speed, some before it."""
    return LogReader(bookkeeper, name, password, position).commits()


def header_of(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> CommitHeader:
    """What all commits of the chain come to; reads its last ledger only."""
    header = CommitHeader()
    for link in record.commit_ledgers[-1:]:
        handle = open_commit_ledger(bookkeeper, link, password)
        header = read_header(handle)
        for placed in read_commits(handle):
            header = header.followed_by(placed.commit)
    return header


def open_commit_ledger(bookkeeper: BookKeeper, link: CommitLedger, password: bytes) -> ReadHandle:
    """For reading; fences nothing."""
    handle = bookkeeper.open_ledger_no_recovery(link.ledger_id, password=password)
    handle.confirm(HEADER_ENTRY)
    return handle


def read_header(handle: ReadHandle) -> CommitHeader:
    """The header of a commit ledger."""
    (entry,) = handle.read(HEADER_ENTRY, HEADER_ENTRY)
    return decode_header(entry.payload, handle.ledger_id)


def read_commits(handle: ReadHandle) -> Iterator[PlacedCommit]:
    """The commits of a commit ledger, as many as are confirmed now."""
    before = read_header(handle).position
    for entry in handle.read(HEADER_ENTRY + 1, handle.read_last_add_confirmed()):
        placed = PlacedCommit(before, decode_commit(entry.payload, handle.ledger_id, entry.entry_id))
        before = placed.after
        yield placed
