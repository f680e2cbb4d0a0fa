"""Entries of a log that a task can't read: which rows they are, and whether the query may go on without them.

Law: with ``failOnDataLoss`` false a task goes on without rows that are lost (``logs.feeds.gaps``), and without no others. Rows
that are not yet known fail the task, as they always did: they may be read later.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError, NoSuchLedgerError, ReadError
from bookspark.logs.feeds.gaps import Gap, GapKind, readable_and_gaps
from bookspark.logs.feeds.lost_rows import data_loss
from bookspark.logs.feeds.times import RowTimes
from bookspark.logs.rows.splits import Piece
from bookspark.spark.options.source_options import SourceOptions

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper


def go_on(
    bookkeeper: BookKeeper,
    options: SourceOptions,
    pieces: deque[Piece],
    rest: Piece,
    times: RowTimes | None,
    error: BookKeeperError,
) -> None:
    """After ``error`` at the first row of ``rest``: put what may be read of it back in front of ``pieces``.

    Raises DataLossError if rows are lost and the read is to fail, ReadError if they are not yet known, and ``error`` if it says
    more than that.
    """
    if options.log is None:
        raise error
    try:
        first = next(readable_and_gaps(bookkeeper, options.password, rest))
    except NoSuchLedgerError:
        raise error from None
    if not isinstance(first, Gap):
        if first.rows == rest.rows:
            # All entries can be read, so it is not they.
            raise error
        pieces.extendleft((rest.part(first.rows, rest.rows), first))
        return
    if first.kind is not GapKind.LOST:
        raise ReadError(f"log {options.log!r}: {first}; nothing is left out: {error}") from error
    data_loss(f"log {options.log!r}: {first}: {error}", options.fail_on_data_loss, first.rows)
    if times is not None:
        times.take(first.rows)
    if first.rows < rest.rows:
        pieces.appendleft(rest.part(first.rows, rest.rows))
