"""The disks of a bookie: the adds that each directory takes, and a full directory's way back to writable.

Law: as in ``disk_marks``, which decides by the figures. A write without room makes its directory full at once, until the next
measurement. The log of a directory that turns full is sealed, which returns the reserved space. A directory that missed a control
record gets a whole new control log before it takes anything, because from then on it counts again. An operator's switch limits
all directories to recovery and repair writes, even with room. A directory that takes less has its reason and remedy in words, for
refused clients.

Source: BookKeeper's ``LedgerDirsMonitor``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from bookspark.protocol.bookie.read_only_switch import NEVER_SWITCHED
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.commit_thread import SealLog
from bookspark.store.bookie.commit.completions import Done, ignore
from bookspark.store.bookie.disk.disk_errors import Meaning, meaning
from bookspark.store.bookie.disk.file_system import FileSystem, make_spare_files
from bookspark.store.bookie.holdings.disk_marks import Takes, Thresholds, takes, used_part, used_part_of_inodes
from bookspark.store.bookie.holdings.log_directory import READ_ONLY_REMEDY, LogDirectory
from bookspark.store.bookie.steps import Steps
from bookspark.store.wire.header import Status

_TAKES = {Takes.NOTHING: "nothing", Takes.RECOVERY: "what recovery writes, no other adds", Takes.ALL: "all adds"}

REMEDY = (
    "free some space on its disk, add a directory to the bookie, or collect deleted ledgers now "
    "(bookspark bookie collect ID)"
)
REMEDY_FOR_INODES = (
    "remove files from its disk (df -i shows its inodes), add a directory on another disk to the bookie, or collect deleted "
    "ledgers now (bookspark bookie collect ID)"
)
_FILES_OF_A_LOG = 2
_REFUSED = {
    Meaning.NO_DESCRIPTOR: (
        "could not be written to",
        "it is tried again soon; allow the process more open files (ulimit -n)",
    ),
    Meaning.READ_ONLY: ("can't be written", READ_ONLY_REMEDY),
}
_SWITCHED = {
    False: "the bookie was switched to read-only (bookspark bookie read-only ID off)",
    True: "a change of the cluster made the bookie read-only (bookspark cluster status)",
}
"""Reason of a bookie that an operator or a change made read-only, by the kind of switch."""

log = logging.getLogger(__name__)


class Disks:
    """The disks of one bookie. Owned by the loop, except ``measure``, which any thread may call."""

    def __init__(
        self,
        config: BookieConfig,
        file_system: FileSystem,
        live: Sequence[LogDirectory],
        rewrite_control_log: Callable[[LogDirectory, Done], Steps[None]],
    ) -> None:
        """``live``: the directories that have not failed; the owner keeps it up to date and calls ``sort`` after a change.
        ``rewrite_control_log``: writes a new control log in a directory that missed a record."""
        self._file_system = file_system
        self._live = live
        self._rewrite_control_log = rewrite_control_log
        self._quota_bytes = config.directory_bytes_max
        self._thresholds = Thresholds(
            config.disk_usage_warn_threshold,
            config.disk_usage_low_water_mark_threshold,
            config.disk_usage_threshold,
            config.disk_usage_recovery_threshold,
        )
        self._warned: set[str] = set()
        self._measured: dict[str, int] = {}
        """Free bytes of each directory's disk at the last measurement."""
        self._short_of_inodes: set[str] = set()
        """Directories with a larger part of inodes used than of bytes."""
        self.switch = NEVER_SWITCHED
        self.writable = list(live)
        self.for_recovery = list(live)
        self.read_only_changed: Callable[[bool], None] = lambda read_only: None

    @property
    def read_only(self) -> bool:
        return not self.writable

    @property
    def free_bytes(self) -> int:
        return sum(self.free_bytes_of(directory) for directory in self._live)

    def free_bytes_of(self, directory: LogDirectory) -> int:
        """Free bytes of a directory's disk at the last measurement."""
        return self._measured.get(directory.path, 0)

    @property
    def reasons(self) -> list[str]:
        """Reasons why the bookie does not take every add in every directory, each a sentence with the remedy."""
        found = [_SWITCHED[self.switch.by_change]] if self.switch.read_only else []
        return found + [directory.why for directory in self._live if directory.takes is not Takes.ALL]

    def nearly_full(self, directory: LogDirectory) -> bool:
        return directory.path in self._warned

    @property
    def full(self) -> dict[str, str]:
        """Directories that do not take every add, each with its reason and remedy."""
        return {d.path: d.why for d in self._live if d.takes is not Takes.ALL}

    def sort(self) -> None:
        """Choose ``writable`` and ``for_recovery`` again, after a directory changed or failed."""
        before = self.read_only
        self.writable = [d for d in self._live if d.takes is Takes.ALL and not self.switch.read_only]
        self.for_recovery = [directory for directory in self._live if directory.takes is not Takes.NOTHING]
        if before != self.read_only:
            why = "; ".join(self.reasons) or "all of its directories have failed"
            log.warning("this bookie is %s", f"read-only now: {why}" if self.read_only else "writable again")
            self.read_only_changed(self.read_only)

    def measure(self) -> list[tuple[LogDirectory, float]]:
        """The used part (0 to 1) of each directory's space, for ``look``. In any thread: it may wait for the disks."""
        measured = []
        for directory in list(self._live):
            path = directory.path
            try:
                free, total = self._file_system.free_bytes(path), self._file_system.total_bytes(path)
                self._measured[path] = free
                used = used_part(directory.bytes, free, total, self._quota_bytes)
                inodes = self._file_system.inodes(path)
                files = used_part_of_inodes(*inodes)
                (self._short_of_inodes.add if files > used else self._short_of_inodes.discard)(path)
                if inodes[1] and files < self._thresholds.full:
                    make_spare_files(self._file_system, path)
                measured.append((directory, max(used, files)))
            except OSError as error:
                log.warning("%s: its free space can't be read: %s", path, error)
        return measured

    def look_at_all(self) -> None:
        """Measure every disk and apply the marks, at the boot, before the bookie serves. A directory that needs a new control log
        waits for the next look, because that log must hold phase one of a lossy boot."""
        for directory, used in self.measure():
            if not directory.control_behind:
                # The bookie does not serve yet, so all steps run at once.
                deque(self.look(directory, used), maxlen=0)
        self.sort()

    def look(self, directory: LogDirectory, used: float) -> Steps[None]:
        """Apply the marks to a directory with the part ``used`` (0 to 1) of its space used."""
        after = takes(directory.takes, used, self._thresholds)
        self._warn(directory.path, used)
        if directory.retired or after is directory.takes:
            return
        if after < directory.takes:
            what, remedy = "", REMEDY
            if directory.path in self._short_of_inodes:
                what, remedy = " of its inodes", REMEDY_FOR_INODES
            full = f"{directory.path} is full, {100 * used:.1f} %{what} is used: it takes {_TAKES[after]}; {remedy}"
            log.warning("%s", full)
            self.take_less(directory, after, full)
            return

        def written(status: int) -> None:
            if status == Status.OK and not directory.retired:
                log.warning(
                    "%s has room again, %.1f %% is used: it takes %s", directory.path, 100 * used, _TAKES[after]
                )
                directory.takes, directory.control_behind = after, False
                self.sort()

        # A write in the open log may lack room unknown to this loop; nothing may follow behind such a hole.
        directory.commit.submit(SealLog(directory.current, ignore, directory.no_room))
        directory.current = None
        if directory.control_behind:
            yield from self._rewrite_control_log(directory, written)
        else:
            written(Status.OK)

    def ran_out(self, directory: LogDirectory, failure: OSError) -> None:
        """Handle a write without room: the directory takes nothing until the next measurement."""
        what, remedy = _REFUSED.get(meaning(failure), ("has no room left", REMEDY))
        if meaning(failure) not in _REFUSED and self._lacks_inodes(directory):
            what, remedy = "has no free inode left, so no file can be made there", REMEDY_FOR_INODES
        self.take_less(
            directory,
            Takes.NOTHING,
            f"{directory.path} {what} ({failure.strerror}): it takes nothing; {remedy}",
            failure,
        )

    def _lacks_inodes(self, directory: LogDirectory) -> bool:
        try:
            free, total = self._file_system.inodes(directory.path)
        except OSError:
            return False
        return total > 0 and free < _FILES_OF_A_LOG

    def take_less(self, directory: LogDirectory, less: Takes, why: str, failure: OSError | None = None) -> None:
        """Limit a directory to ``less`` from now on. ``why``: the reason in words, with the remedy. ``failure``: of a write
        without room, whose rows have left the index."""
        directory.takes, directory.why = less, why
        directory.commit.submit(SealLog(directory.current, ignore, failure))
        directory.current = None
        self.sort()

    def _warn(self, path: str, used: float) -> None:
        """Warn once each time that the disk reaches the warning mark."""
        if used < self._thresholds.warn:
            self._warned.discard(path)
        elif path not in self._warned:
            self._warned.add(path)
            full = 100 * self._thresholds.full
            log.warning("%s: %.1f %% is used; at %.1f %% it takes no more adds", path, 100 * used, full)
