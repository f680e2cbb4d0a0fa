"""Streaming queries, each with a source and a Spark checkpoint that may be set back.

Only its Spark checkpoint survives a query's processes. The plan of a batch (its source rows, and the time of planning) is stored
before the batch runs, so a replay runs the same plan. A checkpoint restored from an older copy plans batches again: with the same
source rows if none arrived since, or with others. Runs with the old checkpoint are not stopped. The steps are those of
``spark.connector.sink``.

Laws:

* A query that follows another gets its lane, unless that lane has ended or the other query never wrote.
* A row of a source is in the log once (``history``), and a batch acknowledged to its query is in the log.
* A batch is refused (``CheckpointRewoundError``) only if the log has a later batch, or if its last batch was planned otherwise,
  as far as that is detectable; with a checkpoint that was never set back, only for a run overtaken by another run.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, cast

from bookspark.errors import BookKeeperError
from bookspark.logs import LogRegistry, LogRun
from bookspark.logs.chain.commit_ledgers import newest_header
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.lane_choice import StreamingQuery, claimed, known_lane, lane_for_query, note_writer
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.commits import FILES, Commit, CommitHeader, Fingerprint
from bookspark.protocol.logs.lanes import LaneId, lane_id, writer_of
from bookspark.protocol.logs.log_record import AnotherQueryError, LogChangedError, LogRecord
from bookspark.protocol.logs.replays import Batch, CheckpointRewoundError, is_committed

if TYPE_CHECKING:
    from tests.histories.log_schedules.actors import Stage

KINDS = ("equal", "files", "random", "unread", "no offsets")
"""Knowledge about batches beside their plans. ``equal``: all rows are equal, so sums prove nothing. ``files``: some runs are of
a version whose digests ignore files. ``random``: rows differ at each attempt. ``unread``: some runs can't read the plans, so that
checkpoint is never set back. ``no offsets``: no run can read the offsets."""


Span = tuple[int, int]
"""Numbers of rows of the source's two partitions."""


class Plan(NamedTuple):
    """The plan of a batch."""

    first: Span
    """Rows of each partition before the batch."""
    rows: Span
    planned: int
    """A number that no other plan has."""

    @property
    def end(self) -> Span:
        return self.first[0] + self.rows[0], self.first[1] + self.rows[1]

    def source_rows(self) -> list[str]:
        """The names of the batch's source rows."""
        return [f"{part}{row}" for part, *span in zip("ab", self.first, self.end, strict=True) for row in range(*span)]

    @property
    def offsets(self) -> str:
        """A different text for each batch."""
        (a, b), (a_end, b_end) = self.first, self.end
        return f"{a}-{a_end},{b}-{b_end}"


@dataclass
class Checkpoint:
    """The Spark checkpoint folder of a query."""

    plans: dict[int, Plan] = field(default_factory=dict)
    done: int = 0
    """The number of batches noted as committed."""


class Query:
    """A streaming query."""

    def __init__(self, stage: Stage, name: str, batches: int, follows: Query | None = None) -> None:
        self.spark_query = StreamingQuery(name, follows._name if follows is not None else "")
        self.follows, self.follower = follows, cast("Query | None", None)
        if follows is not None:
            follows.follower = self
        self._stage, self._name, self._batches = stage, name, batches
        self._random = stage.random
        self._kind = self._random.choice(KINDS)
        self._checkpoint = Checkpoint()
        self._planned = count()
        self._spans: dict[int, set[tuple[Span, Span]]] = defaultdict(set)
        """All spans ever planned under each batch number."""
        self._refused = self._restored = self._goes_on = False
        self.sets_back = self._kind != "unread"

    def run(self) -> None:
        self._goes_on = True
        self._stage.again_and_again(
            self._name, self._run, lambda: self._refused or self._checkpoint.done >= self._batches
        )
        self._goes_on = False

    @property
    def lanes(self) -> list[str]:
        """The query's lanes, in the order in which it got them."""
        return self._stage.world.truth.lanes_of[writer_of(self._name)]

    @property
    def may_be_another(self) -> bool:
        """Whether it may be taken for another query than the writer of its lane: if its follower has a lane, or the
        followed query has none."""
        followed = self.follower is not None and self.follower.lanes
        return bool(followed or (self.follows is not None and not self.follows.lanes))

    def check_followed(self, lane: str, before: list[str]) -> None:
        """Check that ``lane``, the query's first, belongs to the followed query. ``before``: the followed query's lanes when the
        lookup began. Raises AssertionError."""
        assert self.follows is not None
        which = f"{self._name} is in {lane}, and follows {self.follows._name}"
        # The first writer of a log gets lane 0, whichever query it follows.
        assert self.follows.lanes or lane == self._stage.address.name, f"{which}, which has no lane"
        if before and lane not in self.follows.lanes:
            record = self._stage.world.record(before[-1])
            assert record is None or record.ended_rows is not None, f"{which} of {before[-1]}"

    def set_back(self) -> None:
        """Restore an older or current copy of the Spark checkpoint, and restart the query if it has ended."""
        kept = max(0, self._checkpoint.done - self._random.choice([0, 0, 1, 1, 2]))
        plans = {number: plan for number, plan in self._checkpoint.plans.items() if number < kept}
        self._checkpoint, self._restored, self._refused = Checkpoint(plans, kept), True, False
        self._batches += self._random.randrange(3)
        self._stage.turns.told.append(f"    the checkpoint of {self._name} is set back to batch {kept}")
        if not self._goes_on:
            self._stage.turns.begin(f"{self._name} again", self.run, lasts=True)

    def run_beside(self) -> None:
        """Begin another run beside any other runs."""
        stage, process = self._stage, object()
        stage.runs += 1
        name = f"{self._name}-run{stage.runs}"
        stage.turns.begin(name, partial(stage.with_errors, partial(self._run, name, process)), process)

    # -- inside

    def _run(self, run: str, process: object) -> None:
        _Run(self, run, process).go()

    def plan(self, checkpoint: Checkpoint, number: int) -> Plan:
        plan = checkpoint.plans.get(number)
        if plan is None:
            first = checkpoint.plans.get(number - 1, Plan((0, 0), (0, 0), 0)).end
            again = sorted(span for span in self._spans[number] if span[0] == first)
            # The fingerprints of earlier versions do not distinguish an empty batch.
            number_of_rows = self._random.choice([1, 2, 3] if self._kind == "files" else [0, 0, 1, 1, 2, 3])
            of_one = self._random.randint(0, number_of_rows)
            rows = of_one, number_of_rows - of_one
            if again and self._random.random() < 0.5:
                _, rows = self._random.choice(again)
            plan = checkpoint.plans[number] = Plan(first, rows, next(self._planned))
            self._spans[number].add((first, rows))
        return plan

    def may_be_refused(self, checkpoint: Checkpoint, number: int) -> bool:
        """Whether a batch may be refused: never with a checkpoint that was never set back; otherwise if its number is below
        another planned batch, or if its plan is not provably the same."""
        if checkpoint is self._checkpoint and not self._restored:
            return number < checkpoint.done
        *_, before, last = None, None, *self._committed()
        if last is None or number < last.batch:
            return True
        # Another run may have committed this batch since.
        return not (
            self._is_same(last, checkpoint, number) and (before is None or self._is_same(before, checkpoint, number))
        )

    def _committed(self) -> list[Commit]:
        """The query's commits in the chains of its lanes, in order."""
        truth = self._stage.world.truth
        found = [
            commit for record in truth.lanes() for commit, _ in truth.commits(record) if commit.query == self._name
        ]
        return sorted(found, key=lambda commit: commit.batch)

    def _is_same(self, commit: Commit, checkpoint: Checkpoint, number: int) -> bool:
        """Whether the committed batch is provably the checkpoint's batch of that number. ``number``: number of the new batch; for
        later batches only plans are compared."""
        plan, told = checkpoint.plans.get(commit.batch), commit.fingerprint
        assert told is not None
        if plan is None or told.plan == f"plan {plan.planned}":
            return plan is not None
        known = self._kind != "no offsets" and (self._kind != "random" or number > commit.batch)
        return known and told.offsets.removeprefix(FILES) == plan.offsets


class _Run:
    """A run of a query."""

    def __init__(self, query: Query, run: str, process: object) -> None:
        self._query, self._run, self._stage, self._random = query, run, query._stage, query._random
        self._process, self._client = process, query._stage.client(process)
        self._checkpoint = query._checkpoint
        self._committers: dict[LogRun, Committer] = {}
        self._log: LaneId
        """The log of the micro-batch's plan."""
        # The first draw is of no use by now; the seeds of planted faults count on it.
        _, self._reads_plans = self._random.random(), self._random.random() < 0.6
        self._checked, self._committed = set[int](), set[int]()
        """Ids of the logs in which the run has had a new batch, and of those to which it has committed one."""

    @property
    def _key(self) -> int:
        return self._log.log

    def go(self) -> None:
        query, checkpoint = self._query, self._checkpoint
        while (number := checkpoint.done) < query._batches:
            plan, may_be_another = query.plan(checkpoint, number), query.may_be_another
            try:
                self._batch(number, plan)
            except AnotherQueryError as error:
                if not (may_be_another or query.may_be_another):
                    raise AssertionError(f"{query._name} is taken for another query: {error}") from error
                query._refused = True
                raise
            except CheckpointRewoundError as error:
                if not query.may_be_refused(checkpoint, number):
                    raise AssertionError(f"a batch is refused that is none of another plan: {error}") from error
                query._refused |= checkpoint is query._checkpoint and number >= checkpoint.done
                raise
            if self._stage.turns.crash_chance and self._random.random() < 0.1:
                # The next run does not know that the batch is committed.
                self._stage.turns.crash_current()
            self._stage.turns.step(f"notes batch {number}")
            checkpoint.done = max(checkpoint.done, number + 1)
        for committer in self._committers.values():
            committer.close()

    def _batch(self, number: int, plan: Plan) -> None:
        stage, client, name = self._stage, self._client, self._query._name
        values = [f"{name}/{number}/{row}.{plan.offsets}" for row in plan.source_rows()]
        told = self._fingerprint(number, plan)
        stage.see_to_it(client)
        self._log = lane_id(LogRegistry(client.metadata).get(stage.address.name))
        follows, is_new = self._query.follows, not self._query.lanes
        before = [] if follows is None else list(follows.lanes)
        record = self._entered(number) if values else None
        if record is None:
            self._compare(number, told, values)
            return
        if follows is not None and is_new:
            self._query.check_followed(record.name, before)
        owner = LogRun.of(stage.address, record)
        task = partial(self._task, number) if stage.tasks_enter else None
        owner, commit = stage.written(client, owner, record, name, number, values, told, task)
        if stage.makes_anew and self._random.random() < 0.3:
            # Spark runs the task again, and uses the first attempt.
            with suppress(BookKeeperError):
                stage.see_to_it(client)
                self._entered(number)
        if self._query.sets_back and stage.restores and self._random.random() < (0.2 if number else 0.7):
            # This run commits while another continues from an older copy of its checkpoint, or before or after that run.
            stage.restores -= 1
            self._query.set_back()
            self._query.run_beside()
            stage.turns.stand_still(1.0, (10, 30, 60, 100, 200))
        committer = self._committers.setdefault(owner, Committer(client, owner))
        committer.commit(commit, self._judged(number, told, is_first=self._key not in self._committed))
        self._checked.add(self._key)
        self._committed.add(self._key)
        stage.history(owner.lane.log).acknowledged.update(values)
        if self._random.random() < 0.5:
            stage.turns.begin(f"{self._run} tends", partial(self._tended, committer), self._process)

    def _task(self, number: int) -> LogRun:
        """A later task of the batch, in another process, looks for the run's lane, which may have ended since the first did."""
        stage, lanes = self._stage, self._query.lanes
        if lanes and self._random.random() < 0.3:
            process = object()
            end = partial(end_lane, stage.client(process), lanes[-1])
            stage.turns.begin(f"{self._run} loses {lanes[-1]}", partial(stage.with_errors, end), process)
            stage.turns.stand_still(1.0, (10, 30, 60, 100, 200))
        record = self._entered(number)
        if record is None:
            raise BookKeeperError("another run has committed the batch, so this one is only compared")
        return LogRun.of(self._stage.address, record)

    def _tended(self, committer: Committer) -> None:
        with suppress(BookKeeperError):
            committer.tend(thoroughly=True)

    def _entered(self, number: int) -> LogRecord | None:
        """Mirrors ``LogStreamWriter._enter``."""
        client, query = self._client, self._query.spark_query
        while True:
            lane = lane_for_query(client, self._log, b"", query)
            record = LogRegistry(client.metadata).get(lane)
            if record.owner == self._run:
                note_writer(client, record, query)
                return record
            record, header = newest_header(client, lane, b"")
            if is_committed(header, self._judged(number, None, is_first=True)):
                return None
            with suppress(LogChangedError):
                return claimed(client, record, self._run, query, header)

    def _compare(self, number: int, told: Fingerprint, values: list[str]) -> None:
        """Mirrors ``LogStreamWriter._compare``."""
        if not values and self._key in self._checked:
            return
        client = self._client
        lane = known_lane(client, self._log, b"", self._query.spark_query)
        record, header = (None, CommitHeader()) if lane is None else newest_header(client, lane, b"")
        if is_committed(header, self._judged(number, told, is_first=False)):
            assert record is not None
            self._stage.history(record.log_id).replayed.update(values)
        elif values:
            raise BookKeeperError("the batch was in the log, and is not any more")
        else:
            self._checked.add(self._key)

    def _judged(self, number: int, told: Fingerprint | None, is_first: bool) -> Batch:
        def before(last: int) -> Fingerprint:
            plan = self._checkpoint.plans.get(last)
            return Fingerprint(0) if plan is None else Fingerprint(0, "", *self._digests(plan))

        return Batch(self._stage.address.name, self._query._name, number, told, "", before if is_first else None)

    def _fingerprint(self, number: int, plan: Plan) -> Fingerprint:
        kind = self._query._kind
        if kind == "random":
            values = self._random.getrandbits(32)
        else:
            values = (
                0 if kind == "equal" else sum(1 << int(row[1:]) * 2 + (row[0] == "b") for row in plan.source_rows())
            )
        return Fingerprint(sum(plan.rows), f"{values:016x}", *self._digests(plan))

    def _digests(self, plan: Plan) -> tuple[str, str]:
        """Digests of the whole plan and of its offsets."""
        kind = self._query._kind
        if kind == "unread" and not self._reads_plans:
            return "", ""
        files = FILES if kind == "files" else ""
        return (
            f"plan {plan.planned}",
            "" if kind == "no offsets" else f"{files}{plan.offsets}",
        )


def source_row(value: str) -> tuple[str, str] | None:
    """The query and source row of a value, or None if no query wrote it."""
    writer, _, row = value.split("/")
    return (writer, row.partition(".")[0]) if "." in row else None
