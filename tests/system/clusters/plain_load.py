"""The same load without Spark, for tests with less time: ``python plain_load.py write|read|stored FOLDER ZOOKEEPER``.

One client appends 0, 1, 2, … to ledgers, and another reads them as they arrive. A ledger whose appends fail is recovered, and
the next one continues at its end, so each number must be stored once. ``stored`` prints all numbers.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bookspark import BookKeeper
from bookspark.errors import BookKeeperError
from tests.awaiting import time_passes

PAUSE_SECONDS = 0.05
ENTRIES_PER_STEP = 10


class Teller:
    """Prints the progress, as ``load`` does."""

    def __init__(self, what: str) -> None:
        self._what, self._down_since = what, 0.0

    def failed(self, error: Exception) -> None:
        self._down_since = self._down_since or time.monotonic()
        print(f"{self._what}: failed: {' '.join(str(error).split())[:300]}", flush=True)

    def rows(self, count: int) -> None:
        if self._down_since:
            print(f"{self._what}: resumed after {time.monotonic() - self._down_since:.1f} s", flush=True)
            self._down_since = 0.0
        print(f"{self._what}: rows {count}", flush=True)


def write(bookkeeper: BookKeeper, folder: Path, ended: threading.Event) -> None:
    teller, number = Teller("write"), 0
    while not ended.is_set():
        try:
            ledger = bookkeeper.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            with (folder / "ledgers").open("a") as list_of_ledgers:
                list_of_ledgers.write(f"{ledger.ledger_id}\n")
        except BookKeeperError as error:
            teller.failed(error)
            ended.wait(1.0)
            continue
        first = number
        try:
            with ledger:
                while not ended.wait(PAUSE_SECONDS):
                    ledger.append(b"%d" % number)
                    number += 1
                    if number % ENTRIES_PER_STEP == 0:
                        teller.rows(number)
        except BookKeeperError as error:
            teller.failed(error)
            # An acknowledged number is not written again: if recovery lost it, it stays missing.
            number = max(number, first + _recovered(bookkeeper, ledger.ledger_id, teller))


def _recovered(bookkeeper: BookKeeper, ledger_id: int, teller: Teller) -> int:
    """The number of entries of the ledger, after its recovery."""
    while True:
        try:
            with bookkeeper.open_ledger(ledger_id) as ledger:
                return ledger.last_add_confirmed + 1
        except BookKeeperError as error:
            teller.failed(error)
            time_passes(1.0)


def ledgers(folder: Path) -> list[int]:
    place = folder / "ledgers"
    return [int(line) for line in place.read_text().splitlines()] if place.exists() else []


def read(bookkeeper: BookKeeper, folder: Path, ended: threading.Event) -> None:
    teller, place, entry, batches = Teller("read"), 0, 0, 0
    (folder / "rows").mkdir(exist_ok=True)
    while not ended.wait(10 * PAUSE_SECONDS):
        listed = ledgers(folder)
        if place == len(listed):
            continue
        try:
            with bookkeeper.open_ledger_no_recovery(listed[place]) as ledger:
                closed = ledger.closed
                last = ledger.read_last_add_confirmed()
                numbers = [bytes(found.payload).decode() for found in ledger.read(entry, last)] if entry <= last else []
        except BookKeeperError as error:
            teller.failed(error)
            continue
        if numbers:
            (folder / "rows" / str(batches)).write_text("\n".join(numbers))
            batches, entry = batches + 1, last + 1
            teller.rows(batches)
        if closed:
            place, entry = place + 1, 0


def stored(bookkeeper: BookKeeper, folder: Path) -> Iterator[str]:
    for ledger_id in ledgers(folder):
        with bookkeeper.open_ledger(ledger_id) as ledger:
            for entry in ledger.read():
                yield bytes(entry.payload).decode()


def main(what: str, folder: Path, zookeeper: str) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with BookKeeper(zookeeper) as bookkeeper:
        if what == "stored":
            print("\n".join(stored(bookkeeper, folder)))
        else:
            {"write": write, "read": read}[what](bookkeeper, folder, ended)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
