"""State shared by the connections of BookKeeper's clients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, DigestType
from bookspark.servers.bookkeeper.digest_types import DigestTypes
from bookspark.servers.bookkeeper.entries import confirmed_by, lac_body_of
from bookspark.servers.bookkeeper.kept_batches import KeptBatches
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.wire.header import Status

_LACS_KEPT_MAX = 4096


class SharedByClients(NamedTuple):
    bookie: ServedBookie
    digest_types: DigestTypes
    lac_bodies: OrderedDict[int, bytes]
    """Signed explicit LACs of some ledgers."""
    kept_batches: KeptBatches
    disk_bytes: Callable[[], int]
    """Size of the bookie's disks, in bytes."""

    def when_lac_body(self, ledger_id: int, told: Callable[[bytes | None], None]) -> None:
        """Call ``told``, now or later, with the newest explicit LAC of a ledger, signed. None: there is none, or only its number
        is kept, and its signature needs the password."""
        kept = self.lac_bodies.get(ledger_id)
        ledger = self.bookie.storage.holdings.ledger(ledger_id)
        confirmed = NO_ENTRY if ledger is None else ledger.explicit_last_add_confirmed
        if confirmed == NO_ENTRY or (kept is not None and confirmed_by(kept) >= confirmed):
            told(kept)
            return

        def known(digest_type: DigestType | None, status: Status) -> None:
            made = None if digest_type is None else lac_body_of(ledger_id, confirmed, digest_type)
            if made is not None:
                self.keep_lac_body(ledger_id, made)
            told(made or kept)

        self.digest_types.when_known(ledger_id, True, 0, known)

    def keep_lac_body(self, ledger_id: int, body: bytes) -> None:
        """Keep a signed explicit LAC, unless a later LAC is kept."""
        before = self.lac_bodies.pop(ledger_id, b"")
        # Both start with the ledger and the LAC in big-endian, so the larger is the later.
        self.lac_bodies[ledger_id] = max(before, body)
        if len(self.lac_bodies) > _LACS_KEPT_MAX:
            self.lac_bodies.popitem(last=False)
