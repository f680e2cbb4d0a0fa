"""A reader of a lane's commits, in order, from any row on, and as the lane grows. A log of one lane is that lane.

Law:

* Readers follow commit ledgers only, and never fence. Entries of failed, speculative and outdated attempts in data ledgers are
  never read, because no commit names them.
* A range in a commit is confirmed up to its last entry, whatever last add confirmed (LAC) the reader knows. So are the header of
  a ledger in the chain and a commit whose rows an offset counts: perhaps only one bookie knows the newest LAC.
* The rows of the ledger that the newest commit opened follow the committed rows (``open_rows``).
* A reader enters the next ledger of the chain only when the current ledger is closed and read to its end.
* Each commit states its first row, so a reader searches for its first commit.
* A reader's place is the number of commits before it, so it survives compaction and truncation of the chain.
* A reader follows a log by its id. A later log of the same name is another log.

Source: docs/decisions/logs.md.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchEntryError, NoSuchLedgerError
from bookspark.logs.chain.codec import decode_commit
from bookspark.logs.chain.commit_ledgers import (
    FIRST_COMMIT,
    PlacedCommit,
    open_commit_ledger,
    read_beginning,
)
from bookspark.logs.chain.open_rows import OpenRows
from bookspark.logs.chain.registry import RECORDS, Lane, LogRegistry, check_password
from bookspark.logs.chain.time_search import first_at
from bookspark.protocol.logs.commits import Commit, Position
from bookspark.protocol.logs.lanes import lane_id
from bookspark.protocol.logs.log_record import CommitLedger, LogRecord
from bookspark.support.arguments import BytesOrNone, Password, WaitSeconds, checked, checks_methods

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.client.reading.read_handle import ReadHandle
    from bookspark.store.wire.entry_batch import Entry

AT_THE_END = (1 << 63) - 1
"""Position of a reader that needs only the newest commits."""
RECENT_MAX = 1000
"""Number of commits that ``LogReader.newest`` keeps."""
COMMITS_AT_ONCE = 8
"""A read of 8 commits, appended one by one, takes little more time than a read of 1; a read of 32 takes three times as long."""


@checks_methods
class LogReader:
    """Follows a lane from the commit with row ``position`` on. Reads the chain only as far as needed.

    The constructor raises NoSuchLogError and UnauthorizedAccessError (wrong password). Every method that reads raises ReadError
    if too few bookies answer, MetadataStoreError, NoSuchLogError if the log was deleted, and LogRecreatedError if it was created
    again since.
    """

    def __init__(self, bookkeeper: BookKeeper, name: Lane, password: bytes, position: int = 0) -> None:
        self._bookkeeper, self._password = bookkeeper, password
        self._registry = LogRegistry(bookkeeper.metadata)
        self.record: LogRecord = self._registry.get(name)
        self.lane = lane_id(self.record)
        check_password(self.record, password)
        self.position = Position()
        """Batches, rows and bytes before the next commit."""
        self.opened: int | None = None
        """The ledger that the last read commit opened."""
        self.recent: deque[PlacedCommit] = deque(maxlen=RECENT_MAX)
        """The commits that ``newest`` read last, consecutive."""
        self._open_rows: OpenRows | None = None
        self._newest: Commit | None = None
        """Last read commit of ``_link``."""
        self._heard = False
        """Did ``wait`` learn of a commit that ``commits`` has not returned yet? Then no bookie is asked for the LAC."""
        self._came: Entry | None = None
        """The commit's entry, if ``wait`` received it; not read again."""
        self._link: CommitLedger | None = None
        """The current or last read ledger. A ledger that could not be entered is not assigned, and is tried again."""
        self._tried: CommitLedger | None = None
        """The last ledger that the reader tried to enter; equal to ``_link`` after a success."""
        self._handle: ReadHandle | None = None
        self._read_to_end: ReadHandle | None = None
        """Handle of the last ledger, if it is closed and read to its end."""
        self._just_read: LogRecord | None = None
        self._next_entry = FIRST_COMMIT
        self._read: dict[int, Commit] = {}
        """Commits of the ledger that the reader read before it searched for its place there."""
        self._record_changed: threading.Event | None = None
        self._end_watch: Callable[[], None] = lambda: None
        self._wanted: int | None = position or None
        """Row to search the first commit for; None: commit found, or all commits wanted."""
        self._seek(lambda before: before.rows <= position)

    def commits(self, known_rows: BytesOrNone = 0) -> Iterator[PlacedCommit]:
        """The commits since the last call, in order. The first call begins with the commit of row ``position`` of the
        constructor.

        ``known_rows``: number of rows known to be committed. Their commits are returned even if no bookie that answers knows that
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
                if self._tried in self.record.commit_ledgers:
                    raise
                # Compaction copied its commits into another ledger and deleted it.
                self._handle = None
                continue
            if not closed and not self._handle.metadata.closed:
                return
            # The ledger was closed before its LAC was read, so it has no more commits.
            if closed:
                self._read_to_end, self._handle = self._handle, None

    def _confirmed(self, handle: ReadHandle, known_rows: int) -> Iterator[PlacedCommit]:
        heard, self._heard = self._heard and not handle.metadata.closed, False
        heard = heard or self._newest_is_known(handle)
        last = handle.last_add_confirmed if heard else handle.read_last_add_confirmed()
        if (wanted := self._approach(handle, last)) is not None:
            yield self._pass(wanted)
        while True:
            while self._next_entry <= last:
                came, self._came = self._came, None
                if came is None or (came.ledger_id, came.entry_id) != (handle.ledger_id, self._next_entry):
                    came = None
                for entry in handle.read(self._next_entry, last) if came is None else [came]:
                    yield self._pass(decode_commit(entry.payload, handle.ledger_id, entry.entry_id))
            missing = known_rows - self.position.rows
            if handle.metadata.closed or missing <= 0 or ((rows := self.open_rows) and rows.may_have(missing)):
                return
            # One more commit exists. Only the last ledger of the chain is open, so the commit is in this ledger.
            last = self._next_entry
            handle.confirm(last)

    def _newest_is_known(self, handle: ReadHandle) -> bool:
        """Does the last known commit name a ledger that is still open? Then the lane has no newer commit, and no bookie is asked
        for the LAC. Only commits of producers open ledgers."""
        last = handle.last_add_confirmed
        if FIRST_COMMIT not in self._read or self._read[FIRST_COMMIT].open_ledger is None or handle.metadata.closed:
            return False
        if last not in self._read:
            (entry,) = handle.read(last, last)
            self._read[last] = decode_commit(entry.payload, handle.ledger_id, last)
        opened = self._read[last].open_ledger
        if opened is None:
            return False
        with suppress(NoSuchLedgerError):
            self._open_rows = OpenRows(self._bookkeeper, opened, self._password)
            return not self._open_rows.closed
        return False

    def handle_of(self, link: CommitLedger) -> ReadHandle | None:
        """Handle of a commit ledger, if it is the current or the last ledger."""
        return (self._handle or self._read_to_end) if link == self._link else None

    def commit_in(self, link: CommitLedger, entry_id: int) -> Commit | None:
        """The commit in an entry of a commit ledger, if it is the last read commit."""
        return self._newest if (link, entry_id) == (self._link, self._next_entry - 1) else None

    @property
    def open_rows(self) -> OpenRows | None:
        """The rows after the last read commit, if the commit opened a ledger. Raises NoSuchLedgerError if that is deleted."""
        if self.opened is None:
            self._open_rows = None
        elif self._open_rows is None or self._open_rows.ledger_id != self.opened:
            self._open_rows = OpenRows(self._bookkeeper, self.opened, self._password)
        return self._open_rows

    def newest(self, record: LogRecord | None = None) -> int:
        """Current number of rows: those of all commits, and the confirmed rows of the open ledger. ``record``: a fresh copy,
        which saves the look for a later ledger."""
        self._just_read = record
        try:
            return self._newest_rows()
        finally:
            self._just_read = None

    def _newest_rows(self) -> int:
        before = self._open_rows
        # If the ledger is deleted, newer commits account for its rows, or the log is gone.
        with suppress(NoSuchLedgerError):
            rows = self.open_rows
            if rows is not None and rows.look() >= 0 and not rows.closed:
                return self.position.rows + rows.rows
        for placed in self.commits():
            if self.recent and placed.before != self.recent[-1].after:
                self.recent.clear()
            self.recent.append(placed)
        rows = self.open_rows
        return self.position.rows + (0 if rows is None else rows.look(just_opened=rows is not before))

    @property
    def has_news(self) -> bool:
        """Did ``wait`` learn of more rows, so that ``newest`` sends no request?"""
        return self._heard or (self._open_rows is not None and self._open_rows.heard)

    @property
    def tells_news(self) -> bool:
        """Does the reader follow an open ledger with rows? Then ``has_news`` covers all news."""
        return self._open_rows is not None and not self._open_rows.closed

    def end(self) -> Position:
        """Batches, rows and bytes of the lane, up to the result of ``newest``."""
        self.newest()
        rows = self.open_rows
        if rows is None or not rows.rows:
            return self.position
        added = rows.range_of(rows.rows)
        return Position(self.position.batches, self.position.rows + added.rows, self.position.size + added.size)

    def wait(self, seconds: WaitSeconds) -> bool:
        """Return True when there may be more rows than ``newest`` returned; False after ``seconds``. The bookies delay their
        response until then (long poll)."""
        try:
            if self._open_rows is not None and not self._open_rows.closed:
                self._open_rows.wait(seconds)
                return self._open_rows.heard or self._open_rows.closed
            if self._handle is not None:
                last, self._came = self._handle.read_last_add_confirmed_and_entry(self._next_entry, timeout=seconds)
                self._heard = last >= self._next_entry
                return self._heard or self._handle.metadata.closed
        except NoSuchLedgerError:
            # The ledger left the chain with rows already read, or the log was deleted: the next look decides.
            return True
        if self._record_changed is None:
            changes = threading.Event()
            self._end_watch()
            self._end_watch = self._bookkeeper.metadata.watch_record(RECORDS, self.lane.key, changes.set)
            if self._registry.get(self.lane).commit_ledgers[-1:] not in ((), (self._link,)):
                return True
            # Set last, so that a failure is retried.
            self._record_changed = changes
        changed = self._record_changed.wait(seconds)
        if changed:
            self._record_changed = None
        return changed

    def close(self) -> None:
        """End the watch of the lane's record. The reader waits no more. Never raises."""
        self._end_watch()

    # -- inside

    def _seek(self, behind: Callable[[Position], bool]) -> None:
        """Enter the last ledger of the chain whose start is ``behind``, or else the first ledger."""
        chain = list(self.record.commit_ledgers)
        while chain:
            try:
                self._enter(chain.pop())
            except (NoSuchLedgerError, NoSuchEntryError):
                self._read_record()
                if self._tried in self.record.commit_ledgers:
                    raise
                # The chain was compacted or truncated meanwhile.
                chain = list(self.record.commit_ledgers)
                continue
            if behind(self.position):
                return

    def _approach(self, handle: ReadHandle, last: int) -> Commit | None:
        """At the first call, skip to the commit with the wanted row, or to the ledger's last commit (entry ``last``). Returns
        that commit if it was read."""
        row, first = self._wanted, self._next_entry
        commits, self._read = self._read, {}

        def rows_before(low: int, high: int) -> list[int]:
            for entry in handle.read(low, high):
                commits[entry.entry_id] = decode_commit(entry.payload, handle.ledger_id, entry.entry_id)
            return [commits[entry_id].first_row for entry_id in range(low, high + 1)]

        if row is not None and first < last:
            end = rows_before(last, last)[0] if last not in commits else commits[last].first_row
            at = last
            if row < end:
                at = first_at(row + 1, first + 1, last, rows_before, COMMITS_AT_ONCE, self.position.rows, end) - 1
            if at > first:
                if at not in commits:
                    rows_before(at, at)
                batches = self.position.batches + at - first
                self.position, self._next_entry = Position(batches, commits[at].first_row, commits[at].first_byte), at
        self._wanted = None
        return commits.get(self._next_entry)

    def _pass(self, commit: Commit) -> PlacedCommit:
        placed = PlacedCommit(self.position, commit)
        self.position, self.opened, self._newest = placed.after, commit.open_ledger, commit
        self._next_entry += 1
        return placed

    def _enter(self, link: CommitLedger) -> None:
        self._tried, self._handle = link, None
        handle = open_commit_ledger(self._bookkeeper, link, self._password)
        header, first = read_beginning(handle)
        self._link, self._newest, self.opened, self._heard, self._read_to_end = link, None, None, False, None
        self.position, self._read = header.position, {FIRST_COMMIT: first}
        self._handle, self._next_entry = handle, FIRST_COMMIT

    def _read_record(self, just_read: LogRecord | None = None) -> None:
        # Used once: an older copy never replaces a newer record.
        self._just_read = None
        self.record = just_read or self._registry.get(self.lane)

    def _next_link(self) -> bool:
        """Enter the ledger with the next commit. False if there is none yet."""
        self._read_record(self._just_read)
        chain = self.record.commit_ledgers
        if self._link is not None and self._link not in chain:
            reached, opened, link = self.position, self.opened, self._link
            try:
                self._seek(lambda position: position.batches <= reached.batches)
            except BaseException:
                # The search runs from the end of the chain; the next call resumes here.
                self._link, self._handle, self.position, self.opened = link, None, reached, opened
                raise
            if self._handle is None:
                # A chain with ledgers never becomes empty. A slow writer has created the lane's record again.
                raise self._registry.gone(self.lane)
            if self.position.batches <= reached.batches:
                self._next_entry += reached.batches - self.position.batches
                self.position, self.opened = reached, opened
            return True
        following = 0 if self._link is None else chain.index(self._link) + 1
        if following < len(chain):
            self._enter(chain[following])
        return following < len(chain)


@checked
def commits(
    bookkeeper: BookKeeper, name: Lane, password: Password, position: BytesOrNone = 0
) -> Iterator[PlacedCommit]:
    """All present commits from the commit of row ``position`` on. May begin some commits earlier, for speed.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), MetadataStoreError, and ReadError if too few bookies answer.
    """
    return LogReader(bookkeeper, name, password, position).commits()
