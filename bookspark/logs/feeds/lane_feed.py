"""The feed of one lane of a log: its rows between two rows of it, now or as it grows.

Law: as for every feed (``feeds``). A place in a lane is the number of rows before it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bookspark.errors import ReadError
from bookspark.logs.chain.commit_ledgers import PlacedCommit, made_anew
from bookspark.logs.chain.commit_times import KnownLedgers, row_at
from bookspark.logs.chain.open_rows import OpenRows
from bookspark.logs.chain.reader import AT_THE_END, LogReader
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.rows.splits import Piece, SizedPiece, positioned, rows_within
from bookspark.protocol.logs.commits import Position
from bookspark.protocol.logs.lanes import lane_of
from bookspark.protocol.logs.log_record import LogRecord

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper


_NOWHERE = Position(rows=AT_THE_END)
"""Where the first plan goes on: every row is before it."""

_Found = tuple[Piece, int, PlacedCommit | None]
"""A piece, its bytes, and the commit that names it; None if it is of an open ledger."""
Choice = Callable[[Piece, int, PlacedCommit | None], Iterable[SizedPiece]]
"""Says which parts of a piece are to be read, and their bytes."""


class LaneFeed:
    """The rows of a lane. It keeps the commits of the last plan, so that the next plan goes on from there, and plans the commits
    that ``newest`` read without a second look at them."""

    def __init__(
        self, bookkeeper: BookKeeper, name: str, password: bytes, passed_over: PassedOver, with_times: bool = False
    ) -> None:
        self._bookkeeper, self._password, self._with_times = bookkeeper, password, with_times
        self.name = name
        """The lane's name."""
        self._lane, self._passed = lane_of(name)[1], passed_over
        self._head = LogReader(bookkeeper, name, password, AT_THE_END)
        self._known = KnownLedgers()
        self.rows = 0
        """How many rows ``newest`` told last."""
        self.ctime_ms = self._head.record.ctime_ms
        """When the log was made."""
        self._body: LogReader | None = None
        self._more: Iterator[PlacedCommit] = iter(())
        self._planned: deque[PlacedCommit] = deque()
        self._planned_from = _NOWHERE
        """``_planned`` has all commits from here on, up to where the next plan goes on."""
        self._opened_before: int | None = None
        """The ledger that the commit before these opened."""

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
        """Did ``wait`` hear of more rows, so that ``newest`` asks nobody how many there are?"""
        return self._head.has_news

    @property
    def tells_news(self) -> bool:
        """Does ``has_news`` tell all that ``wait`` may hear of?"""
        return self._head.tells_news

    def row_at(self, time_ms: int, record: LogRecord | None = None) -> int:
        """The first row that is still there and was committed at ``time_ms`` or later; the end, if there is none. ``record``: the
        lane's, as it was read just now, by a caller that has not looked for the newest rows: they are looked for if no row of
        that time is known."""
        looks = False
        if record is not None and record.ctime_ms == self.ctime_ms:
            self._known.follow(record)
            looks = bool(record.commit_ledgers) and not self._known.has(time_ms)
        if looks:
            self.rows = self._head.newest(record)
        known = self._bookkeeper, self.name, self._password, time_ms, self.rows, self._head, self._known
        return row_at(*known, record, looks)

    def wait(self, seconds: float) -> bool:
        """Return when there may be more rows than ``newest`` told, or after ``seconds``: then False."""
        return self._head.wait(seconds)

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
        if first < self._planned_from.rows:
            body = self._reader_at(first)
            self._planned, self._planned_from, self._opened_before = deque(), body.position, body.opened
        while self._planned and self._planned[0].after.rows <= first:
            self._pass(self._planned.popleft())
        kept = max(first, self._head.record.first_position, self._body.record.first_position if self._body else 0)
        for placed in self._planned:
            yield from self._positioned(placed, kept, last)
        while (end := self._end).rows < last:
            known = self._head.open_rows
            if known is not None and self._opened == known.ledger_id and last <= end.rows + known.rows:
                # They were looked at, so nobody need be asked.
                yield from self._open_pieces(known, end.rows, kept, last)
                return
            following = self._following(end, last)
            if following is None:
                assert self._body is not None
                rows = self._body.open_rows
                if rows is not None and rows.may_have(last - end.rows):
                    yield from self._open_pieces(rows, end.rows, kept, last)
                    return
                raise ReadError(
                    f"log {self.name!r}: as far as its commits can be read now, its commits end at row "
                    f"{end.rows}, but there were rows up to {last - 1}. Nothing is left out; try again"
                )
            if following.after.rows > first:
                self._planned.append(following)
                yield from self._positioned(following, kept, last)
            else:
                # Passed over, so whoever goes back before it begins anew.
                self._pass(following)

    @property
    def _end(self) -> Position:
        """Before the commit that follows those of the last plan."""
        return self._planned[-1].after if self._planned else self._planned_from

    @property
    def _opened(self) -> int | None:
        """The ledger that the last one of them opened."""
        return self._planned[-1].commit.open_ledger if self._planned else self._opened_before

    def _pass(self, placed: PlacedCommit) -> None:
        self._planned_from, self._opened_before = placed.after, placed.commit.open_ledger

    def _reader_at(self, row: int) -> LogReader:
        """Read on from the commit that holds ``row``, or one before it."""
        body = LogReader(self._bookkeeper, self.name, self._password, row)
        if body.record.ctime_ms != self.ctime_ms:
            raise made_anew(self.name, row)
        self._body, self._more = body, iter(())
        return body

    def _following(self, end: Position, last: int) -> PlacedCommit | None:
        """The commit that begins at ``end``; None if it can't be read now. ``last``: up to where there were rows."""
        recent = self._head.recent
        if recent and 0 <= (at := end.batches - recent[0].before.batches) < len(recent) and recent[at].before == end:
            # It was read a moment ago, to tell how many rows there are.
            return recent[at]
        body = self._body
        if body is None or body.position != end:
            body = self._reader_at(end.rows)
        while True:
            following = next(self._more, None)
            if following is None:
                self._more = body.commits(known_rows=last)
                following = next(self._more, None)
            if following is None or following.before.batches >= end.batches:
                return following

    def _open_pieces(self, rows: OpenRows, at: int, first: int, last: int) -> Iterator[_Found]:
        """The rows from ``first`` to before ``last`` of an open ledger, whose first row is row ``at``."""
        now_ms = time.time_ns() // 1_000_000 if self._with_times else None
        for piece, size in positioned([rows.range_of(last - at)], at, first, last, self._lane, now_ms):
            yield piece, size, None

    def _positioned(self, placed: PlacedCommit, first: int, last: int) -> Iterator[_Found]:
        time_ms = placed.commit.time_ms if self._with_times else None
        for piece, size in positioned(placed.commit.ranges, placed.before.rows, first, last, self._lane, time_ms):
            yield piece, size, placed
