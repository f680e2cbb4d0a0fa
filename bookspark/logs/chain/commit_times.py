"""Which row of a log's lane is the first one of a time.

Law: a row's time is that of its commit, which its writer gave it: the writer's clock, but never before the commit before it, so
time goes up along a lane (``CommitHeader.placed``). Commits that earlier versions wrote have the clock's time; among those whose
clock was set back, a time is found at some place where the clock showed it.

Each commit says its time and its first row, so a time is found by a search in the chain, which opens few ledgers, and then in one
ledger, which reads few entries. Nothing beside the commits is kept. As commits come at about even times, the search looks first
where the time should be, and halves what is left in every other step.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from bookspark.logs.chain.codec import decode_commit
from bookspark.logs.chain.reader import HEADER_ENTRY, open_commit_ledger, read_header, with_chain
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

    link = _first_at(time_ms, 0, len(chain), lambda link: commit_at(link).time_ms) - 1
    if link < 0:
        return read_header(handles[0]).position.rows if chain else 0
    last = max(handles[link].read_last_add_confirmed(), _FIRST)
    while link == len(chain) - 1 and not handles[link].metadata.closed and rows_to(link, last) < known_rows:
        # A commit whose rows are known is there, whatever LAC is heard (``reader``).
        last += 1
    return rows_to(link, _first_at(time_ms, _FIRST, last + 1, lambda entry_id: commit_at(link, entry_id).time_ms) - 1)


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
