"""The commits of a log: what one is, what sums up those before it, and whether a batch is committed already.

Law: a batch is committed once. Whoever writes commits first looks for (query id, batch id) in what the chain says. A batch before
the last one of its query is refused: a Spark checkpoint that was set back makes new batches under old numbers, and taking
them for the batches that are there would lose their rows.

Each commit ledger starts with a header that sums up all ledgers before it, so a writer reads one ledger to know all commits. A
batch write has no Spark checkpoint to be replayed from: its query id *is* its run id, and no header of a later epoch keeps it. A
header keeps the ``QUERIES_MAX`` streaming queries that committed last.

Entry 0 of a commit ledger is a ``CommitHeader``, every other entry a ``Commit``, both JSON. ``bookspark.spark.logs.codec`` makes
the bytes. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bookspark.errors import BookKeeperError

QUERIES_MAX = 1000
"""How many streaming queries a header keeps."""


class CheckpointRewoundError(BookKeeperError):
    """A query writes a batch that is older than its last one in the log: its Spark checkpoint was set back."""


class EntryRange(NamedTuple):
    """Entries of a data ledger, with ``rows`` rows in all, the same number in each entry, and ``size`` bytes of payload."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    rows: int
    size: int

    @property
    def rows_each(self) -> int:
        """How many rows each entry has."""
        return self.rows // (self.last_entry_id - self.first_entry_id + 1)

    def continues(self, other: EntryRange) -> bool:
        """Does it follow ``other`` at once, with as many rows in each entry? Then the two are one range."""
        follows = (self.ledger_id, self.first_entry_id) == (other.ledger_id, other.last_entry_id + 1)
        return follows and self.rows_each == other.rows_each


class Position(NamedTuple):
    """How much of a log lies before a point of it: batches, rows, and bytes of payload."""

    batches: int = 0
    rows: int = 0
    size: int = 0

    def followed_by(self, commit: Commit) -> Position:
        """The position after ``commit``, which begins at this one."""
        return Position(self.batches + 1, self.rows + commit.rows, self.size + commit.size)


START = Position()


@dataclass(frozen=True, slots=True)
class Commit:
    """One micro-batch, or one batch write. Its rows are those of ``ranges``, in this order, and no others."""

    query: str
    batch: int
    run: str
    epoch: int
    ranges: tuple[EntryRange, ...]
    time_ms: int = 0

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.ranges)

    @property
    def size(self) -> int:
        return sum(r.size for r in self.ranges)


@dataclass(frozen=True, slots=True)
class CommitHeader:
    """All commits before a point of the log: their sums, and the last batch of each query, in the order of their commits."""

    epoch: int = 0
    position: Position = START
    last_batches: Mapping[str, int] = field(default_factory=dict)
    batch_write: str = ""
    """The query id of the epoch's batch write, once it is committed; empty before."""

    def contains(self, query: str, batch: int) -> bool:
        """Is this batch of this query committed? Spark numbers batches upwards, and replays the last one only, with its rows.

        Raises CheckpointRewoundError for a batch before the last one: nobody knows which rows it has by now.
        """
        last = self.last_batches.get(query, -1)
        if batch < last:
            raise CheckpointRewoundError(
                f"batch {batch} of query {query} is not written: the log has batch {last} of it, and what was in batch {batch} "
                "then need not be what is in it now. The query's Spark checkpoint was restored from an older copy, or two "
                "queries have copies of one. Give it the newest checkpoint again; or start it with a new checkpointLocation, "
                "from where the log's rows end"
            )
        return query == self.batch_write or batch == last

    def followed_by(self, commit: Commit) -> CommitHeader:
        """The header after one more commit."""
        position = self.position.followed_by(commit)
        if commit.query == commit.run:
            return CommitHeader(commit.epoch, position, self.last_batches, commit.query)
        batches = {query: batch for query, batch in self.last_batches.items() if query != commit.query}
        batches[commit.query] = commit.batch
        return CommitHeader(commit.epoch, position, batches, self.batch_write)

    def entering(self, epoch: int) -> CommitHeader:
        """The header that opens a commit ledger of ``epoch``."""
        newest = dict(list(self.last_batches.items())[-QUERIES_MAX:])
        return CommitHeader(epoch, self.position, newest, self.batch_write if epoch == self.epoch else "")


def merged(ranges: Iterable[EntryRange]) -> tuple[EntryRange, ...]:
    """``ranges`` in order, with neighbours that continue one another made one."""
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
