"""Batch writes, producers, readers, and cleaners, called like the real code calls them.

Law: an actor remembers beyond its process only what is really durable: a query's commit log, a reader's offset.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from bookspark.errors import (
    BookKeeperError,
    ConfigurationError,
    LedgerFencedError,
    MetadataStoreError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadError,
)
from bookspark.logs import (
    LogAddress,
    LogReader,
    LogRegistry,
    LogRun,
    Producer,
    delete_log,
    truncate_expired,
    truncate_log,
)
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.lane_choice import begun_batch_write, end_batch_write, has_version
from bookspark.logs.chain.maintenance import collect_orphans, recover_ledgers
from bookspark.logs.chain.reader import AT_THE_END
from bookspark.logs.chain.stamps import stamp_of
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.lane_ending import end_idle_lanes, end_lane
from bookspark.logs.rows.data_ledgers import RollPolicy
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.commits import TXN, Commit, EntryRange, Fingerprint, merged
from bookspark.protocol.logs.lanes import BATCH_WRITES, LaneId, lane_id, lane_name
from bookspark.protocol.logs.log_record import (
    DATA_ROLE,
    ENCODING_LABEL,
    Lane,
    LogRecord,
    LogTakenOverError,
    NoSuchLogError,
)
from bookspark.protocol.logs.replays import Batch
from bookspark.spark.connector.sink import LogWriter, RangesWritten
from bookspark.spark.options.sink_options import SinkOptions
from tests.histories.log_schedules.cluster import Client, World
from tests.histories.log_schedules.history import History, each, values_of
from tests.histories.log_schedules.queries import Query
from tests.histories.log_schedules.turns import Actor

LOG = "orders"
ADDRESS = LogAddress("memory", LOG)
SINK = SinkOptions(ADDRESS, {}, RollPolicy())


def values_in(client: Any, piece: Piece) -> list[str]:
    """The values of a piece, from its ledger."""
    handle = client.open_ledger_no_recovery(piece.ledger_id)
    handle.confirm(piece.last_entry_id)
    entries = list(handle.read(piece.first_entry_id, piece.last_entry_id))
    stamped = b"stamped" in handle.metadata.custom_metadata.get("bookspark.encoding", b"")
    return [(stamp_of(one.payload, "a row").value if stamped else one.payload).decode() for one in entries]


class Stage:
    """The log of a schedule, and the durable state beside it."""

    def __init__(self, world: World) -> None:
        self.world, self.turns, self.random = world, world.turns, world.random
        self.histories: dict[int, History] = {}
        """Histories of the log and of each later log of its name, by id."""
        world.truth.seen = lambda log_id, lane, row, value: self.history(log_id).seen(lane, row, value)
        self.offloaded: Callable[[Any, LaneId, Piece], list[str] | None] = lambda client, log, piece: None
        """Values of a piece with a deleted ledger, from its offload table, or None if they were not offloaded."""
        self.fills_ledgers = False
        """Whether a ledger holds several batches."""
        self._filled: dict[LogRun, Any] = {}
        self.makes_anew = False
        """Whether the log is deleted meanwhile, and recreated by the next process that needs it."""
        self.address = ADDRESS
        self.queries: dict[str, Query] = {}
        self.done: dict[str, int] = {}
        """The number of rows or versions that each service and application has noted as committed."""
        self.restores = 0
        """How many checkpoints are set back while a batch is about to be committed."""
        self.tasks_enter = False
        """Whether the tasks of a micro-batch are processes of their own, and look for the run's lane separately."""
        self.runs = 0
        self.session_ends = 0.0
        """The chance that the session of a group's reader ends at a request; the reader goes on with a new one."""
        self.sessions_ended = 0

    def client(self, process: object) -> Any:
        return self.world.client(process)

    def history(self, log_id: int) -> History:
        """The history of the log with that id."""
        return self.histories.setdefault(log_id, History())

    def see_to_it(self, client: Any) -> None:
        """Create the log if it was deleted, as each micro-batch, batch write and service does at its beginning."""
        if self.makes_anew:
            LogRegistry(client.metadata).ensure(LOG, {}, b"")

    # -- supervisors

    def again_and_again(self, name: str, does: Callable[[str, object], None], is_done: Callable[[], bool]) -> None:
        """Run ``does`` until it is done. A slow run may be taken for dead, and continue beside the next."""
        patience = 60
        while not is_done():
            self.runs += 1
            run, process = f"{name}-run{self.runs}", object()
            actor = self.turns.begin(run, partial(self.with_errors, partial(does, run, process)), process)
            for _ in range(self.random.randrange(patience)):
                if actor.ended:
                    break
                self.turns.step("waits for its run")
            patience += 60

    def with_errors(self, does: Callable[[], None]) -> None:
        """An error of the cluster ends a run."""
        try:
            does()
        except BookKeeperError as error:
            self.turns.told.append(f"    ended: {error!r}")

    # -- writers

    def query(self, name: str, batches: int) -> None:
        query = self.queries[name] = Query(self, name, batches)
        query.run()

    def follower(self, name: str, batches: int) -> None:
        """A query that may take over the lane of another query and continue behind its rows."""
        others = [query for query in self.queries.values() if query.follower is None]
        if others and not self.makes_anew:
            Query(self, name, batches, self.random.choice(others)).run()

    def set_back(self) -> None:
        """Restore an older copy of a query's Spark checkpoint."""
        queries = [query for query in self.queries.values() if query.sets_back]
        if queries:
            self.random.choice(queries).set_back()

    def written(
        self,
        client: Any,
        owner: LogRun,
        record: LogRecord,
        writer: str,
        number: int,
        values: list[str],
        told: Fingerprint | None,
        task: Callable[[], LogRun] | None = None,
    ) -> tuple[LogRun, Commit]:
        """Write a batch by one or two tasks; ranges of about one entry each are merged in the commit. Returns the commit and its
        run. ``task``: where the second task writes; None: where the first does."""
        self.history(owner.lane.log).tried(f"{writer}/{number}/{len(values)}/{values[0]}", values)
        at = self.random.choice([len(values), len(values), self.random.randint(0, len(values))])
        messages: list[RangesWritten] = []
        parts = [part for part in (values[:at], values[at:]) if part]
        # The task of the first rows may be the later one.
        is_turned = self.tasks_enter and len(parts) > 1 and self.random.random() < 0.5
        for part in reversed(parts) if is_turned else parts:
            if messages and task is not None:
                owner = task()
            ranges: list[EntryRange] = []
            ledger = self._data_ledger(client, owner, record)
            for value in each(part[: self.random.randrange(2)]):
                # A speculative attempt, which no commit names.
                ledger.append(value)
            for value in each(part):
                entry = ledger.append(value)
                ranges.append(EntryRange(ledger.ledger_id, entry, entry, 1, len(value)))
            if self.fills_ledgers and self.random.random() < 0.7:
                self._filled[owner] = ledger
            messages.append(RangesWritten(writer, number, owner.run, owner.lane, owner.epoch, merged(ranges)))
        owner, commit = LogWriter(SINK).commit_of(messages[::-1] if is_turned else messages, 0, told)
        return owner, replace(commit, time_ms=max(1000, self.world.truth.now_ms))

    def _data_ledger(self, client: Any, owner: LogRun, record: LogRecord) -> Any:
        """A task fills a ledger, batch after batch, and closes it before the next."""
        ledger = self._filled.pop(owner, None)
        if ledger is not None and self.random.random() < 0.3:
            with suppress(BookKeeperError):
                ledger.close()
            ledger = None
        return ledger or owner.create_ledger(client, record.options, DATA_ROLE)

    def batch_write(self, run: str, process: object) -> None:
        self._batch_written(self.client(process), run, run, 0)

    def application(self, name: str, versions: int) -> None:
        """Batch writes with version numbers, in sequence."""
        self.done[name] = 0
        self.again_and_again(name, partial(self.application_run, name, versions), lambda: self.done[name] >= versions)

    def application_run(self, name: str, versions: int, run: str, process: object) -> None:
        client = self.client(process)
        while (version := self.done[name]) < versions:
            record = LogRegistry(client.metadata).find(LOG)
            this = Batch(LOG, TXN + name, version)
            if record is None or not has_version(client, record, b"", this):
                self._batch_written(client, f"{run}-{version}", name, version, TXN)
            self.turns.step(f"notes version {version}")
            self.done[name] = max(self.done[name], version + 1)

    def _batch_written(self, client: Any, run: str, writer: str, number: int, txn: str = "") -> None:
        """Mirrors ``LogBatchWriter``; with ``txn``, as a version of an application."""
        self.see_to_it(client)
        record = begun_batch_write(client, lane_id(LogRegistry(client.metadata).get(LOG)), run)
        owner = LogRun.of_batch_write(ADDRESS, record, run)
        values = values_of(writer, number, 2)
        owner, written = self.written(
            client, owner, record, writer, number, values, None, partial(self.task_of, client, owner)
        )
        commit = replace(written, query=txn + writer)
        committer = Committer(client, owner)
        # False: the log has this version, or a later one, perhaps the first of a recreated log.
        done = committer.commit(commit) or not txn
        if done or not self.makes_anew:
            self.history(owner.lane.log).acknowledged.update(values)
        committer.close()
        recover_ledgers(client, [item.ledger_id for item in commit.ranges], b"")
        committer.tend(thoroughly=self.random.random() < 0.5)
        end_batch_write(client, owner)

    def task_of(self, client: Any, planned: LogRun) -> LogRun:
        """Where a task of a batch write writes: where its plan says."""
        return planned

    def service(self, name: str, rows: int) -> None:
        self.done[name] = 0
        self.again_and_again(name, partial(self.producer_run, name, rows), lambda: self.done[name] >= rows)

    def producer_run(self, name: str, rows: int, run: str, process: object) -> None:
        client = self.client(process)
        self.see_to_it(client)
        # Rows acknowledged before it began.
        before = {log_id: frozenset(history.acknowledged) for log_id, history in self.histories.items()}
        producer = Producer(client, ADDRESS, name)
        log_id = producer._ledgers._run.lane.log
        history = self.history(log_id)
        acknowledged = before.get(log_id, frozenset())
        known = [int(value.split("/")[1]) for value in acknowledged if value.startswith(f"{name}/")]
        last = producer.last_sequence
        assert last >= max(known, default=-1), f"{name} goes on behind {last}, and {max(known)} was acknowledged"
        for number in range(last + 1, rows):
            (value,) = values_of(name, number, 1)
            history.tried(f"{name}/{number}", [value])
            try:
                place = producer.append(value.encode(), sequence=number)
            except (LedgerFencedError, LogTakenOverError) as error:
                mine = producer._ledgers._run
                record = self.world.record(str(mine.lane))
                if self.world.goes_on_after_fences and record is not None and record.owner == mine.run:
                    raise AssertionError(f"{name} ends, and its lane is still its own: {error}") from error
                raise
            history.acknowledged.add(value)
            if place is not None:
                history.places[value] = place.lane, place.position
        producer.close()
        self.done[name] = rows

    def recover(self) -> None:
        """Recover an open ledger, as autorecovery and operators do, perhaps under its living writer."""
        client = self.client(object())
        found = {one: client.get_ledger_metadata(one) for one in client.list_ledgers()}
        still_open = [one for one, metadata in found.items() if not metadata.closed]
        of_producers = [
            one for one in still_open if found[one].custom_metadata.get(ENCODING_LABEL, b"").startswith(b"stamped")
        ]
        if still_open:
            client.open_ledger(self.random.choice(of_producers or still_open))

    # -- readers

    def read(self, client: Any, feed: LogFeed, at: Any, end: Any) -> int:
        """Read the rows between two offsets, in the order of each lane, except truncated rows. Returns the number of rows."""
        came, places = 0, {lane: first for lane, (first, _) in feed.spans(at, end).items()}
        ends = {lane: last for lane, (_, last) in feed.spans(at, end).items()}
        for piece, _ in feed.pieces(at, end):
            self.passed(client, feed, piece.lane, places[piece.lane], piece.position)
            places[piece.lane] = piece.position + piece.rows
            came += piece.rows
            made_for = self.world.made_for[piece.ledger_id]
            assert made_for == feed.log_id, f"ledger {piece.ledger_id} is of another log of the name"
            try:
                values = values_in(client, piece)
            except (NoSuchLedgerError, NoSuchEntryError):
                values = self.offloaded(client, feed.log, piece) or []
                if not values:
                    self.passed(client, feed, piece.lane, piece.position, piece.position + 1)
            for row, value in enumerate(values, piece.position):
                self.history(feed.log_id).seen(piece.lane, row, value)
        for lane, row in places.items():
            self.passed(client, feed, lane, row, ends[lane])
        return came

    def passed(self, client: Any, feed: LogFeed, lane: int, first: int, last: int) -> None:
        """Check that skipped rows of a lane, from ``first`` to before ``last``, were truncated."""
        if first >= last:
            return
        record = LogRegistry(client.metadata).get(feed.log.lane(lane))
        assert record.first_position >= last or self.is_deleted(feed.log_id), (
            f"rows {first} to {last - 1} of lane {lane} are gone"
        )

    def is_deleted(self, log_id: int) -> bool:
        """Whether a deletion of the log has begun."""
        return log_id in self.world.meant_to_go

    # -- cleaners

    def truncate(self) -> None:
        client: Any = self.client(object())
        feed = LogFeed(client, LOG, b"", fail_on_data_loss=False)
        end = feed.newest()
        self.read(client, feed, feed.earliest(), end)
        lane = self.random.choice(feed.lanes)
        rows = feed.all_rows(end)[lane]
        client.expires = False
        row, name = self.random.randint(0, rows), lane_name(LOG, lane)
        truncate_log(client, name if lane else f"{LOG}@0", row, b"")
        record = self.world.record(name)
        assert record is None or record.log_id != feed.log_id or record.first_position >= row, (
            f"{name} was truncated at row {row}, and begins at row {record.first_position}"
        )

    def alter(self) -> None:
        LogRegistry(self.client(object()).metadata).alter(LOG, ensemble_size=self.random.choice([3, 4, 5]))

    def expire(self, bound_ms: int, bound_bytes: int) -> None:
        """Set the retention and remove expired rows, repeatedly."""
        client: Any = self.client(object())
        registry, truth = LogRegistry(client.metadata), self.world.truth
        for _ in range(self.random.randrange(1, 6)):
            bounds = {"retention_ms": bound_ms, "retention_bytes": bound_bytes}
            if self.random.random() < 0.3:
                bounds[self.random.choice(list(bounds))] = 0
            truth.bounds_ms.update(filter(None, [bounds["retention_ms"]]))
            truth.bounds_bytes.update(filter(None, [bounds["retention_bytes"]]))
            with suppress(MetadataStoreError):
                registry.alter(LOG, **bounds)
            for _ in range(self.random.randrange(100)):
                self.turns.step("waits")
            with suppress(ReadError, MetadataStoreError):
                truncate_expired(client, LOG, b"")

    def delete(self, name: str) -> None:
        """Delete the log. An interrupted deletion is repeated: a partly deleted log stays deleted."""
        done, begun = [], set[Actor | None]()

        def run(run: str, process: object) -> None:
            me, client = self.turns.current, self.client(process)
            broke_off = {other for other in begun if other is not None and other.ended}
            begun.add(me)
            client.deletes = LOG
            with suppress(NoSuchLogError):
                delete_log(client, LOG, b"")
            done.append(run)
            begun.difference_update(broke_off, {me})

        self.again_and_again(name, run, lambda: bool(done) and not begun)

    def collect(self) -> None:
        collect_orphans(self.client(object()), LOG, b"")

    def end_some_lane(self, name: str) -> None:
        """End a lane. An interrupted or slow attempt is repeated."""
        record, lanes = LogRegistry(self.client(None).metadata).get(LOG), list[Lane]()
        if self.random.random() < 0.5:
            lanes = [Lane(0, (BATCH_WRITES,)), *record.lanes]
        else:
            # Prefer lanes of producers that go on.
            services = {lane: lane.writers[-1].removeprefix("service:") for lane in record.lanes}
            lanes = [lane for lane, name in services.items() if name in self.done]
            lanes = [lane for lane in lanes if not self.done[services[lane]]] or lanes
        if lanes:
            done, lane = list[str](), self.random.choice(lanes)
            for number in range(3):
                process = object()
                run = partial(self.with_errors, partial(self._end, lane, record, process, done))
                actor = self.turns.begin(f"{name}-run{number}", run, process)
                for _ in range(self.random.choice([20, 400])):
                    if actor.ended:
                        break
                    self.turns.step("waits for its run")
                if done:
                    break

    def _end(self, lane: Lane, record: LogRecord, process: object, done: list[str]) -> None:
        client: Any = self.client(process)
        try:
            end_lane(client, f"{LOG}@{lane.number}")
        except ConfigurationError as error:
            newest = self.world.record(LOG)
            there = newest is not None and newest.log_id == record.log_id and lane in newest.lanes
            if there and BATCH_WRITES not in lane.writers:
                raise AssertionError(f"lane {lane.number} is there, and may not end: {error}") from error
        else:
            assert BATCH_WRITES not in lane.writers, f"lane {lane.number} has ended, which batch writes share"
        done.append(lane.writers[-1])

    def end_idle(self) -> None:
        """End the lanes to which nothing happened for some steps (a step is a millisecond of the store's time)."""
        client: Any = self.client(object())
        for _ in range(self.random.randrange(1, 4)):
            steps = self.random.choice([20, 100, 400])
            client.idle_steps = steps
            with suppress(ReadError, MetadataStoreError):
                end_idle_lanes(client, LOG, b"", steps / 86_400_000)
            for _ in range(self.random.randrange(200)):
                self.turns.step("waits")

    def ends(self) -> dict[int, int]:
        """Read everything once more. Returns the number of rows of each lane."""
        client: Any = Client(self.world, None)
        feed = LogFeed(client, LOG, b"", fail_on_data_loss=False)
        end = feed.newest()
        self.read(client, feed, feed.earliest(), end)
        return feed.all_rows(end)

    def newest(self) -> dict[int, int]:
        """The number of rows of each lane, for readers that begin at its end."""
        client: Any = Client(self.world, None)
        lanes = LogRegistry(client.metadata).lanes_of(LOG)
        return {lane.number: LogReader(client, lane, b"", AT_THE_END).newest() for lane in lanes}
