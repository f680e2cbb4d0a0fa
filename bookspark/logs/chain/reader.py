"""Reading the commits of a log's lane, in order, from any row on, and as the lane grows. A log of one lane is that lane.

Law:

* Readers follow commit ledgers only, and never fence. Data ledgers also hold entries of failed, speculative and outdated
  attempts, which no commit names, and which are therefore never read.
* A range that a commit names is confirmed up to its last entry, whatever last add confirmed (LAC) a reader has heard. So is the
  header of a ledger that the chain names, and so is a commit whose rows an offset counts: perhaps only one bookie knows the
  newest LAC, and a reader that heard it once need not hear it again.
* The rows of the ledger that the newest commit opened follow those that are committed (``open_rows``).
* A reader goes on to the next ledger of the chain only when the present one is closed and read to its end.
* A chain that is compacted or truncated meanwhile does not disturb a reader. Its place is the number of commits before it, and
  it looks for the ledger that has the next one.
* A log of the same name that was created later is another log. No reader goes on in it.

Source: docs/decisions/logs.md.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bookspark.arguments import BytesOrNone, Password, WaitSeconds, checked, checks_methods
from bookspark.errors import DataLossError, NoSuchEntryError, NoSuchLedgerError
from bookspark.logs.chain.codec import decode_commit, decode_header
from bookspark.logs.chain.open_rows import OpenRows
from bookspark.logs.chain.registry import KIND, LaneName, LogRegistry, check_password
from bookspark.protocol.logs.commits import START, Commit, CommitHeader, Position
from bookspark.protocol.logs.lanes import after_of, lane_name, lane_of
from bookspark.protocol.logs.log_record import CommitLedger, LogRecord

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

Found = TypeVar("Found")

AT_THE_END = (1 << 63) - 1
"""The position of a reader that wants the newest commits alone."""
RECENT_MAX = 1000
"""How many of the commits that ``LogReader.newest`` read last are kept."""
HEADER_ENTRY = 0
"""The entry of a commit ledger that sums up all commits before the ledger."""


class PlacedCommit(NamedTuple):
    """A commit and its place in the log."""

    before: Position
    """Batches, rows and bytes of the log before the commit."""
    commit: Commit

    @property
    def after(self) -> Position:
        """Batches, rows and bytes of the log up to and with the commit."""
        return self.before.followed_by(self.commit)


@checks_methods
class LogReader:
    """Follows a lane from the commit that holds row ``position``. Reads no more of the chain than that needs.

    The constructor raises NoSuchLogError and UnauthorizedAccessError (wrong password). Every method that reads raises ReadError
    if too few bookies answer, MetadataStoreError, and DataLossError if the log was deleted and created again.
    """

    def __init__(self, bookkeeper: BookKeeper, name: str, password: bytes, position: int = 0) -> None:
        name = lane_name(*lane_of(name))
        self._bookkeeper, self._name, self._password = bookkeeper, name, password
        self._registry = LogRegistry(bookkeeper.metadata)
        self.record: LogRecord = self._registry.get(name)
        """The log's record, as it was last read."""
        check_password(self.record, password)
        self.position = Position()
        """Batches, rows and bytes before the next commit."""
        self.opened: int | None = None
        """The ledger that the newest commit which was read opened."""
        self.recent: deque[PlacedCommit] = deque(maxlen=RECENT_MAX)
        """The commits that ``newest`` read last, one after the other."""
        self._open_rows: OpenRows | None = None
        self._heard = False
        """Whether ``wait`` heard that there is a commit, of which ``commits`` did not tell yet; no bookie is asked for its LAC
        then."""
        self._link: CommitLedger | None = None
        self._handle: ReadHandle | None = None
        self._next_entry = HEADER_ENTRY + 1
        self._record_changed: threading.Event | None = None
        self._seek(lambda before: before.rows <= position)

    def commits(self, known_rows: BytesOrNone = 0) -> Iterator[PlacedCommit]:
        """The commits since the last call, in order. The first call begins with the commit that holds the constructor's
        ``position``.

        ``known_rows``: the number of rows that are known to be committed. They come even if no bookie that answers knows that
        they are confirmed.
        """
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
                # The ledger was deleted after its commits had been copied into another one.
                self._handle = None
                continue
            if not closed and not self._handle.metadata.closed:
                return
            # The ledger was closed before its LAC was read, so these were all of its commits.
            if closed:
                self._handle = None

    def _confirmed(self, handle: ReadHandle, known_rows: int) -> Iterator[PlacedCommit]:
        """The commits of the ledger from the reader's place on."""
        heard, self._heard = self._heard and not handle.metadata.closed, False
        last = handle.last_add_confirmed if heard else handle.read_last_add_confirmed()
        while True:
            while self._next_entry <= last:
                for entry in handle.read(self._next_entry, last):
                    placed = PlacedCommit(self.position, decode_commit(entry.payload, handle.ledger_id, entry.entry_id))
                    self.position, self._next_entry = placed.after, entry.entry_id + 1
                    self.opened = placed.commit.open_ledger
                    yield placed
            missing = known_rows - self.position.rows
            if handle.metadata.closed or missing <= 0 or ((rows := self.open_rows) and rows.may_have(missing)):
                return
            # There is one more commit. A ledger that is not closed is the chain's last, so the commit is in this ledger.
            last = self._next_entry
            handle.confirm(last)

    def handle_of(self, link: CommitLedger) -> ReadHandle | None:
        """The handle of the commit ledger, if it is the one that is read now."""
        return self._handle if link == self._link else None

    @property
    def open_rows(self) -> OpenRows | None:
        """The rows behind those of the newest commit that was read, if it opened a ledger. Raises NoSuchLedgerError if that is
        deleted."""
        if self.opened is None:
            self._open_rows = None
        elif self._open_rows is None or self._open_rows.ledger_id != self.opened:
            self._open_rows = OpenRows(self._bookkeeper, self.opened, self._password)
        return self._open_rows

    def newest(self) -> int:
        """How many rows there are now: those of all commits, and those that are confirmed in the ledger that is open."""
        # If the ledger is deleted, newer commits tell what became of its rows, or the log is gone.
        with suppress(NoSuchLedgerError):
            rows = self.open_rows
            if rows is not None and rows.look() >= 0 and not rows.closed:
                return self.position.rows + rows.rows
        for placed in self.commits():
            if self.recent and placed.before != self.recent[-1].after:
                self.recent.clear()
            self.recent.append(placed)
        rows = self.open_rows
        return self.position.rows + (rows.look() if rows is not None else 0)

    @property
    def has_news(self) -> bool:
        """Did ``wait`` hear of more rows, so that ``newest`` asks nobody how many there are?"""
        return self._heard or (self._open_rows is not None and self._open_rows.heard)

    @property
    def tells_news(self) -> bool:
        """Is a ledger with rows followed, so that ``has_news`` tells all that ``wait`` may hear of?"""
        return self._open_rows is not None and not self._open_rows.closed

    def end(self) -> Position:
        """Batches, rows and bytes of the lane, up to what ``newest`` tells."""
        self.newest()
        rows = self.open_rows
        if rows is None or not rows.rows:
            return self.position
        added = rows.range_of(rows.rows)
        return Position(self.position.batches, self.position.rows + added.rows, self.position.size + added.size)

    def wait(self, seconds: WaitSeconds) -> bool:
        """Return when there may be more rows than ``newest`` told, or after ``seconds``: then False. The bookies hold their
        answer until then."""
        if self._open_rows is not None and not self._open_rows.closed:
            self._open_rows.wait(seconds)
            return self._open_rows.heard or self._open_rows.closed
        if self._handle is not None:
            last, _ = self._handle.read_last_add_confirmed_and_entry(self._next_entry, timeout=seconds)
            self._heard = last >= self._next_entry
            return self._heard or self._handle.metadata.closed
        if self._record_changed is None:
            self._record_changed = threading.Event()
            self._bookkeeper.metadata.watch_record(KIND, self._name, self._record_changed.set)
            if self._registry.get(self._name).commit_ledgers[-1:] not in ((), (self._link,)):
                return True
        changed = self._record_changed.wait(seconds)
        if changed:
            self._record_changed = None
        return changed

    # -- inside

    def _seek(self, behind: Callable[[Position], bool]) -> None:
        """Go behind the header of the last ledger of the chain whose position is ``behind``, or else of the first ledger."""
        chain = list(self.record.commit_ledgers)
        while chain:
            try:
                self._enter(chain.pop())
            except (NoSuchLedgerError, NoSuchEntryError):
                self._read_record()
                if self._link in self.record.commit_ledgers:
                    raise
                # The chain was compacted or truncated meanwhile.
                chain = list(self.record.commit_ledgers)
                continue
            if behind(self.position):
                return

    def _enter(self, link: CommitLedger) -> None:
        settles = self.opened is not None
        self._link, self._handle, self.opened, self._heard = link, None, None, False
        handle = open_commit_ledger(self._bookkeeper, link, self._password)
        if settles:
            # Its first commit has the rows of the ledger that was open, which this reader may have told of.
            handle.confirm(HEADER_ENTRY + 1)
        self.position = read_header(handle).position
        self._handle, self._next_entry = handle, HEADER_ENTRY + 1

    def _read_record(self) -> None:
        record = self._registry.get(self._name)
        if record.ctime_ms != self.record.ctime_ms:
            raise made_anew(self._name, self.position.rows)
        self.record = record

    def _next_link(self) -> bool:
        """Go to the ledger that has the next commit. False if there is none yet."""
        self._read_record()
        chain = self.record.commit_ledgers
        if self._link is not None and self._link not in chain:
            reached, opened = self.position, self.opened
            self._seek(lambda position: position.batches <= reached.batches)
            if self.position.batches <= reached.batches:
                self._next_entry += reached.batches - self.position.batches
                self.position, self.opened = reached, opened
            return True
        following = 0 if self._link is None else chain.index(self._link) + 1
        if following < len(chain):
            self._enter(chain[following])
        return following < len(chain)


def made_anew(name: str, row: int) -> DataLossError:
    """The error of a reader that has read a log up to ``row``, when the log was deleted and created again since."""
    return DataLossError(
        f"log {name!r} was deleted and created again since this query read it up to row {row}, or the query's Spark checkpoint "
        "is that of a query that reads another log; start the query with a new checkpoint, or with its own"
    )


@checked
def commits(
    bookkeeper: BookKeeper, name: LaneName, password: Password, position: BytesOrNone = 0
) -> Iterator[PlacedCommit]:
    """All commits there are now, from the one that holds row ``position``; for speed, some commits before that may come too.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), MetadataStoreError, and ReadError if too few bookies answer.
    """
    return LogReader(bookkeeper, name, password, position).commits()


@checked
def header_of(bookkeeper: BookKeeper, record: LogRecord, password: Password) -> CommitHeader:
    """The header that sums up all commits of the lane. Reads the last ledger of the chain only.

    Raises UnauthorizedAccessError (wrong password), NoSuchLedgerError if the chain changed since ``record`` was read, and
    ReadError if too few bookies answer.
    """
    if not record.commit_ledgers:
        return header_before(bookkeeper, record, password)
    header = CommitHeader()
    for link in record.commit_ledgers[-1:]:
        handle = open_commit_ledger(bookkeeper, link, password)
        header = read_header(handle)
        for placed in read_commits(handle):
            header = header.followed_by(placed.commit)
    return header


def header_before(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> CommitHeader:
    """What a lane begins with that has no commit yet: nothing, or what the lane committed that its writer had before. Raises what
    ``newest_header`` does."""
    registry, (log, number) = LogRegistry(bookkeeper.metadata), lane_of(record.name)
    after = record.after if record.ended_rows is not None or not number else after_of(registry.get(log), number)
    if not after:
        return CommitHeader()
    before, header = newest_header(bookkeeper, lane_name(log, after), password)
    if before.ctime_ms != record.ctime_ms:
        raise made_anew(log, 0)
    return CommitHeader(0, START, header.last_batches, header.fingerprints, header.time_ms)


@checked
def newest_header(bookkeeper: BookKeeper, name: LaneName, password: Password) -> tuple[LogRecord, CommitHeader]:
    """The log's record and the header that sums up its commits, as far as readers see them. Fences nothing.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), NoSuchLedgerError and NoSuchEntryError if the log's last
    commit ledger is lost, and ReadError if too few bookies answer.
    """
    return with_chain(bookkeeper, name, lambda record: header_of(bookkeeper, record, password))


def with_chain(
    bookkeeper: BookKeeper, name: str, read: Callable[[LogRecord], Found], record: LogRecord | None = None
) -> tuple[LogRecord, Found]:
    """The lane's record and what ``read`` returns for it; again, if the chain was compacted or truncated meanwhile. ``record``:
    as it was read just now."""
    registry = LogRegistry(bookkeeper.metadata)
    record = record or registry.get(name)
    while True:
        try:
            return record, read(record)
        except (NoSuchLedgerError, NoSuchEntryError):
            newest = registry.get(name)
            if newest.commit_ledgers == record.commit_ledgers:
                raise
            record = newest


def open_commit_ledger(bookkeeper: BookKeeper, link: CommitLedger, password: bytes) -> ReadHandle:
    """Open a commit ledger for reading. Fences nothing."""
    return bookkeeper.open_ledger_no_recovery(link.ledger_id, password=password, confirmed=HEADER_ENTRY)


def read_header(handle: ReadHandle) -> CommitHeader:
    """The header of a commit ledger."""
    (entry,) = handle.read(HEADER_ENTRY, HEADER_ENTRY)
    return decode_header(entry.payload, handle.ledger_id)


def read_commits(handle: ReadHandle) -> Iterator[PlacedCommit]:
    """The commits of a commit ledger that are confirmed now."""
    before = read_header(handle).position
    for entry in handle.read(HEADER_ENTRY + 1, handle.read_last_add_confirmed()):
        placed = PlacedCommit(before, decode_commit(entry.payload, handle.ledger_id, entry.entry_id))
        before = placed.after
        yield placed
