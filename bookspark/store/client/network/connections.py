"""Connections to bookies: one for each bookie and client, by bookie id; patience with slow bookies, quarantine of failed ones.

Law: each request gets exactly one answer (``bookie_connection``), and only from the intended bookie (``hello``). Memory is
bounded: an attempt to connect queues no more bytes than a connection. A failed bookie is in quarantine for a while. A bookie
whose address the metadata store does not return has not failed.

All of it runs in the client's I/O loop. Other threads use the loop's ``submit`` and ``call``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.bookie_connection import (
    Answer,
    BookieConnection,
    OnBatch,
    OnBookiesAnswer,
    Question,
    Request,
)
from bookspark.store.client.network.hello import ClientSecurity, say_hello
from bookspark.store.client.network.traffic import ClientTraffic
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import Buffer
from bookspark.store.wire.keepalive import notice_lost_peer
from bookspark.support.addresses import split_address
from bookspark.support.metrics.described import Figures
from bookspark.support.threads import BackOff, Threads

log = logging.getLogger(__name__)


# -- Patience of writers with a bookie slower than its peers


_REFILL = 1 / 20
_CONTINUOUS_SECONDS = 0.25
"""Hold-ups at most this far apart count as one. Drivers look every 0.05 s."""


class Patience:
    """The patience of one client's writers with each bookie that is slower than its peers, in seconds.

    Law: a bookie may hold writers up for ``bookie_stall_seconds`` in total. The patience recovers at a twentieth of the time
    without hold-ups. So a short pause has no consequences, a hanging bookie is noticed within ``bookie_stall_seconds``, and a
    permanently slow bookie costs its writers at most 5 % of their time, reconnected or not. All ledgers of a client share the
    patience. For the I/O thread only.

    Source: a leaky bucket, as networks police a sender's rate (ITU-T I.371).
    """

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._noted: dict[str, tuple[float, float]] = {}
        """Bookie → (spent seconds, time of the last hold-up)."""

    def spend(self, bookies: Iterable[str], now: float) -> None:
        """Note that each of ``bookies`` holds a writer up at ``now``, in seconds of a monotonic clock."""
        for bookie in bookies:
            spent, at = self._noted.get(bookie, (0.0, now))
            since = now - at
            spent += since if since <= _CONTINUOUS_SECONDS else -since * _REFILL
            self._noted[bookie] = min(max(0.0, spent), self._seconds_max), now

    def is_spent(self, bookie: str) -> bool:
        return self._noted.get(bookie, (0.0, 0.0))[0] >= self._seconds_max


# -- Quarantine of failed bookies


class Quarantine:
    """Recently failed bookies of one process: chosen for an ensemble, and read from, only if there are no others. Thread-safe.

    Law: a bookie leaves the quarantine when its time is over, or as soon as a new connection to it is made.

    Source: BookKeeper's ``BookieWatcher.quarantineBookie``.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._failures: dict[str, tuple[float, Unknown]] = {}

    def failed(self, bookie_id: str, why: Unknown) -> None:
        """Begin the quarantine of a bookie that did not answer, could not be reached, or failed at a request."""
        self._failures[bookie_id] = time.monotonic() + self._seconds, why

    def is_back(self, bookie_id: str) -> None:
        self._failures.pop(bookie_id, None)

    def now(self) -> dict[str, str]:
        """Bookie id → text for an error (remaining seconds and reason)."""
        if not self._failures:
            # Each read calls this.
            return {}
        now = time.monotonic()
        return {
            bookie_id: f"in quarantine for {until - now:.1f} s more: {why}"
            for bookie_id, (until, why) in self._failures.copy().items()
            if until > now
        }


# -- The connections


__all__ = ["Answer", "Connections", "OnAnswer", "OnBatch", "OnBookiesAnswer", "Question", "Request"]


OnAnswer = Callable[[Answer], None]
"""Called with the answer of the single bookie of a request."""

_RECONNECT_SECONDS, _RECONNECT_SECONDS_MAX = 0.05, 1.0


def _send_on(
    bookie_id: str,
    request_id: int,
    frame: Buffer,
    request: Request,
    body: Buffer,
    outcome: BookieConnection | Unknown,
) -> None:
    """Send the frame on the new connection, or answer its request with the reason why there is none."""
    if isinstance(outcome, Unknown):
        request.tell(bookie_id, Answer(outcome))
    else:
        outcome.send(request_id, frame, request, body)


def _tell(listener: Callable[..., object], *what: object) -> None:
    try:
        listener(*what)
    except BaseException:
        log.exception("%r failed", listener)


def _set(event: asyncio.Event, *_: object) -> None:
    event.set()


class _Attempt:
    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[BookieConnection | Unknown], None], int]] = []
        """Callbacks for the outcome, each with the size of its request in bytes."""
        self.bytes_waiting = 0
        self.asks_store = False


class Connections:
    """The connections to all bookies, by bookie id. Connects at the first request, and keeps trying for bookies that a writer
    needs."""

    def __init__(
        self,
        store: MetadataStore,
        config: ClientConfig,
        security: ClientSecurity,
        metadata_threads: Threads,
        chunks: ChunkPool | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._security = security
        self._threads = metadata_threads
        self.traffic = ClientTraffic()
        self._request_ids = itertools.count(1)
        self._chunks = chunks or ChunkPool()
        self._addresses: dict[str, BookieRegistration] = {}
        self._open: set[BookieConnection] = set()
        self._ready: dict[str, BookieConnection] = {}
        self._connecting: dict[str, _Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted: dict[str, set[Callable[[str, int], None]]] = {}
        self._missed: set[str] = set()
        """Bookies without a connection since a loss or a failed attempt. Requests to them have failed."""
        self._reconnecting: set[str] = set()
        self._behind_bytes = config.bookie_bytes_queued_max // 2
        self._quarantine = Quarantine(config.quarantine_seconds)
        self.patience = Patience(config.bookie_stall_seconds)
        self._closed = False

    def quarantined(self) -> dict[str, str]:
        """Bookie id → text for an error, for bookies that failed within the last ``quarantine_seconds``. From any thread."""
        return self._quarantine.now()

    def figures(self) -> Figures:
        """Counts of connections and of their waiting requests and bytes, for metrics."""
        ready = self._ready.values()
        return {
            "connections": len(ready),
            "bookies_behind": sum(connection.is_behind for connection in ready),
            "queued_bytes": sum(connection.queued_bytes for connection in ready),
            "requests_in_flight": sum(connection.in_flight for connection in ready),
            "quarantined_bookies": len(self.quarantined()),
        }

    def any_is_behind(self, bookie_ids: Iterable[str]) -> bool:
        """Does so much wait to be sent to one of these bookies that a writer should wait?

        Counts a bookie during its first attempt to connect, but not a bookie with a lost connection, which may stay away for
        long.
        """
        if not self.traffic.behind and not self._connecting:
            # Called for every frame, and nearly always the case.
            return False
        for bookie_id in bookie_ids:
            connection = self._ready.get(bookie_id)
            if connection is None:
                attempt = self._connecting.get(bookie_id)
                if attempt is not None and bookie_id not in self._missed and attempt.bytes_waiting > self._behind_bytes:
                    return True
            elif connection.is_behind:
                return True
        return False

    def behind(self, bookie_ids: Sequence[str]) -> Sequence[str]:
        if not self.any_is_behind(bookie_ids):
            return ()
        return [bookie_id for bookie_id in bookie_ids if self.any_is_behind((bookie_id,))]

    def away(self, bookie_ids: Iterable[str]) -> list[str]:
        """Subset that is being reconnected after a loss. A writer sends these bookies nothing: ``want`` calls the writer back."""
        # Called for every frame too.
        if not self._reconnecting:
            return []
        return [each for each in bookie_ids if each in self._missed and each in self._reconnecting]

    def try_again(self, bookie_id: str, failed: Callable[[Unknown], None]) -> None:
        """Connect to a bookie that is away. ``failed`` is called after a failure, perhaps before this returns."""
        self._connect(bookie_id, lambda outcome: failed(outcome) if isinstance(outcome, Unknown) else None)

    def quietest_first(self, bookie_ids: Iterable[str]) -> tuple[str, ...]:
        """The given bookies, longest silence first; bookies without a connection come before all."""
        ready = self._ready
        return tuple(sorted(bookie_ids, key=lambda b: (ready[b].heard_at, b) if b in ready else (0.0, b)))

    def quarantine(self, bookie_id: str, why: Unknown) -> None:
        self._quarantine.failed(bookie_id, why)

    def next_request_id(self) -> int:
        """A request id that this client has not used. One frame may go to several bookies under the same id."""
        return next(self._request_ids)

    def send(
        self,
        bookie_id: str,
        request_id: int,
        frame: Buffer,
        on_answer: OnAnswer,
        timeout_seconds: float | None = None,
        on_batch: OnBatch | None = None,
        body: Buffer = b"",
    ) -> None:
        """Send one frame to one bookie. ``on_answer`` is called exactly once, perhaps before this returns.

        A frame may come in two parts, ``frame`` and ``body``, so that the body is not copied. Without ``timeout_seconds``, the
        answer may take as long as the connection stands.
        """
        request = Question(lambda _, answer: on_answer(answer), timeout_seconds, on_batch)
        self.send_to_all((bookie_id,), request_id, frame, request, body)

    def send_to_all(
        self, bookie_ids: Iterable[str], request_id: int, frame: Buffer, request: Request, body: Buffer = b""
    ) -> None:
        """Send one frame to several bookies. ``request`` gets exactly one answer from each, perhaps before this returns."""
        for bookie_id in bookie_ids:
            connection = self._ready.get(bookie_id)
            if connection is not None:
                connection.send(request_id, frame, request, body)
            else:
                send = partial(_send_on, bookie_id, request_id, frame, request, body)
                self._connect(bookie_id, send, len(frame) + len(body))

    def later(self, seconds: float, send: Callable[[], None]) -> None:
        """Call ``send`` after ``seconds``, or as soon as the connections are cut: then its requests are answered Unknown."""
        self._spawn(asyncio.sleep(seconds)).add_done_callback(lambda _: send())

    def want(self, bookie_id: str, back: Callable[[str, int], None]) -> None:
        """Keep a connection to this bookie. ``back(bookie_id, incarnation)`` is called after each reconnection.

        The first connection does not count: the requests that waited for it are sent on it, so the bookie missed nothing.
        """
        self._wanted.setdefault(bookie_id, set()).add(back)

    def unwant(self, bookie_id: str, back: Callable[[str, int], None]) -> None:
        self._wanted.get(bookie_id, set()).discard(back)

    async def close(self) -> None:
        """Cut all connections. Later requests are answered Unknown."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._open):
            connection.abort("the client was closed")
            await connection.ended.wait()

    # -- connecting

    def _connect(
        self, bookie_id: str, connected: Callable[[BookieConnection | Unknown], None], byte_count: int = 0
    ) -> None:
        """Call ``connected`` with a connection for ``byte_count`` bytes, or with the reason why there is none."""
        if self._closed:
            connected(Unknown(UnknownReason.UNREACHABLE, "the client was closed"))
            return
        attempt = self._connecting.get(bookie_id)
        if attempt is None:
            attempt = self._connecting[bookie_id] = _Attempt()
            self._spawn(self._connect_once(bookie_id, attempt))
        if attempt.bytes_waiting + byte_count > self._config.bookie_bytes_queued_max:
            connected(Unknown(UnknownReason.UNREACHABLE, f"{attempt.bytes_waiting} bytes wait for a connection"))
        else:
            attempt.waiting.append((connected, byte_count))
            attempt.bytes_waiting += byte_count

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect_once(self, bookie_id: str, attempt: _Attempt) -> None:
        """Report the outcome of one attempt to all its waiters. A failed attempt does not fail requests that came during it,
        because it may have begun before the bookie was back: they get another attempt, unless this one took the whole connect
        timeout.
        """
        outcome: BookieConnection | Unknown
        seconds = self._config.connect_timeout_seconds
        since_the_start, in_time = len(attempt.waiting), True
        try:
            outcome = await asyncio.wait_for(self._dial(bookie_id, attempt), seconds)
        except TimeoutError:
            in_time = False
            late = "the metadata store did not tell its address" if attempt.asks_store else "no answer"
            outcome = Unknown(UnknownReason.UNREACHABLE, f"{late} in {seconds:g} s")
        except (OSError, BookKeeperError) as error:
            outcome = Unknown(UnknownReason.UNREACHABLE, str(error))
        except asyncio.CancelledError:
            outcome = Unknown(UnknownReason.UNREACHABLE, "the client was closed")
        # Any other exception is a defect. Waiting requests must get an answer all the same.
        except Exception as error:
            log.exception("connecting to %s failed", bookie_id)
            outcome = Unknown(UnknownReason.UNREACHABLE, str(error))
        if isinstance(outcome, Unknown):
            self.traffic.unreachable += 1
            self._addresses.pop(bookie_id, None)
            if not attempt.asks_store:
                self._quarantine.failed(bookie_id, outcome)
        elif outcome.lost is not None:
            outcome = outcome.lost
        else:
            self._ready[bookie_id] = outcome
            self._quarantine.is_back(bookie_id)
        waiting = self._connecting.pop(bookie_id).waiting
        answered = since_the_start if isinstance(outcome, Unknown) and in_time else len(waiting)
        for connected, _ in waiting[:answered]:
            _tell(connected, outcome)
        for connected, byte_count in waiting[answered:]:
            self._connect(bookie_id, connected, byte_count)
        if isinstance(outcome, Unknown):
            self._missed.add(bookie_id)
            self._keep_trying(bookie_id)
        elif bookie_id in self._missed:
            self._missed.discard(bookie_id)
            for back in list(self._wanted.get(bookie_id, ())):
                _tell(back, bookie_id, outcome.incarnation)

    async def _dial(self, bookie_id: str, attempt: _Attempt) -> BookieConnection:
        """Connect and greet. Tries the known address first, and then that in the metadata store: a restarted bookie has another
        address."""
        known = self._addresses.get(bookie_id)
        if known is not None:
            try:
                return await self._greet(known)
            except OSError as error:
                log.debug("%s is not at %s any more: %s", bookie_id, known.address, error)
        attempt.asks_store = True
        self._addresses = await asyncio.wrap_future(self._threads.submit(self._store.bookies))
        attempt.asks_store = False
        found = self._addresses.get(bookie_id)
        if found is None:
            raise ConnectionError("not registered")
        return await self._greet(found)

    async def _greet(self, registration: BookieRegistration) -> BookieConnection:
        """A connection to this bookie and to no other. Raises OSError."""
        config, tls = self._config, self._security.tls()
        bookie_id = registration.bookie_id
        try:
            host, port = split_address(registration.address)
        except ValueError as error:
            raise ConnectionError(f"its registration has no address, but {registration.address!r}") from error
        self._security.check(host)
        try:
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: BookieConnection(
                    bookie_id,
                    config,
                    self._quarantine.failed,
                    self._lost,
                    self._open.discard,
                    self._chunks,
                    self.traffic,
                ),
                host,
                port,
                ssl=tls,
            )
        except OSError as error:
            # A certificate was shown, so the bookie speaks TLS.
            doubtful = tls is not None and not isinstance(error, ssl.SSLCertVerificationError)
            hint = "; if it speaks no TLS, leave tls_ca out" if doubtful else ""
            raise ConnectionError(f"{registration.address}: {str(error) or 'the connection ended'}{hint}") from error
        self._open.add(connection)
        notice_lost_peer(transport.get_extra_info("socket"))
        await say_hello(connection, registration.address, self.next_request_id, config.client_name, self._security)
        return connection

    def _lost(self, connection: BookieConnection) -> None:
        if self._ready.get(connection.bookie_id) is connection:
            assert connection.lost is not None
            self._quarantine.failed(connection.bookie_id, connection.lost)
            del self._ready[connection.bookie_id]
            self._missed.add(connection.bookie_id)
            self._addresses.pop(connection.bookie_id, None)
            self._keep_trying(connection.bookie_id)

    def _keep_trying(self, bookie_id: str) -> None:
        if self._wanted.get(bookie_id) and bookie_id not in self._reconnecting and not self._closed:
            self._reconnecting.add(bookie_id)
            self._spawn(self._reconnect(bookie_id))

    async def _reconnect(self, bookie_id: str) -> None:
        try:
            pauses = BackOff(_RECONNECT_SECONDS, _RECONNECT_SECONDS_MAX)
            while True:
                await asyncio.sleep(pauses.next())
                if bookie_id in self._ready or not self._wanted.get(bookie_id):
                    return
                tried = asyncio.Event()
                self._connect(bookie_id, partial(_set, tried))
                await tried.wait()
        finally:
            self._reconnecting.discard(bookie_id)
