"""Ranges of entries in a bookie's index, by ledger."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow

Ranges = list[tuple[int, int]]
"""Inclusive ranges of entry ids, ascending. Ranges in different logs may overlap."""


class Lists(Protocol):
    """Lists the index of a bookie, like ``BookKeeper``."""

    def list_ranges(self, bookie_id: str, ledger_id: int | None = None) -> pyarrow.Table:
        """The ranges of a bookie, of one ledger or (None) of all."""


def held_ranges(bookkeeper: Lists, bookie: str, ledger_id: int | None = None) -> dict[int, Ranges]:
    """Ledger id → ranges in the index of ``bookie``, of one ledger or (None) of all. Raises ReadError."""
    table = bookkeeper.list_ranges(bookie, ledger_id)
    columns = (table[name].to_pylist() for name in ("ledger_id", "first_entry_id", "last_entry_id"))
    rows = sorted(zip(*columns, strict=True))
    return {key: [row[1:] for row in group] for key, group in groupby(rows, key=itemgetter(0))}
