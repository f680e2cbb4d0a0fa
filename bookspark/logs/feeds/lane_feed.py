"""The feed of one lane of a log: its rows between two rows, now or as it grows.

Law: that of every feed (``spark.connector.feeds``). A place in a lane is the number of rows before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bookspark.errors import ReadError
from bookspark.logs.chain.commit_ledgers import PlacedCommit
from bookspark.logs.chain.commit_times import KnownLedgers, row_at
from bookspark.logs.chain.open_rows import OpenRows
from bookspark.logs.chain.reader import AT_THE_END, LogReader
from bookspark.logs.chain.registry import Lane
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.rows.splits import Piece, SizedPiece, positioned, rows_within
from bookspark.protocol.logs.commits import Position
from bookspark.protocol.logs.log_record import LogRecord

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper


_NOWHERE = Position(rows=AT_THE_END)
"""Start of the first plan: beyond every row."""

_Found = tuple[Piece, int, PlacedCommit | None]
"""A piece, its bytes, and its commit; None for rows of an open ledger."""
Choice = Callable[[Piece, int, PlacedCommit | None], Iterable[SizedPiece]]
"""Selects the parts of a piece to read, with their bytes."""


class LaneFeed:
    """The rows of a lane. Keeps the commits of the last plan for the next plan, and reuses the commits that ``newest`` read."""

    def __init__(
        self, bookkeeper: BookKeeper, name: Lane, password: bytes, passed_over: PassedOver, with_times: bool = False
    ) -> None:
        self._bookkeeper, self._password, self._with_times = bookkeeper, password, with_times
        self._passed = passed_over
        self._head = LogReader(bookkeeper, name, password, AT_THE_END)
        self.lane = self._head.lane
        self._known = KnownLedgers()
        self.rows = 0
        """Last result of ``newest``."""
        self._body: LogReader | None = None
        self._more: Iterator[PlacedCommit] = iter(())
        self._planned: deque[PlacedCommit] = deque()
        self._planned_from = _NOWHERE
        """``_planned`` has all commits from here to the start of the next plan."""
        self._opened_before: int | None = None
        """Ledger opened by the commit before ``_planned``."""

    @property
    def record(self) -> LogRecord:
        return self._head.record

    def newest(self) -> int:
        self.rows = self._head.newest()
        return self.rows

    @property
    def has_news(self) -> bool:
        """Did ``wait`` learn of more rows, so that ``newest`` sends no request?"""
        return self._head.has_news

    @property
    def tells_news(self) -> bool:
        """Does ``has_news`` cover all news?"""
        return self._head.tells_news

    def row_at(self, time_ms: int, record: LogRecord | None = None) -> int:
        """The first remaining row of time ``time_ms`` or later; the end, if there is none. ``record``: a fresh copy, from a
        caller that has not updated the newest rows; they are updated if no row of that time is known."""
        looks = False
        if record is not None:
            self._known.follow(record)
            looks = bool(record.commit_ledgers) and not self._known.has(time_ms)
        if looks:
            self.rows = self._head.newest(record)
        known = self._bookkeeper, self.lane, self._password, time_ms, self.rows, self._head, self._known
        return row_at(*known, record, looks)

    def wait(self, seconds: float) -> bool:
        """Return True when there may be more rows than ``newest`` returned; False after ``seconds``."""
        return self._head.wait(seconds)

    def close(self) -> None:
        """End the lane's watches. Never raises."""
        self._head.close()

    def sized(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Number and bytes of the remaining rows in [``first``, ``last``), commit by commit, read as they are asked for."""
        return ((piece.rows, size) for piece, size, _ in self._pieces(first, last))

    def remaining(self, first: int, last: int) -> int:
        """Number of the remaining rows in [``first``, ``last``), as far as the lane's record is known."""
        return max(0, last - self._kept(first))

    def limited(self, first: int, last: int, rows: int | None, size: int | None) -> int:
        """The largest end up to ``last`` so that at most ``rows`` rows and ``size`` bytes follow ``first``, but at least one row.
        None: no limit."""
        end = rows_within(((piece, size) for piece, size, _ in self._pieces(first, last)), rows, size)
        # Missing rows count towards no limit: they are passed together with the rows after them.
        return last if end is None else end

    def pieces(self, first: int, last: int, choose: Choice | None = None) -> Iterator[SizedPiece]:
        """The rows in [``first``, ``last``), in order. Missing and unselected rows are skipped; missing rows are reported."""
        at = first
        for piece, size, placed in self._pieces(first, last):
            self._passed_over(at, piece.position)
            yield from [(piece, size)] if choose is None else choose(piece, size, placed)
            at = piece.position + piece.rows
        self._passed_over(at, last)

    def _passed_over(self, at: int, following: int) -> None:
        if at < following:
            what = f"log '{self.lane}': rows {at} to {following - 1} were truncated, and were not read before"
            self._passed.add(what, self.lane.key, at, following)

    def _pieces(self, first: int, last: int) -> Iterator[_Found]:
        """The remaining rows in [``first``, ``last``). Raises ReadError if their commits can't be read."""
        if first >= last:
            return
        if first < self._planned_from.rows:
            body = self._reader_at(first)
            self._planned, self._planned_from, self._opened_before = deque(), body.position, body.opened
        while self._planned and self._planned[0].after.rows <= first:
            self._pass(self._planned.popleft())
        kept = self._kept(first)
        for placed in self._planned:
            yield from self._positioned(placed, kept, last)
        while (end := self._end).rows < last:
            known = self._head.open_rows
            if known is not None and self._opened == known.ledger_id and last <= end.rows + known.rows:
                # The rows were looked up before, so no request is needed.
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
                    f"log '{self.lane}': as far as its commits can be read now, its commits end at row "
                    f"{end.rows}, but there were rows up to {last - 1}. Nothing is left out; try again"
                )
            if following.after.rows > first:
                if not self._planned:
                    # The reader has gone from the start of its ledger to the commit of ``first``.
                    self._planned_from = following.before
                self._planned.append(following)
                yield from self._positioned(following, kept, last)
            else:
                # Drop the passed commits; a plan that begins before them reads them again.
                self._pass(following)

    def _kept(self, first: int) -> int:
        """The first remaining row from ``first`` on."""
        return max(first, self._head.record.first_position, self._body.record.first_position if self._body else 0)

    @property
    def _end(self) -> Position:
        """Start of the next plan."""
        return self._planned[-1].after if self._planned else self._planned_from

    @property
    def _opened(self) -> int | None:
        return self._planned[-1].commit.open_ledger if self._planned else self._opened_before

    def _pass(self, placed: PlacedCommit) -> None:
        self._planned_from, self._opened_before = placed.after, placed.commit.open_ledger

    def _reader_at(self, row: int) -> LogReader:
        """Restart the reader at the commit of ``row``, or an earlier commit."""
        body = LogReader(self._bookkeeper, self.lane, self._password, row)
        self._body, self._more = body, iter(())
        return body

    def _following(self, end: Position, last: int) -> PlacedCommit | None:
        """The commit that begins at ``end``; None if it can't be read now. ``last``: number of rows known to exist."""
        recent = self._head.recent
        if recent and 0 <= (at := end.batches - recent[0].before.batches) < len(recent) and recent[at].before == end:
            # ``newest`` has just read it.
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
        now_ms = self._bookkeeper.metadata.clock.known_ms() if self._with_times else None
        for piece, size in positioned([rows.range_of(last - at)], at, first, last, self.lane.number, now_ms):
            yield piece, size, None

    def _positioned(self, placed: PlacedCommit, first: int, last: int) -> Iterator[_Found]:
        time_ms = placed.commit.time_ms if self._with_times else None
        for piece, size in positioned(placed.commit.ranges, placed.before.rows, first, last, self.lane.number, time_ms):
            yield piece, size, placed
