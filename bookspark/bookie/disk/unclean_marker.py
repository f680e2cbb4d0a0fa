"""The marker of an unclean shutdown: one small file that stands in a directory while acked entries in it may be lost by a crash.

Law: it is durable before the first PD add is acked that is not synced, and it is removed only when everything is synced (by a
clean stop, or when the directory has been idle) or, if a boot found it, when that boot's phase one is durable. So a boot that
doesn't find it has lost nothing that was promised. What recovery writes, and control records, are synced before their ack and
don't need it; neither do adds of VD ledgers, whose ack promises nothing. Bytes::

    <directory>/unclean     the kernel's boot id as text, or nothing

With the boot id a bookie that is told to trust it knows a crash of the process, after which the page cache still has every
acked entry, from one of the host. After a failed sync the page cache proves nothing, so the boot id is wiped out then.

Source: BP-46, "Detecting Data Loss On Boot"; docs/decisions/without-the-journal.md.
"""

from __future__ import annotations

import logging

from bookspark.bookie.disk.file_system import FileSystem, read_all, replace_file

NAME = "unclean"

log = logging.getLogger(__name__)


class UncleanMarker:
    """The marker of one directory. The boot looks at it; later it is the commit thread's own."""

    def __init__(self, file_system: FileSystem, directory: str, boot_id: str = "") -> None:
        """``boot_id``: the kernel's, if it is to be trusted."""
        self._file_system = file_system
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self._boot_id = boot_id
        self._found = False
        self.stands = False

    def look(self) -> bool:
        """At boot: may promised entries of this directory be lost? The marker stays until ``settled``."""
        self.stands = self._found = self._file_system.exists(self._path)
        if not self.stands:
            return False
        file = self._file_system.open(self._path)
        noted = read_all(file)
        file.close()
        return not self._boot_id or noted != self._boot_id.encode()

    def make(self) -> None:
        """Durable when this returns."""
        if not self.stands:
            replace_file(self._file_system, self._path, [self._boot_id.encode()])
            self.stands = True

    def spoil(self) -> None:
        """The disk failed: no boot may take the page cache for whole. It is read by a process under the same kernel, if at all,
        so it need not reach the disk."""
        if self.stands and self._boot_id:
            try:
                file = self._file_system.open(self._path)
                file.truncate(0)
                file.close()
            except OSError as error:
                log.error("%s can't be emptied: %s; don't trust the boot id at the next start", self._path, error)

    def settled(self) -> None:
        """What a boot found has been dealt with: the marker goes like any other from now on."""
        self._found = False

    @property
    def removable(self) -> bool:
        return self.stands and not self._found

    def clear(self) -> None:
        """Everything in the directory is synced."""
        if self.removable:
            self._file_system.unlink(self._path)
            self._file_system.sync_directory(self._directory)
            self.stands = False
