"""The auditor: marks ledgers for repair by the replication workers. A cluster has one at a time.

Law: ``protocol.repair.audit_plan`` decides which bookies are lost, and ``ExactCheck`` finds all other missing copies. This
module supplies clock, watches and ZooKeeper. Any number of auditors may run; ZooKeeper elects one. Its successor begins with a
first look. While autorecovery is disabled, only a triggered check marks ledgers.

Source: ``Auditor``, ``AuditorElector`` of BookKeeper.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

from bookspark.errors import BookKeeperError, NoSuchLedgerError, ReadError, UnreadableRecordError
from bookspark.protocol.kept_times import is_over
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.repair.audit_plan import (
    LostBookies,
    absent,
    confirmed,
    mark_of_few_copies,
    mark_of_lacking,
    mark_of_lost,
    mark_of_misplaced,
)
from bookspark.protocol.repair.underreplication_task import Mark
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.held_ranges import Ranges, held_ranges
from bookspark.store.cluster_view import known_bookies
from bookspark.store.decisions.seam import decided, made
from bookspark.store.metadata.autorecovery.auditors import AuditorState, CheckReport
from bookspark.store.metadata.documents.locks import Lock
from bookspark.store.metadata.store import MetadataStore
from bookspark.support.metrics.described import Figures
from bookspark.support.threads import BackOff, Repeated

log = logging.getLogger(__name__)


# -- The exact check: every bookie's listed entries against the metadata of all ledgers.


class ExactCheck:
    """Compares the entries that every bookie lists with those that the metadata assigns to it. ``pause(seconds)`` is called
    between bookies and waits; an exception of it ends the check.

    Law: ``protocol.repair.audit_plan`` decides. The check reads whole lists and no entries. A failed listing of ledgers ends
    it; a bookie without a whole list is skipped by name, and so is a ledger with an undecodable record. Metadata is read
    before the lists, so every confirmed entry was written before the lists. A healing bookie is skipped until it has examined
    all its ledgers, so that an unhealable ledger does not disable the check.

    A list omits copies that proved unreadable or lie on a failed disk. Each bookie reads all of its copies within
    ``scrub_interval_hours`` (``bookie.holdings.scrubbing``), so the check need not.

    Memory: the metadata of all ledgers, and the ranges of one bookie at a time. Source: docs/decisions/delta-snapshots.md.
    """

    def __init__(self, bookkeeper: BookKeeper, lost: Collection[str], pause: Callable[[float], None]) -> None:
        self._bookkeeper = bookkeeper
        self._lost = lost
        self._pause = pause
        self._skipped: dict[str, str] = {}

    def run(self, confirm_seconds: float) -> CheckReport:
        """Mark the ledgers that lack copies. Raises MetadataStoreError; then nothing was marked. ``confirm_seconds``: the
        pause before a second look at seemingly missing entries."""
        begun, store = time.monotonic(), self._bookkeeper.metadata
        unreadable: dict[int, str] = {}
        ledgers = [one.value for one in store.read_ledgers(store.list_ledgers(), unreadable)]
        cluster, by_bookie = known_bookies(store), _by_bookie(ledgers)
        registered = cluster.registered()
        gone = {
            bookie
            for bookie in by_bookie.keys() - registered.keys()
            if bookie in self._lost or bookie not in cluster.bookies
        }
        self._skipped = dict.fromkeys(sorted(by_bookie.keys() - registered.keys() - gone), "is away")
        suspicions = [
            (ledger_id, bookie, ranges)
            for bookie in sorted(by_bookie.keys() & registered.keys())
            for ledger_id, ranges in self._lacking(bookie, by_bookie[bookie])
        ]
        marks = [mark for metadata in ledgers if (mark := decided(mark_of_lost, metadata, gone)) is not None]
        marks += [mark for metadata in ledgers if (mark := decided(mark_of_few_copies, metadata)) is not None]
        marks += [mark_of_misplaced(*found) for found in self._bookkeeper.misplaced(ledgers)]
        if suspicions:
            self._pause(confirm_seconds)
            marks += self._confirmed(suspicions)
        store.underreplication.mark(marks)
        return CheckReport(
            finished_at_ms=store.clock.now_ms(),
            seconds=round(time.monotonic() - begun, 3),
            ledgers=len(ledgers),
            marked=len({mark.ledger_id for mark in marks}),
            skipped=self._skipped,
            unreadable=unreadable,
        )

    def _lacking(self, bookie: str, assigned: Sequence[LedgerMetadata]) -> Iterator[tuple[int, Ranges]]:
        """The assigned ledgers of which the bookie lacks entries, with the absent ranges."""
        self._pause(0)
        try:
            status = self._bookkeeper.bookie_status(bookie)
            if status.healed_boot < status.lossy_boot and not (status.healing and status.healing.saw_all):
                self._skipped[bookie] = "is healing itself"
                return
            held = held_ranges(self._bookkeeper, bookie)
        except ReadError as error:
            self._skipped[bookie] = str(error)
            return
        for metadata in assigned:
            ranges = decided(absent, metadata, bookie, held.get(metadata.ledger_id, ()))
            if ranges:
                yield metadata.ledger_id, ranges

    def _confirmed(self, suspicions: Sequence[tuple[int, str, Ranges]]) -> Iterator[Mark]:
        for ledger_id, bookie, ranges in suspicions:
            try:
                metadata = self._bookkeeper.get_ledger_metadata(ledger_id)
                held = held_ranges(self._bookkeeper, bookie, ledger_id).get(ledger_id, ())
            except (NoSuchLedgerError, UnreadableRecordError):
                continue
            except ReadError as error:
                self._skipped[bookie] = str(error)
                continue
            still = decided(confirmed, ranges, decided(absent, metadata, bookie, held))
            if still:
                yield mark_of_lacking(ledger_id, bookie, still)


def _by_bookie(ledgers: Sequence[LedgerMetadata]) -> dict[str, list[LedgerMetadata]]:
    found: dict[str, list[LedgerMetadata]] = defaultdict(list)
    for metadata in ledgers:
        for bookie in {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}:
            found[bookie].append(metadata)
    return found


# -- Ledgers that are not closed: their number and recoveries that don't end, for metrics; and those closed with few copies.


_READ_MAX = 1000
_NEW_MAX = 100_000
"""Limit of examined ids since the look before, the newest: a user may have skipped very many."""
_STANDS_SECONDS = 10.0
_REST_SECONDS = 10.0
_RESTS = 50


class OpenLedgers:
    """Counts of ledgers that are not closed, as far as this auditor has looked. A single thread looks; any thread may read the
    figures.

    Law: a ledger seen closed with fewer copies than wanted (``LedgerMetadata.lacks_copies``) is marked. A look reads at most
    ``_READ_MAX`` records of new ledgers, and as many of ledgers not closed, in turns; then it rests 50 times its duration. So an
    auditor of a million ledgers knows them all after some hours, and costs no more than an auditor of a thousand. A recovery
    stands if two looks at least ``_STANDS_SECONDS`` apart saw it. Ledgers made later under ids chosen by users are counted by the
    next auditor only.

    A pausing writer looks like a dead one, so these are not counted: ``bookspark why not closed LEDGER`` examines one ledger.
    """

    def __init__(self, store: MetadataStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._due = float("-inf")
        self._given: tuple[int, int] | None = None
        """The last assigned ids at the two looks before. None: no look yet."""
        self._unseen: deque[int] = deque()
        self._again: dict[int, None] = {}
        """Ledgers that are not closed, the longest unexamined first."""
        self._recovering: dict[int, float] = {}
        """First sight of each ledger in recovery."""
        self._told = 0, 0

    def look(self) -> None:
        """Look, if it is time. Raises MetadataStoreError."""
        began = self._clock()
        if began < self._due:
            return
        newest = self._store.last_ledger_id()
        if self._given is None:
            self._unseen.extend(self._store.list_ledgers())
            self._given = newest, newest
        # Ids assigned before the last look: a ledger's record follows its id after a moment.
        seen, given = self._given
        self._unseen.extendleft(range(max(seen, given - _NEW_MAX) + 1, given + 1))
        self._given = given, newest
        first = list(islice(self._unseen, _READ_MAX))
        some = [*first, *islice(self._again, _READ_MAX)]
        records = [one.value for one in self._store.read_ledgers(sorted(set(some)), {})]
        self._store.underreplication.mark(
            mark for one in records if (mark := decided(mark_of_few_copies, one)) is not None
        )
        states = {one.ledger_id: one.state for one in records}
        for _ in first:
            self._unseen.popleft()
        for ledger_id in some:
            state = states.get(ledger_id, LedgerState.CLOSED)
            self._again.pop(ledger_id, None)
            if state is not LedgerState.CLOSED:
                self._again[ledger_id] = None
            if state is LedgerState.IN_RECOVERY:
                self._recovering.setdefault(ledger_id, began)
            else:
                self._recovering.pop(ledger_id, None)
        stand = sum(began - since >= _STANDS_SECONDS for since in self._recovering.values())
        self._told = len(self._again), stand
        ended = self._clock()
        self._due = ended + max(_REST_SECONDS, _RESTS * (ended - began))

    def figures(self) -> Figures:
        still_open, stand = self._told
        return {
            "bookspark_autorecovery_open_ledgers": still_open,
            "bookspark_autorecovery_standing_recoveries": stand,
        }


# -- The auditor.


class Auditor:
    """One thread, from ``start`` until ``stop``. ``name``: its name for other processes and for people."""

    def __init__(self, bookkeeper: BookKeeper, config: AutorecoveryConfig, name: str) -> None:
        self.name = name
        self._bookkeeper = bookkeeper
        self._config = config
        self._store = bookkeeper.metadata
        self._auditors = self._store.auditors
        self._tasks = self._store.underreplication
        self._view = made(LostBookies, config.lost_bookie_delay_seconds)
        self._state: AuditorState | None = None
        self._lock: Lock | None = None
        self._check_not_before = 0.0
        self._open_ledgers: OpenLedgers | None = None
        retry = BackOff(config.retry_seconds, config.retry_seconds_max)
        self._thread = Repeated("auditor", self._turn, retry, end=self._resign)
        self._stopping = self._thread.stopping

    @property
    def ended(self) -> bool:
        return self._thread.ended

    def figures(self) -> Figures:
        """The figures of open ledgers; empty unless this is the auditor."""
        found = self._open_ledgers
        return {} if found is None else found.figures()

    def start(self) -> None:
        self._store.watch_bookies(self._auditors.wake)
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> bool:
        """Resign. False if the thread has not ended within ``timeout`` seconds."""
        self._stopping.set()
        self._auditors.wake()
        return self._thread.stop(timeout)

    def _resign(self) -> None:
        if self._lock is not None:
            try:
                self._auditors.resign(self._lock)
            except BookKeeperError as error:
                log.warning("the election goes on when this session ends: %s", error)

    def _turn(self) -> float | None:
        if self._lock is not None and not self._auditors.elected(self._lock):
            log.warning("%s is not the auditor any more: its session was lost", self.name)
            self._lock = self._open_ledgers = None
        if self._lock is None:
            self._lock = self._auditors.elect(self.name)
            if self._lock is None:
                self._auditors.wait(self._config.poll_seconds)
                return 0.0
            log.info("%s is the auditor now", self.name)
            self._view = made(LostBookies, self._config.lost_bookie_delay_seconds)
            self._state = None
            self._open_ledgers = OpenLedgers(self._store)
        self._look()
        self._check_if_due()
        if self._open_ledgers is not None:
            self._open_ledgers.look()
        self._auditors.wait(self._idle_seconds())
        return 0.0

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
        # A failed check is not repeated before this time. A success ends the pause.
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
        return is_over(last.finished_at_ms, round(1000 * pause), self._store.clock.now_ms())

    def _pause(self, seconds: float) -> None:
        """Called during a check, so that newly lost bookies do not wait for its end."""
        if self._stopping.wait(seconds):
            raise _BrokenOffError
        self._look()

    def _publish(self, checking: bool) -> None:
        ahead = self._store.clock.ahead_ns() / 1e9
        waiting = {bookie: round(1000 * (at + ahead)) for bookie, at in self._view.lost_at().items()}
        if self._state is not None and waiting.keys() == self._state.waiting.keys():
            # Two readings of the store's time differ a little; the same bookies are no news.
            waiting = self._state.waiting
        state = AuditorState(self.name, waiting, tuple(sorted(self._view.lost)), checking)
        if state != self._state:
            self._auditors.publish_state(state)
            self._state = state


class _BrokenOffError(Exception):
    """The auditor is stopping in the middle of a check."""
