"""A bookie's storage: its adds, control requests and disks. ``holdings`` has its contents, and answers reads.

Law: one loop owns all state. ``add``, ``sync``, ``fence``, ``write_last_add_confirmed``, ``settle``, ``when_durable`` and
``held_ranges`` return at once and call ``done`` on that loop, at once or later. A commit thread for each directory writes.

Source: docs/decisions/one-log.md; BookKeeper's ``Bookie`` and ``DbLedgerStorage``, with the journal and the entry log in one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from itertools import islice
from typing import NamedTuple, TypeVar

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import METADATA_UNKNOWN
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision, EntriesLost, acked_after_sync
from bookspark.protocol.bookie.first_request import METADATA_UNREADABLE
from bookspark.protocol.bookie.reach import NOTHING_NOTED, Reach
from bookspark.protocol.bookie.read_only_switch import NEVER_SWITCHED, NO_ORDER, ReadOnlySwitched, switched
from bookspark.protocol.ledger.entry_ranges import EntryRanges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Positive, Response, Unknown
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.commit_thread import (
    Barrier,
    EntryWrite,
    NoteSync,
    Passing,
    Post,
    RelaxedWrite,
    Soon,
    SyncWritten,
)
from bookspark.store.bookie.commit.completions import AllOf, Done, ignore
from bookspark.store.bookie.disk.control_log import encode_records
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.disk.index import Row, location, log_of
from bookspark.store.bookie.holdings.boot import read_directories
from bookspark.store.bookie.holdings.checkpointing import Checkpoints, Prepared
from bookspark.store.bookie.holdings.commit_results import CommitResults
from bookspark.store.bookie.holdings.disks import Disks
from bookspark.store.bookie.holdings.holdings import Holdings, StoredLog, decided_anew
from bookspark.store.bookie.holdings.kept_files import KeptFiles
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.holdings.reads import Piece
from bookspark.store.bookie.holdings.scrubbing import Scrubbing
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.bookie.ledgers.held_copies import Compared, HeldCopies
from bookspark.store.bookie.ledgers.key_meetings import KeyCheck, KeyMeetings
from bookspark.store.bookie.ledgers.lossy_boots import LossyBoots
from bookspark.store.bookie.ledgers.metadata_looks import NOBODY, Asker, MetadataLooks, Question
from bookspark.store.bookie.space.garbage_collection import GarbageCollection
from bookspark.store.bookie.space.reclaiming import Reclaiming
from bookspark.store.bookie.steps import Steps
from bookspark.store.bookie.traffic import Traffic
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Flag, Header, Status, status_of
from bookspark.store.wire.messages import Ranges

log = logging.getLogger(__name__)


# -- Disk threads: threads for reads outside the page cache, and for comparisons of repeated entries.
#
# Law: each directory has its own threads, so a hanging disk delays no other directory. Threads start at first use.


_THREADS = 4

Result = TypeVar("Result")


class DiskThreads:
    """The threads of one bookie. Owned by the loop. ``directory_of(log)``: the directory of a log, None if the log is gone."""

    def __init__(self, directory_of: Callable[[int], LogDirectory | None]) -> None:
        self._directory_of = directory_of
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._open = True

    def run(self, where: int, function: Callable[[], Result]) -> Future[Result]:
        """Call ``function``, which reads the frame at ``where`` first, in a thread of its directory. Raises RuntimeError if no
        thread can be started, and after ``close``."""
        if not self._open:
            raise RuntimeError("the bookie stops")
        directory = self._directory_of(log_of(where))
        path = "" if directory is None else directory.path
        pool = self._pools.get(path)
        if pool is None:
            pool = self._pools[path] = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"bookie read {path}")
        return pool.submit(function)

    def close(self) -> None:
        """Start nothing more, without waiting for running calls."""
        self._open = False
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


FenceCheck = Callable[[int], Positive | Unknown]
"""``check_fence(ledger_id)``: Positive if the ledger's current metadata shows that no fence can be lost
(``bookie_boot.answer_unsure``). It may block, but not for ever."""
FirstRequestCheck = Callable[[int, bytes], Positive | Unknown]
"""``check_first(ledger_id, master_key)``: ``first_request.answer_first_request`` by the current metadata. It may block, but not
for ever."""


def no_metadata(ledger_id: int) -> Unknown:
    """The ``FenceCheck`` of a storage without a metadata store."""
    return METADATA_UNKNOWN


class WaitingAdd(NamedTuple):
    """An undecided add: the arguments of ``Storage.add``."""

    header: Header
    batch: EntryBatch
    done: Done


# -- Adds of entries that are already held


Decide = Callable[[WaitingAdd, Compared | None], Sequence[Row]]
"""``decide(add, compared)``: decide an add; returns no rows, or the rows to be compared first."""


class Comparisons:
    """Adds of already held entries, while a thread compares them with the held copies. Owned by the loop.

    Law: the loop compares copies in memory, and never waits for a disk. A waiting add is not admitted yet, and is decided anew
    after its comparison. So a fence that arrives meanwhile wins without a wait, and a copy replaced meanwhile is compared again.
    Adds and SYNCs of one ledger keep their order: later requests wait behind the first."""

    def __init__(
        self,
        holdings: Holdings,
        held: HeldCopies,
        results: CommitResults,
        looks: MetadataLooks,
        threads: DiskThreads,
        decide: Decide,
    ) -> None:
        self._holdings = holdings
        self._held = held
        self._results = results
        self._looks = looks
        self._threads = threads
        self._decide = decide
        self.waiting: dict[int, deque[tuple[WaitingAdd | Callable[[], None], Asker]]] = {}
        """By ledger: the add under comparison, then later requests; each with its peer."""
        self._post: Post | None = None
        self._over: list[Callable[[], None]] = []

    def start(self, post: Post) -> None:
        """Compare in threads from now on. Before this call there is no loop to block."""
        self._post = post

    def close(self) -> None:
        """Refuse all waiting adds, and run the other waiting requests."""
        self._post = None
        for ledger_id, waiting in list(self.waiting.items()):
            del self.waiting[ledger_id]
            for one, _ in waiting:
                if isinstance(one, WaitingAdd):
                    self._leave(one, Status.IO_ERROR)
                else:
                    one()
        self._tell_over()

    def here(self, held: Sequence[Row]) -> bool:
        """May the loop itself compare with these rows?"""
        recent = self._holdings.recent
        return self._post is None or all(row.where in recent for row in held)

    def begin(self, add: WaitingAdd, held: Sequence[Row]) -> None:
        """Compare ``add`` with ``held`` in a thread, then decide it."""
        self.waiting[add.header.ledger_id] = deque([(add, self._looks.asker)])
        self._results.waits(len(add.batch.frame))
        self._compare(add, held)

    def behind(self, ledger_id: int, one: WaitingAdd | Callable[[], None]) -> None:
        """Queue a request behind the waiting add of its ledger."""
        self.waiting[ledger_id].append((one, self._looks.asker))
        if isinstance(one, WaitingAdd):
            self._results.waits(len(one.batch.frame))

    def when_over(self, over: Callable[[], None]) -> None:
        self._over.append(over)
        self._tell_over()

    def _compare(self, add: WaitingAdd, held: Sequence[Row]) -> None:
        post = self._post
        recent = self._holdings.recent
        pieces = [Piece(add.header.ledger_id, *row, recent.get(row.where)) for row in held]
        slow = next((row.where for row in held if row.where not in recent), held[0].where)

        def compare() -> None:
            compared = Compared(held, Status.IO_ERROR)
            try:
                compared = self._held.compare(held, pieces, add.batch)
            except Exception:
                log.exception("entries of ledger %d could not be compared", add.header.ledger_id)
            finally:
                if post is not None:
                    post(self._compared, add, compared)

        try:
            self._threads.run(slow, compare)
        except RuntimeError:
            assert post is not None
            post(self._compared, add, Compared(held, Status.TOO_MANY_REQUESTS))

    def _compared(self, add: WaitingAdd, compared: Compared) -> None:
        ledger_id = add.header.ledger_id
        waiting = self.waiting.get(ledger_id)
        if waiting is None or waiting[0][0] is not add:
            # The bookie stops: ``close`` has answered the add.
            return
        try:
            self._go_on(waiting, compared)
        finally:
            # A connection may have ended during the comparison. ``forget`` came before, so nothing else lets go of it.
            self._looks.asker = NOBODY
        if not waiting:
            del self.waiting[ledger_id]
            self._tell_over()

    def _go_on(self, waiting: deque[tuple[WaitingAdd | Callable[[], None], Asker]], compared: Compared) -> None:
        """Decide the requests of one ledger, until one has to be compared."""
        result: Compared | None = compared
        while waiting:
            one, self._looks.asker = waiting[0]
            if isinstance(one, WaitingAdd):
                held = self._decide(one, result)
                result = None
                if held:
                    self._compare(one, held)
                    return
                self._results.waits(-len(one.batch.frame))
            else:
                one()
            waiting.popleft()

    def _leave(self, add: WaitingAdd, status: Status) -> None:
        self._results.waits(-len(add.batch.frame))
        add.done(status)

    def _tell_over(self) -> None:
        if not self.waiting:
            over, self._over = self._over, []
            for tell in over:
                tell()


# -- Durable records of losses


class Losses:
    """The records of one bookie's lost entries. Owned by the loop.

    Law: a checkpoint waits until the records of all earlier losses are durable. Otherwise a crash could leave an index without
    these entries and without a reason, and their absence would be answered Negative. A record that no directory took is written
    again at the next due checkpoint.

    A note about bytes that were read well later is taken back: first a checkpoint has the rows, then the control logs are written
    anew without the note. A crash in between leaves the note, and the bytes are read again."""

    def __init__(self, holdings: Holdings, records: ControlRecords, checkpoints: Checkpoints) -> None:
        self._holdings = holdings
        self._records = records
        self._checkpoints = checkpoints
        self._not_durable: list[EntriesLost] = []
        self._under_way = 0
        """Leading records of ``_not_durable`` that are being written."""
        self._taken: list[tuple[int, int]] = []
        """Copies of ``holdings.back`` in the last prepared checkpoint."""
        self._durable: list[tuple[int, int]] = []
        """Copies of ``holdings.back`` in a durable checkpoint."""

    def begin(self) -> None:
        """After the boot: write its losses, and from now on each loss at once."""
        self._holdings.lost = self._lost
        self._holdings.ledgers_lacking.update(
            ledger_id
            for ledger_id in self._holdings.control.lost_copies
            if (ledger := self._holdings.ledgers.look(ledger_id)) is not None and ledger.lost
        )
        if any(directory.gone for directory in self._holdings.live):
            self._checkpoints.spoiled()
        if found := self._holdings.lost_at_boot:
            self._lost(found)
        self._holdings.taken_back = self._checkpoints.outdated
        if self._holdings.back:
            self._checkpoints.outdated()
        for ledger_id in self._holdings.ledgers_lacking:
            # The scrub reads these logs first, because their bytes may be good.
            wheres = self._holdings.control.lost_copies.get(ledger_id, ())
            self._holdings.suspected.update(log for log in map(log_of, wheres) if log in self._holdings.logs)

    def taken(self) -> None:
        """A checkpoint is prepared."""
        self._taken = list(self._holdings.back)

    def written(self, durable: Collection[str]) -> None:
        """The prepared checkpoint is durable in these directories. In any thread."""
        directory_of = self._holdings.directory_of
        found = [(one, directory_of(log_of(one[1]))) for one in self._taken]
        self._durable = [one for one, directory in found if directory is not None and directory.path in durable]

    def forget_good(self) -> bool:
        """Forget the notes of losses that a durable checkpoint proves wrong. True if there are any: the control logs have to be
        written anew."""
        good, self._durable, back = self._durable, [], self._holdings.back
        control, index = self._holdings.control, self._holdings.index
        for ledger_id, where in good:
            back.pop((ledger_id, where), None)
            rows, copies = index.get(ledger_id), control.lost_copies.get(ledger_id, {})
            # The copy may be damaged again, or replaced by another.
            if where in copies and rows is not None and rows.numbers_at(where):
                del copies[where]
        return bool(good)

    def write_again(self) -> None:
        """Write records that no directory took before, unless a write is under way."""
        if not self._not_durable or self._under_way:
            return
        self._under_way = len(self._not_durable)
        self._records.write(self._not_durable[: self._under_way], self._written)

    def end(self) -> bool:
        """Write the remaining losses, after the end of the commit threads. False if no directory took them."""
        if not self._not_durable:
            return True
        content = encode_records(self._not_durable)
        taken = 0
        for directory in self._holdings.live:
            try:
                directory.control.append(content)
                taken += 1
            except OSError as error:
                log.error("%s: that entries were lost can't be noted: %s", directory.path, error)
        if taken:
            self._not_durable.clear()
            self._holdings.losses_durable.set()
        return taken > 0

    def _lost(self, records: Sequence[EntriesLost]) -> None:
        self._holdings.losses_durable.clear()
        self._checkpoints.outdated()
        self._not_durable += records
        self.write_again()

    def _written(self, status: int) -> None:
        written, self._under_way = self._under_way, 0
        if status != Status.OK:
            log.error("that %d copies of entries were lost can't be noted; it is tried again", len(self._not_durable))
            return
        del self._not_durable[:written]
        if not self._not_durable:
            self._holdings.losses_durable.set()
        self.write_again()


# -- SYNC requests for ledgers of volatile durability (VD)


class VolatileSyncs:
    """The SYNC requests of one bookie, from writers of ledgers of volatile durability (VD). Owned by the loop.

    Law: as in ``protocol.ledger.sync_cursor``. The answer follows the sync of all adds before the request; ``holdings.volatile``
    then has LastAddSynced. A ledger with a later fence or with lost entries is not answered OK.

    Source: BP-14, "Changes to Bookies"."""

    def __init__(self, holdings: Holdings, held: HeldCopies, meetings: KeyMeetings) -> None:
        self._holdings = holdings
        self._held = held
        self._meetings = meetings

    def sync(self, ledger_id: int, master_key: bytes, assignment: Assignment, done: Done) -> None:
        """``Storage.sync``, behind earlier adds."""

        def synced(status: int) -> None:
            self._holdings.when_left(ledger_id, partial(answer, status))

        def answer(status: int) -> None:
            response = decide()
            if status == Status.OK and self._holdings.lacking(ledger_id):
                status = Status.IO_ERROR
            # A refused SYNC stays refused even if the fence has become sure meanwhile: nothing was synced for it.
            done(status if type(response) is Positive else status_of(response))

        def decide() -> Response:
            return self._holdings.control.known(ledger_id).admit_sync(master_key).response

        def begun() -> None:
            # A fence may have arrived meanwhile.
            if type(response := decide()) is Positive:
                self._held.submit_behind(volatile.asked(ledger_id, assignment), synced, SyncWritten)
            else:
                synced(status_of(response))

        volatile = self._holdings.volatile
        if self._holdings.control.known(ledger_id).keys_meet(master_key):
            again = partial(self.sync, ledger_id, master_key, assignment, done)
            self._meetings.wait(ledger_id, master_key, again, done)
        elif type(response := decide()) is Positive:
            volatile.when_begun(ledger_id, assignment, begun)
        else:
            synced(status_of(response))


# -- Status, for registrations and metrics


class StorageStatus(NamedTuple):
    """Contents and free room of a storage. Sizes in bytes."""

    ledgers: int
    log_bytes: int
    free_bytes: int
    read_only: bool
    switch: ReadOnlySwitched
    failed_directories: dict[str, str]
    """Directories out of use, with the reason."""
    read_errors: dict[str, int]
    """Failed reads of batches by a directory's disk since the start, for directories with any."""
    unread_logs: list[str]
    """Logs that could not be read as a whole at the boot, with entries that may not be here again."""
    unread_copies: int
    """Copies of batches that the disks can't read now."""
    lost_copies: int
    """Damaged copies of batches since the start."""
    lacking_ledgers: int
    """Ledgers with entries lost here, and not all restored at the last checkpoint."""
    reasons: list[str]
    """Reasons for refused adds, with the remedy."""
    sync_seconds: dict[str, float]
    """Recent seconds of a sync of adds, for directories with enough syncs."""


# -- Restored entries


_LEDGERS_A_STEP = 256
_ROWS_A_STEP = 1 << 10


def note_what_is_back(holdings: Holdings) -> Steps[None]:
    """Mark lost entries as restored where a directory in use holds a durable copy. Visits all ledgers with losses, at the boot
    and at each checkpoint. The record of a lost copy lives as long as its log, and until its entries are back."""
    control = holdings.control
    for count, ledger_id in enumerate(list(control.lost_copies), 1):
        if count % _LEDGERS_A_STEP == 0:
            yield None
        copies = control.lost_copies.get(ledger_id)
        if copies is None:
            continue
        lacking = holdings.lacking(ledger_id)
        if lacking and holdings.index.holds_any(ledger_id):
            yield from _note_back(holdings, ledger_id, lacking)
            lacking = holdings.lacking(ledger_id)
        if not lacking:
            for where in [where for where in copies if log_of(where) not in holdings.logs]:
                del copies[where]
            control.all_back(ledger_id)


def _note_back(holdings: Holdings, ledger_id: int, lacking: EntryRanges) -> Steps[None]:
    """Mark the ``lacking`` entries of a ledger as restored where a durable copy is held."""
    held: list[tuple[int, int]] = []
    for number, (first, last) in enumerate(lacking):
        following: int | None = first
        while following is not None and (rows := holdings.index.get(ledger_id)) is not None:
            part = list(islice(rows.covering(following, last), _ROWS_A_STEP))
            held += [
                (row.first, row.last)
                for row in part
                if holdings.is_synced(row.where) and not holdings.is_gone(row.where)
            ]
            following = part[-1].last + 1 if len(part) == _ROWS_A_STEP else None
            if len(held) >= _ROWS_A_STEP or following is not None:
                _are_back(holdings, ledger_id, held)
                held = []
                yield None
        if number % _ROWS_A_STEP == _ROWS_A_STEP - 1:
            _are_back(holdings, ledger_id, held)
            held = []
            yield None
    _are_back(holdings, ledger_id, held)


def _are_back(holdings: Holdings, ledger_id: int, held: list[tuple[int, int]]) -> None:
    if held and (ledger := holdings.ledgers.get(ledger_id)) is not None:
        ledger.entries_back(held)


# -- The storage

_RECOVERY, _VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
_DURABILITY = _RECOVERY | _VOLATILE


@cache
def _waits(journal_write_data: bool) -> list[type[Barrier | Passing]]:
    """Flags of an add (as a number) → the item that an add of held entries waits for: all synced, or all written."""
    return [
        Barrier
        if acked_after_sync(
            recovery=bool(flags & _RECOVERY), volatile=bool(flags & _VOLATILE), journal_write_data=journal_write_data
        )
        else Passing
        for flags in range(256)
    ]


_STOP_SECONDS_MAX = 60.0


class Storage:
    """``Storage(config).open()``, then ``start(post)``, then the requests, then ``close()``.

    Ids are those of ledgers and entries, sizes are bytes. A ``done`` is called once, with a ``wire.header.Status``.

    Law: an add is answered OK once its batch, or the earlier copy, is durable; on a ledger of volatile durability (VD), and on a
    bookie without a journal, once the operating system has it (``bookie_ledger.acked_after_sync``). An add is in the index from
    its admission on, so a later fence sees it, and a read never denies it. A batch is taken whole or refused whole. The first
    copy of an entry is kept, and a later copy has to be equal; but it replaces an unreadable first copy.

    Adds to a ledger with an unsure fence wait until the metadata is read (``protocol.bookie.bookie_boot``), in their order. They
    are refused unless it is OPEN with this bookie in its last fragment; then they are decided again, so a fence that arrived
    meanwhile wins.
    """

    def __init__(
        self,
        config: BookieConfig,
        file_system: FileSystem | None = None,
        *,
        boot_id: str = "",
        check_fence: FenceCheck = no_metadata,
        check_first: FirstRequestCheck | None = None,
        check_key: KeyCheck | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Read nothing yet.

        ``file_system``: None is the operating system's. ``boot_id``: the kernel's, if trusted (``unclean_marker``).
        ``check_fence``: reads the metadata of ledgers with an unsure fence. ``check_first``: reads it for requests
        that make a ledger known without an entry; None grants them. ``check_key``: reads it where
        two master keys meet (``key_meetings``); None refuses the later one. ``without``: unusable directories of the config."""
        self._file_system: FileSystem = file_system or RealFileSystem()
        directories = [
            LogDirectory(self._file_system, number, config, boot_id) for number in range(len(config.directories))
        ]
        live = [directory for directory in directories if directory.path not in without]
        holdings = self.holdings = Holdings(self._file_system, directories, live)
        self.volatile = holdings.volatile
        """Ledgers of volatile durability (VD) under way, each with LastAddSynced."""
        self.long_polls = holdings.long_polls
        """Waits for a ledger's LAC."""
        self.files = holdings.files
        """Reads the pieces of a ``plan_read``, in any thread."""
        self._records = ControlRecords(holdings.control, live)
        self.checkpoints = Checkpoints(
            self._file_system, live, holdings.control, holdings.index, holdings.losses_durable
        )
        self._losses = Losses(holdings, self._records, self.checkpoints)
        self.traffic = Traffic()
        self.disks = Disks(config, self._file_system, live, self._records.rewrite_in)
        """Assign adds to directories by their free room."""
        self._switch = NEVER_SWITCHED
        """The last setting of the read-only switch, whether its record is durable or not."""
        self._results = CommitResults(holdings, self.disks)
        self.looks = MetadataLooks()
        """Requests that wait for metadata."""
        self._meetings = KeyMeetings(check_key, holdings.control, self.looks, self._take_over)
        self.disk_threads = DiskThreads(holdings.directory_of)
        self.loop_is_shared: Callable[[], bool] = lambda: False
        """Does the loop serve several clients at present? Set by the server."""
        self.broken: Callable[[str], None] = lambda why: None
        """Called, in any thread, when a commit thread fails without a fault of its disk. The bookie has to end then, as requests
        may stay unanswered. Set by the bookie's process."""
        self._check_fence, self._check_first = check_fence, check_first
        self._waits = _waits(config.journal_write_data)
        self._held_copies = HeldCopies(holdings)
        self._comparisons = Comparisons(
            holdings,
            self._held_copies,
            self._results,
            self.looks,
            self.disk_threads,
            lambda add, compared: self._decide(*add, compared),
        )
        self._compared = self._comparisons.waiting
        self._syncs = VolatileSyncs(holdings, self._held_copies, self._meetings)
        self.lossy_boots = LossyBoots(holdings, self._records, self.disks)
        self.garbage_collection = GarbageCollection(holdings, self._records, self.checkpoints)
        self.reclaiming = Reclaiming(self._file_system, holdings, self.checkpoints)
        self.scrubbing = Scrubbing(self._file_system, holdings)
        self.kept_files = KeptFiles(self._file_system, holdings, self.checkpoints, self._records.rewrite_in)

    # -- life

    def open(self, noted: Mapping[str, Reach] = NOTHING_NOTED, accepted_by: str = "") -> Storage:
        """Read all directories; no request before this returns. ``noted``: reach of each directory, by path. ``accepted_by``: the
        operator who accepts that no control log is whole, or "". Raises StorageError if no directory can be read, or if a control
        log that nobody has whole may have held a fence."""
        read_directories(self.holdings, noted, accepted_by)
        self._switch = self.disks.switch = self.holdings.control.switch
        self.disks.look_at_all()
        self._records.is_open = True
        deque(note_what_is_back(self.holdings), maxlen=0)
        self._losses.begin()
        return self

    def start(self, post: Post, soon: Soon | None = None) -> None:
        """Start writing. ``post(function, *arguments)`` calls a function on the loop, from any thread; ``soon(function)``, on the
        loop after its current turn. Without ``soon`` there is no shared loop: each request goes to the disk by itself, and the
        caller compares repeated entries."""
        self.looks.start(post)
        self._results.start(soon)
        self.long_polls.start(soon)
        if soon is not None:
            self._comparisons.start(post)
            self._held_copies.start(post)
        directories = self.holdings.directories
        for directory in directories:
            directory.commit.broken = lambda why: self.broken(why)
            directory.commit.loop_is_shared = lambda: self.loop_is_shared()
            directory.commit.start(post, self._results.completed, soon, alone=len(directories) == 1)

    def lacking(self, ledgers_max: int) -> list[tuple[int, EntryRanges]]:
        """Take at most ``ledgers_max`` of the ledgers with new losses since the last call, each with its lacking entries."""
        lacking = self.holdings.ledgers_lacking
        taken = [lacking.pop() for _ in range(min(ledgers_max, len(lacking)))]
        return [(ledger_id, self.holdings.not_held(ledger_id)) for ledger_id in taken]

    def when_none_is_left(self, tell: Callable[[str], None]) -> None:
        """Call ``tell(why)`` on the loop once the last directory has failed. The storage takes and holds nothing from then on."""
        self._results.none_left = tell

    def close(self) -> None:
        """Finish queued work, seal the logs, write the checkpoints. Every due ``done`` is still called, on the loop. Raises
        StorageError if a disk does not answer within 60 s."""
        if not self._records.is_open:
            return
        self._records.is_open = False
        self.looks.close()
        self._comparisons.close()
        self.disk_threads.close()
        directories = self.holdings.directories
        for directory in directories:
            directory.commit.stop()
        late = [d.path for d in directories if not d.commit.join(_STOP_SECONDS_MAX)]
        if late:
            raise StorageError(f"{', '.join(late)}: the disk does not answer; nothing more is written")
        deque(note_what_is_back(self.holdings), maxlen=0)
        if self._losses.end():
            self._checkpoint_at_once()
            if self._losses.forget_good():
                self._records.rewrite_at_once()
        for directory in directories:
            directory.control.close()
        self.files.clear()

    def end_phase_one(self) -> None:
        """End phase one of a lossy boot: write a checkpoint, so that the next boot skips the damaged parts, then remove the
        unclean markers."""
        self._checkpoint_at_once()
        self.lossy_boots.phase_one_is_over()

    def _checkpoint_at_once(self) -> None:
        self._losses.taken()
        taking = self.checkpoints.take()
        try:
            while True:
                next(taking)
        except StopIteration as taken:
            self._losses.written(self.checkpoints.write(taken.value))

    # -- requests that write

    def add(self, header: Header, batch: EntryBatch, done: Done) -> None:
        """Add the entries of a checked batch frame (``EntryBatch.checked``), all or none. ``header``: the frame's.

        ``done``: OK; FENCED; UNAUTHORIZED (another master key); CONFLICT (an entry is there with other content); READ_ONLY (no
        directory takes it); LIMBO or TOO_MANY_REQUESTS (the ledger's fence is unsure); IO_ERROR (unknown outcome).
        """
        if self._compared and header.ledger_id in self._compared:
            self._comparisons.behind(header.ledger_id, WaitingAdd(header, batch, done))
        elif held := self._decide(header, batch, done):
            self._comparisons.begin(WaitingAdd(header, batch, done), held)

    def _decide(self, header: Header, batch: EntryBatch, done: Done, compared: Compared | None = None) -> Sequence[Row]:
        """Decide an add and call its ``done`` at once or later, or return the rows to compare it with first."""
        ledger_id, first, last = header.ledger_id, header.first_entry_id, header.last_entry_id
        holdings = self.holdings
        ledger = holdings.ledgers.used.get(ledger_id)
        if ledger is None:
            ledger = holdings.control.known(ledger_id)
        flags = header.flags
        decision = ledger.admit_add(header.master_key, bool(flags & _RECOVERY))
        if type(decision.response) is not Positive:
            if decision.ask_metadata:
                question = Question(("fence", ledger_id), partial(self._check_fence, ledger_id), METADATA_UNKNOWN)
                again = partial(self._add_again, WaitingAdd(header, batch, done))
                self.looks.ask(question, again, done, len(batch.frame))
            elif decision.keys_meet:
                again = partial(self.add, header, batch, done)
                self._meetings.wait(ledger_id, header.master_key, again, done, len(batch.frame))
            else:
                done(status_of(decision.response))
            return ()
        if holdings.gone:
            holdings.leave_gone(ledger_id, first)
        rows = holdings.index.changing(ledger_id)
        kept: Sequence[Row] = ()
        waits = self._waits[flags]
        behind_all = rows is not None and first > rows.last_entry_id
        if rows is not None and not behind_all:
            kept = list(rows.covering(first, last))
            if kept:
                if compared is None or compared.held != kept:
                    if not self._comparisons.here(kept):
                        return kept
                    pieces = [Piece(ledger_id, *row, holdings.recent.get(row.where)) for row in kept]
                    compared = self._held_copies.compare(kept, pieces, batch)
                for piece, stop in compared.unreadable:
                    # This add takes the copy's place.
                    holdings.lose_copy(piece, stop)
                if compared.refusal is not None:
                    done(compared.refusal)
                    return ()
                # Held copies may have turned out lost.
                rows = holdings.index.changing(ledger_id)
                kept = list(rows.covering(first, last)) if rows is not None else ()
                holdings.read_well(Piece(ledger_id, *row, None) for row in kept)
                if kept and flags & _DURABILITY == _VOLATILE:
                    self.volatile.added_again(ledger_id, header.assignment(), kept)
                if sum(min(last, row.last) - max(first, row.first) + 1 for row in kept) == last - first + 1:
                    self._note_added(ledger, decision, header)
                    self._held_copies.submit_behind([row.where for row in kept], done, waits)
                    return ()
        live = self.disks.for_recovery if flags & _RECOVERY else self.disks.writable
        if not live or not self._records.is_open:
            done(Status.READ_ONLY)
            return ()
        directory = live[ledger_id % len(live)]
        self._note_added(ledger, decision, header)
        frame = batch.frame
        size = len(frame)
        entry_log, position = directory.place(size, holdings.begin_log)
        # ``location`` inline, to save a call for each add.
        where = entry_log.number << 32 | position
        if rows is not None and behind_all:
            rows.append(first, last, where, size)
        else:
            holdings.index.of(ledger_id).insert(first, last, where, size)
        holdings.recent[where] = frame
        self._results.bytes_in_flight += size
        traffic = self.traffic
        traffic.entries_in += last - first + 1
        traffic.bytes_in += size
        if kept:
            both = AllOf(2, done)
            self._held_copies.submit_behind([row.where for row in kept], both, waits)
            done = both
        if waits is Barrier:
            directory.commit.submit(EntryWrite(entry_log, position, frame, done))
        else:
            volatile = flags & _DURABILITY == _VOLATILE
            if volatile:
                self.volatile.added(ledger_id, header.assignment(), first, last, where)
            directory.commit.submit(RelaxedWrite(entry_log, position, frame, done, not volatile))
        return ()

    def _add_again(self, add: WaitingAdd) -> None:
        """Decide an add again after the metadata showed no fence to lose."""
        self.holdings.control.of(add.header.ledger_id).fence_is_sure()
        self.add(*add)

    def _note_added(self, ledger: BookieLedger, decision: Decision, header: Header) -> None:
        control = self.holdings.control
        if control.suspects:
            control.suspects.discard(ledger.ledger_id)
        if decision.records:
            control.ledgers[ledger.ledger_id] = ledger
            # No wait: each directory writes the record before the batch, so a directory with the batch has the record.
            self._records.write(decision.records, ignore)
        if ledger.added(decision, header.last_add_confirmed, header.last_add_fully_replicated):
            self.long_polls.reached(ledger.ledger_id, ledger.last_add_confirmed)

    def sync(self, ledger_id: int, master_key: bytes, assignment: Assignment, done: Done) -> None:
        """Sync all adds of a VD ledger so far; ``volatile`` has LastAddSynced then.

        ``done``: OK, FENCED, UNAUTHORIZED, LIMBO, or IO_ERROR if entries of it are lost."""
        if ledger_id in self._compared:
            # Earlier adds wait for their comparison.
            self._comparisons.behind(ledger_id, partial(self._syncs.sync, ledger_id, master_key, assignment, done))
            return
        self._syncs.sync(ledger_id, master_key, assignment, done)

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Fence a known or unknown ledger. Adds of its writer are refused from this call on; for an unknown ledger, from the
        metadata's answer on.

        ``done``: OK once the fence is durable in every directory in use; UNAUTHORIZED, IO_ERROR; LIMBO or TOO_MANY_REQUESTS
        (``_when_known``). A request during the sync of a fence waits for that sync; a request after a failed sync writes the
        fence again. The writer of a fenced ledger gets no more reports of syncs. (BookKeeper's ``Bookie.fenceLedger``.)
        """
        self._when_known(ledger_id, master_key, partial(self._fence, ledger_id, master_key, done), done)

    def _when_known(self, ledger_id: int, master_key: bytes, go_on: Callable[[], None], done: Done) -> None:
        """Call ``go_on`` if the ledger is known, or once the metadata grants the request that makes it known without an entry
        (``protocol.bookie.first_request``); otherwise ``done`` with UNAUTHORIZED, LIMBO or TOO_MANY_REQUESTS."""
        ledger = self.holdings.ledgers.look(ledger_id)
        if self._check_first is None or (ledger is not None and ledger.master_key is not None):
            go_on()
        else:
            look = partial(self._check_first, ledger_id, master_key)
            self.looks.ask(Question(("first", ledger_id, master_key), look, METADATA_UNREADABLE), go_on, done)

    def _fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        control = self.holdings.control
        ledger = control.of(ledger_id)
        decision = ledger.fence(master_key)
        if decision.keys_meet:
            self._meetings.wait(ledger_id, master_key, partial(self.fence, ledger_id, master_key, done), done)
            return
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
            return
        control.suspects.discard(ledger_id)
        if decision.records:
            self.volatile.forget(ledger_id)
            self.traffic.fences += 1
        self._records.note(ledger, decision.records, done)

    def write_last_add_confirmed(
        self,
        ledger_id: int,
        master_key: bytes,
        last_add_confirmed: int,
        done: Done,
        last_add_fully_replicated: int = NO_ENTRY,
    ) -> None:
        """Note an explicit LAC (last add confirmed), and in memory only its LAFR (last add fully replicated): a crash costs a
        recovery some reads.

        ``done``: OK once the LAC, also a repeated one, is durable in every directory in use; FENCED, UNAUTHORIZED, IO_ERROR;
        LIMBO or TOO_MANY_REQUESTS (``_when_known``). (BookKeeper's ``Bookie.setExplicitLac``.)
        """
        go_on = partial(self._note_lac, ledger_id, master_key, last_add_confirmed, done, last_add_fully_replicated)
        self._when_known(ledger_id, master_key, go_on, done)

    def _note_lac(self, ledger_id: int, master_key: bytes, confirmed: int, done: Done, replicated: int) -> None:
        holdings = self.holdings
        ledger = holdings.control.known(ledger_id)
        decision = ledger.write_last_add_confirmed(master_key, confirmed)
        if decision.keys_meet:
            again = partial(self.write_last_add_confirmed, ledger_id, master_key, confirmed, done, replicated)
            self._meetings.wait(ledger_id, master_key, again, done)
            return
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
            return
        holdings.control.suspects.discard(ledger_id)
        ledger.note(NO_ENTRY, replicated)
        holdings.ledgers[ledger_id] = ledger
        self.long_polls.reached(ledger_id, ledger.last_add_confirmed)
        self._records.note(ledger, decision.records, done)

    def _take_over(self, ledger_id: int, master_key: bytes) -> None:
        """The metadata decided for this key (``protocol.bookie.key_meeting``): forget all else about the ledger. No wait: each
        directory writes the record before a batch with this key."""
        control = self.holdings.control
        ledger = decided_anew(self.holdings, ledger_id, master_key)
        self._records.forget([ledger_id])
        self._records.note(ledger, ledger.control_records(), ignore)
        control.suspects.discard(ledger_id)
        self.checkpoints.outdated()

    def switch_read_only(self, read_only: bool, done: Done, order: int = NO_ORDER) -> None:
        """Set or clear the read-only switch, whatever the free room (``protocol.bookie.read_only_switch``). ``done``: OK once
        that is durable in every directory in use; FENCED after a higher ``order`` or IO_ERROR, which change nothing."""
        record = switched(self._switch, read_only, order)
        if record is None:
            done(Status.FENCED)
            return
        self._switch = record

        def noted(status: int) -> None:
            if status == Status.OK:
                self.holdings.control.replay([record])
                self.disks.switch = self.holdings.control.switch
                self.disks.sort()
            done(status)

        self._records.write([record], noted)

    def settle(self, done: Done) -> None:
        """Wait for all earlier requests. ``done``: OK once every directory has finished them, or IO_ERROR."""
        self._comparisons.when_over(lambda: self._records.settle(done))

    def when_below(self, bytes_in_flight: int, relieved: Callable[[], None]) -> None:
        """Call ``relieved`` once, when at most ``bytes_in_flight`` bytes wait for their sync. One caller at a time."""
        self._results.when_below(bytes_in_flight, relieved)

    # -- reads

    def when_readable(self, ledger_id: int, master_key: bytes, read: Callable[[], None], done: Done) -> None:
        """Call ``read``, at once or later, if a reader with this key, or without one (``NO_KEY``), may read the ledger; otherwise
        ``done`` with UNAUTHORIZED, LIMBO or TOO_MANY_REQUESTS."""
        if self.holdings.may_read(ledger_id, master_key):
            read()
        else:
            again = partial(self.when_readable, ledger_id, master_key, read, done)
            self._meetings.wait(ledger_id, master_key, again, done)

    def when_durable(self, ranges: Ranges, done: Done) -> None:
        """Call ``done`` once all of these rows are durable: OK, or the status of a failure."""
        self._held_copies.when_durable([*map(location, ranges.logs, ranges.positions)], done)

    def held_ranges(self, ledger_id: int, done: Callable[[list[tuple[int, int]] | None], None]) -> None:
        """Call ``done`` with the ranges (first, last) of held entry ids once they are durable; None if they can't be."""
        self._held_copies.ranges(ledger_id, done)

    # -- status

    def status(self) -> StorageStatus:
        """Current status, with the free room at the last check of the disks. No disk access."""
        return StorageStatus(
            ledgers=len(self.holdings.ledgers),
            log_bytes=sum(directory.bytes for directory in self.holdings.directories),
            free_bytes=self.disks.free_bytes,
            read_only=self.disks.read_only,
            switch=self.disks.switch,
            failed_directories=dict.fromkeys(self.holdings.unreadable, "it could not be read at the start")
            | {directory.path: directory.failure for directory in self.holdings.directories if directory.retired},
            read_errors={
                directory.path: directory.read_errors
                for directory in self.holdings.directories
                if directory.read_errors
            },
            unread_logs=self.lossy_boots.unread,
            unread_copies=sum(map(len, self.holdings.unread.values())),
            lost_copies=self.holdings.lost_copies,
            lacking_ledgers=len(self.holdings.control.ledgers_not_back),
            reasons=self.disks.reasons,
            sync_seconds={
                one.path: took for one in self.holdings.live if (took := one.commit.sync_seconds) is not None
            },
        )

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of admitted batches that are not durable yet."""
        return self._results.bytes_in_flight

    @property
    def live(self) -> list[LogDirectory]:
        return list(self.holdings.live)

    @property
    def directories(self) -> list[str]:
        """Paths of the directories readable at the boot."""
        return [directory.path for directory in self.holdings.directories]

    @property
    def logs(self) -> dict[int, StoredLog]:
        return {number: stored for number, (_, stored) in sorted(self.holdings.logs.items())}

    # -- checkpoints

    def checkpoint(self) -> Steps[Prepared]:
        """Prepare checkpoints of the index, on the loop, in steps of some milliseconds. The result goes to ``write_checkpoints``;
        it is empty if nothing changed since the last checkpoints."""
        yield from self.volatile.rest()
        self._losses.write_again()
        yield from note_what_is_back(self.holdings)
        if self._losses.forget_good() or any(one.control.worth_rewriting for one in self.holdings.live):
            yield from self._records.rewrite()
        if not self.checkpoints.due:
            return []
        for directory in self.holdings.live:
            directory.commit.submit(NoteSync(ignore))
        self._losses.taken()
        return (yield from self.checkpoints.take())

    def write_checkpoints(self, checkpoint: Prepared) -> None:
        """Write prepared checkpoints, in any thread. A failed write is logged, and costs a longer boot."""
        self._losses.written(self.checkpoints.write(checkpoint))
