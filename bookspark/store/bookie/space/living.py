"""What lives in sealed logs, as the index tells it: how much, where to look for it, and each row.

Law: the index alone says what lives. No log is read to find out, so no bad byte can hide a row. Rows may be added and may go
between any two steps, but a sealed log never gets a row; so what is found here holds every row of a sealed log that is there
later. The walk goes on by entry id, not by place in the arrays, because rows that go move the places of those behind them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.store.bookie.disk.index import Index, log_of, position_of
from bookspark.store.bookie.disk.packed_dict import PackedDict
from bookspark.store.bookie.space.rewriting import LedgerFacts
from bookspark.store.bookie.steps import Steps
from bookspark.store.wire.messages import Ranges

_ROWS_A_STEP = 1 << 10
"""To look at a row takes up to 2 µs."""
_A_LEDGER = 8
"""To come to a ledger takes as long as to look at so many of its rows."""
_LOW = (1 << 32) - 1

_Part = tuple[int, Sequence[int], Sequence[int], Sequence[int]]
"""Some rows of a ledger: its id, then the columns first, where and extent."""


class Spans(NamedTuple):
    """The ledgers that have rows in one log, and between which entry ids these rows lie. Columns of equal length."""

    ledger_ids: array[int]
    first_entry_ids: array[int]
    last_entry_ids: array[int]

    @classmethod
    def empty(cls) -> Spans:
        return cls(array("q"), array("q"), array("q"))

    def cover(self, ledger_id: int, first: int, last: int) -> None:
        """A ledger has a row ``first..last``. Ledgers come one after the other, their rows ascending."""
        if self.ledger_ids and self.ledger_ids[-1] == ledger_id:
            self.last_entry_ids[-1] = last
            return
        self.ledger_ids.append(ledger_id)
        self.first_entry_ids.append(first)
        self.last_entry_ids.append(last)


def live_bytes(index: Index) -> Steps[Counter[int]]:
    """How many bytes of each log, by its number, live. A batch that is live in part counts whole."""
    live: Counter[int] = Counter()
    for part in _walk(index):
        if part is None:
            yield None
            continue
        before = -1
        for where, extent in zip(part[2], part[3], strict=True):
            if where != before:
                live[log_of(where)] += extent & _LOW
                before = where
    return live


def spans(index: Index, logs: Collection[int]) -> Steps[dict[int, Spans]]:
    """Where the rows lie that point into these ``logs`` (numbers), by log. A log that nothing points into has none."""
    found: dict[int, Spans] = {}
    if not logs:
        return found
    lowest, highest = min(logs) << 32, max(logs) << 32 | _LOW
    wanted = frozenset(logs)
    for part in _walk(index):
        if part is None:
            yield None
            continue
        ledger_id, firsts, wheres, extents = part
        if max(wheres) < lowest or min(wheres) > highest:
            continue
        for first, where, extent in zip(firsts, wheres, extents, strict=True):
            if (number := where >> 32) in wanted:
                if number not in found:
                    found[number] = Spans.empty()
                found[number].cover(ledger_id, first, first + (extent >> 32) - 1)
    return found


def living(
    index: Index, ledgers: PackedDict[BookieLedger], logs: Collection[int], found: Mapping[int, Spans]
) -> Steps[tuple[Ranges, dict[int, LedgerFacts]]]:
    """Every row that points into ``logs`` (numbers) now, and what is known of the ledgers; ``found`` by ``spans`` earlier."""
    rows = Ranges.empty()
    facts: dict[int, LedgerFacts] = {}
    counted = 0
    for number in logs:
        for ledger_id, first, last in zip(*found.get(number, Spans.empty()), strict=True):
            while (present := index.get(ledger_id)) is not None and (ledger := ledgers.look(ledger_id)) is not None:
                part = list(islice(present.covering(first, last), _ROWS_A_STEP))
                for row in part:
                    if log_of(row.where) == number:
                        rows.append((ledger_id, row.first, row.last, number, position_of(row.where), row.size))
                facts[ledger_id] = LedgerFacts(
                    ledger.last_add_confirmed, ledger.last_add_fully_replicated, ledger.master_key or bytes(16)
                )
                counted += len(part) + _A_LEDGER
                if counted >= _ROWS_A_STEP:
                    counted = 0
                    yield None
                if len(part) < _ROWS_A_STEP:
                    break
                first = part[-1].last + 1
    return rows, facts


def _walk(index: Index) -> Iterator[_Part | None]:
    """The rows of all ledgers that are there from the first step on, in parts. None: some milliseconds were spent."""
    counted = 0
    for ledger_id in index.ids():
        following = 0
        while (rows := index.get(ledger_id)) is not None:
            start = bisect_left(rows.first, following)
            part = slice(start, start + _ROWS_A_STEP)
            if not (firsts := rows.first[part]):
                break
            yield ledger_id, firsts, rows.where[part], rows.extent[part]
            following = firsts[-1] + 1
            counted += len(firsts) + _A_LEDGER
            if counted >= _ROWS_A_STEP:
                counted = 0
                yield None
            if len(firsts) < _ROWS_A_STEP:
                break
