"""Admission: the number of a bookie's connections, the connection that goes when there are too many, and pauses of reading.

Law: a bookie takes no more than it can write. When more bytes of adds than ``request_bytes_in_flight_max`` wait for their sync,
it reads from no connection until half of them are durable, and the clients' sockets fill up.

Connections count from their acceptance to their end. Their number always leaves descriptors for the bookie's own files: a log
that can't be opened would retire a sound disk. A connection is a *stranger* until TLS, the secret and HELLO are through
(*greeted*). Strangers are a small part of all connections, and each has ``STRANGER_SECONDS``.

Without room for a newcomer, the bookie ends

1. the oldest stranger, of the address with the most strangers. A client needs a few round trips to be greeted, so it is through
   before later strangers push it out; and many strangers of one address push out each other;
2. without strangers: the connection with the longest silence, of the address with the most connections, if that has at least two
   more than the newcomer's address. So no client takes every place, or loses its place to a newcomer of its own address;
3. otherwise the newcomer, with the reason.

``protocol.bookie.peer_memory`` decides which connections end for the memory that they hold, or for a frame that they don't end.

An address is an IPv4 address, or the first 64 bits of an IPv6 address, which one host can fill alone.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Iterable
from time import monotonic
from typing import Protocol, TypeVar, cast

from bookspark.protocol.bookie.peer_memory import Action, End, Held, PeerMemory, Shrink
from bookspark.store.bookie.serving.served_bookie import Refusals
from bookspark.store.bookie.storage import Storage

STRANGER_SECONDS = 5.0
"""Time limit of a connection until it is greeted."""
_DESCRIPTORS_KEPT = 512
"""Reserve for the bookie's own files, at most half of the process's limit."""
_STRANGERS_PART = 4
_STRANGERS_MIN, _STRANGERS_MAX = 16, 1024
_LOOK_SECONDS = 0.1
"""A scan of many connections takes a while."""
_WARN_SECONDS = 10.0
_SILENT_SECONDS = 1.0
_TICK_SECONDS = 1.0
_LOOKED_AT_MAX = 16
"""Above this count assume that another connection is active; a scan costs more than it saves."""

log = logging.getLogger(__name__)


class Admitted(Protocol):
    """An admitted connection, as seen by its admission."""

    origin: str
    peer: str
    """Address and name, for log lines."""
    heard: int
    """Value of ``Admission.heard`` at the last arrival of bytes on this connection."""

    @property
    def is_served(self) -> bool:
        """Does the peer wait for requested entries, unread or unsent?"""

    def adjust_reading(self) -> None:
        """Start or stop reading from the socket, by ``Admission.paused``."""

    def release(self) -> None:
        """Free memory of the receive buffer that is not needed."""

    def refuse(self, why: str) -> None:
        """Send the reason, take nothing more, and end the connection."""

    def close(self) -> None:
        """Send the finished answers, then end the connection."""

    def abort(self) -> None:
        """End the connection at once."""


class Stranger(Protocol):
    """A connection that is not greeted yet."""

    origin: str
    """``origin_of`` the peer's address."""
    until: float
    """Deadline for the greeting, in the loop's seconds."""

    def end(self) -> None:
        """End the connection at once, in any state."""


Placed = TypeVar("Placed", Stranger, Admitted)


def most_of_one_origin(connections: Iterable[Placed]) -> list[Placed]:
    """The connections of the address with most of them, in their order; of several such addresses, the first."""
    connections = list(connections)
    counts = Counter(one.origin for one in connections)
    if not counts:
        return []
    [(crowd, _)] = counts.most_common(1)
    return [one for one in connections if one.origin == crowd]


class Admission:
    """The connections of one bookie. Owned by the loop."""

    def __init__(
        self, storage: Storage, refusals: Refusals, bytes_in_flight_max: int, unfinished_bytes_max: int
    ) -> None:
        self._storage = storage
        self._refusals = refusals
        self.memory = PeerMemory(unfinished_bytes_max)
        """Memory that peers make the bookie hold."""
        self._memory_timer: asyncio.TimerHandle | None = None
        self._bytes_in_flight_max = bytes_in_flight_max
        self.connections: set[Admitted] = set()
        """Greeted connections."""
        self.strangers: dict[Stranger, None] = {}
        """Oldest first."""
        self.heard = 0
        """Number of arrivals of bytes, over all connections."""
        self.heard_last: Admitted | None = None
        self._turned_at = 0.0
        """Seconds of ``monotonic`` at the last change of ``heard_last``."""
        self.paused = False
        """Is reading from all connections paused?"""
        self._stopping = False
        self._all_lost = asyncio.Event()
        self._warned_at = self._looked_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def connections_max(self) -> int:
        """Limit of connections. The limit of open files is read each time, as it may be raised from outside."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 1 << 30 if limit == resource.RLIM_INFINITY else max(limit // 2, limit - _DESCRIPTORS_KEPT)

    def make_room(self, origin: str) -> bool:
        """May a connection from ``origin`` be admitted? It may push out another connection."""
        most = self.connections_max()
        strangers_max = min(max(most // _STRANGERS_PART, _STRANGERS_MIN), _STRANGERS_MAX)
        if len(self.strangers) >= strangers_max:
            self.end_oldest(self.strangers)
        elif len(self.strangers) + len(self.connections) >= most:
            self._warn(most)
            return self.end_oldest(self.strangers) or self._end_silent(origin)
        return True

    def end_oldest(self, strangers: Iterable[Stranger]) -> bool:
        """End the oldest of ``strangers``, of the address with most of them. False if there is none."""
        for stranger in most_of_one_origin(strangers)[:1]:
            self.strangers.pop(stranger, None)
            stranger.end()
            return True
        return False

    def arrived(self, stranger: Stranger) -> None:
        """Count an accepted connection."""
        self.strangers[stranger] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(stranger.until, self._end_late)

    def greeted(self, stranger: Stranger, connection: Admitted) -> None:
        self.strangers.pop(stranger, None)
        self.connections.add(connection)

    def lost(self, stranger: Stranger | None, connection: Admitted | None = None) -> None:
        """Forget an ended connection."""
        if stranger is not None:
            self.strangers.pop(stranger, None)
        if connection is not None:
            self.connections.discard(connection)
            self.memory.forget(connection)
            if connection is self.heard_last:
                self.heard_last = None
        if not self.connections:
            self._all_lost.set()

    def turn_to(self, connection: Admitted) -> None:
        """Note bytes on this connection, after bytes on another connection."""
        self.heard_last, self._turned_at = connection, monotonic()

    @property
    def is_shared(self) -> bool:
        """Would a short wait of the loop delay any client but the last active client? Clients silent for a second, without unsent
        entries, don't count."""
        connections = self.connections
        return len(connections) > 1 and (
            monotonic() - self._turned_at < _SILENT_SECONDS
            or len(connections) > _LOOKED_AT_MAX
            or any(one.is_served for one in connections if one is not self.heard_last)
        )

    def check_pressure(self) -> None:
        """Pause reading if too many bytes wait for their sync."""
        if not self.paused and self._storage.bytes_in_flight > self._bytes_in_flight_max:
            self._pause(True)
            self._storage.when_below(self._bytes_in_flight_max // 2, self._relieve)

    def holds(self, connection: Admitted, known: bool, held: Held) -> None:
        """Note the memory that a peer makes the bookie hold. ``known``: was an add of it acknowledged? It may end connections."""
        self._obey(self.memory.holds(connection, connection.origin, known, held))
        if self._memory_timer is None and len(self.memory):
            self._memory_timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._memory_timer = None
        self._obey(self.memory.tick(monotonic(), not self.paused))
        if len(self.memory):
            self._memory_timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _obey(self, actions: list[Action]) -> None:
        for action in actions:
            connection = cast(Admitted, action.peer)
            match action:
                case Shrink():
                    connection.release()
                case End(_, why):
                    self._refusals.tell(connection.peer, why)
                    connection.refuse(why)

    def stop_reading(self) -> None:
        self._stopping = True
        self._pause(True)

    async def end_all(self, seconds_max: float) -> None:
        """Close every connection; abort the rest after ``seconds_max``."""
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

    def _end_late(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for stranger in list(self.strangers):
            if stranger.until > loop.time():
                self._timer = loop.call_at(stranger.until, self._end_late)
                break
            self.strangers.pop(stranger, None)
            stranger.end()

    def _end_silent(self, origin: str) -> bool:
        """Make room for a connection from ``origin``: of the address with the most connections, end the longest silent, if
        ``origin`` has far fewer."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        crowd = most_of_one_origin(self.connections)
        if len(crowd) < 2 + sum(one.origin == origin for one in self.connections):
            return False
        silent = min(crowd, key=lambda one: one.heard)
        self.connections.discard(silent)
        silent.abort()
        return True

    def _warn(self, most: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            log.warning(
                "there are %d connections, as many as there may be: newcomers are refused, or take the place of strangers and of "
                "the silent ones of addresses with many; raise the limit of open files (ulimit -n), or have fewer clients",
                most,
            )

    def _relieve(self) -> None:
        if not self._stopping:
            self._pause(False)

    def _pause(self, paused: bool) -> None:
        self.paused = paused
        for connection in list(self.connections):
            connection.adjust_reading()
