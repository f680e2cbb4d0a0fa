"""A bookie process: boot phases, requests, lease and clean stop. It decides nothing itself.

Law: each phase ends before the next begins, and a failed phase keeps the bookie down. A bookie ends with an error when its last
directory fails, or another host has become it. The locks are taken before the first read, and released after the last write::

    lock directories → answer the lease → metadata store → cookies → storage → (lossy boot) → listen → register → serving
    unregister → stop listening → close storage (checkpoint) → close the lease socket → unlock

All imports precede the first phase, because Spark may delete the files of a shipped package while the bookie lives on. (Optional
ports, off by default, import at their start.)

Source: docs/decisions/bookies-outlive-tasks.md; BP-46, "The Full Boot-Up Sequence".
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import queue
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTimeError
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
import uvloop
from msgspec import UNSET, UnsetType

import bookspark
from bookspark.errors import (
    BookieError,
    BookKeeperError,
    ConfigurationError,
    InvalidArgumentError,
    InvalidCookieError,
    MetadataStoreError,
    NoSuchLedgerError,
    StorageError,
    UnreadableRecordError,
)
from bookspark.protocol.bookie.address_rates import AddressRates
from bookspark.protocol.bookie.bookie_boot import answer_unsure, phase_one
from bookspark.protocol.bookie.bookie_ledger import FenceNoted
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.bookie.first_request import answer_first_request
from bookspark.protocol.bookie.key_meeting import answer_meeting
from bookspark.protocol.bookie.lost_records import LostRecords, lost_records, skipped_to
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.servers.daemon.directories import DirectoryLocks, has_cookie
from bookspark.servers.daemon.identity import Identity
from bookspark.servers.daemon.lease_server import SERVING, LeaseServer
from bookspark.store.autorecovery.fetching import Fetching
from bookspark.store.autorecovery.healing import Healing
from bookspark.store.autorecovery.other_copies import OtherCopies
from bookspark.store.autorecovery.own_bookie import OwnBookie
from bookspark.store.bookie.bookie_config import BookieConfig, advertised
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.disk.packed_dict import since
from bookspark.store.bookie.interpreter import suit_a_bookie
from bookspark.store.bookie.ledgers.key_meetings import KeyCheck
from bookspark.store.bookie.ledgers.lossy_boots import LossyBoots
from bookspark.store.bookie.serving.served_bookie import Fetch
from bookspark.store.bookie.serving.server import BookieServer
from bookspark.store.bookie.space.rewriting_process import RewritingProcess
from bookspark.store.bookie.storage import FenceCheck, FirstRequestCheck, Storage
from bookspark.store.client import BookKeeper
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.decisions.recorder import record_into
from bookspark.store.decisions.seam import decided, is_bookie
from bookspark.store.metadata.bookie_homes import BookieHome, note_home
from bookspark.store.metadata.bookie_reach import ReachNotes
from bookspark.store.metadata.lost_records import note_lost_records
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.short_waits import waits_at_most
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.wire.messages import HealingStatus
from bookspark.store.wire.security import STANDS_BETWEEN
from bookspark.support.addresses import address_text, is_loopback, split_address
from bookspark.support.extras import extra_needed
from bookspark.support.log_lines import begin_log
from bookspark.support.metrics.web import PORTS, Page, WebServer
from bookspark.support.threads import BackOff, Repeated

log = logging.getLogger(__name__)


# -- Phase one of a lossy boot: lost fences and limbo are restored before the bookie serves
#
# Law: the boot waits for phase one, and phase one fails closed. The bookie stays down, with the reason, unless the metadata of
# every ledger was read (or is deleted), and the mark, the fences and limbo are durable. ``protocol.bookie.bookie_boot`` decides.
#
# Source: BP-46, "The Full Boot-Up Sequence"; docs/decisions/without-the-journal.md.


_READS_AT_ONCE = 16
_LEDGERS_A_STEP = 4096


def why_lossy(lossy_boots: LossyBoots, emptied: Sequence[str]) -> str:
    """Reasons of a lossy boot, for people, or "". ``emptied``: directories that lost their data."""
    reasons = [f"{directory} was emptied" for directory in emptied]
    reasons += [f"{path} can't be read" for path in (*lossy_boots.unreadable, *lossy_boots.unread)]
    reasons += [
        f"entries that {directory} had acknowledged may be lost"
        for directory in lossy_boots.unclean
        if directory not in emptied and not any(directory in why for why in lossy_boots.losses)
    ]
    reasons += lossy_boots.losses
    return "; ".join(reasons)


def fence_what_may_be_lost(
    storage: Storage, store: MetadataStore, bookie_id: str, emptied: Sequence[str], progress: Callable[[str], None]
) -> None:
    """Fence, durably, every ledger with a possible loss of entries or of its fence. ``emptied``: directories that lost their
    data. ``progress``: called with a line for people. Raises BookieError if metadata can't be read, and StorageError."""
    lossy_boots = storage.lossy_boots
    why = why_lossy(lossy_boots, emptied)
    try:
        highest = max(store.new_ledger_id(), store.highest_ledger_id())
        ids = store.list_ledgers()
        # The note of ids that users gave may be lost with an older copy of the metadata; the listing holds the surviving ids.
        highest = max([highest, *ids[-1:]])
        unreadable: dict[int, str] = {}
        ledgers = _ledgers(store, ids, progress, unreadable)
        absent = lossy_boots.only_absent(emptied)
        found = phase_one(bookie_id, ledgers, highest, lossy_boots.mark, unreadable, absent=absent)
    except MetadataStoreError as error:
        raise BookieError(
            f"this boot is lossy ({why}), so ledgers have to be fenced before {bookie_id} may serve, but not all of their "
            f"metadata could be read: {error}; start it again when the metadata store answers"
        ) from error
    lossy_boots.note_lossy_boot(found, fences_lost=bool(emptied) or lossy_boots.fences_lost)
    fenced = sum(isinstance(record, FenceNoted) for record in found.records)
    log.warning("lossy boot %d: %s. %d ledgers are fenced and in limbo", found.mark.boot, why, fenced)


def fence_check(store: MetadataStore, bookie_id: str) -> FenceCheck:
    """A check by the current metadata whether a ledger had no fence to lose."""
    return lambda ledger_id: decided(answer_unsure, bookie_id, _metadata(store, ledger_id))


def first_request_check(store: MetadataStore, bookie_id: str) -> FirstRequestCheck:
    """A check by the current metadata whether a request may make a ledger known without an entry."""
    return lambda ledger_id, key: answer_first_request(bookie_id, _metadata(store, ledger_id), key)


def key_check(store: MetadataStore) -> KeyCheck:
    """A check by the current metadata whether a ledger has this master key."""
    return lambda ledger_id, key: answer_meeting(_metadata(store, ledger_id), key)


def _metadata(store: MetadataStore, ledger_id: int) -> LedgerMetadata | None:
    """A ledger's metadata; None if it is deleted. Raises MetadataStoreError and UnreadableRecordError."""
    try:
        return store.read_ledger(ledger_id).value
    except NoSuchLedgerError:
        return None


def _ledgers(
    store: MetadataStore, ids: Sequence[int], progress: Callable[[str], None], unreadable: dict[int, str]
) -> Iterator[LedgerMetadata]:
    """The metadata of these ledgers, except of ledgers deleted meanwhile. Undecodable records go into ``unreadable``, with the
    reason."""

    def read(ledger_id: int) -> LedgerMetadata | None:
        try:
            return _metadata(store, ledger_id)
        except UnreadableRecordError as error:
            log.error("ledger %d is fenced and in limbo, because it may name this bookie: %s", ledger_id, error)
            unreadable[ledger_id] = str(error)
            return None

    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="lossy boot") as threads:
        for start in range(0, len(ids), _LEDGERS_A_STEP):
            progress(f"lossy boot: {start} of {len(ids)} ledgers looked at")
            for metadata in threads.map(read, ids[start : start + _LEDGERS_A_STEP]):
                if metadata is not None:
                    yield metadata


# -- Lost records, noted before a bookie serves: held ledgers with an id unknown to the metadata
#
# Law: as in ``protocol.bookie.lost_records``. Without an answer of the metadata store the boot waits, or ends with its error.


def keep_lost_records(storage: Storage, store: MetadataStore) -> LostRecords | None:
    """Note the held ids that the metadata does not know, and skip them; returns them, None if there are none. Raises
    MetadataStoreError, and UnreadableRecordError."""
    # The check takes no new id: it may be one of the held ids.
    given_out = store.highest_ledger_id()
    if not _held_from(storage, given_out):
        return None
    given_out = max((given_out, *store.list_ledgers()[-1:]))
    lost = lost_records(_held_from(storage, given_out), given_out)
    if lost is not None:
        last = skipped_to(lost, store.last_ledger_id())
        kept = f"the ids up to {last} are given to no other ledger"
        log.error(
            "ledgers from %d on are held here, and the metadata gave out no id beyond %d: an older copy of ZooKeeper's data was "
            "put back, so their records are lost. Their entries are kept, and %s (docs/guides/backup.md)",
            given_out + 1, given_out, f"give no ledger an id up to {lost.last}" if last is None else kept,
        )  # fmt: skip
        note_lost_records(store, lost)
        if last is not None:
            store.skip_ledger_ids(last)
        else:
            # A cluster for BookKeeper's clients has no ledgers beyond their ids.
            with contextlib.suppress(InvalidArgumentError):
                store.note_given_id(lost.last)
    return lost


def _held_from(storage: Storage, above: int) -> list[int]:
    """Ids above this one with entries or control state, many of them twice."""
    return storage.holdings.index.ledger_ids(above + 1) + since(storage.holdings.ledgers.ids, above + 1)


# -- The registration


_RETRY_SECONDS = 1.0


class Registrar:
    """Keeps one bookie registered: writable while its disks have room, else read-only. Call ``register`` once, and ``unregister``
    at the end.

    Law: the registration follows the storage's state. A thread writes each change to the metadata store, one at a time, and
    retries until the change is written or outdated.

    Source: BookKeeper's ``BookieStateManager``."""

    def __init__(
        self,
        store: MetadataStore,
        registration: BookieRegistration,
        storage: Storage,
        cookie: Cookie,
        replaced: Callable[[InvalidCookieError], None],
    ) -> None:
        """``replaced`` is called, and must not block, if another host has become the bookie after ``register``."""
        self._store = store
        self._registration = registration
        self._cookie = cookie
        self._replaced = replaced
        self._disks = storage.disks
        self._published: bool | None = None
        self._thread = Repeated("registration", self._follow, BackOff(_RETRY_SECONDS, _RETRY_SECONDS))

    def register(self) -> None:
        """Register the bookie, and follow its storage from then on. Raises MetadataStoreError, and InvalidCookieError if another
        host has become the bookie."""
        self._disks.read_only_changed = lambda read_only: self._thread.wake()
        self._publish()
        self._thread.start()

    def why_not_registered(self) -> str:
        """Why the bookie is not registered as this process, by the metadata store; "" if it is. Raises MetadataStoreError."""
        bookie_id = self._registration.bookie_id
        found = self._store.bookies().get(bookie_id)
        if found is None:
            return f"{bookie_id} is not registered"
        if found.incarnation != self._registration.incarnation:
            return f"another process is registered as {bookie_id}: process {found.pid} on {found.host}"
        return ""

    def unregister(self) -> None:
        """Remove the registration. If the metadata store does not answer, the end of the session removes it."""
        self._thread.stop()
        try:
            self._store.unregister_bookie(self._registration.bookie_id)
        except MetadataStoreError as error:
            log.warning("the registration could not be removed; it ends with the session: %s", error)

    def _publish(self) -> None:
        read_only = self._disks.read_only
        registration = msgspec.structs.replace(self._registration, read_only=read_only)
        self._store.register_bookie(registration, self._cookie, self._replaced)
        self._published = read_only

    def _follow(self) -> float | None:
        try:
            while self._published != self._disks.read_only:
                self._publish()
        except InvalidCookieError as error:
            self._replaced(error)
            return None
        return math.inf


# -- The thread of the request server, and its loop (uvloop)


_START_SECONDS = 30.0
_STOP_SECONDS = 30.0

Result = TypeVar("Result")


class RequestLoop:
    """Runs a bookie's request server in a thread. Call ``start`` once, and ``stop`` once."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)

    @property
    def post(self) -> Post:
        """``post(function, *arguments)`` calls a function on the loop, from any thread."""
        return self._loop.call_soon_threadsafe

    def start(self) -> str:
        """Listen and serve; returns ``host:port``. Raises BookieError if the bookie can't listen there, or after 30 s."""
        self._thread.start()
        host, port = self.run(self._server.start())
        return address_text(host, port)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run ``work`` on the loop; returns its result, raises its error. Raises BookieError after 30 s."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_SECONDS)
        except TimeoutError as error:
            raise BookieError(f"the request server's loop did not answer within {_START_SECONDS:g} s") from error

    def stop(self) -> None:
        """Answer earlier requests, close the connections, end the loop. Raises BookieError if that takes more than 30 s."""
        try:
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(_STOP_SECONDS)
        except TimeoutError as error:
            raise BookieError(f"the request server did not stop within {_STOP_SECONDS:g} s") from error
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)


# -- Health and readiness, for the supervisor of the process


ANSWER_SECONDS_MAX = 4.0


class _Serving(NamedTuple):
    post: Post
    without_thread: Callable[[], Sequence[str]]
    why_not_registered: Callable[[], str]


class Probes:
    """Fed by the bookie; asked by any thread. Each question returns the problem, or "".

    Law: a bookie is *unhealthy* only if a restart may help: its loop of requests gives no answer, or a directory in use has no
    commit thread. A boot of any length is healthy, and so is a bookie without ZooKeeper, which no restart brings back. A bookie
    is *ready* if clients can reach it and are served: it is registered under its present incarnation, and is not stopping. A
    check changes nothing, and answers within ANSWER_SECONDS_MAX.

    ``/health`` and ``/ready`` answer 200, or 503 with the reason, in one line, as Kubernetes' probes expect."""

    def __init__(self, phase: Callable[[], str]) -> None:
        """``phase``: of the lease's status."""
        self._phase = phase
        self._serving: _Serving | None = None

    def serves(
        self, post: Post, without_thread: Callable[[], Sequence[str]], why_not_registered: Callable[[], str]
    ) -> None:
        """The bookie serves from now on. ``post`` calls a function on the loop of requests. ``without_thread``: directories in
        use whose commit thread has ended. ``why_not_registered``: as in ``Registrar``."""
        self._serving = _Serving(post, without_thread, why_not_registered)

    def why_unhealthy(self) -> str:
        """Reason for a restart."""
        serving = self._serving
        if serving is None or self._phase() != SERVING:
            return ""
        dead = serving.without_thread()
        answer: Future[None] = Future()
        problem = ""
        try:
            serving.post(answer.set_result, None)
            answer.result(ANSWER_SECONDS_MAX)
        except NotInTimeError:
            problem = f"the loop of requests gives no answer within {ANSWER_SECONDS_MAX:g} s"
        except RuntimeError as error:
            problem = f"the loop of requests has ended: {error}"
        # A stop begun meanwhile ends both.
        if self._phase() != SERVING:
            return ""
        return f"the commit thread of {', '.join(dead)} has ended" if dead else problem

    def why_not_ready(self) -> str:
        """Reason that clients are not served."""
        phase = self._phase()
        if self._serving is None or phase != SERVING:
            return f"not serving: {phase}"
        try:
            with waits_at_most(ANSWER_SECONDS_MAX):
                return self._serving.why_not_registered()
        except MetadataStoreError as error:
            return f"nobody knows whether it is registered: {error}"

    def health(self) -> Page:
        return _page(self.why_unhealthy(), f"healthy: {self._phase()}")

    def ready(self) -> Page:
        return _page(self.why_not_ready(), "ready")


def _page(problem: str, good: str) -> Page:
    return Page(503 if problem else 200, f"{problem or good}\n".encode())


# -- Few log lines of a kind: a peer that can cause one line can cause any number
#
# Law: of one kind (one text before its arguments are put in) ``LINES_AT_ONCE`` lines come at once, and later one every
# ``LINE_SECONDS``, with the number of those left out before it. So neither a peer nor a failing disk fills the disk of the log.


LINES_AT_ONCE = 20
LINE_SECONDS = 5.0


class FewOfAKind(logging.Filter):
    """A filter for one handler."""

    def __init__(self) -> None:
        super().__init__()
        self._rates = AddressRates(1 / LINE_SECONDS, LINES_AT_ONCE)
        self._left_out: dict[str, int] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = f"{record.name} {record.levelno} {record.msg}"
        with self._lock:
            if not self._rates.take(kind, time.monotonic()):
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return False
            left_out = self._left_out.pop(kind, 0)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more lines of this kind were left out)"
            record.args = ()
        return True


# -- The process


STOP_SECONDS_MAX = 50.0
"""A longer stop is given up, so that the locks are released. The next boot sees an unclean shutdown."""
_SIGNALS_SEEN_SECONDS = 1.0

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Foreground(NamedTuple):
    """A bookie without a keeper: it holds its own lease, and serves until it is stopped."""

    holder: str
    """Name of the holder, for refused claims."""
    serving: Callable[[BookieRegistration, int], None]
    """Called once, when the bookie serves, with the metrics port (0: none)."""
    given_up: int
    """Exit status of the process if the clean stop takes too long."""


def prepare_process() -> None:
    """Prepare the process of a bookie: log to stderr, close new files to other users, and write no core file: it would have
    secrets and keys."""
    begin_log()
    # kazoo logs a line each second while it tries to connect.
    logging.getLogger("bookspark.store.metadata.zookeeper.connection.kazoo").setLevel(logging.ERROR)
    # For sockets, locks and the files of libraries.
    os.umask(0o077)
    for handler in logging.getLogger().handlers:
        handler.addFilter(FewOfAKind())
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def run_bookie(config: BookieConfig, foreground: Foreground | None = None) -> None:
    """Boot; serve until the lease lapses, a stop request, or SIGTERM; stop cleanly. ``foreground``: None leaves the lease to
    keepers. Raises BookKeeperError if a phase fails, or if a commit thread fails without a fault of its disk."""
    _raise_limit_of_open_files()
    with ExitStack() as first:
        # The fork precedes all locks and threads.
        rewriter = RewritingProcess()
        first.callback(rewriter.close)
        record_into(config.record_decisions, "bookie")
        _run(config, rewriter, foreground)


def _run(config: BookieConfig, rewriter: RewritingProcess, foreground: Foreground | None) -> None:
    with DirectoryLocks(config.directories, one_is_enough=True) as locks, ExitStack() as stack:
        ends: queue.SimpleQueue[str | BookKeeperError] = queue.SimpleQueue()
        holder = foreground.holder if foreground else ""
        lease = LeaseServer(locks.usable, config.lease_seconds, config.zookeeper, ends.put, holder)
        # The handlers are set before the process becomes visible.
        ending = [signal.SIGTERM, signal.SIGINT]
        if foreground and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # The terminal closes. ``nohup`` ignores it.
            ending.append(signal.SIGHUP)
        for number in ending:
            signal.signal(number, lambda number, _: lease.stop(signal.Signals(number).name))
        lease.start()
        stack.callback(lease.close)
        try:
            _boot_and_serve(config, locks, lease, stack, ends, rewriter, foreground)
        except _StopRequested as stop:
            log.info("stopping: %s", stop)
        finally:
            _give_up_after(STOP_SECONDS_MAX, foreground.given_up if foreground else 1)


class _StopRequested(Exception):
    """The bookie has to end, in any phase."""


def _boot_and_serve(
    config: BookieConfig,
    locks: DirectoryLocks,
    lease: LeaseServer,
    stack: ExitStack,
    ends: queue.SimpleQueue[str | BookKeeperError],
    rewriter: RewritingProcess,
    foreground: Foreground | None,
) -> None:
    def phase(name: str, **facts: object) -> None:
        if not ends.empty():
            _end(ends.get())
        log.info("%s", name)
        lease.update(phase=name, **facts)

    probes = Probes(lambda: lease.phase)
    lease.probes = {"health": probes.why_unhealthy, "ready": probes.why_not_ready}
    metrics_port, figures = _answer_http(config, probes, stack) if config.metrics_port else (0, None)
    incarnation = secrets.randbits(63) | 1
    phase("connecting to the metadata store", incarnation=incarnation)
    first_start = not locks.unusable and not any(map(has_cookie, config.directories))
    store = ZooKeeperStore(
        config.zookeeper,
        timeout_seconds=config.zookeeper_timeout_seconds,
        session_timeout_seconds=config.zookeeper_session_timeout_seconds,
        begin=LedgerManager.HIERARCHICAL if first_start else None,
    )
    stack.callback(store.close)
    phase("checking cookies")
    identity = Identity(config, store, locks.unusable)
    cookie = identity.cookie
    is_bookie(cookie.bookie_id)
    phase("opening storage", bookie_id=cookie.bookie_id)
    storage = _open_storage(config, store, identity, stack, phase)
    storage.when_none_is_left(lambda why: ends.put(StorageError(why)))
    storage.broken = lambda why: ends.put(
        BookieError(f"{why}; start the bookie again, and report this with the lines above, since it is a defect")
    )
    suit_a_bookie()
    storage.holdings.made_objects = gc.freeze
    phase("listening")
    if why := open_to_strangers(config):
        log.warning("%s", why)
    server = BookieServer(config, storage, cookie.bookie_id, incarnation, metadata=store, rewriter=rewriter)
    server.version = bookspark.__version__
    server.keeper = lease.keeper
    requests = RequestLoop(server)
    address = requests.start()
    stack.callback(requests.stop)
    if metrics_port:
        server.metrics_address = address_text(split_address(server.address)[0], metrics_port)
    bookkeeper_address: str | UnsetType = UNSET
    if config.bookkeeper_port:
        bookkeeper_address = _serve_bookkeepers_clients(config, server, requests, store, stack)
    phase("registering", address=address)
    registration = BookieRegistration(
        cookie.bookie_id,
        server.address,
        incarnation,
        socket.gethostname(),
        os.getpid(),
        journal_write_data=config.journal_write_data,
        rack=config.rack,
        labels=config.labels,
        bookkeeper_address=bookkeeper_address,
    )
    home = BookieHome(registration.host, config.directories, registration.rack, registration.labels)
    note_home(store, cookie.bookie_id, home)
    registrar = Registrar(store, registration, storage, cookie, ends.put)
    registrar.register()
    stack.callback(registrar.unregister)
    server.fetch = _fetch(config, store, storage, requests.post, stack)
    server.ask_others = OtherCopies(lambda: BookKeeper(config.zookeeper, **_as_client(config)))
    if config.heal_lossy_boots and storage.lossy_boots.healed_boot < storage.lossy_boots.mark.boot:
        server.healing_status = _heal(config, OwnBookie(cookie.bookie_id, storage, requests.post), stack)
    if figures is not None:
        figures(requests.post, server, store)
    probes.serves(
        requests.post,
        lambda: [one.path for one in storage.holdings.live if one.commit.ended],
        registrar.why_not_registered,
    )
    threading.Thread(target=_warn_of_exposure, args=(store,), name="exposure", daemon=True).start()
    phase(SERVING)
    if foreground:
        foreground.serving(registration, metrics_port)
    _end(_first(ends))


def open_to_strangers(config: BookieConfig) -> str:
    """Warning if the bookie serves unauthenticated remote clients, or has a secret without TLS off loopback, else ""."""
    if where := config.open_secret():
        return f"the bookie has a secret and no TLS, and {where} is not loopback. {STANDS_BETWEEN}"
    if config.shared_secret_file or config.tls_client_ca or is_loopback(config.host):
        return ""
    return (
        f"the bookie listens on {config.host}, and asks nobody who he is: whoever reaches it may read all entries, fill the "
        "disks and switch it to read-only; set shared_secret_file, or tls_certificate with tls_client_ca (docs/security.md)"
    )


def _warn_of_exposure(store: ZooKeeperStore) -> None:
    """Warn of ZooKeeper's doors beside its ACLs, once, off the boot's way."""
    try:
        for door in store.exposure().doors():
            log.warning("%s", door)
    except MetadataStoreError as error:
        log.info("nobody knows whether ZooKeeper is open to strangers: %s", error)


def _first(ends: queue.SimpleQueue[str | BookKeeperError]) -> str | BookKeeperError:
    """Wait for the reason of the bookie's end, in pieces: after a halt of the process a signal may reach any of its threads, and
    its handler runs in this thread, when it wakes."""
    while True:
        with suppress(queue.Empty):
            return ends.get(timeout=_SIGNALS_SEEN_SECONDS)


def _end(why: str | BookKeeperError) -> NoReturn:
    raise why if isinstance(why, BookKeeperError) else _StopRequested(why)


def _open_storage(
    config: BookieConfig, store: MetadataStore, identity: Identity, stack: ExitStack, phase: Callable[[str], None]
) -> Storage:
    """Read all directories. Held ledgers unknown to the metadata are kept and reported. After a loss, fence the affected ledgers;
    at the first boot, note which ledgers are older than this bookie. Then stamp the cookie, in the directories and last in the
    metadata store, so that an interrupted boot starts again from its beginning."""
    bookie_id = identity.cookie.bookie_id
    notes = ReachNotes(store, bookie_id)
    # It runs after the storage is closed.
    stack.callback(notes.end)
    storage = Storage(
        config,
        boot_id=Path(_BOOT_ID).read_text().strip() if config.trust_boot_id else "",
        check_fence=fence_check(store, bookie_id),
        check_first=first_request_check(store, bookie_id),
        check_key=key_check(store),
        without=identity.unreadable,
    ).open(notes.noted)
    stack.callback(storage.close)
    # Before the first mark, the highest id given out.
    keep_lost_records(storage, store)
    if why_lossy(storage.lossy_boots, identity.lost):
        phase("lossy boot")
        fence_what_may_be_lost(storage, store, bookie_id, identity.lost, phase)
        identity.stamp()
        storage.end_phase_one()
    else:
        storage.lossy_boots.end_absence()
        storage.lossy_boots.note_first_mark(store.highest_ledger_id())
        identity.stamp()
    notes.follow(lambda: {directory.path: directory.reach() for directory in storage.live})
    storage.kept_files.others += identity.kept_cookies(storage.directories)
    return storage


def _serve_bookkeepers_clients(
    config: BookieConfig,
    server: BookieServer,
    requests: RequestLoop,
    store: MetadataStore,
    stack: ExitStack,
) -> str:
    """Open the port for clients of Apache BookKeeper; returns its address for them, ``host:port``. Imports their protocol only
    here."""
    from bookspark.servers.bookkeeper.digest_types import read_and_note
    from bookspark.servers.bookkeeper.door import BookKeeperDoor

    door = BookKeeperDoor(config, server, read_and_note(store))
    _, port = requests.run(door.start())
    stack.callback(lambda: requests.run(door.stop()))
    return address_text(split_address(server.address)[0], port)


def _fetch(config: BookieConfig, store: MetadataStore, storage: Storage, post: Post, stack: ExitStack) -> Fetch | None:
    """The handler of FETCH; None if this bookie can't be a client of the others: then repairs copy through themselves."""
    try:
        fetching = Fetching(store, ClientConfig(**_as_client(config)), storage, post)
    except ConfigurationError as error:
        log.warning("this bookie fetches nothing for repairs, which then cost more: %s", error)
        return None
    stack.callback(fetching.close)
    return fetching.fetch


def _as_client(config: BookieConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "shared_secret_file": config.shared_secret_file,
        "shared_secret_without_tls": config.shared_secret_without_tls,
    }
    if config.tls_certificate:
        options |= {"tls_ca": config.tls_ca or config.tls_client_ca, "tls_roles": config.tls_roles}
        if config.tls_client_certificate:
            options |= {"tls_certificate": config.tls_client_certificate, "tls_key": config.tls_client_key}
        elif not config.tls_roles:
            options |= {"tls_certificate": config.tls_certificate, "tls_key": config.tls_key}
    return options


def _heal(config: BookieConfig, bookie: OwnBookie, stack: ExitStack) -> Callable[[], HealingStatus]:
    """Start phase two of a lossy boot; returns the function of its status."""
    healing = Healing(bookie, BookKeeper(config.zookeeper, **_as_client(config)), config.healing_bytes_per_second)
    stack.callback(healing.stop)
    healing.start()
    return healing.status


def _raise_limit_of_open_files() -> None:
    """Raise the limit to the system's: connections count as open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may refuse the limit that it reports.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _answer_http(
    config: BookieConfig, probes: Probes, stack: ExitStack
) -> tuple[int, Callable[[Post, BookieServer, ZooKeeperStore], None]]:
    """Answer probes from the start of the boot. Returns the port, and the function that adds Prometheus' page once there are
    figures. Imports Prometheus' client only here."""
    with extra_needed("metrics_port"):
        from bookspark.servers.daemon.metrics import bookie_figures, metrics_page
    pages = {"/health": probes.health, "/ready": probes.ready}
    pages["/metrics"] = lambda: Page(503, f"no figures yet: {probes.why_not_ready()}\n".encode())
    web = WebServer(config.host, max(0, config.metrics_port), pages, tries=PORTS, names=_names(config))
    stack.callback(web.close)

    def figures(post: Post, server: BookieServer, store: ZooKeeperStore) -> None:
        pages["/metrics"] = metrics_page(post, partial(bookie_figures, server), store.connection.figures.figures)

    return web.port, figures


def _names(config: BookieConfig) -> tuple[str, ...]:
    """Names of this host, for requests over HTTP."""
    told = advertised(config, address_text(config.host, 0), config.bookie_id)
    return config.host, split_address(told)[0]


def _give_up_after(seconds: float, status: int) -> None:
    """End the process with ``status`` after ``seconds``, unless it ends before."""

    def give_up() -> None:
        print(
            f"bookspark bookie: the clean stop took more than {seconds:g} s and was given up",
            file=sys.stderr,
            flush=True,
        )
        os._exit(status)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
