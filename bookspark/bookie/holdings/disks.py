"""The disks of a bookie: which of its directories take what, and how a full one becomes writable again.

Law: as in ``disk_marks``, which decides by the figures. A write that found no room makes its directory full at once, until the
figures are looked at the next time. The log of a directory that turns full is sealed, which gives back the reserved space. A
directory that missed a control record gets a whole new control log before it takes anything, because from then on it counts
again.

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
        self.writable = list(live)
        """The directories that take every add."""
        self.for_recovery = list(live)
        """The directories that take what recovery and repair write."""
        self.read_only_changed: Callable[[bool], None] = lambda read_only: None
        """Called on the loop when ``read_only`` has changed."""

    @property
    def read_only(self) -> bool:
        """Does no directory take every add?"""
        return not self.writable

    @property
    def any_full(self) -> bool:
        """Is there a directory that does not take every add?"""
        return len(self.writable) < len(self._live)

    @property
    def full(self) -> dict[str, str]:
        """The directories that do not take every add, and what they take."""
        return {d.path: f"it takes {_TAKES[d.takes]}" for d in self._live if d.takes is not Takes.ALL}

    def sort(self) -> None:
        """A directory takes something else now, or has failed: choose ``writable`` and ``for_recovery`` anew."""
        before = self.read_only
        self.writable = [directory for directory in self._live if directory.takes is Takes.ALL]
        self.for_recovery = [directory for directory in self._live if directory.takes is not Takes.NOTHING]
        if before != self.read_only:
            log.warning("this bookie is %s", "read-only now" if self.read_only else "writable again")
            self.read_only_changed(self.read_only)

    def measure(self) -> list[tuple[LogDirectory, float]]:
        """The used part (0 to 1) of each directory's space, for ``look``. In any thread: it may wait for the disks."""
        measured = []
        for directory in list(self._live):
            path = directory.path
            try:
                free, total = self._file_system.free_bytes(path), self._file_system.total_bytes(path)
                measured.append((directory, used_part(directory.bytes, free, total, self._quota_bytes)))
            except OSError as error:
                log.warning("%s: its free space can't be read: %s", path, error)
        return measured

    def look_at_all(self) -> None:
        """At the boot, before anything is served: measure every disk, and have each directory take what it should."""
        for directory, used in self.measure():
            # Nothing is served yet, so all steps run at once.
            deque(self.look(directory, used), maxlen=0)
        self.sort()

    def look(self, directory: LogDirectory, used: float) -> Steps[None]:
        """Have a directory take what it should, now that the part ``used`` (0 to 1) of its space is used."""
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
        """Have a directory take no more than ``less`` from now on."""
        directory.takes = less
        directory.commit.submit(SealLog(directory.current, ignore))
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
