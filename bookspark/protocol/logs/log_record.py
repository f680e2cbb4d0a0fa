"""A log's record and its commits: who may write, which ledgers make up the log, and what was committed already.

Law: a log is the chain of its commit ledgers, in the record's order, and nothing else. The record never changes but by
the transitions below, each written by compare-and-set:

=====================  ==========================================================================================
``claim(run)``         a run that never claimed before becomes the owner, in the next epoch; the owner stays the owner;
                       a run that claimed once and lost never claims again (its query ends, so two runs can't take
                       turns for ever)
``with_commit_ledger`` the owner of the epoch that stands appends a commit ledger, if the last one is still the one that
                       it recovered
``with_compacted``     the owner puts one commit ledger, with the same commits, in the place of several; never of the last
``truncated(row)``     anyone who may write says that the rows before ``row`` are not wanted any more; ledgers of the
                       chain that hold nothing else leave it, but for the last one
``with_dictionary``    anyone who may write sets what values are compressed with, once
``offload_begun``,     whoever offloads rows to a table says up to which row it is about to, and that it has
``offload_done``       (``log_offload``)
=====================  ==========================================================================================

Why that is exactly-once (docs/decisions/logs.md): a commit is one entry of the last commit ledger. Whoever is to write
the next one in another process, or in another epoch, first *recovers* that ledger, which fences it: from then on the
former writer's append fails, and what it had written is read by the new one. The new one looks for (query id, batch id)
in what it read and only then begins a new commit ledger. Each commit ledger starts with a header entry that sums up all
ledgers before it, and is put into the record only once that header is confirmed, so that one ledger is all that is ever
read for this.

A batch before the last one of its query is refused: a checkpoint that was set back makes new batches under old numbers, and to
take them for those that are there would lose their rows.

A batch write has no checkpoint to be replayed from: its query id *is* its run id, and no header of a later epoch keeps
it. Of streaming queries a header keeps the ``QUERIES_MAX`` that committed last.

Entry 0 of a commit ledger is a ``CommitHeader``, each other one a ``Commit``, both JSON. No I/O here; the bytes are
made in ``bookspark.spark.logs.codec``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.protocol.ledger.ledger_choices import check_choices
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.logs.log_offload import Offload, OffloadError

CLAIMS_MAX = 1000
"""How many runs the record remembers; older ones could claim again, which costs a fight but no entry."""
QUERIES_MAX = 1000

LOG_LABEL, EPOCH_LABEL, ROLE_LABEL, RUN_LABEL = "bookspark.log", "bookspark.epoch", "bookspark.role", "bookspark.run"
ENCODING_LABEL = "bookspark.encoding"
COMMIT_ROLE, DATA_ROLE = "commit", "data"


class LogTakenOverError(BookKeeperError):
    """Another run owns the log now; this one's batches that were not committed never will be."""


class NoSuchLogError(BookKeeperError):
    """The metadata store has no log of this name."""


class LogExistsError(BookKeeperError):
    """There is a log of that name already."""


class LogChangedError(BookKeeperError):
    """Another process of the same run put its commit ledger into the chain first: recover that one."""


class CheckpointRewoundError(BookKeeperError):
    """A query writes a batch that is older than what the log has of it: its Spark checkpoint was set back."""


class RowFormat(Enum):
    """What an entry of a data ledger holds."""

    VALUE = "value"
    """One row, which is one value: a string or bytes."""
    ARROW = "arrow"
    """Rows with all their columns, as an Arrow record batch."""


class Compression(Enum):
    """Of the payloads of data ledgers."""

    NONE = "none"
    ZSTD = "zstd"
    ZSTD_DICTIONARY = "zstd_dictionary"
    """With a dictionary that is trained from the first rows of the log and kept in its record: for small values."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a log's data ledgers are created with and hold, fixed when the log is made. Commit ledgers are always PD."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C
    ledger_type: LedgerType = LedgerType.PD_JOURNAL
    replication: Replication = Replication.BEST_EFFORT
    row_format: RowFormat = RowFormat.VALUE
    compression: Compression = Compression.NONE
    columns: str = ""
    """Of RowFormat.ARROW: the schema of the rows, as Spark's JSON."""

    def __post_init__(self) -> None:
        check_choices(self.ensemble_size, self.write_quorum, self.ack_quorum, self.ledger_type, self.replication)
        if self.row_format is RowFormat.ARROW and self.compression is Compression.ZSTD_DICTIONARY:
            raise ConfigurationError(
                "compression 'zstd_dictionary' is for logs of single values; entries of row format 'arrow' hold many rows "
                "and gain nothing from it: use 'zstd'"
            )


class CommitLedger(NamedTuple):
    """A link of the chain."""

    ledger_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One version of ``/bookspark/logs/<name>``. Epoch 0: nobody has claimed the log yet."""

    name: str
    options: LogOptions = field(default_factory=LogOptions)
    master_key: bytes = b""
    """What the password hashes to; every ledger of the log has the same."""
    epoch: int = 0
    owner: str = ""
    claims: tuple[str, ...] = ()
    """Run ids in the order of their claims, the owner last."""
    commit_ledgers: tuple[CommitLedger, ...] = ()
    ctime_ms: int = 0
    """When the log was made; with the name it tells one log from a later one of the same name."""
    first_position: int = 0
    """Rows before it are truncated: they may be gone."""
    dictionary: bytes = b""
    """What values are compressed with, if the log's options ask for it, once it is trained; never another one."""
    offload: Offload | None = None
    """Which rows are in a table too, if any are."""

    @property
    def recovered(self) -> bool:
        """Whether the owner's own commit ledger is in the chain: until then a commit of an earlier epoch may still appear."""
        return bool(self.commit_ledgers) and self.commit_ledgers[-1].epoch == self.epoch

    def claim(self, run: str) -> LogRecord:
        """The record with ``run`` as its owner.

        Raises LogTakenOverError if ``run`` owned the log and has lost it, or ValueError if ``run`` is empty.
        """
        if not run:
            raise ValueError(f"log {self.name!r}: a run without an id can't own a log")
        if self.owner == run:
            return self
        if run in self.claims:
            raise self._taken_over(run)
        return replace(self, epoch=self.epoch + 1, owner=run, claims=(*self.claims, run)[-CLAIMS_MAX:])

    def check_owner(self, run: str, epoch: int) -> None:
        """Raise LogTakenOverError unless ``run``'s ``epoch`` stands."""
        if (self.owner, self.epoch) != (run, epoch):
            raise self._taken_over(run)

    def with_commit_ledger(
        self, ledger_id: int, run: str, epoch: int, recovered: tuple[CommitLedger, ...]
    ) -> LogRecord:
        """The record with one more commit ledger, for the owner that ``recovered`` the last of that chain.

        Raises LogTakenOverError, or LogChangedError if the last one is another. Done twice it changes nothing.
        """
        self.check_owner(run, epoch)
        link = CommitLedger(ledger_id, epoch)
        if self.commit_ledgers and self.commit_ledgers[-1] == link:
            return self
        if self.commit_ledgers[-1:] != recovered[-1:]:
            raise LogChangedError(
                f"log {self.name!r}: commit ledgers changed to {[c.ledger_id for c in self.commit_ledgers]}"
            )
        return replace(self, commit_ledgers=(*self.commit_ledgers, link))

    def with_compacted(self, replaced: tuple[CommitLedger, ...], by: int, run: str, epoch: int) -> LogRecord:
        """The record with one commit ledger in the place of neighbours, which are closed and whose commits it has.

        Raises LogTakenOverError, LogChangedError if they are not in the chain like that, or ValueError if there are none. Done
        twice it changes nothing.
        """
        if not replaced:
            raise ValueError(f"log {self.name!r}: ledger {by} was to take the place of no commit ledgers")
        self.check_owner(run, epoch)
        link = CommitLedger(by, replaced[-1].epoch)
        if link in self.commit_ledgers:
            return self
        at = self.commit_ledgers.index(replaced[0]) if replaced[0] in self.commit_ledgers else 0
        before, after = self.commit_ledgers[:at], self.commit_ledgers[at + len(replaced) :]
        if not after or self.commit_ledgers[at : at + len(replaced)] != replaced:
            raise LogChangedError(
                f"log {self.name!r}: commit ledgers changed to {[c.ledger_id for c in self.commit_ledgers]}"
            )
        return replace(self, commit_ledgers=(*before, link, *after))

    def truncated(self, row: int, ends: Mapping[CommitLedger, int]) -> LogRecord:
        """The record without the rows before ``row``. ``ends``: the row after the last one of each closed ledger of the chain.

        Never undoes an earlier truncation, and never drops the last ledger, which sums up all before it.
        """
        first = max(row, self.first_position)
        dropped = 0
        while dropped < len(self.commit_ledgers) - 1 and ends.get(self.commit_ledgers[dropped], first + 1) <= first:
            dropped += 1
        return replace(self, first_position=first, commit_ledgers=self.commit_ledgers[dropped:])

    def with_dictionary(self, dictionary: bytes) -> LogRecord:
        """The record with the dictionary that the log has from now on; it keeps one that it has."""
        return self if self.dictionary else replace(self, dictionary=dictionary)

    def offload_begun(self, table: str, end: int) -> LogRecord:
        """The record with an offload to ``table`` up to row ``end`` begun, unless another one is pending. Raises OffloadError."""
        return replace(self, offload=(self.offload or Offload(table)).begun(table, end))

    def offload_done(self, end: int, version: int) -> LogRecord:
        """The record with the rows before ``end`` in ``version`` of the table. Raises OffloadError."""
        if self.offload is None:
            raise OffloadError(f"log {self.name!r} was never offloaded; was it deleted and made anew meanwhile?")
        return replace(self, offload=self.offload.done(end, version))

    def _taken_over(self, run: str) -> LogTakenOverError:
        return LogTakenOverError(
            f"log {self.name!r}: another run took over: run {self.owner} owns it in epoch {self.epoch}, run {run} does not. "
            "A log has one writer at a time: stop one of the two, then start the other again, a streaming query from its "
            "checkpoint; a batch write that ends with this error wrote nothing"
        )


class EntryRange(NamedTuple):
    """Entries ``first..last`` of a data ledger: ``rows`` rows, as many in each entry, with ``size`` bytes of payload."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    rows: int
    size: int

    @property
    def rows_each(self) -> int:
        """Rows of an entry."""
        return self.rows // (self.last_entry_id - self.first_entry_id + 1)

    def continues(self, other: EntryRange) -> bool:
        """Whether it follows ``other`` at once, with as many rows in an entry: then the two are one range."""
        follows = (self.ledger_id, self.first_entry_id) == (other.ledger_id, other.last_entry_id + 1)
        return follows and self.rows_each == other.rows_each


class Position(NamedTuple):
    """How much of a log lies before a point of it."""

    batches: int = 0
    rows: int = 0
    size: int = 0

    def followed_by(self, commit: Commit) -> Position:
        """The position after ``commit``, if this is the one before it."""
        return Position(self.batches + 1, self.rows + commit.rows, self.size + commit.size)


START = Position()


@dataclass(frozen=True, slots=True)
class Commit:
    """One micro-batch, or one batch write: its rows are those of ``ranges``, in this order, and of nothing else."""

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
    """All commits before a point of the log: the last batch of each query, in order of commit, and the sums."""

    epoch: int = 0
    position: Position = START
    last_batches: Mapping[str, int] = field(default_factory=dict)
    batch_write: str = ""
    """The query id of the epoch's batch write, if that is committed."""

    def contains(self, query: str, batch: int) -> bool:
        """Whether this batch of this query is committed. Spark numbers batches upwards and replays only the last, with the very
        rows that it had: raises CheckpointRewoundError for one before that, of which nobody knows what rows it has by now.
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
    """``ranges`` in order, neighbours that continue one another made one."""
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


def is_orphan(record: LogRecord, ledger_id: int, labels: Mapping[str, bytes], referenced: Collection[int]) -> bool:
    """Whether a ledger was made for the log and can never become part of it.

    ``labels`` is its custom metadata; ``referenced`` the data ledgers named by *all* commits of ``record``'s chain,
    read after the owner of the current epoch had put its own commit ledger into it. Until then a commit of an earlier
    epoch may still appear, and nothing is an orphan. Judged by epoch, never by age.
    """
    if labels.get(LOG_LABEL) != record.name.encode():
        return False
    if not record.recovered or int(labels.get(EPOCH_LABEL, b"0")) >= record.epoch:
        return False
    return ledger_id not in referenced and all(ledger_id != link.ledger_id for link in record.commit_ledgers)
