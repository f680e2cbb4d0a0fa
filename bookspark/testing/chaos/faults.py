"""What chaos does to a cluster: one fault after the other, drawn from a seed, each undone after a while.

Law: the history is told of a fault before it begins and after it was undone. A bookie has one fault of its process at a time.
When ``run`` returns, every bookie that it touched serves again. All that is drawn comes from the seed; the moment at which a
fault hits does not, because processes and networks keep their own time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from bookspark.local import LocalBookie
from bookspark.testing.faulty_cluster import FaultyCluster
from bookspark.testing.history import Event, EventKind, History
from bookspark.testing.wire_faults import Message

_FAULT_SECONDS_MAX = 3.0
_PAUSE_SECONDS_MAX = 1.0
_DELAY_SECONDS_MAX = 0.5
_UNLUCKY = 0.2
"""The share of messages that a fault of the wire hits."""

Fault = Callable[["Faults", LocalBookie], contextlib.AbstractContextManager[None]]


class BookieLocks:
    """One lock for each bookie. Whoever breaks the bookie's process holds it."""

    def __init__(self, bookies: list[LocalBookie]) -> None:
        self._locks = {id(bookie): threading.Lock() for bookie in bookies}

    @contextlib.contextmanager
    def held(self, *bookies: LocalBookie) -> Iterator[bool]:
        """Hold the locks of ``bookies``, unless one of them is taken. Yields whether all are held; it does not wait."""
        with contextlib.ExitStack() as stack:
            for bookie in bookies:
                lock = self._locks[id(bookie)]
                if not lock.acquire(blocking=False):
                    yield False
                    return
                stack.callback(lock.release)
            yield True


class Faults:
    """One sequence of faults, for one thread. Several may run at once on the same ``locks``. ``counts`` has how many there were
    of each kind."""

    def __init__(
        self, cluster: FaultyCluster, clients: list[str], history: History, locks: BookieLocks, random: Random
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._clients = clients
        self._history = history
        self._locks = locks
        self._random = random
        # For draws in the wire's thread.
        self._coins = Random(random.random())

    def run(self, stop: threading.Event) -> None:
        """Break and mend until ``stop`` is set. Raises BookieError if a bookie does not come back."""
        names, weights = zip(*((name, weight) for name, (weight, _) in _FAULTS.items()), strict=True)
        while not stop.wait(self._random.uniform(0.0, _PAUSE_SECONDS_MAX)):
            (name,) = self._random.choices(names, weights)
            bookie = self._random.choice(self._cluster.bookies)
            seconds = self._random.uniform(0.0, _FAULT_SECONDS_MAX)
            broken = self._cluster.bookies if name in _OF_ALL else [bookie]
            with self._locks.held(*broken) as free:
                if free:
                    self._break(name, bookie, seconds, stop)

    def _break(self, name: str, bookie: LocalBookie, seconds: float, stop: threading.Event) -> None:
        self.counts[name] += 1
        about = "all bookies" if name in _OF_ALL else bookie.bookie_id
        self._tell(f"{name}: {about} for {seconds:.2f} s")
        with _FAULTS[name][1](self, bookie):
            stop.wait(seconds)
        self._tell(f"{name}: {about} is over")

    def _tell(self, what: str) -> None:
        self._history.record(Event(EventKind.FAULT, "faults", note=what))

    def _unlucky(self, message: Message) -> bool:
        return self._coins.random() < _UNLUCKY

    # -- faults of a process

    @contextlib.contextmanager
    def _killed(self, bookie: LocalBookie) -> Iterator[None]:
        bookie.kill()
        yield
        bookie.start()

    @contextlib.contextmanager
    def _power_lost(self, bookie: LocalBookie) -> Iterator[None]:
        bookie.kill()
        bookie.lose_unsynced()
        yield
        bookie.start()

    @contextlib.contextmanager
    def _restarted(self, bookie: LocalBookie) -> Iterator[None]:
        bookie.stop()
        yield
        bookie.start()

    @contextlib.contextmanager
    def _suspended(self, bookie: LocalBookie) -> Iterator[None]:
        bookie.suspend()
        yield
        bookie.resume()

    @contextlib.contextmanager
    def _all_lose_power(self, _: LocalBookie) -> Iterator[None]:
        for bookie in self._cluster.bookies:
            bookie.kill()
            bookie.lose_unsynced()
        yield
        for bookie in self._cluster.bookies:
            bookie.start()

    # -- faults of the wire

    @contextlib.contextmanager
    def _link_cut(self, bookie: LocalBookie) -> Iterator[None]:
        with self._cluster.wire.cut(bookie.bookie_id, self._random.choice(self._clients)):
            yield

    @contextlib.contextmanager
    def _all_links_cut(self, bookie: LocalBookie) -> Iterator[None]:
        with self._cluster.wire.cut(bookie.bookie_id):
            yield

    @contextlib.contextmanager
    def _silent(self, bookie: LocalBookie) -> Iterator[None]:
        with self._cluster.wire.drop(bookie=bookie.bookie_id, response=self._random.random() < 0.5):
            yield

    @contextlib.contextmanager
    def _messages_lost(self, bookie: LocalBookie) -> Iterator[None]:
        response = self._random.random() < 0.5
        with self._cluster.wire.drop(bookie=bookie.bookie_id, response=response, where=self._unlucky):
            yield

    @contextlib.contextmanager
    def _messages_late(self, bookie: LocalBookie) -> Iterator[None]:
        response = self._random.random() < 0.5
        with self._cluster.wire.delay(
            _DELAY_SECONDS_MAX, bookie=bookie.bookie_id, response=response, where=self._unlucky, random=self._coins
        ):
            yield

    @contextlib.contextmanager
    def _messages_twice(self, bookie: LocalBookie) -> Iterator[None]:
        with self._cluster.wire.duplicate(
            seconds=self._random.uniform(0.0, _DELAY_SECONDS_MAX), bookie=bookie.bookie_id, where=self._unlucky
        ):
            yield

    @contextlib.contextmanager
    def _messages_parked(self, bookie: LocalBookie) -> Iterator[None]:
        """Messages are held back, and arrive when the fault is over."""
        with self._cluster.wire.park(bookie=bookie.bookie_id, where=self._unlucky):
            yield


_FAULTS: dict[str, tuple[int, Fault]] = {
    "kill": (6, Faults._killed),
    "power cut": (4, Faults._power_lost),
    "restart": (3, Faults._restarted),
    "suspend": (6, Faults._suspended),
    "power cut of all": (1, Faults._all_lose_power),
    "link cut": (5, Faults._link_cut),
    "all links cut": (3, Faults._all_links_cut),
    "silence": (3, Faults._silent),
    "messages lost": (4, Faults._messages_lost),
    "messages late": (4, Faults._messages_late),
    "messages twice": (4, Faults._messages_twice),
    "messages parked": (4, Faults._messages_parked),
}
"""By name, each with its weight: how often it is drawn in comparison with the others."""
_OF_ALL = {"power cut of all"}
"""The faults that hit the processes of all bookies."""
