"""The disks of a bookie: which of its directories take what, and how a full one becomes writable again.

Law: as in ``disk_marks``, which decides by the figures. A write that found no room makes its directory full at once, until the
figures are looked at the next time. The log of a directory that turns full is sealed, which gives back the reserved space. A
directory that missed a control record gets a whole new control log before it takes anything, because from then on it counts
again. An operator's switch makes all of them take only what recovery and repair write, whatever room there is.

Whoever is refused can learn why, and what to do: each directory that takes less has its reason in words.

Source: BookKeeper's ``LedgerDirsMonitor``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.commit_items import SealLog
from bookspark.store.bookie.commit.completions import Done, ignore
from bookspark.store.bookie.disk.file_system import NO_DESCRIPTOR, FileSystem
from bookspark.store.bookie.holdings.disk_marks import Takes, Thresholds, takes, used_part
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.steps import Steps
from bookspark.store.wire.header import Status

_TAKES = {Takes.NOTHING: "nothing", Takes.RECOVERY: "what recovery writes, no other adds", Takes.ALL: "all adds"}

REMEDY = (
    "free some space on its disk, add a directory to the bookie, or collect deleted ledgers now "
    "(bookspark bookie collect ID)"
)
_MORE_FILES = "it is tried again soon; allow the process more open files (ulimit -n)"
_SWITCHED = "the bookie was switched to read-only (bookspark bookie read-only ID off)"

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
        """Free bytes of each directory's disk, when it was looked at last."""
        self.switched = False
        """Has an operator switched the bookie to read-only?"""
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
        return any(directory.takes is not Takes.ALL for directory in self._live)

    @property
    def free_bytes(self) -> int:
        """What was free in all directories that are in use, when they were looked at last."""
        return sum(self.free_bytes_of(directory) for directory in self._live)

    def free_bytes_of(self, directory: LogDirectory) -> int:
        """What was free on the disk of a directory when it was looked at last."""
        return self._measured.get(directory.path, 0)

    @property
    def reasons(self) -> list[str]:
        """Why the bookie does not take every add in every directory, and what to do about it: a sentence for each reason."""
        found = [_SWITCHED] if self.switched else []
        return found + [directory.why for directory in self._live if directory.takes is not Takes.ALL]

    def switch(self, read_only: bool) -> None:
        """An operator switched the bookie to read-only, or back."""
        self.switched = read_only
        self.sort()

    def nearly_full(self, directory: LogDirectory) -> bool:
        """Has the directory reached the warning mark?"""
        return directory.path in self._warned

    @property
    def full(self) -> dict[str, str]:
        """The directories that do not take every add, and why, with what to do about it."""
        return {d.path: d.why for d in self._live if d.takes is not Takes.ALL}

    def sort(self) -> None:
        """A directory takes something else now, or has failed: choose ``writable`` and ``for_recovery`` anew."""
        before = self.read_only
        self.writable = [d for d in self._live if d.takes is Takes.ALL and not self.switched]
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
                measured.append((directory, used_part(directory.bytes, free, total, self._quota_bytes)))
            except OSError as error:
                log.warning("%s: its free space can't be read: %s", path, error)
        return measured

    def look_at_all(self) -> None:
        """At the boot, before anything is served: measure every disk, and have each directory take what it should. One that needs
        a new control log waits for the next look: phase one of a lossy boot has to be in it."""
        for directory, used in self.measure():
            if not directory.control_behind:
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
            full = f"{directory.path} is full, {100 * used:.1f} % is used: it takes {_TAKES[after]}; {REMEDY}"
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

        # A write in the open log may have found no room, and this loop not have heard of it: nothing goes behind such a hole.
        directory.commit.submit(SealLog(directory.current, ignore, directory.no_room))
        directory.current = None
        if directory.control_behind:
            yield from self._rewrite_control_log(directory, written)
        else:
            written(Status.OK)

    def ran_out(self, directory: LogDirectory, failure: OSError) -> None:
        """A write found no room: the directory takes nothing until the figures are looked at the next time."""
        what, remedy = "has no room left", REMEDY
        if failure.errno in NO_DESCRIPTOR:
            what, remedy = "could not be written to", _MORE_FILES
        self.take_less(
            directory,
            Takes.NOTHING,
            f"{directory.path} {what} ({failure.strerror}): it takes nothing; {remedy}",
            failure,
        )

    def take_less(self, directory: LogDirectory, less: Takes, why: str, failure: OSError | None = None) -> None:
        """Have a directory take no more than ``less`` from now on. ``why``: for people, with what to do about it. ``failure``: of
        the write that found no room, of which the index has nothing any more."""
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
