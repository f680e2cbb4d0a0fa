"""The rows of the ledger that the newest commit of a lane opened, as they grow.

Law: entry *n* of the ledger is the *n*-th row after the committed rows. A row counts once it is confirmed, or once an offset has
counted it. Readers never fence. While the ledger is open, the lane has no newer commit, so no other ledger need be read.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchEntryError, ReadError
from bookspark.logs.chain.stamps import Stamped, stamp_of
from bookspark.protocol.logs.commits import EntryRange

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.wire.entry_batch import Entry

_BYTES_AT_ONCE, _ROWS_AT_ONCE_MAX = 16384, 32
_ROW_BYTES = 1024
"""Assumed length of rows if no row could be read."""


class OpenRows:
    """Follows an open ledger. Every method that sends requests raises ReadError if too few bookies answer, NoSuchLedgerError, and
    UnauthorizedAccessError (wrong password)."""

    def __init__(self, bookkeeper: BookKeeper, ledger_id: int, password: bytes) -> None:
        self.ledger_id = ledger_id
        self.rows = 0
        """Last result of ``look``."""
        self._handle = bookkeeper.open_ledger_no_recovery(ledger_id, password=password)
        self.heard = False
        """Did ``wait`` learn of more rows than ``look`` returned? Then ``look`` sends no request."""
        self._sampled_rows = self._sampled_bytes = 0

    @property
    def closed(self) -> bool:
        """Last known state; a closed ledger gets no more rows."""
        return self._handle.metadata.closed

    def look(self, just_opened: bool = False) -> int:
        """Current number of rows. ``just_opened``: the object is new, so no request is needed."""
        if not self.heard and not just_opened:
            self._handle.read_last_add_confirmed()
        self.heard = False
        self.rows = self._handle.last_add_confirmed + 1
        return self.rows

    @property
    def known_rows(self) -> int:
        """Number of known rows, without a request; at first those at the time of opening."""
        return self._handle.last_add_confirmed + 1

    def may_have(self, rows: int) -> bool:
        """Do the first ``rows`` rows, counted by an offset, exist in this ledger? If not, a newer commit accounts for them."""
        return self.known_rows >= rows or self.look() >= rows or not self.closed

    def wait(self, seconds: float) -> None:
        """Return when there may be more rows than ``look`` returned, or after ``seconds``. The bookies delay their response until
        then (long poll)."""
        last, _ = self._handle.read_last_add_confirmed_and_entry(self.rows, timeout=seconds)
        self.heard = last >= self.rows

    def range_of(self, rows: int) -> EntryRange:
        """The first ``rows`` rows (at least 1), with their approximate size in bytes. An unreadable row is left to its reader."""
        if rows > 2 * self._sampled_rows:
            # Rows have about the length of earlier rows.
            self._sampled_rows, self._sampled_bytes = rows, self._bytes_of(rows)
        size = self._sampled_bytes * rows // self._sampled_rows
        return EntryRange(self.ledger_id, 0, rows - 1, rows, size)

    def at_once(self, rows: int) -> int:
        """Number of rows (at most ``rows``, all confirmed) that a read returns in about the time of a single row."""
        return rows_at_once(self.range_of(rows).size // rows) if rows else 1

    def times(self, first: int, last: int) -> Callable[[int], int]:
        """Read the confirmed rows ``first`` to ``last``. Returns a function from entry id to time of append, in ms since 1970,
        which raises BookKeeperError if the entry is no row."""
        self._handle.confirm(last)
        entries = list(self._handle.read(first, last))
        return lambda entry_id: _stamp(entries[entry_id - first]).time_ms

    def newest_ms(self, rows: int) -> int:
        """Time of append of row ``rows - 1``, in ms since 1970; the rows before it are confirmed. Also samples the size of rows,
        for ``at_once``."""
        entry = self._entry(rows - 1)
        if rows > 2 * self._sampled_rows:
            self._sampled_rows, self._sampled_bytes = rows, entry.length
        return _stamp(entry).time_ms

    def _bytes_of(self, rows: int) -> int:
        with suppress(NoSuchEntryError, ReadError):
            return self._entry(rows - 1).length
        return rows * (self._sampled_bytes // self._sampled_rows if self._sampled_rows else _ROW_BYTES)

    def stamp_at(self, entry_id: int) -> Stamped:
        """The row in a confirmed entry."""
        return _stamp(self._entry(entry_id))

    def _entry(self, entry_id: int) -> Entry:
        self._handle.confirm(entry_id)
        (entry,) = self._handle.read(entry_id, entry_id)
        return entry


def _stamp(entry: Entry) -> Stamped:
    return stamp_of(entry.payload, f"ledger {entry.ledger_id}, entry {entry.entry_id}")


def rows_at_once(size: int) -> int:
    """Number of rows of ``size`` bytes that one read returns in about the time of a single row."""
    return max(1, min(_ROWS_AT_ONCE_MAX, _BYTES_AT_ONCE // (size + 1)))
