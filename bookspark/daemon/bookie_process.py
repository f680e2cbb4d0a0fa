"""A bookie process: puts boot phases, requests, lease and clean stop together. Nothing is decided here.

Law: each phase ends before the next one begins, and a phase that fails keeps the bookie down. A bookie whose last directory fails
ends, with an error. The locks are taken before anything
is read, and released after everything is written::

    lock directories → answer the lease → metadata store → cookies → storage → (lossy boot) → listen → register → serving
    unregister → stop listening → close storage (checkpoint) → close the lease socket → unlock

Everything is imported before the first phase, because Spark may delete the files of a shipped package while the bookie lives on.

Source: docs/decisions/bookies-outlive-tasks.md; BP-46, "The Full Boot-Up Sequence".
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 (getaddrinfo imports it at its first call)
import gc
import logging
import os
import queue
import resource
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from bookspark.autorecovery.own_bookie import OwnBookie
from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.commit.commit_thread import Post
from bookspark.bookie.serving.server import BookieServer
from bookspark.bookie.space.rewriting_process import RewritingProcess
from bookspark.bookie.storage import Storage
from bookspark.daemon.directories import DirectoryLocks
from bookspark.daemon.identity import Identity
from bookspark.daemon.lease_server import SERVING, LeaseServer
from bookspark.daemon.lossy_boot import fence_check, fence_what_may_be_lost, why_lossy
from bookspark.daemon.registrar import Registrar
from bookspark.daemon.request_loop import RequestLoop
from bookspark.errors import StorageError
from bookspark.extras import extra_needed
from bookspark.metadata.records.bookie_registration import BookieRegistration
from bookspark.metadata.store import MetadataStore
from bookspark.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.wire.messages import BookieStatus, HealingStatus

STOP_SECONDS_MAX = 50.0
"""A stop that takes longer is given up, so that the locks come free. The next boot finds an unclean shutdown."""

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

log = logging.getLogger(__name__)


def run_bookie(config: BookieConfig) -> None:
    """Boot; serve until the lease lapses, a stop is asked for, or SIGTERM comes; stop cleanly. Raises BookKeeperError if a phase
    fails."""
    _raise_limit_of_open_files()
    with ExitStack() as first:
        # The rewriting process is forked before there is a lock or a thread.
        rewriter = RewritingProcess()
        first.callback(rewriter.close)
        _run(config, rewriter)


def _run(config: BookieConfig, rewriter: RewritingProcess) -> None:
    with DirectoryLocks(config.directories, one_is_enough=True) as locks, ExitStack() as stack:
        ends: queue.SimpleQueue[str | StorageError] = queue.SimpleQueue()
        lease = LeaseServer(locks.usable, config.lease_seconds, config.zookeeper, ends.put)
        # The handlers are set before anybody can know of the process.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: lease.stop(signal.Signals(number).name))
        lease.start()
        stack.callback(lease.close)
        try:
            _boot_and_serve(config, locks, lease, stack, ends, rewriter)
        except _StopRequested as stop:
            log.info("stopping: %s", stop)
        finally:
            _give_up_after(STOP_SECONDS_MAX)


class _StopRequested(Exception):
    """The bookie is to end, in whatever phase it is."""


def _boot_and_serve(
    config: BookieConfig,
    locks: DirectoryLocks,
    lease: LeaseServer,
    stack: ExitStack,
    ends: queue.SimpleQueue[str | StorageError],
    rewriter: RewritingProcess,
) -> None:
    def phase(name: str, **facts: object) -> None:
        if not ends.empty():
            _end(ends.get())
        log.info("%s", name)
        lease.update(phase=name, **facts)

    incarnation = secrets.randbits(63) | 1
    phase("connecting to the metadata store", incarnation=incarnation)
    store = ZooKeeperStore(
        config.zookeeper,
        timeout_seconds=config.zookeeper_timeout_seconds,
        session_timeout_seconds=config.zookeeper_session_timeout_seconds,
    )
    stack.callback(store.close)
    phase("checking cookies")
    identity = Identity(config, store, locks.unusable)
    cookie = identity.cookie
    phase("opening storage", bookie_id=cookie.bookie_id)
    storage = _open_storage(config, store, identity, stack, phase)
    storage.when_none_is_left(lambda why: ends.put(StorageError(why)))
    # The garbage collector need not walk a million ledgers each time.
    gc.freeze()
    phase("listening")
    server = BookieServer(config, storage, cookie.bookie_id, incarnation, metadata=store, rewriter=rewriter)
    requests = RequestLoop(server)
    address = requests.start()
    stack.callback(requests.stop)
    phase("registering", address=address)
    told = config.advertised_address or address
    registration = BookieRegistration(
        cookie.bookie_id,
        told,
        incarnation,
        socket.gethostname(),
        os.getpid(),
        journal_write_data=config.journal_write_data,
        rack=config.rack,
        labels=config.labels,
    )
    registrar = Registrar(store, registration, storage)
    registrar.register()
    stack.callback(registrar.unregister)
    if config.heal_lossy_boots and storage.lossy_boots.healed_boot < storage.lossy_boots.mark.boot:
        server.healing_status = _heal(config, OwnBookie(cookie.bookie_id, storage, requests.post), stack)
    if config.metrics_port:
        _answer_metrics(config, requests.post, server.status, stack)
    phase(SERVING)
    _end(ends.get())


def _end(why: str | StorageError) -> NoReturn:
    """End cleanly, or with an error if the bookie can't serve any more."""
    if isinstance(why, StorageError):
        raise why
    raise _StopRequested(why)


def _open_storage(
    config: BookieConfig, store: MetadataStore, identity: Identity, stack: ExitStack, phase: Callable[[str], None]
) -> Storage:
    """Read everything that the directories hold. After a loss, fence what may be lost before the cookie is stamped."""
    if not identity.lost:
        identity.stamp()
    bookie_id = identity.cookie.bookie_id
    storage = Storage(
        config,
        boot_id=Path(_BOOT_ID).read_text().strip() if config.trust_boot_id else "",
        check_fence=fence_check(store, bookie_id),
        without=identity.unreadable,
    ).open()
    stack.callback(storage.close)
    if why_lossy(storage.lossy_boots, identity.lost):
        phase("lossy boot")
        fence_what_may_be_lost(storage, store, bookie_id, identity.lost, phase)
        if identity.lost:
            identity.stamp()
        storage.lossy_boots.phase_one_is_over()
    return storage


def _heal(config: BookieConfig, bookie: OwnBookie, stack: ExitStack) -> Callable[[], HealingStatus]:
    """Start phase two of a lossy boot; returns what tells how far it is. The client is imported only here, because it takes as
    much memory as the bookie."""
    from bookspark.autorecovery.healing import Healing
    from bookspark.client import BookKeeper

    security = {"shared_secret_file": config.shared_secret_file}
    if config.tls_certificate:
        ca = config.tls_ca or config.tls_client_ca
        security |= {"tls_ca": ca, "tls_certificate": config.tls_certificate, "tls_key": config.tls_key}
    healing = Healing(bookie, BookKeeper(config.zookeeper, **security), config.healing_bytes_per_second)
    stack.callback(healing.stop)
    healing.start()
    return healing.status


def _raise_limit_of_open_files() -> None:
    """Raise the limit to as many as the system allows: the connections of clients count as open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may refuse the very limit that it reports.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _answer_metrics(config: BookieConfig, post: Post, status: Callable[[], BookieStatus], stack: ExitStack) -> None:
    """Answer Prometheus. Its client is imported only if metrics are wanted."""
    with extra_needed("metrics_port"):
        from bookspark.daemon.metrics import Metrics

    stack.callback(Metrics(config.host, config.metrics_port, post, status).close)


def _give_up_after(seconds: float) -> None:
    """End the process after ``seconds``, whatever hangs, unless it ends by itself before."""

    def give_up() -> None:
        print(
            f"bookspark bookie: the clean stop took more than {seconds:g} s and was given up",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
