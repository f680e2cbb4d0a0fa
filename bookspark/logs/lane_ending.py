"""Ends idle lanes of a log, which otherwise cost its readers time.

Law: a lane ends whether its writer lives or not, and no acknowledged row is lost. The ender takes the lane over like a second run
of its writer; from then on its number of rows is final. A live or returning writer continues in a new lane, which knows the
commits of the old lane: no batch and no sequence number appears twice. ``protocol.logs.ended_lanes`` has the steps; after a crash
of the ender the next call finishes them.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from bookspark.errors import ConfigurationError
from bookspark.logs.chain.lane_index import LaneIndex
from bookspark.logs.chain.log_run import LogAddress, LogRun
from bookspark.logs.chain.reader import AT_THE_END, LogReader
from bookspark.logs.chain.registry import LaneName, LogName, LogRegistry, check_password
from bookspark.logs.producer_ledgers import ProducerLedgers
from bookspark.protocol.logs.ended_lanes import check_may_end, ending, lane_ended
from bookspark.protocol.logs.lanes import BATCH_WRITES, after_of, lane_of
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
    LogTakenOverError (a writer took the lane meanwhile), LogChangedError (the log was recreated); and LedgerRecoveryError,
    NotEnoughBookiesError and MetadataStoreError: call again after these.
    """
    store, registry = bookkeeper.metadata, LogRegistry(bookkeeper.metadata)
    log, number = lane_of(name)
    record = registry.get(log)
    check_password(record, password)
    index = LaneIndex(store, log)
    if number and number in registry.ended_lanes(record):
        return registry.get(name).ended_rows or 0
    check_may_end(record, number)
    run, writer = f"{ENDER}{uuid.uuid4().hex}", next(lane.writers[-1] for lane in record.lanes if lane.number == number)
    # In a log that was recreated since, this lane may be another writer's.
    lane = registry.update(name, partial(ending, run=run), record.ctime_ms)
    if lane.ended_rows is None:
        ledgers = ProducerLedgers(bookkeeper, LogRun.of(LogAddress("", name, password), lane), lane, writer)
        ledgers.settle()
        ledgers.committer.close()
        # Read after the last commit. (Earlier versions drop this field when they follow a lane.)
        after = after_of(registry.get(log), number)
        rows, time_ms = ledgers.at.rows, ledgers.time_ms
        lane = registry.update(
            name,
            partial(lane_ended, run=run, epoch=lane.epoch, rows=rows, time_ms=time_ms, after=after),
            record.ctime_ms,
        )
    index.finished(number)
    assert lane.ended_rows is not None
    return lane.ended_rows


@checked
def end_idle_lanes(bookkeeper: BookKeeper, name: LogName, password: Password = b"", idle_days: Days = 7.0) -> list[str]:
    """End each lane of log ``name`` that is empty or whose newest row is older than ``idle_days``; except lane 0 and the lane of
    batch writes. Returns the names of the ended lanes. A lane that a writer takes meanwhile stays. Raises the errors of
    ``end_lane``."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(name)
    check_password(record, password)
    since_ms = time.time_ns() // 1_000_000 - round(idle_days * 86_400_000)
    ended = []
    for lane in record.lanes:
        lane_named = f"{name}@{lane.number}"
        if BATCH_WRITES in lane.writers or _newest_ms(bookkeeper, lane_named, password) > since_ms:
            continue
        with suppress(LogTakenOverError, ConfigurationError):
            end_lane(bookkeeper, lane_named, password)
            ended.append(lane_named)
    return ended


def _newest_ms(bookkeeper: BookKeeper, name: str, password: bytes) -> int:
    """Time of the lane's newest row, in ms since 1970; 0 if the lane is empty."""
    reader, newest_ms = LogReader(bookkeeper, name, password, AT_THE_END), 0
    for placed in reader.commits():
        newest_ms = placed.commit.time_ms
    rows = reader.open_rows
    return rows.stamp_at(rows.rows - 1).time_ms if rows is not None and rows.look() else newest_ms
