"""The feed of one lane of a log: its rows between two rows of it, now or as it grows.

Law: as for every feed (``feeds``). A place in a lane is the number of rows before it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bookspark.errors import ReadError
from bookspark.logs.chain.commit_times import FullLedgers, row_at
from bookspark.logs.chain.open_rows import OpenRows
from bookspark.logs.chain.reader import AT_THE_END, LogReader, PlacedCommit, made_anew
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.rows.splits import Piece, SizedPiece, positioned, rows_within
from bookspark.protocol.logs.lanes import lane_of
from bookspark.protocol.logs.log_record import LogRecord

if TYPE_CHECKING:
    from bookspark.client import BookKeeper


_Found = tuple[Piece, int, PlacedCommit | None]
"""A piece, its bytes, and the commit that names it; None if it is of an open ledger."""
Choice = Callable[[Piece, int, PlacedCommit | None], Iterable[SizedPiece]]
"""Says which parts of a piece are to be read, and their bytes."""


class LaneFeed:
    """The rows of a lane. It keeps the commits of the last plan, so that the next plan goes on from there."""

    def __init__(
        self, bookkeeper: BookKeeper, name: str, password: bytes, passed_over: PassedOver, with_times: bool = False
    ) -> None:
        self._bookkeeper, self._password, self._with_times = bookkeeper, password, with_times
        self.name = name
        """The lane's name."""
        self._lane, self._passed = lane_of(name)[1], passed_over
        self._head = LogReader(bookkeeper, name, password, AT_THE_END)
        self._full = FullLedgers()
        self.rows = 0
        """How many rows ``newest`` told last."""
        self.ctime_ms = self._head.record.ctime_ms
        """When the log was made."""
        self._body: LogReader | None = None
        self._more: Iterator[PlacedCommit] = iter(())
        self._planned: deque[PlacedCommit] = deque()
        self._planned_from = 0
        """``_planned``, and after it ``_more``, have all commits from this row on."""

    @property
    def record(self) -> LogRecord:
        """The lane's record, as it was last read."""
        return self._head.record

    def newest(self) -> int:
        """How many rows there are now."""
        self.rows = self._head.newest()
        return self.rows

    @property
    def has_news(self) -> bool:
        """Did ``wait`` hear of more rows, so that ``newest`` asks nobody?"""
        return self._head.has_news

    @property
    def tells_news(self) -> bool:
        """Does ``has_news`` tell all that ``wait`` may hear of?"""
        return self._head.tells_news

    def row_at(self, time_ms: int) -> int:
        """The first row that is still there and was committed at ``time_ms`` or later; the end, if there is none."""
        return row_at(self._bookkeeper, self.name, self._password, time_ms, self.rows, self._head, self._full)

    def wait(self, seconds: float) -> None:
        """Return when there may be more rows than ``newest`` told, or after ``seconds``."""
        self._head.wait(seconds)

    def size(self, first: int, last: int) -> int:
        """The bytes of payload of the rows from ``first`` to before ``last`` that are still there."""
        return sum(size for _, size, _ in self._pieces(first, last))

    def limited(self, first: int, last: int, rows: int | None, size: int | None) -> int:
        """``last``, or an earlier row, so that no more than ``rows`` rows and ``size`` bytes lie between ``first`` and the
        result, but one row at least. A limit that is None does not count."""
        end = rows_within(((piece, size) for piece, size, _ in self._pieces(first, last)), rows, size)
        # Rows that are gone count towards no limit: they are left out together with the rows after them.
        return last if end is None else end

    def pieces(self, first: int, last: int, choose: Choice | None = None) -> Iterator[SizedPiece]:
        """The rows from ``first`` to before ``last``, in order. Rows that are gone, or not chosen, are passed over; only those
        that are gone are told."""
        at = first
        for piece, size, placed in self._pieces(first, last):
            self._passed_over(at, piece.position)
            yield from [(piece, size)] if choose is None else choose(piece, size, placed)
            at = piece.position + piece.rows
        self._passed_over(at, last)

    def _passed_over(self, at: int, following: int) -> None:
        if at < following:
            what = f"log {self.name!r}: rows {at} to {following - 1} were truncated, and were not read before"
            self._passed.add(what, self.name, at, following)

    def _pieces(self, first: int, last: int) -> Iterator[_Found]:
        """The rows from ``first`` to before ``last`` that are still there. Raises ReadError if their commits can't be found."""
        if first >= last:
            return
        body = self._body
        if body is None or first < self._planned_from:
            body = LogReader(self._bookkeeper, self.name, self._password, first)
            if body.record.ctime_ms != self.ctime_ms:
                raise made_anew(self.name, first)
            self._body = body
            self._more, self._planned, self._planned_from = iter(()), deque(), first
        while self._planned and self._planned[0].after.rows <= first:
            self._planned_from = self._planned.popleft().after.rows
        kept = max(first, body.record.first_position)
        for placed in self._planned:
            yield from self._positioned(placed, kept, last)
        known = self._head.open_rows
        at = body.position.rows
        if known is not None and body.opened == known.ledger_id and at < last <= at + known.rows:
            # They were looked at, so nobody need be asked.
            yield from self._open_pieces(known, at, kept, last)
            return
        while body.position.rows < last:
            following = next(self._more, None)
            if following is None:
                self._more = body.commits(known_rows=last)
                following = next(self._more, None)
                if following is None:
                    rows = body.open_rows
                    if rows is not None and rows.may_have(last - body.position.rows):
                        yield from self._open_pieces(rows, body.position.rows, kept, last)
                        return
                    raise ReadError(
                        f"log {self.name!r}: as far as its commits can be read now, its commits end at row "
                        f"{body.position.rows}, but there were rows up to {last - 1}. Nothing is left out; try again"
                    )
            if following.after.rows > first:
                self._planned.append(following)
                yield from self._positioned(following, kept, last)
            else:
                # Passed over, so whoever goes back before it begins anew.
                self._planned_from = following.after.rows

    def _open_pieces(self, rows: OpenRows, at: int, first: int, last: int) -> Iterator[_Found]:
        """The rows from ``first`` to before ``last`` of an open ledger, whose first row is row ``at``."""
        now_ms = time.time_ns() // 1_000_000 if self._with_times else None
        for piece, size in positioned([rows.range_of(last - at)], at, first, last, self._lane, now_ms):
            yield piece, size, None

    def _positioned(self, placed: PlacedCommit, first: int, last: int) -> Iterator[_Found]:
        time_ms = placed.commit.time_ms if self._with_times else None
        for piece, size in positioned(placed.commit.ranges, placed.before.rows, first, last, self._lane, time_ms):
            yield piece, size, placed
