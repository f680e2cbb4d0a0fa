"""The index: the locations of all entries that a bookie holds.

Law: the rows of a ledger are ranges of consecutive ids in one batch, sorted and never overlapping. The first copy of an entry
counts. A row is 24 bytes in three arrays (tuples take 152 to 236)::

    first    entry id of the range's first entry
    where    log number << 32 │ position of the batch frame in the log
    extent   entries in the range << 32 │ bytes of the batch frame

A range is only a part of its batch if the batch's other entries were there before. The bookie's loop owns the index, which lives
in memory; ``checkpoint`` keeps a copy of the synced rows.

The rows of an idle ledger are packed (``packed_dict``): its three arrays one after the other. A ledger with one row takes some
180 bytes in use, and at rest 56 beside its place in the dict. Callers get rows for changes by ``of`` or ``changing``, so the next
checkpoint knows the changes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from operator import lt, sub
from typing import Any, NamedTuple

from sortedcontainers import SortedSet

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.store.bookie.disk.packed_dict import PackedDict, ascending, since

ROW_BYTES = 24
_PACKED_ROWS_MAX = 64
"""A ledger with more rows stays an object: unpacking it for each read would cost more time than packing is worth."""
_LOW = (1 << 32) - 1


class Row(NamedTuple):
    """Entries ``first..last`` lie in the batch frame of ``size`` bytes at ``where``."""

    first: int
    last: int
    where: int
    size: int


def location(log: int, position: int) -> int:
    return log << 32 | position


def log_of(where: int) -> int:
    return where >> 32


def position_of(where: int) -> int:
    """Position in the log of a ``where``, in bytes."""
    return where & _LOW


class LedgerRows:
    __slots__ = ("extent", "first", "where")

    def __init__(self, first: array[int], where: array[int], extent: array[int]) -> None:
        self.first = first
        self.where = where
        self.extent = extent

    def __len__(self) -> int:
        return len(self.first)

    @property
    def last_entry_id(self) -> int:
        """The highest held id, NO_ENTRY if none."""
        return self.first[-1] + (self.extent[-1] >> 32) - 1 if self.first else NO_ENTRY

    def part(self, start: int, stop: int) -> LedgerRows:
        """Copy the rows number ``start`` to ``stop`` (exclusive)."""
        return LedgerRows(*[column[start:stop] for column in (self.first, self.where, self.extent)])

    def to_bytes(self) -> bytes:
        return self.first.tobytes() + self.where.tobytes() + self.extent.tobytes()

    def row(self, index: int) -> Row:
        first, extent = self.first[index], self.extent[index]
        return Row(first, first + (extent >> 32) - 1, self.where[index], extent & _LOW)

    def numbers_at(self, where: int, near: int = 0, within: int | None = None) -> list[int]:
        """Numbers of the rows in the frame at ``where``, ascending. (A million rows take some milliseconds.) ``within``: search
        only rows that begin at most this number of entry ids from entry ``near``."""
        start, part = 0, self.where
        if within is not None:
            start = bisect_left(self.first, near - within)
            part = part[start : bisect_right(self.first, near + within)]
        content, sought = part.tobytes(), array("q", [where]).tobytes()
        found, at = [], content.find(sought)
        while at >= 0:
            if at % len(sought) == 0:
                found.append(start + at // len(sought))
            at = content.find(sought, at + 1)
        return found

    def numbers_in(self, gone: Mapping[int, int]) -> list[int]:
        """Numbers of the rows with frames that reach beyond their log's position in ``gone``, ascending."""
        places, never = enumerate(zip(self.where, self.extent, strict=True)), 2 * _LOW
        return [i for i, (at, size) in places if (at & _LOW) + (size & _LOW) > gone.get(at >> 32, never)]

    def covering(self, first: int, last: int) -> Iterator[Row]:
        """The rows with any of ``first..last``, ascending, whole. Not to be held over a change."""
        index = max(0, bisect_right(self.first, first) - 1)
        for i in range(index, len(self.first)):
            row = self.row(i)
            if row.first > last:
                return
            if row.last >= first:
                yield row

    def ids_of(self, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Entry id ranges (first, last) of the rows of these numbers, ascending; adjacent ranges are joined."""
        begin, end = 0, -1
        for number in numbers:
            first = self.first[number]
            if first != end + 1 or end < begin:
                if end >= begin:
                    yield begin, end
                begin = first
            end = first + (self.extent[number] >> 32) - 1
        if end >= begin:
            yield begin, end


class ChangingRows(LedgerRows):
    """The rows of one ledger, changeable. ``clean``: this number of first rows is as in the last checkpoint. ``lost_some``: rows
    behind these were removed or moved."""

    __slots__ = ("clean", "lost_some")

    def __init__(self, first: array[int], where: array[int], extent: array[int]) -> None:
        super().__init__(first, where, extent)
        self.clean = 0
        self.lost_some = False

    @classmethod
    def empty(cls) -> ChangingRows:
        return cls(array("q"), array("q"), array("q"))

    @classmethod
    def of_bytes(cls, content: bytes | memoryview) -> ChangingRows:
        """Rows from the bytes of ``to_bytes``, as in the last checkpoint."""
        third = len(content) // 3
        rows = cls.empty()
        for number, column in enumerate((rows.first, rows.where, rows.extent)):
            column.frombytes(content[number * third : (number + 1) * third])
        rows.clean = third // 8
        return rows

    @property
    def is_clean(self) -> bool:
        return self.clean == len(self) and not self.lost_some

    def append(self, first: int, last: int, where: int, size: int) -> None:
        """Add the ids ``first..last``, all above ``last_entry_id``."""
        self.first.append(first)
        self.where.append(where)
        self.extent.append((last - first + 1) << 32 | size)

    def insert(self, first: int, last: int, where: int, size: int) -> None:
        if first > self.last_entry_id:
            self.append(first, last, where, size)
            return
        gap = first
        for row in list(self.covering(first, last)):
            if gap < row.first:
                self._insert_at(bisect_right(self.first, gap), gap, row.first - 1, where, size)
            gap = row.last + 1
        if gap <= last:
            self._insert_at(bisect_right(self.first, gap), gap, last, where, size)

    def extend(self, firsts: Sequence[int], lasts: Sequence[int], wheres: Sequence[int], sizes: Sequence[int]) -> None:
        if firsts[0] <= self.last_entry_id or not all(map(lt, lasts, firsts[1:])):
            deque(map(self.insert, firsts, lasts, wheres, sizes), maxlen=0)
            return
        self.first.extend(firsts)
        self.where.extend(wheres)
        self.extent.extend([n + 1 << 32 | size for n, size in zip(map(sub, lasts, firsts), sizes, strict=True)])

    def _insert_at(self, index: int, first: int, last: int, where: int, size: int) -> None:
        self.clean = min(self.clean, index)
        self.first.insert(index, first)
        self.where.insert(index, where)
        self.extent.insert(index, (last - first + 1) << 32 | size)

    def move(self, logs: frozenset[int], moved: Sequence[Row]) -> None:
        """Point the rows of entries that were copied out of ``logs``, and are still held there, to ``moved`` (ascending)."""
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
        self.clean, self.lost_some = min(self.clean, start), True
        self.first[start:stop] = array("q", (row.first for row in joined))
        self.where[start:stop] = array("q", (row.where for row in joined))
        self.extent[start:stop] = array("q", ((row.last - row.first + 1) << 32 | row.size for row in joined))

    def drop(self, first: int, last: int, where: int) -> None:
        """Remove the rows of the frame at ``where``, which holds entries ``first..last``. The cost is that of the rows in this
        range."""
        start = max(0, bisect_right(self.first, first) - 1)
        for index in range(bisect_right(self.first, last) - 1, start - 1, -1):
            if self.where[index] == where:
                del self.first[index], self.where[index], self.extent[index]
                self.clean, self.lost_some = min(self.clean, index), True

    def remove(self, first_where: int, last_where: int) -> list[Row]:
        """Remove the rows with frames that reach into ``first_where..last_where``; return them, ascending by entry id."""
        places = enumerate(zip(self.where, self.extent, strict=True))
        reach = [i for i, (at, size) in places if first_where < at + (size & _LOW) and at <= last_where]
        return self.remove_numbered(reach)

    def remove_numbered(self, numbers: Sequence[int]) -> list[Row]:
        rows = [self.row(i) for i in numbers]
        self.drop_numbered(numbers)
        return rows

    def drop_numbered(self, numbers: Sequence[int]) -> None:
        """Remove the rows of these numbers (ascending). The rows between them are moved in pieces."""
        if not numbers:
            return
        start, stop = numbers[0], numbers[-1] + 1
        self.clean, self.lost_some = min(self.clean, start), True
        for column in (self.first, self.where, self.extent):
            kept, at = column[:0], start
            for number in numbers:
                if at < number:
                    kept += column[at:number]
                at = number + 1
            column[start:stop] = kept


def _joined(rows: Sequence[Row]) -> Iterator[Row]:
    pending: Row | None = None
    for row in rows:
        if pending is not None and pending.where == row.where and pending.last + 1 == row.first:
            pending = pending._replace(last=row.last)
            continue
        if pending is not None:
            yield pending
        pending = row
    yield from () if pending is None else (pending,)


class Change(NamedTuple):
    """A change of a ledger: its rows from entry id ``since`` on are ``rows`` now. ``clean``: number of rows before them.
    ``lost_some``: rows were removed or moved."""

    since: int
    clean: int
    lost_some: bool
    rows: LedgerRows


class Index:
    """The rows of every ledger of a bookie, over all of its directories. A ledger without entries has no rows."""

    def __init__(self) -> None:
        self._rows: PackedDict[ChangingRows] = PackedDict(
            lambda rows: rows.to_bytes() if len(rows) <= _PACKED_ROWS_MAX else None,
            lambda _, content: ChangingRows.of_bytes(content),
        )
        self._changed: Any = SortedSet()
        """Ledgers possibly changed or forgotten since the last checkpoint was taken, and ledgers that may be packed."""
        self._forgotten: set[int] = set()
        """Ledgers forgotten since the last checkpoint was taken."""

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, ledger_id: int) -> LedgerRows | None:
        """The rows of a ledger, read-only; None if it has none."""
        return self._rows.look(ledger_id) if (rows := self._rows.used.get(ledger_id)) is None else rows

    def holds_any(self, ledger_id: int) -> bool:
        return len(self._rows.packed.get(ledger_id, b"") or self.get(ledger_id) or ()) > 0

    def changing(self, ledger_id: int) -> ChangingRows | None:
        """The rows of a ledger, changeable; None if it has none."""
        rows = self._rows.used.get(ledger_id)
        if rows is None and (rows := self._rows.get(ledger_id)) is not None:
            self._changed.add(ledger_id)
        return rows

    def of(self, ledger_id: int) -> ChangingRows:
        """The rows of a ledger, changeable; created if it has none."""
        rows = self.changing(ledger_id)
        if rows is None:
            rows = self._rows[ledger_id] = ChangingRows.empty()
            self._changed.add(ledger_id)
        return rows

    def put(self, ledger_id: int, content: memoryview) -> None:
        """Add the rows of a checkpoint, packed. Entries already there keep their rows."""
        if ledger_id in self._rows:
            present, rows = self.of(ledger_id), ChangingRows.of_bytes(content)
            for i in range(len(rows)):
                present.insert(*rows.row(i))
            return
        few = len(content) <= _PACKED_ROWS_MAX * ROW_BYTES
        self._rows.put_packed(ledger_id, bytes(content) if few else ChangingRows.of_bytes(content))

    def ledger_ids(self, start: int = 0, count: int | None = None) -> list[int]:
        """Ledgers with rows from id ``start`` on, ascending, at most ``count`` (None: all)."""
        return since(self._rows.ids, start, count)

    def ids(self) -> Iterator[int]:
        """Ledgers with rows, ascending. The index may change meanwhile; a ledger added meanwhile may be left out."""
        return ascending(self._rows.ids)

    def forget(self, ledger_id: int) -> None:
        """Remove a ledger with all its rows; no error if it has none."""
        if self._rows.pop(ledger_id):
            self._changed.add(ledger_id)
            self._forgotten.add(ledger_id)

    def take_anew(self, ledger_id: int) -> None:
        """Rows of a ledger in older checkpoints are void: the next checkpoint replaces them."""
        self._changed.add(ledger_id)
        self._forgotten.add(ledger_id)

    def remove_at_boot(self, gone: Mapping[int, int]) -> Iterator[tuple[int, list[Row]]]:
        """Remove the rows with frames that reach beyond their log's position in ``gone`` (by log number); yield them by ledger.
        Packed ledgers stay packed, and the change is not noted: the next checkpoint must hold everything."""
        for ledger_id in ascending(self._rows.ids):
            packed = isinstance(kept := self._rows.packed[ledger_id], bytes)
            rows = ChangingRows.of_bytes(kept) if isinstance(kept, bytes) else self.changing(ledger_id)
            if rows is not None and (removed := rows.remove_numbered(rows.numbers_in(gone))):
                if packed:
                    self._rows.packed[ledger_id] = rows.to_bytes()
                yield ledger_id, removed

    # -- for checkpoints

    def begin_checkpoint(self, *, whole: bool) -> tuple[Iterator[int], set[int]]:
        """Ledgers possibly changed since the last checkpoint (``whole``: all), ascending, and the set of ledgers forgotten
        meanwhile, even if present again. A ledger added before ``end_checkpoint`` may be left to the next checkpoint."""
        forgotten, self._forgotten = self._forgotten, set()
        return ascending(self._rows.ids if whole else self._changed), forgotten

    def take_change(self, ledger_id: int, *, anew: bool) -> Change | None:
        """The change of a ledger's rows since the last checkpoint, None if unchanged. ``anew``: all of its rows. Later changes
        belong to the next checkpoint."""
        rows = self._rows.in_use(ledger_id)
        if rows is None:
            kept = self.get(ledger_id) if anew else None
            if kept is None and not anew:
                return None
            return Change(0, 0, True, kept.part(0, len(kept)) if kept is not None else ChangingRows.empty())
        clean, lost_some = (0, True) if anew else (rows.clean, rows.lost_some)
        if clean == len(rows) and not lost_some:
            return None
        rows.clean, rows.lost_some = len(rows), False
        return Change(rows.row(clean - 1).last + 1 if clean else 0, clean, lost_some, rows.part(clean, len(rows)))

    def take_again(self, ledger_id: int, clean: int) -> None:
        """Return the rows from number ``clean`` on to the next checkpoint, because this checkpoint could not take them."""
        rows = self._rows.in_use(ledger_id)
        if rows is not None:
            rows.clean = min(rows.clean, clean)

    def rest(self, ledger_id: int) -> None:
        """Pack a ledger that the checkpoint has, if it was unused since the last checkpoint."""
        rows = self._rows.in_use(ledger_id)
        if rows is not None and rows.is_clean:
            self._rows.rest(ledger_id)
            rows = self._rows.in_use(ledger_id)
        if rows is None and ledger_id not in self._forgotten:
            self._changed.discard(ledger_id)

    def end_checkpoint(self) -> Iterator[None]:
        """End the checkpoint after all changes were taken. In steps."""
        return self._rows.turn()
