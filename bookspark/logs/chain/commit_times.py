"""Which row of a log's lane is the first one of a time.

Law: a row's time is that of its commit, which its writer gave it: the writer's clock, but never before the commit before it, so
time goes up along a lane (``CommitHeader.placed``). Commits that earlier versions wrote have the clock's time; among those whose
clock was set back, a time is found at some place where the clock showed it.

A producer's rows say themselves when they were appended; their commit has the time of the last one, or a later one.

Each commit says its time and its first row, so a time is found by a search in the chain, which opens few ledgers, and then in one
ledger, which reads few entries. Nothing beside the commits is kept. As commits come at about even times, the search looks first
where the time should be, and halves what is left in every other step.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError
from bookspark.logs.chain.codec import decode_commit
from bookspark.logs.chain.open_rows import OpenRows
from bookspark.logs.chain.reader import HEADER_ENTRY, LogReader, open_commit_ledger, read_header, with_chain
from bookspark.protocol.logs.commits import Commit
from bookspark.protocol.logs.log_record import LogRecord

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

_FIRST = HEADER_ENTRY + 1


def row_at(bookkeeper: BookKeeper, name: str, password: bytes, time_ms: int, known_rows: int = 0) -> int:
    """The first row of the lane that is still there and of a commit of ``time_ms`` (ms since 1970) or later; the end, if there is
    none. ``known_rows``: the number of rows that are known to be committed, though no bookie that answers may know of them.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), NoSuchLedgerError and NoSuchEntryError if a commit ledger is
    lost, and ReadError if too few bookies answer.
    """
    record, row = with_chain(bookkeeper, name, partial(_row_at, bookkeeper, password, time_ms, known_rows))
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


def _row_at(bookkeeper: BookKeeper, password: bytes, time_ms: int, known_rows: int, record: LogRecord) -> int:
    chain = record.commit_ledgers
    handles: dict[int, ReadHandle] = {}

    def commit_at(link: int, entry_id: int = _FIRST) -> Commit:
        handle = handles.get(link)
        if handle is None:
            handle = handles[link] = open_commit_ledger(bookkeeper, chain[link], password)
        # A ledger that the chain names has its first commit, whatever last add confirmed (LAC) is heard.
        handle.confirm(entry_id)
        (entry,) = handle.read(entry_id, entry_id)
        return decode_commit(entry.payload, handle.ledger_id, entry_id)

    def rows_to(link: int, entry_id: int) -> int:
        """The rows of the lane up to and with a commit."""
        commit, handle = commit_at(link, entry_id), handles[link]
        if commit.first_row is not None:
            return commit.first_row + commit.rows
        # It is the first one, or an earlier version wrote it.
        commits = (decode_commit(one.payload, handle.ledger_id, one.entry_id) for one in handle.read(_FIRST, entry_id))
        return read_header(handle).position.rows + sum(one.rows for one in commits)

    def row_in(commit: Commit, before: int) -> int:
        """The first row of ``commit`` of the time or later, if its newest row is; ``before``: the rows before it."""
        for item in commit.ranges if commit.stamped else ():
            first, end = item.first_entry_id, item.last_entry_id + 1
            try:
                rows = OpenRows(bookkeeper, item.ledger_id, password)
            except NoSuchLedgerError:
                # Its rows were truncated or offloaded, so only the time of the commit is known.
                return before
            entry_id = _first_at(time_ms, first, end, lambda entry_id: rows.stamp_at(entry_id).time_ms)  # noqa: B023
            before += entry_id - first
            if entry_id < end:
                break
        return before

    link = _first_at(time_ms, 0, len(chain), lambda link: commit_at(link).time_ms) - 1
    if link < 0:
        return row_in(commit_at(0), read_header(handles[0]).position.rows) if chain else 0
    last, opened = max(handles[link].read_last_add_confirmed(), _FIRST), None
    while link == len(chain) - 1:
        ledger_id, missing = commit_at(link, last).open_ledger, known_rows - rows_to(link, last)
        opened = None if ledger_id is None else OpenRows(bookkeeper, ledger_id, password)
        if handles[link].metadata.closed or missing <= 0 or (opened is not None and opened.may_have(missing)):
            break
        # A commit whose rows are known is there, whatever LAC is heard (``reader``).
        last += 1
    entry_id = _first_at(time_ms, _FIRST, last + 1, lambda entry_id: commit_at(link, entry_id).time_ms)
    before = rows_to(link, entry_id - 1)
    if entry_id <= last:
        return row_in(commit_at(link, entry_id), before)
    if link + 1 < len(chain):
        return row_in(commit_at(link + 1), before)
    if opened is not None:
        return before + _first_at(time_ms, 0, opened.look(), lambda entry_id: opened.stamp_at(entry_id).time_ms)
    return before


def _first_at(time_ms: int, low: int, high: int, time_of: Callable[[int], int]) -> int:
    """The first index from ``low`` to before ``high`` whose time is ``time_ms`` or later; ``high`` if there is none."""
    known: dict[int, int] = {}

    def at(index: int) -> int:
        if index not in known:
            known[index] = time_of(index)
        return known[index]

    if low == high or at(low) >= time_ms:
        return low
    if at(high - 1) < time_ms:
        return high
    # Its time is before, and that of the other one is not.
    before, after = low, high - 1
    halve = False
    while before + 1 < after:
        part = 0.5 if halve else (time_ms - at(before)) / (at(after) - at(before))
        middle = min(max(before + int((after - before) * part), before + 1), after - 1)
        before, after = (middle, after) if at(middle) < time_ms else (before, middle)
        halve = not halve
    return after
