"""State shared by all connections: the bookie's ids, its storage, its secrets; writers, refusals, time-outs of long polls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

from bookspark.protocol.bookie.address_rates import AddressRates
from bookspark.store.bookie.serving.read_room import ReadRoom
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Header
from bookspark.store.wire.messages import BookieStatus, FetchFrom

Fetched = Callable[[int, int, int, str], None]
"""``fetched(status, last, byte_count, why)``: end of a fetch. ``last``: the last fetched entry id; ``why``: the reason of the
end."""
Fetch = Callable[[Header, FetchFrom, Fetched], None]
"""Answers a FETCH. Returns at once; ``fetched`` is called once, on the loop."""

log = logging.getLogger(__name__)


# -- Writers

_WRITERS_MAX = 1 << 16
"""Ledgers whose writer's connection a bookie remembers: some 10 MB."""


class Writers:
    """Connections of the ledgers' writers, newest ledgers only.

    Law: a sign of life, and nothing more: a process may keep its connection and have dropped its writer."""

    def __init__(self) -> None:
        self._connections: dict[int, WriterConnection] = {}

    def wrote(self, ledger_id: int, connection: WriterConnection) -> None:
        if self._connections.get(ledger_id) is not connection:
            self._connections.pop(ledger_id, None)
            self._connections[ledger_id] = connection
            if len(self._connections) > _WRITERS_MAX:
                del self._connections[next(iter(self._connections))]

    def is_connected(self, ledger_id: int) -> bool:
        connection = self._connections.get(ledger_id)
        return connection is not None and connection.is_open


class WriterConnection:
    """Whether a connection is open, without the connection."""

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        self.is_open = True


# -- Refused requests

TOLD_SECONDS = 5.0


class Refusals:
    """Refusals of one bookie. Owned by the loop.

    Law: at most one log message every few seconds, with their count, because peers can cause any number of them."""

    def __init__(self) -> None:
        self.count = 0
        self._untold = 0
        self._told_at = float("-inf")

    def tell(self, peer: str, why: object) -> None:
        """Count a refused request or connection of ``peer``, and log it if the last message is old enough."""
        self.count += 1
        self._untold += 1
        if (now := time.monotonic()) - self._told_at >= TOLD_SECONDS:
            log.warning("%d requests or connections were refused; the last of %s: %s", self._untold, peer, why)
            self._untold, self._told_at = 0, now


# -- Time-outs of long polls

_GRAIN_SECONDS = 0.005
_ENDED_A_TURN = 256


class PollTimers:
    """The time-outs of one bookie's long polls: one timer for all of them. Used on the loop.

    Law: a poll ends at most ``_GRAIN_SECONDS`` after its time-out. Some hundred polls end in one turn of the loop, the others in
    later turns. Timers of their own would all fire in one turn, for ten thousand readers that began together."""

    def __init__(self) -> None:
        self._by_time: dict[int, dict[int, Callable[[], None]]] = {}
        """Time, in grains of the loop's clock → its polls, by number."""
        self._times: list[int] = []
        """A heap, also of times without polls."""
        self._last = 0
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0

    def add(self, seconds: float, end: Callable[[], None]) -> tuple[int, int]:
        """Call ``end`` in ``seconds``. Returns the argument of ``remove``."""
        loop = asyncio.get_running_loop()
        at = ceil((loop.time() + seconds) / _GRAIN_SECONDS)
        ending = self._by_time.get(at)
        if ending is None:
            ending = self._by_time[at] = {}
            heappush(self._times, at)
        self._last += 1
        ending[self._last] = end
        if self._timer is None or at < self._timer_at:
            self._wait(loop)
        return at, self._last

    def remove(self, timer: tuple[int, int]) -> None:
        """Cancel an ``end``; no error if it was called."""
        self._by_time.get(timer[0], {}).pop(timer[1], None)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._times[0]
        self._timer = loop.call_at(self._timer_at * _GRAIN_SECONDS, self._end_due, loop)

    def _end_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now, left = loop.time() / _GRAIN_SECONDS, _ENDED_A_TURN
        while self._times and self._times[0] <= now:
            ending = self._by_time[self._times[0]]
            while ending and left:
                left -= 1
                _, end = ending.popitem()
                try:
                    end()
                except Exception as error:
                    loop.call_exception_handler({"message": "a long poll could not be ended", "exception": error})
            if ending:
                self._timer, self._timer_at = loop.call_soon(self._end_due, loop), self._times[0]
                return
            del self._by_time[heappop(self._times)]
        if self._times:
            self._wait(loop)


# -- The shared state


class ServedBookie(NamedTuple):
    """Shared state of one bookie's connections. Created by ``BookieServer``."""

    storage: Storage
    bookie_id: str
    """Sent to clients in the answer to HELLO."""
    incarnation: int
    """Random per start of the process, 64 bits. Part of every answer."""
    address: Callable[[], str]
    """``host:port`` that the bookie advertises."""
    secrets: Callable[[], tuple[bytes, ...]]
    """Current secrets; a client has to prove one. Empty: none needed."""
    wrong_proofs: AddressRates
    """Pauses of addresses that sent a wrong proof of the secret."""
    requests_in_flight_max: int
    """Unanswered requests of one connection at most."""
    read_room: ReadRoom
    poll_timers: PollTimers
    refusals: Refusals
    writers: Writers
    status: Callable[[], BookieStatus]
    """Current status; to be called on the loop."""
    collect: Callable[[], int]
    """Starts a garbage collection and returns its number; to be called on the loop."""
    fetch: Callable[[], Fetch | None] = lambda: None
    """The fetcher of entries from other bookies, or None."""
