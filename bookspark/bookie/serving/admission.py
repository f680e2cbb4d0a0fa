"""How much a bookie takes in: how many connections it has, and when it stops reading from them.

Law: a bookie takes no more than it can write. When more bytes of adds than ``request_bytes_in_flight_max`` wait for their sync,
it reads from no connection until half of them are durable, and the clients' sockets fill up. A connection is refused if it would
take a file descriptor that the bookie's own files need: a log that can't be begun would retire a sound disk.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Protocol

from bookspark.bookie.storage import Storage

_DESCRIPTORS_KEPT = 512
"""Kept for the bookie's own files, but at most half of what the process may open."""
_WARN_SECONDS = 10.0

log = logging.getLogger(__name__)


class Admitted(Protocol):
    """A connection, as far as its admission goes."""

    def adjust_reading(self) -> None:
        """Begin or stop reading from the socket, as ``Admission.paused`` says."""

    def close(self) -> None:
        """Send what is answered, then end the connection."""

    def abort(self) -> None:
        """End the connection at once."""


class Admission:
    """The connections of one bookie. Owned by the loop."""

    def __init__(self, storage: Storage, bytes_in_flight_max: int) -> None:
        self._storage = storage
        self._bytes_in_flight_max = bytes_in_flight_max
        self.connections: set[Admitted] = set()
        self.paused = False
        """Is nothing read from any connection at present?"""
        self._stopping = False
        self._all_lost = asyncio.Event()
        self._warned_at = -_WARN_SECONDS

    def has_room(self) -> bool:
        """May there be one more connection? The limit of open files is read each time, as it can be raised from outside."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(limit // 2, limit - _DESCRIPTORS_KEPT)
        if limit == resource.RLIM_INFINITY or len(self.connections) < most:
            return True
        now = asyncio.get_running_loop().time()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            log.warning(
                "connections beyond %d are refused: the process may open %d files; raise that limit (ulimit -n), or have fewer "
                "clients",
                most,
                limit,
            )
        return False

    def admit(self, connection: Admitted) -> None:
        """There is one connection more."""
        self.connections.add(connection)

    def lost(self, connection: Admitted) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_lost.set()

    def check_pressure(self) -> None:
        """Stop reading if too many bytes wait for their sync."""
        if not self.paused and self._storage.bytes_in_flight > self._bytes_in_flight_max:
            self._pause(True)
            self._storage.when_below(self._bytes_in_flight_max // 2, self._relieve)

    def stop_reading(self) -> None:
        """Read nothing more from any connection: the bookie stops."""
        self._stopping = True
        self._pause(True)

    async def end_all(self, seconds_max: float) -> None:
        """Close every connection; abort those that are still open after ``seconds_max``."""
        self._all_lost.clear()
        if not self.connections:
            return
        for connection in list(self.connections):
            connection.close()
        try:
            await asyncio.wait_for(self._all_lost.wait(), seconds_max)
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()

    def _relieve(self) -> None:
        if not self._stopping:
            self._pause(False)

    def _pause(self, paused: bool) -> None:
        self.paused = paused
        for connection in list(self.connections):
            connection.adjust_reading()
