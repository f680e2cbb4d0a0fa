"""A local cluster whose wire the test controls.

Law: bookies and clients run as in production. The only difference: a bookie registers its proxy's address.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bookspark.errors import BookieError
from bookspark.local import BookieCount, LocalBookie, LocalCluster
from bookspark.servers.daemon.launch import START_SECONDS
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.metadata.records.names import BookieId
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.support.arguments import checks_arguments
from bookspark.testing.wire_proxy import Proxy, Wire


@checks_arguments
class FaultyCluster(LocalCluster):
    """A ``LocalCluster`` whose clients reach each bookie through a proxy in this process.

    ``wire`` drops, delays, duplicates and parks messages, and cuts links. Named clients can be addressed separately::

        with FaultyCluster(bookies=3) as cluster:
            writer = cluster.bookkeeper(client_name="writer")
            with cluster.wire.drop(Kind.ADD, client="writer", bookie=cluster.bookies[0].bookie_id):
                ...
    """

    def __init__(
        self,
        bookies: BookieCount = 3,
        directory: str | Path | None = None,
        zookeeper: ConnectionString | None = None,
        **bookie_options: Any,
    ) -> None:
        """Prepare a cluster; ``start`` or ``with`` starts it.

        Arguments:
            bookies: number of bookies.
            directory: folder of all data; None: a temporary directory, removed at the end.
            zookeeper: connection string of a running ZooKeeper; None: the cluster starts its own.
            bookie_options: fields of ``BookieConfig``, for all bookies.

        Raises:
            ConfigurationError: an option is unknown or has an unusable value.
        """
        super().__init__(bookies, directory, zookeeper, **bookie_options)
        self.wire: Wire
        """The faults of the wire, from ``start`` to ``stop``."""

    def start(self) -> None:
        """Start all bookies behind their proxies and return once they serve. A failed start leaves nothing running. Raises
        BookieError."""
        self.wire = Wire()
        try:
            super().start()
        except BaseException:
            self.wire.close()
            raise

    def stop(self) -> None:
        """Stop the cluster, then the proxies. Raises BookieError if a bookie had to be killed."""
        try:
            super().stop()
        finally:
            self.wire.close()

    def mend(self) -> None:
        """Undo every fault: remove all rules and cuts, resume and start all bookies. Raises BookieError if a bookie does
        not start."""
        self.wire.heal()
        for bookie in self.bookies:
            if bookie.pid is not None:
                bookie.resume()
            bookie.start()

    def bookie(self, bookie_id: BookieId) -> LocalBookie:
        """The bookie with this id. Raises BookieError for an unknown id."""
        bookies = {bookie.bookie_id: bookie for bookie in self.bookies}
        if bookie_id not in bookies:
            raise BookieError(f"there is no bookie {bookie_id}; there are: {', '.join(bookies)}")
        return bookies[bookie_id]

    def _new_bookie(self, k: int) -> LocalBookie:
        return _ProxiedBookie(self._bookie_config(k), self.wire.add_proxy())


class _ProxiedBookie(LocalBookie):
    """A bookie that registers its proxy's address."""

    def __init__(self, config: BookieConfig, proxy: Proxy) -> None:
        super().__init__(msgspec.structs.replace(config, advertised_address=proxy.address))
        self._proxy = proxy

    def start(self, timeout: float = START_SECONDS) -> None:
        """Return once the bookie serves behind its proxy. Does nothing if it runs. Raises BookieError with its last output."""
        if self.pid is None:
            self._proxy.leads_to("", "")
            super().start(timeout)
            self._proxy.leads_to(self.bookie_id, self.address)
