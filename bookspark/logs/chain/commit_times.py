"""Search for the first row of a time in a log's lane.

Law: a row has the time of its commit: the cluster's time, but never earlier than the previous commit, so times ascend along a
lane (``CommitHeader.placed``).

A producer's rows have their own times of append; their commit has the time of the last row, or a later one.

Each commit states its time and first row, and the lane's record states the start of each commit ledger (``LinkStart``). So the
search runs in the record, and then in a few entries of one ledger (``time_search``).
``KnownLedgers`` keeps handles, first commits and times, which never change. So in a known log a search reads the lane's record,
which lists the remaining ledgers, and one stretch of entries. It asks for the number of rows only if the time may be after the
last known row.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError
from bookspark.logs.chain.codec import decode_commit, time_of_commit
from bookspark.logs.chain.commit_ledgers import FIRST_COMMIT, open_commit_ledger, with_chain
from bookspark.logs.chain.open_rows import OpenRows, rows_at_once
from bookspark.logs.chain.reader import COMMITS_AT_ONCE, LogReader
from bookspark.logs.chain.registry import Lane, LogRegistry
from bookspark.logs.chain.time_search import KnownTimes, Looked, first_at
from bookspark.protocol.logs.commits import Commit
from bookspark.protocol.logs.log_record import CommitLedger, LinkStart, LogRecord

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.client.reading.read_handle import ReadHandle

_POINTS_MAX, _DATA_LEDGERS_MAX, _COMMITS_MAX = 1 << 16, 64, 64
"""Limits for one lane: kept times (1 MiB), ledgers of rows, and commits."""


def row_at(
    bookkeeper: BookKeeper,
    name: Lane,
    password: bytes,
    time_ms: int,
    known_rows: int = 0,
    head: LogReader | None = None,
    known: KnownLedgers | None = None,
    record: LogRecord | None = None,
    has_looked: bool = False,
) -> int:
    """The first remaining row of the lane whose time is ``time_ms`` (ms since 1970) or later; the end, if there is none.

    ``known_rows``: number of rows known to be committed, although no bookie that answers may know of them. ``head``: a reader of
    the lane. ``known``: shared by searches in this lane. ``record``: a fresh copy. ``has_looked``: ``head`` has updated its rows
    since ``record`` was read.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), NoSuchLedgerError and NoSuchEntryError if a commit ledger is
    lost, and ReadError if too few bookies answer.
    """

    kept = KnownLedgers() if known is None else known

    def found(record: LogRecord) -> int:
        kept.follow(record)
        search = _Search(bookkeeper, password, time_ms, record, head, kept)
        row = search.row(known_rows)
        if search.is_end and head is not None and not has_looked:
            # There may be newer rows than ``head`` knows.
            row = _Search(bookkeeper, password, time_ms, record, None, kept).row(known_rows)
        return row

    newest, row = with_chain(bookkeeper, record or LogRegistry(bookkeeper.metadata).get(name), found)
    return max(row, newest.first_position)


def time_of(bookkeeper: BookKeeper, name: Lane, password: bytes, row: int) -> int | None:
    """Time of append or commit of row ``row``, in ms since 1970; if it was truncated, perhaps of the first row whose commit
    remains; None if the row does not exist yet. Raises the errors of ``row_at``."""
    reader = LogReader(bookkeeper, name, password, row)
    for before, commit in reader.commits():
        at = before.rows
        row = max(row, at)
        if row < at + commit.rows:
            for item in commit.ranges if commit.stamped else ():
                if row < at + item.rows:
                    # Offloaded rows have only the time of their commit.
                    with suppress(NoSuchLedgerError):
                        rows = OpenRows(bookkeeper, item.ledger_id, password)
                        return rows.stamp_at(item.first_entry_id + row - at).time_ms
                at += item.rows
            return commit.time_ms
    opened = reader.open_rows
    number = row - reader.position.rows
    return opened.stamp_at(number).time_ms if opened is not None and opened.look() > number else None


class KnownLedgers:
    """Unchanging facts that searches in one lane share, about commit ledgers in the chain and some ledgers of rows."""

    def __init__(self) -> None:
        self.full: dict[CommitLedger, ReadHandle] = {}
        """Handles of closed commit ledgers."""
        self.firsts: dict[CommitLedger, Commit] = {}
        self._commits: OrderedDict[tuple[int, int], Commit] = OrderedDict()
        """Commits that the latest searches used, by ledger and entry."""
        self._times: dict[int, KnownTimes] = {}
        """Times of commits or rows, by ledger."""
        self._rows: OrderedDict[int, OpenRows] = OrderedDict()
        """Most recently used ledgers of rows, all closed."""
        self.open = -1
        """The ledger of rows that was open at the latest search; −1: none."""
        self.starts: dict[int, LinkStart] = {}
        self._chain: tuple[CommitLedger, ...] = ()

    def follow(self, record: LogRecord) -> None:
        """Learn from the lane's record. Drops commit ledgers that left the chain, and whatever exceeds the limits."""
        chain = record.commit_ledgers
        if chain != self._chain:
            self._chain, self.starts = chain, {start.ledger_id: start for start in record.link_starts}
            self.full = {link: self.full[link] for link in chain if link in self.full}
            self.firsts = {link: self.firsts[link] for link in chain if link in self.firsts}
        if len(self._times) > len(self.full) + len(self._rows):
            kept = {link.ledger_id for link in chain} | self._rows.keys() | {self.open}
            self._times = {ledger: times for ledger, times in self._times.items() if ledger in kept}
        while sum(map(len, self._times.values())) > _POINTS_MAX:
            for times in self._times.values():
                times.thin()

    def commit(self, ledger_id: int, entry_id: int, read: Callable[[], Commit]) -> Commit:
        """The commit in an entry of a ledger; ``read`` fetches an unknown one."""
        place = ledger_id, entry_id
        found = self._commits.get(place) or read()
        self._commits[place] = found
        self._commits.move_to_end(place)
        if len(self._commits) > _COMMITS_MAX:
            self._commits.popitem(last=False)
        return found

    def has(self, time_ms: int) -> bool:
        """Does the record or an earlier search know a row or commit of this time or a later one?"""
        last = self.starts.get(self._chain[-1].ledger_id) if self._chain else None
        if last is not None and last.time_ms >= time_ms:
            return True
        newest = [first.time_ms for first in self.firsts.values()]
        newest += [found for times in self._times.values() if (found := times.newest_ms) is not None]
        return any(found >= time_ms for found in newest)

    def times(self, ledger_id: int) -> KnownTimes:
        return self._times.setdefault(ledger_id, KnownTimes())

    def rows(self, ledger_id: int, opened: Callable[[], OpenRows]) -> OpenRows:
        """The rows of a ledger, kept if the ledger is closed. Raises the errors of ``opened``."""
        rows = self._rows.get(ledger_id) or opened()
        if rows.closed:
            self._rows[ledger_id] = rows
            self._rows.move_to_end(ledger_id)
        while len(self._rows) > _DATA_LEDGERS_MAX:
            self.forget(next(iter(self._rows)))
        return rows

    def forget(self, ledger_id: int) -> None:
        """Drop a deleted or surplus ledger of rows."""
        self._rows.pop(ledger_id, None)
        self._times.pop(ledger_id, None)


class _Search:
    def __init__(
        self,
        bookkeeper: BookKeeper,
        password: bytes,
        time_ms: int,
        record: LogRecord,
        head: LogReader | None,
        known: KnownLedgers,
    ) -> None:
        self._bookkeeper, self._password, self._time_ms = bookkeeper, password, time_ms
        self._chain, self._head, self._known = record.commit_ledgers, head, known
        self._handles: dict[int, ReadHandle] = {}
        self._entries: dict[tuple[int, int], bytes] = {}
        """Payloads of the entries read, by link and entry id."""
        self.is_end = False
        """True if no examined row has the time."""

    def row(self, known_rows: int) -> int:
        """The first row of the time; the end, if there is none."""
        chain, time_ms = self._chain, self._time_ms
        times_of = lambda first, last: [self._time_of_link(link) for link in range(first, last + 1)]  # noqa: E731
        link = first_at(time_ms, 0, len(chain), times_of, 1) - 1
        if link < 0:
            return self._row_of_link(0) if chain else 0
        newest, times = link == len(chain) - 1, self._known.times(chain[link].ledger_id)
        # The first commit is before the time.
        low, high, before_ms, after_ms = times.around(time_ms, FIRST_COMMIT + 1, self._time_of_link(link))
        last: int | None = None
        if high is None and newest:
            high, opened = self._last(link, known_rows)
            after_ms = self._commit(link, high).time_ms
            if after_ms < time_ms:
                return self._row_behind(link, high, opened, after_ms)
            times.add(high, after_ms)
        elif high is None:
            last = self._full(link).last_add_confirmed
            high, after_ms = last + 1, self._time_of_link(link + 1)
        read = partial(self._times, link)
        entry_id = first_at(time_ms, low, high, read, COMMITS_AT_ONCE, before_ms, after_ms)
        at_end = entry_id == high and last is not None
        return self._row_of_link(link + 1) if at_end else self._row_in(link, entry_id)

    def _last(self, link: int, known_rows: int) -> tuple[int, OpenRows | None]:
        """The last commit of the newest ledger, and the rows of the ledger that it opened."""
        handle = self._handle(link)
        last = max(
            handle.last_add_confirmed if self._head is not None else handle.read_last_add_confirmed(), FIRST_COMMIT
        )
        while True:
            commit = self._commit(link, last)
            opened = None if commit.open_ledger is None else self._open_rows(commit.open_ledger)
            missing = known_rows - self._rows_before(link, last) - commit.rows
            if handle.metadata.closed or missing <= 0 or (opened is not None and opened.may_have(missing)):
                return last, opened
            # A commit whose rows are known exists, whatever LAC the bookies report (``reader``).
            last += 1

    def _row_behind(self, link: int, last: int, opened: OpenRows | None, last_ms: int) -> int:
        """The first row of the time after all commits; the end, if there is none. ``last_ms``: the last commit's time."""
        row = 0
        if opened is not None:
            rows = opened.known_rows
            self._known.open = opened.ledger_id
            times = self._known.times(opened.ledger_id)
            if rows and times.newest_ms is None:
                # ``newest_ms`` samples the rows' size too.
                times.add(rows - 1, opened.newest_ms(rows))
            row = self._first_row(opened, times, 0, rows, partial(opened.at_once, rows), last_ms)
            self.is_end = row == rows
        else:
            self.is_end = True
        return self._rows_before(link, last) + self._commit(link, last).rows + row

    def _handle(self, link: int) -> ReadHandle:
        handle, head, ledger = self._handles.get(link), self._head, self._chain[link]
        if handle is None:
            handle = self._known.full.get(ledger) or (None if head is None else head.handle_of(ledger))
            handle = handle or open_commit_ledger(self._bookkeeper, ledger, self._password)
            self._handles[link] = handle
        if handle.metadata.closed:
            self._known.full[ledger] = handle
        return handle

    def _full(self, link: int) -> ReadHandle:
        """Handle of a ledger before the newest of the chain, which is therefore closed."""
        handle = self._handle(link)
        if not handle.metadata.closed:
            # The reader with this handle does not know yet that the ledger is closed.
            handle.read_last_add_confirmed()
        return handle

    def _open_rows(self, ledger_id: int) -> OpenRows:
        known = None if self._head is None or self._head.opened != ledger_id else self._head.open_rows
        return known or OpenRows(self._bookkeeper, ledger_id, self._password)

    def _commit(self, link: int, entry_id: int) -> Commit:
        ledger = self._chain[link]

        def read() -> Commit:
            found = None if self._head is None else self._head.commit_in(ledger, entry_id)
            return found or decode_commit(self._entry(link, entry_id), ledger.ledger_id, entry_id)

        return self._known.commit(ledger.ledger_id, entry_id, read)

    def _first(self, link: int) -> Commit:
        first = self._known.firsts.get(self._chain[link])
        if first is None:
            first = self._known.firsts[self._chain[link]] = self._commit(link, FIRST_COMMIT)
        return first

    def _entry(self, link: int, entry_id: int) -> bytes:
        if (link, entry_id) not in self._entries:
            self._read(link, entry_id, entry_id)
        return self._entries[link, entry_id]

    def _read(self, link: int, first: int, last: int) -> None:
        handle = self._handle(link)
        handle.confirm(last)
        for entry in handle.read(first, last):
            self._entries.setdefault((link, entry.entry_id), entry.payload)

    def _time_of_link(self, link: int) -> int:
        start = self._known.starts.get(self._chain[link].ledger_id)
        return self._first(link).time_ms if start is None else start.time_ms

    def _row_of_link(self, link: int) -> int:
        """The first row of the time in a ledger that begins at the time or later."""
        start = self._known.starts.get(self._chain[link].ledger_id)
        return self._row_in(link, FIRST_COMMIT) if start is None or start.row < 0 else start.row

    def _times(self, link: int, first: int, last: int) -> Sequence[int]:
        self._read(link, first, last)
        times = self._known.times(self._chain[link].ledger_id)
        return Looked(times, first, last + 1 - first, partial(self._time_of, link))

    def _time_of(self, link: int, entry_id: int) -> int:
        return time_of_commit(self._entry(link, entry_id), self._chain[link].ledger_id, entry_id)

    def _rows_before(self, link: int, entry_id: int) -> int:
        return self._commit(link, entry_id).first_row

    def _row_in(self, link: int, entry_id: int) -> int:
        """The first row of the time in a commit of the time or later."""
        commit, before = self._commit(link, entry_id), self._rows_before(link, entry_id)
        for item in commit.ranges if commit.stamped else ():
            first, end = item.first_entry_id, item.last_entry_id + 1
            try:
                rows = self._known.rows(
                    item.ledger_id, partial(OpenRows, self._bookkeeper, item.ledger_id, self._password)
                )
                times, at_once = self._known.times(item.ledger_id), rows_at_once(item.size // item.rows)
                row = self._first_row(rows, times, first, end, lambda: at_once, None)  # noqa: B023
            except NoSuchLedgerError:
                # The rows were truncated or offloaded, so only the time of the commit is known.
                self._known.forget(item.ledger_id)
                return before
            before += row - first
            if row < end:
                break
        return before

    def _first_row(
        self, rows: OpenRows, times: KnownTimes, first: int, end: int, at_once: Callable[[], int], before_ms: int | None
    ) -> int:
        """The first entry of the time or later. ``before_ms``: a time not later than that of entry ``first``."""
        low, high, before_ms, after_ms = times.around(self._time_ms, first, before_ms)

        def read(first: int, last: int) -> Sequence[int]:
            time_of = rows.times(first, last)
            return Looked(times, first, last + 1 - first, time_of)

        high = end if high is None else high
        return first_at(self._time_ms, low, high, read, at_once(), before_ms, after_ms) if low < high else high
