"""What the connections of all of BookKeeper's clients share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from bookspark.bookie.serving.served_bookie import ServedBookie
from bookspark.bookkeeper.digest_types import DigestTypes

_LACS_KEPT_MAX = 4096


class SharedByClients(NamedTuple):
    """What the connections of BookKeeper's clients share."""

    bookie: ServedBookie
    digest_types: DigestTypes
    lac_bodies: OrderedDict[int, bytes]
    """The signed explicit LACs of some ledgers."""
    disk_bytes: Callable[[], int]
    """The size of the bookie's disks, in bytes."""

    def keep_lac_body(self, ledger_id: int, body: bytes) -> None:
        """Keep a signed explicit LAC, unless a later one is kept."""
        before = self.lac_bodies.pop(ledger_id, b"")
        # Both begin with the ledger and the LAC, in big-endian.
        self.lac_bodies[ledger_id] = max(before, body)
        if len(self.lac_bodies) > _LACS_KEPT_MAX:
            self.lac_bodies.popitem(last=False)
