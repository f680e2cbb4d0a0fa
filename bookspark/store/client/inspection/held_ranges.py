"""The ranges that a bookie says it holds, by ledger."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow

Ranges = list[tuple[int, int]]
"""Inclusive ranges of entry ids, ascending. Those of different logs may overlap."""


class Lists(Protocol):
    """What has bookies list what they hold: ``BookKeeper``."""

    def list_ranges(self, bookie_id: str, ledger_id: int | None = None) -> pyarrow.Table:
        """The ranges of a bookie, of all ledgers or of one."""


def held_ranges(bookkeeper: Lists, bookie: str, ledger_id: int | None = None) -> dict[int, Ranges]:
    """What ``bookie`` lists, of all ledgers or of one. Raises ReadError."""
    table = bookkeeper.list_ranges(bookie, ledger_id)
    columns = (table[name].to_pylist() for name in ("ledger_id", "first_entry_id", "last_entry_id"))
    rows = sorted(zip(*columns, strict=True))
    return {key: [row[1:] for row in group] for key, group in groupby(rows, key=itemgetter(0))}
