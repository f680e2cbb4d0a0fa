"""A client's state in one process: session with the metadata store, I/O thread, connections and open writers.

Law: a runtime is made on first use, wholly or not at all, and belongs to its process. Its close fails every waiting append.
Idle writers cost no time, however many there are.

Decision: users' callbacks run in a thread of their own, one after the other, because a waiting callback in the I/O thread would
hold up every answer, possibly its own. A callback may call everything, also the client's ``close``. A slow callback delays the
other callbacks of the client, and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakMethod

from bookspark.errors import BookKeeperError, LedgerClosedError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.placement import PlacementRule
from bookspark.protocol.repair.audit_plan import LostBookies
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.connections import Connections
from bookspark.store.client.network.free_space import FreeSpace
from bookspark.store.client.network.hello import client_security
from bookspark.store.client.network.io_loop import DeadlineTimer, IoLoop
from bookspark.store.decisions.recorder import record_into
from bookspark.store.metadata.bookie_homes import BookieHome, read_home
from bookspark.store.metadata.placement_rule import KIND, NAME, read_placement
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.store import MetadataStore
from bookspark.support.threads import Threads, Waiters, mark_own_thread

log = logging.getLogger(__name__)


# -- Watches on ledgers' metadata, for the handles that read them: one for each ledger and process.
#
# Law: a listener gets every state of the record that lasts for a while. If the ledger is gone, or the metadata store does
# not answer, the listener gets one last call: the record is not watched any more. It may then listen again. The watch is set
# before the record is read, so that no change is missed in between. A listener added while the watch is being set gets the
# record of that moment. A ledger that was found closed is not watched any more. Handles need not be closed, so listeners are
# held weakly.
#
# A ledger whose handles are all gone is watched until its record changes, as in BookKeeper: kazoo can't take a watch back. So
# there is one watch at most for each ledger that is not closed and was followed, whatever the number of its handles.
#
# Source: BookKeeper's ``LedgerManager.registerLedgerMetadataListener``.


Listener = Callable[[Versioned[LedgerMetadata] | None], None]


class LedgerWatches:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._listeners: dict[int, list[WeakMethod[Listener]]] = {}

    def listen(self, ledger_id: int, listener: Listener) -> None:
        """Call ``listener``, a bound method, at each change from now on, from a thread of the store's.

        Raises MetadataStoreError, NoSuchLedgerError. The listeners of this ledger are dropped then, and the others called.
        """
        with self._lock:
            standing = self._listeners.get(ledger_id)
            alive = [other for other in standing or () if other() not in (None, listener)]
            self._listeners[ledger_id] = [*alive, WeakMethod(listener)]
        if standing is None:
            try:
                self._watch(ledger_id)
                with self._lock:
                    others = [other for other in self._listeners.get(ledger_id, ()) if other() != listener]
                if others:
                    self._tell(others, self._store.read_ledger(ledger_id))
            except BaseException:
                # After an interrupt, too, no listener waits for changes in vain.
                self._tell(self._take_all(ledger_id), None)
                raise

    def _watch(self, ledger_id: int) -> None:
        self._store.watch_ledger(ledger_id, partial(self._changed, ledger_id))

    def _changed(self, ledger_id: int) -> None:
        with self._lock:
            alive = [listener for listener in self._listeners.pop(ledger_id, ()) if listener() is not None]
            if not alive:
                return
            self._listeners[ledger_id] = alive
        try:
            found = self._store.read_ledger(ledger_id)
            # A closed ledger may never change again, and its watch would stay for good.
            if not found.value.closed:
                self._watch(ledger_id)
                found = self._store.read_ledger(ledger_id)
        except BookKeeperError:
            self._tell(self._take_all(ledger_id), None)
            return
        # A closed ledger may still get other bookies. Readers look that up when an entry is missing.
        if found.value.closed:
            self._tell(self._take_all(ledger_id), found)
        else:
            self._tell(alive, found)

    def _take_all(self, ledger_id: int) -> list[WeakMethod[Listener]]:
        with self._lock:
            return self._listeners.pop(ledger_id, [])

    @staticmethod
    def _tell(listeners: list[WeakMethod[Listener]], found: Versioned[LedgerMetadata] | None) -> None:
        for reference in listeners:
            listener = reference()
            if listener is not None:
                try:
                    listener(found)
                except BaseException:
                    log.exception("%r failed", listener)


# -- The open writers of a client, and the bytes that they keep.


class OpenWriter(Protocol):
    """One ledger that is open for writing; ``LedgerDriver`` implements it. All calls come from the I/O thread. A writer whose
    call raises ends with ``defect`` and gets no further call. Times are ``time.monotonic()``, in seconds."""

    ledger_id: int
    ensemble: tuple[str, ...]
    """Bookies of the current ensemble."""
    appended: int
    released: int

    def tick(self, now: float) -> bool:
        """Look at deadlines and timed syncs. False if nothing is left to look at until ``Runtime.wake``."""

    @property
    def owes_lac(self) -> bool:
        """May a bookie not know the LAC (last add confirmed)?"""

    def is_quiet(self, now: float) -> bool:
        """Has the writer rested so long that it sends its LAC without an entry?"""

    def tell_idle_lac(self, now: float) -> bool:
        """Send the bookies the LAC without an entry, if it is due. True if something was sent."""

    def bookies_changed(self) -> None:
        """The set of registered bookies has changed."""

    def bookies_lost(self, lost: Collection[str]) -> None:
        """``lost``: all bookies that count as lost."""

    def abandon(self, error: BookKeeperError) -> None:
        """End the handle with ``error``; the ledger stays as it is."""


def defect(ledger_id: int, error: BaseException) -> BookKeeperError:
    """The user's error after an unexpected exception of the client."""
    return BookKeeperError(
        f"ledger {ledger_id}: the client ran into a defect ({error!r}), and its log tells more; appends that were not "
        "acknowledged may be part of the ledger: open the ledger to recover it"
    )


class Room:
    """The bytes that all writers of one client keep: unacknowledged entries, on a VD ledger (volatile durability) unsynced ones,
    on a guaranteed ledger those without their whole write set.

    Law: a ledger keeps no more than is left free by all of them. So n busy ledgers get 1/(n+1) of ``bytes_max`` each, and a
    ledger without an acknowledgement leaves half of it to the others. A ledger that keeps nothing may always append, so no
    append waits for other ledgers alone. Each thread may exceed the bound by one append.

    Callers add to ``appended``, under ``lock``. Only the I/O thread adds to ``released``; it takes the lock at a ledger's end
    alone, so a caller in the lock never holds up acknowledgements.

    Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches" (1998), with α = 1.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.lock = threading.RLock()
        """Guards the numbers of appends of all ledgers of the client: their next ids, bytes and queues."""
        self.appended = self.released = 0
        self.waiting = Waiters()
        self.pressed: dict[OpenWriter, Callable[[], None]] = {}
        """Ledgers whose entries a sync would release, each with the function that starts the sync."""

    @property
    def held(self) -> int:
        return self.appended - self.released

    def has_room(self, kept: int) -> bool:
        """May a ledger that keeps ``kept`` bytes append?"""
        return kept <= 0 or kept <= self.bytes_max - self.held

    def wait(self, has_room: Callable[[], bool], seconds: float) -> bool:
        """Wait until ``has_room()``; False after ``seconds``."""

        def has_room_now() -> bool:
            if has_room():
                return True
            for press in list(self.pressed.values()):
                press()
            return False

        return self.waiting.wait(has_room_now, seconds)

    def release(self, byte_length: int) -> None:
        """A ledger keeps so many bytes less. For the I/O thread."""
        self.released += byte_length
        if self.waiting:
            self.waiting.wake()

    def forget(self, writer: OpenWriter) -> None:
        """The ledger keeps nothing any more, and takes no appends. For the I/O thread."""
        with self.lock:
            self.pressed.pop(writer, None)
            kept = writer.appended - writer.released
            writer.released += kept
            self.released += kept
        self.waiting.wake()


# -- The runtime


_TICK_SECONDS = 0.05
_TOLD_A_TICK = 16
"""Most ledgers for which a tick sends the LAC (last add confirmed) without an entry; the rest wait for the next ticks. Each LAC
is a synced record at every bookie, and a client may write to thousands of ledgers in turn."""

_LOOK_SECONDS = 0.1

_STORE_CALLS_AT_ONCE = 16
"""Most simultaneous calls of the writers to the metadata store. After the death of a bookie each open ledger needs a
compare-and-set; ZooKeeper syncs simultaneous ones together. 64 were slower."""


class _Listing(NamedTuple):
    bookies: Mapping[str, BookieRegistration]
    at: float
    """Monotonic seconds just before the listing was requested."""
    changes: int
    homes: dict[str, BookieHome | None]


class Runtime:
    """Everything that the handles of one client share in one process."""

    def __init__(self, connect: Callable[[], MetadataStore], config: ClientConfig) -> None:
        """``connect`` makes the session with the metadata store. Raises what ``connect`` raises, and ConfigurationError if a file
        that the options name can't be used."""
        self.pid = os.getpid()
        self._writers: dict[OpenWriter, None] = {}
        """All open writers. Only the I/O thread uses it."""
        self._awake: dict[OpenWriter, None] = {}
        """The writers that each tick looks at. Only the I/O thread uses it."""
        self._owing: dict[OpenWriter, None] = {}
        """Idle writers that owe the bookies their LAC, in the order in which they became idle; some may be active again. Ticks
        don't visit them: of ten thousand ledgers that are written in turn, nearly all wait here. Only the I/O thread uses it."""
        self._changes = 0
        """Number of changes of the registered bookies. Only the I/O thread counts."""
        self._listed: _Listing | None = None
        self._rule: PlacementRule | None = None
        self._rule_changes = 0
        self._lost = LostBookies(config.lost_bookie_delay_seconds)
        """Bookies that count as lost. Only the I/O thread uses it."""
        self._listing = self._list_again = self._look_is_due = False
        """Three flags: the bookies are being listed; they have changed since; they are to be listed again later. Only the I/O
        thread uses them."""
        self._closed = False
        """Nothing is opened for writing any more. Only the I/O thread uses it."""
        security = client_security(config)
        record_into(config.record_decisions, "client")
        with contextlib.ExitStack() as made:
            self.callbacks = Threads(1, "bookspark-callbacks")
            made.callback(self.callbacks.stop)
            self.threads = Threads(
                _STORE_CALLS_AT_ONCE, "bookspark-metadata", partial(mark_own_thread, "metadata", asks_store=True)
            )
            made.callback(self.threads.stop)
            self.store = connect()
            # The session ends before the threads that wait for it.
            made.callback(self.store.close)
            self.io = IoLoop("bookspark-client")
            made.callback(self.io.stop)
            self.connections = Connections(self.store, config, security, self.threads)
            made.callback(self._end_connections)
            self.ledger_watches = LedgerWatches(self.store)
            self.free_space = FreeSpace(self.io, self.connections)
            self.room = Room(config.bytes_in_flight_max)
            self.io.submit(self._tick)
            self.store.watch_bookies(lambda: self.io.submit(self._bookies_changed))
            self._made = made.pop_all()

    @property
    def writers(self) -> int:
        """How many ledgers are open for writing. Only in the I/O thread."""
        return len(self._writers)

    def add_writer(self, writer: OpenWriter) -> None:
        """Call the writer's ``tick`` from now on, and tell it of changed bookies. From any thread."""
        self.io.submit(self._add, writer)

    def _add(self, writer: OpenWriter) -> None:
        if self._closed:
            writer.abandon(_client_closed(writer.ledger_id))
        else:
            self._writers[writer] = self._awake[writer] = None
            if len(self._writers) == 1:
                self._look_for_lost()

    def remove_writer(self, writer: OpenWriter) -> None:
        """Forget the writer. From any thread."""
        self.io.submit(self._forget, writer)

    def _forget(self, writer: OpenWriter) -> None:
        self._writers.pop(writer, None)
        self._awake.pop(writer, None)
        self._owing.pop(writer, None)

    def wake(self, writer: OpenWriter) -> None:
        """Call the writer's ``tick`` until it is at rest again. Only in the I/O thread."""
        if writer in self._writers:
            self._awake.setdefault(writer)

    def _tick(self) -> None:
        now = time.monotonic()
        for writer in list(self._awake):
            try:
                if not writer.tick(now) and self._awake.pop(writer, writer) is None and writer.owes_lac:
                    self._owing.pop(writer, None)
                    self._owing[writer] = None
            except BaseException as error:
                self._failed(writer, error)
        self._tell_lacs(now)
        DeadlineTimer(_TICK_SECONDS, self._tick)

    def _tell_lacs(self, now: float) -> None:
        """Let some idle writers send their LAC, the longest idle first."""
        left = _TOLD_A_TICK
        for writer in list(self._owing):
            try:
                if not left or not writer.is_quiet(now):
                    break
                del self._owing[writer]
                # An active writer re-queues itself when idle, and so does a writer that still owes its LAC.
                if writer not in self._awake:
                    self.wake(writer)
                    left -= writer.tell_idle_lac(now)
            except BaseException as error:
                self._failed(writer, error)

    def _guarded(self, writer: OpenWriter, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self._failed(writer, error)

    def _failed(self, writer: OpenWriter, error: BaseException) -> None:
        """A defect of one writer ends that writer, and must not keep the others from their deadlines."""
        log.error("ledger %d: its writer failed", writer.ledger_id, exc_info=error)
        self._forget(writer)
        writer.abandon(defect(writer.ledger_id, error))

    def bookies(self, listed_seconds_ago_max: float = 0.0) -> Mapping[str, BookieRegistration]:
        """Every registered bookie by id, from a listing of at most this age. A change of the bookies ends the listing: a writer
        that knows of the change chooses from a newer listing. Raises MetadataStoreError."""
        listed, changes, now = self._listed, self._changes, time.monotonic()
        if listed is None or listed.changes != changes or now - listed.at >= listed_seconds_ago_max:
            listed = self._listed = _Listing(self.store.bookies(), now, changes, {})
        return listed.bookies

    def placement_rule(self) -> PlacementRule:
        """The cluster's rule, from memory until it changes. Raises MetadataStoreError, and UnreadableRecordError."""
        found = self._rule
        if found is None:
            changes = self._rule_changes
            self.store.watch_record(KIND, NAME, self._rule_changed)
            found = read_placement(self.store)
            if changes == self._rule_changes:
                self._rule = found
        return found

    def _rule_changed(self) -> None:
        """Called from the metadata store's thread, also when the session ends."""
        self._rule_changes += 1
        self._rule = None

    def last_places(self, bookie_ids: Iterable[str], listed_seconds_ago_max: float = 0.0) -> dict[str, BookieHome]:
        """Last known places of those of ``bookie_ids`` that are not registered by a listing that may be so old. Raises
        MetadataStoreError."""
        registered = self.bookies(listed_seconds_ago_max)
        listed = self._listed
        assert listed is not None
        away = set(bookie_ids) - registered.keys()
        for bookie_id in away - listed.homes.keys():
            listed.homes[bookie_id] = read_home(self.store, bookie_id)
        return {bookie_id: home for bookie_id in away if (home := listed.homes[bookie_id]) is not None}

    def bookies_on_this_host(self) -> frozenset[str]:
        """The ids of the registered bookies that run on this host, from memory. The first call asks the metadata store and waits.

        Raises MetadataStoreError.
        """
        host = socket.gethostname()
        return frozenset(bookie_id for bookie_id, bookie in self.bookies(math.inf).items() if bookie.host == host)

    def _bookies_changed(self) -> None:
        self._changes += 1
        for writer in list(self._writers):
            self._guarded(writer, writer.bookies_changed)
        self._look_for_lost()

    @property
    def lost_bookies(self) -> frozenset[str]:
        """Bookies without a registration for ``lost_bookie_delay_seconds``. Only in the I/O thread."""
        return self._lost.lost

    def _look_for_lost(self) -> None:
        if self._listing:
            self._list_again = True
        elif self._writers:
            self._listing, self._list_again = True, False
            self.threads.post(self._list)

    def _list(self) -> None:
        """Runs in a thread that may wait for the metadata store."""
        try:
            registered = self.store.bookies()
        except BookKeeperError as error:
            log.info("the bookies are listed again later: %s", error)
            self.io.submit(self._listed_for_lost, None)
        else:
            self.io.submit(self._listed_for_lost, frozenset(registered))

    def _listed_for_lost(self, registered: Collection[str] | None) -> None:
        self._listing, now = False, time.monotonic()
        if registered is None:
            self._look_later(_LOOK_SECONDS)
            return
        self._lost.look(now, registered, {bookie for writer in self._writers for bookie in writer.ensemble})
        lost = self._lost.lost
        for writer in [writer for writer in self._writers if not lost.isdisjoint(writer.ensemble)] if lost else ():
            self._guarded(writer, partial(writer.bookies_lost, lost))
        if self._list_again:
            self._look_for_lost()
        elif missing := self._lost.lost_at():
            self._look_later(max(_LOOK_SECONDS, min(missing.values()) - now))

    def _look_later(self, seconds: float) -> None:
        if not self._look_is_due:
            self._look_is_due = True
            self.io.submit_later(seconds, self._look_now)

    def _look_now(self) -> None:
        self._look_is_due = False
        self._look_for_lost()

    def _fail_writers(self) -> None:
        self._closed = True
        for writer in list(self._writers):
            try:
                writer.abandon(_client_closed(writer.ledger_id))
            except BaseException:
                log.exception("ledger %d: its writer could not be ended", writer.ledger_id)

    def _end_connections(self) -> None:
        self.io.submit(self._fail_writers)
        with contextlib.suppress(TimeoutError, BookKeeperError):
            self.io.call(self.connections.close())

    def close(self) -> None:
        """End the open writers, the connections, the threads and the session with the metadata store. Each of these steps is
        taken, even if one before it was interrupted."""
        self._made.close()


def _client_closed(ledger_id: int) -> LedgerClosedError:
    return LedgerClosedError(
        f"ledger {ledger_id}: the client was closed before the ledger; appends that were not acknowledged by then may be part "
        "of the ledger: open it to recover it"
    )
