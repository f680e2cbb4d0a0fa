"""The disks of a bookie: which of its directories take what, and the way from full to writable again.

Law: that of ``disk_marks``, which decides by the figures; besides, a write that found no room makes its directory full at once,
until its figures are looked at the next time. A directory that turns full has its log sealed, which gives back what was reserved.
One that missed a control record gets the whole control log anew before it takes anything, for from then on it counts again.

Source: BookKeeper's ``LedgerDirsMonitor``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.commit.commit_items import SealLog
from bookspark.bookie.commit.completions import Done, ignore
from bookspark.bookie.disk.file_system import FileSystem
from bookspark.bookie.disk.steps import Steps
from bookspark.bookie.holdings.disk_marks import Takes, Thresholds, takes, used_part
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.wire.header import Status

_TAKES = {Takes.NOTHING: "nothing", Takes.RECOVERY: "what recovery writes, no other adds", Takes.ALL: "all adds"}

log = logging.getLogger(__name__)


class Disks:
    """Owned by the loop, but for ``measure``."""

    def __init__(
        self,
        config: BookieConfig,
        file_system: FileSystem,
        live: Sequence[LogDirectory],
        rewrite_control_log: Callable[[LogDirectory, Done], Steps[None]],
    ) -> None:
        """``live``: the directories that have not failed, kept up to date by its owner, who calls ``sort``."""
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
        self.writable = list(live)
        """Those that take every add,"""
        self.for_recovery = list(live)
        """and those that take what recovery and repair write."""
        self.read_only_changed: Callable[[bool], None] = lambda read_only: None
        """Called on the loop."""

    @property
    def read_only(self) -> bool:
        return not self.writable

    @property
    def any_full(self) -> bool:
        return len(self.writable) < len(self._live)

    def sort(self) -> None:
        """A directory takes something else now, or has failed."""
        before = self.read_only
        self.writable = [directory for directory in self._live if directory.takes is Takes.ALL]
        self.for_recovery = [directory for directory in self._live if directory.takes is not Takes.NOTHING]
        if before != self.read_only:
            log.warning("this bookie is %s", "read-only now" if self.read_only else "writable again")
            self.read_only_changed(self.read_only)

    def measure(self) -> list[tuple[LogDirectory, float]]:
        """The used part of each directory's space, for ``look``. In any thread: it may wait for the disks."""
        measured = []
        for directory in list(self._live):
            path = directory.path
            try:
                free, total = self._file_system.free_bytes(path), self._file_system.total_bytes(path)
                measured.append((directory, used_part(directory.bytes, free, total, self._quota_bytes)))
            except OSError as error:
                log.warning("%s: its space can't be told: %s", path, error)
        return measured

    def look_at_all(self) -> None:
        """At the boot, before anything is served: measure every disk, and have each directory take what it should."""
        for directory, used in self.measure():
            deque(self.look(directory, used), maxlen=0)  # there is no other work to be held up
        self.sort()

    def look(self, directory: LogDirectory, used: float) -> Steps[None]:
        """Have a directory take what it should, now that this part of its space is used."""
        after = takes(directory.takes, used, self._thresholds)
        self._warn(directory.path, used)
        if directory.retired or after is directory.takes:
            return
        if after < directory.takes:
            log.warning("%s is full, %.1f %% is used: it takes %s", directory.path, 100 * used, _TAKES[after])
            self.take_less(directory, after)
            return

        def written(status: int) -> None:
            if status == Status.OK and not directory.retired:
                log.warning(
                    "%s has room again, %.1f %% is used: it takes %s", directory.path, 100 * used, _TAKES[after]
                )
                directory.takes, directory.control_behind = after, False
                self.sort()

        directory.commit.submit(SealLog(None, ignore))
        if directory.control_behind:
            yield from self._rewrite_control_log(directory, written)
        else:
            written(Status.OK)

    def take_less(self, directory: LogDirectory, less: Takes) -> None:
        """A directory takes no more than ``less`` from here on."""
        directory.takes = less
        directory.commit.submit(SealLog(directory.current, ignore))
        directory.current = None
        self.sort()

    def _warn(self, path: str, used: float) -> None:
        """Once for each time that the disk becomes that full."""
        if used < self._thresholds.warn:
            self._warned.discard(path)
        elif path not in self._warned:
            self._warned.add(path)
            full = 100 * self._thresholds.full
            log.warning("%s: %.1f %% is used; at %.1f %% it takes no more adds", path, 100 * used, full)
