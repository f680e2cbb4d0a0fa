"""Order of appends whose caller chooses the entry ids (BookKeeper's ``LedgerHandleAdv``).

Law: entries go out in the order of their ids, without a gap, each id once. An entry that comes before one with a lower id waits
for it, so the writer, the bookies and the recovery never see a gap. (BookKeeper sends such an entry at once, and acknowledges it
later. Its length is then counted in the order of the calls; here it is exact.)

A repeated id is refused whatever its bytes are, as in BookKeeper: the first one counts, acknowledged or not. When the ledger is
closed, entries waiting behind a gap are not part of it. ::

    IN_ORDER ──Given, a later id──► GAP ──Given, the missing ids──► IN_ORDER
        └───────────NoMore──────────┴──► ENDED

Source: BookKeeper's ``LedgerHandleAdv.asyncAddEntry`` (its BOOKKEEPER-867).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bookspark.errors import ConfigurationError, DuplicateEntryIdError, LedgerClosedError
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.transitions import LATE, TAKEN, Table, cell_of, row

ENTRY_ID_MAX = (1 << 63) - 2
"""The id after it has to fit 63 bits too."""


class Order(Enum):
    """Is an id missing?"""

    IN_ORDER = auto()
    GAP = auto()
    """Entries wait for a lower id."""
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class Given:
    """An append of the entry ``entry_id``."""

    entry_id: int


@dataclass(frozen=True, slots=True)
class NoMore:
    """The ledger is being closed."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """Entries ``first`` to ``last`` go out now, as the ledger's next ones."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Entries that never go out, because an earlier entry is missing."""

    entry_ids: tuple[int, ...]


IdEvent = Given | NoMore

TRANSITIONS: Table[Order] = {
    Order.IN_ORDER: row(taken=(Given, NoMore)),
    Order.GAP: row(taken=(Given, NoMore)),
    Order.ENDED: row(late=(NoMore,), refused=(Given,)),
}


class GivenIds:
    """The ids of one ledger's appends."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.state = Order.IN_ORDER
        self.last_in_order = NO_ENTRY
        """Everything up to this id went out."""
        self.waiting: set[int] = set()
        """Ids that wait for a lower one."""

    def step(self, event: IdEvent) -> list[InOrder | LeftOut]:
        """Raises DuplicateEntryIdError, LedgerClosedError, ConfigurationError for an impossible id, and IllegalEventError; then
        nothing has changed."""
        cell = cell_of(TRANSITIONS, self.state, event)
        if cell is LATE:
            return []
        if cell is not TAKEN:
            raise LedgerClosedError(f"ledger {self.ledger_id} is closed; append to a new one")
        if isinstance(event, NoMore):
            left, self.waiting, self.state = tuple(sorted(self.waiting)), set(), Order.ENDED
            return [LeftOut(left)] if left else []
        return self._given(event.entry_id)

    def _given(self, entry_id: int) -> list[InOrder | LeftOut]:
        if not 0 <= entry_id <= ENTRY_ID_MAX:
            raise ConfigurationError(
                f"ledger {self.ledger_id}: entry id {entry_id} can't be used: they go from 0 to {ENTRY_ID_MAX}"
            )
        first = self.last_in_order + 1
        if entry_id < first or entry_id in self.waiting:
            raise DuplicateEntryIdError(
                f"ledger {self.ledger_id}: entry {entry_id} was appended before; its future has the outcome"
            )
        if entry_id > first:
            self.waiting.add(entry_id)
            self.state = Order.GAP
            return []
        last = entry_id
        while last + 1 in self.waiting:
            last += 1
            self.waiting.remove(last)
        self.last_in_order = last
        self.state = Order.GAP if self.waiting else Order.IN_ORDER
        return [InOrder(first, last)]
