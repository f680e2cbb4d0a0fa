"""A limit of a process's log lines, for each kind of line: a peer that can cause one line can cause any number.

Law: of one kind (one text before its arguments are put in) ``BURST`` lines come at once, and later one every ``SECONDS``, with
the number of those left out before it. So neither a peer nor a failing disk fills the disk of the log.
"""

from __future__ import annotations

import logging
import threading
import time

from bookspark.protocol.bookie.address_rates import AddressRates

BURST = 20
SECONDS = 5.0


class FewOfAKind(logging.Filter):
    """A filter for one handler."""

    def __init__(self) -> None:
        super().__init__()
        self._rates = AddressRates(1 / SECONDS, BURST)
        self._left_out: dict[str, int] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = f"{record.name} {record.levelno} {record.msg}"
        with self._lock:
            if not self._rates.take(kind, time.monotonic()):
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return False
            left_out = self._left_out.pop(kind, 0)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more lines of this kind were left out)"
            record.args = ()
        return True
