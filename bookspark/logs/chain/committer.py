"""The committer of a log, in any process that runs Spark's ``commit()``, and the compaction of the log's chain.

Law: a process appends a commit only after it has recovered all earlier commits itself, as a writer of a live epoch, and the batch
is not among them. So each (query id, batch id) is committed once, whatever crashes:

* A process that dies before the append commits nothing. Spark replays the batch; the entries of the first attempt stay
  unreferenced.
* A process that dies after the append has committed. The next committer recovers the ledger and finds the batch.
* A process whose ledger was fenced drops its handle and reads the log's record again. (Spark replaces idle workers; a batch write
  has committed; or a newer run took the log over.) In a live epoch it recovers, looks for the batch, and begins a new commit
  ledger with it. Else it recovers the ledger that may hold the batch, and raises LogTakenOverError if the batch is not there.

A new commit ledger gets its header and first commit *before* the record names it. So the last ledger of a chain always sums up
all earlier commits, and no process can fence it between its naming and the commit. The loser of a compare-and-set deletes its
ledger (after a crash it is an orphan) and retries, so batch writes beside a query queue.

After each append the last add confirmed (LAC) goes to the bookies at once, and a commit returns when they have it, so a later
read sees the write. A producer's commit, which opens a ledger, does not wait (``tells_soon``): the bookies get its LAC before
that of its rows.

Source: docs/decisions/logs.md, and Spark's ``PythonStreamingSinkCommitRunner`` (a pooled worker beside the driver's JVM).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerRecoveryError,
    NoSuchLedgerError,
)
from bookspark.logs.chain.codec import decode_commit, decode_header, encode_commit, encode_header
from bookspark.logs.chain.commit_ledgers import (
    FIRST_COMMIT,
    HEADER_ENTRY,
    header_before,
    open_commit_ledger,
    read_header,
)
from bookspark.logs.chain.log_run import CLOSE_SECONDS_MAX, LargerLook, LogRun
from bookspark.logs.chain.maintenance import collect_recent_orphans, recover_ledgers
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.chain.retention import truncate_expired_of_lane
from bookspark.protocol.logs.commits import Commit, CommitHeader
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_record import (
    COMMIT_ROLE,
    LOG_LABEL,
    CommitLedger,
    LinkStart,
    LogChangedError,
    LogRecord,
    LogTakenOverError,
    NoSuchLogError,
)
from bookspark.protocol.logs.orphans import epoch_of
from bookspark.protocol.logs.replays import Batch, is_committed
from bookspark.store.decisions.seam import decided

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper, LedgerHandle

log = logging.getLogger(__name__)


# -- Compaction of a chain. Every batch write and every run of a query adds a commit ledger to it.


CHAIN_MAX = 64
COMMITS_PER_LEDGER_MAX = 10_000
"""Commits in a ledger before the next ledger begins; a recovery reads the whole ledger."""


def compact_chain(bookkeeper: BookKeeper, run: LogRun) -> list[int]:
    """Merge neighbouring commit ledgers of a chain longer than CHAIN_MAX. ``run`` is a writer of the log. Returns the ids of the
    deleted ledgers.

    Law: the commits and their order stay the same, for concurrent readers too. The steps:

    1. The header of the first of several neighbours and the commits of all are copied into a new ledger, which is closed.
    2. A writer of the log replaces the old ledgers by the new ledger in the record, by compare-and-set.
    3. The old ledgers are deleted.

    A crash before step 2 leaves the new ledger as an orphan; a crash after it, the old ledgers.

    Raises LogTakenOverError, LogChangedError, and the errors of reading and creating ledgers; the chain is then unchanged, or
    partly compacted.
    """
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(run.lane)
    if len(record.commit_ledgers) <= CHAIN_MAX:
        return []
    deleted = []
    for links in _groups(bookkeeper, record, run.password):
        copy = _copied(bookkeeper, record, links, run)
        # After a failure the record may or may not name the copy, so the copy stays; unnamed, it is an orphan.
        registry.update(run.lane, partial(_compacted, replaced=links, by=copy, run=run))
        for link in links:
            bookkeeper.delete_ledger(link.ledger_id)
            deleted.append(link.ledger_id)
    return deleted


def _compacted(record: LogRecord, replaced: tuple[CommitLedger, ...], by: int, run: LogRun) -> LogRecord:
    return decided(LogRecord.with_compacted, record, replaced, by, run.run, run.epoch)


def _groups(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> Iterator[tuple[CommitLedger, ...]]:
    """Groups of neighbours whose commits fit into one ledger, without the last ledger of the chain."""
    chain = record.commit_ledgers
    before = [read_header(open_commit_ledger(bookkeeper, link, password)).position.batches for link in chain]
    first = 0
    for end in range(1, len(chain)):
        if end == len(chain) - 1 or before[end + 1] - before[first] > COMMITS_PER_LEDGER_MAX:
            if end - first > 1:
                yield chain[first:end]
            first = end


def _copied(bookkeeper: BookKeeper, record: LogRecord, links: Sequence[CommitLedger], run: LogRun) -> int:
    """Copy the header of the first ledger and the commits of all into a new, closed ledger; returns its id."""
    ledger = run.create_ledger(bookkeeper, record.options, COMMIT_ROLE)
    for link in links:
        with bookkeeper.open_ledger(link.ledger_id, password=run.password) as reader:
            first = HEADER_ENTRY if link is links[0] else FIRST_COMMIT
            payloads = [entry.payload for entry in reader.read(first, reader.last_add_confirmed)]
            if payloads:
                ledger.append_batch(payloads)
    ledger.close(timeout=CLOSE_SECONDS_MAX)
    return ledger.ledger_id


# -- The committer


ATTEMPTS_MAX = 5
RACES_MAX = 1000
"""Limit of races that a commit may lose. Each lost race is another writer's success."""
RETENTION_SECONDS = 300.0
"""Interval at which a writer removes expired rows."""


class Committer:
    """Commits the batches of one run, a writer of the log in its epoch."""

    def __init__(self, bookkeeper: BookKeeper, run: LogRun, tells_soon: bool = False) -> None:
        """``tells_soon``: commits do not wait until readers can see them; readers see them a moment later."""
        self.run = run
        self._tells_soon = tells_soon
        self._bookkeeper = bookkeeper
        self._registry = LogRegistry(bookkeeper.metadata)
        self._ledger: LedgerHandle | None = None
        self._header = CommitHeader()
        self._own_ledgers: set[int] = set()
        """Data ledgers that were made for this lane and epoch."""
        self._left_open: list[int] = []
        """Data ledgers of past epochs in the recovered commits. Their writers may be gone."""
        self._batch_write = ""
        """The committed batch write, which no header lists."""
        self._tended = False
        self._look, self._retention_due = LargerLook(), 0.0
        self._rolled = False
        """Has the chain grown since the last check of its length?"""

    def recover(self) -> CommitHeader:
        """Fence the chain's last ledger, so no earlier owner commits any more. Returns the sum of all commits. Only for the owner
        of the lane. Raises LogTakenOverError, LedgerRecoveryError, NoSuchLogError, and the errors of opening a ledger."""
        try:
            header = self._recover()
        except NoSuchLedgerError:
            # If its log was deleted meanwhile, this says so.
            self._registry.get(self.run.lane)
            raise
        assert header is not None, "a batch write has committed"
        return header

    def commit(self, commit: Commit, batch: Batch | None = None) -> bool:
        """Make ``commit`` part of the log. Returns False if it was part of it already.

        ``batch``: more about the commit's batch than the commit states. Raises LogTakenOverError if the epoch is over: ``commit``
        is not part of the log and never will be; and CheckpointRewoundError if the log has another batch of this number. After
        any other error (LedgerRecoveryError after ATTEMPTS_MAX attempts, NotEnoughBookiesError, MetadataStoreError) the outcome
        is open: a call with the same commit settles it.
        """
        self._check(commit)
        batch = batch or Batch(str(self.run.lane), commit.query, commit.batch, commit.fingerprint)
        return self._commit(commit, lambda header: decided(is_committed, header, batch))

    def commit_open(self, commit: Commit) -> None:
        """Make ``commit`` part of the log, once. It opens its own new ledger, or settles the last opened one, which is closed.
        Raises the errors of ``commit``."""
        self._commit(commit, lambda header: header.open_ledger == commit.open_ledger)

    def _commit(self, commit: Commit, is_there: Callable[[CommitHeader], bool]) -> bool:
        failure: BookKeeperError | None = None
        doubtful: int | None = None
        """The ledger that may hold ``commit``."""
        failures = races = 0
        while failures < ATTEMPTS_MAX and races < RACES_MAX:
            if failures or races:
                # The time is the attempt's: a reader that has read up to a time must not get rows of an earlier time later.
                commit = replace(commit, time_ms=max(commit.time_ms, self._bookkeeper.metadata.clock.now_ms()))
            try:
                if self._ledger is None:
                    header = self._recover()
                    if header is None or is_there(header):
                        return False
                    doubtful = None
                    self._roll(commit)
                elif commit.query == self._batch_write or is_there(self._header):
                    return False
                elif (
                    larger := self._larger(self._ledger)
                ) is not None or self._ledger.last_add_confirmed >= COMMITS_PER_LEDGER_MAX:
                    full, self._ledger = self._ledger, None
                    full.close(timeout=CLOSE_SECONDS_MAX)
                    self._options = self._registry.get(self.run.lane).options
                    self._roll(commit, larger)
                else:
                    self._ledger.append(encode_commit(self._header.placed(commit)))
            except LogChangedError as error:
                log.info("log %s, epoch %d: another commit came first: %s", self.run.lane, self.run.epoch, error)
                failure, races = error, races + 1
                continue
            except (LedgerFencedError, LedgerClosedError, AddTimeoutError, NoSuchLedgerError) as error:
                # Only a recovery can tell whether the entry was stored. (A ledger that a batch write fenced may have been
                # compacted and deleted since.)
                log.info("log %s, epoch %d: begins again after: %s", self.run.lane, self.run.epoch, error)
                if self._ledger is not None:
                    doubtful = self._ledger.ledger_id
                self._ledger, failure, failures = None, error, failures + 1
                continue
            except LogTakenOverError:
                if doubtful is None or not self._landed(commit, doubtful):
                    raise
                return False
            self._header = self._header.followed_by(self._header.placed(commit))
            self._batch_write = commit.query if commit.query == commit.run else ""
            self._publish()
            return True
        raise LedgerRecoveryError(
            f"log '{self.run.lane}': batch {commit.batch} of query {commit.query} could not be committed in {failures} attempts, "
            f"and {races} that other commits preceded; the last failed with: {failure}. Restart a streaming query: it goes on "
            "from its checkpoint. A batch write may be in the log: before it is run again, look for its query id in the table "
            "log_commits"
        ) from failure

    def _check(self, commit: Commit) -> None:
        """Raise BookKeeperError unless each data ledger of ``commit`` was made for this lane in this epoch: a commit of another's
        ledger would name rows that may be deleted as orphans."""
        for ledger_id in {item.ledger_id for item in commit.ranges} - self._own_ledgers:
            try:
                labels = self._bookkeeper.get_ledger_metadata(ledger_id).custom_metadata
            except NoSuchLedgerError as error:
                raise BookKeeperError(
                    f"log '{self.run.lane}': batch {commit.batch} of query {commit.query} is not committed, because its ledger "
                    f"{ledger_id} was deleted. Run the write again"
                ) from error
            if not self.run.labels.items() <= labels.items():
                raise BookKeeperError(
                    f"log '{self.run.lane}': batch {commit.batch} of query {commit.query} is not committed, because its ledger "
                    f"{ledger_id} was made for {labels.get(LOG_LABEL, b'no log').decode(errors='replace')} in epoch "
                    f"{epoch_of(labels)}, and the batch is of epoch {self.run.epoch}. Run the write again"
                )
            self._own_ledgers.add(ledger_id)

    def _landed(self, commit: Commit, ledger_id: int) -> bool:
        """Is ``commit`` in the ledger that was the chain's last when the commit was sent? A recovery of the ledger decides; it is
        harmless, because the new owner recovers the ledger too."""
        try:
            with self._bookkeeper.open_ledger(ledger_id, password=self.run.password) as reader:
                entries = reader.read(FIRST_COMMIT, reader.last_add_confirmed)
                commits = (decode_commit(entry.payload, ledger_id, entry.entry_id) for entry in entries)
                return any(_key(commit) == _key(other) for other in commits)
        except BookKeeperError as error:
            # The ledger was compacted and deleted, or its bookies are down.
            raise LedgerRecoveryError(
                f"log '{self.run.lane}': another run took over, and whether batch {commit.batch} of query {commit.query} was "
                f"committed before is not known ({error}). A streaming query that is started again finds out; before a "
                "batch write is run again, look for its query id in the table log_commits"
            ) from error

    def tend(self, thoroughly: bool) -> None:
        """After the first commit of the epoch: close the data ledgers that past epochs left open. Later calls do nothing, unless
        ``thoroughly``.

        ``thoroughly``: also delete orphans after the first commit; and, after any commit, compact a long chain, and remove
        expired rows every RETENTION_SECONDS. A failure is logged and left to a later call or epoch; readers see the same rows
        either way.
        """
        first, self._tended = not self._tended, True
        rolled, self._rolled = self._rolled, False
        if first:
            recover_ledgers(self._bookkeeper, self._left_open, self.run.password)
        now = time.monotonic()
        due = thoroughly and now >= self._retention_due
        if not thoroughly or not (first or rolled or due):
            return
        expired: list[int] = []
        try:
            if due:
                self._retention_due = now + RETENTION_SECONDS
                expired = truncate_expired_of_lane(self._bookkeeper, self.run.lane, self.run.password)
            orphans = collect_recent_orphans(self._bookkeeper, self.run.lane, self.run.password) if first else []
            compacted = compact_chain(self._bookkeeper, self.run) if first or rolled else []
        except BookKeeperError as error:
            log.info("log %s: the cleaning up after earlier epochs is not finished: %s", self.run.lane, error)
            return
        log.info(
            "log %s: orphans deleted: %s, commit ledgers compacted: %s, ledgers of expired rows deleted: %s",
            self.run.lane,
            orphans,
            compacted,
            expired,
        )

    def close(self) -> None:
        """Close the commit ledger, so that no successor has to recover it. A failure is logged and changes no commit."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            try:
                ledger.close(timeout=CLOSE_SECONDS_MAX)
            except BookKeeperError as error:
                log.info(
                    "log %s: its commit ledger %d is left for recovery: %s", self.run.lane, ledger.ledger_id, error
                )

    def _recover(self) -> CommitHeader | None:
        """Fence and read the last commit ledger. Returns the sum of all commits of the log; None if the run is a committed batch
        write."""
        record = self._registry.get(self.run.lane)
        decided(LogRecord.check_writer, record, self.run.run, self.run.epoch)
        write = record.batch_write(self.run.run)
        if write is not None and write.commit_ledger >= 0:
            return None
        self._chain: tuple[CommitLedger, ...] = record.commit_ledgers
        self._options = record.options
        header = CommitHeader() if self._chain else header_before(self._bookkeeper, record, self.run.password)
        earlier: dict[int, None] = {}
        if self._chain:
            ledger_id = self._chain[-1].ledger_id
            with self._bookkeeper.open_ledger(ledger_id, password=self.run.password) as reader:
                if reader.last_add_confirmed < 0:
                    raise LedgerRecoveryError(
                        f"log '{self.run.lane}': commit ledger {ledger_id} was recovered without its header, which had been "
                        "confirmed: bookies lost it. Nothing is written. Run the audits, and bring back the bookies that held it"
                    )
                for entry in reader.read(0, reader.last_add_confirmed):
                    if entry.entry_id == 0:
                        header = decode_header(entry.payload, ledger_id)
                    else:
                        commit = decode_commit(entry.payload, ledger_id, entry.entry_id)
                        header = header.followed_by(commit)
                        if commit.epoch not in record.live_epochs:
                            earlier.update(dict.fromkeys(item.ledger_id for item in commit.ranges))
        self._left_open = list(earlier)
        self._header = header.entering(self.run.epoch)
        return header

    def _larger(self, ledger: LedgerHandle) -> LedgerHandle | None:
        """The next commit ledger, if bookies are back that the open one had to do without."""
        if not self._look.is_due(int(1000 * time.monotonic())):
            return None
        larger = self.run.larger_ledger(self._bookkeeper, self._options, ledger, COMMIT_ROLE)
        self._look.is_over(int(1000 * time.monotonic()))
        return larger

    def _roll(self, commit: Commit, ledger: LedgerHandle | None = None) -> None:
        """Create a commit ledger, or take ``ledger``, with a header that sums up all earlier commits, and ``commit``; then append
        it to the chain."""
        run = self.run
        if ledger is None:
            ledger = run.create_ledger(self._bookkeeper, self._options, COMMIT_ROLE)
        if self._tells_soon:
            ledger.tell_last_add_confirmed_soon()
        self._header = self._header.entering(run.epoch)
        try:
            ledger.append(encode_header(self._header))
            first = self._header.placed(commit)
            ledger.append(encode_commit(first))
            # The rows of a producer have their own times.
            row = -1 if first.stamped and first.ranges else self._header.position.rows
            start = LinkStart(ledger.ledger_id, first.time_ms, row)
            record = self._registry.add_commit_ledger(
                run.lane, ledger.ledger_id, run.run, run.epoch, self._chain, start
            )
        except (LogTakenOverError, LogChangedError, NoSuchLogError):
            # The ledger is useless. No wait: a guaranteed ledger would wait for a bookie that is down.
            with suppress(BookKeeperError):
                ledger.close(wait=False, timeout=CLOSE_SECONDS_MAX)
            # After a failure the ledger is an orphan.
            with suppress(BookKeeperError):
                self._bookkeeper.delete_ledger(ledger.ledger_id)
            raise
        self._chain, self._ledger, self._rolled = record.commit_ledgers, ledger, True
        self._look.opened(ledger, self._options, int(1000 * time.monotonic()))

    def _publish(self) -> None:
        assert self._ledger is not None
        if self._tells_soon:
            return
        try:
            self._ledger.flush_last_add_confirmed()
        except BookKeeperError as error:
            # The commit stands. Readers see it with the next commit, or after a recovery of the ledger.
            log.warning("log %s: readers don't see the newest commit yet: %s", self.run.lane, error)


def _key(commit: Commit) -> tuple[object, ...]:
    return commit.query, commit.batch, commit.open_ledger


_committers: dict[tuple[int, str, LaneId], Committer] = {}
"""(pid, zookeeper, lane) → committer. Spark commits one batch of a query at a time, so there is no lock."""


def current_committer(bookkeeper: BookKeeper, run: LogRun) -> Committer:
    """This process's committer for ``run`` of a streaming query. Closes the process's committer of another run of the same
    log."""
    key = os.getpid(), run.address.zookeeper, run.lane
    held = _committers.get(key)
    if held is None or held.run != run:
        if held is not None:
            held.close()
        held = _committers[key] = Committer(bookkeeper, run)
    return held
