"""Statistics of a commit's rows: bounds of columns, block by block.

Law: the bounds hold for every row of a block: no value is below ``low`` or above ``high``, and ``nulls`` is the number of nulls.
None means unknown; a reader without statistics reads the rows. The blocks, in order, are the rows of the commit. The text has a
size limit, so more rows make larger blocks.

The text is JSON, in field ``statistics`` of a commit: ``[[column, …], [rows, [low, high, nulls], …], …]``, a list for each block,
with bounds in the order of the columns. ``low`` and ``high`` are plain: a whole number; a double, never NaN or infinite; a string
of at most TEXT_MAX characters; bytes as hexadecimal digits; a boolean as 0 or 1; a date as days and a timestamp as microseconds
since 1970; a decimal as its digits without the point. Source: docs/decisions/where.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

TEXT_MAX = 32
"""Longest bound of a string, in characters, or of bytes. Longer bounds are cut, and a cut high bound is rounded up."""
COMMIT_BYTES_MAX, COMMIT_BYTES_FREE, ROW_BYTES_EACH = 64 << 10, 1 << 10, 1 << 11
"""Statistics take at most COMMIT_BYTES_FREE plus one byte for each ROW_BYTES_EACH bytes of rows, and never more than
COMMIT_BYTES_MAX."""
BLOCKS_MAX = 4096
"""Most blocks that a task keeps; above this limit it merges pairs."""


class Bounds(NamedTuple):
    low: Any = None
    high: Any = None
    nulls: int | None = None


UNKNOWN = Bounds()


class Block(NamedTuple):
    rows: int
    columns: tuple[Bounds, ...]


class Statistics(NamedTuple):
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)


class Collected:
    """Collects the blocks of a task."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._blocks: list[Block] = []

    def add(self, block: Block) -> None:
        self._blocks.append(block)
        if len(self._blocks) > BLOCKS_MAX:
            self._blocks = _coarser(self._blocks, 2)

    def text(self, size: int) -> str:
        """Statistics text for a commit of ``size`` bytes of rows. Empty: none."""
        return _fitted(Statistics(self._columns, tuple(self._blocks)), size)


def joined(parts: Iterable[tuple[str, int]], size: int) -> str:
    """Statistics text for a commit of ``size`` bytes of rows, from the (text, number of rows) of its parts, in order."""
    columns: tuple[str, ...] | None = None
    blocks: list[Block] = []
    for text, rows in parts:
        statistics = parsed(text, rows)
        if statistics is None or (columns is not None and statistics.columns != columns):
            return ""
        columns = statistics.columns
        blocks += statistics.blocks
    return "" if columns is None else _fitted(Statistics(columns, tuple(blocks)), size)


def parsed(text: str, rows: int) -> Statistics | None:
    """Parse the statistics of ``rows`` rows. None if ``text`` is empty, of another number of rows, or of an unknown form."""
    if not text:
        return None
    try:
        columns, *blocks = json.loads(text)
        statistics = Statistics(
            tuple(map(str, columns)),
            tuple(Block(int(count), tuple(Bounds(*one) for one in bounds)) for count, *bounds in blocks),
        )
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    fits = all(len(block.columns) == len(statistics.columns) and block.rows > 0 for block in statistics.blocks)
    return statistics if fits and statistics.rows == rows else None


def low_text(value: bytes) -> str:
    """A string not greater than ``value`` (possibly invalid UTF-8) in byte order."""
    return _valid(value)[:TEXT_MAX]


def high_text(value: bytes) -> str | None:
    """A string not less than ``value`` in byte order; None if there is no such short string."""
    text = _valid(value)
    if len(text) <= TEXT_MAX and text.encode() == value:
        return text
    text = text[:TEXT_MAX]
    while text:
        following = ord(text[-1]) + 1
        if following <= 0x10FFFF:
            # Strings have no surrogates.
            return text[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)
        text = text[:-1]
    return None


def low_bytes(value: bytes) -> str:
    """Bytes not greater than ``value``, as hexadecimal digits."""
    return value[:TEXT_MAX].hex()


def high_bytes(value: bytes) -> str | None:
    """Bytes not less than ``value``, as hexadecimal digits; None if there are no such short bytes."""
    if len(value) <= TEXT_MAX:
        return value.hex()
    cut = value[:TEXT_MAX].rstrip(b"\xff")
    return (cut[:-1] + bytes((cut[-1] + 1,))).hex() if cut else None


def _valid(value: bytes) -> str:
    """Longest valid UTF-8 prefix of ``value``."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return value[: error.start].decode()


def _fitted(statistics: Statistics, size: int) -> str:
    bytes_max = min(COMMIT_BYTES_MAX, COMMIT_BYTES_FREE + size // ROW_BYTES_EACH)
    while statistics.columns and statistics.blocks:
        text = json.dumps(
            [statistics.columns, *((rows, *columns) for rows, columns in statistics.blocks)], separators=(",", ":")
        )
        if len(text) <= bytes_max:
            return text
        columns, blocks = statistics
        if len(blocks) > 1:
            statistics = Statistics(columns, tuple(_coarser(blocks, max(2, len(text) // bytes_max))))
        else:
            # Even one block is too large: drop the last column.
            ((rows, bounds),) = blocks
            statistics = Statistics(columns[:-1], (Block(rows, bounds[:-1]),))
    return ""


def _coarser(blocks: Sequence[Block], each: int) -> list[Block]:
    return [_one(blocks[at : at + each]) for at in range(0, len(blocks), each)]


def _one(blocks: Sequence[Block]) -> Block:
    columns = zip(*(block.columns for block in blocks), strict=True)
    return Block(sum(block.rows for block in blocks), tuple(_around(some, blocks) for some in columns))


def _around(some: Sequence[Bounds], blocks: Sequence[Block]) -> Bounds:
    """Bounds of a column over all rows of ``blocks``, from its bounds ``some`` in each block."""
    # A block of only nulls has no values to bound.
    valued = [bounds for bounds, block in zip(some, blocks, strict=True) if bounds.nulls != block.rows]
    lows, highs = [bounds.low for bounds in valued], [bounds.high for bounds in valued]
    nulls = [bounds.nulls for bounds in some if bounds.nulls is not None]
    return Bounds(
        min(lows) if lows and None not in lows else None,
        max(highs) if highs and None not in highs else None,
        sum(nulls) if len(nulls) == len(some) else None,
    )
