"""The rows of the ledger that the newest commit of a lane opened, as they grow.

Law: entry *n* of the ledger is the *n*-th row after those that are committed. A row counts once it is confirmed, or once an
offset has counted it; readers never fence. While the ledger is not closed, the lane has no newer commit, so nothing else need be
asked.

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

_BYTES_AT_ONCE, _ROWS_AT_ONCE_MAX = 16384, 32
_ROW_BYTES = 1024
"""The length of rows of which none could be read."""


class OpenRows:
    """Follows an open ledger. Every method that asks raises ReadError if too few bookies answer, NoSuchLedgerError, and
    UnauthorizedAccessError (wrong password)."""

    def __init__(self, bookkeeper: BookKeeper, ledger_id: int, password: bytes) -> None:
        self.ledger_id = ledger_id
        self.rows = 0
        """How many rows ``look`` told last."""
        self._handle = bookkeeper.open_ledger_no_recovery(ledger_id, password=password)
        self.heard = False
        """Whether ``wait`` heard of more rows, which ``look`` did not tell yet; ``look`` asks nobody then."""
        self._sampled_rows = self._sampled_bytes = 0

    @property
    def closed(self) -> bool:
        """Whether there will be no more rows than ``look`` tells from now on; as it was last seen."""
        return self._handle.metadata.closed

    def look(self, just_opened: bool = False) -> int:
        """How many rows there are now. ``just_opened``: this was made a moment ago, so the bookies need not be asked again."""
        if not self.heard and not just_opened:
            self._handle.read_last_add_confirmed()
        self.heard = False
        self.rows = self._handle.last_add_confirmed + 1
        return self.rows

    @property
    def known_rows(self) -> int:
        """How many rows are known, without a question to anybody: at first those of the moment when this was made."""
        return self._handle.last_add_confirmed + 1

    def may_have(self, rows: int) -> bool:
        """Are the first ``rows`` rows there, if an offset counts them? If not, a newer commit says what they are."""
        return self.known_rows >= rows or self.look() >= rows or not self.closed

    def wait(self, seconds: float) -> None:
        """Return when there may be more rows than ``look`` told, or after ``seconds``. The bookies hold their answer until
        then."""
        last, _ = self._handle.read_last_add_confirmed_and_entry(self.rows, timeout=seconds)
        self.heard = last >= self.rows

    def range_of(self, rows: int) -> EntryRange:
        """The first ``rows`` rows, with about their bytes; one row at least. A row that can't be read does not matter: whoever
        reads it is told."""
        if rows > 2 * self._sampled_rows:
            # Rows are about as long as those before them.
            self._sampled_rows, self._sampled_bytes = rows, self._bytes_of(rows)
        size = self._sampled_bytes * rows // self._sampled_rows
        return EntryRange(self.ledger_id, 0, rows - 1, rows, size)

    def at_once(self, rows: int) -> int:
        """How many of the first ``rows`` rows, all of them confirmed, are read about as quickly as one."""
        return rows_at_once(self.range_of(rows).size // rows) if rows else 1

    def times(self, first: int, last: int) -> Callable[[int], int]:
        """Read the rows in these entries, which are confirmed. Returns what tells when the row in an entry of them was appended,
        in ms since 1970; that raises BookKeeperError if the entry is no row."""
        self._handle.confirm(last)
        found = list(self._handle.read(first, last))
        where = f"ledger {self.ledger_id}, entry "
        return lambda entry_id: stamp_of(found[entry_id - first].payload, f"{where}{entry_id}").time_ms

    def newest_ms(self, rows: int) -> int:
        """When the last one of the first ``rows`` rows, all of them confirmed, was appended, in ms since 1970; so many have then
        been looked at for ``at_once``, too."""
        self._handle.confirm(rows - 1)
        (entry,) = self._handle.read(rows - 1, rows - 1)
        if rows > 2 * self._sampled_rows:
            self._sampled_rows, self._sampled_bytes = rows, entry.length
        return stamp_of(entry.payload, f"ledger {self.ledger_id}, entry {rows - 1}").time_ms

    def _bytes_of(self, rows: int) -> int:
        """About how many bytes the first ``rows`` rows have."""
        self._handle.confirm(rows - 1)
        with suppress(NoSuchEntryError, ReadError):
            (entry,) = self._handle.read(rows - 1, rows - 1)
            return entry.length
        return rows * (self._sampled_bytes // self._sampled_rows if self._sampled_rows else _ROW_BYTES)

    def stamp_at(self, entry_id: int) -> Stamped:
        """The row in an entry, which is confirmed."""
        self._handle.confirm(entry_id)
        (entry,) = self._handle.read(entry_id, entry_id)
        return stamp_of(entry.payload, f"ledger {self.ledger_id}, entry {entry_id}")


def rows_at_once(size: int) -> int:
    """How many rows of ``size`` bytes are read about as quickly as one."""
    return max(1, min(_ROWS_AT_ONCE_MAX, _BYTES_AT_ONCE // (size + 1)))
