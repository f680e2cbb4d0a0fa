"""A service that appends one row after another, each awaited, and records the duration of each.

It runs until there is a file ``FOLDER/finish``; its arguments are FOLDER, ZOOKEEPER, LOG, NAME, LIFE and the seconds between
two appends. The rows of its lane are NAME 0, NAME 1, NAME 2 … Each line ``append`` of its journal has the start and end of an
append, in ns of ``time.monotonic_ns``, and 1 if it was the first in a new ledger, else 0.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bookspark.logs import open_log
from bookspark.store.client import BookKeeper
from tests.awaiting import time_passes
from tests.system.many_writers.journal import Journal


def main(folder: str, zookeeper: str, log: str, name: str, life: str, pause_seconds: str) -> None:
    journal, finish = Journal(Path(folder, f"{name}.{life}.journal")), Path(folder, "finish")
    with BookKeeper(zookeeper, client_name=name) as bookkeeper, open_log(bookkeeper, log).producer(name) as producer:
        ledger_id, number = -1, 0
        while not finish.exists():
            row = f"{name} {number}".encode()
            begun = time.monotonic_ns()
            producer.append(row)
            ended = time.monotonic_ns()
            handle = producer._ledgers.at.handle
            assert handle is not None
            journal.write("append", begun, ended, int(handle.ledger_id != ledger_id))
            ledger_id, number = handle.ledger_id, number + 1
            time_passes(float(pause_seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
