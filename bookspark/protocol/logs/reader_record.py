"""One reader of a log: its identity, its progress, and whether its record is outdated.

Law: the record is for people: a reader goes on from its own checkpoint or its saved place. A reader silent for STALE_MS is
*stale*; a reader that ended in order is *closed*, and so is a query that has read all that ``availableNow`` had for it. A reader
lives as long as it renews its record; the age of that is measured by the metadata store's clock, so no host's clock decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bookspark.protocol.logs.lanes import MARK

BEAT_MS = 5_000
"""Interval of a live reader's reports, also without progress."""
STALE_MS = 4 * BEAT_MS
KEPT_MS = 7 * 24 * 3600 * 1000
"""Silence of a reader after which its record is deleted."""
UNNAMED_KEPT_MS = 3600 * 1000
"""The same for a reader without a name, whose place has no use later."""
KEPT_MAX = 100
"""Most records of dead readers for each log."""


class ReaderKind(Enum):
    SPARK = "spark"
    """A streaming query."""
    PYTHON = "python"
    """A ``RowReader``."""


class ReaderState(Enum):
    LIVE = "live"
    STALE = "stale"
    """Silent for STALE_MS: the reader, its host or the network is down."""
    CLOSED = "closed"
    """It ended in order."""


@dataclass(frozen=True)
class ReaderRecord:
    kind: ReaderKind
    offset: Mapping[str, int]
    """Offset behind the reader's last finished row."""
    since_ms: int
    """Start of the reader, by its own clock."""
    reader: str = ""
    """The id of the query, or the name of the group; empty if unknown or none."""
    run: str = ""
    name: str = ""
    process: str = ""
    """Host and process id, ``HOST:PID``: members of a group have one name."""
    closed: bool = False
    beat: int = 0
    """Number of the report: a report without news changes the record too."""
    heard_ms: int = field(default=0, compare=False)
    """Time of the last report, by the metadata store's clock. It is not part of the record."""

    def state(self, now_ms: int) -> ReaderState:
        if self.closed:
            return ReaderState.CLOSED
        return ReaderState.LIVE if now_ms - self.heard_ms <= STALE_MS else ReaderState.STALE


def outdated(records: Mapping[str, ReaderRecord], now_ms: int) -> set[str]:
    """The names of outdated ``records``, all of one log.

    All live runs of a query and live readers of a group are kept, and the one heard last. A run is kept with all of its sources.
    """
    gone = {name for name, one in records.items() if _old(one, now_ms)}
    same: dict[tuple[str, ...], dict[str, ReaderRecord]] = defaultdict(dict)
    for name, one in records.items():
        if one.reader and name not in gone:
            # Behind the first mark is the object that it reads: the log, or a lane of it.
            same[one.kind.value, one.reader, name.partition(MARK)[2]][name] = one
    for found in same.values():
        gone |= _followed(found, now_ms)
    idle = [name for name, one in records.items() if name not in gone and one.state(now_ms) is not ReaderState.LIVE]
    idle.sort(key=lambda name: records[name].heard_ms, reverse=True)
    return gone | set(idle[KEPT_MAX:])


def _old(record: ReaderRecord, now_ms: int) -> bool:
    return now_ms - record.heard_ms > (KEPT_MS if record.reader else UNNAMED_KEPT_MS)


def _followed(same: Mapping[str, ReaderRecord], now_ms: int) -> set[str]:
    """Readers with a successor, by name; ``same``: records of one query or group."""

    def run(name: str) -> str:
        return same[name].run if same[name].kind is ReaderKind.SPARK else name

    living = {run(name) for name, one in same.items() if one.state(now_ms) is ReaderState.LIVE}
    last = run(max(same, key=lambda name: same[name].heard_ms))
    return {name for name in same if run(name) not in living | {last}}
