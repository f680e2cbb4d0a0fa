"""One chaos run: a cluster, faults and clients. At its end, everything is mended and every ledger is read once more.

Law: a run ends, whatever hangs. A thread that has not returned ``END_SECONDS_MAX`` after the time is over is a violation, and its
stack is reported. The reading at the end takes longer the more ledgers there are. A run stops at the first violation.
"""

from __future__ import annotations

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
from bookspark.store.client import BookKeeper
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Seconds, checks_arguments
from bookspark.testing.chaos.clients import CLIENT_OPTIONS, Ledgers, Reader, Recoverer, Worker, Writer, read_whole
from bookspark.testing.chaos.faults import BookieLocks, Faults
from bookspark.testing.faulty_cluster import FaultyCluster
from bookspark.testing.history import Event, EventKind, History

END_SECONDS_MAX = 180.0
_READ_ATTEMPTS = 5
_PROGRESS_SECONDS = 0.5


class ChaosResult(NamedTuple):
    """What was done in a run, and what was found."""

    seed: int
    seconds: float
    """How long the run took."""
    ledgers: int
    """How many ledgers were created."""
    injected: dict[str, int]
    """The number of faults, by name."""
    errors: dict[str, int]
    """The number of errors that clients got, by type."""
    checked: dict[str, int]
    """The number of observations that were checked, by kind."""
    violations: list[str]
    """What was seen and must not be; empty if all is well."""
    excerpt: list[str]
    """The history around the first violation."""


@checks_arguments
class Chaos:
    """One chaos run: call ``run()`` once."""

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
            seconds: how long faults and clients run. The reading of all ledgers afterwards comes on top.
            seed: where all draws come from.
            bookies: the number of bookies.
            writers: the number of threads that create and write ledgers.
            recoverers: the number of threads that open ledgers with recovery.
            readers: the number of threads that follow ledgers while they are written.
            faults_at_once: the number of threads that break and mend.
            watcher: is given each event of the history, in order.
            record: the folder into which bookies and clients record their decisions; "": they don't.
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
        """Run to the end, and return the result. ``progress`` is called twice a second with the seconds since the start and the
        result so far. Raises BookieError if the cluster does not start."""
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
        """Mend everything. Then every ledger can be read from its first entry to its last, or there is a violation."""
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
