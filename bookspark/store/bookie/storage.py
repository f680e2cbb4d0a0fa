"""A bookie's storage: one set of calls for its adds, its reads, its control requests and its disks.

Law: one loop owns all state. ``add``, ``sync``, ``fence``, ``write_last_add_confirmed``, ``settle``, ``when_durable`` and
``held_ranges`` return at once and call ``done`` on that loop, at once or later. Files are written by one commit thread per
directory.

Each call is made by the part that decides it: ``ledgers`` (adds, fencing, explicit_lacs, volatile_syncs, held_copies),
``holdings`` (reads, checkpointing, disks), ``space`` (garbage_collection, reclaiming). An add takes some 2 µs of the loop here,
and the extra Python call 0.05 µs of that, so the hot path goes through here like everything else.

Source: docs/decisions/one-log.md; BookKeeper's ``Bookie`` and ``DbLedgerStorage``, with the journal and the entry log in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.protocol.bookie.reach import NOTHING_NOTED, Reach
from bookspark.protocol.ledger.entry_ranges import EntryRanges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.commit_items import NoteSync
from bookspark.store.bookie.commit.commit_thread import Post, Soon
from bookspark.store.bookie.commit.completions import Done, ignore
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.disk.index import location
from bookspark.store.bookie.holdings.boot import read_directories
from bookspark.store.bookie.holdings.checkpointing import Checkpoints, Prepared
from bookspark.store.bookie.holdings.commit_results import CommitResults
from bookspark.store.bookie.holdings.disk_threads import DiskThreads
from bookspark.store.bookie.holdings.disks import Disks
from bookspark.store.bookie.holdings.holdings import Holdings, StoredLog
from bookspark.store.bookie.holdings.kept_files import KeptFiles
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.holdings.reads import Piece, ReadPlan
from bookspark.store.bookie.holdings.scrubbing import Scrubbing
from bookspark.store.bookie.holdings.what_is_back import note_what_is_back
from bookspark.store.bookie.ledgers.adds import Adds
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.bookie.ledgers.explicit_lacs import ExplicitLacs
from bookspark.store.bookie.ledgers.fencing import Fences
from bookspark.store.bookie.ledgers.first_requests import FirstRequestCheck, FirstRequests
from bookspark.store.bookie.ledgers.held_copies import HeldCopies
from bookspark.store.bookie.ledgers.losses import Losses
from bookspark.store.bookie.ledgers.lossy_boots import LossyBoots
from bookspark.store.bookie.ledgers.read_only_switch import ReadOnlySwitch
from bookspark.store.bookie.ledgers.unsure_adds import FenceCheck, no_metadata
from bookspark.store.bookie.ledgers.volatile_syncs import VolatileSyncs
from bookspark.store.bookie.space.garbage_collection import GarbageCollection
from bookspark.store.bookie.space.reclaiming import Reclaiming
from bookspark.store.bookie.steps import Steps
from bookspark.store.bookie.storage_status import StorageStatus
from bookspark.store.bookie.traffic import Traffic
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Header
from bookspark.store.wire.messages import Ranges

_STOP_SECONDS_MAX = 60.0


class Storage:
    """``Storage(config).open()``, then ``start(post)``, then the requests, then ``close()``.

    Ids are those of ledgers and entries, sizes are bytes. A ``done`` is called once, with a ``wire.header.Status``.
    """

    def __init__(
        self,
        config: BookieConfig,
        file_system: FileSystem | None = None,
        *,
        boot_id: str = "",
        check_fence: FenceCheck = no_metadata,
        check_first: FirstRequestCheck | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Read nothing yet.

        ``file_system``: None is the operating system's. ``boot_id``: the kernel's, if it is to be trusted (``unclean_marker``).
        ``check_fence``: asks the metadata of ledgers whose fence a lossy boot may have lost (``unsure_adds``).
        ``check_first``: asks it of ledgers that a request would make known without an entry (``first_requests``); None grants
        those requests. ``without``: those of the config's directories that can't be used.
        """
        self._file_system: FileSystem = file_system or RealFileSystem()
        directories = [
            LogDirectory(self._file_system, number, config, boot_id) for number in range(len(config.directories))
        ]
        live = [directory for directory in directories if directory.path not in without]
        holdings = self.holdings = Holdings(self._file_system, directories, live)
        self.volatile = holdings.volatile
        """Ledgers of volatile durability (VD) that are being written: LastAddSynced of each."""
        self.long_polls = holdings.long_polls
        """Who waits for the LAC of a ledger."""
        self.files = holdings.files
        """For reading what ``plan_read`` found, from any thread."""
        self._records = ControlRecords(holdings.control, live)
        self.checkpoints = Checkpoints(
            self._file_system, live, holdings.control, holdings.index, holdings.losses_durable
        )
        """Making checkpoints of the index."""
        self._losses = Losses(holdings, self._records, self.checkpoints)
        self.traffic = Traffic()
        """What was asked and answered, for metrics."""
        self._fences = Fences(holdings.control, self._records, holdings.volatile, self.traffic)
        self.disks = Disks(config, self._file_system, live, self._records.rewrite_in)
        """Which directories take what, by how full they are."""
        self._read_only_switch = ReadOnlySwitch(holdings.control, self._records, self.disks)
        self._results = CommitResults(holdings, self.disks)
        holdings.read_failed = self._results.read_failed
        self.disk_threads = DiskThreads(holdings.directory_of)
        """For what has to wait for a disk."""
        self.loop_is_shared: Callable[[], bool] = lambda: False
        """Does the loop serve more than one client at present? Set by who serves them."""
        self.broken: Callable[[str], None] = lambda why: None
        """Called, in any thread, when a commit thread fails and the disk is not at fault. The bookie has to end then, because
        requests may never be answered. Set by who runs the bookie."""
        self._adds = Adds(
            holdings,
            self._records,
            self.disks,
            self._results,
            check_fence,
            self.disk_threads,
            self.traffic,
            journal_write_data=config.journal_write_data,
        )
        self._first_requests = FirstRequests(check_first, holdings.ledgers)
        self._held_copies = HeldCopies(holdings)
        self._syncs = VolatileSyncs(holdings, self._held_copies)
        self._explicit_lacs = ExplicitLacs(holdings, self._records)
        self.lossy_boots = LossyBoots(holdings, self._records, self.disks)
        """What was lost, and what of it is back."""
        self.garbage_collection = GarbageCollection(holdings, self._records, self.checkpoints)
        """Forgetting ledgers that were deleted."""
        self.reclaiming = Reclaiming(self._file_system, holdings, self.checkpoints)
        """Rewriting and removing logs."""
        self.scrubbing = Scrubbing(self._file_system, holdings)
        """Reading and checking what is held, round after round."""
        self.kept_files = KeptFiles(self._file_system, holdings, self.checkpoints, self._records.rewrite_in)
        """Looking after control logs, checkpoints, notes and markers."""

    # -- life

    def open(self, noted: Mapping[str, Reach] = NOTHING_NOTED) -> Storage:
        """Read everything; nothing is served before this returns. ``noted``: how far each directory went, by its path. Raises
        StorageError if no directory can be read, or if a fence may be lost with a damaged control log."""
        read_directories(self.holdings, noted)
        self._read_only_switch.opened()
        self.disks.look_at_all()
        self._records.is_open = True
        deque(note_what_is_back(self.holdings), maxlen=0)
        self._losses.begin()
        return self

    def start(self, post: Post, soon: Soon | None = None) -> None:
        """Start writing. ``post(function, *arguments)`` has a function called on the loop, from any thread. ``soon(function)``
        has one called on the loop once this turn of it is over. Without ``soon`` there is no loop that others need: each request
        goes to the disk by itself, and the caller compares entries that come again."""
        self._adds.unsure.start(post)
        self._first_requests.start(post)
        self._results.start(soon)
        self.long_polls.start(soon)
        if soon is not None:
            self._adds.comparisons.start(post)
            self._held_copies.start(post)
        directories = self.holdings.directories
        for directory in directories:
            directory.commit.broken = lambda why: self.broken(why)
            directory.commit.loop_is_shared = lambda: self.loop_is_shared()
            directory.commit.start(post, self._results.completed, soon, alone=len(directories) == 1)

    def lacking(self, ledgers_max: int) -> list[tuple[int, EntryRanges]]:
        """Take at most ``ledgers_max`` of the ledgers that lost entries here since they were taken last: what lacks of each."""
        lacking = self.holdings.ledgers_lacking
        taken = [lacking.pop() for _ in range(min(ledgers_max, len(lacking)))]
        return [(ledger_id, self.holdings.lacking(ledger_id)) for ledger_id in taken]

    def when_none_is_left(self, tell: Callable[[str], None]) -> None:
        """Call ``tell(why)`` on the loop when the last directory has failed. The storage takes and holds nothing from then on."""
        self._results.none_left = tell

    def close(self) -> None:
        """Finish what is queued, seal the logs, write the checkpoints. Every ``done`` that is due is still called, on the loop.
        Raises StorageError if a disk does not answer within 60 s."""
        if not self._records.is_open:
            return
        self._records.is_open = False
        self._adds.unsure.close()
        self._first_requests.close()
        self._adds.comparisons.close()
        self.disk_threads.close()
        directories = self.holdings.directories
        for directory in directories:
            directory.commit.stop()
        late = [d.path for d in directories if not d.commit.join(_STOP_SECONDS_MAX)]
        if late:
            raise StorageError(f"{', '.join(late)}: the disk does not answer; nothing more is written")
        if self._losses.end():
            self._checkpoint_at_once()
        for directory in directories:
            directory.control.close()
        self.files.clear()

    def end_phase_one(self) -> None:
        """Phase one of a lossy boot is durable. A checkpoint comes first, so that the next boot need not look at what is damaged
        again; then the unclean markers go."""
        self._checkpoint_at_once()
        self.lossy_boots.phase_one_is_over()

    def _checkpoint_at_once(self) -> None:
        taking = self.checkpoints.take()
        try:
            while True:
                next(taking)
        except StopIteration as taken:
            self.checkpoints.write(taken.value)

    # -- requests that write

    def add(self, header: Header, batch: EntryBatch, done: Done) -> None:
        """Add the entries of a batch frame that passed its checks (``EntryBatch.checked``), all or none. ``header`` is the
        frame's.

        ``done``: OK; FENCED; UNAUTHORIZED (another master key); CONFLICT (an entry is there with other content); READ_ONLY (no
        directory takes it); LIMBO or TOO_MANY_REQUESTS (the ledger's fence is unsure); IO_ERROR (nothing is known).
        """
        self._adds.add(header, batch, done)

    def sync(self, ledger_id: int, master_key: bytes, assignment: Assignment, done: Done) -> None:
        """Sync what was added to a VD ledger so far; ``volatile`` tells LastAddSynced then.

        ``done``: OK, FENCED, UNAUTHORIZED, LIMBO, or IO_ERROR if something of it is lost.
        """
        if ledger_id in self._adds.comparisons.waiting:
            # Adds that came before wait for their comparison.
            self._adds.comparisons.behind(ledger_id, partial(self._syncs.sync, ledger_id, master_key, assignment, done))
            return
        self._syncs.sync(ledger_id, master_key, assignment, done)

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Fence a ledger, known here or not. It takes no more adds from its writer from this call on, or, if nothing was known of
        it, from the metadata's answer on.

        ``done``: OK once the fence is durable, UNAUTHORIZED, IO_ERROR; LIMBO or TOO_MANY_REQUESTS (``first_requests``).
        """
        go_on = partial(self._fences.fence, ledger_id, master_key, done)
        self._first_requests.when_granted(ledger_id, master_key, go_on, done)

    def write_last_add_confirmed(
        self,
        ledger_id: int,
        master_key: bytes,
        last_add_confirmed: int,
        done: Done,
        last_add_fully_replicated: int = NO_ENTRY,
    ) -> None:
        """Note an explicit LAC (last add confirmed), and with it the LAFR (last add fully replicated), which is kept in memory
        only.

        ``done``: OK once the LAC is durable, FENCED, UNAUTHORIZED, IO_ERROR; LIMBO or TOO_MANY_REQUESTS (``first_requests``).
        """
        go_on = partial(
            self._explicit_lacs.write, ledger_id, master_key, last_add_confirmed, done, last_add_fully_replicated
        )
        self._first_requests.when_granted(ledger_id, master_key, go_on, done)

    def switch_read_only(self, read_only: bool, done: Done) -> None:
        """Make the bookie read-only, whatever room it has, or take that back. ``done``: OK once that is durable, or IO_ERROR."""
        self._read_only_switch.switch(read_only, done)

    def settle(self, done: Done) -> None:
        """Wait for everything that was asked for before. ``done``: OK once it is through in every directory, or IO_ERROR."""
        self._adds.comparisons.when_over(lambda: self._records.settle(done))

    def when_below(self, bytes_in_flight: int, relieved: Callable[[], None]) -> None:
        """Call ``relieved`` once, when no more than ``bytes_in_flight`` bytes wait for their sync. One caller may wait at a
        time."""
        self._results.when_below(bytes_in_flight, relieved)

    # -- reads

    def plan_read(self, ledger_id: int, first: int, last: int, limit: int, *, sparse: bool) -> ReadPlan:
        """Find the batches that hold entries ``first..last``, up to about ``limit`` bytes (0: as much as one answer takes).

        ``sparse``: skip ids that are not held. Otherwise the plan ends before the first such id, and says why it is absent.
        """
        return self.holdings.plan_read(ledger_id, first, last, limit, sparse=sparse)

    def has_moved(self, piece: Piece) -> bool:
        """Do the entries of a planned piece lie elsewhere by now, or nowhere? Then the read is to be planned again."""
        return self.holdings.has_moved(piece)

    def may_read(self, ledger_id: int, master_key: bytes) -> bool:
        """May a reader with this key, or without one (``NO_KEY``), read the ledger?"""
        return self.holdings.may_read(ledger_id, master_key)

    def ledger(self, ledger_id: int) -> BookieLedger | None:
        """What is known of a ledger (not to be changed), None if it was never heard of."""
        return self.holdings.ledger(ledger_id)

    def last_entry_id(self, ledger_id: int) -> int | None:
        """The highest entry id that is held, NO_ENTRY if none. None: so much of what was held is gone that it is not found yet;
        ask again in another turn of the loop."""
        return self.holdings.last_entry_id(ledger_id)

    def ranges(self, ledger_id: int, first_entry_id: int, limit: int, *, only: bool) -> tuple[Ranges, int, int]:
        """The rows of the index from (``ledger_id``, ``first_entry_id``) on, at most ``limit`` and 2,048.

        ``only``: of that ledger, else of all that follow too. Returns the rows with the ledger id and the first entry id to go on
        with, −1 and −1 at the end.
        """
        return self.holdings.ranges(ledger_id, first_entry_id, limit, only=only)

    def when_durable(self, ranges: Ranges, done: Done) -> None:
        """Call ``done`` once all of these rows are durable: OK, or why they can't be."""
        self._held_copies.when_durable([*map(location, ranges.logs, ranges.positions)], done)

    def held_ranges(self, ledger_id: int, done: Callable[[list[tuple[int, int]] | None], None]) -> None:
        """Tell the ranges of entry ids (first, last) that are held of a ledger, once they are durable; None if they can't be."""
        self._held_copies.ranges(ledger_id, done)

    # -- what there is

    def status(self) -> StorageStatus:
        """How much there is, and how much room was left when the disks were looked at last. No disk is asked."""
        return StorageStatus(
            ledgers=len(self.holdings.ledgers),
            log_bytes=sum(directory.bytes for directory in self.holdings.directories),
            free_bytes=self.disks.free_bytes,
            read_only=self.disks.read_only,
            failed_directories=dict.fromkeys(self.holdings.unreadable, "it could not be read at the start")
            | {directory.path: directory.failure for directory in self.holdings.directories if directory.retired},
            read_errors={
                directory.path: directory.read_errors
                for directory in self.holdings.directories
                if directory.read_errors
            },
            lost_copies=self.holdings.lost_copies,
            lacking_ledgers=len(self.holdings.control.ledgers_not_back),
            reasons=self.disks.reasons,
            sync_seconds={
                one.path: took for one in self.holdings.live if (took := one.commit.sync_seconds) is not None
            },
        )

    @property
    def bytes_in_flight(self) -> int:
        """The bytes of batches that are admitted and not durable yet."""
        return self._results.bytes_in_flight

    @property
    def damaged(self) -> bool:
        """Was something lost that had been synced, and phase one of the lossy boot is not over?"""
        return self.holdings.damaged

    def absent(self, ledger_id: int) -> Negative | Unknown:
        """The answer for a ledger that was never heard of."""
        return self.holdings.absent(ledger_id)

    @property
    def live(self) -> list[LogDirectory]:
        """The directories that have not failed."""
        return list(self.holdings.live)

    @property
    def directories(self) -> list[str]:
        """The paths of the directories that could be read at the boot."""
        return [directory.path for directory in self.holdings.directories]

    @property
    def logs(self) -> dict[int, StoredLog]:
        """All logs, by number."""
        return {number: stored for number, (_, stored) in sorted(self.holdings.logs.items())}

    # -- checkpoints

    def checkpoint(self) -> Steps[Prepared]:
        """Prepare checkpoints of the index, on the loop, in steps of some milliseconds. The result goes to ``write_checkpoints``;
        it is empty if there is nothing that the last ones don't hold."""
        yield from self.volatile.rest()
        self._losses.write_again()
        yield from note_what_is_back(self.holdings)
        if any(directory.control.worth_rewriting for directory in self.holdings.live):
            yield from self._records.rewrite()
        if not self.checkpoints.due:
            return []
        for directory in self.holdings.live:
            directory.commit.submit(NoteSync(ignore))
        return (yield from self.checkpoints.take())

    def write_checkpoints(self, checkpoint: Prepared) -> None:
        """Write prepared checkpoints, in any thread. One that can't be written is logged, and costs a longer boot."""
        self.checkpoints.write(checkpoint)
