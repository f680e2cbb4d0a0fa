"""How much a bookie takes in: how many connections it has, which one goes when there are too many, and when it stops reading.

Law: a bookie takes no more than it can write. When more bytes of adds than ``request_bytes_in_flight_max`` wait for their sync,
it reads from no connection until half of them are durable, and the clients' sockets fill up.

Connections are counted from their acceptance to their end, and there are never so many that the bookie's own files lack a
descriptor: a log that can't be begun would retire a sound disk. A connection is a *stranger* until it is greeted, which is when
TLS, the secret and HELLO are through. Strangers are a small part of all connections, and each has ``STRANGER_SECONDS``.

Who goes when there is no room for one more:

1. the oldest stranger, of the address that has the most strangers. A client needs a few round trips to be greeted, so it is
   through before those that came after it have pushed it out; and many strangers of one address push out each other;
2. if there is no stranger: of the address that has the most connections, the one that was silent for longest, if that address
   has at least two more than the newcomer's. So nobody who is greeted takes every place, and a client never loses its place to
   a newcomer of its own address;
3. otherwise the newcomer, which is told why.

An address is an IPv4 address, or the first 64 bits of an IPv6 address, which one host can fill alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Iterable
from time import monotonic
from typing import Protocol, TypeVar

from bookspark.store.bookie.storage import Storage

STRANGER_SECONDS = 5.0
"""How long a connection may take to be greeted."""
_DESCRIPTORS_KEPT = 512
"""Kept for the bookie's own files, but at most half of what the process may open."""
_STRANGERS_PART = 4
_STRANGERS_MIN, _STRANGERS_MAX = 16, 1024
_LOOK_SECONDS = 0.1
"""Looking through all connections for one that is silent takes a while when they are many."""
_WARN_SECONDS = 10.0
_SILENT_SECONDS = 1.0
_LOOKED_AT_MAX = 16
"""Of more connections, some one is always taken to be heard: to look at them takes longer than what it is for."""

log = logging.getLogger(__name__)


class Admitted(Protocol):
    """A connection, as far as its admission goes."""

    origin: str
    """``origin_of`` the peer's address."""
    heard: int
    """Grows with each arrival of bytes on any connection: that of the last one here."""

    @property
    def is_served(self) -> bool:
        """Does the peer wait for entries that it asked for, or are some of them not sent yet?"""

    def adjust_reading(self) -> None:
        """Begin or stop reading from the socket, as ``Admission.paused`` says."""

    def close(self) -> None:
        """Send what is answered, then end the connection."""

    def abort(self) -> None:
        """End the connection at once."""


class Stranger(Protocol):
    """A connection that is not greeted yet."""

    origin: str
    """``origin_of`` the peer's address."""
    until: float
    """When it has to be greeted, in the loop's seconds."""

    def end(self) -> None:
        """End it at once, in whatever state it is."""


Placed = TypeVar("Placed", Stranger, Admitted)


def origin_of(host: str) -> str:
    """The address by which connections are counted."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def most_of_one_origin(connections: Iterable[Placed]) -> list[Placed]:
    """The connections of the address that has most of them, in their order; of several such addresses, the first one's."""
    connections = list(connections)
    counts = Counter(one.origin for one in connections)
    if not counts:
        return []
    [(crowd, _)] = counts.most_common(1)
    return [one for one in connections if one.origin == crowd]


class Admission:
    """The connections of one bookie. Owned by the loop."""

    def __init__(self, storage: Storage, bytes_in_flight_max: int) -> None:
        self._storage = storage
        self._bytes_in_flight_max = bytes_in_flight_max
        self.connections: set[Admitted] = set()
        """Those that are greeted."""
        self.strangers: dict[Stranger, None] = {}
        """The oldest first."""
        self.heard = 0
        """How often bytes came, on any connection."""
        self.heard_last: Admitted | None = None
        """The connection on which bytes came last."""
        self._turned_at = 0.0
        """When bytes came last on another connection than before, in seconds of ``monotonic``."""
        self.paused = False
        """Is nothing read from any connection at present?"""
        self._stopping = False
        self._all_lost = asyncio.Event()
        self._warned_at = self._looked_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        """Runs out when the oldest stranger's time is up."""

    def connections_max(self) -> int:
        """How many connections there may be. The limit of open files is read each time, as it can be raised from outside."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 1 << 30 if limit == resource.RLIM_INFINITY else max(limit // 2, limit - _DESCRIPTORS_KEPT)

    def make_room(self, origin: str) -> bool:
        """May there be one more connection, from ``origin``? Another one may have to go for it."""
        most = self.connections_max()
        strangers_max = min(max(most // _STRANGERS_PART, _STRANGERS_MIN), _STRANGERS_MAX)
        if len(self.strangers) >= strangers_max:
            self.end_oldest(self.strangers)
        elif len(self.strangers) + len(self.connections) >= most:
            self._warn(most)
            return self.end_oldest(self.strangers) or self._end_silent(origin)
        return True

    def end_oldest(self, strangers: Iterable[Stranger]) -> bool:
        """End the oldest of ``strangers``, of the address that has most of them. False if there is none."""
        for stranger in most_of_one_origin(strangers)[:1]:
            self.strangers.pop(stranger, None)
            stranger.end()
            return True
        return False

    def arrived(self, stranger: Stranger) -> None:
        """A connection was accepted."""
        self.strangers[stranger] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(stranger.until, self._end_late)

    def greeted(self, stranger: Stranger, connection: Admitted) -> None:
        """A stranger has become a client."""
        self.strangers.pop(stranger, None)
        self.connections.add(connection)

    def lost(self, stranger: Stranger | None, connection: Admitted | None = None) -> None:
        """A connection has ended: a stranger, or one that is greeted."""
        if stranger is not None:
            self.strangers.pop(stranger, None)
        if connection is not None:
            self.connections.discard(connection)
            if connection is self.heard_last:
                self.heard_last = None
        if not self.connections:
            self._all_lost.set()

    def turn_to(self, connection: Admitted) -> None:
        """Bytes came on this connection, and on another one before."""
        self.heard_last, self._turned_at = connection, monotonic()

    @property
    def is_shared(self) -> bool:
        """Would anybody but the client that was heard last be held up if the loop waited for a moment? Whoever said nothing for a
        second and gets nothing would not be, and is then as one that comes anew."""
        connections = self.connections
        return len(connections) > 1 and (
            monotonic() - self._turned_at < _SILENT_SECONDS
            or len(connections) > _LOOKED_AT_MAX
            or any(one.is_served for one in connections if one is not self.heard_last)
        )

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

    def _end_late(self) -> None:
        """End the strangers whose time is up."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for stranger in list(self.strangers):
            if stranger.until > loop.time():
                self._timer = loop.call_at(stranger.until, self._end_late)
                break
            self.strangers.pop(stranger, None)
            stranger.end()

    def _end_silent(self, origin: str) -> bool:
        """End the connection that was silent for longest, of the address that has the most, if ``origin`` has far fewer."""
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
