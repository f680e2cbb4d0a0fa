"""One lane's record through any order of changes.

Law: each change is what a list of what happened says, or it is refused and nothing is changed. Done twice it changes nothing.

* An epoch is given out once. Who may commit is the owner in its epoch, and a batch write that is under way in its own.
* A run that lost the lane, and a batch write that ended, never have it again. A batch write is forgotten only after a day, and
  not while its commit is in the chain's last ledger.
* The chain grows behind the ledger that was recovered. Compaction puts one ledger in the place of neighbours, never of the last.
  Truncation takes ledgers from the front of which all rows go, never the last, and is never taken back.
* An epoch is over if nobody may commit in it, and the chain was recovered since the owner claimed it; of a lane that has ended
  each is.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.ended_lanes import ending, lane_ended
from bookspark.protocol.logs.log_record import BATCH_WRITE_MS_MAX, CommitLedger, LinkStart, LogRecord

_STEPS_MAX = 25
_RUNS = [f"run{number}" for number in range(4)]
_WRITES = [f"write{number}" for number in range(4)]
_QUERIES = ["query0", "query0", "query1", ""]


class _Write(NamedTuple):
    epoch: int
    begun_ms: int
    commit_ledger: int


def live(random: Random) -> None:
    lane = _Lane(random)
    for _ in range(random.randrange(1, _STEPS_MAX)):
        random.choice(lane.moves)()
        lane.check()


class _Lane:
    def __init__(self, random: Random) -> None:
        self.random, self.record = random, LogRecord("orders@1", ctime_ms=1)
        self.owner, self.epoch, self.query = "", 0, ""
        self.highest, self.made, self.now_ms = 0, 0, 0
        self.gone: set[str] = set()
        """Runs that claimed it, and batch writes that ended."""
        self.writes: dict[str, _Write] = {}
        self.chain: list[CommitLedger] = []
        self.chains: list[tuple[CommitLedger, ...]] = [()]
        """All that it ever was."""
        self.starts: dict[int, int] = {}
        self.row_ends: dict[int, int] = {}
        """Of each commit ledger, the row behind its last one."""
        self.first, self.rows = 0, 0
        self.ended: int | None = None
        # (The lane of batch writes never ends.)
        some = [self.begin, self.begin, self.end_write] if random.random() < 0.6 else [self.end]
        self.moves = [self.claim, self.claim, self.commit, self.commit, self.commit, self.compact, self.truncate, *some]

    def changed(self, change: Callable[[LogRecord], LogRecord], may: bool, what: str) -> None:
        try:
            after = change(self.record)
        except (BookKeeperError, ValueError):
            assert not may, f"{what} is refused"
            return
        assert may, f"{what} is not refused"
        assert change(after) == after, f"{what} changes something if it is done twice"
        self.record = after

    def may_commit(self, run: str, epoch: int) -> bool:
        write = self.writes.get(run)
        is_writer = (run, epoch) == (self.owner, self.epoch) or (write is not None and write.epoch == epoch)
        return is_writer and self.ended is None

    def writer(self) -> tuple[str, int]:
        """One that may commit, most often; one that never did, or its epoch of before."""
        known = [(self.owner, self.epoch), *((run, write.epoch) for run, write in self.writes.items())]
        if self.random.random() < 0.8:
            return self.random.choice(known)
        return self.random.choice([*_RUNS, *_WRITES]), self.random.randint(0, self.highest + 1)

    # -- what happens

    def claim(self) -> None:
        run, query, follows = self.random.choice(_RUNS), self.random.choice(_QUERIES), self.random.choice(_QUERIES)
        last = self.random.choice(["", "query1"])
        before = self.query or last
        is_owner = run == self.owner
        fits = is_owner or (run not in self.gone and (not before or before in (query, follows)))
        self.changed(lambda record: record.claim(run, query, follows, last), fits and self.ended is None, "a claim")
        if fits and self.ended is None and not is_owner:
            self._owned(run)
            self.query = query

    def _owned(self, run: str) -> None:
        self.highest += 1
        self.owner, self.epoch = run, self.highest
        self.gone.add(run)

    def begin(self) -> None:
        run = self.random.choice([*_WRITES, *_WRITES, ""])
        self.now_ms += self.random.choice([0, 1, BATCH_WRITE_MS_MAX // 2, BATCH_WRITE_MS_MAX - 1, BATCH_WRITE_MS_MAX])
        now_ms, known = self.now_ms, run in self.writes
        may = bool(run) and (known or run not in self.gone)
        self.changed(lambda record: record.batch_write_begun(run, now_ms), may, "the begin of a batch write")
        if may and not known:
            last = self.chain[-1].ledger_id if self.chain else None
            dead = [
                run
                for run, write in self.writes.items()
                if now_ms - write.begun_ms > BATCH_WRITE_MS_MAX - 1 and (last is None or write.commit_ledger != last)
            ]
            for other in dead:
                del self.writes[other]
            self.highest += 1
            self.writes[run] = _Write(self.highest, now_ms, -1)

    def end_write(self) -> None:
        run, closed = self.random.choice(_WRITES), self.random.random() < 0.5
        self.changed(lambda record: record.batch_write_ended(run, closed), True, "the end of a batch write")
        write = self.writes.get(run)
        if write is not None and (closed or write.commit_ledger < 0):
            del self.writes[run]
            self.gone.add(run)

    def commit(self) -> None:
        run, epoch = self.writer()
        recovered = tuple(self.chain) if self.random.random() < 0.8 else self.random.choice(self.chains)
        again = self.chain and self.random.random() < 0.2
        ledger_id = self.random.choice(self.chain).ledger_id if again else self.made
        start = self.random.choice([None, LinkStart(ledger_id, 5, self.rows)])
        if not self.may_commit(run, epoch):
            self.changed(
                lambda record: record.with_commit_ledger(ledger_id, run, epoch, recovered, start), False, "a commit"
            )
            return
        write, link = self.writes.get(run), CommitLedger(ledger_id, epoch)
        is_there = self.chain[-1:] == [link] or (write is not None and write.commit_ledger == ledger_id)
        if again and not is_there:
            return
        fits = is_there or list(recovered[-1:]) == self.chain[-1:]
        self.changed(
            lambda record: record.with_commit_ledger(ledger_id, run, epoch, recovered, start), fits, "a commit"
        )
        if fits and not is_there:
            self.made += 1
            self.chain.append(link)
            if start is not None:
                self.starts[ledger_id] = start.row
            if write is not None:
                self.writes[run] = write._replace(commit_ledger=ledger_id)
            self.rows += self.random.randrange(3)
            self.row_ends[ledger_id] = self.rows
        self.chains.append(tuple(self.chain))

    def compact(self) -> None:
        run, epoch = self.writer()
        at = self.random.randrange(len(self.chain) + 1)
        some = self.chain[at : at + self.random.randrange(1, 4)]
        if self.random.random() < 0.2:
            some = list(self.random.choice(self.chains))[at : at + self.random.randrange(4)]
        if self.random.random() < 0.1:
            some = some[::-1]
        by = self.made
        place = next((n for n, link in enumerate(self.chain) if link == some[0]), 0) if some else 0
        there = self.chain[place : place + len(some)] == some and place + len(some) < len(self.chain)
        may = bool(some) and self.may_commit(run, epoch) and there
        self.changed(lambda record: record.with_compacted(tuple(some), by, run, epoch), may, "a compaction")
        if may:
            self.made += 1
            self.chain[place : place + len(some)] = [CommitLedger(by, max(link.epoch for link in some))]
            self.row_ends[by] = self.row_ends[some[-1].ledger_id]
            if some[0].ledger_id in self.starts:
                self.starts[by] = self.starts[some[0].ledger_id]
            self.chains.append(tuple(self.chain))

    def truncate(self) -> None:
        row = self.random.randint(0, self.rows)
        known = self.random.choice([len(self.chain), self.random.randrange(len(self.chain) + 1)])
        ends = {link: self.row_ends[link.ledger_id] for link in self.chain[:known]}
        self.changed(lambda record: record.truncated(row, ends), True, "a truncation")
        self.first = max(self.first, row)
        left = [
            link
            for n, link in enumerate(self.chain)
            if n == len(self.chain) - 1 or n >= known or ends[link] > self.first
        ]
        self.chain = left
        self.chains.append(tuple(self.chain))

    def end(self) -> None:
        if self.random.random() < 0.7:
            run = self.random.choice(_RUNS)
            may = self.ended is not None or run == self.owner or run not in self.gone
            self.changed(lambda record: ending(record, run), may, "a lane's last claim")
            if may and self.ended is None and run != self.owner:
                self._owned(run)
            return
        run, epoch = self.writer()
        if not self.may_commit(run, epoch):
            self.changed(lambda record: lane_ended(record, run, epoch, 7, 9, 2), False, "a lane's end")
            return
        if run != self.owner or self.random.random() < 0.5:
            return
        self.record = lane_ended(self.record, run, epoch, self.rows, 9, 2)
        self.ended = self.rows

    # -- what must hold

    def check(self) -> None:
        record = self.record
        assert (record.owner, record.epoch, record.owner_query) == (self.owner, self.epoch, self.query), "another owner"
        under_way = {write.run: (write.epoch, write.begun_ms, write.commit_ledger) for write in record.batch_writes}
        assert under_way == self.writes, "other batch writes are under way"
        assert list(record.commit_ledgers) == self.chain, f"the chain is {record.commit_ledgers}, and not {self.chain}"
        assert record.first_position == self.first, "other rows are truncated"
        starts = [(link.ledger_id, self.starts[link.ledger_id]) for link in self.chain if link.ledger_id in self.starts]
        assert [(one.ledger_id, one.row) for one in record.link_starts] == starts, "ledgers begin elsewhere"
        assert record.ended_rows == self.ended, "a lane has another end"
        assert record.newest_epoch == self.highest, "an epoch is given out twice, or left out"
        may = {self.epoch} - {0} | {write.epoch for write in self.writes.values()}
        alive = may if self.ended is None else set()
        is_recovered = not self.epoch or self.ended is not None or max([-1, *(e for _, e in self.chain)]) >= self.epoch
        for epoch in range(self.highest + 2):
            over = epoch <= self.highest and epoch not in alive and is_recovered
            assert record.ended(epoch) == over, f"epoch {epoch} is {'' if over else 'not '}over"
        oldest = min(alive) if alive else self.highest + (self.highest > 0)
        assert record.oldest_live_epoch == oldest, "another epoch is the oldest that lives"
        for run, epoch in [(run, epoch) for run in (*_RUNS, *_WRITES) for epoch in range(1, self.highest + 1)]:
            try:
                record.check_writer(run, epoch)
                passes = True
            except BookKeeperError:
                passes = False
            assert passes == self.may_commit(run, epoch), f"{run} may {'' if passes else 'not '}commit in epoch {epoch}"
