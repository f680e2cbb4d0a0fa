"""Choice of the lane for a streaming query or a batch write, in the metadata store.

Law: two writers never get the same lane, and a writer gets its earlier lane again. A writer takes lane 0 by its own
compare-and-set of the log's record, as long as the rule (``protocol.logs.lanes``) still says lane 0. The index assigns all other
lanes. A run claims one lane, once: if that ends, the run is over.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import MetadataVersionError
from bookspark.logs.chain.commit_ledgers import newest_header
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.log_run import LogRun
from bookspark.logs.chain.maintenance import recover_ledgers
from bookspark.logs.chain.registry import LogRegistry
from bookspark.protocol.logs.commits import CommitHeader
from bookspark.protocol.logs.lanes import (
    BATCH_WRITES,
    LaneId,
    lane_id,
    lane_in_index,
    lane_of_batch_write,
    lane_of_query,
    with_writer,
    writer_of,
)
from bookspark.protocol.logs.log_record import LogChangedError, LogRecord
from bookspark.protocol.logs.replays import Batch, is_committed
from bookspark.store.decisions.seam import decided

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

ATTEMPTS_MAX = 100
"""Limit of choices in a row that other writers outdate."""


class StreamingQuery(NamedTuple):
    id: str
    follows: str = ""
    """The query whose lane the new query may take over; empty: none."""
    checkpoint: str = ""
    """Path of its Spark checkpoint; empty: unknown."""


def known_lane(bookkeeper: BookKeeper, log: LaneId, password: bytes, query: StreamingQuery) -> LaneId | None:
    """The query's lane, or the lane that it would take over; None if it needs a new lane.

    Raises NoSuchLogError, AnotherQueryError (``lane_of_query``) and the errors of ``newest_header``.
    """
    record = LogRegistry(bookkeeper.metadata).get(log)
    if record.owner_query == query.id:
        return log
    index = LaneIndex(bookkeeper.metadata, log)

    def ended(record: LogRecord, key: str) -> str | None:
        kept = index.ended(record, key)
        return None if kept is None else kept.writer

    while True:
        number = lane_in_index(record, writer_of(query.id))
        if number is None:
            record, header = newest_header(bookkeeper, log, password)
            last, look = header.last_batches, partial(ended, record)
            number = lane_of_query(record, query.id, last, query.follows, query.checkpoint, look)
        if number is None or not index.finished(number):
            return None if number is None else log.lane(number)
        record = LogRegistry(bookkeeper.metadata).get(log)


def lane_for_query(bookkeeper: BookKeeper, log: LaneId, password: bytes, query: StreamingQuery) -> LaneId:
    """Like ``known_lane``, but creates a lane if the query needs it. Raises TooManyLanesError too, and MetadataVersionError if
    the lanes keep changing."""
    new = NewLane(writer_of(query.id), query.checkpoint, writer_of(query.follows) if query.follows else "")
    for _ in range(ATTEMPTS_MAX):
        lane = known_lane(bookkeeper, log, password, query)
        if lane is not None:
            return lane
        # The query in ``follows`` may have got a lane meanwhile.
        with suppress(LogChangedError):
            return LaneIndex(bookkeeper.metadata, log).begin(new)
    raise MetadataVersionError(
        f"log '{log}': its lanes changed {ATTEMPTS_MAX} times while one was looked for {query.id}"
    )


def claimed(
    bookkeeper: BookKeeper, lane: LogRecord, run: str, query: StreamingQuery, header: CommitHeader
) -> LogRecord:
    """Make ``run`` of ``query`` the owner of ``lane``, the result of ``lane_for_query``. ``header``: read together with ``lane``.

    Raises LogChangedError if another query or a batch write was first in lane 0, or the lane has ended: choose a lane again.
    Raises LogTakenOverError (also if the run had another lane, which has ended), AnotherQueryError and NoSuchLogError.
    """
    registry, claims = LogRegistry(bookkeeper.metadata), lane_id(lane)
    log, number = registry.get(claims.lane(0)), claims.number
    LaneIndex(bookkeeper.metadata, claims).check_claims_first_lane(log, writer_of(query.id), run)

    def transition(record: LogRecord) -> LogRecord:
        if not number and lane_of_query(record, query.id, header.last_batches, query.follows) != 0:
            raise LogChangedError(f"log '{claims}': another writer was the first")
        claimed = decided(LogRecord.claim, record, run, query.id, query.follows, header.last_query)
        return claimed if number else replace(claimed, checkpoint=query.checkpoint)

    record = registry.update(claims, transition)
    note_writer(bookkeeper, record, query)
    return record


def note_writer(bookkeeper: BookKeeper, lane: LogRecord, query: StreamingQuery) -> None:
    """Enter ``query``, the owner of ``lane``, in the index. The entry may be missing if the query, following another, stopped
    just after its claim; a restart without ``follows`` would then create a second lane. Raises NoSuchLogError."""
    claimed, writer = lane_id(lane), writer_of(query.id)
    if claimed.number:
        LogRegistry(bookkeeper.metadata).update(
            claimed.lane(0), lambda index: with_writer(index, claimed.number, writer, query.checkpoint)
        )


def begun_batch_write(bookkeeper: BookKeeper, log: LaneId, run: str) -> LogRecord:
    """Begin the batch write ``run``, unless it has begun. Returns the record of its lane. Raises LogTakenOverError if the write
    has ended, NoSuchLogError and TooManyLanesError."""
    registry = LogRegistry(bookkeeper.metadata)

    def begun(record: LogRecord) -> LogRecord:
        return decided(LogRecord.batch_write_begun, record, run)

    def first(record: LogRecord) -> LogRecord:
        if lane_of_batch_write(record, run) != 0:
            raise LogChangedError(f"log '{log}': a query was the first")
        return begun(record)

    try:
        return registry.update(log, first)
    except LogChangedError:
        # Versions of batch writes are looked up in one lane only.
        return registry.update(LaneIndex(bookkeeper.metadata, log).begin(NewLane(BATCH_WRITES)), begun)


def end_batch_write(bookkeeper: BookKeeper, run: LogRun) -> None:
    """Record that the batch write ``run`` commits no more, and close its commit ledger. Raises NoSuchLogError."""
    registry = LogRegistry(bookkeeper.metadata)
    write, closed = registry.get(run.lane).batch_write(run.run), False
    if write is not None and write.commit_ledger >= 0:
        recover_ledgers(bookkeeper, [write.commit_ledger], run.password)
        closed = bookkeeper.get_ledger_metadata(write.commit_ledger).closed
    registry.update(run.lane, lambda record: decided(LogRecord.batch_write_ended, record, run.run, closed))


def has_version(bookkeeper: BookKeeper, log: LogRecord, password: bytes, version: Batch) -> bool:
    """Have batch writes committed this version of an application, as far as readers see? Raises CheckpointRewoundError if they
    have another one of its number, or a later one, and the errors of ``newest_header``."""
    lane = lane_id(log).lane(lane_in_index(log, BATCH_WRITES) or 0)
    return decided(is_committed, newest_header(bookkeeper, lane, password)[1], version)
