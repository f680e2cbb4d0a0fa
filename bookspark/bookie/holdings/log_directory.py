"""One directory (one disk) of a bookie: its entry logs, its control log and its commit thread.

Law: a directory is in use or retired. A retired one is not used again before the next start. Its logs ascend by number, and only
the last one may have bytes that are not synced (or the last two, while the thread changes from one to the next).
"""

from __future__ import annotations

from collections.abc import Sequence

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.commit.commit_thread import CommitThread
from bookspark.bookie.commit.group_writer import GroupWriter
from bookspark.bookie.disk.checkpoint import Checkpoint, read_checkpoint
from bookspark.bookie.disk.control_log import ControlLog, ControlScan
from bookspark.bookie.disk.entry_log import LOGS, EntryLog, log_numbers
from bookspark.bookie.disk.file_system import TEMPORARY_SUFFIX, FileSystem
from bookspark.bookie.disk.index import location, log_of, position_of
from bookspark.bookie.disk.log_scan import SCHEMA, LogScan
from bookspark.bookie.disk.rewritten_log import RewrittenLog, adopt, rewritten_numbers, rewritten_path
from bookspark.bookie.disk.unclean_marker import UncleanMarker
from bookspark.bookie.holdings.disk_marks import Takes

Recovered = tuple[Checkpoint | None, list[tuple[EntryLog, LogScan]]]
"""A directory's checkpoint, and the logs that were scanned with what was found in them."""


class LogDirectory:
    """One directory of a bookie. Owned by the loop. The files belong to the commit thread once it runs."""

    def __init__(self, file_system: FileSystem, path: str, config: BookieConfig, boot_id: str = "") -> None:
        """``boot_id``: the kernel's, if it is to be trusted (``unclean_marker``)."""
        self.file_system = file_system
        self.path = path
        self._log_bytes_max = config.entry_log_bytes_max
        self.logs: list[EntryLog] = []
        self.rewritten: dict[int, RewrittenLog] = {}
        self.current: EntryLog | None = None
        """The log that is being appended to; None until the first add after a start."""
        self.damaged = False
        """Synced bytes can't be read any more, so absence from this directory proves nothing."""
        self.retired = False
        self.failure = ""
        """Why the directory is retired."""
        self.read_errors = 0
        """How many frames its disk could not read."""
        self.takes = Takes.ALL
        self.control_behind = False
        """A control record found no room here: a new control log has to be written before the directory takes anything."""
        self.control = ControlLog(file_system, path)
        self.marker = UncleanMarker(file_system, path, boot_id)
        self.unclean = False
        """A crash may have lost entries of this directory that were acknowledged."""
        writer = GroupWriter(file_system, path, self.control, self.marker, config)
        self.commit = CommitThread(path, writer)

    def prepare(self) -> None:
        """Make the folders that have to be there, and remove what a crash left half-made. Raises OSError."""
        logs = f"{self.path}/{LOGS}"
        if not self.file_system.exists(logs):
            self.file_system.make_directory(logs)
            self.file_system.sync_directory(self.path)
        for folder in (self.path, logs):
            for name in self.file_system.list(folder):
                if name.endswith(TEMPORARY_SUFFIX):
                    self.file_system.unlink(f"{folder}/{name}")
        self.unclean = self.marker.look()

    def begin_control_log(self, content: Sequence[bytes] | None, scan: ControlScan) -> None:
        """Open the control log (``ControlLog.begin``). If there is no room for ``content``, the directory is full, but not lost.
        Raises OSError."""
        if not self.control.begin(content, scan):
            self.control_behind, self.takes = True, Takes.NOTHING

    def recover(self) -> Recovered:
        """Read the checkpoint, and scan every log from there on. Raises OSError."""
        checkpoint = read_checkpoint(self.file_system, self.path)
        covered = checkpoint.covered if checkpoint is not None else 0
        self.damaged = checkpoint is not None and checkpoint.damaged
        scans: list[tuple[EntryLog, LogScan]] = []
        for number in log_numbers(self.file_system, self.path):
            entry_log = EntryLog(self.file_system, self.path, number)
            if number < log_of(covered):
                if entry_log.is_removed:
                    entry_log.remove()
                    continue
                self.damaged |= not entry_log.adopt()
            else:
                scan = entry_log.recover(position_of(covered) if number == log_of(covered) else 0)
                self.damaged |= scan.damaged
                if scan.end <= len(SCHEMA) and not scan.damaged:
                    entry_log.remove()
                    continue
                scans.append((entry_log, scan))
            self.logs.append(entry_log)
        self._recover_rewritten(checkpoint)
        return checkpoint, scans

    def _recover_rewritten(self, checkpoint: Checkpoint | None) -> None:
        """Take over the rewritten logs that the checkpoint names, and remove the others: a crash left them before they were in
        use. Without a checkpoint all are taken over, and have to be scanned."""
        found = rewritten_numbers(self.file_system, self.path)
        for number in found if checkpoint is None else checkpoint.rewritten:
            rewritten = adopt(self.file_system, self.path, number)
            if rewritten is None:
                self.damaged = True
            else:
                self.rewritten[number] = rewritten
        if checkpoint is not None:
            for number in set(found) - set(checkpoint.rewritten):
                self.file_system.unlink(rewritten_path(self.path, number))

    @property
    def holds_logs(self) -> bool:
        """Is there any log in the directory, whether it was opened or not?"""
        return bool(log_numbers(self.file_system, self.path) or rewritten_numbers(self.file_system, self.path))

    def place(self, frame_bytes: int, next_number: int) -> tuple[EntryLog, int]:
        """The log and the position for the next frame. Begins log ``next_number`` if there is no log or it is full."""
        entry_log = self.current
        if entry_log is None or entry_log.end >= self._log_bytes_max:
            entry_log = self.current = EntryLog(self.file_system, self.path, next_number)
            self.logs.append(entry_log)
        position = entry_log.end
        entry_log.end += frame_bytes
        return entry_log, position

    def covered(self) -> int:
        """The location below which everything in this directory is synced."""
        for entry_log in reversed(self.logs):
            if entry_log.synced:
                return location(entry_log.number, entry_log.synced)
        return 0

    @property
    def sealed(self) -> list[EntryLog | RewrittenLog]:
        """The logs that nothing is written to any more."""
        return [
            stored
            for stored in self.stored
            if isinstance(stored, RewrittenLog)
            or (stored is not self.current and stored.file is None and stored.synced == stored.end)
        ]

    @property
    def stored(self) -> list[EntryLog | RewrittenLog]:
        """The logs that hold entries."""
        return [*self.logs, *self.rewritten.values()]

    @property
    def bytes(self) -> int:
        """The size of all logs."""
        return sum(found.end for found in self.stored)
