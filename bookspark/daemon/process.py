"""A bookie process: boot phases, requests, lease and clean stop put together. Nothing is decided here.

Law: each phase is finished before the next begins, and one that fails keeps the bookie down (BookKeeper's own boot
drops that result). The locks are taken before anything is read and let go after everything is written::

    lock directories → answer the lease → metadata store → cookies → storage → listen → register → serving
    unregister → stop listening → close storage (checkpoint) → close the lease socket → unlock

Everything is imported here, before the first phase: Spark may delete the files of a shipped package while the bookie
lives on. Source: design.md section 3; BP-46, boot sequence.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 (getaddrinfo imports it at its first call)
import gc
import logging
import os
import queue
import secrets
import signal
import socket
import sys
import threading
from contextlib import ExitStack

from bookspark.bookie.config import BookieConfig
from bookspark.bookie.server import BookieServer
from bookspark.bookie.storage import Storage
from bookspark.daemon.directories import DirectoryLocks, holds_data, read_cookie, write_cookie
from bookspark.daemon.lease_server import SERVING, LeaseServer
from bookspark.daemon.request_loop import RequestLoop
from bookspark.metadata.store import BookieRegistration, MetadataStore
from bookspark.metadata.zookeeper import ZooKeeperStore
from bookspark.protocol.cookie import Cookie, CookieCopies, check_cookies
from bookspark.protocol.errors import MetadataStoreError

STOP_SECONDS_MAX = 50.0
"""A stop that takes longer is given up, so that the locks come free; the next boot finds an unclean shutdown."""

log = logging.getLogger(__name__)


def run_bookie(config: BookieConfig) -> None:
    """Boot, serve until the lease lapses, a stop is asked for or SIGTERM comes, and stop cleanly."""
    with DirectoryLocks(config.directories), ExitStack() as stack:
        ends: queue.SimpleQueue[str] = queue.SimpleQueue()
        lease = LeaseServer(config.directories[0], config.lease_seconds, config.zookeeper, ends.put)
        lease.start()
        stack.callback(lease.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: lease.stop(signal.Signals(number).name))
        try:
            _boot_and_serve(config, lease, stack, ends)
        except _StopRequested as stop:
            log.info("stopping: %s", stop)
        finally:
            _give_up_after(STOP_SECONDS_MAX)


class _StopRequested(Exception):
    """Somebody wants it to end, in whatever phase."""


def _boot_and_serve(config: BookieConfig, lease: LeaseServer, stack: ExitStack, ends: queue.SimpleQueue[str]) -> None:
    def phase(name: str, **facts: object) -> None:
        if not ends.empty():
            raise _StopRequested(ends.get())
        log.info("%s", name)
        lease.update(phase=name, **facts)

    incarnation = secrets.randbits(63) | 1
    phase("connecting to the metadata store", incarnation=incarnation)
    store = ZooKeeperStore(config.zookeeper, timeout_seconds=config.zookeeper_timeout_seconds)
    stack.callback(store.close)
    phase("checking cookies")
    cookie = _checked_cookie(config, store)
    phase("opening storage", bookie_id=cookie.bookie_id)
    storage = Storage(config).open()
    stack.callback(storage.close)
    gc.freeze()  # a million ledgers are not walked at each collection
    phase("listening")
    requests = RequestLoop(BookieServer(config, storage, cookie.bookie_id, incarnation))
    address = requests.start()
    stack.callback(requests.stop)
    phase("registering", address=address)
    registration = BookieRegistration(cookie.bookie_id, address, incarnation, socket.gethostname(), os.getpid())
    store.register_bookie(registration)
    stack.callback(_unregister, store, cookie.bookie_id)
    phase(SERVING)
    raise _StopRequested(ends.get())


def _checked_cookie(config: BookieConfig, store: MetadataStore) -> Cookie:
    """Find out who this is, and stamp what a first boot stamps: directories, then the metadata store."""
    found = {directory: read_cookie(directory) for directory in config.directories}
    ids = {cookie.bookie_id for cookie in found.values() if cookie is not None}
    recorded = {bookie_id: store.read_cookie(bookie_id) for bookie_id in ids}
    copies = CookieCopies(
        in_directories=found,
        in_metadata={bookie_id: record.value if record else None for bookie_id, record in recorded.items()},
        with_data=[directory for directory in config.directories if holds_data(directory)],
    )
    fresh = Cookie(f"bookie-{secrets.token_hex(4)}", config.directories, store.instance_id, secrets.token_hex(8))
    stamps = check_cookies(copies, fresh, config.zookeeper)
    for directory in stamps.directories:
        write_cookie(directory, stamps.cookie)
    if stamps.metadata:
        store.write_cookie(stamps.cookie, None)
    return stamps.cookie


def _unregister(store: MetadataStore, bookie_id: str) -> None:
    try:
        store.unregister_bookie(bookie_id)
    except MetadataStoreError as error:
        log.warning("not unregistered (the session's end will do it): %s", error)


def _give_up_after(seconds: float) -> None:
    """End the process, whatever hangs, unless it ends by itself before."""

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
