"""Kept files: care for the files beside the logs while a bookie serves: control logs, checkpoints, notes, markers, cookies.

Law: each file is read from the disk and checked (``checks``) some hundred times in a period of the scrub, because the files are
short and a boot rests on them. The process knows the correct content of each. A damaged, unreadable or missing file is therefore
replaced at once, durably, from memory: a control log by the state of all ledgers, a checkpoint by the whole index, a note by the
synced position. A later boot sees no damage, even in a bookie with one directory.

Damage between the last check and a crash remains for the boot to judge. The scrub's own progress file is replaced with each group
of logs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bookspark.errors import BookieError
from bookspark.store.bookie.checks import Damage, check_control_log, check_note
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.entry_log import LOGS
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.bookie.disk.unclean_marker import NAME as MARKER
from bookspark.store.bookie.holdings.checkpointing import Checkpoints
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.steps import WAIT, Steps
from bookspark.store.wire.header import Status

RewriteControl = Callable[[LogDirectory, Done], Steps[None]]

_TRIES = 3
_WRONG = "it fails its checks, can't be read, or is missing"

log = logging.getLogger(__name__)


class KeptFile(NamedTuple):
    """A file that another part of the process keeps in a directory. Both functions may be called in any thread, and may raise
    OSError and BookieError."""

    path: str
    is_good: Callable[[], bool]
    """Reads the file from the disk and checks its bytes."""
    renew: Callable[[], None]


class KeptFiles:
    """The files of one bookie, except its logs. Owned by the loop."""

    def __init__(
        self, file_system: FileSystem, holdings: Holdings, checkpoints: Checkpoints, rewrite_control: RewriteControl
    ) -> None:
        """``rewrite_control``: writes a new control log in a directory."""
        self._file_system = file_system
        self._holdings = holdings
        self._checkpoints = checkpoints
        self._rewrite_control = rewrite_control
        self.others: list[KeptFile] = []
        """Files that other parts of the process keep, such as cookies."""
        self.renewed = 0
        """Damaged files that were replaced since the start."""

    def look(self) -> Steps[None]:
        for directory in list(self._holdings.live):
            try:
                is_there: bool = yield partial(self._file_system.exists, f"{directory.path}/{LOGS}")
            except OSError as error:
                log.error("%s: the directory can't be looked at: %s; check the disk", directory.path, error)
                continue
            if not is_there:
                # Nothing is written there, because it may be the mount point of an unmounted disk.
                log.error(
                    "%s: the directory is not there any more, or it is another one; check the disk", directory.path
                )
                continue
            yield from self._look_at_control_log(directory)
            yield from self._look_at_checkpoint(directory)
            renewed: list[str] = yield partial(self._renew_small_files, directory)
            for path in renewed:
                self._tell(path, _WRONG)
        for kept in self.others:
            if (yield partial(_renew_other, kept)):
                self._tell(kept.path, _WRONG)

    def _look_at_control_log(self, directory: LogDirectory) -> Steps[None]:
        damages: list[Damage] = yield partial(self._control_damages, directory)
        if not damages or directory.retired:
            return
        ended: list[int] = []
        yield from self._rewrite_control(directory, ended.append)
        while not ended:
            yield WAIT
        if ended == [Status.OK]:
            self._tell(*_first(damages))
        else:
            log.error("%s: %s, and it could not be written anew; it is tried again", *_first(damages))

    def _control_damages(self, directory: LogDirectory) -> list[Damage]:
        """In a thread. During a replacement of the log no verdict is possible or needed."""
        found: list[Damage] = []
        for _ in range(_TRIES):
            version, synced = directory.control.version, directory.control.synced
            if version % 2:
                return []
            try:
                _, found = check_control_log(self._file_system, directory.path, expected=True, synced=synced)
            except OSError as error:
                log.warning("%s can't be read now: %s; check the disk", directory.control.path, error)
                return []
            if not found or directory.control.version == version:
                return found
        return found

    def _look_at_checkpoint(self, directory: LogDirectory) -> Steps[None]:
        try:
            damages: list[Damage] = yield partial(self._checkpoints.damages, directory)
        except OSError as error:
            log.warning("%s: the checkpoint could not be looked at: %s", directory.path, error)
            return
        if damages and not directory.retired:
            self._checkpoints.spoiled()
            prepared = yield from self._checkpoints.take()
            durable: set[str] = yield partial(self._checkpoints.write, prepared)
            if directory.path in durable:
                self._tell(*_first(damages))

    def _renew_small_files(self, directory: LogDirectory) -> list[str]:
        """Check notes and marker, in a thread; return the paths of replaced files."""
        renewed: list[str] = []
        try:
            for entry_log in list(directory.logs):
                synced = entry_log.synced
                if synced and check_note(self._file_system, entry_log.note_path, entry_log.number, synced):
                    entry_log.renew_note()
                    renewed.append(entry_log.note_path)
            if directory.marker.renew():
                renewed.append(f"{directory.path}/{MARKER}")
        except OSError as error:
            log.warning("%s: its notes and its marker could not be looked at: %s", directory.path, error)
        return renewed

    def _tell(self, path: str, what: str) -> None:
        self.renewed += 1
        log.warning("%s: %s; it was written anew from what the process knows; check the disk", path, what)


def _first(damages: list[Damage]) -> tuple[str, str]:
    return damages[0].path, damages[0].what


def _renew_other(kept: KeptFile) -> bool:
    try:
        if kept.is_good():
            return False
        kept.renew()
    except (OSError, BookieError) as error:
        log.warning("%s could not be looked at: %s", kept.path, error)
        return False
    return True
