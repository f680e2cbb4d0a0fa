"""The replication worker: takes tasks of the underreplication store and repairs their ledgers, several at a time.

Law: an ephemeral lock holds a task during its repair, so a dying worker leaves the task to another. A task is deleted only at
the version at which it was taken, so a ledger marked again meanwhile is repaired again. The locks save work, and no
correctness relies on them: ``protocol.repair.ledger_replication`` is right with any number of workers. A ledger that waits for
its writer occupies no thread. A failed task keeps its reason and is retried after a pause that doubles each time. While
autorecovery is disabled no repair is begun.

Source: ``ReplicationWorker`` of BookKeeper.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from bookspark.errors import BookieError, BookKeeperError, EntriesNotCopiedError, NoSuchLedgerError, ReadError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.repair.audit_plan import mark_of_misplaced, marks_after_recovery
from bookspark.protocol.repair.entry_copying import LONG_RUN_BYTES, EntryCopying, Room, not_copied_error
from bookspark.protocol.repair.ledger_replication import (
    LedgerReplication,
    ReplicationAction,
    ReplicationEvent,
    WaitForWriter,
    WriterWaitedFor,
)
from bookspark.protocol.repair.replication_plan import lacks
from bookspark.protocol.repair.underreplication_task import Missed, Reason
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.copying import (
    BOOKIES_KNOWN_SECONDS,
    RUN_ENTRIES_MAX,
    Copying,
    RepairDriver,
    RepairInterruptedError,
)
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.bookie_questions import has_writer, large_batch_ends
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.autorecovery.underreplication_tasks import Progress, Taken, TaskPicker, Underreplication
from bookspark.support.threads import BackOff, Repeated

log = logging.getLogger(__name__)


# -- The repair of one ledger by its underreplication task.


class LedgerRepair:
    """The repair of one ledger: call ``go_on`` until it returns None. One thread at a time.

    Law: a registered bookie is not lost, whatever the task says: its missing entries are copied to it. A lost bookie is
    replaced (``protocol.repair.ledger_replication``), and so is a misplaced one, where that fences no writer. A failed part
    does not stop the other parts; the task then fails with the reasons, names every entry that could not be copied, and is
    retried. A deleted ledger needs no repair.

    Source: ``ReplicationWorker.rereplicate`` of BookKeeper, which loops over deleted ledgers and entries with a single copy.
    """

    def __init__(
        self,
        taken: Taken,
        bookkeeper: BookKeeper,
        copying: Copying,
        config: AutorecoveryConfig,
    ) -> None:
        self.taken = taken
        self._bookkeeper = bookkeeper
        self._copying = copying
        self._config = config
        self._machine: LedgerReplication | None = None
        self._driver: RepairDriver
        self._waiting_since = 0.0
        self._asked: tuple[str, ...] = ()
        self._errors: list[BookKeeperError] = []
        self._unfenced: set[str] = set()
        """Bookies that the machine's ledger recovery could not fence."""

    def go_on(self) -> float | None:
        """Do all that can be done now.

        Returns None if the repair is complete, else the seconds until the next call: the ledger's writer has that long to
        replace a lost bookie itself. Raises BookKeeperError if the repair failed and must be retried later.
        """
        try:
            with self._copying.room(self.taken.ledger_id) as room:
                wait_seconds = self._begin(room) if self._machine is None else self._after_waiting()
        except NoSuchLedgerError:
            return None
        except BookKeeperError as error:
            self._errors.append(error)
            wait_seconds = None
        if wait_seconds is None and self._errors and not self._is_gone():
            raise self._why()
        if wait_seconds is None and not self._errors:
            self._mark_next_step()
        return wait_seconds

    def _mark_next_step(self) -> None:
        """Mark the ledger again if its copies need another move: a bookie that has left can take another place then."""
        store = self._bookkeeper.metadata
        if self.taken.task.of(Reason.MISPLACED):
            with suppress(NoSuchLedgerError):
                found = store.read_ledger(self.taken.ledger_id).value
                store.underreplication.mark(mark_of_misplaced(*one) for one in self._bookkeeper.misplaced([found]))

    def _why(self) -> BookKeeperError:
        """The first error, with all entries that could not be copied."""
        first, *others = self._errors
        entries = [one for error in self._errors if isinstance(error, EntriesNotCopiedError) for one in error.entries]
        if not entries or not others:
            return first
        if all(isinstance(error, EntriesNotCopiedError) for error in self._errors):
            return not_copied_error(self.taken.ledger_id, entries)
        return EntriesNotCopiedError("; ".join(map(str, self._errors)), entries)

    def _begin(self, room: Room) -> float | None:
        task, store = self.taken.task, self._bookkeeper.metadata
        found = store.read_ledger(task.ledger_id)
        registered = self._bookkeeper.context.bookies(BOOKIES_KNOWN_SECONDS)
        lost = [bookie for bookie in task.of(Reason.LOST) if bookie not in registered]
        named = {bookie for fragment in found.value.fragments for bookie in fragment.ensemble}
        for bookie in ({*task.of(Reason.LACKS), *task.of(Reason.LOST)} - set(lost)) & named:
            try:
                self._fill(found.value, bookie, registered, room)
            except NoSuchLedgerError:
                raise
            except BookKeeperError as error:
                self._errors.append(error)
        misplaced = task.of(Reason.MISPLACED)
        self._driver = RepairDriver(self._bookkeeper, found.value, self._copying, lends=True)
        ends = self._batch_ends(self._driver, found.value, set(registered).difference(lost, misplaced))
        grace, most = self._config.grace_seconds, self._config.grace_seconds_max
        self._machine = made(LedgerReplication, lost, grace, RUN_ENTRIES_MAX, misplaced, room, ends, most)
        return self._drive(act.MetadataRead(*found))

    def _after_waiting(self) -> float | None:
        waited = time.monotonic() - self._waiting_since
        context, ledger_id = self._bookkeeper.context, self.taken.ledger_id
        lives = any(has_writer(context, bookie, ledger_id) for bookie in self._asked)
        self._driver.resume()
        return self._drive(WriterWaitedFor(waited, lives))

    def _drive(self, event: ReplicationEvent) -> float | None:
        assert self._machine is not None
        match self._driver.run(self._step, self._machine.step(event)):
            case WaitForWriter(grace_seconds, bookies):
                self._waiting_since, self._asked = time.monotonic(), bookies
                return grace_seconds
            case act.Finish(LedgerMetadata() as closed):
                self._bookkeeper.metadata.underreplication.mark(marks_after_recovery(closed, self._unfenced))
        return None

    def _step(self, event: ReplicationEvent) -> list[ReplicationAction]:
        assert self._machine is not None
        if isinstance(event, act.LacAnswered) and not isinstance(event.response, Positive):
            self._unfenced.add(event.bookie)
        return self._machine.step(event)

    def _fill(self, metadata: LedgerMetadata, bookie: str, registered: Collection[str], room: Room) -> None:
        """Copy to ``bookie`` its missing entries, except the last fragment of a ledger that is not closed, its writer's
        business."""
        if bookie not in registered:
            raise BookieError(
                f"{bookie} lacks entries of ledger {metadata.ledger_id} and is not registered; start it again"
            )
        ranges = self._bookkeeper.list_ranges(bookie, metadata.ledger_id)
        held = zip(ranges["first_entry_id"].to_pylist(), ranges["last_entry_id"].to_pylist(), strict=True)
        driver = RepairDriver(self._bookkeeper, metadata, self._copying, lends=True)
        ends = self._batch_ends(driver, metadata, set(registered) - {bookie})
        machine = made(EntryCopying, metadata, lacks(metadata, bookie, held), RUN_ENTRIES_MAX, {bookie}, room, ends)
        driver.run(machine.step, machine.start())

    def _batch_ends(self, driver: RepairDriver, metadata: LedgerMetadata, bookies: Set[str]) -> Sequence[int]:
        """The ends of the ledger's stored batches, asked of a bookie of each fragment among ``bookies``. Without an answer
        batches are cut. Nothing is asked where the target does not fetch, or gets little at a time."""
        striped = metadata.ensemble_size > metadata.write_quorum
        if not driver.lends or striped or metadata.length <= LONG_RUN_BYTES:
            return ()
        context = self._bookkeeper.context
        well = bookies - context.runtime.connections.quarantined().keys()
        asked = {next((one for one in fragment.ensemble if one in well), "") for fragment in metadata.fragments}
        ends: set[int] = set()
        for bookie in asked - {""}:
            with suppress(ReadError):
                ends.update(large_batch_ends(context, bookie, metadata.ledger_id))
        return sorted(ends)

    def _is_gone(self) -> bool:
        """A deleted ledger's reads fail, and it needs no repair."""
        try:
            self._bookkeeper.metadata.read_ledger(self.taken.ledger_id)
        except NoSuchLedgerError:
            return True
        return False


# -- The worker.


_PUBLISH_SECONDS = 1.0
"""Progress is published at most this often: each time takes three requests."""
_SLOT_SECONDS_MAX = 1.0


class ReplicationWorker:
    """One thread that picks tasks and ``ledgers_at_once`` threads that repair, from ``start`` until ``stop``."""

    def __init__(self, bookkeeper: BookKeeper, config: AutorecoveryConfig) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._bookkeeper = bookkeeper
        self._config = config
        self._store: Underreplication = bookkeeper.metadata.underreplication
        self._clock = bookkeeper.metadata.clock
        self._picker = TaskPicker(self._store)
        retry = BackOff(config.retry_seconds, config.retry_seconds_max)
        self._thread = Repeated("replication worker", self._turn, retry, end=self._give_all_back)
        self._stopping = self._thread.stopping
        self._pool = ThreadPoolExecutor(config.ledgers_at_once, thread_name_prefix="repair")
        self._copying = Copying(config.copy_bytes_per_second, self._stopping)
        self._slots = threading.Semaphore(config.ledgers_at_once)
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        self._waiting: dict[int, tuple[float, LedgerRepair]] = {}
        """Repairs that wait for a ledger's writer, with their next time."""
        self._repaired = self._failed = 0
        self._busy_seconds = self._busy_since = 0.0
        self._published: Progress | None = None
        self._published_at = -_PUBLISH_SECONDS

    @property
    def ended(self) -> bool:
        return self._thread.ended

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> bool:
        """Release the tasks under way. False if the threads have not ended within ``timeout`` seconds."""
        self._stopping.set()
        self._store.wake()
        return self._thread.stop(timeout)

    def progress(self) -> Progress:
        with self._lock:
            busy = time.monotonic() - self._busy_since if self._under_way else 0.0
            return Progress(
                seconds=round(self._busy_seconds + busy, 3),
                ledgers=self._repaired,
                entries=self._copying.progress.entries_copied,
                bytes=self._copying.progress.bytes_copied,
                failed=self._failed,
                clock_ahead_ms=round(self._clock.host_ahead_ms() / 60_000) * 60_000,
            )

    # -- picking

    def _give_all_back(self) -> None:
        self._pool.shutdown()
        self._give_back(repair for _, repair in self._waiting.values())

    def _turn(self) -> float:
        self._publish()
        if not self._slots.acquire(timeout=_SLOT_SECONDS_MAX):
            return 0.0
        try:
            if (begun := self._next()) is not None:
                self._pool.submit(self._work, begun)
                return 0.0
        except BaseException:
            self._slots.release()
            raise
        self._slots.release()
        self._store.wait(self._idle_seconds())
        return 0.0

    def _next(self) -> LedgerRepair | int | None:
        """A repair that has waited, or a ledger whose task may be taken."""
        with self._lock:
            mine = self._under_way | self._waiting.keys()
            due = [ledger_id for ledger_id, (at, _) in self._waiting.items() if at <= time.monotonic()]
        if due and self._store.enabled():
            with self._lock:
                _, repair = self._waiting.pop(due[0])
                self._begin(due[0])
            return repair
        ledger_id = self._picker.next(mine)
        if ledger_id is not None:
            with self._lock:
                self._begin(ledger_id)
        return ledger_id

    def _begin(self, ledger_id: int) -> None:
        if not self._under_way:
            self._busy_since = time.monotonic()
        self._under_way.add(ledger_id)

    def _idle_seconds(self) -> float:
        """Seconds until a waiting repair goes on, at most ``poll_seconds``: no watch reports a released lock."""
        with self._lock:
            due = min((at for at, _ in self._waiting.values()), default=float("inf"))
        if self.progress() != self._published:
            due = min(due, self._published_at + _PUBLISH_SECONDS)
        return min(self._config.poll_seconds, max(0.0, due - time.monotonic()))

    def _publish(self) -> None:
        self._clock.now_ms()
        now = self.progress()
        if now != self._published and time.monotonic() >= self._published_at + _PUBLISH_SECONDS:
            self._store.publish_progress(self.name, now)
            self._published, self._published_at = now, time.monotonic()

    def _give_back(self, repairs: Iterable[LedgerRepair]) -> None:
        for repair in repairs:
            try:
                self._store.release(repair.taken)
            except BookKeeperError as error:
                log.warning("the lock of ledger %d is released later: %s", repair.taken.ledger_id, error)

    # -- repairing

    def _work(self, begun: LedgerRepair | int) -> None:
        """Runs in a thread of the pool, which also takes the task, so that tasks are taken concurrently."""
        ledger_id = begun if isinstance(begun, int) else begun.taken.ledger_id
        try:
            repair = self._take(begun) if isinstance(begun, int) else begun
            if repair is not None:
                self._repair_or_wait(repair)
        except BookKeeperError as error:
            log.warning("the outcome of the repair of ledger %d could not be noted: %s", ledger_id, error)
        except Exception:
            # A defect must not silently end a cluster's repairs.
            log.exception("taking the task of ledger %d failed; it is tried again", ledger_id)
            self._stopping.wait(self._config.retry_seconds)
        finally:
            with self._lock:
                self._under_way.discard(ledger_id)
                if not self._under_way:
                    self._busy_seconds += time.monotonic() - self._busy_since
            self._slots.release()

    def _take(self, ledger_id: int) -> LedgerRepair | None:
        taken = self._store.take(ledger_id, self.name)
        if taken is None:
            if not self._store.enabled():
                self._picker.forget()
            return None
        return LedgerRepair(taken, self._bookkeeper, self._copying, self._config)

    def _repair_or_wait(self, repair: LedgerRepair) -> None:
        ledger_id = repair.taken.ledger_id
        try:
            wait_seconds = repair.go_on()
        except RepairInterruptedError:
            self._give_back([repair])
        except BookKeeperError as error:
            entries = error.entries if isinstance(error, EntriesNotCopiedError) else ()
            # Entries lacking on two bookies are reported once.
            missed = {(one.first, one.last, one.unreached, one.refused): one.missed() for one in entries}
            self._fail(repair, str(error), list(missed.values()))
        except Exception as error:
            # A defect must not keep the lock.
            log.exception("repairing ledger %d failed", ledger_id)
            self._fail(repair, f"{type(error).__name__}: {error}; the log of {self.name} tells where")
        else:
            if wait_seconds is not None:
                self._park(repair, wait_seconds)
            elif self._store.done(repair.taken):
                with self._lock:
                    self._repaired += 1
                log.info("ledger %d is repaired", ledger_id)
            else:
                log.info("ledger %d was marked again during its repair", ledger_id)

    def _park(self, repair: LedgerRepair, seconds: float) -> None:
        """Wait ``seconds`` for the ledger's writer, or for a change of the metadata."""
        ledger_id = repair.taken.ledger_id
        with self._lock:
            self._waiting[ledger_id] = time.monotonic() + seconds, repair
        self._bookkeeper.metadata.watch_ledger(ledger_id, lambda: self._end_wait(ledger_id))

    def _end_wait(self, ledger_id: int) -> None:
        """Called from the metadata store's thread."""
        with self._lock:
            if ledger_id in self._waiting:
                self._waiting[ledger_id] = 0.0, self._waiting[ledger_id][1]
        self._store.wake()

    def _fail(self, repair: LedgerRepair, why: str, missed: Sequence[Missed] = ()) -> None:
        log.warning("ledger %d is not repaired yet: %s", repair.taken.ledger_id, why)
        with self._lock:
            self._failed += 1
        pause = self._config.retry_seconds * 2.0 ** min(repair.taken.task.attempts, 30)
        self._store.failed(repair.taken, why, min(pause, self._config.retry_seconds_max), missed)
