"""Tables for a terminal of any width.

Law: no word is cut while the terminal is wide enough for it, and no value is hidden without a word. A table that is too wide
breaks its sentences; then goes without its empty columns, and without the columns that its command can spare, named below it;
then prints each row as a block with a line for each column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from bookspark.support.plain_text import printable

UNLIMITED = 100_000
"""Width of a file or a pipe."""
_GAP = 2
"""Spaces between two columns."""
_SENTENCE_WIDTH = 16
"""A column of sentences is no narrower."""
_FIGURE = re.compile(r"-?\d[\d,.]*( [kMGT]?B)?(/s)?")


class PrintedTable:
    """A table for ``Console.print``. ``spare``: names of columns that a narrow terminal goes without, the first one first."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        title: str = "",
        spare: Sequence[str] = (),
        caption: str = "",
        style: str = "bold",
    ) -> None:
        self._columns = columns
        self._cells = [[cell_text(value) for value in row] for row in rows]
        self._title, self._caption, self._style = title, caption, style
        empty = [name for k, name in enumerate(columns) if not any(row[k] for row in self._cells)]
        self._spare = [*empty, *(name for name in spare if name not in empty)]
        self._empty = len(empty)
        self._widths = [self._least_and_most(k) for k in range(len(columns))]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield Text(self._title, style=self._style)
        yield from self._fitting(options.max_width)
        if self._caption:
            yield Text(self._caption, style="dim")

    def _fitting(self, width: int) -> Iterator[Table | Text]:
        for spared in range(len(self._spare) + 1):
            without = self._spare[:spared]
            shown = [k for k, name in enumerate(self._columns) if name not in without]
            widths = _shared([self._widths[k] for k in shown], width - _GAP * (len(shown) - 1))
            if shown and widths is not None:
                yield self._table(shown, widths)
                if named := without[self._empty :]:
                    yield Text(f"too narrow for: {', '.join(named)} (--json has all)", style="dim")
                return
        rows = [[(name, text) for name, text in zip(self._columns, row, strict=True) if text] for row in self._cells]
        yield _blocks(rows)

    def _least_and_most(self, k: int) -> tuple[int, int]:
        """The least and the greatest useful width of a column."""
        texts = [row[k] for row in self._cells]
        longest_word = max(
            cell_len(word) for text in (self._columns[k] or " ", *texts) for word in text.split() or [""]
        )
        longest = max((cell_len(text) for text in texts), default=0)
        least = max(longest_word, min(longest, _SENTENCE_WIDTH))
        return least, max(least, longest, cell_len(self._columns[k]))

    def _table(self, shown: Sequence[int], widths: Sequence[int]) -> Table:
        table = _bare(header=True)
        for k, width in zip(shown, widths, strict=True):
            figures = all(_FIGURE.fullmatch(text) for row in self._cells if (text := row[k]))
            table.add_column(
                Text(self._columns[k]), justify="right" if figures else "left", width=width, overflow="fold"
            )
        for row in self._cells:
            table.add_row(*(Text(row[k]) for k in shown))
        return table


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Names and values, a pair a line."""
    return _blocks([[(name, cell_text(value)) for name, value in pairs]])


def cell_text(value: object) -> str:
    """A value for people, ``printable``."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def width_of(stream: TextIO) -> int | None:
    """The width for rich's console of ``stream``. None: the terminal's. A file has no width, whatever ``COLUMNS`` says: a process
    that has loaded readline hands that variable to all that it starts."""
    return None if stream.isatty() else UNLIMITED


def _shared(widths: Sequence[tuple[int, int]], room: int) -> list[int] | None:
    """Width of each column: the greatest, or less where all don't fit. None: there is too little room for the least."""
    left = room - sum(least for least, _ in widths)
    if left < 0:
        return None
    # The column that wants least first: what it leaves is for the others.
    order = sorted(range(len(widths)), key=lambda k: widths[k][1] - widths[k][0])
    found = [least for least, _ in widths]
    for done, k in enumerate(order):
        more = min(widths[k][1] - widths[k][0], left // (len(order) - done))
        found[k] += more
        left -= more
    return found


def _blocks(rows: Iterable[Sequence[tuple[str, str]]]) -> Table:
    table = _bare(header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        for number, (name, text) in enumerate(row, 1):
            table.add_row(Text(name), Text(text, overflow="fold"), end_section=number == len(row))
    return table


def _bare(header: bool) -> Table:
    return Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
