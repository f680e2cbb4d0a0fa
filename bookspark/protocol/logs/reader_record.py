"""What is known of one reader of a log: who it is, and how far. Which of these records still tell something.

Law: a record tells how far a reader was, and no rows are chosen by it: a reader goes on where its own checkpoint or its saved
place says. A reader that is not heard for STALE_MS is *stale*, and said to be so; one that ended in order is *closed*.

The times are those of the reader's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bookspark.protocol.logs.lanes import MARK

BEAT_MS = 5_000
"""A reader that lives says so this often, also if it has not moved."""
STALE_MS = 4 * BEAT_MS
KEPT_MS = 7 * 24 * 3600 * 1000
"""A record is deleted when its reader was not heard for this time."""
UNNAMED_KEPT_MS = 3600 * 1000
"""The same for a reader without a name: nothing can go on where it was."""
KEPT_MAX = 100
"""Of readers that live no more, the records of this number are kept for each log."""


class ReaderKind(Enum):
    """What reads."""

    SPARK = "spark"
    """A streaming query."""
    PYTHON = "python"
    """A ``RowReader``."""


class ReaderState(Enum):
    """Does the reader live?"""

    LIVE = "live"
    STALE = "stale"
    """It was not heard for STALE_MS: it, its host or the network is down."""
    CLOSED = "closed"


@dataclass(frozen=True)
class ReaderRecord:
    """One reader, as it told last."""

    kind: ReaderKind
    offset: Mapping[str, int]
    """The place behind the last row that it is done with."""
    since_ms: int
    """When it began."""
    heard_ms: int
    """When it told this."""
    reader: str = ""
    """The id of the query, or the name of the group; empty if there is none, or it is not known yet."""
    run: str = ""
    """The run of the query."""
    name: str = ""
    """The name of the query."""
    closed: bool = False

    def state(self, now_ms: int) -> ReaderState:
        """Does the reader live at ``now_ms``?"""
        if self.closed:
            return ReaderState.CLOSED
        return ReaderState.LIVE if now_ms - self.heard_ms <= STALE_MS else ReaderState.STALE


def outdated(records: Mapping[str, ReaderRecord], ctime_ms: int, now_ms: int) -> set[str]:
    """The names of those of ``records``, all of one log, that tell nothing any more.

    ``ctime_ms``: when the log was made; the places in an earlier one of its name are none. Of a query, its newest run counts,
    whose sources may be several; of a group, the readers that live, else the one that was heard last.
    """
    gone = {name for name, one in records.items() if one.offset.get("log") != ctime_ms or _old(one, now_ms)}
    same: dict[tuple[str, ...], dict[str, ReaderRecord]] = defaultdict(dict)
    for name, one in records.items():
        if one.reader and name not in gone:
            # Behind the first mark is what it reads: the log, or a lane of it.
            same[one.kind.value, one.reader, name.partition(MARK)[2]][name] = one
    for found in same.values():
        gone |= _followed(found, now_ms)
    idle = [name for name, one in records.items() if name not in gone and one.state(now_ms) is not ReaderState.LIVE]
    idle.sort(key=lambda name: records[name].heard_ms, reverse=True)
    return gone | set(idle[KEPT_MAX:])


def _old(record: ReaderRecord, now_ms: int) -> bool:
    return now_ms - record.heard_ms > (KEPT_MS if record.reader else UNNAMED_KEPT_MS)


def _followed(same: Mapping[str, ReaderRecord], now_ms: int) -> set[str]:
    """Of records of one query or group, those of readers that others followed."""
    if next(iter(same.values())).kind is ReaderKind.SPARK:
        newest = max(same.values(), key=lambda one: one.since_ms)
        return {name for name, one in same.items() if one.run != newest.run}
    last = max(same, key=lambda name: same[name].heard_ms)
    return {name for name, one in same.items() if one.state(now_ms) is not ReaderState.LIVE and name != last}
