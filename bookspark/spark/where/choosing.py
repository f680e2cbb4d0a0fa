"""Chooses the rows of a commit for which a predicate may be true, by the commit's statistics.

Law: rows are left out only if the predicate can't be true for any row of their block. A commit without statistics (of an earlier
version, or of a producer) is read, unless its place, its time, its lane or the log's name excludes it. The choice follows from
the commits alone, so a repeated plan is the same plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from bookspark.logs.chain.commit_ledgers import PlacedCommit
from bookspark.logs.rows.splits import Piece, SizedPiece
from bookspark.logs.rows.statistics import Block, Bounds, Statistics, parsed
from bookspark.spark.where.predicates import Known, Predicate

POSITION, LANE, TIMESTAMP, LOG = "position", "lane", "timestamp", "log"
_Span = tuple[int, int]
"""Rows of a lane: first, and end (exclusive)."""


@dataclass
class Chooser:
    """Chooses the rows to read of one log. It caches the result for the last commit."""

    predicate: Predicate
    log: str
    missing: Collection[str] = ()
    """Columns that the log lacks, so that they are null in its rows."""
    added: Collection[str] = ()
    """Columns LANE, TIMESTAMP and LOG as added by the read, unless they are the log's own."""
    _commit: PlacedCommit | None = field(default=None, repr=False)
    _spans: list[_Span] = field(default_factory=list, repr=False)

    def __call__(self, piece: Piece, size: int, placed: PlacedCommit | None) -> Iterator[SizedPiece]:
        """The parts of ``piece`` to read, with their bytes. ``placed``: its commit, or None."""
        for low, high in self._of(piece, placed):
            first, last = max(low, piece.position), min(high, piece.position + piece.rows)
            if first < last:
                part = piece.part(first - piece.position, last - piece.position)
                yield part, size * part.rows // piece.rows

    def _of(self, piece: Piece, placed: PlacedCommit | None) -> list[_Span]:
        if placed is None:
            whole = Statistics((), (Block(piece.rows, ()),))
            return list(self._chosen(whole, piece.position, self._constants(piece.rows, piece.lane, None)))
        if placed is not self._commit:
            commit = placed.commit
            statistics = parsed(commit.statistics, commit.rows) or Statistics((), (Block(commit.rows, ()),))
            time_ms = None if commit.stamped else commit.time_ms
            constants = self._constants(commit.rows, piece.lane, time_ms)
            self._spans = list(self._chosen(statistics, placed.before.rows, constants))
            self._commit = placed
        return self._spans

    def _constants(self, rows: int, lane: int, time_ms: int | None) -> Known:
        """The common bounds of every block."""
        known = {name: Bounds(nulls=rows) for name in self.missing}
        if LANE in self.added:
            known[LANE] = Bounds(lane, lane, 0)
        if LOG in self.added:
            known[LOG] = Bounds(self.log, self.log, 0)
        if TIMESTAMP in self.added and time_ms is not None:
            known[TIMESTAMP] = Bounds(1000 * time_ms, 1000 * time_ms, 0)
        return known

    def _chosen(self, statistics: Statistics, at: int, constants: Known) -> Iterator[_Span]:
        """The spans of blocks that may have such a row; the first block begins at row ``at``. Neighbours are one span."""
        start: int | None = None
        for block in statistics.blocks:
            known = dict(zip(statistics.columns, block.columns, strict=True))
            known |= {name: one._replace(nulls=block.rows if one.nulls else 0) for name, one in constants.items()}
            known[POSITION] = Bounds(at, at + block.rows - 1, 0)
            if self.predicate.outlook(known, block.rows).true:
                start = at if start is None else start
            elif start is not None:
                yield start, at
                start = None
            at += block.rows
        if start is not None:
            yield start, at
