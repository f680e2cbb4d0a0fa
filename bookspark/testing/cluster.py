"""A local cluster whose wire is in the test's hands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.daemon.launch import START_SECONDS
from bookspark.errors import BookieError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.testing.wire_proxy import Proxy, Wire


class FaultyCluster(LocalCluster):
    """A ``LocalCluster`` whose clients reach each bookie through a proxy in this process: ``wire`` drops, delays, duplicates
    and parks messages and cuts links. Give clients names to tell them apart::

        with FaultyCluster(bookies=3) as cluster:
            writer = cluster.bookkeeper(client_name="writer")
            with cluster.wire.drop(Kind.ADD, client="writer", bookie=cluster.bookies[0].bookie_id):
                ...
    """

    def __init__(
        self,
        bookies: int = 3,
        directory: str | Path | None = None,
        zookeeper: str | None = None,
        **bookie_options: Any,
    ) -> None:
        super().__init__(bookies, directory, zookeeper, **bookie_options)
        self.wire: Wire
        """There from ``start`` to ``stop``."""

    def start(self) -> None:
        self.wire = Wire()
        try:
            super().start()
        except BaseException:
            self.wire.close()
            raise

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self.wire.close()

    def mend(self) -> None:
        """Take every fault back: the wire is whole, and every bookie serves."""
        self.wire.heal()
        for bookie in self.bookies:
            if bookie.pid is not None:
                bookie.resume()
            bookie.start()

    def bookie(self, bookie_id: str) -> LocalBookie:
        """The one with this id. Raises BookieError if there is none."""
        bookies = {bookie.bookie_id: bookie for bookie in self.bookies}
        if bookie_id not in bookies:
            raise BookieError(f"there is no bookie {bookie_id}; there are: {', '.join(bookies)}")
        return bookies[bookie_id]

    def _new_bookie(self, k: int) -> LocalBookie:
        return _ProxiedBookie(self._bookie_config(k), self.wire.add_proxy())


class _ProxiedBookie(LocalBookie):
    def __init__(self, config: BookieConfig, proxy: Proxy) -> None:
        super().__init__(msgspec.structs.replace(config, advertised_address=proxy.address))
        self._proxy = proxy

    def start(self, timeout: float = START_SECONDS) -> None:
        if self.pid is None:
            self._proxy.leads_to("", "")
            super().start(timeout)
            self._proxy.leads_to(self.bookie_id, self.address)
