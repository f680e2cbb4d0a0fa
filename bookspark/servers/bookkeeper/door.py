"""The bookie's second door: a port where it speaks Apache BookKeeper's wire protocol, with the same storage behind it.

Law: the port is off by default, and then nothing of this package is imported. Its connections count with the bookie's others
(``admission``), and its requests run on the same loop, through the same ``Storage``, so there is one truth. It opens before the
bookie registers, and closes before the request server stops.

A bookie with a certificate asks these clients for TLS as well (``connection``), with the same certificate and the same CA for
theirs. The protocol has no secret of ours, so a bookie that asks its clients for one refuses to have this port.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
from collections import OrderedDict
from functools import partial

from bookspark.errors import BookieError
from bookspark.servers.bookkeeper.connection import BookKeeperConnection
from bookspark.servers.bookkeeper.digest_types import DigestTypes, ReadDigestType
from bookspark.servers.bookkeeper.kept_batches import KeptBatches
from bookspark.servers.bookkeeper.messages import SCHEMA
from bookspark.servers.bookkeeper.requests import first_message_size
from bookspark.servers.bookkeeper.shared_by_clients import SharedByClients
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.serving.admission import Stranger
from bookspark.store.bookie.serving.porch import Porch, listening_sockets
from bookspark.store.bookie.serving.server import BookieServer


class BookKeeperDoor:
    """The port ``bookkeeper_port`` of one bookie. All calls are made on the loop of ``server``, which has to be started."""

    def __init__(self, config: BookieConfig, server: BookieServer, read_digest_type: ReadDigestType) -> None:
        """Nothing is opened yet. ``read_digest_type``: asks the metadata, in a thread. Raises MissingExtraError."""
        # The library is imported, and the schema built, before anybody waits for it.
        SCHEMA.message("Request"), SCHEMA.message("Response")
        self._config = config
        self._server = server
        self._read_digest_type = read_digest_type
        self._porch: Porch | None = None
        self._digest_types: DigestTypes | None = None

    async def start(self) -> tuple[str, int]:
        """Listen and serve; returns host and port. Raises BookieError if the bookie can't listen there."""
        loop = asyncio.get_running_loop()
        host, port = self._config.host, max(self._config.bookkeeper_port, 0)
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            listening = listening_sockets([(family, address) for family, *_, address in found], port)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"can't be listened on: {error}"
            raise BookieError(f"bookkeeper_port {port} on {host} {why}; set bookkeeper_port to another one") from error
        bookie, admission, chunks = self._server.behind
        self._digest_types = DigestTypes(self._read_digest_type, loop.call_soon_threadsafe)
        disks = partial(_disk_bytes, tuple(bookie.storage.directories))
        disk_bytes = await loop.run_in_executor(None, disks)
        shared = SharedByClients(bookie, self._digest_types, OrderedDict(), KeptBatches(), lambda: disk_bytes)

        def connection(stranger: Stranger, address: str) -> BookKeeperConnection:
            return BookKeeperConnection(shared, admission, chunks, stranger, address, porch, self._server.tls())

        # The porch sees START_TLS in clear text; TLS comes behind it.
        porch = self._porch = Porch(
            admission, connection, bookie.incarnation, lambda: None, bookie.refusals, first_message_size
        )
        self._porch.open(listening)
        address = listening[0].getsockname()
        return address[0], address[1]

    async def stop(self) -> None:
        """Accept nothing more. Its connections end with those of the request server."""
        if self._porch is not None and self._digest_types is not None:
            await self._porch.close()
            self._digest_types.close()
            self._porch = None


def _disk_bytes(directories: tuple[str, ...]) -> int:
    return sum(shutil.disk_usage(directory).total for directory in directories)
