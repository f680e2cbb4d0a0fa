"""What was seen of a cluster, as plain values, and what is concluded from them.

Law: answers are made of these values and of nothing else. What did not answer is a fact too: an unknown never counts as good.
Times are seconds before the look, unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from bookspark.logs.readers.lag import ReaderLag
from bookspark.operations.changes.change_record import ChangeRecord
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.changes.observed import Observed
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.store.autorecovery.status import AutorecoveryStatus, TaskStatus
from bookspark.store.metadata.bookie_homes import BookieHome
from bookspark.store.wire.messages import BookieStatus, EntryLogFacts

Ranges = list[tuple[int, int]]
SLOW_ZOOKEEPER_SECONDS = 0.5
"""A small read that takes longer than this makes every ledger that begins or changes wait."""


@dataclass(frozen=True)
class Facts:
    """One look at a cluster."""

    zookeeper: str
    at_ms: int
    """When it was, by the clock of this host, in ms since 1970."""
    observed: Observed = field(default_factory=lambda: Observed({}))
    statuses: Mapping[str, BookieStatus] = field(default_factory=dict)
    """What each bookie that answered says of itself."""
    clocks_ahead_ms: Mapping[str, int] = field(default_factory=dict)
    """How far the clock of each of these is ahead of the clock here, at least; below 0: behind it."""
    homes: Mapping[str, BookieHome] = field(default_factory=dict)
    """Where the bookies that are down, or don't answer, served last, as far as that is noted."""
    autorecovery: AutorecoveryStatus | None = None
    """None: it could not be asked."""
    tasks: tuple[TaskStatus, ...] = ()
    recovering: frozenset[int] = frozenset()
    """Ledgers that were in recovery at both of two looks."""
    lost_records: tuple[LostRecords, ...] = ()
    """Ids of ledgers whose records are lost."""
    open_ledgers: int = 0
    change: ChangeRecord | None = None
    """The change of the cluster that is under way."""
    zookeeper_seconds: float = 0.0
    """How long ZooKeeper took for a small read: the median of some."""
    zookeeper_problem: str = ""
    """Why ZooKeeper could not be asked to the end. Then all the rest is not known, or not whole."""
    bookie_problems: Mapping[str, str] = field(default_factory=dict)
    """Registered bookies that did not answer, and what came instead."""

    def down(self) -> list[str]:
        """The bookies that have a cookie, and are not registered."""
        return sorted(name for name, one in self.observed.bookies.items() if not one.registered)

    def writable(self) -> list[str]:
        """The bookies that new entries and copies may go to."""
        return sorted(name for name, one in self.observed.bookies.items() if one.writable)


@dataclass(frozen=True)
class LedgerFacts:
    """One ledger: its record, and what the bookies of its ensembles say to hold."""

    metadata: LedgerMetadata
    held: Mapping[str, Ranges] = field(default_factory=dict)
    """By bookie of the last fragment; those that did not answer are not here."""
    held_before: Mapping[str, Ranges] = field(default_factory=dict)
    """The same, ``seconds`` before."""
    seconds: float = 0.0
    log: LogRecord | None = None
    """The log that the ledger says to belong to, if there is one."""


@dataclass(frozen=True)
class DiskFacts:
    """The disks of one bookie: sizes in bytes."""

    logs: tuple[EntryLogFacts, ...]
    live_bytes: int
    """Of ledgers that exist and name the bookie."""
    deleted_ledgers: int
    """Ledgers in its index that are deleted."""
    deleted_bytes: int
    elsewhere_ledgers: int
    """Ledgers in its index that exist and don't name the bookie."""
    elsewhere_bytes: int


@dataclass(frozen=True)
class LaneFacts:
    """One lane of a log."""

    record: LogRecord
    writer: str
    """Whose it is."""
    rows: int = 0
    commits: int = 0
    newest_seconds_ago: float | None = None
    """The age of its newest row or commit. None: nothing was ever committed, or it is not known."""
    problem: str = ""
    """Why the commits could not be read."""
    ensemble: tuple[str, ...] = ()
    """The bookies of the last commit ledger's last fragment."""


@dataclass(frozen=True)
class LogFacts:
    """One log, or one lane of it."""

    record: LogRecord
    lanes: tuple[LaneFacts, ...] = ()
    """Those that have not ended, in the order of their numbers."""
    readers: tuple[ReaderLag, ...] = ()
    """Who reads it, and how far behind."""
    asked: str = ""
    """The name of the query or group that was asked about; empty if the log was, or its owner."""


class Severity(IntEnum):
    """How bad it is. The highest number is the worst."""

    UNDER_WAY = 1
    """It mends itself; this says how far it is."""
    TROUBLE = 2
    """Somebody has to do something, and data is not at risk by it alone."""
    DANGER = 3
    """Entries can't be read, or have fewer copies than their ack quorum, or nothing can be written."""


@dataclass(frozen=True)
class Answer:
    """What is so, why, and what mends it."""

    kind: str
    """One word for each cause, for programs. Empty: there is no trouble."""
    subject: str
    verdict: str
    """One sentence."""
    causes: tuple[str, ...] = ()
    """Why, each because of the next."""
    mend: str = ""
    """What to do, in words."""
    command: str = ""
    """The command line that does it, or that shows when it is done."""
    severity: Severity = Severity.TROUBLE

    @property
    def found(self) -> bool:
        """Is something wrong?"""
        return bool(self.kind)


@dataclass(frozen=True)
class Health:
    """The whole cluster."""

    sentence: str
    troubles: tuple[Answer, ...] = ()
    """The worst first."""

    @property
    def command(self) -> str:
        """The next command to type. Empty: none."""
        return next((one.command for one in self.troubles if one.command), "")
