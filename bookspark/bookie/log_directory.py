"""One directory (one disk) of a bookie: its entry logs, its control log and its commit thread.

Law: a directory is in use or retired; retired is for good, until the next start. Its logs ascend by number, and only the last one
that was begun may have bytes that are not synced (or the last two, while one is being left for the next).
"""

from __future__ import annotations

from bookspark.bookie.checkpoint import Checkpoint, read_checkpoint
from bookspark.bookie.commit import CommitThread
from bookspark.bookie.control_log import ControlLog
from bookspark.bookie.entry_log import LOGS, SCHEMA, EntryLog, LogScan, log_numbers
from bookspark.bookie.file_system import TEMPORARY_SUFFIX, FileSystem
from bookspark.bookie.index import location, log_of, position_of


class LogDirectory:
    """Owned by the loop; the files themselves belong to the commit thread once it runs."""

    def __init__(self, file_system: FileSystem, path: str, log_bytes_max: int) -> None:
        self._file_system = file_system
        self.path = path
        self._log_bytes_max = log_bytes_max
        self.logs: list[EntryLog] = []
        self.current: EntryLog | None = None
        """The log that is being appended to; None until the first add after a start."""
        self.damaged = False
        """Bytes that had been synced can't be read any more: what this directory does not hold proves nothing."""
        self.retired = False
        self.control = ControlLog(file_system, path)
        self.commit = CommitThread(path, self.control, log_bytes_max)

    def prepare(self) -> None:
        """Make what has to be there, and clear away what a crash left half-made."""
        logs = f"{self.path}/{LOGS}"
        if not self._file_system.exists(logs):
            self._file_system.make_directory(logs)
            self._file_system.sync_directory(self.path)
        for name in self._file_system.list(self.path):
            if name.endswith(TEMPORARY_SUFFIX):
                self._file_system.unlink(f"{self.path}/{name}")

    def recover(self) -> tuple[Checkpoint | None, list[tuple[EntryLog, LogScan]]]:
        """Read the checkpoint, and scan every log from there on."""
        checkpoint = read_checkpoint(self._file_system, self.path)
        covered = checkpoint.covered if checkpoint is not None else 0
        self.damaged = checkpoint is not None and checkpoint.damaged
        scans: list[tuple[EntryLog, LogScan]] = []
        for number in log_numbers(self._file_system, self.path):
            entry_log = EntryLog(self._file_system, self.path, number)
            if number < log_of(covered):
                self.damaged |= not entry_log.adopt()
            else:
                scan = entry_log.recover(position_of(covered) if number == log_of(covered) else 0)
                self.damaged |= scan.damaged
                if scan.end <= len(SCHEMA) and not scan.damaged:
                    entry_log.remove()
                    continue
                scans.append((entry_log, scan))
            self.logs.append(entry_log)
        return checkpoint, scans

    def place(self, frame_bytes: int, next_number: int) -> tuple[EntryLog, int]:
        """Where the next frame goes: (log, position). Begins log ``next_number`` when there is no log or it is full."""
        entry_log = self.current
        if entry_log is None or entry_log.end >= self._log_bytes_max:
            entry_log = self.current = EntryLog(self._file_system, self.path, next_number)
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
    def bytes(self) -> int:
        return sum(entry_log.end for entry_log in self.logs)
