"""Connections to bookies: one per bookie and client, requests pipelined, found by bookie id.

Law: each request gets exactly one answer, with one of the three classes of responses: the bookie's own, or Unknown when it could
not be sent, was cut off or took too long. A connection is used only after the bookie said that it is the one that was asked
for, as an address can have passed to another. Memory is bounded: a bookie that takes nothing in while
``bookie_bytes_queued_max`` wait for it is cut off.

All of it runs in the client's I/O loop; callers in other threads go through the loop's ``submit`` and ``call``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

from bookspark.client.config import ClientConfig
from bookspark.metadata.store import BookieRegistration, MetadataStore
from bookspark.protocol.errors import BookKeeperError
from bookspark.protocol.responses import Positive, Response, Unknown, UnknownReason
from bookspark.wire.frames import Frame, FrameReceiver, control_frame
from bookspark.wire.header import PROTOCOL_VERSION, Flag, Header, Kind, WireError

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


class Answer(NamedTuple):
    """``header`` is None if the bookie did not answer; ``batches`` are the batch frames that came before it."""

    response: Response
    header: Header | None = None
    batches: tuple[Frame, ...] = ()
    body: memoryview = memoryview(b"")


OnAnswer = Callable[[Answer], None]


class _Pending:
    __slots__ = ("batches", "on_answer", "timer")

    def __init__(self, on_answer: OnAnswer, timer: asyncio.TimerHandle | None) -> None:
        self.on_answer = on_answer
        self.timer = timer
        self.batches: list[Frame] = []

    def finish(self, answer: Answer) -> None:
        if self.timer is not None:
            self.timer.cancel()
        try:
            self.on_answer(answer)
        except Exception:
            log.exception("handling a bookie's answer failed")


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection. Lost once and for all; ``Connections`` makes the next."""

    def __init__(
        self,
        bookie_id: str,
        bytes_queued_max: int,
        on_lost: Callable[[_Connection], None],
        on_ended: Callable[[_Connection], None],
    ) -> None:
        self.bookie_id = bookie_id
        self._bytes_queued_max = bytes_queued_max
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._receiver = FrameReceiver()
        self._pending: dict[int, _Pending] = {}
        self._transport: asyncio.Transport
        self.lost: Unknown | None = None
        self.ended = asyncio.Event()
        """Set once the socket is closed too."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._receiver.received(nbytes):
                self._received(frame)
        except WireError as error:
            self.abort(f"sent what is no answer: {error}")

    def _received(self, frame: Frame) -> None:
        header = frame.header
        pending = self._pending.get(header.request_id)
        if pending is None:
            return  # timed out before
        if header.flags & Flag.MORE:
            pending.batches.append(frame)
            return
        del self._pending[header.request_id]
        pending.finish(Answer(header.response(), header, tuple(pending.batches), frame.body))

    def send(self, request_id: int, frame: bytes, on_answer: OnAnswer, timeout_seconds: float | None) -> None:
        if self.lost is not None:
            on_answer(Answer(self.lost))
            return
        timer = None
        if timeout_seconds is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(timeout_seconds, self._timed_out, request_id, timeout_seconds)
        self._pending[request_id] = _Pending(on_answer, timer)
        self._transport.write(frame)
        if self._transport.get_write_buffer_size() > self._bytes_queued_max:
            self.abort("takes nothing in")

    def _timed_out(self, request_id: int, timeout_seconds: float) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            pending.finish(Answer(Unknown(UnknownReason.TIMEOUT, f"{timeout_seconds:g} s")))

    def abort(self, why: str) -> None:
        """Cut the connection; everything under way is answered Unknown."""
        if self.lost is None:
            self.lost = Unknown(UnknownReason.UNREACHABLE, why)
            self._transport.abort()
            pending, self._pending = list(self._pending.values()), {}
            for one in pending:
                one.finish(Answer(self.lost))
            self._on_lost(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.abort(str(error) if error else "closed by the bookie")
        self.ended.set()
        self._on_ended(self)


class Connections:
    """All bookies, by id. Connects when something is to be sent, and keeps on trying for bookies that a writer needs."""

    def __init__(self, store: MetadataStore, config: ClientConfig, metadata_threads: ThreadPoolExecutor) -> None:
        self._store = store
        self._config = config
        self._threads = metadata_threads
        self._request_ids = itertools.count(1)
        self._addresses: dict[str, BookieRegistration] = {}
        self._open: set[_Connection] = set()
        self._ready: dict[str, _Connection] = {}
        self._connecting: dict[str, list[Callable[[_Connection | Unknown], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted: dict[str, set[Callable[[str], None]]] = {}
        self._reconnecting: set[str] = set()
        self._failed_at: dict[str, float] = {}
        self._closed = False

    def quarantined(self) -> list[str]:
        """Bookies that could not be reached within the last ``quarantine_seconds``; from any thread."""
        since = time.monotonic() - self._config.quarantine_seconds
        return [bookie_id for bookie_id, failed_at in self._failed_at.copy().items() if failed_at > since]

    def next_request_id(self) -> int:
        """A request id that this client has not used; the same frame may go to several bookies under one."""
        return next(self._request_ids)

    def send(
        self, bookie_id: str, request_id: int, frame: bytes, on_answer: OnAnswer, timeout_seconds: float | None = None
    ) -> None:
        """Send one frame; ``on_answer`` is called exactly once, perhaps before this returns."""
        connection = self._ready.get(bookie_id)
        if connection is not None:
            connection.send(request_id, frame, on_answer, timeout_seconds)
            return

        def connected(outcome: _Connection | Unknown) -> None:
            if isinstance(outcome, Unknown):
                on_answer(Answer(outcome))
            else:
                outcome.send(request_id, frame, on_answer, timeout_seconds)

        self._connect(bookie_id, connected)

    def want(self, bookie_id: str, back: Callable[[str], None]) -> None:
        """Keep a connection to this bookie; call ``back`` each time that there is a new one."""
        self._wanted.setdefault(bookie_id, set()).add(back)

    def unwant(self, bookie_id: str, back: Callable[[str], None]) -> None:
        self._wanted.get(bookie_id, set()).discard(back)

    async def close(self) -> None:
        """Cut all connections; whatever is sent later is answered Unknown."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._open):
            connection.abort("the client was closed")
            await connection.ended.wait()

    # -- connecting

    def _connect(self, bookie_id: str, connected: Callable[[_Connection | Unknown], None]) -> None:
        if self._closed:
            connected(Unknown(UnknownReason.UNREACHABLE, "the client was closed"))
        elif bookie_id in self._connecting:
            self._connecting[bookie_id].append(connected)
        else:
            self._connecting[bookie_id] = [connected]
            self._spawn(self._connect_once(bookie_id))

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_once(self, bookie_id: str) -> None:
        outcome: _Connection | Unknown
        try:
            outcome = await asyncio.wait_for(self._dial(bookie_id), self._config.connect_timeout_seconds)
        except TimeoutError:
            outcome = Unknown(UnknownReason.UNREACHABLE, f"no answer in {self._config.connect_timeout_seconds:g} s")
        except (OSError, BookKeeperError) as error:
            outcome = Unknown(UnknownReason.UNREACHABLE, str(error))
        except asyncio.CancelledError:
            outcome = Unknown(UnknownReason.UNREACHABLE, "the client was closed")
        if isinstance(outcome, Unknown):
            self._addresses.pop(bookie_id, None)
            self._failed_at[bookie_id] = time.monotonic()
        elif outcome.lost is not None:
            outcome = outcome.lost
        else:
            self._ready[bookie_id] = outcome
            self._failed_at.pop(bookie_id, None)
        for connected in self._connecting.pop(bookie_id, []):
            connected(outcome)
        if isinstance(outcome, Unknown):
            self._keep_trying(bookie_id)
        else:
            for back in list(self._wanted.get(bookie_id, ())):
                back(bookie_id)

    async def _dial(self, bookie_id: str) -> _Connection:
        """Connect and greet. An address that is known from before is tried first, but is not the last word: a bookie that
        was started again has another one."""
        known = self._addresses.get(bookie_id)
        if known is not None:
            try:
                return await self._greet(known)
            except OSError as error:
                log.debug("%s is not at %s any more: %s", bookie_id, known.address, error)
        self._addresses = await asyncio.get_running_loop().run_in_executor(self._threads, self._store.bookies)
        found = self._addresses.get(bookie_id)
        if found is None:
            raise ConnectionError("not registered")
        return await self._greet(found)

    async def _greet(self, registration: BookieRegistration) -> _Connection:
        """A connection to this bookie and no other. Raises OSError."""
        loop = asyncio.get_running_loop()
        bookie_id = registration.bookie_id
        host, _, port = registration.address.rpartition(":")
        _, connection = await loop.create_connection(
            lambda: _Connection(bookie_id, self._config.bookie_bytes_queued_max, self._lost, self._open.discard),
            host.strip("[]"),
            int(port),
        )
        self._open.add(connection)
        hello: asyncio.Future[Answer] = loop.create_future()

        def greeted(answer: Answer) -> None:
            if not hello.done():
                hello.set_result(answer)

        request = Header(Kind.HELLO, self.next_request_id(), value=PROTOCOL_VERSION)
        connection.send(request.request_id, control_frame(request), greeted, None)
        try:
            answer = await hello
        except asyncio.CancelledError:
            connection.abort("no answer to HELLO")
            raise
        found = bytes(answer.body).decode(errors="replace")
        if not isinstance(answer.response, Positive) or found != bookie_id:
            connection.abort(f"{registration.address} is {found or 'no bookie'}")
            raise ConnectionError(f"{registration.address} is {found or 'no bookie of this protocol'}, not {bookie_id}")
        return connection

    def _lost(self, connection: _Connection) -> None:
        if self._ready.get(connection.bookie_id) is connection:
            del self._ready[connection.bookie_id]
            self._addresses.pop(connection.bookie_id, None)
            self._keep_trying(connection.bookie_id)

    def _keep_trying(self, bookie_id: str) -> None:
        if self._wanted.get(bookie_id) and bookie_id not in self._reconnecting and not self._closed:
            self._reconnecting.add(bookie_id)
            self._spawn(self._reconnect(bookie_id))

    async def _reconnect(self, bookie_id: str) -> None:
        try:
            for delay in itertools.chain(_BACKOFF_SECONDS, itertools.repeat(_BACKOFF_SECONDS[-1])):
                await asyncio.sleep(delay)
                if bookie_id in self._ready or not self._wanted.get(bookie_id):
                    return
                tried: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                self._connect(bookie_id, tried.set_result)
                await tried
        finally:
            self._reconnecting.discard(bookie_id)
