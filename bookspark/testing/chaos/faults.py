"""What chaos does to a cluster: one fault after the other, drawn from a seed, each undone after a while.

Law: a fault is told to the history before it begins and after it was undone; a bookie has one fault of its process at a time;
when ``run`` returns, every bookie that it touched serves again. Everything that is drawn comes from the seed; what the draws
meet does not, as processes and networks keep their own time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from bookspark.local import LocalBookie
from bookspark.testing.cluster import FaultyCluster
from bookspark.testing.history import Event, History, Kind
from bookspark.testing.wire_faults import Message

_FAULT_SECONDS_MAX = 3.0
_PAUSE_SECONDS_MAX = 1.0
_DELAY_SECONDS_MAX = 0.5
_UNLUCKY = 0.2
"""Share of the messages that a fault of the wire hits."""

Fault = Callable[["Faults", LocalBookie], contextlib.AbstractContextManager[None]]


class BookieLocks:
    """One lock a bookie: whoever breaks its process holds it."""

    def __init__(self, bookies: list[LocalBookie]) -> None:
        self._locks = {id(bookie): threading.Lock() for bookie in bookies}

    @contextlib.contextmanager
    def held(self, *bookies: LocalBookie) -> Iterator[bool]:
        """Whether all could be had at once."""
        with contextlib.ExitStack() as stack:
            for bookie in bookies:
                lock = self._locks[id(bookie)]
                if not lock.acquire(blocking=False):
                    yield False
                    return
                stack.callback(lock.release)
            yield True


class Faults:
    """One thread of faults; several may run at once on the same ``locks``."""

    def __init__(
        self, cluster: FaultyCluster, clients: list[str], history: History, locks: BookieLocks, random: Random
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._clients = clients
        self._history = history
        self._locks = locks
        self._random = random
        self._coins = Random(random.random())  # tossed in the wire's thread

    def run(self, stop: threading.Event) -> None:
        """Break and mend until ``stop``. Raises BookieError if a bookie does not come back."""
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
        self._history.record(Event(Kind.FAULT, "faults", note=what))

    def _unlucky(self, message: Message) -> bool:
        return self._coins.random() < _UNLUCKY

    # -- of a process

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

    # -- of the wire

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
        """They arrive when the fault is over, however late."""
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
"""By name, with their weights."""
_OF_ALL = {"power cut of all"}
