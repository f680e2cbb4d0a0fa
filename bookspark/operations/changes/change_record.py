"""The record of a cluster's change in the metadata store, under ``/bookspark/changes/cluster``: wanted state and progress.

Law: a cluster has one change at a time. The record is written by compare-and-set *before* the step, so a successor after a crash
knows every bookie that the change may have made read-only or taken down.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from bookspark.errors import UnreadableRecordError
from bookspark.protocol.changes.wanted import Before, Progress, Wanted
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
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
    format_version: int = FORMAT_VERSION

    @property
    def under_way(self) -> bool:
        """The change has steps left."""
        return not self.ended_at_ms

    def after(self, progress: Progress) -> ChangeRecord:
        """The record with another progress."""
        return msgspec.structs.replace(self, progress=_progress_document(progress))


class Kept:
    """Reads and writes of the record by one process. Raises MetadataVersionError if another process wrote it meanwhile."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._version: int | None = None

    def read(self) -> ChangeRecord | None:
        """The last change; None: no change yet. Raises UnreadableRecordError."""
        found = self._store.read_record(KIND, NAME)
        if found is None:
            self._version = None
            return None
        record = read_struct(found.value, ChangeRecord, "record of the cluster's change")
        if record.format_version != FORMAT_VERSION:
            raise UnreadableRecordError(
                f"the cluster's change was begun by a newer version of Bookspark (format {record.format_version}): upgrade here"
            )
        self._version = found.version
        return record

    def write(self, record: ChangeRecord) -> None:
        """Replace the record of the last read or write."""
        document = proven_struct(record, "record of the cluster's change")
        self._version = self._store.write_record(KIND, NAME, document, self._version)


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
