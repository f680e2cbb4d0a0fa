"""Hands that restart the processes of a ``LocalCluster``, or stand-ins of its bookies, and replace their disks."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bookspark.errors import BookieError
from bookspark.operations.changes.hands import Request
from bookspark.protocol.changes.steps import ReplaceDisk, Stop


class LocalHands:
    def __init__(self, bookies: Iterable[Any], in_hand: Mapping[str, Any] | None = None) -> None:
        """``in_hand``: by bookie id, a lock that is held while a request is carried out. Those of several processes share it."""
        self._bookies = {one.bookie_id: one for one in bookies}
        self._in_hand: Mapping[str, Any] = defaultdict(threading.Lock) if in_hand is None else in_hand

    def do(self, request: Request, note: Callable[[], None]) -> None:
        bookie, lock = self._bookies[request.bookie_id], self._in_hand[request.bookie_id]
        if not lock.acquire(blocking=False):
            raise BookieError(f"another process carries out a request for {request.bookie_id}")
        try:
            note()
            bookie.stop()
            if isinstance(request, ReplaceDisk):
                for path in Path(request.directory).iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not isinstance(request, Stop):
                bookie.start()
        finally:
            lock.release()

    def seen(self, request: Request) -> None:
        """Wait for the end of another process's request."""
        with self._in_hand[request.bookie_id]:
            pass

    def take_back(self, request: Request, why: str) -> None:
        """Wait for the end of another process's request; ``do`` has carried out this process's own."""
        self.seen(request)
