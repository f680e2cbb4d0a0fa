"""Chaos: a cluster with random faults of bookies and links while clients work, and a judge of the clients' observations.

A run mends all faults at its end, and reads every ledger a last time. ``bookspark chaos`` runs it from the command line. The seed
repeats all random choices; docs/testing.md is its guide.

Law: a run ends even if a call hangs. A thread that is alive ``END_SECONDS_MAX`` after the last second is a violation,
reported with its stack. The last reading takes longer with more ledgers. A run stops at the first violation.

::

    from bookspark.testing.chaos import Chaos

    result = Chaos(seconds=60.0, seed=7).run()
    assert not result.violations, result.excerpt
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import NamedTuple

from bookspark.errors import BookKeeperError
from bookspark.local import LocalBookie
from bookspark.store.client import BookKeeper
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Seconds, checks_arguments
from bookspark.testing.faulty_cluster import FaultyCluster
from bookspark.testing.history import Event, EventKind, History
from bookspark.testing.recorded import RecordedReader, RecordedWriter
from bookspark.testing.wire_faults import Fault as WireFault
from bookspark.testing.wire_faults import Message
from bookspark.testing.wire_proxy import Cut

# -- Clients: writers, recoverers and readers, each on a thread with a client of its own.
#
# Law: clients behave as users do. A user's error (``BookKeeperError``) is counted, and the client goes on. Any other
# exception, and a call beyond its deadline, is a defect and ends the run.


ADD_SECONDS = 6.0
RECOVERY_SECONDS = 12.0
CLIENT_OPTIONS = {
    "add_timeout_seconds": ADD_SECONDS,
    "answer_timeout_seconds": 1.0,
    "connect_timeout_seconds": 1.0,
    "recovery_timeout_seconds": RECOVERY_SECONDS,
    "quarantine_seconds": 2.0,
}
APPEND_SECONDS_MAX = 60.0
"""A longer append counts as hung. Far above the client's own deadlines, because the machine may be busy."""
_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (5, 3, 2), (5, 5, 3))
_ENTRIES_MAX = (1, 20, 100, 400)
_BURST_MAX = (1, 1, 5, 40)
_PAYLOAD_BYTES_MAX = (20, 20, 200, 5000)
_PAUSE_SECONDS_MAX = 0.1


class Ledgers:
    """The ledgers of the run, and those with a writer now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[int] = []
        self._written: list[int] = []

    def begin(self, ledger_id: int) -> None:
        """Note a created ledger with a writer."""
        with self._lock:
            self._all.append(ledger_id)
            self._written.append(ledger_id)

    def end(self, ledger_id: int) -> None:
        """Note the end of a ledger's writer."""
        with self._lock:
            self._written.remove(ledger_id)

    def every(self) -> list[int]:
        """Ids of all ledgers, in order of creation."""
        with self._lock:
            return list(self._all)

    def pick(self, random: Random, written: bool) -> int | None:
        """Id of a random ledger, or None without a candidate. ``written``: True takes only ledgers with a writer now; False
        takes any, mostly one of the newest."""
        with self._lock:
            if written:
                return random.choice(self._written) if self._written else None
            among = self._all if random.random() < 0.2 else self._all[-20:]
            return random.choice(among) if among else None


class Worker:
    """The loop of a client. ``errors`` counts its errors by type."""

    def __init__(
        self, name: str, connect: Callable[[str], BookKeeper], ledgers: Ledgers, history: History, random: Random
    ) -> None:
        self.name = name
        self.errors: Counter[str] = Counter()
        self._connect = connect
        self._client = connect(name)
        self._ledgers = ledgers
        self._history = history
        self._random = random
        self._observers = 0

    def run(self, stop: threading.Event) -> None:
        """Take turns until ``stop`` is set, then close the client."""
        while not stop.is_set():
            try:
                self._turn(stop)
            except BookKeeperError as error:
                self.errors[type(error).__name__] += 1
                stop.wait(self._random.uniform(0.0, _PAUSE_SECONDS_MAX))
        self._client.close()

    def _turn(self, stop: threading.Event) -> None:
        raise NotImplementedError

    def _observer(self) -> str:
        """A new name: each handle is a separate observer in the history."""
        self._observers += 1
        return f"{self.name}.{self._observers}"

    def _pause(self, stop: threading.Event) -> None:
        stop.wait(self._random.uniform(0.0, _PAUSE_SECONDS_MAX))


class Writer(Worker):
    """Creates and writes ledgers of all shapes. Then it closes the ledger, leaves it open, or dies before the close."""

    def _turn(self, stop: threading.Event) -> None:
        random = self._random
        ensemble_size, write_quorum, ack_quorum = random.choice(_QUORUMS)
        handle = self._client.create_ledger(ensemble_size, write_quorum, ack_quorum)
        self._ledgers.begin(handle.ledger_id)
        try:
            writer = RecordedWriter(self._history, self.name, handle)
            left = random.randint(0, random.choice(_ENTRIES_MAX))
            bytes_max = random.choice(_PAYLOAD_BYTES_MAX)
            while left > 0 and not stop.is_set():
                left -= self._burst(writer, min(left, random.choice(_BURST_MAX)), bytes_max)
                self._pause(stop)
            fate = random.random()
            if fate < 0.7:
                writer.close()
            elif fate < 0.85:
                # As if the process had died.
                self._client.close()
                self._client = self._connect(self.name)
        finally:
            self._ledgers.end(handle.ledger_id)

    def _burst(self, writer: RecordedWriter, count: int, bytes_max: int) -> int:
        """Append ``count`` entries, singly or as one batch, and wait for most bursts. Returns ``count``."""
        random, ledger_id = self._random, writer.handle.ledger_id
        payloads = [
            b"%s %d %s" % (self.name.encode(), ledger_id, random.randbytes(random.randint(0, bytes_max)))
            for _ in range(count)
        ]
        if random.random() < 0.3:
            last = writer.append_batch_async(payloads)
        else:
            last = [writer.append_async(payload) for payload in payloads][-1]
        if random.random() < 0.8:
            last.result(APPEND_SECONDS_MAX)
        return count


class Recoverer(Worker):
    """Opens ledgers with recovery, some during their writing, and reads all their entries."""

    def _turn(self, stop: threading.Event) -> None:
        self._pause(stop)
        ledger_id = self._ledgers.pick(self._random, written=self._random.random() < 0.2)
        if ledger_id is not None:
            read_whole(self._client, ledger_id, self._history, self._observer())


class Reader(Worker):
    """Follows a ledger during its writing."""

    def _turn(self, stop: threading.Event) -> None:
        ledger_id = self._ledgers.pick(self._random, written=self._random.random() < 0.8)
        if ledger_id is None:
            self._pause(stop)
            return
        handle = self._client.open_ledger_no_recovery(ledger_id)
        reader = RecordedReader(self._history, self._observer(), handle)
        following, patience = 0, self._random.randint(1, 20)
        while not stop.is_set() and patience > 0:
            patience -= 1
            if reader.wait_for(following, timeout=1.0):
                following += reader.read(following, handle.last_add_confirmed)
            elif handle.metadata.closed:
                return
            else:
                reader.read_last_add_confirmed()


def read_whole(client: BookKeeper, ledger_id: int, history: History, observer: str) -> None:
    """Open a ledger, with recovery if it is not closed, and read all its entries."""
    reader = RecordedReader(history, observer, client.open_ledger(ledger_id))
    if reader.handle.last_add_confirmed >= 0:
        reader.read(0, reader.handle.last_add_confirmed)


# -- Faults: drawn from a seed one after the other, each undone after a while.
#
# Law: the history records a fault before its begin and after its end. A bookie has one process fault at a time. After
# ``run``, every affected bookie serves again. All random choices come from the seed; the moment of a fault does not,
# because processes and networks keep their own time.


_FAULT_SECONDS_MAX = 3.0
_FAULT_PAUSE_SECONDS_MAX = 1.0
_DELAY_SECONDS_MAX = 0.5
_UNLUCKY = 0.2
"""Share of messages hit by a wire fault."""

Fault = Callable[["Faults", LocalBookie], contextlib.AbstractContextManager[object]]


class BookieLocks:
    """A lock for each bookie, held during a fault of its process."""

    def __init__(self, bookies: list[LocalBookie]) -> None:
        self._locks = {id(bookie): threading.Lock() for bookie in bookies}

    @contextlib.contextmanager
    def held(self, *bookies: LocalBookie) -> Iterator[bool]:
        """Hold the locks of ``bookies``, or none if any is taken. Yields whether all are held; it does not wait."""
        with contextlib.ExitStack() as stack:
            for bookie in bookies:
                lock = self._locks[id(bookie)]
                if not lock.acquire(blocking=False):
                    yield False
                    return
                stack.callback(lock.release)
            yield True


class Faults:
    """A sequence of faults, for one thread. Several may run at once on the same ``locks``. ``counts`` counts faults by kind."""

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
        """Break and mend until ``stop`` is set. Raises BookieError if a bookie does not restart."""
        names, weights = zip(*((name, weight) for name, (weight, _) in _FAULTS.items()), strict=True)
        while not stop.wait(self._random.uniform(0.0, _FAULT_PAUSE_SECONDS_MAX)):
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

    def _link_cut(self, bookie: LocalBookie) -> Cut:
        return self._cluster.wire.cut(bookie.bookie_id, self._random.choice(self._clients))

    def _all_links_cut(self, bookie: LocalBookie) -> Cut:
        return self._cluster.wire.cut(bookie.bookie_id)

    def _silent(self, bookie: LocalBookie) -> WireFault:
        return self._cluster.wire.drop(bookie=bookie.bookie_id, response=self._random.random() < 0.5)

    def _messages_lost(self, bookie: LocalBookie) -> WireFault:
        response = self._random.random() < 0.5
        return self._cluster.wire.drop(bookie=bookie.bookie_id, response=response, where=self._unlucky)

    def _messages_late(self, bookie: LocalBookie) -> WireFault:
        response = self._random.random() < 0.5
        return self._cluster.wire.delay(
            _DELAY_SECONDS_MAX, bookie=bookie.bookie_id, response=response, where=self._unlucky, random=self._coins
        )

    def _messages_twice(self, bookie: LocalBookie) -> WireFault:
        seconds = self._random.uniform(0.0, _DELAY_SECONDS_MAX)
        return self._cluster.wire.duplicate(seconds=seconds, bookie=bookie.bookie_id, where=self._unlucky)

    def _messages_parked(self, bookie: LocalBookie) -> WireFault:
        """Hold messages back until the end of the fault."""
        return self._cluster.wire.park(bookie=bookie.bookie_id, where=self._unlucky)


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
"""By name, each with its weight in the draw."""
_OF_ALL = {"power cut of all"}
"""Faults of the processes of all bookies."""


# -- The run


END_SECONDS_MAX = 180.0
_READ_ATTEMPTS = 5
_PROGRESS_SECONDS = 0.5


class ChaosResult(NamedTuple):
    """Actions and findings of a run."""

    seed: int
    seconds: float
    ledgers: int
    injected: dict[str, int]
    """Faults, by name."""
    errors: dict[str, int]
    """Clients' errors, by type."""
    checked: dict[str, int]
    """Checked observations, by kind."""
    violations: list[str]
    """Broken rules; empty after a good run."""
    excerpt: list[str]
    """The history around the first violation."""


@checks_arguments
class Chaos:
    """A chaos run: call ``run()`` once."""

    def __init__(
        self,
        seconds: Seconds,
        seed: int,
        bookies: AtLeastOne = 5,
        writers: BytesOrNone = 3,
        recoverers: BytesOrNone = 2,
        readers: BytesOrNone = 2,
        faults_at_once: BytesOrNone = 2,
        watcher: Callable[[Event], object] | None = None,
        record: str = "",
    ) -> None:
        """Prepare a run.

        Arguments:
            seconds: duration of faults and clients. The last reading of all ledgers comes on top.
            seed: source of all random choices.
            bookies: number of bookies.
            writers: threads that create and write ledgers.
            recoverers: threads that open ledgers with recovery.
            readers: threads that follow ledgers during their writing.
            faults_at_once: threads that break and mend.
            watcher: called with each event of the history, in order.
            record: folder for decision records of bookies and clients; "": no records.
        """
        self.history = History(watcher)
        self._seconds = seconds
        self._seed = seed
        self._bookies = bookies
        self._workers = {Writer: writers, Recoverer: recoverers, Reader: readers}
        self._faults_at_once = faults_at_once
        self._record = record
        self._ledgers = Ledgers()
        self._stop = threading.Event()

    def run(self, progress: Callable[[float, ChaosResult], None] = lambda seconds, result: None) -> ChaosResult:
        """Run to the end, and return the result. ``progress`` is called twice a second with the seconds since the start and
        the result so far. Raises BookieError if the cluster does not start."""
        began = time.monotonic()
        with FaultyCluster(bookies=self._bookies, record_decisions=self._record) as cluster:
            random = Random(self._seed)

            def connect(name: str) -> BookKeeper:
                return cluster.bookkeeper(client_name=name, record_decisions=self._record, **CLIENT_OPTIONS)

            workers = [
                kind(f"{kind.__name__.lower()}-{k}", connect, self._ledgers, self.history, Random(random.random()))
                for kind, count in self._workers.items()
                for k in range(count)
            ]
            locks = BookieLocks(cluster.bookies)
            names = [worker.name for worker in workers]
            faults = [
                Faults(cluster, names, self.history, locks, Random(random.random()))
                for _ in range(self._faults_at_once)
            ]

            def result() -> ChaosResult:
                return self._result(time.monotonic() - began, workers, faults)

            threads = [self._thread(worker.run, worker.name) for worker in workers]
            threads += [self._thread(one.run, f"faults-{k}") for k, one in enumerate(faults)]
            end = time.monotonic() + self._seconds
            while (left := end - time.monotonic()) > 0 and not self.history.violated.wait(min(left, _PROGRESS_SECONDS)):
                progress(time.monotonic() - began, result())
            self._stop.set()
            self._join(threads)
            if not self.history.violated.is_set():
                self._mend_and_read_all(cluster)
            return result()

    def _thread(self, run: Callable[[threading.Event], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                run(self._stop)
            except BaseException:
                self._defect(f"{name} failed", traceback.format_exc())

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def _join(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + END_SECONDS_MAX
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for thread in threads:
            if thread.is_alive() and thread.ident is not None:
                frame = sys._current_frames().get(thread.ident)
                where = "".join(traceback.format_stack(frame)) if frame is not None else ""
                self._defect(f"{thread.name} hangs: it did not end within {END_SECONDS_MAX:g} s", where)

    def _mend_and_read_all(self, cluster: FaultyCluster) -> None:
        """Mend everything. Then every ledger is readable from its first to its last entry, or a violation is reported."""
        cluster.mend()
        self.history.record(Event(EventKind.FAULT, "faults", note="everything is mended"))
        client = cluster.bookkeeper(client_name="last reader")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda ledger_id: self._read_at_last(client, ledger_id), self._ledgers.every()))

    def _read_at_last(self, client: BookKeeper, ledger_id: int) -> None:
        for attempt in range(_READ_ATTEMPTS):
            try:
                read_whole(client, ledger_id, self.history, f"last reader of {ledger_id}.{attempt}")
                return
            except BookKeeperError as error:
                last = error
            except BaseException:
                self._defect(f"reading ledger {ledger_id} failed", traceback.format_exc())
                return
        self._defect(f"ledger {ledger_id} can't be read with every bookie back", str(last))

    def _defect(self, rule: str, note: str) -> None:
        self.history.report(rule, note)

    def _result(self, seconds: float, workers: list[Worker], faults: list[Faults]) -> ChaosResult:
        history = self.history
        return ChaosResult(
            seed=self._seed,
            seconds=round(seconds, 1),
            ledgers=len(self._ledgers.every()),
            injected=_sum(one.counts for one in faults),
            errors=_sum(worker.errors for worker in workers),
            checked={kind.value: history.counts[kind] for kind in EventKind if kind is not EventKind.FAULT},
            violations=[str(violation) for violation in history.violations],
            excerpt=list(history.violations[0].excerpt) if history.violations else [],
        )


def _sum(counters: Iterator[Counter[str]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter.copy())
    return dict(sorted(total.items()))
