"""Which bookies hold the appends of a ledger up, and when the writer goes on without them.

Law: a bookie is slow only beside others. It holds the ledger up

- if it is behind (see ``connections``), while the bookies that are not behind make an ack quorum of every write set; or
- if the oldest entry that is not acknowledged waits for it, and another bookie has had that entry for a moment.

The writer waits for such a bookie as long as the client has ``Patience`` with it. Then its machine is told (``HeldUp``), which
replaces the bookie if it can, and the writer waits no more: what the bookie can't take in is held back for it, and dropped once
the machine has released it. If all bookies are slow, the ledger waits for them: that is back-pressure.

BookKeeper's client keeps what a slow bookie has not taken in, without a bound by default (its #3497). All of it runs in the
I/O loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.writing.ensemble_change import NOBODY, quorum_lost
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_events import HeldUp
from bookspark.store.client.network.connections import Connections
from bookspark.store.client.writing.kept_frames import KeptFrames

log = logging.getLogger(__name__)

_MOMENT_SECONDS = 0.5
_WHY = Unknown(UnknownReason.TIMEOUT, "it held appends up that other bookies had taken")


class HoldUps:
    """The hold-ups of one ledger. ``step`` hands an event to the ledger's machine."""

    def __init__(
        self, writer: LedgerWriter, connections: Connections, kept: KeptFrames, step: Callable[[HeldUp], object]
    ) -> None:
        self._writer = writer
        self._connections = connections
        self._kept = kept
        self._step = step
        self._told = NOBODY
        """The bookies that the user was warned of."""

    def waits_for(self, behind: Sequence[str]) -> bool:
        """Do appends wait for these bookies of the ensemble, which are behind?"""
        patience = self._connections.patience
        if not behind or self._needs(behind):
            return bool(behind)
        patience.spend(behind, time.monotonic())
        return not all(map(patience.is_spent, behind))

    def look(self, now: float, behind: Sequence[str]) -> None:
        """Tell the machine of the bookies that have held the ledger up for too long, at ``now``."""
        slow = self._awaited_for_long(now)
        if behind and not self._needs(behind):
            slow |= set(behind)
        if not slow:
            return
        patience = self._connections.patience
        patience.spend(slow, now)
        spent = self._connections.quietest_first(filter(patience.is_spent, slow))
        for bookie in spent:
            if bookie not in self._told:
                self._connections.quarantine(bookie, _WHY)
                log.warning(
                    "ledger %d: %s is much slower than the other bookies; it is replaced if there is another one, and not "
                    "waited for if there is none",
                    self._writer.metadata.ledger_id,
                    bookie,
                )
        self._told |= frozenset(spent)
        if spent:
            self._step(HeldUp(spent))

    def _needs(self, behind: Sequence[str]) -> bool:
        """Can no ack quorum be had without these bookies?"""
        metadata = self._writer.metadata
        return quorum_lost(metadata, frozenset(behind), metadata.ack_quorum)

    def _awaited_for_long(self, now: float) -> set[str]:
        """The bookies for which the oldest entry waits that is not acknowledged, if another one has it for a moment already."""
        first, heard_at = self._kept.oldest_under_way()
        if heard_at is None or now - heard_at < _MOMENT_SECONDS:
            return set()
        add = self._writer.cursors.pending.get(first)
        if add is None or len(add.acks) >= self._writer.metadata.ack_quorum:
            return set()
        return set(add.bookies) - add.acks
