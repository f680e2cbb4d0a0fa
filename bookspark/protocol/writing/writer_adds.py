"""A writer's adds: how entries are sent to bookies, sent again, and synced. The part of a writer that knows no metadata store.

Law: a bookie is sent again the pending entries that it has not acknowledged, and no others. An add tells the LAC (last add
confirmed) of the moment, and the LAFR (last add fully replicated) of a guaranteed ledger.

``cursors`` tells how far the writer is; ``durability`` is the policy of a PD (persistent) or a VD (volatile) ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from bookspark.protocol.ledger.actions import Action, AddAnswered, SendAdd, SyncAnswered, SyncReport
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.writing.durability import Volatile, durability_of
from bookspark.protocol.writing.explicit_lac import ExplicitLac
from bookspark.protocol.writing.replication import BestEffort
from bookspark.protocol.writing.writer_cursors import Cursors
from bookspark.protocol.writing.writer_state import PendingAdd

NEVER_ASKED = "the bookie was never asked"
NOT_VOLATILE = "bookies are asked to sync a VD ledger, and no other"


@lru_cache(maxsize=256)
def _bookies_of(ensemble: tuple[str, ...]) -> frozenset[str]:
    """One set for all ledgers of an ensemble."""
    return frozenset(ensemble)


class Adds:
    """The adds of one writer. Every bookie that a method is given is in the ensemble."""

    __slots__ = ("cursors", "durability", "explicit_lac", "known")

    def __init__(
        self,
        metadata: LedgerMetadata,
        replication: BestEffort,
        sync_bytes: int,
        explicit_lac_interval_seconds: float,
    ) -> None:
        self.known = _bookies_of(metadata.last_fragment.ensemble)
        """The bookies that are or were in the ensemble: nobody else was ever asked."""
        self.cursors = Cursors(metadata, replication)
        self.durability = durability_of(metadata, sync_bytes)
        self.explicit_lac = ExplicitLac(explicit_lac_interval_seconds)

    def append(self, count: int, byte_length: int, write_set: tuple[str, ...], leaving: frozenset[str]) -> list[Action]:
        """The next ``count`` ids, for the bookies of ``write_set``; nothing is sent to those that are ``leaving``."""
        cursors = self.cursors
        self.explicit_lac.entry_told(cursors.last_add_confirmed, cursors.last_add_fully_replicated)
        add = cursors.push(count, byte_length, write_set)
        actions = self._send(add, tuple(b for b in write_set if b not in leaving) if leaving else write_set)
        self.durability.appended(add.last, add.length)
        return actions

    def _send(self, add: PendingAdd, bookies: tuple[str, ...]) -> list[Action]:
        lac, lafr = self.cursors.last_add_confirmed, self.cursors.last_add_fully_replicated
        if not isinstance(self.durability, Volatile):
            return [SendAdd(bookies, add.first, add.last, lac, None, lafr)]
        return [
            SendAdd(group, add.first, add.last, lac, None, lafr, mine)
            for mine, group in self.durability.grouped(bookies)
        ]

    def send_missed(self, bookies: Collection[str]) -> list[Action]:
        """Send ``bookies`` the pending entries that they have not acknowledged."""
        syncs = self._pass_over(bookies)
        sends = [send for add, missing in self.cursors.missed(bookies) for send in self._send(add, missing)]
        return sends + syncs

    def _pass_over(self, bookies: Iterable[str]) -> list[Action]:
        """``bookies`` may lack released entries, which are not sent any more."""
        return self.durability.passed_over(bookies, self.cursors.released, self.cursors.pending.values())

    def dropped(self, bookie: str) -> list[Action]:
        """The driver dropped adds that it had held back for ``bookie``, as they were released."""
        self.explicit_lac.missed((bookie,))
        return self._pass_over((bookie,))

    def send_again(self, bookie: str, incarnation: int) -> list[Action]:
        """``bookie`` can be reached again, and speaks as ``incarnation`` (0: not known)."""
        self.durability.back(bookie, incarnation, self.cursors.pending.values())
        return self.send_missed((bookie,))

    def replace(self, metadata: LedgerMetadata, swap: Mapping[str, str]) -> list[Action]:
        """The ensemble is that of ``metadata`` now. ``swap`` tells who joined in place of whom: acks of those that left are taken
        back, and those that joined get all that counts."""
        self.known = self.known.union(swap.values())
        self.cursors.replace(swap)
        self.durability.joined(metadata, swap.values())
        self.explicit_lac.replace(swap)
        return self.send_missed(swap.values())

    def advance(self, leaving: frozenset[str]) -> list[Action]:
        """Move the cursors as far as the answers allow. Copies on bookies that are ``leaving`` don't count."""
        return self.cursors.advance(self.durability, leaving)

    # -- content that can't be

    def misfit(self, event: AddAnswered) -> str | None:
        """Why ``event`` can't be the answer of a bookie to an add; None if it can."""
        add = self.cursors.pending.get(event.first)
        sent = 0 <= event.first <= event.last <= self.cursors.released if add is None else event.last == add.last
        if not sent:
            return "these entries were not sent"
        if event.bookie not in self.known:
            return NEVER_ASKED
        if (event.synced is not None) is not (self.durability.volatile and isinstance(event.response, Positive)):
            return "an ack tells what is synced on a VD ledger, and nothing else does"
        return None if event.synced is None else self._misfit_report(event.bookie, event.synced)

    def misfit_sync(self, event: SyncAnswered) -> str | None:
        """The same of an answer to a sync."""
        if not self.durability.volatile:
            return NOT_VOLATILE
        if event.bookie not in self.known:
            return NEVER_ASKED
        if (event.synced is not None) is not isinstance(event.response, Positive):
            return "a positive answer tells what is synced, and no other does"
        return None if event.synced is None else self._misfit_report(event.bookie, event.synced)

    def _misfit_report(self, bookie: str, report: SyncReport) -> str | None:
        """An id that was never sent can't be synced. Taken for true, it would confirm entries before any bookie has them."""
        return (
            "more is synced than was sent"
            if self.volatile.is_ahead(bookie, report, self.cursors.last_add_pushed)
            else None
        )

    # -- VD ledgers

    @property
    def volatile(self) -> Volatile:
        """The policy of a VD ledger."""
        assert isinstance(self.durability, Volatile), "the ledger is a PD ledger"
        return self.durability

    def heard(self, bookie: str, report: SyncReport, add: PendingAdd | None) -> list[Action]:
        """A positive answer came with ``report``; ``add`` if it acknowledges that. What a bookie that was started again may have
        lost is sent again."""
        actions, restarted = self.volatile.heard(bookie, report, add, self.cursors.pending.values())
        return actions + self.send_missed((bookie,)) if restarted else actions

    def sync_rest(self, bookie: str) -> list[Action]:
        """Ask ``bookie`` to sync again if its last sync came too early for something."""
        return self.volatile.sync_rest(bookie, self.cursors.pending.values())

    def sync(self) -> list[Action]:
        """Everything that was appended so far is to be synced."""
        self.durability.want(self.cursors.last_add_pushed, self.cursors.pushed_length)
        return self.durability.acknowledged(self.cursors.last_add_acknowledged)
