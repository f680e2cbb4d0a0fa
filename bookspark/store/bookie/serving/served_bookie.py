"""State shared by all connections: the bookie's ids, its storage, its secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookspark.protocol.bookie.address_rates import AddressRates
from bookspark.store.bookie.serving.poll_timers import PollTimers
from bookspark.store.bookie.serving.read_room import ReadRoom
from bookspark.store.bookie.serving.refusals import Refusals
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Header
from bookspark.store.wire.messages import BookieStatus, FetchFrom

Fetched = Callable[[int, int, int, str], None]
"""``fetched(status, last, byte_count, why)``: end of a fetch. ``last``: the last fetched entry id; ``why``: the reason of the
end."""
Fetch = Callable[[Header, FetchFrom, Fetched], None]
"""Answers a FETCH. Returns at once; ``fetched`` is called once, on the loop."""

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
