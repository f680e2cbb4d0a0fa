"""The unclean marker: a small file that stands in a directory while a crash may lose acknowledged entries in it.

Law: the marker is durable before an unsynced add of a ledger of persistent durability (PD) is acknowledged. It is removed once
everything is synced, by a clean stop or after an idle time. A marker that a boot found is removed only after phase one of that
boot is durable. So a boot that does not find it has lost nothing that was promised. Control records and what recovery writes are
synced before they are acknowledged, so they don't need it. Adds of ledgers of volatile durability (VD) don't need it either:
their acknowledgement promises nothing. Bytes::

    <directory>/unclean     the kernel's boot id as text, or nothing

A bookie that is told to trust the boot id can tell a crash of its process, after which the page cache still has every
acknowledged entry, from one of the host. After a failed sync the page cache proves nothing, so the boot id is wiped out then.

Source: BP-46, "Detecting Data Loss On Boot"; docs/decisions/without-the-journal.md.
"""

from __future__ import annotations

import logging

from bookspark.bookie.disk.file_system import FileSystem, needing_space, read_all, replace_file, sync_names

NAME = "unclean"

log = logging.getLogger(__name__)


class UncleanMarker:
    """The marker of one directory. The boot uses it first, later the commit thread alone."""

    def __init__(self, file_system: FileSystem, directory: str, boot_id: str = "") -> None:
        """``boot_id``: the kernel's, if it is to be trusted."""
        self._file_system = file_system
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._boot_id = boot_id
        self._found = False
        self.stands = False
        """Does the marker lie in the directory?"""

    def look(self) -> bool:
        """At the boot: may acknowledged entries of this directory be lost? The marker stays until ``settled``."""
        self.stands = self._found = self._file_system.exists(self._path)
        if not self.stands:
            return False
        file = self._file_system.open(self._path)
        noted = read_all(file)
        file.close()
        return not self._boot_id or noted != self._boot_id.encode()

    def make(self) -> None:
        """Make the marker, if it does not stand. It is durable when this returns. Raises NoSpaceError, OSError."""
        if not self.stands:
            # Nothing is acknowledged yet, so a lack of room does no harm.
            with needing_space():
                replace_file(self._file_system, self._path, [self._boot_id.encode()])
            self.stands = True

    def spoil(self) -> None:
        """The disk failed, so no boot may trust the page cache: wipe the boot id out. Only a process under the same kernel could
        trust it, so this need not reach the disk."""
        if self.stands and self._boot_id:
            try:
                file = self._file_system.open(self._path)
                file.truncate(0)
                file.close()
            except OSError as error:
                log.error("%s can't be emptied: %s; don't trust the boot id at the next start", self._path, error)

    def settled(self) -> None:
        """Phase one of the boot that found the marker is durable: the marker may be removed from now on."""
        self._found = False

    @property
    def removable(self) -> bool:
        """Does the marker stand, and may it be removed once everything is synced?"""
        return self.stands and not self._found

    def clear(self) -> None:
        """Everything in the directory is synced: remove the marker, if it may be. Raises OSError."""
        if self.removable:
            self._file_system.unlink(self._path)
            # Until the removal is durable a crash may bring the marker back, which does no harm.
            self.stands = False
            sync_names(self._file_system, self._directory)
