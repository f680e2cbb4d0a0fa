"""Making checkpoints: taking them in steps on the loop, writing them in any thread.

Law: a checkpoint that was taken before another is never written after it, or rows would come back that point into logs which are
gone by then. Which directories have one written is told, because what rests on a checkpoint (the removal of logs) has to
wait for it; otherwise one that can't be written costs a longer boot and nothing else.
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
    """Of the directories in ``live``, which the owner keeps up to date, as it does ``ledgers`` and ``index``."""

    def __init__(
        self, file_system: FileSystem, live: Sequence[LogDirectory], ledgers: dict[int, BookieLedger], index: Index
    ) -> None:
        self._file_system = file_system
        self._live = live
        self._ledgers = ledgers
        self._index = index
        self._alone = len(live) == 1
        self._taken: list[int] = []
        self._writing = threading.Lock()
        self._last: dict[str, Snapshot] = {}
        """The last one taken of each directory."""

    def outdated(self) -> None:
        """The index changed otherwise than by what was added: the next checkpoint is not left out."""
        self._taken = []

    @property
    def due(self) -> bool:
        """Is there anything that the last one doesn't hold?"""
        return [directory.covered() for directory in self._live] != self._taken

    def take(self) -> Steps[Prepared]:
        """Take one of each directory, in steps of some milliseconds."""
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
        """Write what was taken; returns the directories of which it is durable."""
        durable: set[str] = set()
        if not self._writing.acquire(timeout=_WRITE_SECONDS_MAX):
            log.error("the last checkpoint is still being written; this one is left out")
            return durable
        try:
            for directory, snapshot in prepared:
                if self._last.get(directory.path) is not snapshot:
                    continue  # a newer one was taken
                try:
                    write_checkpoint(self._file_system, directory.path, snapshot)
                    durable.add(directory.path)
                except OSError as error:
                    log.error("%s: the checkpoint can't be written: %s; the last one stays", directory.path, error)
                    self._taken = []
        finally:
            self._writing.release()
        return durable
