"""A log's record: its permitted writers, and the ledgers that make up the log.

Law: a log is the chain of its commit ledgers, in the record's order, and nothing else. Only the transitions below change the
record, each written by compare-and-set:

=======================  ======================================================================================================
``claim(run)``           A new run of a streaming query becomes the owner, in the next epoch. The owner stays the owner. A run
                         that claimed and lost never claims again: its query ends, so two runs can't take turns for ever. A
                         query that is new to a log of another query must name that one.
``batch_write_begun``,   A batch write gets the next epoch too, beside the owner, who stays the owner.
``batch_write_ended``
``with_commit_ledger``   A writer (the owner, or a begun batch write) appends a commit ledger, if the last one is still the one
                         that it recovered.
``with_compacted``       A writer puts one commit ledger, with the same commits, in the place of several, but never of the last.
``truncated(row)``       A permitted writer drops the rows before ``row``. Ledgers of the chain without later rows leave it, but
                         the last one stays.
``with_dictionary``      A permitted writer sets, once, the dictionary for values.
``altered``              A permitted writer changes options; writers use them for their next ledger.
``offload_begun``,       An offloading process records the end row before it writes to the table, the table's version
``offload_done``,        afterwards, and the end row of deletable ledgers before it deletes any (``log_offload``).
``offload_deleting``
``offload_taken_back``   An operator ends the offload while every row is in a ledger.
=======================  ======================================================================================================

Exactly-once (docs/decisions/logs.md): a commit (``commits``) is one entry of the last commit ledger. A writer in another process,
or in another epoch, first *recovers* that ledger, which fences the former writer. It looks up (query id, batch id) there, and
only then begins a new commit ledger, which enters the record only once its header and the commit are confirmed.

A batch write has an epoch of its own, so it ends no query. Its commit fences the owner's commit ledger; the owner recovers, sees
that its epoch stands, and goes on in a new ledger. Batch writes queue by compare-and-set: each loser has another's success before
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bookspark.errors import BookKeeperError, DataLossError
from bookspark.protocol.logs.log_offload import Offload, OffloadError
from bookspark.protocol.logs.log_options import ALTERABLE, LogOptions

CLAIMS_MAX = 1000
"""Most runs in the record. An older run could claim again: two runs would fight for the log, and lose no entry."""
BATCH_WRITE_MS_MAX = 24 * 3600 * 1000
"""A batch write that takes longer counts as dead when another begins, so that its ledgers can be collected. If it lives, its
commit is refused, and it has written nothing."""

LOG_LABEL, LOG_ID_LABEL = "bookspark.log", "bookspark.log_id"
EPOCH_LABEL, ROLE_LABEL, RUN_LABEL = "bookspark.epoch", "bookspark.role", "bookspark.run"
ENCODING_LABEL = "bookspark.encoding"
NEW_BYTES_MAX, LANE_BYTES_MAX = 400_000, 700_000
"""Largest record of a new log, and of a log with one more lane in its index. Later changes (claims, commit ledgers, batch writes,
ended lanes) need the rest of a record's room in the metadata store."""
COMMIT_ROLE, DATA_ROLE = "commit", "data"
SERVICE = "service:"
"""Prefix of a producer's name in place of a query's."""
ENDER = "ender-"
"""Prefix of the id of a run that owns a lane to end it."""


class LogTakenOverError(BookKeeperError):
    """Another run owns the lane now, or it has ended. This run commits nothing more."""


class AnotherQueryError(BookKeeperError):
    """The lane belongs to another streaming query. Nothing was written."""


class NoSuchLogError(BookKeeperError):
    """No log of this name or id exists."""


class LogRecreatedError(NoSuchLogError, DataLossError):
    """The log was deleted, and another log has its name."""


class LogExistsError(BookKeeperError):
    """A log of this name exists."""


class LogChangedError(BookKeeperError):
    """Another process of the run added its commit ledger first."""


class LaneEndedError(LogChangedError):
    """The lane has ended. Its writer gets another lane."""

    def __init__(self, lane: str) -> None:
        super().__init__(f"lane {lane!r} has ended")


class CommitLedger(NamedTuple):
    """One commit ledger of the chain, and the epoch of the writer that appended it."""

    ledger_id: int
    epoch: int


class LinkStart(NamedTuple):
    """The first commit of a commit ledger. It never changes, and locates a time in a chain without opening ledgers."""

    ledger_id: int
    time_ms: int
    row: int = -1
    """The rows of the lane before its first commit, if none of that commit is earlier than ``time_ms``. −1: its rows have their
    own times."""


class BatchWrite(NamedTuple):
    run: str
    epoch: int
    begun_ms: int = 0
    """A time at which the batch write was under way, by the metadata store's clock, in ms since 1970; 0: not known yet."""
    commit_ledger: int = -1
    """Ledger with the batch write's commit; −1: not committed yet."""


class Lane(NamedTuple):
    """A lane beside lane 0, in the index of the log's record (``lanes``)."""

    number: int
    writers: tuple[str, ...]
    """Writers of the lane; the last is current, and followed the earlier ones."""
    checkpoint: str = ""
    """The place of the last writer's Spark checkpoint; empty if unknown or none."""
    after: int = 0
    """The writer's previous, ended lane; 0: none."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One version of a log's record, which is that of its lane 0 as well, or of another lane's record."""

    name: str
    """The name of the log or lane: ``orders``, ``orders@3``."""
    options: LogOptions = field(default_factory=LogOptions)
    master_key: bytes = field(default=b"", repr=False)
    """The hash of the password, for every ledger of the log."""
    epoch: int = 0
    """0: there never was an owner."""
    owner: str = ""
    claims: tuple[str, ...] = ()
    """Runs that claimed the log, and ended batch writes, in this order."""
    commit_ledgers: tuple[CommitLedger, ...] = ()
    ctime_ms: int = 0
    """Creation time of the log, by its creator's clock, in ms since 1970."""
    first_position: int = 0
    """Earlier rows are truncated: they may be gone."""
    dictionary: bytes = b""
    """For compressed values. Empty until it is trained, if the options ask for one. Never replaced."""
    offload: Offload | None = None
    """Rows that are in a table as well."""
    owner_query: str = ""
    """The owner's streaming query. Empty: written by an earlier version, or without a query so far."""
    batch_writes: tuple[BatchWrite, ...] = ()
    batch_epoch: int = 0
    checkpoint: str = ""
    """The place of that query's Spark checkpoint; empty if unknown."""
    lanes: tuple[Lane, ...] = ()
    """The log's lanes beside this one, by number."""
    lanes_made: int = 0
    """The highest number given to a lane."""
    ended_lanes: tuple[int, ...] = ()
    """The lanes that ended last, in this order (``ended_lanes``). Earlier ones are in blocks."""
    ended_count: int = 0
    ended_rows: int | None = None
    """Fixed number of rows of an ended lane; None while it has not ended."""
    ended_ms: int = 0
    """Time of an ended lane's last row."""
    after: int = 0
    """Previous lane of an ended lane's writer; 0: none."""
    link_starts: tuple[LinkStart, ...] = ()
    """In the chain's order."""
    log_id: int = 0
    """The log's id: given to one log, and never again."""
    changed_ms: int = field(default=0, compare=False)
    """Time of the record's last change, by the metadata store's clock, in ms since 1970. It is not part of the record."""

    @property
    def newest_epoch(self) -> int:
        return max(self.epoch, self.batch_epoch)

    @property
    def recovered(self) -> bool:
        """Has a writer recovered the chain since the owner claimed it? Until then an earlier owner's commit may still appear."""
        return (
            self.epoch == 0
            or self.ended_rows is not None
            or any(link.epoch >= self.epoch for link in self.commit_ledgers)
        )

    @property
    def live_epochs(self) -> frozenset[int]:
        """The epochs whose writers may still commit."""
        if self.ended_rows is not None:
            return frozenset()
        owners = {self.epoch} if self.epoch else set()
        return frozenset(owners.union(write.epoch for write in self.batch_writes))

    @property
    def oldest_live_epoch(self) -> int:
        """The lowest epoch whose writer may still commit; without writers the next one, 0 if there never was one."""
        return min(self.live_epochs, default=self.newest_epoch + 1 if self.newest_epoch else 0)

    def claim(self, run: str, query: str = "", follows: str = "", last_query: str = "") -> LogRecord:
        """The record with ``run`` as its owner.

        ``query``: the run's streaming query. ``follows``: the query whose log it may take over. ``last_query``: the query with
        the last commit, for a record that does not name it. Raises AnotherQueryError if the log belongs to a third query,
        LogTakenOverError if ``run`` owned the log and has lost it, LaneEndedError if the lane has ended, or ValueError if ``run``
        is empty.
        """
        if not run:
            raise ValueError(f"log {self.name!r}: a run without an id can't own a log")
        if self.ended_rows is not None:
            raise LaneEndedError(self.name)
        if self.owner == run:
            return self
        if run in self.claims:
            raise self._taken_over(run)
        before = self.owner_query or last_query
        if before and before not in (query, follows):
            raise self.another_query(query, before)
        claims = (*self.claims, run)[-CLAIMS_MAX:]
        return replace(self, epoch=self.newest_epoch + 1, owner=run, claims=claims, owner_query=query)

    def batch_write_begun(self, run: str) -> LogRecord:
        """The record with the batch write ``run`` under way. Unchanged if repeated.

        A write that is under way for BATCH_WRITE_MS_MAX has ended. Raises LogTakenOverError if ``run`` has, or ValueError if it
        is empty.
        """
        if not run:
            raise ValueError(f"log {self.name!r}: a batch write without an id can't write")
        if self.batch_write(run) is not None:
            return self
        if run in self.claims:
            raise self._taken_over(run)
        if self.ended_rows is not None:
            raise LaneEndedError(self.name)
        epoch, now_ms = self.newest_epoch + 1, self.changed_ms
        last = self.commit_ledgers[-1].ledger_id if self.commit_ledgers else -1
        writes = [write if write.begun_ms else write._replace(begun_ms=now_ms) for write in self.batch_writes]
        # The last ledger of the chain may be open: readers may not see the commit in it yet.
        kept = [w for w in writes if now_ms - w.begun_ms < BATCH_WRITE_MS_MAX or w.commit_ledger == last != -1]
        claims = (*self.claims, *(write.run for write in writes if write not in kept))[-CLAIMS_MAX:]
        return replace(self, batch_writes=(*kept, BatchWrite(run, epoch)), batch_epoch=epoch, claims=claims)

    def batch_write_ended(self, run: str, closed: bool) -> LogRecord:
        """The record without the batch write ``run``, which can never begin again. Unchanged if repeated.

        ``closed``: is its commit ledger, if any, closed? If not, it stays under way: readers may not see its commit yet, and
        would take its data ledgers for orphans.
        """
        write = self.batch_write(run)
        if write is None or (write.commit_ledger >= 0 and not closed):
            return self
        others = tuple(write for write in self.batch_writes if write.run != run)
        return replace(self, batch_writes=others, claims=(*self.claims, run)[-CLAIMS_MAX:])

    def batch_write(self, run: str) -> BatchWrite | None:
        """The batch write of ``run``; None if it is not under way."""
        return next((write for write in self.batch_writes if write.run == run), None)

    def altered(self, **options: object) -> LogRecord:
        """Raises ConfigurationError if ``options``, all of ``ALTERABLE``, contradict the others."""
        assert set(options) <= set(ALTERABLE), options
        return replace(self, options=replace(self.options, **options))  # type: ignore[arg-type]

    def check_writer(self, run: str, epoch: int) -> None:
        """Raise LogTakenOverError unless ``run`` may commit in ``epoch``."""
        write = self.batch_write(run)
        if self.ended_rows is None and (
            (self.owner, self.epoch) == (run, epoch) or (write is not None and write.epoch == epoch)
        ):
            return
        raise self._taken_over(run)

    def ended(self, epoch: int) -> bool:
        """Is the epoch over, with all its commits readable?"""
        return self.recovered and epoch <= self.newest_epoch and epoch not in self.live_epochs

    def with_commit_ledger(
        self, ledger_id: int, run: str, epoch: int, recovered: tuple[CommitLedger, ...], start: LinkStart | None = None
    ) -> LogRecord:
        """The record with one more commit ledger, for the writer that ``recovered`` the last of that chain. Unchanged if
        repeated.

        Raises LogTakenOverError if ``run`` is no writer in ``epoch``, or LogChangedError if the last one is another.
        """
        self.check_writer(run, epoch)
        link, write = CommitLedger(ledger_id, epoch), self.batch_write(run)
        if self.commit_ledgers[-1:] == (link,) or (write is not None and write.commit_ledger == ledger_id):
            return self
        if self.commit_ledgers[-1:] != recovered[-1:]:
            raise LogChangedError(
                f"log {self.name!r}: commit ledgers changed to {[c.ledger_id for c in self.commit_ledgers]}"
            )
        writes = tuple(w._replace(commit_ledger=ledger_id) if w.run == run else w for w in self.batch_writes)
        starts = (*self.link_starts, *(() if start is None else (start,)))
        return replace(self, commit_ledgers=(*self.commit_ledgers, link), batch_writes=writes, link_starts=starts)

    def with_compacted(self, replaced: tuple[CommitLedger, ...], by: int, run: str, epoch: int) -> LogRecord:
        """The record with commit ledger ``by`` in the place of closed neighbours, whose commits it has. Unchanged if repeated.

        Raises LogTakenOverError if ``run`` is no writer in ``epoch``, LogChangedError if the chain has no such neighbours before
        its last ledger, or ValueError if there are none.
        """
        if not replaced:
            raise ValueError(f"log {self.name!r}: ledger {by} was to take the place of no commit ledgers")
        self.check_writer(run, epoch)
        # Epochs of batch writes and of the owner mix. The highest is an upper bound for all its commits.
        link = CommitLedger(by, max(link.epoch for link in replaced))
        if link in self.commit_ledgers:
            return self
        at = self.commit_ledgers.index(replaced[0]) if replaced[0] in self.commit_ledgers else 0
        before, after = self.commit_ledgers[:at], self.commit_ledgers[at + len(replaced) :]
        if not after or self.commit_ledgers[at : at + len(replaced)] != replaced:
            raise LogChangedError(
                f"log {self.name!r}: commit ledgers changed to {[c.ledger_id for c in self.commit_ledgers]}"
            )
        # The new ledger has the commits of the replaced ledgers, so it has the start of the first.
        starts = [s._replace(ledger_id=by) if s.ledger_id == replaced[0].ledger_id else s for s in self.link_starts]
        return self._with_chain((*before, link, *after), starts)

    def truncated(self, row: int, ends: Mapping[CommitLedger, int]) -> LogRecord:
        """The record without the rows before ``row``. ``ends``: the end row of each closed ledger of the chain.

        Never undoes an earlier truncation, and never drops the last ledger, which sums up all before it.
        """
        first = max(row, self.first_position)
        dropped = 0
        while dropped < len(self.commit_ledgers) - 1 and ends.get(self.commit_ledgers[dropped], first + 1) <= first:
            dropped += 1
        return replace(self, first_position=first)._with_chain(self.commit_ledgers[dropped:], self.link_starts)

    def with_dictionary(self, dictionary: bytes) -> LogRecord:
        return self if self.dictionary else replace(self, dictionary=dictionary)

    def offload_begun(self, table: str, end: int) -> LogRecord:
        """Unchanged if another offload is pending.

        Raises OffloadError if the log is offloaded to another table.
        """
        return replace(self, offload=(self.offload or Offload(table)).begun(table, end))

    def offload_done(self, table: str, end: int, version: int) -> LogRecord:
        """The rows before ``end`` are in ``version`` of the table.

        Raises OffloadError if no offload to this table up to that row was begun.
        """
        return replace(self, offload=self._offloaded().done(table, end, version))

    def offload_deleting(self, table: str, end: int) -> LogRecord:
        """Ledgers of rows before ``end`` are going to be deleted. Raises OffloadError if the offload was taken back, also if
        another one has begun since, or if some of the rows are not in the table."""
        return replace(self, offload=self._offloaded().deleting(table, end))

    def offload_taken_back(self) -> LogRecord:
        """The record without an offload: all rows are in ledgers. Unchanged if repeated. Raises OffloadError if ledgers were
        deleted whose rows the table has."""
        if self.offload is not None and self.offload.deleted > self.first_position:
            raise OffloadError(
                f"the offload of log {self.name!r} can't be taken back: ledgers of rows {self.first_position} to "
                f"{self.offload.deleted - 1} may be deleted, and {self.offload.table} may have the only copy. If nobody needs "
                f"these rows, remove them first: `bookspark log truncate {self.name} {self.offload.deleted}`"
            )
        return replace(self, offload=None)

    def _offloaded(self) -> Offload:
        if self.offload is None:
            raise OffloadError(f"log {self.name!r} was never offloaded, or its offload was taken back")
        return self.offload

    def _with_chain(self, chain: tuple[CommitLedger, ...], starts: Iterable[LinkStart]) -> LogRecord:
        ledgers = {link.ledger_id for link in chain}
        kept = tuple(start for start in starts if start.ledger_id in ledgers)
        return replace(self, commit_ledgers=chain, link_starts=kept)

    def _taken_over(self, run: str) -> LogTakenOverError:
        if self.ended_rows is not None or self.owner.startswith(ENDER):
            return LogTakenOverError(
                f"lane {self.name!r} was ended (bookspark log end), and run {run} writes it no more. Rows that it has not "
                "committed, or a producer's that were not acknowledged, are not in the log. Start its query again from its "
                "checkpoint, or create the producer again: it goes on in a new lane"
            )
        if self.owner_query.startswith(SERVICE):
            return LogTakenOverError(
                f"log {self.name!r}: another producer of this name was made: run {self.owner} of "
                f"{self.owner_query.removeprefix(SERVICE)!r} owns the lane in epoch {self.epoch}, run {run} does not. Of two "
                "producers of one name the later one goes on: give each process a name of its own"
            )
        owner = (
            f"another run took over: run {self.owner} owns it in epoch {self.epoch}, "
            if self.owner
            else "nobody owns it, "
        )
        return LogTakenOverError(
            f"log {self.name!r}: {owner}run {run} does not. A lane has one writer at a time. Of two runs of a query stop one, "
            "then start the other again from its checkpoint. "
            f"If {run} is a batch write, it ended, or took more than {BATCH_WRITE_MS_MAX // 3_600_000} hours: if its id is not "
            "in the table log_commits, nothing was written, and it can be run again"
        )

    def another_query(self, query: str, before: str) -> AnotherQueryError:
        return AnotherQueryError(
            f"log {self.name!r} is written by query {before}, and query {query or '(without an id)'} is new to it: nothing of it "
            "is written. If it is the same query, its Spark checkpoint was deleted or is another query's: give it its own "
            "again, else its rows would be in the log twice. If it is another query, give it a checkpointLocation that no "
            "query had, and it gets a lane of its own beside this one. If it may take this one over, from a source that starts "
            f"where its rows end, stop the other one and set the sink's option follows to {before!r}"
        )
