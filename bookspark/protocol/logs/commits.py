"""The commits of a log, the header that sums up earlier commits, and the fingerprint of a batch.

Law: a batch is committed once. A writer first looks up (query id, batch id) in the chain (``replays``), then commits.

Each commit ledger starts with a header that sums up all ledgers before it, so a writer reads one ledger to know all commits. It
keeps the ``QUERIES_MAX`` queries and applications with the latest commits. A batch write's query id *is* its run id; no header
keeps it, and the log's record shows whether it is committed. A batch write with a version of an application (``txnAppId``) has
these in their places, and is committed if the chain has that version.

A producer's commit *opens* a ledger: each confirmed entry of it is a row behind the commit's rows. The ledger is closed before
the next commit of the chain, which *settles* it: it names the rows of the ledger as its own, or there are none.

Entry 0 of a commit ledger is a ``CommitHeader``, every other entry a ``Commit``, both JSON. ``bookspark.logs.chain.codec`` makes
the bytes. Source: docs/decisions/logs.md; for open ledgers docs/decisions/lanes.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

QUERIES_MAX = 1000
"""Most streaming queries in a header."""


class EntryRange(NamedTuple):
    """Entries of a data ledger, with ``rows`` rows in all, the same number in each entry, and ``size`` bytes of payload."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    rows: int
    size: int

    @property
    def rows_each(self) -> int:
        return self.rows // (self.last_entry_id - self.first_entry_id + 1)

    def continues(self, other: EntryRange) -> bool:
        """Does it follow ``other`` at once, with as many rows in each entry, so that the two are one range?"""
        follows = (self.ledger_id, self.first_entry_id) == (other.ledger_id, other.last_entry_id + 1)
        return follows and self.rows_each == other.rows_each


class Position(NamedTuple):
    """The part of a log before a point; ``size``: bytes of payload."""

    batches: int = 0
    rows: int = 0
    size: int = 0

    def followed_by(self, commit: Commit) -> Position:
        return Position(self.batches + 1, self.rows + commit.rows, self.size + commit.size)


START = Position()


TXN = "txn:"
"""Prefix of an application's id in place of a query's: a batch write with a version."""
FILES = "f:"
"""Prefix of a digest of offsets that includes lists of files."""


class Fingerprint(NamedTuple):
    """Identity of a batch among batches with the same number."""

    rows: int
    values: str = ""
    """A sum over the batch's rows, independent of their order. Empty: unknown."""
    plan: str = ""
    """Digest of Spark's plan before the batch ran: the offsets, and the time of the plan. Empty: unknown."""
    offsets: str = ""
    """Digest of the source offsets in the plan; with prefix FILES, also of their files. Empty: unknown."""

    def same_as(self, other: Fingerprint) -> bool:
        """Are two batches of one number the same?"""
        if self.plan and self.plan == other.plan:
            return True
        if self.offsets and other.offsets and self.offsets != other.offsets:
            return False
        return self.rows == other.rows and (not self.values or not other.values or self.values == other.values)

    def may_be_planned_as(self, other: Fingerprint) -> bool:
        """Do the plans alone, where known, allow that two batches of one number are the same?"""
        if not self.plan or not other.plan or self.plan == other.plan:
            return True
        return bool(self.offsets) and self.offsets == other.offsets


@dataclass(frozen=True, slots=True)
class Commit:
    """One micro-batch, or one batch write. Its rows are those of ``ranges``, in this order."""

    query: str
    batch: int
    run: str
    epoch: int
    ranges: tuple[EntryRange, ...]
    time_ms: int = 0
    """In ms since 1970; times in a chain never go back."""
    _: KW_ONLY
    fingerprint: Fingerprint | None = None
    """None: a batch write without a version."""
    first_row: int = 0
    """Rows of the chain before the commit."""
    first_byte: int = 0
    """Bytes of payload of the chain before the commit."""
    open_ledger: int | None = None
    """The ledger that the commit opens: its confirmed entries are the rows that follow. None: none."""
    stamped: bool = False
    """The commit's rows carry their append times (``rows.stamped_rows``), none later than ``time_ms``."""
    statistics: str = ""
    """Statistics of the commit's rows (``logs.rows.statistics``), for readers that select rows. Empty: none."""

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.ranges)

    @property
    def size(self) -> int:
        return sum(r.size for r in self.ranges)


@dataclass(frozen=True, slots=True)
class CommitHeader:
    """All commits before a point of the log: their sums, and each query's last batch, in the order of commits."""

    epoch: int = 0
    position: Position = START
    last_batches: Mapping[str, int] = field(default_factory=dict)
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict)
    """Fingerprint of each query's last batch."""
    time_ms: int = 0
    """The time of the newest commit; 0: none."""
    open_ledger: int | None = None
    """Ledger that the newest commit opened. Not written: the first commit of a commit ledger settles it."""

    @property
    def last_query(self) -> str:
        """The streaming query with the last commit, or ""."""
        return next((query for query in reversed(tuple(self.last_batches)) if not query.startswith(TXN)), "")

    def placed(self, commit: Commit) -> Commit:
        """``commit`` as the next one of the chain: with the position of its rows, and a time that does not go back, although
        clocks jump."""
        time_ms, (_, rows, size) = max(commit.time_ms, self.time_ms), self.position
        return replace(commit, time_ms=time_ms, first_row=rows, first_byte=size)

    def followed_by(self, commit: Commit) -> CommitHeader:
        position, time_ms = self.position.followed_by(commit), max(self.time_ms, commit.time_ms)
        if commit.query == commit.run:
            return replace(self, epoch=commit.epoch, position=position, time_ms=time_ms, open_ledger=commit.open_ledger)
        batches = {query: batch for query, batch in self.last_batches.items() if query != commit.query}
        batches[commit.query] = commit.batch
        told = {**self.fingerprints, commit.query: commit.fingerprint or Fingerprint(commit.rows)}
        return CommitHeader(commit.epoch, position, batches, told, time_ms, commit.open_ledger)

    def entering(self, epoch: int) -> CommitHeader:
        newest = dict(list(self.last_batches.items())[-QUERIES_MAX:])
        told = {query: self.fingerprints[query] for query in newest if query in self.fingerprints}
        return CommitHeader(epoch, self.position, newest, told, self.time_ms)


def merged(ranges: Iterable[EntryRange]) -> tuple[EntryRange, ...]:
    """``ranges`` in order, with continuing neighbours joined."""
    result: list[EntryRange] = []
    for item in ranges:
        last = result[-1] if result else None
        if last and item.continues(last):
            result[-1] = EntryRange(
                last.ledger_id, last.first_entry_id, item.last_entry_id, last.rows + item.rows, last.size + item.size
            )
        else:
            result.append(item)
    return tuple(result)
