"""A cluster in memory, and processes that apply its changes and stand still before any of their requests.

A request is a call of the metadata store, a request to a bookie, or a stop or start of a bookie's process. Everything but the
cluster's bookies and their hands is production code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow

from bookspark.errors import BookieError, ReadError
from bookspark.operations.changes.applying import Applying
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.bookie.read_only_switch import NEVER_SWITCHED, switched
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.metadata.memory.memory_store import MemoryStore, World
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.messages import BookieStatus
from tests.awaiting import SECONDS_MAX
from tests.local_hands import LocalHands

BOOKIES = ("a", "b", "c")
QUICK = ChangesConfig(poll_seconds=0.001, confirm_seconds=0.001, stall_seconds=60.0)
_MANY = 1 << 30


class Process:
    """Counts the requests of one process, and lets it stand still before one."""

    def __init__(self, requests: int = _MANY) -> None:
        """``requests``: it stands still after so many."""
        self.starts: Callable[[], None] = lambda: None
        """Called before each start of a bookie, which is down then."""
        self.wait: Callable[[], object] = self.request
        """Called while another process has the bookie in hand."""
        self._left = requests
        self._stands = self._over = False
        self._changed = threading.Condition()

    def request(self) -> None:
        with self._changed:
            while self._left <= 0:
                self._stands = True
                self._changed.notify_all()
                self._changed.wait()
            self._left -= 1

    def begin(self, work: Callable[[], object]) -> None:
        """Work on a thread until the process stands still or ends."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.error: BaseException | None = error
            with self._changed:
                self._over = True
                self._changed.notify_all()

        self.error = None
        self._thread = threading.Thread(target=guarded, daemon=True)
        self._thread.start()
        self._wait()

    def go_on(self, requests: int = _MANY) -> bool:
        """Make so many more requests. True if the process has ended."""
        with self._changed:
            self._left, self._stands = requests, False
            self._changed.notify_all()
        return self._wait()

    def _wait(self) -> bool:
        with self._changed:
            assert self._changed.wait_for(lambda: self._stands or self._over, SECONDS_MAX)
            return self._over


class Store(MemoryStore):
    """A process's session of the metadata store."""

    def __init__(self, world: World, process: Process) -> None:
        self._join(world)
        self.process = process

    @contextmanager
    def _open(self) -> Iterator[World]:
        self.process.request()
        with super()._open() as world:
            yield world

    def expire(self) -> None:
        """End the session unnoticed: its lock goes, and the process may go on with a new session."""
        with self._world.lock:
            for key in [key for key, owner in self._world.ephemerals.items() if owner is self]:
                self._world.remove(key)


class Bookie:
    """One bookie, with a process that stops and starts at once."""

    def __init__(self, bookie_id: str, cluster: Cluster) -> None:
        self.bookie_id, self.directories = bookie_id, ("/none",)
        self.cluster = cluster
        self.in_hand = threading.Lock()
        self.up, self.incarnation, self.switch = False, 0, NEVER_SWITCHED
        self.start()

    def start(self) -> None:
        if not self.up:
            self.up, self.incarnation = True, self.incarnation + 1
            self.cluster.store.register_bookie(BookieRegistration(self.bookie_id, "h:1", self.incarnation))

    def stop(self) -> None:
        """Checks the promise: an ack quorum of each entry's copies, two of three, stays up."""
        self.up = False
        self.cluster.store.unregister_bookie(self.bookie_id)
        if sum(bookie.up for bookie in self.cluster.bookies.values()) < 2:
            self.cluster.broken.append(f"{self.bookie_id} went down, and another bookie is down")


class InHand:
    """The lock of a bookie, as one process uses it."""

    def __init__(self, lock: threading.Lock, process: Process) -> None:
        self._lock, self._process = lock, process

    def acquire(self, blocking: bool = True) -> bool:
        self._process.request()
        while not self._lock.acquire(blocking=False):
            self._process.wait()
            if not blocking:
                return False
        return True

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class HandedBookie:
    """A bookie in the hands of one process."""

    def __init__(self, bookie: Bookie, process: Process) -> None:
        self._bookie, self._process = bookie, process
        self.bookie_id, self.directories = bookie.bookie_id, bookie.directories

    def start(self) -> None:
        self._process.starts()
        self._process.request()
        self._bookie.start()

    def stop(self) -> None:
        self._process.request()
        self._bookie.stop()


class Context:
    config = ClientConfig(metadata_session_timeout_seconds=2.0)


class Client:
    """A stand-in for the ``BookKeeper`` of one process."""

    def __init__(self, cluster: Cluster, process: Process) -> None:
        self._cluster, self._process = cluster, process
        self.context = Context()
        self.metadata = Store(cluster.world, process)

    def bookie_status(self, bookie_id: str) -> BookieStatus:
        self._process.request()
        bookie = self._cluster.bookies[bookie_id]
        if not bookie.up:
            raise ReadError(f"bookie {bookie_id} did not answer")
        return BookieStatus(
            bookie_id,
            bookie.incarnation,
            1,
            [],
            1,
            0,
            0,
            read_only=bookie.switch.read_only,
            read_only_by_change=bookie.switch.by_change,
            change_order=bookie.switch.order,
        )

    def switch_read_only(self, bookie_id: str, read_only: bool, order: int = 0) -> None:
        self._process.request()
        bookie = self._cluster.bookies[bookie_id]
        setting = switched(bookie.switch, read_only, order)
        if not bookie.up or setting is None:
            raise BookieError(f"bookie {bookie_id} did not do it")
        bookie.switch = setting

    def list_ranges(self, bookie_id: str, ledger_id: int | None = None) -> pyarrow.Table:
        self._process.request()
        if not self._cluster.bookies[bookie_id].up:
            raise ReadError(f"bookie {bookie_id} did not answer")
        return pyarrow.table({"ledger_id": [0], "first_entry_id": [0], "last_entry_id": [9]})


class Cluster:
    """Three bookies with one closed ledger."""

    def __init__(self) -> None:
        self.world = World()
        self.store = MemoryStore()
        self.store._world = self.world
        self.broken: list[str] = []
        self.bookies: dict[str, Bookie] = {}
        for name in BOOKIES:
            self.bookies[name] = Bookie(name, self)
            self.store.write_cookie(Cookie(name, ("/d",), "instance", "nonce"), None)
        self.store.create_ledger(LedgerMetadata(0, 3, 3, 2, (Fragment(0, BOOKIES),), LedgerState.CLOSED, 9))

    def applying(self, process: Process) -> tuple[Client, Applying]:
        client = Client(self, process)
        bookies = [HandedBookie(bookie, process) for bookie in self.bookies.values()]
        hands = LocalHands(bookies, {one.bookie_id: InHand(one.in_hand, process) for one in self.bookies.values()})
        return client, Applying(client, hands, QUICK, lambda _: None)  # type: ignore[arg-type]
