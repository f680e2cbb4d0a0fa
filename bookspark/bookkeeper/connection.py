"""A connection of a client of BookKeeper: the flow of ours, with BookKeeper's frames.

Law: as in ``bookie.serving.connection``: while a peer does not read its answers, its requests wait; bytes that are no request end
the connection. BookKeeper's protocol has no greeting, and a first request may be a long add. So a connection is admitted when its
first bytes are those of a request (``requests.first_message_size``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bookspark.bookie.serving.admission import Admission, Stranger
from bookspark.bookie.serving.connection import Connection
from bookspark.bookie.serving.served_bookie import ServedBookie
from bookspark.bookkeeper.dispatch import Dispatch
from bookspark.bookkeeper.requests import Asked, RequestReceiver
from bookspark.bookkeeper.shared_by_clients import SharedByClients
from bookspark.wire.chunks import ChunkPool


class BookKeeperConnection(Connection):
    """A ``peer.Peer`` on a socket, of a client of BookKeeper."""

    def __init__(
        self, shared: SharedByClients, admission: Admission, chunks: ChunkPool, stranger: Stranger, address: str
    ) -> None:
        self._shared = shared
        super().__init__(shared.bookie, admission, chunks, stranger, address)
        self.name_peer("BookKeeper")

    def receiver(self, chunks: ChunkPool) -> RequestReceiver:
        """What divides the bytes that come into requests."""
        self._requests = RequestReceiver(chunks)
        return self._requests

    def received(self, count: int) -> Iterator[Asked]:
        """The requests that ``count`` more bytes complete. Raises WireError."""
        return self._requests.requests(count)

    def requests(self, bookie: ServedBookie) -> Dispatch:
        """What takes these requests."""
        return Dispatch(self._shared, self)

    def refusal(self, why: str) -> bytes:
        """BookKeeper's protocol has no last words."""
        return b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.greeted()
