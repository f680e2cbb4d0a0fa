"""The record of a cluster's change in the metadata store, under ``/bookspark/changes/cluster``: wanted state and progress.

Law: a cluster has one change at a time. The record is written by compare-and-set *before* the step, so a successor after a crash
knows every bookie that the change may have made read-only or taken down.

Each write gives the record a higher ``order``, and names the applying process as its ``owner``. A process takes the change over
by a write, so that every later write of the process before it fails. No step is made without a write at its doer:

===========================  =======================================================================================
step                         its doer, and the compare-and-set there
===========================  =======================================================================================
SetReadOnly, Resume          the bookie: it records the order with the switch, and refuses a lower one
                             (``protocol.bookie.read_only_switch``)
Restart, ReplaceDisk, Stop   the hands (``hands``): they write this record where only one request at a time is carried
                             out for the bookie
Move, Forget                 the metadata store: the ledger's record, and the cookie, change in one transaction with a
                             check of this record's version
===========================  =======================================================================================

So a process that stood still between its note of a step and the step, while another one went on or gave the change up, makes no
step when it wakes.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from bookspark.errors import MetadataVersionError, UnreadableRecordError
from bookspark.protocol.changes.wanted import Before, Progress, Wanted
from bookspark.store.metadata.documents.locks import new_token
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.records.versioned import Record, RecordVersion
from bookspark.store.metadata.store import MetadataStore

FORMAT_VERSION = 1
KIND, NAME = "changes", "cluster"


class ChangeState(Enum):
    UNDER_WAY = "under way"
    GIVEN_UP = "given up"
    """The wanted state is empty; read-only bookies of the change may still wait for their release."""
    COMPLETE = "complete"


class WantedDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored form of ``Wanted``."""

    restart: tuple[str, ...] = ()
    version: str = ""
    replace_disks: dict[str, str] = {}
    move: dict[str, tuple[str, ...]] = {}
    remove: tuple[str, ...] = ()
    balance: bool = False
    at_once: int = 1
    below_write_quorum: bool = False

    def wanted(self) -> Wanted:
        """The value."""
        return Wanted(
            frozenset(self.restart),
            self.version,
            self.replace_disks,
            self.move,
            frozenset(self.remove),
            self.balance,
            self.at_once,
            self.below_write_quorum,
        )


class ProgressDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored form of ``Progress``."""

    before: dict[str, tuple[int, int]] = {}
    """Each bookie's incarnation (0: down) and number of its last lossy boot, at the start of the change."""
    quieted: tuple[str, ...] = ()
    away: tuple[str, ...] = ()

    def progress(self) -> Progress:
        """The value."""
        before = {bookie: Before(*each) for bookie, each in self.before.items()}
        return Progress(before, frozenset(self.quieted), frozenset(self.away))


class ChangeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    wanted: WantedDocument
    progress: ProgressDocument
    begun_at_ms: int
    """Wall clock of the process that began the change, in ms since 1970."""
    state: ChangeState = ChangeState.UNDER_WAY
    steps: int = 0
    """Steps made, without moves."""
    moves: int = 0
    moved_bytes: int = 0
    """Bytes of entries copied by moves, repeated moves included."""
    ended_at_ms: int = 0
    """Time of completion, or of the release of all bookies of a given-up change, in ms since 1970. 0: under way."""
    order: int = 0
    """Number of this write, above those of all earlier changes. Each request to a bookie carries one."""
    owner: str = ""
    """Token of the process that wrote the record."""
    format_version: int = FORMAT_VERSION

    @property
    def under_way(self) -> bool:
        """The change has steps left."""
        return not self.ended_at_ms

    def after(self, progress: Progress) -> ChangeRecord:
        """The record with ``progress`` replaced."""
        return msgspec.structs.replace(self, progress=_progress_document(progress))


class Kept:
    """Reads and writes of the record by one process."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._token = new_token()
        self._owned = False
        self._version: int | None = None
        self._order = 0

    @property
    def under(self) -> RecordVersion:
        """The record as this process wrote it last, for writes that depend on it."""
        assert self._version is not None
        return RecordVersion(KIND, NAME, self._version)

    def read(self) -> ChangeRecord | None:
        """The last change; None: no change yet. Raises UnreadableRecordError."""
        found = self._store.read_record(KIND, NAME)
        if found is None:
            return None
        return self._record(found)

    def own(self) -> ChangeRecord | None:
        """The last change, which this process takes over at the first call; None: no change yet. Raises UnreadableRecordError,
        and MetadataVersionError if another process has taken it over since."""
        found = self._store.read_record(KIND, NAME)
        record = None if found is None else self._record(found)
        if self._owned and (record is None or record.owner != self._token):
            raise taken_over()
        if found is None or record is None:
            return None
        self._version, self._order = found.version, record.order
        return record if self._owned else self.write(record)

    def write(self, record: ChangeRecord, order_above: int = 0) -> ChangeRecord:
        """Replace the record of the last read or write, under an order above ``order_above``. Returns it as written. Raises
        MetadataVersionError if another process wrote it meanwhile."""
        order = max(self._order, order_above) + 1
        record = msgspec.structs.replace(record, order=order, owner=self._token)
        document = proven_struct(record, "record of the cluster's change")
        try:
            self._version = self._store.write_record(KIND, NAME, document, self._version)
        except MetadataVersionError as error:
            raise taken_over() from error
        self._owned, self._order = True, order
        return record

    def _record(self, found: Record) -> ChangeRecord:
        record = read_struct(found.value, ChangeRecord, "record of the cluster's change")
        if record.format_version != FORMAT_VERSION:
            raise UnreadableRecordError(
                f"the cluster's change was begun by a newer version of Bookspark (format {record.format_version}): upgrade here"
            )
        return record


def taken_over() -> MetadataVersionError:
    """The error of a process whose change another process has taken over."""
    return MetadataVersionError(
        "another process applies changes of this cluster by now, so this one makes no more steps; see `bookspark cluster status`"
    )


def new_record(wanted: Wanted, progress: Progress, now_ms: int) -> ChangeRecord:
    document = WantedDocument(
        tuple(sorted(wanted.restart)),
        wanted.version,
        dict(wanted.replace_disks),
        dict(wanted.move),
        tuple(sorted(wanted.remove)),
        wanted.balance,
        wanted.at_once,
        wanted.below_write_quorum,
    )
    return ChangeRecord(document, _progress_document(progress), now_ms)


def _progress_document(progress: Progress) -> ProgressDocument:
    before = {bookie: (each.incarnation, each.lossy_boot) for bookie, each in progress.before.items()}
    return ProgressDocument(before, tuple(sorted(progress.quieted)), tuple(sorted(progress.away)))


learn(ChangeRecord, WantedDocument, ProgressDocument)
