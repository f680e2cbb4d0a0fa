"""Ends idle lanes of a log, which otherwise cost its readers time.

Law: a lane ends whether its writer lives or not, and no acknowledged row is lost. The ender takes the lane over like a second run
of its writer; from then on its number of rows is final. A live or returning writer continues in a new lane, which knows the
commits of the old lane: no batch and no sequence number appears twice. ``protocol.logs.ended_lanes`` has the steps; after a crash
of the ender the next call finishes them.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from bookspark.errors import ConfigurationError, InvalidRowError
from bookspark.logs.chain.lane_index import LaneIndex
from bookspark.logs.chain.log_run import LogAddress, LogRun
from bookspark.logs.chain.reader import AT_THE_END, LogReader
from bookspark.logs.chain.registry import LaneName, LogName, LogRegistry, check_password
from bookspark.logs.producer_ledgers import ProducerLedgers
from bookspark.protocol.logs.ended_lanes import check_may_end, ending, lane_ended
from bookspark.protocol.logs.lanes import BATCH_WRITES, LaneId, after_of, lane_id, lane_of
from bookspark.protocol.logs.log_record import ENDER, LogTakenOverError
from bookspark.support.arguments import Password, checked

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

Days = Annotated[float, Meta(ge=0, le=100_000)]


@checked
def end_lane(bookkeeper: BookKeeper, name: LaneName, password: Password = b"") -> int:
    """End the lane ``name`` (``orders@3``). Returns its number of rows. A second call changes nothing.

    A live writer fails at its next commit or row; after a restart it continues in a new lane. Raises ConfigurationError (lane 0,
    the lane of batch writes, or a lane that does not exist), NoSuchLogError, UnauthorizedAccessError (wrong password),
    LogTakenOverError (a writer took the lane meanwhile); and LedgerRecoveryError, NotEnoughBookiesError and MetadataStoreError:
    call again after these.
    """
    log = lane_id(LogRegistry(bookkeeper.metadata).get(lane_of(name)[0]))
    return _end(bookkeeper, log.lane(lane_of(name)[1]), password)


def _end(bookkeeper: BookKeeper, lane: LaneId, password: bytes, since_ms: float = inf) -> int:
    """``since_ms``: a lane whose record changed later stays, which raises LogTakenOverError."""
    registry = LogRegistry(bookkeeper.metadata)
    log = registry.get(lane.lane(0))
    check_password(log, password)
    if lane.number and lane.number in registry.ended_lanes(log):
        return registry.get(lane).ended_rows or 0
    check_may_end(log, lane.number)
    run = f"{ENDER}{uuid.uuid4().hex}"
    writer = next(indexed.writers[-1] for indexed in log.lanes if indexed.number == lane.number)
    record = registry.update(lane, partial(ending, run=run, since_ms=since_ms))
    if record.ended_rows is None:
        ledgers = ProducerLedgers(bookkeeper, LogRun.of(LogAddress("", lane.name, password), record), record, writer)
        ledgers.settle()
        ledgers.committer.close()
        after = after_of(registry.get(lane.lane(0)), lane.number)
        rows, time_ms = ledgers.at.rows, ledgers.time_ms
        end = partial(lane_ended, run=run, epoch=record.epoch, rows=rows, time_ms=time_ms, after=after)
        record = registry.update(lane, end)
    LaneIndex(bookkeeper.metadata, lane).finished(lane.number)
    assert record.ended_rows is not None
    return record.ended_rows


@checked
def end_idle_lanes(bookkeeper: BookKeeper, name: LogName, password: Password = b"", idle_days: Days = 7.0) -> list[str]:
    """End each lane of log ``name`` to which nothing happened for ``idle_days``: its record has not changed, so nobody took it,
    and its newest row is older. Lane 0 and the lane of batch writes stay. Returns the names of the ended lanes. A lane that a
    writer takes meanwhile stays. Raises the errors of ``end_lane``."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(name)
    check_password(record, password)
    since_ms = bookkeeper.metadata.clock.now_ms() - round(idle_days * 86_400_000)
    ended = []
    for indexed in record.lanes:
        lane = lane_id(record).lane(indexed.number)
        if BATCH_WRITES in indexed.writers or _newest_ms(bookkeeper, lane, password) > since_ms:
            continue
        with suppress(LogTakenOverError, ConfigurationError):
            _end(bookkeeper, lane, password, since_ms)
            ended.append(str(lane))
    return ended


def _newest_ms(bookkeeper: BookKeeper, lane: LaneId, password: bytes) -> int:
    """Time of the last change of the lane's record (its owner took it then, or later) or of its newest row, in ms since 1970."""
    reader = LogReader(bookkeeper, lane, password, AT_THE_END)
    newest_ms = reader.record.changed_ms
    for placed in reader.commits():
        newest_ms = max(newest_ms, placed.commit.time_ms)
    rows = reader.open_rows
    if rows is not None and rows.look():
        # An entry that is no row has no time.
        with suppress(InvalidRowError):
            newest_ms = max(newest_ms, rows.stamp_at(rows.rows - 1).time_ms)
    return newest_ms
