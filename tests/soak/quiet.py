"""An hour of healthy load: five bookies with autorecovery, writers, a log with a producer and a reader of a group.
Meanwhile one thread looks as ``bookspark why`` does, and another requests the console. No look may report a trouble.

A round is a minute. The load is a part of the machine's capacity, with pauses, because an alarm that only a full machine
raises is not the cluster's; it is reported nevertheless. Ledgers of all ages are created, read, and deleted, and the
bookies collect them.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from bookspark.local import LocalCluster
from bookspark.logs import create_log, open_log
from bookspark.operations.console import WebConsole
from bookspark.operations.why.gathering import DEADLINES, Gathering
from bookspark.operations.why.troubles import health_of
from bookspark.store.client import BookKeeper
from tests.soak._command import main

_LOOK_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_LEDGERS_KEPT = 200
# The console's sentence without a trouble.
_QUIET = "There is nothing to do."


class _Load:
    """Threads that work until ``end``; the first failure ends them all."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self.failures: list[str] = []
        self._threads: list[threading.Thread] = []

    def begin(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException:
                self.failures.append(traceback.format_exc())
                self.ends.set()

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        self.ends.set()
        for one in self._threads:
            one.join(60)


def quiet(minutes: int) -> Mapping[str, object]:
    """Raises AssertionError with the first alarms."""
    done = {"ledgers": 0, "rows written": 0, "rows read": 0, "looks": 0, "pages": 0}
    alarms: list[str] = []
    load = _Load()
    with LocalCluster(bookies=5, autorecovery=True, metrics_port=-1, gc_wait_time_seconds=60.0) as cluster:

        def write() -> None:
            kept: list[int] = []
            with cluster.bookkeeper() as bookkeeper:
                while not load.ends.is_set():
                    with bookkeeper.create_ledger(3, 3, 2) as ledger:
                        for _ in range(20):
                            ledger.append_batch([os.urandom(1000) for _ in range(50)])
                            load.ends.wait(_PAUSE_SECONDS)
                    with bookkeeper.open_ledger(ledger.ledger_id) as reader:
                        assert sum(1 for _ in reader.read(0, reader.last_add_confirmed)) == 1000
                    kept.append(ledger.ledger_id)
                    done["ledgers"] += 1
                    if len(kept) > _LEDGERS_KEPT:
                        bookkeeper.delete_ledger(kept.pop(0))

        def produce() -> None:
            with cluster.bookkeeper() as bookkeeper, create_log(bookkeeper, "orders").producer("billing") as producer:
                made.set()
                while not load.ends.wait(_PAUSE_SECONDS):
                    producer.append_batch([os.urandom(100) for _ in range(50)])
                    done["rows written"] += 50

        def consume() -> None:
            made.wait(60)
            with cluster.bookkeeper() as bookkeeper, open_log(bookkeeper, "orders").reader(group="shipping") as reader:
                while not load.ends.is_set():
                    done["rows read"] += len(reader.read(1000, 1.0))
                    reader.commit()

        def look() -> None:
            with BookKeeper(cluster.zookeeper, **DEADLINES) as bookkeeper:
                gathering = Gathering(bookkeeper)
                while not load.ends.wait(_LOOK_SECONDS):
                    found = health_of(gathering.look()).troubles
                    alarms.extend(f"why: {one.kind} {one.verdict} {one.causes}" for one in found)
                    done["looks"] += 1

        made = threading.Event()
        with BookKeeper(cluster.zookeeper, **DEADLINES) as bookkeeper, WebConsole(bookkeeper) as console:
            for work in (write, write, produce, consume, look):
                load.begin(work)
            began, told = time.monotonic(), 0
            while (passed := time.monotonic() - began) < 60 * minutes and not load.ends.wait(_LOOK_SECONDS):
                page = _page(console.url)
                done["pages"] += 1
                if _QUIET not in page and "first look" not in page:
                    alarms.append("console: " + page.partition('<h1 role="status">')[2].partition("<")[0])
                if passed // 60 > told:
                    told = int(passed // 60)
                    print(f"minute {told}: {done}, {len(alarms)} alarms {alarms[-1:]}", flush=True)
            load.end()
    result = {**done, "minutes": round((time.monotonic() - began) / 60, 1), "alarms": alarms[:20], "count": len(alarms)}
    assert not load.failures, load.failures[0]
    assert not alarms, result
    return result


def _page(url: str) -> str:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


if __name__ == "__main__":
    main(__doc__, quiet, 60)
