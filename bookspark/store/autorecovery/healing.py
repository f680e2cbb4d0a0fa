"""Healing, phase two of a lossy boot: lost entries are restored from the other bookies while the bookie serves.

Law: a ledger leaves limbo when it is closed and this bookie holds, synced, every entry that belongs to it here
(``protocol.repair.bookie_healing``). Every other ledger that names this bookie is examined too, because a lost disk had copies
of closed ledgers; their missing entries are copied, without fencing. Entries in the index are neither read nor copied. Several
ledgers are healed at once, within one byte limit. The end of healing is noted durably, so a bookie killed before it begins
again, with little left to do.

Entries that no other bookie can supply don't stop healing: they are noted as lost, so that their absence here proves nothing,
and reported by range. Autorecovery continues to look for them. A ledger that can't be healed now, for example because a peer
is unreachable or its record undecodable, is retried, with pauses that double up to two minutes.

Source: BP-46, "The Full Boot-Up Sequence", phase two; docs/decisions/without-the-journal.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from bookspark.errors import BookKeeperError, EntriesNotCopiedError, MetadataStoreError, NoSuchLedgerError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.bookie_healing import (
    ClearLimbo,
    HealingEvent,
    HeldListed,
    LedgerHealing,
    LimboIsCleared,
    ListHeld,
)
from bookspark.protocol.repair.entry_copying import EntryCopying, NotCopied, Room, not_copied_error
from bookspark.protocol.repair.replication_plan import lacks
from bookspark.store.autorecovery.copying import RUN_ENTRIES_MAX, Copying, RepairDriver
from bookspark.store.autorecovery.own_bookie import OwnBookie
from bookspark.store.client import BookKeeper
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.lost_records import read_lost_records
from bookspark.store.wire.messages import HealingStatus
from bookspark.support.threads import BackOff, Repeated

log = logging.getLogger(__name__)


_RETRY_SECONDS = 2.0
_RETRY_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 20.0
_TOLD_SECONDS = 10.0

_LEDGERS_AT_ONCE = 8
_SLOT_SECONDS_MAX = 1.0
_READ_AT_ONCE = 500
_LOST_TOLD_MAX = 100


class Healing:
    """One thread, from ``start`` until everything is healed or ``stop``."""

    def __init__(self, bookie: OwnBookie, bookkeeper: BookKeeper, bytes_per_second: int) -> None:
        """``bytes_per_second``: limit for copying; 0: no limit. ``stop`` closes ``bookkeeper``."""
        self._bookie = bookie
        self._bookkeeper = bookkeeper
        self._pauses = BackOff(_RETRY_SECONDS, _RETRY_SECONDS_MAX)
        self._thread = Repeated("healing", self._turn, BackOff(_RETRY_SECONDS, _RETRY_SECONDS_MAX))
        self._stopping = self._thread.stopping
        self._boot = 0
        self._todo: Sequence[int] | None = None
        self._copying = Copying(bytes_per_second, self._stopping)
        self._lock = threading.Lock()
        self._ledgers = self._ledgers_left = 0
        self._saw_all = False
        self._failed: list[int] = []
        self._lost: list[tuple[int, int, int]] = []
        self._entries_lost = 0
        self._slots = threading.Semaphore(2 * _LEDGERS_AT_ONCE)
        """For ledgers that are being healed or wait for a thread."""
        self._began_at = self._told_at = time.monotonic()
        self._ended_at: float | None = None

    def start(self) -> None:
        self._boot = self._bookie.boot
        self._thread.start()

    def stop(self) -> None:
        """Begin no other ledger, give up those being copied, and return once they ask nothing more of this bookie, or after
        20 s. The bookie's loop must run until then: nobody would answer later."""
        self._thread.stop(0.0)
        self._bookkeeper.close()
        self._thread.stop(_STOP_SECONDS_MAX)

    def wait(self, timeout: float) -> bool:
        """False if the thread has not ended within ``timeout`` seconds."""
        return self._thread.stop(timeout)

    def status(self) -> HealingStatus:
        """Failed ledgers count as left. Thread-safe."""
        return HealingStatus(
            ledgers=self._ledgers,
            ledgers_left=self._ledgers_left,
            entries_copied=self._copying.progress.entries_copied,
            bytes_copied=self._copying.progress.bytes_copied,
            seconds=round((self._ended_at or time.monotonic()) - self._began_at, 3),
            saw_all=self._saw_all,
            entries_lost=self._entries_lost,
            lost=self._lost[:_LOST_TOLD_MAX],
        )

    def _turn(self) -> float | None:
        todo = self._all_ledgers() if self._todo is None else self._todo
        todo = self._todo = self._heal_each(todo)
        if todo or self._stopping.is_set():
            return self._pauses.next()
        # The metadata names no ledger whose record was lost, and the bookie keeps its entries.
        if read_lost_records(self._bookkeeper.metadata):
            self._bookie.keep_unread()
        self._ended_at = time.monotonic()
        self._bookie.note_healed(self._boot)
        log.info("lossy boot %d is healed: %s", self._boot, self.status())
        self._bookkeeper.close()
        return None

    def _all_ledgers(self) -> list[int]:
        limbo = self._bookie.limbo()
        others = [ledger_id for ledger_id in self._bookkeeper.metadata.list_ledgers() if ledger_id not in limbo]
        self._ledgers = self._ledgers_left = len(limbo) + len(others)
        return [*limbo, *others]

    def _heal_each(self, todo: Sequence[int]) -> list[int]:
        """Heal each of these ledgers once, several at a time. Returns the failed ledgers."""
        limbo = self._bookie.limbo()
        self._failed = []
        with ThreadPoolExecutor(_LEDGERS_AT_ONCE, thread_name_prefix="healing") as pool:
            for ledger_id in todo:
                if ledger_id in limbo and self._has_slot():
                    pool.submit(self._heal_one, ledger_id, limbo[ledger_id], None)
            for metadata in self._that_name_this_bookie([ledger_id for ledger_id in todo if ledger_id not in limbo]):
                if self._has_slot():
                    pool.submit(self._heal_one, metadata.ledger_id, None, metadata)
        self._saw_all = not self._stopping.is_set()
        return self._failed

    def _has_slot(self) -> bool:
        """Wait for a slot. False if healing is stopping."""
        while not self._stopping.is_set():
            if self._slots.acquire(timeout=_SLOT_SECONDS_MAX):
                return True
        return False

    def _that_name_this_bookie(self, ledger_ids: Sequence[int]) -> Iterator[LedgerMetadata]:
        me, rest = self._bookie.bookie_id, iter(ledger_ids)
        while (ids := list(islice(rest, _READ_AT_ONCE))) and not self._stopping.is_set():
            try:
                unreadable: dict[int, str] = {}
                found = [one.value for one in self._bookkeeper.metadata.read_ledgers(ids, unreadable)]
            except MetadataStoreError as error:
                log.warning("ledgers are not healed yet: %s", error)
                with self._lock:
                    self._failed += (*ids, *rest)
                return
            for ledger_id, why in unreadable.items():
                log.warning("ledger %d may name this bookie, and is not healed yet: %s", ledger_id, why)
            named = [one for one in found if any(me in fragment.ensemble for fragment in one.fragments)]
            with self._lock:
                self._failed += unreadable
                self._ledgers_left -= len(ids) - len(named) - len(unreadable)
            yield from named

    def _heal_one(self, ledger_id: int, limbo_boot: int | None, metadata: LedgerMetadata | None) -> None:
        """Runs in a thread of the pool."""
        healed = False
        try:
            if not self._stopping.is_set():
                with self._copying.room(ledger_id) as room:
                    if metadata is not None:
                        self._fill(metadata, room)
                    elif limbo_boot is not None:
                        self._end_limbo(ledger_id, limbo_boot, room)
                healed = True
        except BookKeeperError as error:
            log.warning("ledger %d is not healed yet: %s", ledger_id, error)
        except Exception:
            # A defect with a ledger must not keep the others in limbo.
            log.exception("ledger %d is not healed yet because of a defect", ledger_id)
        finally:
            with self._lock:
                if healed:
                    self._ledgers_left -= 1
                else:
                    self._failed.append(ledger_id)
                self._tell()
            self._slots.release()

    def _tell(self) -> None:
        if time.monotonic() - self._told_at > _TOLD_SECONDS:
            self._told_at = time.monotonic()
            log.info("healing lossy boot %d: %s", self._bookie.boot, self.status())

    def _end_limbo(self, ledger_id: int, boot: int, room: Room) -> None:
        """Heal a ledger in limbo. Raises BookKeeperError if it must be retried."""
        try:
            found = self._bookkeeper.metadata.read_ledger(ledger_id)
        except NoSuchLedgerError:
            # The ledger was deleted: no client reads it any more.
            self._bookie.clear_limbo(ledger_id, boot)
            return
        driver = RepairDriver(self._bookkeeper, found.value, self._copying)
        machine = made(LedgerHealing, self._bookie.bookie_id, boot, RUN_ENTRIES_MAX, room)
        event: HealingEvent = act.MetadataRead(*found)
        while True:
            match driver.run(machine.step, machine.step(event)):
                case act.Finish():
                    return
                case ListHeld():
                    event = HeldListed(self._bookie.held(ledger_id))
                case ClearLimbo(boot, lost):
                    if lost:
                        self._note_lost(ledger_id, machine.lost)
                    self._bookie.clear_limbo(ledger_id, boot)
                    event = LimboIsCleared()

    def _fill(self, metadata: LedgerMetadata, room: Room) -> None:
        """Copy this bookie's missing entries of a ledger not in limbo. Raises BookKeeperError if it must be retried."""
        me = self._bookie.bookie_id
        plan = list(lacks(metadata, me, self._bookie.held(metadata.ledger_id)))
        if not plan:
            return
        machine = made(EntryCopying, metadata, plan, RUN_ENTRIES_MAX, {me}, room)
        driver = RepairDriver(self._bookkeeper, metadata, self._copying)
        try:
            driver.run(machine.step, machine.start())
        except EntriesNotCopiedError as error:
            if not all(one.lost for one in error.entries):
                raise
            self._note_lost(metadata.ledger_id, error.entries)

    def _note_lost(self, ledger_id: int, entries: Sequence[NotCopied]) -> None:
        log.error("lost: %s", not_copied_error(ledger_id, entries))
        self._bookie.note_lost(ledger_id, [(one.first, one.last) for one in entries])
        with self._lock:
            self._lost += ((ledger_id, one.first, one.last) for one in entries)
            self._entries_lost += sum(one.last - one.first + 1 for one in entries)
