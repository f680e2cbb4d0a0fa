"""A bookie's storage: what it holds, its adds, its control requests and its disks put together behind one set of calls.

Law: one loop owns all state; ``add``, ``sync``, ``fence`` and ``write_last_add_confirmed`` return at once and call
``done(status)`` on that loop, at once or later. Files are written by one commit thread per directory. What each call promises
stands where it is made: ``adds``, ``control_requests``, ``holdings`` (reads), ``reclaiming``, ``checkpointing``, ``losses``.

Source: docs/decisions/one-log.md; BookKeeper's ``Bookie`` and ``DbLedgerStorage``, with the journal and the entry log in one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.commit.commit_items import NoteSync
from bookspark.bookie.commit.commit_thread import Post, Soon
from bookspark.bookie.commit.completions import Done, ignore
from bookspark.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.bookie.disk.steps import Steps
from bookspark.bookie.holdings.boot import collector_paused, in_each, replay_control_logs, replay_logs
from bookspark.bookie.holdings.checkpointing import Checkpoints, Prepared
from bookspark.bookie.holdings.commit_results import CommitResults
from bookspark.bookie.holdings.disks import Disks
from bookspark.bookie.holdings.holdings import Holdings, StoredLog
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.bookie.ledgers.adds import Adds
from bookspark.bookie.ledgers.control_requests import ControlRequests
from bookspark.bookie.ledgers.long_polls import ConfirmedWatches
from bookspark.bookie.ledgers.losses import Losses
from bookspark.bookie.ledgers.unsure_adds import MetadataWord, nobody_knows
from bookspark.bookie.space.reclaiming import Reclaiming
from bookspark.errors import StorageError
from bookspark.protocol.bookie.garbage_collection import note_collection
from bookspark.wire.header import Status

_STOP_SECONDS_MAX = 60.0
_LOST_LOGS_MAX = 1 << 16
"""A directory that can't be read may have logs of higher numbers than the others, by fewer than this; no number is used twice."""

_LEDGERS_A_STEP = 256
_FORGOTTEN_PART = 0.1
"""When so many ledgers more than are left were forgotten at once, the control log is written anew without them."""

log = logging.getLogger(__name__)


class StorageStatus(NamedTuple):
    """Sizes in bytes."""

    ledgers: int
    log_bytes: int
    free_bytes: int
    read_only: bool


class Storage:
    """``Storage(config).open()``, then ``start(post)``, then the requests, then ``close()``."""

    def __init__(
        self,
        config: BookieConfig,
        file_system: FileSystem | None = None,
        *,
        boot_id: str = "",
        word: MetadataWord = nobody_knows,
        without: Collection[str] = (),
    ) -> None:
        """``boot_id``: the kernel's, if it is to be trusted (``unclean_marker``). ``word``: of the metadata, for ledgers whose
        fence a lossy boot may have lost (``unsure_adds``). ``without``: directories that can't be used."""
        self._file_system: FileSystem = file_system or RealFileSystem()
        directories = [LogDirectory(self._file_system, path, config, boot_id) for path in config.directories]
        live = [directory for directory in directories if directory.path not in without]
        holdings = self.holdings = Holdings(self._file_system, directories, live)
        self.volatile = holdings.volatile
        self.watches = ConfirmedWatches()
        self._requests = ControlRequests(holdings.control, live, holdings.volatile, self.watches)
        self.disks = Disks(config, self._file_system, live, self._requests.rewrite_in)
        self._results = CommitResults(holdings, self.disks)
        self._adds = Adds(
            holdings,
            self._requests,
            self.disks,
            self.watches,
            self._results,
            word,
            journal_write_data=config.journal_write_data,
        )
        self.losses = Losses(holdings, self._requests, self.disks)
        self.checkpoints = Checkpoints(self._file_system, live, holdings.ledgers, holdings.index)
        self.reclaiming = Reclaiming(self._file_system, holdings, self.checkpoints)
        self.add = self._adds.add
        self.sync = self._adds.sync
        self.held = self._adds.held
        self.fence = self._requests.fence
        self.write_last_add_confirmed = self._requests.write_last_add_confirmed
        self.settle = self._requests.settle
        self.when_below = self._results.when_below
        self.plan_read = holdings.plan_read
        self.has_moved = holdings.has_moved
        self.files = holdings.files
        """For reading what ``plan_read`` found, from any thread."""
        self.ledger = holdings.ledger
        self.may_read = holdings.may_read
        self.last_entry_id = holdings.last_entry_id
        self.ranges = holdings.ranges

    # -- life

    def open(self) -> Storage:
        """Read everything; nothing is served before this returns. Raises StorageError."""
        holdings, live = self.holdings, self.holdings.live
        in_each(live, LogDirectory.prepare)
        with collector_paused():
            scans = in_each(live, lambda directory: directory.control.scan())
            content = replay_control_logs(scans, holdings.control)
            scanned = dict(scans)
            in_each(live, lambda directory: directory.begin_control_log(content, scanned[directory]))
            recovered = in_each(live, LogDirectory.recover)
            holdings.next_log = 1 + replay_logs(recovered, holdings.control, holdings.index)
        holdings.unreadable = [directory.path for directory in holdings.directories if directory not in live]
        if holdings.unreadable:
            holdings.directories[:] = live
            holdings.next_log += _LOST_LOGS_MAX
        for directory in live:
            for stored in directory.stored:
                holdings.logs[stored.number] = (directory, stored)
            if directory.damaged:
                log.error(
                    "%s is damaged: what can't be found is answered I/O error until it is repaired", directory.path
                )
        for directory, used in self.disks.measure():
            deque(self.disks.look(directory, used), maxlen=0)  # there is no other work to be held up
        self.disks.sort()
        self._requests.is_open = True
        return self

    def start(self, post: Post, soon: Soon | None = None) -> None:
        """Start writing. ``post(function, *arguments)`` has a function called on the loop, from any thread; ``soon(function)``,
        on the loop, once this turn is over (without it, each request goes to the disk by itself)."""
        self._adds.unsure.start(post)
        directories = self.holdings.directories
        for directory in directories:
            directory.commit.start(post, self._results.completed, soon, alone=len(directories) == 1)

    def close(self) -> None:
        """Finish what is queued, seal the logs, write the checkpoints. Whoever waits is called on the loop, as ever."""
        if not self._requests.is_open:
            return
        self._requests.is_open = False
        self._adds.unsure.close()
        directories = self.holdings.directories
        for directory in directories:
            directory.commit.stop()
        late = [d.path for d in directories if not d.commit.join(_STOP_SECONDS_MAX)]
        if late:
            raise StorageError(f"{', '.join(late)}: the disk does not answer; nothing more is written")
        taking = self.checkpoints.take()
        try:
            while True:
                next(taking)
        except StopIteration as taken:
            self.checkpoints.write(taken.value)
        for directory in directories:
            directory.control.close()
        self.files.clear()

    # -- what there is

    def status(self) -> StorageStatus:
        return StorageStatus(
            ledgers=len(self.holdings.ledgers),
            log_bytes=sum(directory.bytes for directory in self.holdings.directories),
            free_bytes=sum(self._file_system.free_bytes(directory.path) for directory in self.holdings.live),
            read_only=self.disks.read_only,
        )

    @property
    def bytes_in_flight(self) -> int:
        """Of batches that are admitted and not yet durable."""
        return self._results.bytes_in_flight

    @property
    def damaged(self) -> bool:
        """Was something lost that had been synced? Then what is not found is unknown."""
        return self.holdings.damaged

    @property
    def live(self) -> list[LogDirectory]:
        """The directories that have not failed."""
        return list(self.holdings.live)

    @property
    def directories(self) -> list[str]:
        return [directory.path for directory in self.holdings.directories]

    @property
    def logs(self) -> dict[int, StoredLog]:
        """By number."""
        return {number: stored for number, (_, stored) in sorted(self.holdings.logs.items())}

    # -- collection

    def note_collection(self, ledger_ids: Collection[int], done: Done) -> None:
        """Before ``forget``. ``done``: OK once it is durable that there may have been fences of such ledgers."""
        control = self.holdings.control
        before = control.collected
        note = note_collection(before, ledger_ids)
        if note == before:
            done(Status.OK)
            return
        control.collected = note

        def noted(status: int) -> None:
            if status != Status.OK and control.collected == note:
                control.collected = before
            done(status)

        self._requests.write([note], noted)

    def forget(self, ledger_ids: Collection[int]) -> Steps[None]:
        """Let go of deleted ledgers, with everything that is known of them."""
        ids = list(ledger_ids)
        for start in range(0, len(ids), _LEDGERS_A_STEP):
            part = ids[start : start + _LEDGERS_A_STEP]
            self._requests.forget(part)
            self.reclaiming.forget(part)
            yield None
        if len(ids) >= _FORGOTTEN_PART * len(self.holdings.ledgers):
            yield from self._requests.rewrite()

    # -- checkpoints

    def checkpoint(self) -> Steps[Prepared]:
        """Prepare checkpoints, in steps of some milliseconds, on the loop. The result goes to ``write_checkpoints``."""
        if any(directory.control.worth_rewriting for directory in self.holdings.live):
            yield from self._requests.rewrite()
        if not self.checkpoints.due:
            return []
        for directory in self.holdings.live:
            directory.commit.submit(NoteSync(ignore))
        return (yield from self.checkpoints.take())

    def write_checkpoints(self, checkpoint: Prepared) -> None:
        """Write prepared checkpoints, in any thread. One that can't be written costs a longer boot and nothing else."""
        self.checkpoints.write(checkpoint)
