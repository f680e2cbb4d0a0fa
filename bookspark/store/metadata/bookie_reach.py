"""How far a bookie's directories go, noted beside its cookie, so that its next start knows an older copy that was put back.

Law: what is noted was durable before, and the bookie itself notes it: before it serves, each minute in which something came, and
when it stops. A note that can't be written later, or read, costs no more than that an older copy is not found. Record, as JSON::

    bookie_reach/<bookie id>    {"directories": {"/disk/bookspark/bookie-1": {"writes": 12, "location": 4295032833}}}

What it means is ``protocol.bookie.reach``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import msgspec

from bookspark.errors import MetadataStoreError, MetadataVersionError, UnreadableRecordError
from bookspark.protocol.bookie.reach import Reach
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore

REACHES = "bookie_reach"
NOTED_SECONDS = 60.0
"""How old a copy may be that passes for the directory itself."""

log = logging.getLogger(__name__)


class _Noted(msgspec.Struct, frozen=True):
    writes: int
    location: int


class BookieReach(msgspec.Struct, frozen=True):
    """How far the directories of a bookie go, by absolute path."""

    directories: dict[str, _Noted]


learn(BookieReach)


class ReachNotes:
    """Keeps the note of one bookie. ``noted`` is what its last process left there."""

    def __init__(self, store: MetadataStore, bookie_id: str) -> None:
        """Read the note. Raises MetadataStoreError if the store does not answer."""
        self._store = store
        self._bookie_id = bookie_id
        self._ended = threading.Event()
        self._reach: Callable[[], Mapping[str, Reach]] = dict
        self._thread = threading.Thread(target=self._follow, name="reach", daemon=True)
        self.noted = self._read()

    def follow(self, reach: Callable[[], Mapping[str, Reach]]) -> None:
        """Note what ``reach`` tells, which any thread may ask, now and each minute from now on. A directory that it does not tell
        of keeps its note. Raises MetadataStoreError if the note can't be written now."""
        self._reach = reach
        self._note()
        self._thread.start()

    def end(self) -> None:
        """Note it for the last time."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
            self.note()

    def note(self) -> None:
        """Write the note, if there is something new. What fails is logged."""
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
            # The locks of the directories let one process be the bookie, so this is the answer to a request that was sent twice.
            return
        self.noted = reach

    def _follow(self) -> None:
        while not self._ended.wait(NOTED_SECONDS):
            self.note()
