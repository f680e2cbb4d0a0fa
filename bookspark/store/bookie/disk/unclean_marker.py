"""The unclean marker: a small file that stands in a directory while a crash may lose acknowledged entries in it.

Law: the marker is durable before an unsynced add of a ledger of persistent durability (PD) is acknowledged. It is removed once
everything is synced, by a clean stop or after an idle time. A marker that a boot found is removed only after phase one of that
boot is durable. So a boot that does not find it has lost nothing that was promised. Control records and what recovery writes are
synced before they are acknowledged, so they don't need it. Adds of ledgers of volatile durability (VD) don't need it either:
their acknowledgement promises nothing.

The same marker stands from the moment that a boot finds a loss until phase one is durable, whatever else the boot changes; so a
crash in between does not forget the loss. It says then what is lost. Bytes::

    <directory>/unclean     the kernel's boot id as text; "lost": entries that were synced; "fences lost": control records,
                            and perhaps such entries; or nothing

A bookie that is told to trust the boot id can tell a crash of its process, after which the page cache still has every
acknowledged entry, from one of the host. (The boot syncs all of it, so its marker counts like one of its own then.) How far
each log was written stands in its note, so it is missed if the disk wrote it to another place (``synced_note``). After a failed
sync the page cache proves nothing, so the boot id is wiped out then. Nor does it prove a name: if the sync of the directory had
failed, the marker would lie in the page cache alone, for good. So each process makes the marker anew before anything rests on
it.

Source: BP-46, "Detecting Data Loss On Boot"; docs/decisions/without-the-journal.md.
"""

from __future__ import annotations

import logging
import threading
from enum import IntEnum

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
    """What a marker says is lost, from a loss that phase one has not dealt with; the higher, the more."""

    NOTHING = 0
    ENTRIES = 1
    FENCES = 2


_WORDS = {b"lost": Lost.ENTRIES, b"fences lost": Lost.FENCES}

log = logging.getLogger(__name__)


class UncleanMarker:
    """The marker of one directory. The boot uses it first, later the commit thread, and ``renew`` any thread."""

    def __init__(self, file_system: FileSystem, directory: str, boot_id: str = "") -> None:
        """``boot_id``: the kernel's, if it is to be trusted."""
        self._file_system = file_system
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._boot_id = boot_id
        self._content = b""
        """What the marker says, while it stands."""
        self._lock = threading.Lock()
        self._found = self._durable = False
        self.stands = False
        """Does the marker lie in the directory?"""
        self.cached = False
        """At the boot: did only a process die, while the marker stood? Then the page cache has what it wrote."""
        self.lost = Lost.NOTHING

    def look(self) -> bool:
        """At the boot: may acknowledged entries of this directory be lost? The marker stays until ``settled``."""
        self.stands = self._file_system.exists(self._path)
        if not self.stands:
            return False
        file = self._file_system.open(self._path)
        noted = self._content = read_all(file)
        file.close()
        self.lost = _WORDS.get(noted, Lost.NOTHING)
        # A trusted marker is like one that this process made: the boot makes everything durable before anything is written.
        self.cached = bool(self._boot_id) and noted == self._boot_id.encode()
        self._found = not self.cached
        return self._found

    def make(self) -> None:
        """Make the marker, if this process has not, or it is gone. It is durable when this returns. Raises NoSpaceError,
        OSError."""
        if not (self._durable and self._file_system.exists(self._path)):
            # Nothing is acknowledged yet, so a lack of room does no harm.
            with self._lock, needing_space():
                if not self._found:
                    self._content = self._boot_id.encode()
                replace_file(self._file_system, self._path, [self._content])
                self.stands = self._durable = True

    def note_loss(self, lost: Lost) -> None:
        """A loss was found. The marker says so, durably when this returns, until ``settled`` and ``clear``. Raises OSError."""
        most = max(lost, self.lost)
        if most > self.lost or not self._durable:
            [word] = [word for word, what in _WORDS.items() if what is most]
            replace_file(self._file_system, self._path, [word])
            self.lost, self._content = most, word
        self.stands = self._found = self._durable = True

    def renew(self) -> bool:
        """In any thread: read the marker from the disk. If it should stand and is gone, or is not what it was, it is made anew,
        durably, and this is True. Raises OSError."""
        with self._lock:
            if not self.stands:
                return False
            uncached(self._file_system, self._path)
            if self._file_system.exists(self._path):
                file = self._file_system.open(self._path)
                try:
                    if read_all(file) == self._content:
                        return False
                finally:
                    file.close()
            replace_file(self._file_system, self._path, [self._content])
            return True

    def spoil(self) -> None:
        """The disk failed, so no boot may trust the page cache: wipe the boot id out. Only a process under the same kernel could
        trust it, so this need not reach the disk."""
        if self.stands and self._boot_id:
            self._content = b""
            try:
                file = self._file_system.open(self._path)
                file.truncate(0)
                file.close()
            except OSError as error:
                log.error("%s can't be emptied: %s; don't trust the boot id at the next start", self._path, error)

    def settled(self) -> None:
        """Phase one of the boot that found the marker is durable: the marker may be removed from now on."""
        self._found = False
        self.lost = Lost.NOTHING

    @property
    def is_trusted(self) -> bool:
        """Will a boot under the same kernel trust the page cache?"""
        return bool(self._boot_id)

    @property
    def removable(self) -> bool:
        """Does the marker stand, and may it be removed once everything is synced?"""
        return self.stands and not self._found

    def clear(self) -> None:
        """Everything in the directory is synced: remove the marker, if it may be. Raises OSError."""
        if self.removable:
            with self._lock:
                if self._file_system.exists(self._path):
                    self._file_system.unlink(self._path)
                # Until the removal is durable a crash may bring the marker back, which does no harm.
                self.stands = self._durable = False
            sync_names(self._file_system, self._directory)
