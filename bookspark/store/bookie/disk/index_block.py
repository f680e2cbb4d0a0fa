"""Blocks of the index: what checkpoints are made of, sorted by ledger, and how newer ones are laid over older ones.

Law: an entry of a block says of one ledger "the rows from entry id ``since`` on are these, and what an older block says of the
ids before stays". So what changed is told without what did not. With ``since`` 0 nothing older counts; without rows too, the
ledger is forgotten. A block, in native (little-endian) integers::

    i64 ledgers n │ i64 rows m
    n × ledger id │ n × LAC │ n × LAFR │ n × since │ n × row count │ for each ledger: its firsts, its wheres, its extents

LAC: last add confirmed; LAFR: last add fully replicated; rows as in ``index``. Ids ascend within a block and from block to block.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from bookspark.store.bookie.disk.index import ROW_BYTES
from bookspark.store.wire.entry_batch import Buffer

HEAD = struct.Struct("<qq")
LEDGER_BYTES = 5 * 8
_LEDGERS_MAX = 1 << 13
_BYTES_MAX = 1 << 20
"""A block takes no more ledgers once it is so long. It is longer if a single ledger is."""


class Block(NamedTuple):
    """Ledgers with their rows, ascending. The columns have a value for each ledger."""

    ids: array[int]
    confirmed: array[int]
    replicated: array[int]
    since: array[int]
    counts: array[int]
    rows: memoryview

    @property
    def size(self) -> int:
        """In bytes."""
        return HEAD.size + len(self.ids) * LEDGER_BYTES + len(self.rows)

    @property
    def starts(self) -> list[int]:
        """Where the rows of each ledger start in ``rows``, and the end of the last ones."""
        return list(accumulate((ROW_BYTES * count for count in self.counts), initial=0))

    def logs(self) -> set[int]:
        """The numbers of the logs that the rows lie in."""
        halves = self.rows.cast("I")
        if len(self.rows) == ROW_BYTES * len(self.counts) and max(self.counts, default=1) == 1:
            return set(halves[3::6])
        starts = zip(self.starts, self.counts, strict=False)
        return {
            log for start, count in starts for log in halves[start // 4 + 2 * count + 1 : start // 4 + 4 * count : 2]
        }

    def part(self, start: int, stop: int) -> Block:
        """The ledgers number ``start`` to ``stop`` (exclusive)."""
        begin = ROW_BYTES * sum(self.counts[:start])
        end = begin + ROW_BYTES * sum(self.counts[start:stop])
        return _block([column[start:stop] for column in self[:5]], self.rows[begin:end])

    def encode(self) -> list[Buffer]:
        """The bytes of the block, in pieces."""
        head = HEAD.pack(len(self.ids), len(self.rows) // ROW_BYTES)
        return [head, *(memoryview(column).cast("B") for column in self[:5]), self.rows]


def _block(columns: Sequence[array[int]], rows: memoryview) -> Block:
    ids, confirmed, replicated, since, counts = columns
    return Block(ids, confirmed, replicated, since, counts, rows)


def decode_block(ledgers: int, content: memoryview) -> Block:
    """The block of ``ledgers`` ledgers whose bytes after the head are ``content``."""
    columns = []
    for number in range(5):
        column = array("q")
        column.frombytes(content[number * 8 * ledgers : (number + 1) * 8 * ledgers])
        columns.append(column)
    return _block(columns, content[LEDGER_BYTES * ledgers :])


class BlockBuilder:
    """Makes blocks of ledgers that come in ascending order."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._columns = [array("q") for _ in range(5)]
        self._rows = bytearray()

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def is_full(self) -> bool:
        return len(self) >= _LEDGERS_MAX or len(self._rows) >= _BYTES_MAX

    def add(self, facts: Iterable[int], rows: Buffer) -> None:
        """Add a ledger. ``facts``: id, LAC, LAFR, since, row count."""
        for column, value in zip(self._columns, facts, strict=True):
            column.append(value)
        self._rows += rows

    def copy(self, block: Block, start: int, stop: int, starts: list[int]) -> None:
        """Add the ledgers number ``start`` to ``stop`` (exclusive) of a block; ``starts`` are the block's."""
        for column, values in zip(self._columns, block[:5], strict=True):
            column.extend(values[start:stop])
        self._rows += block.rows[starts[start] : starts[stop]]

    def take(self) -> Block:
        """The block. What is added from now on is another one."""
        block = _block(self._columns, memoryview(bytes(self._rows)))
        self._begin()
        return block


def overlaid(older: Iterable[Block], newer: Iterable[Block]) -> Iterator[Block]:
    """One sequence of blocks that says what the two say together. Blocks that have no ids between each other pass as they are."""
    olds, news = iter(older), iter(newer)
    old, new = next(olds, None), next(news, None)
    while old is not None and new is not None:
        if old.ids[-1] < new.ids[0]:
            yield old
            old = next(olds, None)
        elif new.ids[-1] < old.ids[0]:
            yield new
            new = next(news, None)
        else:
            limit = min(old.ids[-1], new.ids[-1])
            old_end, new_end = bisect_right(old.ids, limit), bisect_right(new.ids, limit)
            yield _joined(old.part(0, old_end), new.part(0, new_end))
            old = old.part(old_end, len(old.ids)) if old_end < len(old.ids) else next(olds, None)
            new = new.part(new_end, len(new.ids)) if new_end < len(new.ids) else next(news, None)
    if old is not None:
        yield old
        yield from olds
    if new is not None:
        yield new
        yield from news


def _joined(old: Block, new: Block) -> Block:
    builder = BlockBuilder()
    old_starts, new_starts = old.starts, new.starts
    at = 0
    for number, ledger_id in enumerate(new.ids):
        to = bisect_left(old.ids, ledger_id, at)
        if to > at:
            builder.copy(old, at, to, old_starts)
        at = to
        if at < len(old.ids) and old.ids[at] == ledger_id:
            _join_ledger(builder, old, at, old_starts, new, number, new_starts)
            at += 1
        else:
            builder.copy(new, number, number + 1, new_starts)
    builder.copy(old, at, len(old.ids), old_starts)
    return builder.take()


def _join_ledger(
    builder: BlockBuilder, old: Block, at: int, old_starts: list[int], new: Block, number: int, new_starts: list[int]
) -> None:
    since = new.since[number]
    if since == 0:
        builder.copy(new, number, number + 1, new_starts)
        return
    count, more = old.counts[at], new.counts[number]
    rows, added = old.rows[old_starts[at] : old_starts[at + 1]], new.rows[new_starts[number] : new_starts[number + 1]]
    first = array("q")
    first.frombytes(rows[: 8 * count])
    kept = bisect_left(first, since)
    pieces = []
    for column in range(3):
        pieces.append(rows[8 * column * count : 8 * (column * count + kept)])
        pieces.append(added[8 * column * more : 8 * (column + 1) * more])
    confirmed = max(old.confirmed[at], new.confirmed[number])
    replicated = max(old.replicated[at], new.replicated[number])
    facts = (new.ids[number], confirmed, replicated, min(old.since[at], since), kept + more)
    builder.add(facts, b"".join(pieces))


def gathered(blocks: Iterable[Block], *, complete: bool) -> Iterator[Block]:
    """The same blocks, small ones put together. ``complete``: nothing older lies below, so ledgers without rows are left out."""
    builder = BlockBuilder()
    for block in blocks:
        found = _with_rows(block) if complete and 0 in block.counts else block
        if not len(builder) and len(found.ids) >= _LEDGERS_MAX // 2:
            yield found
            continue
        if found.ids:
            builder.copy(found, 0, len(found.ids), [0] + [len(found.rows)] * len(found.ids))
        if builder.is_full:
            yield builder.take()
    if len(builder):
        yield builder.take()


def _with_rows(block: Block) -> Block:
    kept = [number for number, count in enumerate(block.counts) if count]
    return _block([array("q", (column[number] for number in kept)) for column in block[:5]], block.rows)
