"""A service that appends until there is a file ``FOLDER/finish``; its arguments are FOLDER, ZOOKEEPER, LOG, NAME and LIFE.

A name that begins with ``numbers`` gives each row a sequence number, and repeats rows of unknown outcome; the rows of its lane
must then be 0, 1, 2 … A name that begins with ``places`` appends from several threads, each at its expected position
(``expect``).

Exit status: 0 finished, ENDED after an error of the cluster or because another process of its name began. Its journal has the
rest.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from bookspark.errors import BookKeeperError
from bookspark.logs import Producer, UnexpectedPositionError, open_log
from bookspark.store.client import BookKeeper
from tests.awaiting import time_passes
from tests.system.many_writers.journal import Journal, lines, lives

ENDED = 3
CLIENT = {"add_timeout_seconds": 20.0, "answer_timeout_seconds": 3.0, "connect_timeout_seconds": 3.0}
_BURST_MAX, _PAUSE_SECONDS_MAX, _THREADS = 20, 0.2, 3
_AGAIN = 30
"""Number of rows appended again that are known to be in the log."""


class Service:
    """One life of a producer."""

    def __init__(self, folder: Path, name: str, life: str) -> None:
        self.folder, self.name, self.life = folder, name, life
        self.random = Random(f"{name} {life}")
        known = [line for path in lives(folder, name) for line in lines(path) if line.what in ("ok", "again")]
        self.told = max((int(line.words[0]) for line in known if name.startswith("numbers")), default=-1)
        self.journal = Journal(folder / f"{name}.{life}.journal")
        self.errors: list[str] = []

    @property
    def goes_on(self) -> bool:
        return not self.errors and not (self.folder / "finish").exists()

    def run(self, open_producer: Callable[[], Producer]) -> int:
        self.journal.write("began")
        try:
            producer = open_producer()
            self.journal.write("owns", producer.lane, producer.position, producer.last_sequence)
            if self.name.startswith("numbers"):
                self._number(producer)
            else:
                threads = [threading.Thread(target=self._place, args=(producer, thread)) for thread in range(_THREADS)]
                for one in threads:
                    one.start()
                for one in threads:
                    one.join()
            if not self.errors:
                producer.close()
        except BookKeeperError as error:
            self._ended(error)
        return ENDED if self.errors else 0

    def _ended(self, error: BookKeeperError) -> None:
        self.errors.append(type(error).__name__)
        self.journal.write("ended", type(error).__name__)

    def _number(self, producer: Producer) -> None:
        # Half of the lives trust the responses they received, and half the log.
        known = producer.last_sequence if self.random.random() < 0.5 else self.told
        number = max(0, known + 1 - _AGAIN)
        newest: Any = None
        while self.goes_on:
            for _ in range(self.random.randint(1, _BURST_MAX)):
                self.journal.write("call", number, "-")
                newest = producer.append_async(f"{self.name} {number}".encode(), sequence=number)
                newest.add_done_callback(lambda future, number=number: self._heard(future, number))
                number += 1
            time_passes(self.random.random() * _PAUSE_SECONDS_MAX)

    def _heard(self, future: Any, number: int) -> None:
        error = future.exception()
        if error is not None:
            self.journal.write("failed", number, type(error).__name__)
            self._ended(error)
        elif future.result() is None:
            self.journal.write("again", number)
        else:
            self.journal.write("ok", number, future.result().position)

    def _place(self, producer: Producer, thread: int) -> None:
        random, count = Random(f"{self.name} {self.life} {thread}"), 0
        while self.goes_on:
            count += 1
            row = f"{self.life}.{thread}.{count}"
            expect = max(0, producer.position + random.choice([0, 0, 0, 0, 1, -1]))
            self.journal.write("call", row, expect)
            try:
                place = producer.append(f"{self.name} {row}".encode(), expect=expect)
                assert place is not None
                self.journal.write("ok", row, place.position)
            except UnexpectedPositionError:
                self.journal.write("refused", row)
            except BookKeeperError as error:
                self.journal.write("failed", row, type(error).__name__)
                self._ended(error)
            time_passes(random.random() * _PAUSE_SECONDS_MAX)


def main(folder: str, zookeeper: str, log: str, name: str, life: str) -> int:
    service = Service(Path(folder), name, life)
    with BookKeeper(zookeeper, client_name=name, **CLIENT) as bookkeeper:
        return service.run(lambda: open_log(bookkeeper, log).producer(name))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
