"""The unclean marker: a small file that stands in a directory while a crash may lose acknowledged entries in it.

Law: the marker is durable before an unsynced add of a ledger of persistent durability (PD) is acknowledged. It is removed once
everything is synced, by a clean stop or after an idle time. A marker from before a boot is removed only after phase one of that
boot is durable. So a boot without a marker has lost no promised entry. Control records and recovery writes are synced before
their acknowledgement, and adds of ledgers of volatile durability (VD) promise nothing; neither needs the marker.

The marker also records a loss from its detection at a boot until phase one is durable, so a crash in between does not forget the
loss. Bytes::

    <directory>/unclean     the kernel's boot id as text; "lost": entries that were synced; "fences lost": control records,
                            and perhaps such entries; or nothing

With a trusted boot id, a bookie can tell a crash of its process, after which the page cache still has every acknowledged entry,
from a crash of the host. (That boot syncs all of it, so the old marker counts as its own.) The written position in each log's
note exposes bytes that the disk wrote to another place (``synced_note``). After a failed sync the page cache proves nothing, so
the boot id is wiped out. A boot that does not trust the id wipes it out too, because it settles the logs without these positions.
The cache does not prove a name either: after a failed sync of the directory it may hold the only marker, for good. So each
process makes its own marker before anything rests on it. A marker that its disk can't read counts as the worst one.

Source: BP-46, "Detecting Data Loss On Boot"; docs/decisions/without-the-journal.md.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from enum import IntEnum

from bookspark.store.bookie.disk.disk_errors import is_of_file, unless_refused
from bookspark.store.bookie.disk.file_system import (
    FileSystem,
    needing_space,
    read_all,
    replace_file,
    sync_names,
    uncached,
)

NAME = "unclean"


class Lost(IntEnum):
    """The loss that a marker records and phase one has not handled; the higher, the worse."""

    NOTHING = 0
    ENTRIES = 1
    FENCES = 2


_WORDS = {b"lost": Lost.ENTRIES, b"fences lost": Lost.FENCES}

log = logging.getLogger(__name__)


class UncleanMarker:
    """The marker of one directory. The boot uses it first, later the commit thread, and ``renew`` any thread."""

    def __init__(self, file_system: FileSystem, directory: str, boot_id: str = "") -> None:
        """``boot_id``: the kernel's boot id, or "" to trust none."""
        self._file_system = file_system
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._boot_id = boot_id
        self._content = b""
        self._lock = threading.Lock()
        self._found = self._durable = False
        self.stands = False
        self.cached = False
        """At the boot: did only a process die while the marker stood? The page cache then has its writes."""
        self.lost = Lost.NOTHING

    def look(self) -> bool:
        """May acknowledged entries of this directory be lost? For the boot; the marker stays until ``settled``, without a boot id
        that is not trusted. Raises OSError."""
        self.stands = self._file_system.exists(self._path)
        if not self.stands:
            return False
        try:
            noted = self._content = self._read()
        except OSError as error:
            if not is_of_file(error):
                raise
            log.error("%s can't be read: %s; the worst that it may say is assumed; check the disk", self._path, error)
            noted = self._content = b"fences lost"
        self.lost = _WORDS.get(noted, Lost.NOTHING)
        # A trusted marker counts as this process's own: the boot makes everything durable before anything is written.
        self.cached = bool(self._boot_id) and noted == self._boot_id.encode()
        self._found = not self.cached
        if self._found and noted not in (b"", *_WORDS):
            # A disk that takes no writes keeps what this boot would settle.
            with unless_refused():
                self._wipe()
        return self._found

    def _read(self) -> bytes:
        file = self._file_system.open(self._path)
        try:
            return read_all(file)
        finally:
            file.close()

    def make(self) -> None:
        """Make the marker durably, unless this process has made it and it is still there. Raises NoSpaceError, OSError."""
        if not (self._durable and self._file_system.exists(self._path)):
            # Nothing is acknowledged yet, so a lack of room does no harm.
            with self._lock, needing_space():
                if not self._found:
                    self._content = self._boot_id.encode()
                replace_file(self._file_system, self._path, [self._content])
                self.stands = self._durable = True

    def note_loss(self, lost: Lost) -> None:
        """Record a loss in the marker, durably, until ``settled`` and ``clear``. Raises OSError."""
        most = max(lost, self.lost)
        if most > self.lost or not self._durable:
            [word] = [word for word, what in _WORDS.items() if what is most]
            replace_file(self._file_system, self._path, [word])
            self.lost, self._content = most, word
        self.stands = self._found = self._durable = True

    def renew(self) -> bool:
        """Read the marker from the disk, in any thread. If it should stand and is missing or changed, replace it durably and
        return True. Raises OSError."""
        with self._lock:
            if not self.stands:
                return False
            uncached(self._file_system, self._path)
            try:
                if self._file_system.exists(self._path) and self._read() == self._content:
                    return False
            except OSError as error:
                if not is_of_file(error):
                    raise
            replace_file(self._file_system, self._path, [self._content])
            return True

    def spoil(self) -> None:
        """Wipe the boot id out, because no boot may trust the page cache after a failure of the disk. The wipe need not reach the
        disk: only a process under the same kernel could trust the id."""
        if self.stands and self._boot_id:
            try:
                self._wipe()
            except OSError as error:
                log.error("%s can't be emptied: %s; don't trust the boot id at the next start", self._path, error)

    def _wipe(self) -> None:
        self._content = b""
        with closing(self._file_system.open(self._path, write=True)) as file:
            file.truncate(0)

    def settled(self) -> None:
        """Allow the marker's removal: phase one of this boot is durable."""
        self._found = False
        self.lost = Lost.NOTHING

    @property
    def is_trusted(self) -> bool:
        return bool(self._boot_id)

    @property
    def removable(self) -> bool:
        """Does the marker stand, and may it be removed once everything is synced?"""
        return self.stands and not self._found

    def clear(self) -> None:
        """Remove the marker, if ``removable``, of a fully synced directory. Raises OSError."""
        if self.removable:
            with self._lock:
                if self._file_system.exists(self._path):
                    self._file_system.unlink(self._path)
                # Until the removal is durable a crash may restore the marker, which does no harm.
                self.stands = self._durable = False
            sync_names(self._file_system, self._directory)
