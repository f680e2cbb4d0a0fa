"""Writing at full speed for minutes while one bookie is stopped (SIGSTOP) and another runs for a hundredth of the time:
the memory of the client and the bookies, and the writer's speed.

A round is a minute. Default options, three copies, an ack quorum of two, and one spare bookie: it replaces the stopped
bookie, and none is left for the slow one. A ledger is written for half a minute, and then deleted and collected, to save
disk space. BookKeeper's client keeps entries for such bookies without a bound, unless configured otherwise (its #3497).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bookspark.local import LocalBookie, LocalCluster
from bookspark.store.client.bookkeeper import BookKeeper
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from tests.soak._command import main

_ENTRY = b"x" * 256
_ENTRIES = 200
_LEDGER_SECONDS = 30.0
_BEFORE_SECONDS = 20.0
_ALLOWED_SECONDS = 5.0
_GROWTH_BYTES_MAX = 64_000_000
_RATE_MIN = 0.8
_RUNNING_SECONDS, _PERIOD_SECONDS = 0.01, 1.0


class _Writer:
    """Appends to one ledger after another, and watches the memory of all processes."""

    def __init__(self, bookkeeper: BookKeeper, cluster: LocalCluster) -> None:
        self._bookkeeper = bookkeeper
        pids = {"client": os.getpid()} | {bookie.bookie_id: bookie.pid for bookie in cluster.bookies}
        self._pids = {name: pid for name, pid in pids.items() if pid is not None}
        self.ledger = bookkeeper.create_ledger(3, 3, 2)
        # The greatest memory of each process, in bytes.
        self.largest = self._memory()

    def write(self, seconds: float) -> float:
        """Append for so many seconds; returns the entries a second."""
        began, looked, appended = time.monotonic(), 0.0, 0
        ledger_began = began
        while (now := time.monotonic()) < began + seconds:
            for _ in range(_ENTRIES):
                last = self.ledger.append_async(_ENTRY)
            appended += _ENTRIES
            if now > ledger_began + _LEDGER_SECONDS:
                self._next_ledger()
                ledger_began = now
            if now > looked + 0.25:
                memory = self._memory()
                self.largest = {name: max(size, memory[name]) for name, size in self.largest.items()}
                looked = now
        last.result()
        return appended / (time.monotonic() - began)

    def _next_ledger(self) -> None:
        written, self.ledger = self.ledger, self._bookkeeper.create_ledger(3, 3, 2)
        written.close()
        self._bookkeeper.delete_ledger(written.ledger_id)

    def _memory(self) -> dict[str, int]:
        return {name: resident_bytes(pid) for name, pid in self._pids.items()}


def slow_bookies(minutes: int) -> Mapping[str, object]:
    with LocalCluster(bookies=4, gc_wait_time_seconds=20.0) as cluster, cluster.bookkeeper() as bookkeeper:
        writer = _Writer(bookkeeper, cluster)
        before = writer.write(_BEFORE_SECONDS)
        warm = dict(writer.largest)
        stopped, slowed = _first_two(cluster, writer.ledger)
        print(
            f"{before:.0f} entries/s before; now {stopped.bookie_id} stands still, and {slowed.bookie_id} is slow",
            flush=True,
        )
        stopped.suspend()
        try:
            with _slow(slowed):
                first = writer.write(_ALLOWED_SECONDS)
                rates = [_told(writer, minute) for minute in range(1, minutes + 1)]
        finally:
            stopped.resume()
        writer.ledger.close()
    growth = {name: writer.largest[name] - warm[name] for name in warm}
    result = {
        "entries_per_second_before": round(before),
        "entries_per_second_in_the_first_5_s": round(first),
        "entries_per_second_after": round(sum(rates) / len(rates)),
        "slowest_minute": round(min(rates)),
        "growth_mib": {name: round(size / (1 << 20), 1) for name, size in growth.items()},
    }
    assert max(growth.values()) <= _GROWTH_BYTES_MAX, result
    assert sum(rates) / len(rates) >= _RATE_MIN * before, result
    return result


def _told(writer: _Writer, minute: int) -> float:
    rate = writer.write(60.0)
    memory = ", ".join(f"{name} {size >> 20} MiB" for name, size in writer.largest.items())
    print(f"minute {minute}: {rate:.0f} entries/s; at most {memory}", flush=True)
    return rate


def _first_two(cluster: LocalCluster, ledger: LedgerHandle) -> tuple[LocalBookie, LocalBookie]:
    bookies = {bookie.bookie_id: bookie for bookie in cluster.bookies}
    first, second, _ = ledger.metadata.last_fragment.ensemble
    return bookies[first], bookies[second]


@contextmanager
def _slow(bookie: LocalBookie) -> Iterator[None]:
    """Let the bookie run for a hundredth of the time."""
    ended = threading.Event()

    def slow() -> None:
        while not ended.is_set():
            bookie.suspend()
            ended.wait(_PERIOD_SECONDS - _RUNNING_SECONDS)
            bookie.resume()
            ended.wait(_RUNNING_SECONDS)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(__doc__, slow_bookies, 10)
