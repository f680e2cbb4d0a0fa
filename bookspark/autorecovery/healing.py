"""Phase two of a lossy boot, while the bookie serves: what was lost is brought back from the other bookies.

Law: that of ``protocol.bookie_healing``: a ledger leaves limbo when it is closed and everything of it that belongs here is here,
synced. Every other ledger that names this bookie is looked at as well, for a disk that was lost had copies of closed ones: what
is missing is copied, and nothing of it is fenced. That healing is done is noted durably when nothing is left, so a bookie that is
killed meanwhile begins again, and finds most of it done. What can't be healed now is tried again, less and less often.

Source: BP-46, "The Full Boot-Up Sequence", phase two; design.md section 9.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bookspark.autorecovery.own_bookie import OwnBookie
from bookspark.client import BookKeeper
from bookspark.client.requests import Mailbox
from bookspark.metadata.store import Versioned
from bookspark.protocol import actions as act
from bookspark.protocol.bookie_healing import (
    ClearLimbo,
    HealingAction,
    HeldListed,
    LedgerHealing,
    LimboIsCleared,
    ListHeld,
)
from bookspark.protocol.entry_copying import EntryCopying
from bookspark.protocol.errors import BookKeeperError, NoSuchLedgerError
from bookspark.protocol.ledger_metadata import LedgerMetadata
from bookspark.protocol.replication_plan import lacks

_LEDGER_SECONDS_MAX = 300.0
_RETRY_SECONDS = 2.0
_RETRY_SECONDS_MAX = 120.0
_RUN_ENTRIES_MAX = 10_000

log = logging.getLogger(__name__)


@dataclass
class HealingProgress:
    """How far it is. Ledgers that failed are counted as left."""

    ledgers: int = 0
    ledgers_left: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0


class Healing:
    """One thread, from ``start`` until everything is healed or ``stop``."""

    def __init__(self, bookie: OwnBookie, bookkeeper: BookKeeper, bytes_per_second: int) -> None:
        """``bytes_per_second``: what copying may take; 0: as fast as it can. ``bookkeeper`` is closed by ``stop``."""
        self.progress = HealingProgress()
        self._bookie = bookie
        self._bookkeeper = bookkeeper
        self._bytes_per_second = bytes_per_second
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="healing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no other ledger. What is being copied is given up."""
        self._stopping.set()
        self._bookkeeper.close()

    def wait(self, timeout: float) -> bool:
        """Has it ended within ``timeout`` seconds?"""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause, boot = _RETRY_SECONDS, self._bookie.boot
        while not self._stopping.is_set():
            try:
                if self._heal_all():
                    self._bookie.note_healed(boot)
                    log.info("lossy boot %d is healed: %s", boot, self.progress)
                    self._bookkeeper.close()
                    return
            except BookKeeperError as error:
                log.warning("healing goes on later: %s", error)
            self._stopping.wait(pause)
            pause = min(2 * pause, _RETRY_SECONDS_MAX)

    def _heal_all(self) -> bool:
        """Every ledger once, those in limbo first; True if none is left."""
        limbo = self._bookie.limbo()
        others = [ledger_id for ledger_id in self._bookkeeper.metadata.list_ledgers() if ledger_id not in limbo]
        self.progress.ledgers = self.progress.ledgers_left = len(limbo) + len(others)
        healed = 0
        for ledger_id in (*limbo, *others):
            if self._stopping.is_set():
                return False
            try:
                self._heal(ledger_id, limbo.get(ledger_id))
                healed += 1
                self.progress.ledgers_left -= 1
            except BookKeeperError as error:
                log.warning("ledger %d is not healed yet: %s", ledger_id, error)
        return healed == self.progress.ledgers

    def _heal(self, ledger_id: int, limbo_boot: int | None) -> None:
        """Raises BookKeeperError if it can't be done now."""
        try:
            found = self._bookkeeper.metadata.read_ledger(ledger_id)
        except NoSuchLedgerError:
            if limbo_boot is not None:
                self._bookie.clear_limbo(ledger_id, limbo_boot)  # nothing can be asked of it any more
            return
        me = self._bookie.bookie_id
        if limbo_boot is not None:
            machine = LedgerHealing(me, limbo_boot, _RUN_ENTRIES_MAX)
            self._drive(found, machine.step(act.MetadataRead(*found)), machine.step)
        elif any(me in fragment.ensemble for fragment in found.value.fragments):
            plan = lacks(found.value, me, self._bookie.held(ledger_id))
            copying = EntryCopying(found.value, plan, _RUN_ENTRIES_MAX)
            self._drive(found, copying.start(), copying.step)  # type: ignore[arg-type]

    def _drive(
        self,
        found: Versioned[LedgerMetadata],
        pending: list[HealingAction] | list[act.Action],
        step: Callable[[act.Event], list[HealingAction]],
    ) -> None:
        """Do what a machine asks for until it has finished."""
        ledger_id = found.value.ledger_id
        requests = self._bookkeeper.requests(found.value, None)
        mailbox = Mailbox(_LEDGER_SECONDS_MAX)
        while True:
            for action in pending:
                match action:
                    case act.Finish():
                        return
                    case act.Fail(error):
                        raise error
                    case ListHeld():
                        mailbox.put(HeldListed(self._bookie.held(ledger_id)))  # type: ignore[arg-type]
                    case ClearLimbo(boot):
                        self._bookie.clear_limbo(ledger_id, boot)
                        mailbox.put(LimboIsCleared())  # type: ignore[arg-type]
                    case act.ReadMetadata() | act.WriteMetadata():
                        mailbox.put(self._bookkeeper.answer_from_store(found.value, action))
                    case act.SendAdd() | act.SendRead() | act.SendReadLac():
                        self._count(action)
                        requests.send(action, mailbox.put)
            pending = step(mailbox.take())

    def _count(self, action: act.SendAdd | act.SendRead | act.SendReadLac) -> None:
        """Note a copy, and wait as long as the bandwidth asks for."""
        if isinstance(action, act.SendAdd) and action.bookies == (self._bookie.bookie_id,):
            byte_count = sum(len(batch.frame) for batch in action.entries)
            self.progress.entries_copied += action.last - action.first + 1
            self.progress.bytes_copied += byte_count
            if self._bytes_per_second:
                self._stopping.wait(byte_count / self._bytes_per_second)
