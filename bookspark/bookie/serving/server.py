"""The bookie's request server: it listens, keeps its connections within bounds, and has it maintained.

Law: a bookie takes no more than it can write: when the batches that wait for their sync exceed ``request_bytes_in_flight_max``,
it reads from no connection until half of them are durable, and the peers' sockets fill up. Only what takes memory without being
written, more than ``requests_in_flight_max`` requests of one connection that wait for their answers, is refused; and connections
that would take the descriptors which its own files need: a log that could not be begun would retire a sound disk.

Everything but writing, and reads that have to wait for the disk, happens on the loop that ``start`` is called on (uvloop in the
bookie process; any asyncio loop will do).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.serving.connection import Connection
from bookspark.bookie.serving.maintenance import Maintenance
from bookspark.bookie.space.reclaiming import Rewriter
from bookspark.bookie.storage import Storage
from bookspark.errors import BookieError
from bookspark.metadata.store import MetadataStore
from bookspark.wire.chunks import ChunkPool
from bookspark.wire.messages import BookieStatus, HealingStatus
from bookspark.wire.security import read_secret, server_context

_READ_THREADS = 4
_STOP_SECONDS_MAX = 10.0
_DESCRIPTORS_KEPT = 512
"""For the bookie's own files, as far as that is not more than half of what the process may open."""
_WARN_SECONDS = 10.0

log = logging.getLogger(__name__)


class BookieServer:
    """Serves one storage to clients.

    ``storage`` has to be open, and is not closed by ``stop``: that is for whoever opened it, afterwards. Locks, cookies,
    registration and the lease are the daemon's::

        storage = Storage(config).open()
        server = BookieServer(config, storage, bookie_id, incarnation)
        host, port = await server.start()
        ...
        await server.stop()
        storage.close()
    """

    def __init__(
        self,
        config: BookieConfig,
        storage: Storage,
        bookie_id: str,
        incarnation: int,
        *,
        metadata: MetadataStore | None = None,
        rewriter: Rewriter | None = None,
    ) -> None:
        """``bookie_id`` is told to clients that say hello; ``incarnation`` is random per start of the process, 64 bits. For
        ``metadata`` and ``rewriter`` see ``Maintenance``."""
        self._config = config
        self.storage = storage
        self.bookie_id = bookie_id
        self.incarnation = incarnation
        self.requests_in_flight_max = config.requests_in_flight_max
        self.secret = read_secret(config.shared_secret_file)
        self._tls = server_context(config.tls_certificate, config.tls_key, config.tls_client_ca)
        self.pid = os.getpid()
        self.connections: set[Connection] = set()
        self.chunks = ChunkPool()
        self.overloaded = False
        self._warned_at = -_WARN_SECONDS
        self.readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="bookie read")
        self._server: asyncio.Server | None = None
        self._metadata = metadata
        self._rewriter = rewriter
        self._maintenance: Maintenance | None = None
        self._all_lost = asyncio.Event()
        self.healing_status: Callable[[], HealingStatus] | None = None
        """How far healing is, for the status; whoever heals puts it there."""

    async def start(self) -> tuple[str, int]:
        """Listen and serve; returns host and port. Raises BookieError if the address can't be had."""
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host, port, ssl=self._tls, start_serving=False
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise BookieError(
                    f"port {port} on {host} is in use; set port to another one, or to 0 for any"
                ) from error
            raise BookieError(
                f"can't listen on {host}:{port}: {error}; set host to an address of this machine"
            ) from error
        self.storage.start(loop.call_soon_threadsafe, loop.call_soon)
        self._maintenance = Maintenance(self._config, self.storage, self._metadata, self._rewriter)
        self._maintenance.start()
        await self._server.start_serving()
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def stop(self) -> None:
        """Accept nothing more, answer what was asked, close the connections. Within some 20 s, whatever the disk does."""
        if self._server is None:
            return
        self._server.close()
        self.overloaded = True  # nothing more is read
        for connection in self.connections:
            connection.adjust_reading()
        settled: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.storage.settle(lambda status: None if settled.done() else settled.set_result(status))
        await asyncio.wait([settled], timeout=_STOP_SECONDS_MAX)
        self._all_lost.clear()
        if self.connections:
            for connection in list(self.connections):
                connection.close()
            try:
                await asyncio.wait_for(self._all_lost.wait(), _STOP_SECONDS_MAX)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
        if self._maintenance is not None:
            await self._maintenance.stop()
        self.readers.shutdown(wait=False, cancel_futures=True)
        self._server = None

    def status(self) -> BookieStatus:
        """What the bookie says of itself; on the loop."""
        stored, losses = self.storage.status(), self.storage.losses
        return BookieStatus(
            bookie_id=self.bookie_id,
            incarnation=self.incarnation,
            pid=self.pid,
            directories=self.storage.directories,
            ledgers=stored.ledgers,
            log_bytes=stored.log_bytes,
            free_bytes=stored.free_bytes,
            read_only=stored.read_only,
            lossy_boot=losses.mark.boot,
            healed_boot=losses.healed_boot,
            limbo_ledgers=len(losses.limbo()),
            healing=None if self.healing_status is None else self.healing_status(),
        )

    def has_room(self) -> bool:
        """May there be one more connection? The limit is read each time, as it can be raised from outside."""
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

    def lost(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_lost.set()

    def check_pressure(self) -> None:
        """Stop reading when too much waits for its sync."""
        if not self.overloaded and self.storage.bytes_in_flight > self._config.request_bytes_in_flight_max:
            self.overloaded = True
            for connection in self.connections:
                connection.adjust_reading()
            self.storage.when_below(self._config.request_bytes_in_flight_max // 2, self._relieve)

    def _relieve(self) -> None:
        if self._server is not None and self._server.is_serving():
            self.overloaded = False
            for connection in list(self.connections):
                connection.adjust_reading()
