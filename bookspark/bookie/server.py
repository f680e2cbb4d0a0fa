"""The bookie's request server: it listens, keeps its connections within bounds, and has checkpoints made.

Law: a bookie takes no more than it can write: when the batches that wait for their sync exceed ``request_bytes_in_flight_max``,
it reads from no connection until half of them are durable. Nothing is refused for being too much; the peers' sockets fill up.

Everything but writing, and reads that have to wait for the disk, happens on the loop that ``start`` is called on (uvloop in the
bookie process; any asyncio loop will do).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from bookspark.bookie.config import BookieConfig
from bookspark.bookie.connection import Connection
from bookspark.bookie.storage import Prepared, Storage
from bookspark.protocol.errors import BookieError

_READ_THREADS = 4
_STOP_SECONDS_MAX = 10.0

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

    def __init__(self, config: BookieConfig, storage: Storage, bookie_id: str, incarnation: int) -> None:
        """``bookie_id`` is told to clients that say hello; ``incarnation`` is random per start of the process, 64 bits."""
        self._config = config
        self.storage = storage
        self.bookie_id = bookie_id
        self.incarnation = incarnation
        self.pid = os.getpid()
        self.connections: set[Connection] = set()
        self.overloaded = False
        self.readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="bookie read")
        self._server: asyncio.Server | None = None
        self._checkpoints: asyncio.Task[None] | None = None
        self._all_lost = asyncio.Event()

    async def start(self) -> tuple[str, int]:
        """Listen and serve; returns host and port. Raises BookieError if the address can't be had."""
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        try:
            self._server = await loop.create_server(lambda: Connection(self), host, port, start_serving=False)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise BookieError(
                    f"port {port} on {host} is in use; set port to another one, or to 0 for any"
                ) from error
            raise BookieError(
                f"can't listen on {host}:{port}: {error}; set host to an address of this machine"
            ) from error
        self.storage.start(loop.call_soon_threadsafe)
        self._checkpoints = loop.create_task(self._make_checkpoints())
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
        if self._checkpoints is not None:
            self._checkpoints.cancel()
            await asyncio.wait([self._checkpoints], timeout=_STOP_SECONDS_MAX)
        self.readers.shutdown(wait=False, cancel_futures=True)
        self._server = None

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

    async def _make_checkpoints(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._config.checkpoint_interval_seconds)
            try:
                prepared = await self._prepare_checkpoint()
                await loop.run_in_executor(self.readers, self.storage.write_checkpoints, prepared)
            except Exception:
                log.exception("no checkpoint was made; the next one is tried later")

    async def _prepare_checkpoint(self) -> Prepared:
        """The steps of ``Storage.checkpoint``, one a turn of the loop."""
        steps = self.storage.checkpoint()
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return cast(Prepared, stop.value)
            await asyncio.sleep(0)
