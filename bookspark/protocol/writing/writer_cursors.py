"""A writer's progress: its cursors, and its pending adds.

Law: released ≤ LAC (last add confirmed) ≤ acknowledged ≤ pushed, and no cursor ever goes back. ``pending`` has the adds after
*released*: their content may be needed again. On a best-effort PD (persistent durability) ledger the first three are equal. The
policies ``durability`` and ``replication`` decide when an add passes each.

Source: bookkeeper-overview, "Writing"; BP-14 for acknowledged entries that are not confirmed; "Guaranteeing write quorum" for
LAFR (last add fully replicated).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set

from bookspark.protocol.ledger.actions import Acknowledge, Action, Confirm, Release
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.writing.durability import Persistent, Volatile
from bookspark.protocol.writing.replication import BestEffort
from bookspark.protocol.writing.writer_state import PendingAdd


class Cursors:
    """Ids are entry ids, ``NO_ENTRY`` before the first; lengths are the ledger's, in bytes of payload. ``durability`` is a
    parameter and no field, because the state of a machine is a tree."""

    __slots__ = (
        "_ack_quorum",
        "_copies",
        "_keeps_confirmed",
        "last_add_acknowledged",
        "last_add_confirmed",
        "last_add_fully_replicated",
        "last_add_pushed",
        "length",
        "pending",
        "pushed_length",
        "released",
    )

    def __init__(self, metadata: LedgerMetadata, replication: BestEffort) -> None:
        self._ack_quorum = metadata.ack_quorum
        self._copies = replication.copies(metadata)
        self._keeps_confirmed = replication.keeps_confirmed
        self.released = NO_ENTRY
        """The writer needs no entry up to this id any more."""
        self.last_add_confirmed = NO_ENTRY
        self.last_add_acknowledged = NO_ENTRY
        """The highest id acknowledged to the user; on a PD ledger, the LAC."""
        self.last_add_fully_replicated = NO_ENTRY
        """The LAFR; only guaranteed ledgers have one."""
        self.last_add_pushed = NO_ENTRY
        self.length = 0
        """Up to ``last_add_confirmed``."""
        self.pushed_length = 0
        self.pending: dict[int, PendingAdd] = {}
        """Adds not released, by their first id, ascending."""

    def push(self, count: int, byte_length: int, bookies: tuple[str, ...]) -> PendingAdd:
        first = self.last_add_pushed + 1
        self.last_add_pushed += count
        self.pushed_length += byte_length
        add = self.pending[first] = PendingAdd(first, self.last_add_pushed, self.pushed_length, bookies)
        return add

    def advance(self, durability: Persistent | Volatile, leaving: frozenset[str]) -> list[Action]:
        """Move all cursors as far as the answers allow, without copies on bookies ``leaving``."""
        pending, ack_quorum = self.pending, self._ack_quorum
        confirmed, released, acknowledged = self.last_add_confirmed, self.released, self.last_add_acknowledged
        while (add := pending.get(confirmed + 1)) and len(durability.holders(add, leaving)) >= ack_quorum:
            confirmed, self.length = add.last, add.length
        while (add := pending.get(released + 1)) and add.last <= confirmed:
            if self._keeps_confirmed and len(durability.holders(add, leaving)) < self._copies:
                break
            released = add.last
            del pending[add.first]
        acknowledged = max(acknowledged, confirmed)
        actions: list[Action] = []
        if durability.volatile:
            while (add := pending.get(acknowledged + 1)) and len(add.acks - leaving) >= ack_quorum:
                acknowledged = add.last
            if acknowledged > max(confirmed, self.last_add_acknowledged):
                actions.append(Acknowledge(acknowledged))
            actions += durability.acknowledged(acknowledged)
        if confirmed > self.last_add_confirmed:
            actions.append(Confirm(confirmed))
        if self._keeps_confirmed and released > self.released:
            self.last_add_fully_replicated = released
            actions.append(Release(released))
        self.last_add_acknowledged, self.last_add_confirmed, self.released = acknowledged, confirmed, released
        return actions

    def confirmed_holders(self, durability: Persistent | Volatile, leaving: frozenset[str]) -> Iterator[Set[str]]:
        """The holders, without those ``leaving``, of each confirmed entry not yet released."""
        add = self.pending.get(self.released + 1)
        while add and add.last <= self.last_add_confirmed:
            yield durability.holders(add, leaving)
            add = self.pending.get(add.last + 1)

    def missed(self, bookies: Collection[str]) -> Iterator[tuple[PendingAdd, tuple[str, ...]]]:
        """Each add not acknowledged by some of ``bookies``, with these bookies."""
        for add in self.pending.values():
            missing = tuple(b for b in add.bookies if b in bookies and b not in add.acks)
            if missing:
                yield add, missing

    def replace(self, bookies: Mapping[str, str]) -> None:
        """Put values in the places of keys; acks of the keys are taken back."""
        for add in self.pending.values():
            add.bookies = tuple(bookies.get(bookie, bookie) for bookie in add.bookies)
            add.acks -= bookies.keys()
