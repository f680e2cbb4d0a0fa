"""What a bookie knows of its ledgers apart from their entries, as the control log keeps it.

Law: that of ``protocol.bookie_boot``: a ledger of which nothing is known may have been known once, before a lossy boot or a
collection, so whoever makes one anew makes it here, with its fence *unsure* where it may have had one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bookspark.protocol.bookie.bookie_boot import NO_LOSSY_BOOT, HealedNoted, LossyBootNoted, first_contact
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, ControlRecord
from bookspark.protocol.bookie.garbage_collection import NOTHING_COLLECTED, CollectionNoted

_LEDGERS_A_PART = 1000

Record = ControlRecord | LossyBootNoted | HealedNoted | CollectionNoted
"""Of one ledger, or of all."""


class ControlState:
    """``ledgers`` by id; the lossy-boot ``mark``; the last lossy boot that was ``healed``; the highest ledger that was
    ``collected``."""

    def __init__(self) -> None:
        self.ledgers: dict[int, BookieLedger] = {}
        self.mark = NO_LOSSY_BOOT
        self.healed = HealedNoted(0)
        self.collected = NOTHING_COLLECTED

    def known(self, ledger_id: int) -> BookieLedger:
        """What is known of a ledger, or what is to be known of it from the first request on that is granted; not kept."""
        return self.ledgers.get(ledger_id) or first_contact(ledger_id, self.mark, self.collected)

    def of(self, ledger_id: int) -> BookieLedger:
        """The same, kept."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = first_contact(ledger_id, self.mark, self.collected)
        return ledger

    def replay(self, records: Iterable[Record]) -> None:
        """Take over records, in any order and any number of times."""
        for record in records:
            if isinstance(record, LossyBootNoted):
                self.mark = max(self.mark, record)
            elif isinstance(record, HealedNoted):
                self.healed = max(self.healed, record)
            elif isinstance(record, CollectionNoted):
                self.collected = max(self.collected, record)
            else:
                ledger = self.ledgers.get(record.ledger_id)
                if ledger is None:
                    ledger = self.ledgers[record.ledger_id] = BookieLedger(record.ledger_id)
                ledger.replay(record)

    def limbo(self) -> dict[int, int]:
        """The ledgers in limbo, and the lossy boot that each is in limbo for."""
        if self.healed.boot == self.mark.boot:
            return {}
        return {ledger.ledger_id: ledger.limbo_boot for ledger in self.ledgers.values() if ledger.limbo}

    def records(self) -> Iterator[list[Record]]:
        """The records that make this state again, in parts. Between two parts the state may change: what is noted meanwhile, and
        these, together make what it is then."""
        first: list[Record] = []
        if self.mark != NO_LOSSY_BOOT:
            first += (self.mark, self.healed)
        if self.collected != NOTHING_COLLECTED:
            first.append(self.collected)
        yield first
        ledgers = list(self.ledgers.values())
        for start in range(0, len(ledgers), _LEDGERS_A_PART):
            part: list[Record] = []
            for ledger in ledgers[start : start + _LEDGERS_A_PART]:
                part += ledger.control_records()
            yield part
