"""Five bookies without a journal: in each round one of them loses its unsynced entries or its whole disk, and heals
itself.

Writers, recoverers and readers work all the time, and their history is checked. The bookie is booted at once; the next one
is hit when it has healed. At the end every ledger can be read whole, no ledger is in limbo, and by the lists of all
bookies every entry has all its copies.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import Counter
from collections.abc import Mapping
from random import Random

from bookspark import BookKeeper
from bookspark.errors import BookKeeperError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.store.autorecovery.auditor import ExactCheck
from bookspark.testing.chaos import CLIENT_OPTIONS, Ledgers, Reader, Recoverer, Worker, Writer, read_whole
from bookspark.testing.history import Event, EventKind, History
from tests.awaiting import await_that, time_passes
from tests.soak._command import main

log = logging.getLogger(__name__)

# A power cut takes every entry without a requested sync. Deleted ledgers are not collected, because a reader may still
# read them.
BOOKIES = {
    "journal_write_data": False,
    "stamp_missing_cookies": True,
    "background_sync_interval_ms": 3_600_000,
    "background_sync_bytes": 1 << 40,
    "gc_wait_time_seconds": 86_400.0,
}
AUTORECOVERY = {"check_interval_hours": 0.0, "check_confirm_seconds": 0.5, "retry_seconds": 0.5, "poll_seconds": 1.0}
_KINDS = (Writer, Writer, Recoverer, Reader)
_HEALED_SECONDS_MAX = 240.0
_PATIENT = {"answer_timeout_seconds": 30.0, "connect_timeout_seconds": 30.0, "recovery_timeout_seconds": 120.0}
_BETWEEN_SECONDS = 1.0
# The youngest ledgers are kept. The others are read whole after each round and deleted, so that rounds don't become
# longer.
_LEDGERS_KEPT = 150


class _AtWork:
    """The clients, which work from ``__enter__`` to ``__exit__``."""

    def __init__(self, cluster: LocalCluster, history: History, random: Random) -> None:
        self.ledgers = Ledgers()
        self._history = history
        self._stop = threading.Event()

        def connect(name: str) -> BookKeeper:
            return cluster.bookkeeper(client_name=name, **CLIENT_OPTIONS)

        self._workers: list[Worker] = [
            kind(f"{kind.__name__.lower()}-{k}", connect, self.ledgers, history, Random(random.random()))
            for k, kind in enumerate(_KINDS)
        ]
        self._threads = [threading.Thread(target=self._run, args=(worker,), daemon=True) for worker in self._workers]

    def __enter__(self) -> _AtWork:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_HEALED_SECONDS_MAX)
            if thread.is_alive():
                self._history.report("a client hangs", thread.name)

    @property
    def errors(self) -> Counter[str]:
        return sum((worker.errors for worker in self._workers), Counter[str]())

    def _run(self, worker: Worker) -> None:
        try:
            worker.run(self._stop)
        except BaseException:
            self._history.report(f"{worker.name} failed", traceback.format_exc())


def self_healing(cluster: LocalCluster, rounds: int, seed: int = 0) -> Mapping[str, int]:
    """Run so many rounds; returns counts. Raises AssertionError."""
    random, history, counts = Random(seed), History(), Counter[str]()
    client = cluster.bookkeeper(client_name="auditor", **_PATIENT)
    with _AtWork(cluster, history, random) as clients:
        for round_ in range(rounds):
            time_passes(random.uniform(0.0, _BETWEEN_SECONDS))
            bookie, loss = random.choice(cluster.bookies), random.choice(["unsynced entries", "the disk"])
            _hit(bookie, loss, history)
            counts[f"lost {loss}"] += 1
            await_that(lambda bookie=bookie: _is_healed(client, bookie), _HEALED_SECONDS_MAX)
            _check(history, f"seed {seed}, round {round_}")
            _retire(client, clients.ledgers, history, counts)
            _check(history, f"seed {seed}, round {round_}, reading all")
            log.info("round %d: %s is healed, %s", round_, bookie.bookie_id, dict(history.counts))
    _retire(client, clients.ledgers, history, counts, kept=0)
    _check(history, f"seed {seed}, at the end")
    marked = ExactCheck(client, (), time_passes).run(0.5).marked
    await_that(lambda: not client.metadata.underreplication.list_tasks(), _HEALED_SECONDS_MAX)
    report = ExactCheck(client, (), time_passes).run(0.5)
    assert (report.marked, report.skipped) == (0, {}), f"seed {seed}: {report}"
    limbo = {bookie.bookie_id: client.bookie_status(bookie.bookie_id).limbo_ledgers for bookie in cluster.bookies}
    assert not any(limbo.values()), f"seed {seed}: {limbo}"
    counts.update({"rounds": rounds, "ledgers": report.ledgers})
    counts.update(
        {
            kind.value: history.counts[kind]
            for kind in (EventKind.ACKED, EventKind.READ, EventKind.LAC, EventKind.CLOSED)
        }
    )
    return {**counts, **clients.errors, "ledgers repaired by autorecovery in the end": marked}


def _retire(
    client: BookKeeper, ledgers: Ledgers, history: History, counts: Counter[str], kept: int = _LEDGERS_KEPT
) -> None:
    """Read old ledgers whole and delete them, except the youngest, which stay for the audit at the end."""
    every = ledgers.every()[counts["ledgers read whole"] :]
    for ledger_id in every[: max(0, len(every) - kept)]:
        read_whole(client, ledger_id, history, f"last reader of {ledger_id}")
        counts["ledgers read whole"] += 1
        if kept:
            client.delete_ledger(ledger_id)


def _hit(bookie: LocalBookie, loss: str, history: History) -> None:
    history.record(Event(EventKind.FAULT, "", note=f"{bookie.bookie_id} loses {loss}"))
    bookie.kill()
    if loss == "the disk":
        bookie.wipe()
    else:
        bookie.lose_unsynced()
    bookie.start()


def _is_healed(client: BookKeeper, bookie: LocalBookie) -> bool:
    try:
        status = client.bookie_status(bookie.bookie_id)
    except BookKeeperError:
        return False  # a client's old connection to the bookie
    return status.healed_boot == status.lossy_boot and not status.limbo_ledgers


def _check(history: History, when: str) -> None:
    for violation in history.violations:
        raise AssertionError("\n".join([when, str(violation), *violation.excerpt]))


def _run(rounds: int) -> Mapping[str, int]:
    logging.basicConfig()
    log.setLevel(logging.INFO)
    with LocalCluster(bookies=5, autorecovery=AUTORECOVERY, **BOOKIES) as cluster:
        return self_healing(cluster, rounds)


if __name__ == "__main__":
    main(__doc__, _run, 50)
