"""A log's record: who may write, and which ledgers make up the log.

Law: a log is the chain of its commit ledgers, in the record's order, and nothing else. Only the transitions below change the
record, each written by compare-and-set:

=======================  ======================================================================================================
``claim(run)``           A run that never claimed before becomes the owner, in the next epoch. The owner stays the owner. A run
                         that claimed and lost never claims again: its query ends, so two runs can't take turns for ever.
``with_commit_ledger``   The owner of the epoch that stands appends a commit ledger, if the last one still is the one that it
                         recovered.
``with_compacted``       The owner puts one commit ledger, with the same commits, in the place of several, but never of the last.
``truncated(row)``       Anyone who may write says that the rows before ``row`` are not wanted any more. Ledgers of the chain
                         that hold nothing else leave it, but the last one stays.
``with_dictionary``      Anyone who may write sets, once, what values are compressed with.
``offload_begun``,       Whoever offloads rows to a table says up to which row it is about to, and then that it has
``offload_done``         (``log_offload``).
=======================  ======================================================================================================

Why that is exactly-once (docs/decisions/logs.md): a commit (``commits``) is one entry of the last commit ledger. Whoever is to
write the next commit in another process, or in another epoch, first *recovers* that ledger, which fences it. From then on the
former writer's append fails, and the new writer reads what was written. It looks there for (query id, batch id), and only then
begins a new commit ledger. That ledger is put into the record only once its header is confirmed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.protocol.ledger.ledger_choices import check_choices
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.logs.log_offload import Offload, OffloadError

CLAIMS_MAX = 1000
"""How many runs the record remembers. An older run could claim again: two runs would fight for the log, and lose no entry."""

LOG_LABEL, EPOCH_LABEL, ROLE_LABEL, RUN_LABEL = "bookspark.log", "bookspark.epoch", "bookspark.role", "bookspark.run"
ENCODING_LABEL = "bookspark.encoding"
COMMIT_ROLE, DATA_ROLE = "commit", "data"


class LogTakenOverError(BookKeeperError):
    """Another run owns the log now. What this run has not committed never will be."""


class NoSuchLogError(BookKeeperError):
    """The metadata store has no log of this name."""


class LogExistsError(BookKeeperError):
    """The metadata store has a log of this name already."""


class LogChangedError(BookKeeperError):
    """Another process of the same run put its commit ledger into the chain first. Recover that one."""


class RowFormat(Enum):
    """What an entry of a data ledger holds."""

    VALUE = "value"
    """One row with one value: a string or bytes."""
    ARROW = "arrow"
    """Rows with all their columns, as an Arrow record batch."""


class Compression(Enum):
    """How the payloads of data ledgers are compressed."""

    NONE = "none"
    ZSTD = "zstd"
    ZSTD_DICTIONARY = "zstd_dictionary"
    """zstd with a dictionary, for small values. It is trained from the first rows of the log and kept in the log's record."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a log's data ledgers are created with, and what they hold. Fixed when the log is made. Commit ledgers are always PD
    (persistent durability: an append is acknowledged after the sync)."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C
    ledger_type: LedgerType = LedgerType.PD_JOURNAL
    replication: Replication = Replication.BEST_EFFORT
    row_format: RowFormat = RowFormat.VALUE
    compression: Compression = Compression.NONE
    columns: str = ""
    """The schema of the rows, as Spark's JSON. Empty unless the row format is ARROW."""

    def __post_init__(self) -> None:
        check_choices(self.ensemble_size, self.write_quorum, self.ack_quorum, self.ledger_type, self.replication)
        if self.row_format is RowFormat.ARROW and self.compression is Compression.ZSTD_DICTIONARY:
            raise ConfigurationError(
                "compression 'zstd_dictionary' is for logs of single values; entries of row format 'arrow' hold many rows "
                "and gain nothing from it: use 'zstd'"
            )


class CommitLedger(NamedTuple):
    """One commit ledger of the chain, and the epoch whose owner appended it."""

    ledger_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One version of ``/bookspark/logs/<name>``. Epoch 0: nobody has claimed the log yet."""

    name: str
    options: LogOptions = field(default_factory=LogOptions)
    master_key: bytes = b""
    """The hash of the password. Every ledger of the log has the same."""
    epoch: int = 0
    owner: str = ""
    claims: tuple[str, ...] = ()
    """Run ids in the order of their claims, the owner last."""
    commit_ledgers: tuple[CommitLedger, ...] = ()
    ctime_ms: int = 0
    """When the log was made. It tells the log from a later one of the same name."""
    first_position: int = 0
    """The rows before it are truncated: they may be gone."""
    dictionary: bytes = b""
    """The dictionary that values are compressed with. Empty until it is trained, if the options ask for one. Never replaced."""
    offload: Offload | None = None
    """Which rows are in a table as well; None if none are."""

    @property
    def recovered(self) -> bool:
        """Is the owner's own commit ledger in the chain? Until then a commit of an earlier epoch may still appear."""
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

        Raises LogTakenOverError if ``run``'s ``epoch`` does not stand, or LogChangedError if the last one is another. Done twice
        it changes nothing.
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

        Raises LogTakenOverError if ``run``'s ``epoch`` does not stand, LogChangedError if they are not in the chain like that, or
        ValueError if there are none. Done twice it changes nothing.
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
        """The record with ``dictionary``, unless it has one already."""
        return self if self.dictionary else replace(self, dictionary=dictionary)

    def offload_begun(self, table: str, end: int) -> LogRecord:
        """The record with an offload to ``table`` up to row ``end`` begun, unless another one is pending.

        Raises OffloadError if the log is offloaded to another table.
        """
        return replace(self, offload=(self.offload or Offload(table)).begun(table, end))

    def offload_done(self, end: int, version: int) -> LogRecord:
        """The record with the rows before ``end`` in ``version`` of the table.

        Raises OffloadError if no offload up to that row was begun.
        """
        if self.offload is None:
            raise OffloadError(f"log {self.name!r} was never offloaded; was it deleted and made anew meanwhile?")
        return replace(self, offload=self.offload.done(end, version))

    def _taken_over(self, run: str) -> LogTakenOverError:
        return LogTakenOverError(
            f"log {self.name!r}: another run took over: run {self.owner} owns it in epoch {self.epoch}, run {run} does not. "
            "A log has one writer at a time: stop one of the two, then start the other again, a streaming query from its "
            "checkpoint; a batch write that ends with this error wrote nothing"
        )


def is_orphan(record: LogRecord, ledger_id: int, labels: Mapping[str, bytes], referenced: Collection[int]) -> bool:
    """Was the ledger made for the log, and can it never become part of it? Judged by epoch, never by age.

    ``labels`` is the ledger's custom metadata. ``referenced`` are the data ledgers that *all* commits of ``record``'s chain name,
    read after the owner of the current epoch had put its own commit ledger into the chain. Until then a commit of an earlier
    epoch may still appear, and nothing is an orphan.
    """
    if labels.get(LOG_LABEL) != record.name.encode():
        return False
    if not record.recovered or int(labels.get(EPOCH_LABEL, b"0")) >= record.epoch:
        return False
    return ledger_id not in referenced and all(ledger_id != link.ledger_id for link in record.commit_ledgers)
