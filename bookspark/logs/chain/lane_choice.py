"""Choice of the lane for a streaming query or a batch write, in the metadata store.

Law: two writers never get the same lane, and a writer gets its earlier lane again. A writer takes lane 0 by its own
compare-and-set of the log's record, as long as the rule (``protocol.logs.lanes``) still says lane 0. The index assigns all other
lanes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import MetadataVersionError
from bookspark.logs.chain.commit_ledgers import newest_header
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.registry import ATTEMPTS_MAX, LogRegistry
from bookspark.protocol.logs.commits import CommitHeader
from bookspark.protocol.logs.lanes import (
    BATCH_WRITES,
    lane_in_index,
    lane_name,
    lane_of,
    lane_of_batch_write,
    lane_of_query,
    with_writer,
    writer_of,
)
from bookspark.protocol.logs.log_record import LogChangedError, LogRecord
from bookspark.store.decisions.seam import decided

if TYPE_CHECKING:
    from bookspark.logs.chain.log_run import LogAddress
    from bookspark.store.client import BookKeeper


class StreamingQuery(NamedTuple):
    """A streaming query that needs a lane."""

    id: str
    follows: str = ""
    """The query whose lane it may take over; empty: none."""
    checkpoint: str = ""
    """Path of its Spark checkpoint; empty: unknown."""


def known_lane(bookkeeper: BookKeeper, log: LogAddress, query: StreamingQuery) -> str | None:
    """Name of the query's lane, or of the lane that it would take over; None if it needs a new lane.

    Raises NoSuchLogError, AnotherQueryError (``lane_of_query``) and the errors of ``newest_header``.
    """
    record = LogRegistry(bookkeeper.metadata).get(log.name)
    if record.owner_query == query.id:
        return record.name
    index = LaneIndex(bookkeeper.metadata, log.name)
    while True:
        lane = lane_in_index(record, writer_of(query.id))
        if lane is None:
            record, header = newest_header(bookkeeper, log.name, log.password)

            def ended(key: str, record: LogRecord = record) -> str | None:
                kept = index.ended(record, key)
                return None if kept is None else kept.writer

            lane = lane_of_query(record, query.id, header.last_batches, query.follows, query.checkpoint, ended)
        if lane is None or not index.finished(lane):
            return None if lane is None else lane_name(record.name, lane)
        record = LogRegistry(bookkeeper.metadata).get(log.name)


def lane_for_query(bookkeeper: BookKeeper, log: LogAddress, query: StreamingQuery) -> str:
    """Like ``known_lane``, but creates a lane if the query needs it. Raises TooManyLanesError too, and MetadataVersionError if
    the lanes keep changing."""
    new = NewLane(writer_of(query.id), query.checkpoint, writer_of(query.follows) if query.follows else "")
    for _ in range(ATTEMPTS_MAX):
        lane = known_lane(bookkeeper, log, query)
        if lane is not None:
            return lane
        # The query in ``follows`` may have got a lane meanwhile.
        with suppress(LogChangedError):
            return lane_name(log.name, LaneIndex(bookkeeper.metadata, log.name).begin(new))
    raise MetadataVersionError(
        f"log {log.name!r}: its lanes changed {ATTEMPTS_MAX} times while one was looked for {query.id}"
    )


def claimed(
    bookkeeper: BookKeeper, log: LogAddress, lane: LogRecord, run: str, query: StreamingQuery, header: CommitHeader
) -> LogRecord:
    """Make ``run`` of ``query`` the owner of ``lane``, the result of ``lane_for_query``. ``header``: read together with ``lane``.

    Raises LogChangedError if another query or a batch write was first in lane 0, the lane has ended, or the log was recreated
    (the lane may then be another writer's, and ``header`` is outdated): choose a lane again. Raises LogTakenOverError,
    AnotherQueryError and NoSuchLogError.
    """
    registry, number = LogRegistry(bookkeeper.metadata), lane_of(lane.name)[1]
    names = {writer_of(query.id), writer_of(query.follows)}
    if number and not any(one.number == number and names & {*one.writers} for one in registry.get(log.name).lanes):
        raise LogChangedError(f"log {log.name!r}: meanwhile lane {number} ended, or the log was created again")

    def transition(record: LogRecord) -> LogRecord:
        if not number and lane_of_query(record, query.id, header.last_batches, query.follows) != 0:
            raise LogChangedError(f"log {log.name!r}: another writer was the first")
        claimed = decided(LogRecord.claim, record, run, query.id, query.follows, header.last_query)
        return claimed if number else replace(claimed, checkpoint=query.checkpoint)

    record = registry.update(lane.name, transition, lane.ctime_ms)
    note_writer(bookkeeper, log, record, query)
    return record


def note_writer(bookkeeper: BookKeeper, log: LogAddress, lane: LogRecord, query: StreamingQuery) -> None:
    """Enter ``query``, the owner of ``lane``, in the index. The entry may be missing if the query, following another, stopped
    just after its claim; a restart without ``follows`` would then create a second lane. Raises NoSuchLogError, and
    LogChangedError if the log was recreated."""
    if lane.name != log.name:
        number, writer = lane_of(lane.name)[1], writer_of(query.id)
        LogRegistry(bookkeeper.metadata).update(
            log.name, lambda index: with_writer(index, number, writer, query.checkpoint), lane.ctime_ms
        )


def begun_batch_write(bookkeeper: BookKeeper, log: LogAddress, run: str) -> LogRecord:
    """Begin the batch write ``run``, unless it has begun. Returns the record of its lane. Raises LogTakenOverError if the write
    has ended, NoSuchLogError and TooManyLanesError."""
    registry = LogRegistry(bookkeeper.metadata)
    now_ms = time.time_ns() // 1_000_000

    ctime_ms = -1

    def first(record: LogRecord) -> LogRecord:
        nonlocal ctime_ms
        ctime_ms = record.ctime_ms
        if lane_of_batch_write(record, run) != 0:
            raise LogChangedError(f"log {log.name!r}: a query was the first")
        return decided(LogRecord.batch_write_begun, record, run, now_ms)

    while True:
        try:
            return registry.update(log.name, first)
        except LogChangedError:
            # In a recreated log the lane may be another writer's, or batch writes may belong into lane 0. Versions of batch
            # writes are looked up in one lane only.
            with suppress(LogChangedError):
                lane = LaneIndex(bookkeeper.metadata, log.name).begin(NewLane(BATCH_WRITES), ctime_ms)
                return registry.begin_batch_write(lane_name(log.name, lane), run, ctime_ms)


def newest_version(bookkeeper: BookKeeper, log: LogAddress, application: str) -> int:
    """Last version of ``application`` (``TXN`` and its id) that batch writes committed, as far as readers see; −1: none. Raises
    the errors of ``newest_header``."""
    record = LogRegistry(bookkeeper.metadata).find(log.name)
    if record is None:
        return -1
    lane = lane_name(log.name, lane_in_index(record, BATCH_WRITES) or 0)
    return newest_header(bookkeeper, lane, log.password)[1].last_batches.get(application, -1)


def lane_of_run(bookkeeper: BookKeeper, log: LogAddress, run: str) -> LogRecord:
    """Record of the lane in which the batch write ``run`` is active, else that of lane 0. Raises NoSuchLogError."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(log.name)
    lane = lane_in_index(record, BATCH_WRITES)
    if record.batch_write(run) is None and lane is not None:
        return registry.get(lane_name(log.name, lane))
    return record
