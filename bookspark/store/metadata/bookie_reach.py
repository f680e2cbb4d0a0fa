"""Reach of a bookie's directories, noted beside its cookie, so that its next start recognizes a restored older copy.

Law: noted values were durable before. The bookie itself writes the note: before it serves, each minute with new writes, and
when it stops. A failure after the first note only hides an older copy. Record, as JSON::

    bookie_reach/<bookie id>    {"directories": {"/disk/bookspark/bookie-1": {"writes": 12, "location": 4295032833}}}

``protocol.bookie.reach`` defines the meaning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from bookspark.errors import MetadataStoreError, MetadataVersionError, UnreadableRecordError
from bookspark.protocol.bookie.reach import Reach
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore
from bookspark.support.threads import BackOff, Repeated

REACHES = "bookie_reach"
NOTED_SECONDS = 60.0
"""Largest age of an older copy that goes unnoticed."""

log = logging.getLogger(__name__)


class _Noted(msgspec.Struct, frozen=True):
    writes: int
    location: int


class BookieReach(msgspec.Struct, frozen=True):
    directories: dict[str, _Noted]


learn(BookieReach)


class ReachNotes:
    """Keeps the note of one bookie. ``noted``: the note of its last process."""

    def __init__(self, store: MetadataStore, bookie_id: str) -> None:
        """Read the note. Raises MetadataStoreError if the store does not answer."""
        self._store = store
        self._bookie_id = bookie_id
        self._reach: Callable[[], Mapping[str, Reach]] = dict
        self._thread = Repeated("reach", self._follow, BackOff(NOTED_SECONDS, NOTED_SECONDS))
        self.noted = self._read()

    def follow(self, reach: Callable[[], Mapping[str, Reach]]) -> None:
        """Note the values of ``reach``, callable from any thread, now and each minute from now on. A missing directory keeps
        its note. Raises MetadataStoreError if the note can't be written now."""
        self._reach = reach
        self._note()
        self._thread.start()

    def end(self) -> None:
        if self._thread.stop() and self._thread.ended:
            self.note()

    def note(self) -> None:
        """Write the note, if there is news. A failure is logged."""
        try:
            self._note()
        except MetadataStoreError as error:
            log.warning("how far the directories go could not be noted, which is tried again: %s", error)

    def _read(self) -> dict[str, Reach]:
        found = self._store.read_record(REACHES, self._bookie_id)
        try:
            read = None if found is None else read_struct(found.value, BookieReach, f"reach of {self._bookie_id}")
        except UnreadableRecordError as error:
            log.warning("%s; an older copy of a directory would not be found this time", error)
            read = None
        return {} if read is None else {path: Reach(one.writes, one.location) for path, one in read.directories.items()}

    def _note(self) -> None:
        reach = {**self.noted, **self._reach()}
        if reach == self.noted:
            return
        found = self._store.read_record(REACHES, self._bookie_id)
        document = proven_struct(
            BookieReach({path: _Noted(*one) for path, one in reach.items()}), f"reach of {self._bookie_id}"
        )
        try:
            self._store.write_record(REACHES, self._bookie_id, document, None if found is None else found.version)
        except MetadataVersionError:
            # The directories' locks permit one process for a bookie, so this answers a request that was sent twice.
            return
        self.noted = reach

    def _follow(self) -> float:
        self.note()
        return NOTED_SECONDS
