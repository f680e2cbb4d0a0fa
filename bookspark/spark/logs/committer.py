"""The committer: the only writer of commit entries, in whatever process Spark runs ``commit()``.

Law: a commit is appended to a commit ledger only by a process that has itself recovered all before it, in this epoch,
and did not find the batch there. So each (query id, batch id) is committed once, whoever dies when:

* killed before the append: nothing is committed; the batch is replayed, its first entries stay unreferenced;
* killed between the append and the return: the next committer recovers the ledger, finds the batch, and returns;
* fenced (Spark ended this worker as idle and began another; a newer run took over): the handle is dropped and all
  begins with the record again. If the epoch stands: recover, look, roll, append. If it does not: LogTakenOverError, which means
  that the batch is not in the log: if it may be, the ledger that it was sent to is recovered, whoever owns the log by now.

A new commit ledger gets its header *before* the compare-and-set that puts it into the record, so the last ledger of a
chain always tells all that came before it. One that lost the compare-and-set is deleted; one that a crash left behind
is an orphan.

After each append the LAC is sent to the bookies at once: readers see the commit without waiting for the next one.
Source: docs/decisions/logs.md, and Spark's ``PythonStreamingSinkCommitRunner`` (a pooled worker beside the driver's JVM).
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
)
from bookspark.protocol.logs.commits import Commit, CommitHeader
from bookspark.protocol.logs.log_record import COMMIT_ROLE, CommitLedger, LogChangedError, LogTakenOverError
from bookspark.spark.logs.codec import decode_commit, decode_header, encode_commit, encode_header
from bookspark.spark.logs.compaction import COMMITS_PER_LEDGER_MAX, compact_chain
from bookspark.spark.logs.data_ledgers import CLOSE_SECONDS_MAX
from bookspark.spark.logs.labels import create_labelled, labels
from bookspark.spark.logs.maintenance import collect_recent_orphans, recover_ledgers
from bookspark.spark.logs.reader import HEADER_ENTRY
from bookspark.spark.logs.registry import LogRegistry

if TYPE_CHECKING:
    from bookspark.client import BookKeeper, LedgerHandle

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 5


class Committer:
    """Commits the batches of one run, which is the owner of ``name`` in ``epoch``."""

    def __init__(self, bookkeeper: BookKeeper, name: str, run: str, epoch: int, password: bytes) -> None:
        self._bookkeeper = bookkeeper
        self._registry = LogRegistry(bookkeeper.metadata)
        self._name, self._run, self._epoch, self._password = name, run, epoch, password
        self._ledger: LedgerHandle | None = None
        self._header = CommitHeader()
        self._left_open: list[int] = []
        """Data ledgers of earlier epochs, named by the commits that were recovered, whose writers may be gone."""
        self._tended = False

    def commit(self, commit: Commit) -> bool:
        """Make ``commit`` part of the log; False if it was already. Raises LogTakenOverError once the epoch is over, and
        ``commit`` never was, and never will be, part of the log.

        Any other error leaves the outcome open: calling again with the same commit settles it.
        """
        failure: BookKeeperError | None = None
        doubtful: int | None = None
        """The ledger that may have ``commit``."""
        for _ in range(ATTEMPTS_MAX):
            try:
                if self._ledger is None:
                    if self._recover().contains(commit.query, commit.batch):
                        return False
                    doubtful = None
                    self._roll()
                elif self._header.contains(commit.query, commit.batch):
                    return False
                elif self._ledger.last_add_confirmed >= COMMITS_PER_LEDGER_MAX:
                    self._ledger.close(timeout=CLOSE_SECONDS_MAX)
                    self._roll()
                assert self._ledger is not None
                self._ledger.append(encode_commit(commit))
            except (LedgerFencedError, LedgerClosedError, AddTimeoutError, LogChangedError) as error:
                # Whether the entry was kept is unknown, and only a recovery can tell.
                log.info("log %s, epoch %d: begins again after: %s", self._name, self._epoch, error)
                if self._ledger is not None:
                    doubtful = self._ledger.ledger_id
                self._ledger, failure = None, error
                continue
            except LogTakenOverError:
                if doubtful is None or not self._landed(commit, doubtful):
                    raise
                return False
            self._header = self._header.followed_by(commit)
            self._publish()
            return True
        raise LedgerRecoveryError(
            f"log {self._name!r}: batch {commit.batch} of query {commit.query} could not be committed in {ATTEMPTS_MAX} "
            f"attempts; the last failed with: {failure}. Restart a streaming query: it goes on from its checkpoint. A batch "
            "write may be in the log: before it is run again, look for its query id in the table log_commits"
        ) from failure

    def _landed(self, commit: Commit, ledger_id: int) -> bool:
        """Whether the ledger, the chain's last one when ``commit`` was sent to it, has it. Recovering it decides that, and does
        no harm: the new owner does the same before it commits anything."""
        try:
            with self._bookkeeper.open_ledger(ledger_id, password=self._password) as reader:
                entries = reader.read(HEADER_ENTRY + 1, reader.last_add_confirmed)
                found = (decode_commit(entry.payload, ledger_id, entry.entry_id) for entry in entries)
                return any((commit.query, commit.batch) == (other.query, other.batch) for other in found)
        except BookKeeperError as error:  # the ledger was compacted away, or its bookies are
            raise LedgerRecoveryError(
                f"log {self._name!r}: another run took over, and whether batch {commit.batch} of query {commit.query} was "
                f"committed before is not known ({error}). A streaming query that is started again finds out; before a "
                "batch write is run again, look for its query id in the table log_commits"
            ) from error

    def tend(self, thoroughly: bool) -> None:
        """After the first commit of the epoch: close what earlier ones left open; ``thoroughly``: collect and compact, too.

        What fails is logged, and left to a later epoch: readers see the same rows either way.
        """
        if self._tended:
            return
        self._tended = True
        recover_ledgers(self._bookkeeper, self._left_open, self._password)
        if not thoroughly:
            return
        try:
            orphans = collect_recent_orphans(self._bookkeeper, self._name, self._password)
            compacted = compact_chain(self._bookkeeper, self._name, self._run, self._epoch, self._password)
        except BookKeeperError as error:
            log.info("log %s: what earlier epochs left is not all cleaned up: %s", self._name, error)
            return
        log.info("log %s: orphans deleted: %s, commit ledgers compacted: %s", self._name, orphans, compacted)

    def close(self) -> None:
        """Close the commit ledger, so that nobody has to recover it. What is committed stays so if this fails."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            try:
                ledger.close(timeout=CLOSE_SECONDS_MAX)
            except BookKeeperError as error:
                log.info("log %s: its commit ledger %d is left for recovery: %s", self._name, ledger.ledger_id, error)

    def _recover(self) -> CommitHeader:
        """Fence and read the last commit ledger: all that is committed up to here."""
        record = self._registry.get(self._name)
        record.check_owner(self._run, self._epoch)
        self._chain: tuple[CommitLedger, ...] = record.commit_ledgers
        self._options = record.options
        header = CommitHeader()
        earlier: dict[int, None] = {}
        if self._chain:
            ledger_id = self._chain[-1].ledger_id
            with self._bookkeeper.open_ledger(ledger_id, password=self._password) as reader:
                if reader.last_add_confirmed < 0:
                    raise LedgerRecoveryError(
                        f"log {self._name!r}: commit ledger {ledger_id} was recovered without its header, which had been "
                        "confirmed: bookies lost it. Nothing is written; run the audits, and bring back the bookies that held it"
                    )
                for entry in reader.read(0, reader.last_add_confirmed):
                    if entry.entry_id == 0:
                        header = decode_header(entry.payload, ledger_id)
                    else:
                        commit = decode_commit(entry.payload, ledger_id, entry.entry_id)
                        header = header.followed_by(commit)
                        if commit.epoch < self._epoch:
                            earlier.update(dict.fromkeys(item.ledger_id for item in commit.ranges))
        self._left_open = list(earlier)
        self._header = header.entering(self._epoch)
        return header

    def _roll(self) -> None:
        """Begin a commit ledger with a header of all before it, then make it the chain's last."""
        own = labels(self._name, self._epoch, self._run, COMMIT_ROLE)
        ledger = create_labelled(self._bookkeeper, self._options, self._password, own)
        self._header = self._header.entering(self._epoch)
        try:
            ledger.append(encode_header(self._header))
            record = self._registry.add_commit_ledger(self._name, ledger.ledger_id, self._run, self._epoch, self._chain)
        except (LogTakenOverError, LogChangedError):
            with suppress(BookKeeperError):  # nobody needs it; a guaranteed one would wait for a bookie that is down
                ledger.close(wait=False, timeout=CLOSE_SECONDS_MAX)
            with suppress(BookKeeperError):  # then it is an orphan
                self._bookkeeper.delete_ledger(ledger.ledger_id)
            raise
        self._chain, self._ledger = record.commit_ledgers, ledger

    def _publish(self) -> None:
        assert self._ledger is not None
        try:
            self._ledger.flush_last_add_confirmed()
        except BookKeeperError as error:
            # The commit stands; readers see it with the next one, or once the ledger is recovered.
            log.warning("log %s: the newest commit is not announced to readers yet: %s", self._name, error)


_committers: dict[tuple[int, str, str], tuple[tuple[int, str, int], Committer]] = {}
"""(pid, zookeeper, log) → ((when it was made, run, epoch), its committer). Spark commits one batch of a
query at a time."""


def current_committer(
    bookkeeper: BookKeeper, zookeeper: str, name: str, made: int, run: str, epoch: int, password: bytes
) -> Committer:
    """This process's committer for the log that was made at ``made`` (ctime_ms); that of another one, run or epoch is closed."""
    key = os.getpid(), zookeeper, name
    held_as, held = _committers.get(key, (None, None))
    if held is None or held_as != (made, run, epoch):
        if held is not None:
            held.close()
        held = Committer(bookkeeper, name, run, epoch, password)
        _committers[key] = (made, run, epoch), held
    return held


def release_committer(zookeeper: str, name: str) -> None:
    """Close this process's committer for the log, if there is one."""
    _, held = _committers.pop((os.getpid(), zookeeper, name), (None, None))
    if held is not None:
        held.close()
