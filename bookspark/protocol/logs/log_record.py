"""A log's record: who may write, and which ledgers make up the log.

Law: a log is the chain of its commit ledgers, in the record's order, and nothing else. Only the transitions below change the
record, each written by compare-and-set:

=======================  ======================================================================================================
``claim(run)``           A run of a streaming query that never claimed before becomes the owner, in the next epoch. The owner
                         stays the owner. A run that claimed and lost never claims again: its query ends, so two runs can't take
                         turns for ever. A query that is new to a log of another query must name that one.
``batch_write_begun``,   A batch write gets the next epoch too, beside the owner, who stays the owner.
``batch_write_ended``
``with_commit_ledger``   A writer (the owner, or a batch write that has begun) appends a commit ledger, if the last one still is
                         the one that it recovered.
``with_compacted``       A writer puts one commit ledger, with the same commits, in the place of several, but never of the last.
``truncated(row)``       Anyone who may write says that the rows before ``row`` are not wanted any more. Ledgers of the chain
                         that hold nothing else leave it, but the last one stays.
``with_dictionary``      Anyone who may write sets, once, what values are compressed with.
``altered``              Anyone who may write changes options; writers take them when they next make a ledger.
``offload_begun``,       Whoever offloads rows to a table says up to which row it is about to, and then that it has
``offload_done``         (``log_offload``).
=======================  ======================================================================================================

Why that is exactly-once (docs/decisions/logs.md): a commit (``commits``) is one entry of the last commit ledger. Whoever is to
write the next commit in another process, or in another epoch, first *recovers* that ledger, which fences it. From then on the
former writer's append fails, and the new writer reads what was written. It looks there for (query id, batch id), and only then
begins a new commit ledger. That ledger is put into the record only once its header and the commit are confirmed.

Why a batch write ends no query: it is a writer with an epoch of its own. Its commit fences the owner's commit ledger, so the
owner's next commit finds itself fenced, recovers, sees that its epoch stands, and goes on in a new ledger. Batch writes queue by
compare-and-set: each one that loses has another's success before it, recovers that, and tries again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.log_offload import Offload, OffloadError
from bookspark.protocol.logs.log_options import ALTERABLE, LogOptions

CLAIMS_MAX = 1000
"""How many runs the record remembers. An older run could claim again: two runs would fight for the log, and lose no entry."""
BATCH_WRITE_MS_MAX = 24 * 3600 * 1000
"""A batch write that takes longer is taken for dead when another one begins, so that what it left can be collected. If it lives,
its commit is refused, and it has written nothing."""

LOG_LABEL, EPOCH_LABEL, ROLE_LABEL, RUN_LABEL = "bookspark.log", "bookspark.epoch", "bookspark.role", "bookspark.run"
ENCODING_LABEL = "bookspark.encoding"
COMMIT_ROLE, DATA_ROLE = "commit", "data"


class LogTakenOverError(BookKeeperError):
    """Another run owns the log now. This run commits nothing more."""


class AnotherQueryError(BookKeeperError):
    """The lane belongs to another streaming query; this query's Spark checkpoint is new to the log. Nothing was written."""


class NoSuchLogError(BookKeeperError):
    """No log of this name exists."""


class LogExistsError(BookKeeperError):
    """A log of this name exists."""


class LogChangedError(BookKeeperError):
    """Another process of the run added its commit ledger first. Recover that one."""


class LaneEndedError(LogChangedError):
    """The lane has ended. Its writer gets another lane."""

    def __init__(self, lane: str) -> None:
        super().__init__(f"lane {lane!r} has ended")


class CommitLedger(NamedTuple):
    """One commit ledger of the chain, and the epoch whose owner appended it."""

    ledger_id: int
    epoch: int


class LinkStart(NamedTuple):
    """Where the commits of a commit ledger begin, which never changes. With it a time is found in a chain unopened."""

    ledger_id: int
    time_ms: int
    """The time of its first commit."""
    row: int = -1
    """The rows of the lane before its first commit, if none of that commit's is of an earlier time than ``time_ms``. −1: its rows
    have times of their own."""


class BatchWrite(NamedTuple):
    """A batch write that is under way."""

    run: str
    epoch: int
    begun_ms: int
    """When it began, in ms since 1970, by its own clock."""
    commit_ledger: int = -1
    """The commit ledger that has its commit; −1: it has not committed yet."""


class Lane(NamedTuple):
    """A lane beside lane 0, in the index of the log's record (``lanes``)."""

    number: int
    writers: tuple[str, ...]
    """Who writes it: the last one, which followed those before it."""
    checkpoint: str = ""
    """Where the last one's Spark checkpoint is; empty if it has none, or that is not known."""
    after: int = 0
    """The lane that the writer had before, which ended; 0: none."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One version of ``/bookspark/logs/<name>``: of a log, which is its lane 0 as well, or of another lane."""

    name: str
    options: LogOptions = field(default_factory=LogOptions)
    master_key: bytes = field(default=b"", repr=False)
    """The hash of the password. Every ledger of the log has the same."""
    epoch: int = 0
    """The owner's epoch; 0: there never was an owner."""
    owner: str = ""
    claims: tuple[str, ...] = ()
    """Runs that claimed the log, and batch writes that ended, in this order."""
    commit_ledgers: tuple[CommitLedger, ...] = ()
    ctime_ms: int = 0
    """When the log was made. It tells the log from a later one of the same name."""
    first_position: int = 0
    """The rows before it are truncated: they may be gone."""
    dictionary: bytes = b""
    """The dictionary that values are compressed with. Empty until it is trained, if the options ask for one. Never replaced."""
    offload: Offload | None = None
    """Which rows are in a table as well; None if none are."""
    owner_query: str = ""
    """The owner's streaming query. Empty: an earlier version wrote the record, or no query has written to the log."""
    batch_writes: tuple[BatchWrite, ...] = ()
    """Batch writes that are under way."""
    batch_epoch: int = 0
    """The highest epoch of a batch write."""
    checkpoint: str = ""
    """Where the Spark checkpoint of the owner's query is; empty if that is not known."""
    lanes: tuple[Lane, ...] = ()
    """The log's lanes beside this one, by number."""
    lanes_made: int = 0
    """The highest number that was given to a lane."""
    ended_lanes: tuple[int, ...] = ()
    """The lanes that ended last, in this order (``ended_lanes``). Earlier ones are in blocks."""
    ended_count: int = 0
    """How many lanes have ended."""
    ended_rows: int | None = None
    """Of a lane that has ended: how many rows it has for ever. None: it has not."""
    ended_ms: int = 0
    """Of a lane that has ended: the time of its last row."""
    after: int = 0
    """Of a lane that has ended: the lane that its writer had before; 0: none."""
    link_starts: tuple[LinkStart, ...] = ()
    """Where commit ledgers of the chain begin, in its order. An earlier version put those into the chain that are not here."""

    @property
    def newest_epoch(self) -> int:
        """The highest epoch that was given out."""
        return max(self.epoch, self.batch_epoch)

    @property
    def recovered(self) -> bool:
        """Has a writer recovered the chain since the owner claimed it? Until then a commit of an earlier owner may still
        appear."""
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
        """The lowest epoch whose writer may still commit; of a log without writers the next one, 0 if it never had one."""
        return min(self.live_epochs, default=self.newest_epoch + 1 if self.newest_epoch else 0)

    def claim(self, run: str, query: str = "", follows: str = "", last_query: str = "") -> LogRecord:
        """The record with ``run`` as its owner.

        ``query``: the streaming query that the run is of. ``follows``: the query whose log it may take over. ``last_query``: the
        query that committed last, for a record that does not name it. Raises AnotherQueryError if the log is of a third query,
        LogTakenOverError if ``run`` owned the log and has lost it, or ValueError if ``run`` is empty.
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

    def batch_write_begun(self, run: str, now_ms: int) -> LogRecord:
        """The record with the batch write ``run`` under way. Done twice it changes nothing.

        Raises LogTakenOverError if it has ended, or ValueError if ``run`` is empty.
        """
        if not run:
            raise ValueError(f"log {self.name!r}: a batch write without an id can't write")
        if self.batch_write(run) is not None:
            return self
        if run in self.claims:
            raise self._taken_over(run)
        epoch = self.newest_epoch + 1
        last = self.commit_ledgers[-1].ledger_id if self.commit_ledgers else -1
        kept = [
            write
            for write in self.batch_writes
            # The last ledger of the chain may be open: readers need not see the commit in it yet.
            if now_ms - write.begun_ms < BATCH_WRITE_MS_MAX or write.commit_ledger == last != -1
        ]
        return replace(self, batch_writes=(*kept, BatchWrite(run, epoch, now_ms)), batch_epoch=epoch)

    def batch_write_ended(self, run: str, closed: bool) -> LogRecord:
        """The record without the batch write ``run``, which can never begin again. Done twice it changes nothing.

        ``closed``: whether its commit ledger is closed, if it has one. If not, readers need not see its commit yet, and would
        take its data ledgers for orphans. So it stays under way.
        """
        write = self.batch_write(run)
        if write is None or (write.commit_ledger >= 0 and not closed):
            return self
        others = tuple(write for write in self.batch_writes if write.run != run)
        return replace(self, batch_writes=others, claims=(*self.claims, run)[-CLAIMS_MAX:])

    def batch_write(self, run: str) -> BatchWrite | None:
        """The batch write ``run``; None if it is not under way."""
        return next((write for write in self.batch_writes if write.run == run), None)

    def altered(self, **options: object) -> LogRecord:
        """The record with these options, of ``ALTERABLE``, changed. Raises ConfigurationError if they contradict the others."""
        assert set(options) <= set(ALTERABLE), options
        return replace(self, options=replace(self.options, **options))  # type: ignore[arg-type]

    def check_writer(self, run: str, epoch: int) -> None:
        """Raise LogTakenOverError unless ``run`` may commit in ``epoch``."""
        if self.ended_rows is not None:
            raise LogTakenOverError(
                f"lane {self.name!r} was ended, and run {run} writes it no more. What it has not committed is not in the log. "
                "Start its query again from its checkpoint, or make the producer anew: it goes on in a lane of its own"
            )
        write = self.batch_write(run)
        if (self.owner, self.epoch) == (run, epoch) or (write is not None and write.epoch == epoch):
            return
        raise self._taken_over(run)

    def ended(self, epoch: int) -> bool:
        """Is the epoch over, and is all that was committed in it there to be read?"""
        return self.recovered and epoch <= self.newest_epoch and epoch not in self.live_epochs

    def with_commit_ledger(
        self, ledger_id: int, run: str, epoch: int, recovered: tuple[CommitLedger, ...], start: LinkStart | None = None
    ) -> LogRecord:
        """The record with one more commit ledger, for the writer that ``recovered`` the last of that chain. ``start``: where its
        commits begin.

        Raises LogTakenOverError if ``run`` is no writer in ``epoch``, or LogChangedError if the last one is another. Done twice
        it changes nothing.
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
        """The record with one commit ledger in the place of neighbours, which are closed and whose commits it has.

        Raises LogTakenOverError if ``run`` is no writer in ``epoch``, LogChangedError if they are not in the chain like that, or
        ValueError if there are none. Done twice it changes nothing.
        """
        if not replaced:
            raise ValueError(f"log {self.name!r}: ledger {by} was to take the place of no commit ledgers")
        self.check_writer(run, epoch)
        # Epochs of batch writes and of the owner mix. The highest says that no commit in it is of a later epoch.
        link = CommitLedger(by, max(link.epoch for link in replaced))
        if link in self.commit_ledgers:
            return self
        at = self.commit_ledgers.index(replaced[0]) if replaced[0] in self.commit_ledgers else 0
        before, after = self.commit_ledgers[:at], self.commit_ledgers[at + len(replaced) :]
        if not after or self.commit_ledgers[at : at + len(replaced)] != replaced:
            raise LogChangedError(
                f"log {self.name!r}: commit ledgers changed to {[c.ledger_id for c in self.commit_ledgers]}"
            )
        # It has the commits of those that it replaces, so it begins as the first of them.
        starts = [s._replace(ledger_id=by) if s.ledger_id == replaced[0].ledger_id else s for s in self.link_starts]
        return self._with_chain((*before, link, *after), starts)

    def truncated(self, row: int, ends: Mapping[CommitLedger, int]) -> LogRecord:
        """The record without the rows before ``row``. ``ends``: the row after the last one of each closed ledger of the chain.

        Never undoes an earlier truncation, and never drops the last ledger, which sums up all before it.
        """
        first = max(row, self.first_position)
        dropped = 0
        while dropped < len(self.commit_ledgers) - 1 and ends.get(self.commit_ledgers[dropped], first + 1) <= first:
            dropped += 1
        return replace(self, first_position=first)._with_chain(self.commit_ledgers[dropped:], self.link_starts)

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

    def _with_chain(self, chain: tuple[CommitLedger, ...], starts: Iterable[LinkStart]) -> LogRecord:
        """The record with these commit ledgers, and no more ``starts`` than theirs."""
        ledgers = {link.ledger_id for link in chain}
        kept = tuple(start for start in starts if start.ledger_id in ledgers)
        return replace(self, commit_ledgers=chain, link_starts=kept)

    def _taken_over(self, run: str) -> LogTakenOverError:
        owner = (
            f"another run took over: run {self.owner} owns it in epoch {self.epoch}, "
            if self.owner
            else "nobody owns it, "
        )
        return LogTakenOverError(
            f"log {self.name!r}: {owner}run {run} does not. Who writes a lane is one at a time. Of two runs of a query stop one, "
            "then start the other again from its checkpoint; of two producers of one name the later one goes on. "
            f"If {run} is a batch write, it ended, took more than "
            f"{BATCH_WRITE_MS_MAX // 3_600_000} hours, or the log was deleted and made anew: if its id is not in the table "
            "log_commits, nothing was written, and it can be run again"
        )

    def another_query(self, query: str, before: str) -> AnotherQueryError:
        """The error of a query that is not the one that writes here."""
        return AnotherQueryError(
            f"log {self.name!r} is written by query {before}, and query {query or '(without an id)'} is new to it: nothing of it "
            "is written. If it is the same query, its Spark checkpoint was deleted or is another query's: give it its own "
            "again, else its rows would be in the log twice. If it is another query, give it a checkpointLocation that no "
            "query had, and it gets a lane of its own beside this one. If it may take this one over, from a source that starts "
            f"where its rows end, stop the other one and set the sink's option follows to {before!r}"
        )
