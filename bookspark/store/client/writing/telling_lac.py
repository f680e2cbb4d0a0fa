"""Telling the bookies the LAC (last add confirmed) without an entry, and waiting for as many of them as count."""

from __future__ import annotations

import queue
import time

from bookspark.errors import AddTimeoutError
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from bookspark.support.threads import check_may_wait


def told_lac(io: IoLoop, driver: LedgerDriver, seconds: float) -> int:
    """Have the bookies told the LAC now; returns it once an ack quorum of them took it, or at once of a closed ledger.

    Raises AddTimeoutError if fewer did within ``seconds``, the error that ended the ledger, and BookKeeperError in a thread of
    the client's own."""
    check_may_wait()
    confirmed, metadata = driver.cursors.last_add_confirmed, driver.writer.metadata
    answers: queue.SimpleQueue[bool | None] = queue.SimpleQueue()

    def answered(bookie: str, answer: Answer) -> None:
        answers.put(isinstance(answer.response, Positive))

    io.submit(driver.tell_lac, answered, lambda: answers.put(None))
    taken, deadline = 0, time.monotonic() + seconds
    try:
        for _ in range(metadata.ensemble_size):
            took = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            if took is None:
                if driver.shared.acknowledged.error is not None:
                    raise driver.shared.acknowledged.error.with_traceback(None)
                return driver.cursors.last_add_confirmed
            taken += took
            if taken >= metadata.ack_quorum:
                return confirmed
    except queue.Empty:
        pass
    raise AddTimeoutError(
        f"ledger {driver.ledger_id}: only {taken} bookies took the explicit LAC {confirmed}; try again"
    )
