"""The index: which entries a bookie holds, and where.

Law: the rows of a ledger are ranges of consecutive ids in one batch, sorted and never overlapping; the copy that came first is
the one that counts. A row is 24 bytes in three arrays (tuples take 152 to 236)::

    first    entry id of the range's first entry
    where    log number << 32 │ position of the batch frame in the log
    extent   entries in the range << 32 │ bytes of the batch frame

A range is only a part of its batch if the other entries of that batch were there before. The index is owned by the bookie's loop
and lives in memory; ``checkpoint`` keeps a copy of what is synced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY

_LOW = (1 << 32) - 1


class Row(NamedTuple):
    """Entries ``first..last`` lie in the batch frame of ``size`` bytes at ``where``."""

    first: int
    last: int
    where: int
    size: int


def location(log: int, position: int) -> int:
    """The ``where`` of a row."""
    return log << 32 | position


def log_of(where: int) -> int:
    """The number of the log in a ``where``."""
    return where >> 32


def position_of(where: int) -> int:
    """The position in the log in a ``where``, in bytes."""
    return where & _LOW


class LedgerRows:
    """The rows of one ledger."""

    __slots__ = ("extent", "first", "where")

    def __init__(self, first: array[int], where: array[int], extent: array[int]) -> None:
        self.first = first
        self.where = where
        self.extent = extent

    @classmethod
    def empty(cls) -> LedgerRows:
        return cls(array("q"), array("q"), array("q"))

    def __len__(self) -> int:
        return len(self.first)

    @property
    def last_entry_id(self) -> int:
        """The highest id held, NO_ENTRY if none."""
        return self.first[-1] + (self.extent[-1] >> 32) - 1 if self.first else NO_ENTRY

    def parts(self, rows_max: int) -> Iterator[LedgerRows]:
        """The rows as they are now, ascending, at most ``rows_max`` at a time. Rows may be added between two parts."""
        if len(self) <= rows_max:
            yield self
            return
        first, where, extent = self.first[:], self.where[:], self.extent[:]
        for start in range(0, len(first), rows_max):
            part = slice(start, start + rows_max)
            yield LedgerRows(first[part], where[part], extent[part])

    def row(self, index: int) -> Row:
        first, extent = self.first[index], self.extent[index]
        return Row(first, first + (extent >> 32) - 1, self.where[index], extent & _LOW)

    def covering(self, first: int, last: int) -> Iterator[Row]:
        """The rows that hold any of ``first..last``, ascending, whole. Not to be held over a change."""
        index = max(0, bisect_right(self.first, first) - 1)
        for i in range(index, len(self.first)):
            row = self.row(i)
            if row.first > last:
                return
            if row.last >= first:
                yield row

    def insert(self, first: int, last: int, where: int, size: int) -> None:
        """Add the ids of ``first..last`` that are not there yet."""
        if not self.first or first > self.first[-1] + (self.extent[-1] >> 32) - 1:
            self.first.append(first)
            self.where.append(where)
            self.extent.append((last - first + 1) << 32 | size)
            return
        gap = first
        for row in list(self.covering(first, last)):
            if gap < row.first:
                self._insert_at(bisect_right(self.first, gap), gap, row.first - 1, where, size)
            gap = row.last + 1
        if gap <= last:
            self._insert_at(bisect_right(self.first, gap), gap, last, where, size)

    def _insert_at(self, index: int, first: int, last: int, where: int, size: int) -> None:
        extent = (last - first + 1) << 32 | size
        if index == len(self.first):
            self.first.append(first)
            self.where.append(where)
            self.extent.append(extent)
        else:
            self.first.insert(index, first)
            self.where.insert(index, where)
            self.extent.insert(index, extent)

    def move(self, logs: frozenset[int], moved: Sequence[Row]) -> None:
        """Entries were copied out of ``logs``: point the rows of those that are still held there to ``moved`` (ascending)."""
        start = max(0, bisect_right(self.first, moved[0].first) - 1)
        stop = bisect_right(self.first, moved[-1].last)
        rows: list[Row] = []
        at = 0
        for row in [self.row(i) for i in range(start, stop)]:
            if log_of(row.where) not in logs:
                rows.append(row)
                continue
            gap = row.first
            while at < len(moved) and moved[at].last < row.first:
                at += 1
            for run in takewhile(lambda run, row=row: run.first <= row.last, moved[at:]):  # type: ignore[misc]
                first, last = max(run.first, row.first), min(run.last, row.last)
                if gap < first:
                    rows.append(Row(gap, first - 1, row.where, row.size))
                rows.append(Row(first, last, run.where, run.size))
                gap = last + 1
            if gap <= row.last:
                rows.append(Row(gap, row.last, row.where, row.size))
        joined = list(_joined(rows))
        self.first[start:stop] = array("q", (row.first for row in joined))
        self.where[start:stop] = array("q", (row.where for row in joined))
        self.extent[start:stop] = array("q", ((row.last - row.first + 1) << 32 | row.size for row in joined))

    def remove(self, first_where: int, last_where: int) -> list[Row]:
        """Remove the rows whose frames lie at ``first_where..last_where``; returns them, ascending by entry id."""
        removed = [self.row(i) for i, where in enumerate(self.where) if first_where <= where <= last_where]
        if removed:
            kept = [i for i, where in enumerate(self.where) if not first_where <= where <= last_where]
            for name in self.__slots__:
                column = getattr(self, name)
                setattr(self, name, array("q", (column[i] for i in kept)))
        return removed


def _joined(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows, with those that follow each other in one batch made one."""
    pending: Row | None = None
    for row in rows:
        if pending is not None and pending.where == row.where and pending.last + 1 == row.first:
            pending = pending._replace(last=row.last)
            continue
        if pending is not None:
            yield pending
        pending = row
    if pending is not None:
        yield pending


class Index:
    """The rows of every ledger of a bookie, over all of its directories. A ledger without entries has none."""

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerRows] = {}
        self._sorted: list[int] | None = []
        """All ids in order, as they were when they were asked for last. None: one of them was removed since then."""
        self._added: list[int] = []
        """Ids that were added since then."""

    def get(self, ledger_id: int) -> LedgerRows | None:
        """The rows of a ledger, None if it has none."""
        return self._ledgers.get(ledger_id)

    def of(self, ledger_id: int) -> LedgerRows:
        """The rows of a ledger, to be added to."""
        rows = self._ledgers.get(ledger_id)
        if rows is None:
            rows = LedgerRows.empty()
            self._begin(ledger_id, rows)
        return rows

    def put(self, ledger_id: int, rows: LedgerRows) -> None:
        """Add the rows of a checkpoint. Entries that are there already keep their rows."""
        present = self._ledgers.get(ledger_id)
        if present is None:
            self._begin(ledger_id, rows)
        else:
            for i in range(len(rows)):
                present.insert(*rows.row(i))

    def _begin(self, ledger_id: int, rows: LedgerRows) -> None:
        self._ledgers[ledger_id] = rows
        self._added.append(ledger_id)

    def ledger_ids(self, start: int = 0) -> list[int]:
        """All ledgers that have rows from id ``start`` on, ascending."""
        if self._sorted is None:
            # The ids are nearly in order, so sorting takes no longer than one pass.
            self._sorted = sorted(self._ledgers)
        elif self._added:
            self._sorted += self._added
            self._sorted.sort()
        self._added = []
        return self._sorted[bisect_right(self._sorted, start - 1) :]

    def forget(self, ledger_id: int) -> None:
        """Remove a ledger with all its rows; no error if it has none."""
        if self._ledgers.pop(ledger_id, None) is not None:
            self._sorted = None

    def remove_logs(self, numbers: set[int]) -> dict[int, list[Row]]:
        """Remove all rows whose frames lie in these logs; returns them by ledger."""
        removed: dict[int, list[Row]] = {}
        for ledger_id, rows in self._ledgers.items():
            for number in {log_of(where) for where in rows.where} & numbers:
                removed[ledger_id] = removed.get(ledger_id, []) + rows.remove(
                    location(number, 0), location(number, _LOW)
                )
        return removed

    def remove(self, first_where: int, last_where: int) -> dict[int, list[Row]]:
        """Remove all rows whose frames lie in ``first_where..last_where``; returns them by ledger."""
        return {
            ledger_id: removed
            for ledger_id, rows in self._ledgers.items()
            if max(rows.where, default=-1) >= first_where and (removed := rows.remove(first_where, last_where))
        }
