"""The bookie's request server: listens, makes a connection for each client, and runs the maintenance beside them.

Law: a stop answers all earlier requests, and takes a bounded time whatever the disk does. ``admission`` bounds the intake.

Everything happens on the loop of ``start``, except writes and the reads that wait for the disk. (The bookie process has a uvloop;
any asyncio loop will do.)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable

from bookspark.errors import BookieError
from bookspark.protocol.bookie.address_rates import AddressRates
from bookspark.store.bookie.bookie_config import BookieConfig, advertised
from bookspark.store.bookie.serving.admission import Admission, Admitted, Stranger
from bookspark.store.bookie.serving.connection import Connection
from bookspark.store.bookie.serving.maintenance import Maintenance
from bookspark.store.bookie.serving.porch import Porch, listening_sockets
from bookspark.store.bookie.serving.read_room import ReadRoom
from bookspark.store.bookie.serving.served_bookie import Fetch, PollTimers, Refusals, ServedBookie, Writers
from bookspark.store.bookie.space.garbage_collection import AskOthers
from bookspark.store.bookie.space.reclaiming import Rewriter
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.messages import BookieStatus, HealingStatus
from bookspark.store.wire.security import FromFiles, read_secrets, server_tls
from bookspark.support.addresses import address_text

WRONG_PROOFS_PER_SECOND = 1.0
"""Rate of an address. Its pause is well below a client's ``connect_timeout_seconds``, and the time of a stranger."""
_STOP_SECONDS_MAX = 10.0

log = logging.getLogger(__name__)


class BookieServer:
    """Serves one storage to clients.

    ``storage`` has to be open. ``stop`` does not close it: its owner closes it afterwards. The daemon handles locks, cookies,
    registration and the lease::

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
        """Open nothing yet.

        ``bookie_id`` and ``incarnation``: as in ``ServedBookie``. ``metadata``: None collects no deleted ledgers. ``rewriter``:
        None rewrites no logs. Raises ConfigurationError if the config's certificate or secret can't be read."""
        self._config = config
        self.storage = storage
        refusals = Refusals()
        self._bookie = ServedBookie(
            storage,
            bookie_id,
            incarnation,
            lambda: self.address,
            FromFiles((config.shared_secret_file,), lambda: read_secrets(config.shared_secret_file)).now,
            AddressRates(WRONG_PROOFS_PER_SECOND, burst=1),
            config.requests_in_flight_max,
            ReadRoom(config.read_bytes_in_flight_max),
            PollTimers(),
            refusals,
            Writers(),
            self.status,
            lambda: self._maintenance.collect_now(),
            lambda: self.fetch,
        )
        files = config.tls_certificate, config.tls_key, config.tls_client_ca
        self._tls = FromFiles(files, lambda: server_tls(*files, roles=config.tls_roles))
        self._admission = Admission(storage, refusals, config.request_bytes_in_flight_max, config.unfinished_bytes_max)
        storage.loop_is_shared = lambda: self._admission.is_shared
        self._chunks = ChunkPool()
        self._porch: Porch | None = None
        self._maintenance = Maintenance(config, storage, bookie_id, metadata, rewriter, lambda: self.ask_others)
        self.healing_status: Callable[[], HealingStatus] | None = None
        """Progress of healing, for the status. Set by the healer, else None."""
        self.keeper: Callable[[], tuple[str, float | None]] = lambda: ("", None)
        """Lease holder of the process, and the seconds until it stops without a holder."""
        self.version = ""
        self.metrics_address = ""
        self.address = ""
        """``host:port`` that clients dial: registered, and part of proofs. Set by ``start``."""
        self.fetch: Fetch | None = None
        """Copies entries from other bookies. Set by the process, else None."""
        self.ask_others: AskOthers | None = None
        """Asks other bookies what they hold, before a copy is collected. Set by the process; None collects no copies."""

    async def start(self) -> tuple[str, int]:
        """Listen and serve; returns host and port. Raises BookieError if the bookie can't listen there."""
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            listening = listening_sockets([(family, address) for family, *_, address in found], port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise BookieError(
                    f"port {port} on {host} is in use; set port to another one, or to 0 for any free one"
                ) from error
            raise BookieError(
                f"can't listen on {address_text(host, port)}: {error}; set host to an address of this machine"
            ) from error
        self.storage.start(loop.call_soon_threadsafe, loop.call_soon)
        self._maintenance.start()
        self._porch = Porch(
            self._admission, self._connection, self._bookie.incarnation, self.tls, self._bookie.refusals
        )
        address = listening[0].getsockname()
        self.address = advertised(self._config, address_text(address[0], address[1]), self._bookie.bookie_id)
        self._porch.open(listening)
        return address[0], address[1]

    async def stop(self) -> None:
        """Accept nothing more, answer earlier requests, close the connections. Takes at most some 30 s, whatever the disk
        does."""
        if self._porch is None:
            return
        await self._porch.close()
        self._admission.stop_reading()
        settled: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.storage.settle(lambda status: None if settled.done() else settled.set_result(status))
        await asyncio.wait([settled], timeout=_STOP_SECONDS_MAX)
        await self._admission.end_all(_STOP_SECONDS_MAX)
        await self._maintenance.stop()
        self.storage.disk_threads.close()
        self._porch = None

    @property
    def behind(self) -> tuple[ServedBookie, Admission, ChunkPool]:
        """Objects shared with a port of another protocol."""
        return self._bookie, self._admission, self._chunks

    def tls(self) -> ssl.SSLContext | None:
        """Context for a new connection; None if the bookie has no certificate."""
        return self._tls.now().context

    @property
    def connections(self) -> set[Admitted]:
        return self._admission.connections

    def _connection(self, stranger: Stranger, address: str) -> Connection:
        return Connection(self._bookie, self._admission, self._chunks, stranger, address)

    def status(self) -> BookieStatus:
        """Current status. To be called on the loop."""
        lossy_boots, stored = self.storage.lossy_boots, self.storage.status()._asdict()
        switch = stored.pop("switch")
        scrubbing = self.storage.scrubbing
        keeper, stops_in_seconds = self.keeper()
        clock = self._maintenance.store_clock
        return BookieStatus(
            **stored,
            bookie_id=self._bookie.bookie_id,
            incarnation=self._bookie.incarnation,
            pid=os.getpid(),
            directories=self.storage.directories,
            read_only_by_change=switch.by_change,
            change_order=switch.order,
            lossy_boot=lossy_boots.mark.boot,
            healed_boot=lossy_boots.healed_boot,
            limbo_ledgers=lossy_boots.limbo_count,
            full_directories=self.storage.disks.full,
            scrub_part=round(scrubbing.part, 4),
            scrub_began_ms=scrubbing.progress.began_ms,
            scrub_finished_ms=scrubbing.progress.finished_ms,
            scrub_dead_bytes=scrubbing.dead_bytes,
            renewed_files=self.storage.kept_files.renewed,
            keeper=keeper,
            stops_in_seconds=stops_in_seconds,
            healing=None if self.healing_status is None else self.healing_status(),
            collection=self._maintenance.collection,
            version=self.version,
            metrics_address=self.metrics_address,
            store_ms=0 if clock is None else clock.store_ms(),
            clock_ahead_ms=0 if clock is None else clock.host_ahead_ms(),
            certificate_ends=self._tls.now().ends_ms,
        )
