"""The end of a lane, and its remains.

Law: an ended lane has a fixed number of rows for ever, and is never written again. Its writer finds the lane by name, and goes on
in a new lane, which knows the old one's commits. The steps, each without effect if repeated:

1. ``ending``: the ending run owns the lane. It recovers the chain, settles the open ledger, and closes the last commit ledger.
2. ``lane_ended``: the lane's record has its number of rows.
3. A document by the name of each writer, and by the place of the Spark checkpoint (``Ended``). It comes before the index: a
   writer without either would be new to the log, and its replay would be there twice.
4. ``out_of_index``: the log's record has the lane in its tail of ended ones. A full tail is written as a block first.

Ended lanes are in the order of step 4, which never changes. Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from bookspark.errors import ConfigurationError
from bookspark.protocol.logs.lanes import BATCH_WRITES, place_key, service_writer, writer_of
from bookspark.protocol.logs.log_record import CLAIMS_MAX, ENDER, Lane, LogRecord, LogTakenOverError

BLOCK = 1000
"""Lanes in a block, and most in the tail."""


@dataclass(frozen=True)
class Ended:
    """Remains of an ended lane, stored by the name of a writer or by the place of a Spark checkpoint."""

    lane: int
    key: str
    """The name, or the place."""
    writer: str
    """The writer, or the owner of the Spark checkpoint at that place."""


def kept_of(lane: Lane, owner_query: str) -> list[Ended]:
    """``owner_query``: the last owner in the lane's own record, perhaps missing in the index, which is written after the
    claim."""
    owner = owner_query if owner_query.startswith(service_writer("")) else writer_of(owner_query)
    writers = dict.fromkeys((*lane.writers, *([owner] if owner_query else ())))
    kept = [Ended(lane.number, writer, writer) for writer in writers]
    if lane.checkpoint:
        kept.append(Ended(lane.number, place_key(lane.checkpoint), lane.writers[-1]))
    return kept


def check_may_end(record: LogRecord, number: int) -> None:
    """Raise ConfigurationError unless lane ``number`` of the log ``record`` may end."""
    lane = next((one for one in record.lanes if one.number == number), None)
    if number == 0 or (lane is not None and BATCH_WRITES in lane.writers):
        which = "lane 0" if number == 0 else f"lane {number}, which batch writes share,"
        raise ConfigurationError(f"log {record.name!r}: {which} never ends: there is one, whatever is written")
    if lane is None:
        numbers = ", ".join(str(one.number) for one in record.lanes) or "none beside 0"
        raise ConfigurationError(
            f"log {record.name!r} has no lane {number} that could end; those that have not ended: {numbers}"
        )


def ending(record: LogRecord, run: str, since_ms: float = inf) -> LogRecord:
    """The lane's record with ``run`` as its owner, to end it. Unchanged if repeated, or if the lane has ended. Raises
    LogTakenOverError if ``run`` has lost the lane, or the record changed after ``since_ms`` (by the store's clock): the
    lane has a writer since then."""
    if record.owner == run or record.ended_rows is not None:
        return record
    if record.changed_ms > since_ms:
        raise LogTakenOverError(
            f"log {record.name!r}: {record.owner or 'a writer'} took the lane meanwhile, so it stays"
        )
    if run in record.claims:
        record.check_writer(run, record.epoch)
    claims = (*record.claims, run)[-CLAIMS_MAX:]
    return replace(record, epoch=record.newest_epoch + 1, owner=run, claims=claims)


def lane_ended(record: LogRecord, run: str, epoch: int, rows: int, time_ms: int, after: int) -> LogRecord:
    """The lane's record with its final number of rows and last time. ``after``: its writer's previous lane. Raises
    LogTakenOverError if ``run`` does not own it in ``epoch``."""
    record.check_writer(run, epoch)
    # The last owner before the ending runs, of which some may have crashed: it must not go on in a new lane as if it had claimed
    # none.
    owners = [one for one in record.claims if not one.startswith(ENDER)]
    return replace(record, claims=(*owners[-1:], run), ended_rows=rows, ended_ms=time_ms, after=after)


def full_block(record: LogRecord) -> tuple[int, tuple[int, ...]] | None:
    """The block (number, lanes) to write before one more lane ends; None if the tail has room."""
    if len(record.ended_lanes) < BLOCK:
        return None
    return record.ended_count // BLOCK - 1, record.ended_lanes


def out_of_index(record: LogRecord, number: int) -> LogRecord:
    """The log's record with lane ``number`` among the ended ones. A full tail, already in a block, is emptied first."""
    left = tuple(lane for lane in record.lanes if lane.number != number)
    if left == record.lanes:
        return record
    tail = () if len(record.ended_lanes) >= BLOCK else record.ended_lanes
    return replace(record, lanes=left, ended_lanes=(*tail, number), ended_count=record.ended_count + 1)


def blocks_of(record: LogRecord, first: int) -> range:
    """The blocks from the lane that ended as number ``first`` on, from 0."""
    return range(first // BLOCK, (record.ended_count - len(record.ended_lanes)) // BLOCK)
