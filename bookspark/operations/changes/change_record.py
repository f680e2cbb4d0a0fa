"""The change of a cluster in the metadata store: what is wanted, and how far it is.

Law: a cluster has one change at a time. The record is changed by compare-and-set, *before* the step that it tells of, so whoever
goes on after a crash knows of every bookie that may be read-only or down because of it. Under ``/bookspark/changes/cluster``.
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
    """Nothing more is wanted; bookies that were made read-only are still to be let go."""
    COMPLETE = "complete"


class WantedDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``Wanted`` as it is kept."""

    restart: tuple[str, ...] = ()
    version: str = ""
    replace_disks: dict[str, str] = {}
    move: dict[str, tuple[str, ...]] = {}
    remove: tuple[str, ...] = ()
    balance: bool = False
    at_once: int = 1
    below_write_quorum: bool = False

    def wanted(self) -> Wanted:
        """The value of it."""
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
    """``Progress`` as it is kept."""

    before: dict[str, tuple[int, int]] = {}
    """By bookie, its incarnation (0: it was down) and the number of its last lossy boot, at the beginning."""
    quieted: tuple[str, ...] = ()
    away: tuple[str, ...] = ()

    def progress(self) -> Progress:
        """The value of it."""
        before = {bookie: Before(*each) for bookie, each in self.before.items()}
        return Progress(before, frozenset(self.quieted), frozenset(self.away))


class ChangeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change."""

    wanted: WantedDocument
    progress: ProgressDocument
    begun_at_ms: int
    """The wall clock of the one who began it, in ms since 1970."""
    state: ChangeState = ChangeState.UNDER_WAY
    steps: int = 0
    """How many steps were made, moves not counted."""
    moves: int = 0
    """How many fragments were moved."""
    moved_bytes: int = 0
    """How many bytes of entries were copied by that, with those of moves that were made again."""
    ended_at_ms: int = 0
    """When it was complete, or all bookies of one that was given up were let go. 0: it is under way."""
    format_version: int = FORMAT_VERSION

    @property
    def under_way(self) -> bool:
        """Is something still to be done?"""
        return not self.ended_at_ms

    def after(self, progress: Progress) -> ChangeRecord:
        """The same with another progress."""
        return msgspec.structs.replace(self, progress=_progress_document(progress))


class Kept:
    """The record as one process reads and writes it. Raises MetadataVersionError where another wrote it meanwhile."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._version: int | None = None

    def read(self) -> ChangeRecord | None:
        """The last change; None: there was none. Raises UnreadableRecordError."""
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
        """Replace the record that was read or written last."""
        document = proven_struct(record, "record of the cluster's change")
        self._version = self._store.write_record(KIND, NAME, document, self._version)


def new_record(wanted: Wanted, progress: Progress, now_ms: int) -> ChangeRecord:
    """The record of a change that begins now."""
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
