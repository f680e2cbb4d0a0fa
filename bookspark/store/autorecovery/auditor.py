"""The auditor: tells the replication workers which ledgers to repair. One process of a cluster has this office.

Law: ``protocol.repair.lost_bookies`` decides which bookies are lost, ``ExactCheck`` finds all other missing copies. This module
gives them the clock, the watches and ZooKeeper. Any number of auditors may run; ZooKeeper elects one. When it dies, the next one
begins with a first look. While autorecovery is disabled, only a check that somebody triggered marks ledgers.

Source: ``Auditor``, ``AuditorElector`` of BookKeeper.
"""

from __future__ import annotations

import logging
import threading
import time

from bookspark.errors import BookKeeperError, UnreadableRecordError
from bookspark.protocol.repair.audit_plan import mark_of_lost
from bookspark.protocol.repair.lost_bookies import LostBookies
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.exact_check import ExactCheck
from bookspark.store.autorecovery.open_ledgers import OpenLedgers
from bookspark.store.client import BookKeeper
from bookspark.store.decisions.seam import decided, made
from bookspark.store.metadata.autorecovery.auditors import AuditorState
from bookspark.store.metadata.documents.locks import Lock
from bookspark.support.metrics.described import Figures

log = logging.getLogger(__name__)


class Auditor:
    """One thread, from ``start`` until ``stop``. ``name``: the auditor's name for other processes and for people."""

    def __init__(self, bookkeeper: BookKeeper, config: AutorecoveryConfig, name: str) -> None:
        self.name = name
        self._bookkeeper = bookkeeper
        self._config = config
        self._store = bookkeeper.metadata
        self._auditors = self._store.auditors
        self._tasks = self._store.underreplication
        self._stopping = threading.Event()
        self._view = made(LostBookies, config.lost_bookie_delay_seconds)
        self._state: AuditorState | None = None
        """The state that was published last under this lock."""
        self._lock: Lock | None = None
        """The lock of the election, while this one is the auditor."""
        self._check_not_before = 0.0
        self._open_ledgers: OpenLedgers | None = None
        """What it sees of them while it is the auditor."""
        self._thread = threading.Thread(target=self._run, name="auditor", daemon=True)

    @property
    def ended(self) -> bool:
        """Was the thread started, and runs no more?"""
        return self._thread.ident is not None and not self._thread.is_alive()

    def figures(self) -> Figures:
        """What metrics tell of the ledgers that are not closed; nothing while another one is the auditor."""
        found = self._open_ledgers
        return {} if found is None else found.figures()

    def start(self) -> None:
        """Take part in the election from now on."""
        self._store.watch_bookies(self._auditors.wake)
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> bool:
        """Resign. Returns whether the thread ended within ``timeout`` seconds."""
        self._stopping.set()
        self._auditors.wake()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except _BrokenOffError:
                break
            except BookKeeperError as error:
                log.warning("auditing goes on later: %s", error)
                self._stopping.wait(self._config.retry_seconds)
            except Exception:
                # A defect must not end the auditing of a cluster unseen.
                log.exception("auditing failed; it is tried again")
                self._stopping.wait(self._config.retry_seconds_max)
        if self._lock is not None:
            try:
                self._auditors.resign(self._lock)
            except BookKeeperError as error:
                log.warning("the election goes on when this session ends: %s", error)

    def _turn(self) -> None:
        """Look once, then wait until there is something to do."""
        if self._lock is not None and not self._auditors.elected(self._lock):
            log.warning("%s is not the auditor any more: its session was lost", self.name)
            self._lock = self._open_ledgers = None
        if self._lock is None:
            self._lock = self._auditors.elect(self.name)
            if self._lock is None:
                self._auditors.wait(self._config.poll_seconds)
                return
            log.info("%s is the auditor now", self.name)
            self._view = made(LostBookies, self._config.lost_bookie_delay_seconds)
            self._state = None
            self._open_ledgers = OpenLedgers(self._store)
        self._look()
        self._check_if_due()
        if self._open_ledgers is not None:
            self._open_ledgers.look()
        self._auditors.wait(self._idle_seconds())

    # -- lost bookies

    def _look(self) -> None:
        registered, view = self._store.bookies(), self._view
        try:
            delay_seconds = self._auditors.delay_seconds()
        except UnreadableRecordError as error:
            log.warning("this auditor's own delay holds: %s", error)
            delay_seconds = None
        view.delay_seconds = self._config.lost_bookie_delay_seconds if delay_seconds is None else delay_seconds
        view.look(time.monotonic(), registered, self._store.list_cookies())
        self._publish(checking=self._state is not None and self._state.checking)
        if view.to_mark and self._tasks.enabled():
            self._mark_ledgers_of(view.to_mark)

    def _mark_ledgers_of(self, lost: frozenset[str]) -> None:
        log.warning("%s lost: the ledgers that name them are marked for repair", ", ".join(sorted(lost)))
        unreadable: dict[int, str] = {}
        ledgers = self._store.read_ledgers(self._store.list_ledgers(), unreadable)
        marks = [mark for metadata, _ in ledgers if (mark := decided(mark_of_lost, metadata, lost)) is not None]
        self._tasks.mark(marks)
        self._view.marked(lost)
        log.info("%d ledgers are marked", len(marks))
        for ledger_id, why in unreadable.items():
            log.error("ledger %d may name a lost bookie, and is not marked: %s", ledger_id, why)

    def _idle_seconds(self) -> float:
        due = min((at - time.monotonic() for at in self._view.lost_at().values()), default=self._config.poll_seconds)
        return max(0.0, min(due, self._config.poll_seconds))

    # -- the exact check

    def _check_if_due(self) -> None:
        trigger = self._auditors.triggered()
        if trigger is None and not (self._by_time() and self._tasks.enabled()):
            return
        log.info("an exact check begins")
        # A check that fails is not repeated before this time. A check that succeeds ends the pause.
        self._check_not_before = time.monotonic() + self._config.retry_seconds_max
        self._publish(checking=True)
        try:
            report = ExactCheck(self._bookkeeper, self._view.lost, self._pause).run(self._config.check_confirm_seconds)
        finally:
            self._publish(checking=False)
        self._auditors.note_check(report)
        self._check_not_before = 0.0
        if trigger is not None:
            self._auditors.answer_trigger(trigger)
        for ledger_id, why in report.unreadable.items():
            log.error("ledger %d was not checked: %s", ledger_id, why)
        log.info("the exact check marked %d of %d ledgers; skipped: %s", report.marked, report.ledgers, report.skipped)

    def _by_time(self) -> bool:
        if not self._config.check_interval_hours or time.monotonic() < self._check_not_before:
            return False
        last = self._auditors.last_check()
        if last is None:
            return True
        pause = 3600 * self._config.check_interval_hours
        if last.skipped:
            pause = min(pause, self._config.retry_seconds_max)
        return time.time() >= last.finished_at_ms / 1000 + pause

    def _pause(self, seconds: float) -> None:
        """Called during a check, so that bookies that are lost meanwhile do not wait for its end."""
        if self._stopping.wait(seconds):
            raise _BrokenOffError
        self._look()

    def _publish(self, checking: bool) -> None:
        ahead = time.time() - time.monotonic()
        waiting = {bookie: round(1000 * (at + ahead)) for bookie, at in self._view.lost_at().items()}
        if self._state is not None and waiting.keys() == self._state.waiting.keys():
            # The two clocks drift a little; the same bookies are no news.
            waiting = self._state.waiting
        state = AuditorState(self.name, waiting, tuple(sorted(self._view.lost)), checking)
        if state != self._state:
            self._auditors.publish_state(state)
            self._state = state


class _BrokenOffError(Exception):
    """The auditor is being stopped in the middle of a check."""
