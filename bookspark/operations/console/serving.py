"""HTTP of the console: an ASGI application, served by uvicorn in a thread of its own.

Law: a stranger at the port costs little, and keeps nobody out. A connection without a whole request, or with an answer that is
not read, ends after ``_SECONDS_MAX``. Above ``_CONNECTIONS_MAX`` connections, the oldest one that waits for its peer gives way
to a newcomer, of the address that has most. Every answer has the headers, also those of uvicorn.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Sequence

from bookspark.errors import BookieError
from bookspark.support.addresses import address_text, origin_of
from bookspark.support.extras import extra_needed

with extra_needed("the console"):
    import h11
    import uvicorn
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.h11_impl import H11Protocol

_CONNECTIONS_MAX = 128
_SECONDS_MAX = 10.0
_HEAD_BYTES_MAX = 16 << 10
_KEEP_ALIVE_SECONDS = 5
_END_SECONDS_MAX = 10.0


class _Connection(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late: asyncio.TimerHandle | None = None
        self._plan()
        if len(self.connections) > _CONNECTIONS_MAX:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._plan()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # Its answer has gone already, before the end of its request.
            self.transport.abort()
            return
        headers = [*self.server_state.default_headers, (b"connection", b"close")]
        reply = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (reply, h11.Data(data=f"{msg}\n".encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def at_work(self) -> bool:
        """A page is being made for it, and its peer reads the earlier ones."""
        return self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused

    def _plan(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(_SECONDS_MAX, self._end)

    def _end(self) -> None:
        if self.at_work:
            self._plan()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, _Connection) and not one.at_work]
        of = {one: origin_of(one.client[0] if one.client else "") for one in waiting}
        [(most, _)] = Counter(of.values()).most_common(1)
        oldest = min(
            (one for one in waiting if of[one] == most), key=lambda one: one._late.when() if one._late else 0.0
        )
        oldest.transport.abort()


class Served:
    """Answers at ``host:port`` until ``close``."""

    def __init__(self, app: ASGIApp, host: str, port: int, headers: Sequence[tuple[str, str]]) -> None:
        """``port``: 0 is any free port. ``headers``: of every answer. Raises BookieError if the address can't be bound."""
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._socket = socket.create_server(address[:2], family=family, backlog=_CONNECTIONS_MAX)
        except OSError as error:
            raise BookieError(
                f"the console can't be answered at {address_text(host, port)}: {error}; set the port to another one, or to 0"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=list(headers),
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="console web", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._server.server_state.connections)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(_END_SECONDS_MAX)
        self._socket.close()
