"""A connection of a client of BookKeeper: the flow of ours, with BookKeeper's frames.

Law: as in ``bookie.serving.connection``: while a peer does not read its answers, its requests wait; bytes that are no request end
the connection. BookKeeper's protocol has no greeting, and a first request may be a long add. So a connection is admitted when its
first bytes are those of a request (``requests.first_message_size``).

A bookie with a certificate serves nobody in clear text. There a connection begins with START_TLS, is a stranger until TLS has
shaken hands, and counts with the handshakes of the other door. What is asked before is answered UNAUTHORIZED, and a byte behind
START_TLS that came before its answer ends the connection: it would be taken for one that TLS had protected.

Source: BookKeeper's ``BookieRequestProcessor.processStartTLSRequestV3`` (there, clients without TLS are served beside).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from enum import Enum

from bookspark.servers.bookkeeper.dispatch import Dispatch
from bookspark.servers.bookkeeper.messages import Operation
from bookspark.servers.bookkeeper.requests import Asked, RequestReceiver, answer
from bookspark.servers.bookkeeper.shared_by_clients import SharedByClients
from bookspark.store.bookie.serving.admission import STRANGER_SECONDS, Admission, Stranger
from bookspark.store.bookie.serving.connection import Connection
from bookspark.store.bookie.serving.porch import Porch
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX
from bookspark.store.wire.frames import HELLO_BYTES_MAX
from bookspark.store.wire.header import Status, WireError


class _Stage(Enum):
    IN_CLEAR_TEXT = "START_TLS has to come"
    SHAKING_HANDS = "TLS has begun"
    OPEN = "requests are served"


class BookKeeperConnection(Connection):
    """A ``peer.Peer`` on a socket, of a client of BookKeeper."""

    def __init__(
        self,
        shared: SharedByClients,
        admission: Admission,
        chunks: ChunkPool,
        stranger: Stranger,
        address: str,
        porch: Porch,
        tls: ssl.SSLContext | None,
    ) -> None:
        """``tls``: the context of this connection; None serves in clear text."""
        self._shared = shared
        self._caller = stranger
        self._porch = porch
        self._tls = tls
        self._stage = _Stage.OPEN if tls is None else _Stage.IN_CLEAR_TEXT
        self._early: list[Asked] = []
        """Requests that TLS brought before this side was told that it stands."""
        self._shaking: asyncio.Task[None] | None = None
        super().__init__(shared.bookie, admission, chunks, stranger, address)
        self.name_peer("BookKeeper")

    def receiver(self, chunks: ChunkPool) -> RequestReceiver:
        """What divides the bytes that come into requests."""
        self._requests = RequestReceiver(chunks, FRAME_BYTES_MAX if self._tls is None else HELLO_BYTES_MAX)
        return self._requests

    def received(self, count: int) -> Iterator[Asked]:
        """The requests that ``count`` more bytes complete. Raises WireError."""
        requests = self._requests.requests(count)
        match self._stage:
            case _Stage.OPEN:
                return requests
            case _Stage.SHAKING_HANDS:
                self._early += requests
            case _Stage.IN_CLEAR_TEXT:
                self._take_in_clear_text(requests)
        return iter(())

    def requests(self, bookie: ServedBookie) -> Dispatch:
        """What takes these requests."""
        return Dispatch(self._shared, self)

    def refusal(self, why: str) -> bytes:
        """BookKeeper's protocol has no last words."""
        return b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._stage is _Stage.OPEN:
            self.greeted()

    # -- TLS

    def _take_in_clear_text(self, requests: Iterator[Asked]) -> None:
        for asked in requests:
            if asked.operation is Operation.START_TLS:
                if next(requests, None) is not None or not self._requests.is_empty:
                    raise WireError("bytes in clear text behind START_TLS")
                self._stage = _Stage.SHAKING_HANDS
                self.send(answer(asked, Status.OK))
                self.flush()
                self._shaking = asyncio.get_running_loop().create_task(self._shake_hands())
            elif asked.operation is Operation.AUTH:
                raise WireError("AUTH in clear text, and this bookie serves clients with TLS alone")
            else:
                self.send(answer(asked, Status.UNAUTHORIZED))

    async def _shake_hands(self) -> None:
        raw, context = self._transport, self._tls
        if raw is None or context is None:
            return
        self._porch.shakes_hands(self._caller)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                raw, self, context, server_side=True, ssl_handshake_timeout=STRANGER_SECONDS
            )
        except OSError as error:
            self._refusals.tell(self.peer, error)
            raw.abort()
            return
        finally:
            self._porch.handshakes.pop(self._caller, None)
        if secured is None or self._transport is None:
            # It was ended meanwhile.
            raw.abort()
            return
        self.goes_on_over(secured)
        self._stage = _Stage.OPEN
        self.greeted()
        early, self._early = self._early, []
        self.take(early)
