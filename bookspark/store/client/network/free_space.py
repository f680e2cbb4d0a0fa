"""Free space of bookies, for placement."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from bookspark.protocol.ledger.responses import Positive
from bookspark.store.client.network.connections import Answer, Connections
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, WireError
from bookspark.store.wire.messages import BookieStatus, decoded

_AGE_SECONDS = 60.0
_ANSWER_SECONDS = 1.0


class FreeSpace:
    """Free space of bookies, as one process knows it. Thread-safe.

    Law: a request delays a placement by at most ``_ANSWER_SECONDS``, and at most once in ``_AGE_SECONDS``. A bookie that does not
    answer counts with its last answer, or is left out.

    Source: BookKeeper's ``BookieInfoReader``.
    """

    def __init__(self, io: IoLoop, connections: Connections) -> None:
        self._io = io
        self._connections = connections
        self._lock = threading.RLock()
        self._asked_at: dict[str, float] = {}
        self._free_bytes: dict[str, int] = {}

    def of(self, bookie_ids: Collection[str]) -> dict[str, int]:
        """Bookie id → free bytes, for those of ``bookie_ids`` that ever answered. Asks bookies without a recent answer."""
        with self._lock:
            now = time.monotonic()
            old = [b for b in bookie_ids if self._asked_at.get(b, -_AGE_SECONDS) <= now - _AGE_SECONDS]
            self._asked_at.update(dict.fromkeys(old, now))
            self._free_bytes.update(self._ask(old))
            return {b: self._free_bytes[b] for b in bookie_ids if b in self._free_bytes}

    def _ask(self, bookie_ids: list[str]) -> dict[str, int]:
        answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        for bookie_id in bookie_ids:
            header = Header(Kind.STATUS, self._connections.next_request_id())
            put = partial(_put, answers, bookie_id)
            frame = control_frame(header)
            self._io.submit(self._connections.send, bookie_id, header.request_id, frame, put, _ANSWER_SECONDS)
        told: dict[str, int] = {}
        deadline = time.monotonic() + _ANSWER_SECONDS
        for _ in bookie_ids:
            try:
                bookie_id, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(answer.response, Positive):
                with suppress(WireError):
                    told[bookie_id] = decoded(answer.body, BookieStatus).free_bytes
        return told


def _put(answers: queue.SimpleQueue[tuple[str, Answer]], bookie_id: str, answer: Answer) -> None:
    answers.put((bookie_id, answer))
