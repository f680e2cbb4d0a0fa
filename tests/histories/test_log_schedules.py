"""Random schedules of all actors of a log keep all laws, and each planted fault breaks a law; ``scripts/soak log-schedules``
runs thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from bookspark.errors import ReadError
from bookspark.logs import lane_ending, producer_ledgers, row_reader
from bookspark.logs.chain import committer, lane_choice, maintenance, retention
from bookspark.logs.chain.commit_ledgers import HEADER_ENTRY
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.lane_choice import begun_batch_write
from bookspark.logs.chain.lane_index import LaneIndex
from bookspark.logs.chain.log_run import LogRun
from bookspark.logs.chain.reader import LogReader, commits
from bookspark.logs.chain.registry import NAMES, RECORDS, STARTS, LogRegistry
from bookspark.logs.feeds import log_feed
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.producer_ledgers import Moving, Numbers, ProducerLedgers
from bookspark.logs.row_reader import LogRow, RowReader
from bookspark.protocol.logs import orphans, replays
from bookspark.protocol.logs.commits import Fingerprint
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_LABEL, LogRecord
from bookspark.protocol.logs.retention import Retention
from bookspark.spark.connector import source
from bookspark.spark.connector.sink import LogWriter, RangesWritten
from bookspark.spark.connector.source import PinnedStart
from bookspark.store.metadata.documents.locks import new_lock
from bookspark.store.metadata.documents.sharing import Sharing
from bookspark.store.metadata.records.documents import read_struct
from tests.histories.log_schedules import readers
from tests.histories.log_schedules.actors import ADDRESS, Stage
from tests.histories.log_schedules.cluster import Client
from tests.histories.log_schedules.handles import Reader
from tests.histories.log_schedules.offloads import Offload
from tests.histories.log_schedules.run import Kind, run

SEEDS, SEEDS_PLANTED = 3, 300


@pytest.mark.parametrize("kind", Kind)
def test_random_log_schedules_break_no_law(kind: Kind) -> None:
    # Fewer rows are read from a log that is deleted repeatedly.
    least = 5 if kind in (Kind.ANEW, Kind.OFFLOAD_ANEW) else 25
    assert sum(run(seed, kind)["rows"] for seed in range(SEEDS)) > least


def test_equal_seeds_give_equal_schedules() -> None:
    assert run(17) == run(17)


def no_fence(client: Client, ledger_id: int, password: bytes = b"") -> Reader:
    return client.open_ledger_no_recovery(ledger_id)


def ended_too_early(record: LogRecord, epoch: int) -> bool:
    return epoch < record.newest_epoch and epoch not in record.live_epochs


def header_alone(bookkeeper: Any, link: Any, password: bytes) -> Any:
    return bookkeeper.open_ledger_no_recovery(link.ledger_id, password=password, confirmed=HEADER_ENTRY)


def all_but_one(copied: Callable[..., int]) -> Callable[..., int]:
    return lambda bookkeeper, record, links, run: copied(bookkeeper, record, links[:-1], run)


def behind_any(grown: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, ledger, run, epoch, _, start: grown(record, ledger, run, epoch, record.commit_ledgers, start)


def a_row_more(truncated: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, row, ends: truncated(record, row + 1, ends)


def by_name(does: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    """Looks the log up again by its name."""

    def call(registry: LogRegistry, lane: Any, *others: Any) -> LogRecord:
        now = registry.lane(lane.name) if isinstance(lane, LaneId) else None
        return does(registry, lane if now is None else now.lane(lane.number), *others)

    return call


@contextmanager
def looked_up_again() -> Iterator[None]:
    with (
        mock.patch.object(LogRegistry, "get", by_name(LogRegistry.get)),
        mock.patch.object(LogRegistry, "update", by_name(LogRegistry.update)),
    ):
        yield


def whichever(registry: LogRegistry, log: LaneId) -> None:
    now = registry.lane(log.name)
    registry.forget(log.log if now is None else now.log)
    registry._store.delete_record(NAMES, log.name)


def of_the_name(record: LogRecord, labels: Mapping[str, bytes]) -> bool:
    return labels.get(LOG_LABEL) == record.name.encode()


def of_a_deleted_log_too(new_id: Callable[[LogRegistry], int]) -> Callable[[LogRegistry], int]:
    """Gives an id out again that is free."""

    def call(registry: LogRegistry) -> int:
        return next(one for one in range(1, 100) if not registry._store.read_record(RECORDS, str(one)))

    return call


def with_the_next(expired: Callable[..., bool]) -> Callable[..., bool]:
    """Counts a commit itself as behind it."""
    return lambda kept, commit, after, size, now_ms: expired(kept, commit, after, size + commit.size, now_ms + 20)


def all_at(bookkeeper: Any, record: LogRecord, password: bytes, row: int) -> dict[Any, int]:
    return dict.fromkeys(record.commit_ledgers, row)


def passing_over(enter: Callable[..., None], unopened: float) -> Callable[..., None]:
    """Ledgers fail to open more often than in other schedules."""

    def call(reader: Any, link: Any) -> None:
        try:
            if reader._bookkeeper.happens(unopened):
                raise ReadError("too few bookies answer")
            enter(reader, link)
        except ReadError:
            reader._link = link
            raise

    return call


def whatever_is_closed(run: Offload, record: LogRecord, before_ms: float) -> list[int]:
    named = {item.ledger_id for placed in commits(run._client, run._log, b"") for item in placed.commit.ranges}
    return [one.ledger_id for one, _ in run._client.metadata.read_ledgers(sorted(named), {}) if one.closed]


def saves_the_end(commit: Callable[[RowReader], None]) -> Callable[..., None]:
    def call(reader: RowReader, row: LogRow | None = None) -> None:
        place, reader._place = reader._place, row_reader._Place(reader._not_before(reader._feed.known()))
        try:
            commit(reader)
        finally:
            reader._place = place

    return call


def whoever_has_them(sharing: Sharing, things: Iterable[str]) -> set[str]:
    return set(things)


def a_row_less(lane_ended: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, *, rows, **others: lane_ended(record, rows=max(0, rows - 1), **others)


def of_an_ended_lane_too(claim: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    def call(record: LogRecord, *arguments: Any) -> LogRecord:
        return replace(claim(replace(record, ended_rows=None), *arguments), ended_rows=record.ended_rows)

    return call


def taken_back(truncated: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, row, ends: replace(truncated(record, row, ends), first_position=row)


def following_nobody(lane_of_query: Callable[..., int | None]) -> Callable[..., int | None]:
    return lambda record, query, committed, follows="", *others: lane_of_query(record, query, committed, "", *others)


def without_the_shared_one(check: Callable[[LogRecord, int], None]) -> Callable[[LogRecord, int], None]:
    def call(record: LogRecord, number: int) -> None:
        if not any(lane.number == number for lane in record.lanes):
            check(record, number)

    return call


def of_epoch_0(labels: Mapping[str, bytes]) -> int:
    found = labels[EPOCH_LABEL]
    return int(found) if found.isdigit() else 0


def whoever_is_there(record: LogRecord, run: str, since_ms: float) -> LogRecord:
    return replace(record, epoch=record.newest_epoch + 1, owner=run)


def but_the_first(check: Callable[..., None]) -> Callable[..., None]:
    return lambda kept, last, batch: check(kept, last, batch) if last > 0 else None


def whoever_claims(claim: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, *arguments: replace(claim(replace(record, claims=()), *arguments), claims=record.claims)


def whatever_is_committed(begun: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    def call(record: LogRecord, run: str) -> LogRecord:
        writes = (one._replace(commit_ledger=-1) for one in record.batch_writes)
        return begun(replace(record, batch_writes=tuple(writes)), run)

    return call


@contextmanager
def a_lane_for_each_task() -> Iterator[None]:
    """Tasks of a micro-batch take lanes of their own, and its commit takes the first one's for all ranges."""

    def of_the_first(writer: LogWriter, written: Sequence[RangesWritten], *others: Any) -> Any:
        return commit_of(
            writer, [replace(one, lane=written[0].lane, epoch=written[0].epoch) for one in written], *others
        )

    commit_of = LogWriter.commit_of
    with (
        mock.patch.object(LaneIndex, "check_claims_first_lane"),
        mock.patch.object(LogWriter, "commit_of", of_the_first),
        mock.patch.object(Committer, "_check"),
    ):
        yield


@contextmanager
def begun_by_tasks() -> Iterator[None]:
    """Tasks begin their batch write themselves, again if it was dropped."""

    def again(begun: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
        return lambda record, run: replace(begun(replace(record, claims=()), run), claims=record.claims)

    def task_of(stage: Stage, client: Any, planned: LogRun) -> LogRun:
        return LogRun.of_batch_write(ADDRESS, begun_batch_write(client, planned.lane.lane(0), planned.run), planned.run)

    with (
        mock.patch.object(LogRecord, "batch_write_begun", again(LogRecord.batch_write_begun)),
        mock.patch.object(Stage, "task_of", task_of),
        mock.patch.object(Committer, "_check"),
    ):
        yield


@contextmanager
def as_old_as_its_rows() -> Iterator[None]:
    """The claim of a lane does not count, and a lane without rows is old."""

    def newest_ms(bookkeeper: Any, lane: LaneId, password: bytes) -> int:
        return max((one.commit.time_ms for one in commits(bookkeeper, lane, password)), default=0)

    with (
        mock.patch.object(lane_ending, "_newest_ms", newest_ms),
        mock.patch.object(lane_ending, "ending", whenever(lane_ending.ending)),
    ):
        yield


def whenever(ending: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, *, run, since_ms: ending(record, run)


def behind_fetched(next_fetched: Callable[[RowReader], LogRow]) -> Callable[[RowReader], LogRow]:
    def call(reader: RowReader) -> LogRow:
        row = next_fetched(reader)
        reader._place.move(reader._behind_fetched)
        return row

    return call


def twice(rows: list[bytes], moved: Any) -> producer_ledgers.Moving:
    return Moving([*rows, *rows], moved)


def as_listed(sharing: Sharing) -> list[str]:
    """Leaves the reader itself out if its session ended meanwhile."""
    JOIN(sharing)
    return sorted(sharing._tree.children(sharing._members))


JOIN = Sharing.join


def for_ever(sharing: Sharing, things: Iterable[str]) -> set[str]:
    for thing in things:
        lock = new_lock(f"{sharing._held}/{thing}", sharing._name, sharing._token)
        sharing._tree.create(lock.path, lock.document)
    return {thing for thing, holder in sharing.holders().items() if holder == sharing._name}


def whose_ever(unpin: Callable[..., None]) -> Callable[..., None]:
    def call(pinned: PinnedStart, owner: int, key: str) -> None:
        pin = pin_of(pinned, key)
        unpin(pinned, owner if pin is None else pin.owner, key)

    return call


def pin_of(pinned: PinnedStart, key: str) -> source.Pin | None:
    found = source.client("memory").metadata.read_record(STARTS, pinned._name(key))
    return None if found is None else read_struct(found.value, source.Pin, "a start")


def planted(owner: Any, name: str, fault: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, fault)


def silent(owner: Any, name: str, answer: object) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, return_value=answer)


PLANTED = {
    "recovery fences nothing": (1, planted(Client, "open_ledger", no_fence)),
    "an epoch that is over commits": (3, silent(LogRecord, "check_writer", None)),
    "an epoch is over before its commits are recovered": (5, planted(LogRecord, "ended", ended_too_early)),
    "a batch is committed twice": (2, silent(committer, "is_committed", False)),
    "a chain grows behind a ledger that was not recovered": (
        36,
        planted(LogRecord, "with_commit_ledger", behind_any(LogRecord.with_commit_ledger)),
    ),
    "compaction leaves out a ledger": (6, planted(committer, "_copied", all_but_one(committer._copied))),
    "a collection does not know of the newest ledger's first commit": (
        1,
        planted(maintenance, "open_commit_ledger", header_alone),
    ),
    "a truncation takes a row more": (3, planted(LogRecord, "truncated", a_row_more(LogRecord.truncated))),
    "a producer forgets what the one before left open": (1, silent(ProducerLedgers, "_take_over", None)),
    "a producer forgets its numbers": (2, planted(producer_ledgers, "Numbers", lambda last: Numbers(-1))),
    "a reader begins at the chain's first ledger, wherever it is": (6, silent(LogReader, "_seek", None)),
    "a truncation takes an earlier one back": (65, planted(LogRecord, "truncated", taken_back(LogRecord.truncated))),
    "a label that is no number is one of epoch 0": (5, planted(orphans, "epoch_of", of_epoch_0)),
    "a limit is for each lane": (12, planted(log_feed, "shared_out", lambda waiting, most: dict(waiting))),
    "a limit leaves nothing": (7, planted(log_feed, "shared_out", lambda waiting, _: dict.fromkeys(waiting, 0))),
    "a reader goes back where it hears of less": (
        301,
        planted(readers, "later", lambda at, newest: dict(newest)),
    ),
    "any place is one in the log": (0, planted(log_feed, "is_offset", lambda offset: True)),
    "a run that lost a lane claims it again": (2, planted(LogRecord, "claim", whoever_claims(LogRecord.claim))),
    "a batch write is forgotten that readers do not see yet": (
        79,
        planted(LogRecord, "batch_write_begun", whatever_is_committed(LogRecord.batch_write_begun)),
    ),
}
"""Each fault, and a seed from which the search begins, which detects it now."""


PLANTED_ANEW = {
    "a collection takes ledgers of the name": (270, planted(orphans, "is_of", of_the_name)),
    "a deletion deletes whatever record is there": (0, planted(LogRegistry, "delete", whichever)),
    "a log gets the id of a deleted one": (
        0,
        planted(LogRegistry, "_new_id", of_a_deleted_log_too(LogRegistry._new_id)),
    ),
    "a log is looked up again by its name": (84, looked_up_again),
}
"""The same for a log that is deleted and recreated."""

PLANTED_RETENTION = {
    "retention takes a commit too many": (24, planted(Retention, "expired", with_the_next(Retention.expired))),
    "retention deletes ledgers of which rows stay": (
        8,
        planted(retention, "_complete", lambda _, last_entries: last_entries),
    ),
    "retention takes commit ledgers of rows that stay": (2, planted(retention, "link_ends", all_at)),
}
"""The same for a log whose rows expire by time and by bytes."""

PLANTED_OFFLOAD = {
    "an offload deletes ledgers of which rows are not in the table": (
        31,
        planted(Offload, "_needless", whatever_is_closed),
    ),
    "a reader goes on behind a ledger that it could not open": (
        94,
        planted(LogReader, "_enter", passing_over(LogReader._enter, 0.15)),
    ),
}
"""The same for an offloaded log."""

PLANTED_OFFLOAD_ANEW = {
    "an offload looks its log up again by its name": (187, looked_up_again),
}
"""The same for a log that is offloaded, deleted and recreated."""

PLANTED_GROUPS = {
    "a reader saves the end of the log, wherever it is": (
        3,
        planted(RowReader, "commit", saves_the_end(RowReader.commit)),
    ),
    "an iteration saves the rows that it fetched": (
        3,
        planted(RowReader, "_next_fetched", behind_fetched(RowReader._next_fetched)),
    ),
    "a row's commit saves all returned rows": (448, planted(RowReader, "_behind", lambda reader, row: reader.offset)),
    "a reader does not begin where its group was": (7, silent(RowReader, "_saved", None)),
    "a lane is taken that another reader of the group has": (1, planted(Sharing, "take", whoever_has_them)),
    "a place in a log that was deleted is one in the next log": (
        2,
        planted(LogFeed, "key", property(lambda feed: feed.name)),
    ),
}
"""The same for groups of readers."""

PLANTED_SESSIONS = {
    "a reader whose session ended is no member of its group": (448, planted(Sharing, "join", as_listed)),
    "a lane is held for longer than a session": (7, planted(Sharing, "take", for_ever)),
}
"""The same for groups of readers whose sessions end."""

PLANTED_STARTS = {
    "a run deletes the start of another run": (132, planted(PinnedStart, "unpin", whose_ever(PinnedStart.unpin))),
    "a start is not kept": (
        5,
        planted(PinnedStart, "pin", lambda pinned, offset, key: {**offset, source.PIN: pinned._owner}),
    ),
}
"""The same for streaming queries that start at the end of the log."""

PLANTED_QUERIES = {
    "plans are not compared": (96, silent(Fingerprint, "may_be_planned_as", True)),
    "another batch of the last number is taken for the same": (4, silent(Fingerprint, "same_as", True)),
    "a replay is taken for another batch": (4, silent(Fingerprint, "same_as", False)),
    "the plan of the last batch is never the same": (1, silent(Fingerprint, "may_be_planned_as", False)),
    "a query that follows another one does not get its lane": (
        0,
        planted(lane_choice, "lane_of_query", following_nobody(lane_choice.lane_of_query)),
    ),
    "a lane ends with a row less": (0, planted(lane_ending, "lane_ended", a_row_less(lane_ending.lane_ended))),
    "the lane that batch writes share may end": (
        2,
        planted(lane_ending, "check_may_end", without_the_shared_one(lane_ending.check_may_end)),
    ),
    "a lane that has ended gets an owner": (58, planted(LogRecord, "claim", of_an_ended_lane_too(LogRecord.claim))),
    "the plan of a first batch is not compared": (
        31,
        planted(replays, "_check_last", but_the_first(replays._check_last)),
    ),
    "a lane that has ended is ended once more": (6, planted(lane_ending, "ending", whoever_is_there)),
    "tasks of a batch take lanes of their own": (87, a_lane_for_each_task),
    "tasks begin a batch write again": (592, begun_by_tasks),
    "a lane is as old as its newest row": (3, as_old_as_its_rows),
    "an idle lane ends although a writer took it": (62, planted(lane_ending, "ending", whenever(lane_ending.ending))),
}
"""The same for queries with copied checkpoints and followers, and for ended lanes."""

PLANTED_RECOVERIES = {
    "a recovery ends a producer": (0, planted(ProducerLedgers, "is_fenced", False)),
    "a row that moves is appended twice": (0, planted(producer_ledgers, "Moving", twice)),
    "rows that a recovery kept are not counted": (2, planted(Numbers, "after", lambda numbers, last: Numbers(-1))),
}
"""The same for producers whose ledgers are recovered."""

EVERY = [
    *((Kind.STEADY, what, *fault) for what, fault in PLANTED.items()),
    *((Kind.ANEW, what, *fault) for what, fault in PLANTED_ANEW.items()),
    *((Kind.RETENTION, what, *fault) for what, fault in PLANTED_RETENTION.items()),
    *((Kind.OFFLOAD, what, *fault) for what, fault in PLANTED_OFFLOAD.items()),
    *((Kind.OFFLOAD_ANEW, what, *fault) for what, fault in PLANTED_OFFLOAD_ANEW.items()),
    *((Kind.GROUPS, what, *fault) for what, fault in PLANTED_GROUPS.items()),
    *((Kind.GROUPS, what, *fault) for what, fault in PLANTED_SESSIONS.items()),
    *((Kind.STARTS, what, *fault) for what, fault in PLANTED_STARTS.items()),
    *((Kind.QUERIES, what, *fault) for what, fault in PLANTED_QUERIES.items()),
    *((Kind.RECOVERIES, what, *fault) for what, fault in PLANTED_RECOVERIES.items()),
]


@pytest.mark.parametrize(("kind", "what", "first", "fault"), EVERY, ids=[what for _, what, *_ in EVERY])
def test_planted_fault_is_detected(
    kind: Kind, what: str, first: int, fault: Callable[[], AbstractContextManager[Any]]
) -> None:
    def some() -> None:
        for seed in range(first, first + SEEDS_PLANTED):
            run(seed, kind)

    with fault(), pytest.raises(AssertionError) as found:
        some()
    first_error = found.value.__cause__ or found.value
    while first_error.__cause__ is not None:
        first_error = first_error.__cause__
    assert not isinstance(first_error, TypeError | AttributeError), "the fault or its schedule fits the code no more"
