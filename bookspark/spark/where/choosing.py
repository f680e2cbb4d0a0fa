"""Which rows of a commit a predicate may be true for, by what the commit tells of them.

Law: rows are left out only if no row of their block can be one that the predicate is true for. A commit that tells nothing
(an earlier version wrote it, or it is a producer's) is read, unless its place, its time, its lane or the log's name says enough.
What is chosen follows from the commits alone, so a plan that is made again is the same plan.
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
"""Rows of a lane: from which one to before which one."""


@dataclass
class Chooser:
    """Chooses what to read of one log. It keeps what it found of the last commit."""

    predicate: Predicate
    log: str
    missing: Collection[str] = ()
    """Columns that the log lacks, so that they are null in its rows."""
    added: Collection[str] = ()
    """Those of LANE, TIMESTAMP and LOG that mean what reading adds, and no column of the log's own."""
    _commit: PlacedCommit | None = field(default=None, repr=False)
    _spans: list[_Span] = field(default_factory=list, repr=False)

    def __call__(self, piece: Piece, size: int, placed: PlacedCommit | None) -> Iterator[SizedPiece]:
        """The parts of ``piece`` that are to be read, with their bytes. ``placed``: the commit that it is of, if it is of one."""
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
            found = parsed(commit.statistics, commit.rows) or Statistics((), (Block(commit.rows, ()),))
            time_ms = None if commit.stamped else commit.time_ms
            constants = self._constants(commit.rows, piece.lane, time_ms)
            self._spans = list(self._chosen(found, placed.before.rows, constants))
            self._commit = placed
        return self._spans

    def _constants(self, rows: int, lane: int, time_ms: int | None) -> Known:
        """What is known of every block."""
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
