"""One directory (one disk) of a bookie: its entry logs, its control log and its commit thread.

Law: a directory is in use or retired. A retired directory is not used again before the next start. Its logs ascend by number, and
only the last log may have unsynced bytes (or the last two, while the thread changes from one to the next).

A boot knows the expected logs: the control log lists them, and the checkpoint those that it covers. A missing log, or a loss of
possibly acknowledged bytes, makes the boot lossy; the marker records that before anything in the directory changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Protocol

from bookspark.protocol.bookie.reach import Reach
from bookspark.protocol.ledger.entry_ranges import EntryRanges
from bookspark.store.bookie.bookie_config import DIRECTORIES_MAX, BookieConfig
from bookspark.store.bookie.commit.commit_thread import CommitThread, GroupWriter
from bookspark.store.bookie.disk.checkpoint import Checkpoint, Part, read_checkpoint, remove_parts
from bookspark.store.bookie.disk.control_log import ControlLog, ControlScan
from bookspark.store.bookie.disk.control_state import LogsNoted
from bookspark.store.bookie.disk.disk_errors import unless_refused
from bookspark.store.bookie.disk.entry_log import LOGS, EntryLog, log_numbers
from bookspark.store.bookie.disk.file_system import TEMPORARY_SUFFIX, FileSystem, NoSpaceError
from bookspark.store.bookie.disk.index import location, log_of, position_of
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.disk.rewritten_log import RewrittenLog, adopt, rewritten_numbers, rewritten_path
from bookspark.store.bookie.disk.unclean_marker import Lost, UncleanMarker
from bookspark.store.bookie.holdings.disk_marks import Takes
from bookspark.store.wire.logged_frames import LoggedFrames


class Filling(Protocol):
    """Receives a directory's content during a boot: first the checkpoint, or all rewritten logs, then frames."""

    def take_checkpoint(self, directory: LogDirectory, checkpoint: Checkpoint) -> None:
        """Raises OSError."""

    def take_rewritten(self, directory: LogDirectory) -> None:
        """Called without a checkpoint. Raises OSError."""

    def taking(self, log: int) -> Callable[[LoggedFrames], object]:
        """Return the receiver of an entry log's frames."""

    def logs_of_losses(self) -> Set[int]:
        """Logs of copies noted as lost. One that was missing at a boot may be back."""


READ_ONLY_REMEDY = "it is tried again soon; check its disk, and mount it for writing again"

log = logging.getLogger(__name__)


class LogDirectory:
    """One directory of a bookie. Owned by the loop. The files belong to the commit thread once it runs."""

    def __init__(self, file_system: FileSystem, number: int, config: BookieConfig, boot_id: str = "") -> None:
        """``number``: index in the config's directories, from 0. ``boot_id``: the kernel's boot id, or "" to trust none
        (``unclean_marker``)."""
        self.file_system = file_system
        self.number = number
        self.path = path = config.directories[number]
        self._shares = DIRECTORIES_MAX if len(config.directories) > 1 else 1
        self._log_bytes_max = config.entry_log_bytes_max
        self.logs: list[EntryLog] = []
        self.rewritten: dict[int, RewrittenLog] = {}
        self.current: EntryLog | None = None
        """The log for new frames; None until the first add after a start."""
        self.losses: list[str] = []
        """Losses of possibly acknowledged data in unknown ledgers, until phase one of the lossy boot has handled them."""
        self.unread: dict[EntryLog, EntryRanges] = {}
        """Logs with bytes (first, last) that the disk could not read at the boot, until every entry that may lie there is here
        again."""
        self.unsettled: list[EntryLog] = []
        """Logs that the boot could not make durable as a whole. The next start settles them."""
        self._found: set[int] = set()
        """At the boot: logs with a file or a note, and rewritten logs that the checkpoint names."""
        self.highest_log = 0
        """At the boot: the highest number of any file here, in use or not. A file that could not be removed keeps its number: a
        later boot would take it for a new log of that number."""
        self._reached = 0
        """The highest location below which everything here was synced, as far as the remaining logs do not show it."""
        self._removed_below = self._covered = 0
        """Location behind the last removed log; location that the boot's checkpoint covered."""
        self.gone: dict[int, int] = {}
        """At the boot: for each log number, the position from which on indexed entries are gone."""
        self.parts: list[Part] | None = None
        """Parts of the checkpoint on the disk. None: no checkpoint can be extended."""
        self.retired = False
        self.failure = ""
        self.read_errors = 0
        self.takes = Takes.ALL
        self.why = "its control log has no room; free some space on its disk"
        """Reason for taking less than all adds, if it does, with the remedy."""
        self.refusals = 0
        """Number of times that refused writes (without room, or queued behind one) were taken out of the index."""
        self.no_room: OSError | None = None
        self.control_behind = False
        """A control record lacked room here: the directory needs a new control log before it takes anything."""
        self.control = ControlLog(file_system, path)
        self.marker = UncleanMarker(file_system, path, boot_id)
        self.unclean = False
        """A crash may have lost acknowledged entries of this directory."""
        writer = GroupWriter(path, self.control, self.marker, config)
        self.commit = CommitThread(path, writer)

    def prepare(self) -> None:
        """Make the needed folders, and remove unfinished files of a crash. Raises OSError."""
        logs = f"{self.path}/{LOGS}"
        if not self.file_system.exists(logs):
            self.file_system.make_directory(logs)
            self.file_system.sync_directory(self.path)
        for folder in (self.path, logs):
            for name in self.file_system.list(folder):
                if name.endswith(TEMPORARY_SUFFIX):
                    with unless_refused():
                        self.file_system.unlink(f"{folder}/{name}")
        self.unclean = self.marker.look()
        if self.marker.lost:
            self.losses.append(f"{self.path} lost data before the last start")

    @property
    def damaged(self) -> bool:
        """May acknowledged entries of unknown ledgers be lost? Absence then proves nothing."""
        return bool(self.losses)

    def _lose_rows(self, number: int, what: str, start: int = 0) -> None:
        """Mark the checkpoint's rows of log ``number`` from position ``start`` on as gone."""
        log.error("log %08x of %s %s: the entries that the index names there are lost", number, self.path, what)
        self.gone[number] = min(start, self.gone.get(number, start))

    def lose(self, why: str, lost: Lost = Lost.ENTRIES) -> None:
        """Record, at the boot, a loss of possibly acknowledged data in unknown ledgers. ``why``: the reason in words. The boot is
        lossy, and so is the next boot if this boot is interrupted. Raises OSError."""
        log.error("%s: missing entries are answered Unknown until the bookie is healed", why)
        # A read-only directory shows the same loss to the next boot.
        with unless_refused():
            self.marker.note_loss(lost)
        self.unclean = True
        self.losses.append(why)

    def begin_control_log(self, content: Sequence[bytes] | None, scan: ControlScan, write_number: int) -> None:
        """Open the control log (``ControlLog.begin``). Without room for ``content`` the directory is full, but not lost. Raises
        OSError."""
        if not self.control.begin(content, scan, write_number):
            self._fall_behind()
            if self.control.is_read_only:
                self.why = f"{self.path} is read-only: it takes nothing; {READ_ONLY_REMEDY}"
                log.warning("%s", self.why)

    def note_without(self, directories: Iterable[int]) -> None:
        """Note, at the boot, that the bookie is used without these directories from now on. A disk that refuses the record counts
        as full; rewriting the control log shows whether it has failed."""
        try:
            self.control.note_without(directories)
        except OSError as error:
            log.warning("%s does not take a control record: %s", self.path, error)
            self._fall_behind()

    def append_at_boot(self, content: bytes, number: int) -> bool:
        """Append write ``number`` to the control log. False without room: the directory is full, but not lost. Raises OSError."""
        try:
            self.control.append(content, number)
        except NoSpaceError:
            self._fall_behind()
            return False
        return True

    def _fall_behind(self) -> None:
        self.control_behind, self.takes = True, Takes.NOTHING

    def recover(self, noted: LogsNoted | None, filling: Filling) -> None:
        """Read the checkpoint, and scan every log from there on. ``noted``: the expected logs by the control log; None if never
        noted. ``filling`` receives the content. Raises OSError, after which that content does not count."""
        checkpoint = read_checkpoint(self.file_system, self.path)
        covered = checkpoint.covered if checkpoint is not None else 0
        self._removed_below, self._reached, self._covered = location(log_of(covered), 0), covered, covered
        self.parts = checkpoint.parts if checkpoint is not None else None
        remove_parts(self.file_system, self.path, self.parts or ())
        numbers = log_numbers(self.file_system, self.path)
        self._found = {*numbers, *(checkpoint.rewritten if checkpoint is not None else ())}
        unused: list[EntryLog | RewrittenLog] = [*self._recover_rewritten(checkpoint, noted, filling.logs_of_losses())]
        if checkpoint is not None:
            filling.take_checkpoint(self, checkpoint)
        elif self.rewritten:
            filling.take_rewritten(self)
        for number in numbers:
            entry_log = EntryLog(self.file_system, self.path, number)
            if number < log_of(covered):
                if not entry_log.is_removed and not entry_log.adopt():
                    self._lose_rows(number, "was cut short, or is gone", entry_log.end)
            else:
                start = position_of(covered) if number == log_of(covered) else 0
                begun = noted is not None and number in noted.entry_logs
                scan = entry_log.recover(
                    start, self.lose, filling.taking(number), begun=begun, cached=self.marker.cached
                )
                if scan.end < start:
                    self._lose_rows(number, "is gone")
                if scan.unread:
                    log.error(
                        "%s can't be read as a whole; check the disk. Its other entries are unknown", entry_log.path
                    )
                    self.unread[entry_log] = scan.unread
                if scan.may_be_cut and not scan.frames and scan.end <= len(SCHEMA):
                    unused.append(entry_log)
                    continue
            if self.file_system.exists(entry_log.path):
                self.logs.append(entry_log)
                if entry_log.synced < entry_log.end:
                    self.unsettled.append(entry_log)
            else:
                unused.append(entry_log)
        self.highest_log = max((log_of(covered), *self._found, *(found.number for found in unused)))
        self._look_for_lost(numbers, checkpoint, noted)
        self._settle_logs(unused)

    def _recover_rewritten(
        self, checkpoint: Checkpoint | None, noted: LogsNoted | None, may_return: Set[int]
    ) -> list[RewrittenLog]:
        """Adopt the rewritten logs that the checkpoint names, and those that ``may_return``; return the others, which a crash
        left before their use. Without a checkpoint all are adopted, and must be scanned."""
        found = rewritten_numbers(self.file_system, self.path)
        if checkpoint is not None:
            wanted = {*checkpoint.rewritten, *(may_return & set(found))}
        else:
            wanted = {*found, *(noted.rewritten if noted is not None else ())}
        for number in sorted(wanted):
            rewritten = adopt(self.file_system, self.path, number)
            if rewritten is None and checkpoint is not None:
                self._lose_rows(number, "was cut short, or is gone")
            elif rewritten is None:
                self.lose(f"{rewritten_path(self.path, number)} is cut short, or gone")
            else:
                self.rewritten[number] = rewritten
        return [RewrittenLog(self.path, number, 0) for number in found if number not in wanted]

    def _look_for_lost(self, numbers: Sequence[int], checkpoint: Checkpoint | None, noted: LogsNoted | None) -> None:
        """Report expected entry logs without a file or note. The checkpoint has the content of those below its covered log."""
        covered = checkpoint.covered if checkpoint is not None else 0
        expected = {number for number in (noted.entry_logs if noted is not None else ()) if number >= log_of(covered)}
        if position_of(covered):
            expected.add(log_of(covered))
        for number in sorted(expected.difference(numbers)):
            self.lose(f"log {number:08x} of {self.path} is gone")

    def look_for_named(self, named: set[int]) -> None:
        """Report, at the boot, missing logs that the checkpoint names. ``recover`` reports incomplete logs."""
        for number in sorted(named.difference(self._found)):
            self._lose_rows(number, "is gone")

    def _settle_logs(self, unused: Sequence[EntryLog | RewrittenLog]) -> None:
        """Note the logs in use, then remove the others. Without room for the note they stay until the next start."""
        try:
            self.control.note_all_logs((entry_log.number for entry_log in self.logs), self.rewritten)
        except NoSpaceError:
            return
        for found in unused:
            if isinstance(found, EntryLog):
                found.remove()
            else:
                found.remove(self.file_system)

    @property
    def holds_logs(self) -> bool:
        return bool(log_numbers(self.file_system, self.path) or rewritten_numbers(self.file_system, self.path))

    def log_number(self, at_least: int) -> int:
        """The lowest number from ``at_least`` on for a new log. With several directories, directory ``number`` uses the log
        numbers of that remainder modulo ``DIRECTORIES_MAX``: a boot that can't read the others does not know their numbers, and a
        later boot may read the others and not this directory."""
        return at_least + (self.number - at_least) % self._shares

    def place(self, frame_bytes: int, begin: Callable[[LogDirectory], EntryLog]) -> tuple[EntryLog, int]:
        """Log and position for the next frame. A new log begins without a current log, or if it is full."""
        entry_log = self.current
        if entry_log is None or entry_log.end >= self._log_bytes_max:
            entry_log = self.current = begin(self)
            self.logs.append(entry_log)
        position = entry_log.end
        entry_log.end += frame_bytes
        return entry_log, position

    def covered(self) -> int:
        """The location below which everything in this directory is synced. It lies in a log with frames: the next boot removes
        empty logs, and a covered log must not be missing. The next boot reads again what this one could not read or settle."""
        if again := [*self.unread, *self.unsettled[:1]]:
            return max(self._covered, location(min(entry_log.number for entry_log in again), 0))
        for entry_log in reversed(self.logs):
            if entry_log.synced > len(SCHEMA):
                return max(location(entry_log.number, entry_log.synced), self._removed_below)
        return self._removed_below

    def reach(self) -> Reach:
        """The durable reach of the directory. A boot may not be able to settle what is there. For any thread."""
        ends = [(one.number, one.end if one in self.unsettled else one.synced) for one in list(self.logs)]
        synced = [location(number, end) for number, end in ends if end > len(SCHEMA)]
        return Reach(self.control.write_number, max(self._reached, *synced) if synced else self._reached)

    def forget(self, entry_log: EntryLog) -> None:
        """Drop a sealed log before its removal. A checkpoint that covers it notes the removal: a full disk has no room for
        another note."""
        self._reached = self.reach().location
        self.logs.remove(entry_log)
        self._removed_below = max(self._removed_below, location(entry_log.number + 1, 0))

    @property
    def sealed(self) -> list[EntryLog | RewrittenLog]:
        return [stored for stored in self.stored if self.is_sealed(stored)]

    def is_sealed(self, stored: EntryLog | RewrittenLog) -> bool:
        return isinstance(stored, RewrittenLog) or (
            stored is not self.current and stored.file is None and stored.synced == stored.end
        )

    @property
    def stored(self) -> list[EntryLog | RewrittenLog]:
        return [*self.logs, *self.rewritten.values()]

    @property
    def bytes(self) -> int:
        return sum(found.end for found in self.stored)
