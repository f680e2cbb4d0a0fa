"""How a lane ends, and what is kept of it.

Law: a lane that has ended has a number of rows for ever, and nobody writes it again. Its writer finds by name which lane that
was, and goes on in a new one, which knows what the old one committed. The steps, of which each changes nothing if done twice:

1. ``ending``: the ender owns the lane. It recovers the chain, settles what is open, and closes the last commit ledger.
2. ``lane_ended``: the lane's record says how many rows it has.
3. A name for each of its writers, and for the place of the Spark checkpoint (``Ended``). Before the index, because a writer that
   comes back and finds neither would be new to the log, and its replay would be there twice.
4. ``out_of_index``: the log's record has the lane in its tail of ended ones. If the tail is full, it is a block first.

Lanes that ended are in the order of step 4, which never changes. Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bookspark.errors import ConfigurationError
from bookspark.protocol.logs.lanes import BATCH_WRITES, place_key, service_writer, writer_of
from bookspark.protocol.logs.log_record import CLAIMS_MAX, Lane, LogRecord

BLOCK = 1000
"""How many ended lanes a block has, and the tail in the log's record at most."""


@dataclass(frozen=True)
class Ended:
    """What is kept by the name of a writer, or by the place of a Spark checkpoint, of a lane that ended."""

    ctime_ms: int
    """When the log was made."""
    lane: int
    """The lane."""
    key: str
    """The name, or the place."""
    writer: str
    """The writer, or the one whose Spark checkpoint was there."""


def kept_of(record: LogRecord, lane: Lane, owner_query: str) -> list[Ended]:
    """What is kept of a lane of the log ``record``. ``owner_query``: who the lane's own record says owned it last, whom the index
    may not know: it is told after the claim."""
    owner = owner_query if owner_query.startswith(service_writer("")) else writer_of(owner_query)
    writers = dict.fromkeys((*lane.writers, *([owner] if owner_query else ())))
    kept = [Ended(record.ctime_ms, lane.number, writer, writer) for writer in writers]
    if lane.checkpoint:
        kept.append(Ended(record.ctime_ms, lane.number, place_key(lane.checkpoint), lane.writers[-1]))
    return kept


def check_may_end(record: LogRecord, number: int) -> None:
    """Raise ConfigurationError if lane ``number`` of the log ``record`` is none that may end."""
    lane = next((one for one in record.lanes if one.number == number), None)
    if number == 0 or (lane is not None and BATCH_WRITES in lane.writers):
        which = "lane 0" if number == 0 else f"lane {number}, which batch writes share,"
        raise ConfigurationError(f"log {record.name!r}: {which} never ends: there is one, whatever is written")
    if lane is None:
        numbers = ", ".join(str(one.number) for one in record.lanes) or "none beside 0"
        raise ConfigurationError(
            f"log {record.name!r} has no lane {number} that could end; those that have not ended: {numbers}"
        )


def ending(record: LogRecord, run: str) -> LogRecord:
    """The lane's record with ``run``, which is to end it, as its owner. Done twice it changes nothing, nor if the lane has ended.
    Raises LogTakenOverError if ``run`` has lost the lane."""
    if record.owner == run or record.ended_rows is not None:
        return record
    if run in record.claims:
        record.check_writer(run, record.epoch)
    claims = (*record.claims, run)[-CLAIMS_MAX:]
    return replace(record, epoch=record.newest_epoch + 1, owner=run, claims=claims)


def lane_ended(record: LogRecord, run: str, epoch: int, rows: int, time_ms: int, after: int) -> LogRecord:
    """The lane's record with ``rows`` rows for ever, the last one of ``time_ms``. ``after``: the lane that its writer had before.
    Raises LogTakenOverError if ``run`` does not own it in ``epoch``."""
    record.check_writer(run, epoch)
    return replace(record, claims=(), ended_rows=rows, ended_ms=time_ms, after=after)


def full_block(record: LogRecord) -> tuple[int, tuple[int, ...]] | None:
    """The number of the block that has to be there before one more lane ends, and its lanes; None if there is room."""
    if len(record.ended_lanes) < BLOCK:
        return None
    return record.ended_count // BLOCK - 1, record.ended_lanes


def out_of_index(record: LogRecord, number: int) -> LogRecord:
    """The log's record with lane ``number`` among those that ended. Its tail has a block of its own, if it is full."""
    left = tuple(lane for lane in record.lanes if lane.number != number)
    if left == record.lanes:
        return record
    tail = () if len(record.ended_lanes) >= BLOCK else record.ended_lanes
    return replace(record, lanes=left, ended_lanes=(*tail, number), ended_count=record.ended_count + 1)


def blocks_of(record: LogRecord, first: int) -> range:
    """The blocks that have lanes from the one on that ended as number ``first``, from 0."""
    return range(first // BLOCK, (record.ended_count - len(record.ended_lanes)) // BLOCK)
