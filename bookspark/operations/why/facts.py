"""Facts of one look at a cluster, and the answers drawn from them, as plain values.

Law: answers depend on these values only. An unknown never counts as good. Times are seconds before the look, unless the name says
otherwise.
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
from bookspark.store.cluster_view import ClusterView
from bookspark.store.metadata.zookeeper.exposure import Exposure
from bookspark.store.wire.messages import EntryLogFacts

Ranges = list[tuple[int, int]]
EXPIRED = "certificate has expired"
"""OpenSSL's words in the error of a connection to a bookie whose certificate ended."""
SLOW_ZOOKEEPER_SECONDS = 0.5
"""Slower small reads delay every creation and change of a ledger."""


@dataclass(frozen=True)
class Facts:
    """One look at a cluster."""

    zookeeper: str
    at_ms: int
    """Time of the look, in ms since 1970."""
    observed: Observed = field(default_factory=lambda: Observed({}))
    cluster: ClusterView = field(default_factory=ClusterView)
    """The bookies: registrations, cookies, answers, and last known places of those without an answer."""
    autorecovery: AutorecoveryStatus | None = None
    """None: not known."""
    tasks: tuple[TaskStatus, ...] = ()
    logs: Mapping[int, str] = field(default_factory=dict)
    """The logs of ledgers that lack copies, by ledger: of the newest ones, without ledgers outside of logs."""
    misplaced: Mapping[int, bool] = field(default_factory=dict)
    """Ledgers with a closed fragment that breaks the cluster's placement rule; True: other bookies are there for it now."""
    recovering: frozenset[int] = frozenset()
    """Ledgers in recovery at two looks, some time apart."""
    lost_records: tuple[LostRecords, ...] = ()
    """Ranges of ledger ids with lost records."""
    open_ledgers: int = 0
    own_certificates: Mapping[str, int] = field(default_factory=dict)
    """End of the certificates of this command's own options, in ms since 1970."""
    shown_certificates: Mapping[str, int] = field(default_factory=dict)
    """By bookie, the end of the certificate that it shows, in ms since 1970: of bookies that were refused for it."""
    change: ChangeRecord | None = None
    """The cluster's change that is under way."""
    zookeeper_seconds: float = 0.0
    """Median duration of small reads from ZooKeeper."""
    exposure: Exposure = field(default_factory=Exposure)
    """Doors of ZooKeeper that are open to strangers, if an ACL is asked for."""
    clock_ahead_ms: int = 0
    """Least lead of this host's clock over ZooKeeper's; below 0: least lag."""
    zookeeper_problem: str = ""
    """ZooKeeper's failure during the look. If not "", all other facts are unknown or incomplete."""

    def writable(self) -> list[str]:
        """Bookies that take new entries and copies. One that heals or lacks copies takes them too; a silent one does not."""
        silent = self.cluster.problems
        return sorted(
            n for n, one in self.observed.bookies.items() if one.registered and not one.read_only and n not in silent
        )


@dataclass(frozen=True)
class LedgerFacts:
    """One ledger: its record, and the entries that the bookies of its last fragment hold."""

    metadata: LedgerMetadata
    held: Mapping[str, Ranges] = field(default_factory=dict)
    """Held ranges by bookie of the last fragment, without silent bookies."""
    held_before: Mapping[str, Ranges] = field(default_factory=dict)
    """Held ranges ``seconds`` earlier."""
    seconds: float = 0.0
    log: LogRecord | None = None
    """The log in the ledger's custom metadata, if it exists."""


@dataclass(frozen=True)
class DiskFacts:
    """The disks of one bookie: sizes in bytes."""

    logs: tuple[EntryLogFacts, ...]
    live_bytes: int
    """Bytes of ledgers that exist and name the bookie."""
    deleted_ledgers: int
    """Deleted ledgers in its index."""
    deleted_bytes: int
    elsewhere_ledgers: int
    """Ledgers in its index that exist but don't name the bookie."""
    elsewhere_bytes: int


@dataclass(frozen=True)
class LaneFacts:
    record: LogRecord
    writer: str
    rows: int = 0
    commits: int = 0
    newest_seconds_ago: float | None = None
    """Age of the newest row or commit. None: no commit yet, or unknown."""
    problem: str = ""
    """The error of the read of the commits."""
    ensemble: tuple[str, ...] = ()
    """Bookies of the last commit ledger's last fragment."""


@dataclass(frozen=True)
class LogFacts:
    """One log, or one lane of it."""

    record: LogRecord
    lanes: tuple[LaneFacts, ...] = ()
    """Lanes that have not ended, by number."""
    readers: tuple[ReaderLag, ...] = ()
    asked: str = ""
    """Name of the query or group in the question; empty for questions about the log or its owner."""


class Severity(IntEnum):
    """Severity of a trouble; the highest number is the worst."""

    UNDER_WAY = 1
    """It mends itself; the answer reports the progress."""
    TROUBLE = 2
    """The operator must act; data is not at risk by this alone."""
    DANGER = 3
    """Entries are unreadable or below their ack quorum, or no bookie takes new entries."""


@dataclass(frozen=True)
class Answer:
    """A verdict, its causes and the remedy."""

    kind: str
    """Keyword of the trouble, for programs. Empty: no trouble."""
    subject: str
    verdict: str
    """One sentence."""
    causes: tuple[str, ...] = ()
    mend: str = ""
    command: str = ""
    """The command line of the remedy, or of its progress."""
    severity: Severity = Severity.TROUBLE

    @property
    def found(self) -> bool:
        """The answer reports a trouble."""
        return bool(self.kind)


@dataclass(frozen=True)
class Health:
    sentence: str
    troubles: tuple[Answer, ...] = ()
    """The worst first."""

    @property
    def command(self) -> str:
        """The next command to type; "" if none."""
        return next((one.command for one in self.troubles if one.command), "")
