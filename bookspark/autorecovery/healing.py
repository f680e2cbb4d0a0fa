"""Phase two of a lossy boot, while the bookie serves: what was lost is brought back from the other bookies.

Law: a ledger leaves limbo when it is closed and this bookie holds, synced, every entry that belongs to it here
(``protocol.repair.bookie_healing``). Every other ledger that names this bookie is looked at too, because a lost disk had copies
of closed ledgers. Missing entries are copied, and no such ledger is fenced. Entries that the index names are neither read nor
copied. The end of healing is noted durably, so a bookie that is killed meanwhile begins again and finds most of it done. A
ledger that can't be healed now is tried again, with pauses that double up to two minutes.

Source: BP-46, "The Full Boot-Up Sequence", phase two; docs/decisions/without-the-journal.md.
"""

from __future__ import annotations

import logging
import threading
import time

from bookspark.autorecovery.copying import RUN_ENTRIES_MAX, Bandwidth, CopyProgress, RepairDriver
from bookspark.autorecovery.own_bookie import OwnBookie
from bookspark.client import BookKeeper
from bookspark.errors import BookKeeperError, NoSuchLedgerError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.repair.bookie_healing import (
    ClearLimbo,
    HealingEvent,
    HeldListed,
    LedgerHealing,
    LimboIsCleared,
    ListHeld,
)
from bookspark.protocol.repair.entry_copying import EntryCopying
from bookspark.protocol.repair.replication_plan import lacks
from bookspark.wire.messages import HealingStatus

_RETRY_SECONDS = 2.0
_RETRY_SECONDS_MAX = 120.0
_TOLD_SECONDS = 10.0
"""Healing logs a line about its progress this often."""

log = logging.getLogger(__name__)


class Healing:
    """One thread, from ``start`` until everything is healed or ``stop``."""

    def __init__(self, bookie: OwnBookie, bookkeeper: BookKeeper, bytes_per_second: int) -> None:
        """``bytes_per_second``: limit for copying; 0: no limit. ``stop`` closes ``bookkeeper``."""
        self._bookie = bookie
        self._bookkeeper = bookkeeper
        self._stopping = threading.Event()
        self._bandwidth = Bandwidth(bytes_per_second, self._stopping)
        self._copied = CopyProgress()
        self._ledgers = self._ledgers_left = 0
        """Numbers of ledgers in the present attempt."""
        self._began_at = self._told_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="healing", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no other ledger and give up the one that is being copied. Returns at once; see ``wait``."""
        self._stopping.set()
        self._bookkeeper.close()

    def wait(self, timeout: float) -> bool:
        """Wait for the thread's end. False if it has not ended within ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def status(self) -> HealingStatus:
        """How far healing is. Ledgers that failed count as left. Thread-safe."""
        return HealingStatus(
            ledgers=self._ledgers,
            ledgers_left=self._ledgers_left,
            entries_copied=self._copied.entries_copied,
            bytes_copied=self._copied.bytes_copied,
            seconds=round(time.monotonic() - self._began_at, 3),
        )

    def _run(self) -> None:
        pause, boot = _RETRY_SECONDS, self._bookie.boot
        while not self._stopping.is_set():
            try:
                if self._heal_all():
                    self._bookie.note_healed(boot)
                    log.info("lossy boot %d is healed: %s", boot, self.status())
                    self._bookkeeper.close()
                    return
            except BookKeeperError as error:
                log.warning("healing goes on later: %s", error)
            except Exception:
                # A bookie that stays in limbo has to say why.
                log.exception("healing failed; it is tried again")
            self._stopping.wait(pause)
            pause = min(2 * pause, _RETRY_SECONDS_MAX)

    def _heal_all(self) -> bool:
        """Heal every ledger once, those in limbo first. True if none is left."""
        limbo = self._bookie.limbo()
        others = [ledger_id for ledger_id in self._bookkeeper.metadata.list_ledgers() if ledger_id not in limbo]
        self._ledgers = self._ledgers_left = len(limbo) + len(others)
        for ledger_id in (*limbo, *others):
            if self._stopping.is_set():
                return False
            try:
                self._heal(ledger_id, limbo.get(ledger_id))
                self._ledgers_left -= 1
            except BookKeeperError as error:
                log.warning("ledger %d is not healed yet: %s", ledger_id, error)
            except Exception:
                # A defect with one ledger must not keep the others in limbo.
                log.exception("ledger %d is not healed yet because of a defect", ledger_id)
            self._tell()
        return self._ledgers_left == 0

    def _tell(self) -> None:
        if time.monotonic() - self._told_at > _TOLD_SECONDS:
            self._told_at = time.monotonic()
            log.info("healing lossy boot %d: %s", self._bookie.boot, self.status())

    def _heal(self, ledger_id: int, limbo_boot: int | None) -> None:
        """Raises BookKeeperError if it can't be done now."""
        try:
            found = self._bookkeeper.metadata.read_ledger(ledger_id)
        except NoSuchLedgerError:
            if limbo_boot is not None:
                # The ledger was deleted: nobody asks for its entries any more.
                self._bookie.clear_limbo(ledger_id, limbo_boot)
            return
        me = self._bookie.bookie_id
        driver = RepairDriver(self._bookkeeper, found.value, self._bandwidth, self._copied)
        if limbo_boot is not None:
            self._leave_limbo(driver, LedgerHealing(me, limbo_boot, RUN_ENTRIES_MAX), act.MetadataRead(*found))
        elif any(me in fragment.ensemble for fragment in found.value.fragments):
            plan = lacks(found.value, me, self._bookie.held(ledger_id))
            copying = EntryCopying(found.value, plan, RUN_ENTRIES_MAX, {me})
            driver.run(copying.step, copying.start())

    def _leave_limbo(self, driver: RepairDriver, machine: LedgerHealing, found: act.MetadataRead) -> None:
        event: HealingEvent = found
        while True:
            match driver.run(machine.step, machine.step(event)):
                case act.Finish():
                    return
                case ListHeld():
                    event = HeldListed(self._bookie.held(found.metadata.ledger_id))
                case ClearLimbo(boot):
                    self._bookie.clear_limbo(found.metadata.ledger_id, boot)
                    event = LimboIsCleared()
