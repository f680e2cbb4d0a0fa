"""Which lane a streaming query or a batch write writes, in the metadata store.

Law: two writers that look for a lane at once never get the same one, and a writer that had one gets it again. Lane 0 is taken by
the writer's own compare-and-set of the log's record, which is tried only as long as the rule still says lane 0. Every other lane
is given out by the index. ``protocol.logs.lanes`` has the rule.
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
    """A streaming query that looks for its lane."""

    id: str
    """Spark's id of it."""
    follows: str = ""
    """The query whose lane it may take over. Empty: none."""
    checkpoint: str = ""
    """Where its Spark checkpoint is. Empty: not known."""


def known_lane(bookkeeper: BookKeeper, log: LogAddress, query: StreamingQuery) -> str | None:
    """The name of the lane that the query writes, or would take over; None if it needs a new one.

    Raises NoSuchLogError, AnotherQueryError (see ``lane_of_query``), and what ``newest_header`` lists.
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
    """The same; a lane is made if it needs a new one. Raises TooManyLanesError too, and MetadataVersionError if the lanes change
    again and again."""
    new = NewLane(writer_of(query.id), query.checkpoint, writer_of(query.follows) if query.follows else "")
    for _ in range(ATTEMPTS_MAX):
        lane = known_lane(bookkeeper, log, query)
        if lane is not None:
            return lane
        # The query that it follows may have got a lane meanwhile.
        with suppress(LogChangedError):
            return lane_name(log.name, LaneIndex(bookkeeper.metadata, log.name).begin(new))
    raise MetadataVersionError(
        f"log {log.name!r}: its lanes changed {ATTEMPTS_MAX} times while one was looked for {query.id}"
    )


def claimed(
    bookkeeper: BookKeeper, log: LogAddress, lane: LogRecord, run: str, query: StreamingQuery, header: CommitHeader
) -> LogRecord:
    """Make ``run`` of ``query`` the owner of ``lane``, which ``lane_for_query`` found. ``header``: its newest, read with it.

    Raises LogChangedError if another query, or a batch write, was the first in lane 0 meanwhile, or the lane has ended: look for
    a lane again; so if the log was made anew, where the lane may be another writer's, and of which ``header`` tells nothing.
    Raises LogTakenOverError, AnotherQueryError and NoSuchLogError.
    """
    registry, number = LogRegistry(bookkeeper.metadata), lane_of(lane.name)[1]
    names = {writer_of(query.id), writer_of(query.follows)}
    if number and not any(one.number == number and names & {*one.writers} for one in registry.get(log.name).lanes):
        raise LogChangedError(f"log {log.name!r}: lane {number} ended, or the log was made anew, since it was found")

    def transition(record: LogRecord) -> LogRecord:
        if not number and lane_of_query(record, query.id, header.last_batches, query.follows) != 0:
            raise LogChangedError(f"log {log.name!r}: another writer was the first")
        claimed = decided(LogRecord.claim, record, run, query.id, query.follows, header.last_query)
        return claimed if number else replace(claimed, checkpoint=query.checkpoint)

    record = registry.update(lane.name, transition, lane.ctime_ms)
    note_writer(bookkeeper, log, record, query)
    return record


def note_writer(bookkeeper: BookKeeper, log: LogAddress, lane: LogRecord, query: StreamingQuery) -> None:
    """Have the index name ``query``, which owns ``lane``. It may lack one that followed another and was stopped just behind its
    claim; started again without ``follows``, that would get a second lane. Raises NoSuchLogError, and LogChangedError if the log
    was made anew."""
    if lane.name != log.name:
        number, writer = lane_of(lane.name)[1], writer_of(query.id)
        LogRegistry(bookkeeper.metadata).update(
            log.name, lambda index: with_writer(index, number, writer, query.checkpoint), lane.ctime_ms
        )


def begun_batch_write(bookkeeper: BookKeeper, log: LogAddress, run: str) -> LogRecord:
    """The record of the lane in which the batch write ``run`` is under way now. Raises LogTakenOverError if it has ended,
    NoSuchLogError and TooManyLanesError."""
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
            # If the log was made anew since, the lane may be another writer's, or batch writes may belong into lane 0 of it:
            # their versions are looked up in one lane.
            with suppress(LogChangedError):
                lane = LaneIndex(bookkeeper.metadata, log.name).begin(NewLane(BATCH_WRITES), ctime_ms)
                return registry.begin_batch_write(lane_name(log.name, lane), run, ctime_ms)


def newest_version(bookkeeper: BookKeeper, log: LogAddress, application: str) -> int:
    """The version of ``application`` (``TXN`` and its id) that batch writes committed last, as far as readers see; −1: none.
    Raises what ``newest_header`` lists."""
    record = LogRegistry(bookkeeper.metadata).find(log.name)
    if record is None:
        return -1
    lane = lane_name(log.name, lane_in_index(record, BATCH_WRITES) or 0)
    return newest_header(bookkeeper, lane, log.password)[1].last_batches.get(application, -1)


def lane_of_run(bookkeeper: BookKeeper, log: LogAddress, run: str) -> LogRecord:
    """The record of the lane in which the batch write ``run`` is under way; of lane 0 if it is in none. Raises
    NoSuchLogError."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(log.name)
    lane = lane_in_index(record, BATCH_WRITES)
    if record.batch_write(run) is None and lane is not None:
        return registry.get(lane_name(log.name, lane))
    return record
