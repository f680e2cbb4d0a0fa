"""Which row of a log's lane is the first one of a time.

Law: a row's time is that of its commit, which its writer gave it: the writer's clock, but never before the commit before it, so
time goes up along a lane (``CommitHeader.placed``). Commits that earlier versions wrote have the clock's time; among those whose
clock was set back, a time is found at some place where the clock showed it.

A producer's rows say themselves when they were appended; their commit has the time of the last one, or a later one.

Each commit says its time and its first row, so a time is found by a search in the chain, which opens few ledgers, and then in one
ledger, which reads few entries (``time_search``). Nothing is written beside the commits. A reader that follows the lane has its
newest commit ledger and its open ledger at hand, and keeps handles and first commits of those that are full (``FullLedgers``),
which never change. So nobody is asked for them again.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError
from bookspark.logs.chain.codec import decode_commit
from bookspark.logs.chain.open_rows import OpenRows, rows_at_once
from bookspark.logs.chain.reader import HEADER_ENTRY, LogReader, open_commit_ledger, read_header, with_chain
from bookspark.logs.chain.time_search import first_at
from bookspark.protocol.logs.commits import Commit
from bookspark.protocol.logs.log_record import CommitLedger, LogRecord

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

_FIRST = HEADER_ENTRY + 1
_COMMITS_AT_ONCE = 8
"""A read of 8 commits, which were appended one by one, takes little more than one of one; of 32 it takes three times as long."""


def row_at(
    bookkeeper: BookKeeper,
    name: str,
    password: bytes,
    time_ms: int,
    known_rows: int = 0,
    head: LogReader | None = None,
    full: FullLedgers | None = None,
) -> int:
    """The first row of the lane that is still there and of a commit of ``time_ms`` (ms since 1970) or later; the end, if there is
    none. ``known_rows``: the number of rows that are known to be committed, though no bookie that answers may know of them.
    ``head``: a reader of the lane that has just looked for its newest rows. ``full``: what searches keep for one another.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), NoSuchLedgerError and NoSuchEntryError if a commit ledger is
    lost, and ReadError if too few bookies answer.
    """

    def found(record: LogRecord) -> int:
        known = FullLedgers() if full is None else full
        known.keep_only(record.commit_ledgers)
        search = _Search(bookkeeper, password, time_ms, record, head, known)
        row = search.row(known_rows)
        if search.is_end and head is not None:
            # There may be newer rows than it has seen.
            row = _Search(bookkeeper, password, time_ms, record, None, known).row(known_rows)
        return row

    record, row = with_chain(bookkeeper, name, found)
    return max(row, record.first_position)


def time_of(bookkeeper: BookKeeper, name: str, password: bytes, row: int) -> int | None:
    """When row ``row`` of the lane was appended or committed, in ms since 1970; None if it is not there yet. Raises what
    ``row_at`` does."""
    reader = LogReader(bookkeeper, name, password, row)
    for before, commit in reader.commits():
        at = before.rows
        if row < at + commit.rows:
            for item in commit.ranges if commit.stamped else ():
                if row < at + item.rows:
                    rows = OpenRows(bookkeeper, item.ledger_id, password)
                    return rows.stamp_at(item.first_entry_id + row - at).time_ms
                at += item.rows
            return commit.time_ms
    opened = reader.open_rows
    number = row - reader.position.rows
    return opened.stamp_at(number).time_ms if opened is not None and opened.look() > number else None


class FullLedgers:
    """The commit ledgers of one lane's chain that are closed, as searches have found them; as many as the chain has at most."""

    def __init__(self) -> None:
        self._found: dict[CommitLedger, tuple[ReadHandle, Commit]] = {}

    def keep_only(self, chain: Sequence[CommitLedger]) -> None:
        """Forget those that are not in the chain any more."""
        self._found = {link: self._found[link] for link in chain if link in self._found}

    def of(self, link: CommitLedger) -> tuple[ReadHandle, Commit] | None:
        """The handle of this ledger, and its first commit."""
        return self._found.get(link)

    def add(self, link: CommitLedger, handle: ReadHandle, first: Commit) -> None:
        """``handle`` reads the ledger, ``first`` is its first commit. One that is open may get more commits, and is not kept."""
        if handle.metadata.closed:
            self._found[link] = handle, first


class _Search:
    """The search for one time in the chain of ``record``."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        password: bytes,
        time_ms: int,
        record: LogRecord,
        head: LogReader | None,
        full: FullLedgers,
    ) -> None:
        self._bookkeeper, self._password, self._time_ms = bookkeeper, password, time_ms
        self._chain, self._head, self._full = record.commit_ledgers, head, full
        self._handles: dict[int, ReadHandle] = {}
        self._entries: dict[tuple[int, int], Commit | bytes] = {}
        """What was read: the link and the entry, and the commit, or its bytes."""
        self.is_end = False
        """Has the lane no row of the time, as far as it was looked at?"""

    def row(self, known_rows: int) -> int:
        """The first row of the time; the end, if there is none."""
        chain, time_ms = self._chain, self._time_ms
        link = first_at(time_ms, 0, len(chain), self._times_of_links, 1) - 1
        if link < 0:
            return self._row_in(self._commit(0), read_header(self._handle(0)).position.rows) if chain else 0
        newest = link == len(chain) - 1
        last, opened = max(self._handle(link).last_add_confirmed, _FIRST), None
        while newest:
            ledger_id, missing = self._commit(link, last).open_ledger, known_rows - self._rows_to(link, last)
            opened = None if ledger_id is None else self._open_rows(ledger_id)
            if self._handle(link).metadata.closed or missing <= 0 or (opened is not None and opened.may_have(missing)):
                break
            # A commit whose rows are known is there, whatever LAC is heard (``reader``).
            last += 1
        first_ms = self._commit(link).time_ms
        after = self._commit(link, last) if newest else self._commit(link + 1)
        entry_id = last + 1
        # The first one is before the time.
        if time_ms <= after.time_ms or not newest:
            high = last if newest else last + 1
            entry_id = first_at(
                time_ms, _FIRST + 1, high, partial(self._times, link), _COMMITS_AT_ONCE, first_ms, after.time_ms
            )
        before = self._rows_to(link, entry_id - 1)
        if entry_id <= last:
            return self._row_in(self._commit(link, entry_id), before)
        if not newest:
            return self._row_in(after, before)
        row = 0
        if opened is not None:
            rows = opened.known_rows
            row = self._first_row(opened, 0, rows, opened.at_once(rows), after.time_ms)
            self.is_end = row == rows
        else:
            self.is_end = True
        return before + row

    def _handle(self, link: int) -> ReadHandle:
        found, head = self._handles.get(link), self._head
        if found is None and (known := self._full.of(self._chain[link])) is not None:
            found, self._entries[link, _FIRST] = known
            self._handles[link] = found
        if found is None:
            # A ledger that the chain names has its first commit, whatever last add confirmed (LAC) is heard.
            found = None if head is None else head.handle_of(self._chain[link])
            found = found or open_commit_ledger(self._bookkeeper, self._chain[link], self._password)
            found.confirm(_FIRST)
            self._handles[link] = found
        return found

    def _open_rows(self, ledger_id: int) -> OpenRows:
        known = None if self._head is None or self._head.opened != ledger_id else self._head.open_rows
        return known or OpenRows(self._bookkeeper, ledger_id, self._password)

    def _commit(self, link: int, entry_id: int = _FIRST) -> Commit:
        handle = self._handle(link)
        if (link, entry_id) not in self._entries:
            self._read(link, entry_id, entry_id)
        found = self._entries[link, entry_id]
        if isinstance(found, bytes):
            found = self._entries[link, entry_id] = decode_commit(found, handle.ledger_id, entry_id)
        if entry_id == _FIRST:
            self._full.add(self._chain[link], handle, found)
        return found

    def _read(self, link: int, first: int, last: int) -> None:
        handle = self._handle(link)
        handle.confirm(last)
        for entry in handle.read(first, last):
            self._entries.setdefault((link, entry.entry_id), entry.payload)

    def _times_of_links(self, first: int, last: int) -> list[int]:
        return [self._commit(link).time_ms for link in range(first, last + 1)]

    def _times(self, link: int, first: int, last: int) -> list[int]:
        self._read(link, first, last)
        return [self._commit(link, entry_id).time_ms for entry_id in range(first, last + 1)]

    def _rows_to(self, link: int, entry_id: int) -> int:
        """The rows of the lane up to and with a commit."""
        commit, handle = self._commit(link, entry_id), self._handle(link)
        if commit.first_row is not None:
            return commit.first_row + commit.rows
        # It is the first one, or an earlier version wrote it.
        commits = (decode_commit(one.payload, handle.ledger_id, one.entry_id) for one in handle.read(_FIRST, entry_id))
        return read_header(handle).position.rows + sum(one.rows for one in commits)

    def _row_in(self, commit: Commit, before: int) -> int:
        """The first row of ``commit`` of the time or later, if its newest row is; ``before``: the rows before it."""
        for item in commit.ranges if commit.stamped else ():
            first, end = item.first_entry_id, item.last_entry_id + 1
            try:
                rows = OpenRows(self._bookkeeper, item.ledger_id, self._password)
            except NoSuchLedgerError:
                # Its rows were truncated or offloaded, so only the time of the commit is known.
                return before
            found = self._first_row(rows, first, end, rows_at_once(item.size // item.rows), None)
            before += found - first
            if found < end:
                break
        return before

    def _first_row(self, rows: OpenRows, first: int, end: int, at_once: int, before_ms: int | None) -> int:
        """The first entry of the time or later. ``before_ms``: a time that is not later than that of the first one."""
        return first_at(self._time_ms, first, end, rows.times, at_once, before_ms)
