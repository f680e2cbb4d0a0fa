"""Making checkpoints: taking them in steps on the loop, writing them in any thread.

Law: a checkpoint that was taken before another one is never written after it, nor before the control logs have what was lost
until then. Otherwise rows would come back that point into logs which are removed by then, or entries would be missing and nothing
would say why. ``write`` tells of which directories the checkpoint is durable, because the removal of logs has to wait for that. A
checkpoint that can't be written costs a longer boot and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from bookspark.bookie.disk.checkpoint import Snapshot, fill, write_checkpoint
from bookspark.bookie.disk.file_system import FileSystem
from bookspark.bookie.disk.index import Index
from bookspark.bookie.disk.steps import Steps
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.protocol.bookie.bookie_ledger import BookieLedger

_WRITE_SECONDS_MAX = 60.0

Prepared = list[tuple[LogDirectory, Snapshot]]
"""Checkpoints of one moment that are ready to be written."""

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one bookie. The owner keeps ``live``, ``ledgers`` and ``index`` up to date."""

    def __init__(
        self,
        file_system: FileSystem,
        live: Sequence[LogDirectory],
        ledgers: dict[int, BookieLedger],
        index: Index,
        losses_durable: threading.Event,
    ) -> None:
        """``losses_durable``: set while the control logs have everything that was lost, and so left the index."""
        self._file_system = file_system
        self._live = live
        self._ledgers = ledgers
        self._index = index
        self._losses_durable = losses_durable
        self._alone = len(live) == 1
        self._taken: list[int] = []
        self._writing = threading.Lock()
        self._last: dict[str, Snapshot] = {}
        """The last checkpoint that was taken of each directory, by its path."""

    def outdated(self) -> None:
        """Something else than adds changed the index: the next checkpoint is not left out."""
        self._taken = []

    @property
    def due(self) -> bool:
        """Is there anything that the last checkpoint does not hold?"""
        return [directory.covered() for directory in self._live] != self._taken

    def take(self) -> Steps[Prepared]:
        """Take a checkpoint of each directory, in steps of some milliseconds."""
        covered = [directory.covered() for directory in self._live]
        prepared = [
            (
                directory,
                Snapshot(
                    None if self._alone else frozenset(entry_log.number for entry_log in directory.logs),
                    directory.covered(),
                    directory.damaged,
                    frozenset(directory.rewritten),
                ),
            )
            for directory in self._live
        ]
        yield from fill([snapshot for _, snapshot in prepared], self._ledgers, self._index)
        self._taken = covered
        self._last.update((directory.path, snapshot) for directory, snapshot in prepared)
        return prepared

    def write(self, prepared: Prepared) -> set[str]:
        """Write what was taken, in any thread; returns the paths of the directories whose checkpoint is durable now."""
        durable: set[str] = set()
        if not self._losses_durable.is_set():
            log.warning("that entries were lost is not noted yet, so the checkpoint is written later")
            self._taken = []
            return durable
        if not self._writing.acquire(timeout=_WRITE_SECONDS_MAX):
            log.error("the last checkpoint is still being written; this one is left out")
            return durable
        try:
            for directory, snapshot in prepared:
                if self._last.get(directory.path) is not snapshot:
                    # A newer checkpoint was taken meanwhile.
                    continue
                try:
                    write_checkpoint(self._file_system, directory.path, snapshot)
                    durable.add(directory.path)
                except OSError as error:
                    log.error("%s: the checkpoint can't be written: %s; the last one stays", directory.path, error)
                    self._taken = []
        finally:
            self._writing.release()
        return durable
